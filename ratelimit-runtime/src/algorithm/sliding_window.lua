-- A sliding window is one string of integers: the number of the sub-window it was last written in (multiples of its length since 1970),
-- and what was charged in that sub-window and in those before it, newest first, down to the oldest that counts. Its expiry is when all of it
-- has stopped counting, so what is stored and the key's PTTL tell the time.
--
-- cost, count, size (ms a sub-window), buckets
-- returns  nothing if nothing counts, or ms until all of it has stopped counting, and the integers, after the charge if
--          there is one; with '-' before them if the cost does not fit
value = value or call('GET', key)
local left = value and call('PTTL', key) or 0
local counts, current, now = {}
if left ~= 0 then
  for number in string.gmatch(value, '%d+') do
    if current then
      counts[#counts + 1] = 0 + number
    else
      current = 0 + number
    end
  end
  now = (current + 1 + buckets) * size - left
  if left < 0 or now < current * size then -- no expiry, or the server's clock was set back: as if all of it were charged just now
    time = time or call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
    local sum = 0
    for i = 1, #counts do
      sum = sum + counts[i]
    end
    counts, current = { sum }, math.floor(now / size)
    left = (current + 1 + buckets) * size - now
    call('SET', key, string.format('%.0f %.0f', current, sum), 'PXAT', string.format('%.0f', now + left))
  end
elseif charge then
  time = time or call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  current = math.floor(now / size)
else
  reply, fits = false, true
  break
end

local passed = math.floor(now / size) - current
if passed > 0 then
  for i = math.min(#counts, buckets + 1 - passed), 1, -1 do
    counts[i + passed] = counts[i]
  end
  for i = 1, passed do
    counts[i] = 0
  end
  current = current + passed
end
local used = 0
for i = 1, math.min(#counts, buckets) do
  used = used + counts[i]
end
local oldest = counts[buckets + 1]
if oldest then
  used = used + math.ceil(oldest * (size - now % size) / size)
end
fits = charge == 'always' or cost == 0 or used + cost <= count
if fits and charge then
  counts[1] = (counts[1] or 0) + cost
end
local text = string.format('%.0f', current)
for i = 1, math.min(#counts, buckets + 1) do
  text = text .. string.format(' %.0f', counts[i])
end
local stops = (current + 1 + buckets) * size
if fits and charge then
  call('SET', key, text, 'PXAT', string.format('%.0f', stops))
end
reply = string.format(fits and '%.0f ' or '-%.0f ', stops - now) .. text
