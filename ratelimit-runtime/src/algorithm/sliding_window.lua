-- A sliding window is one string of numbers of 8 bytes: the sub-window it was last written in (its start divided by its length), the sum of
-- all counts, and the counts: the charges of that sub-window and of those before it, newest first, down to the oldest that still counts.
-- The key expires when all of it has stopped counting, so the stored number and the key's PTTL tell the time. Moving on by one
-- sub-window puts 8 zero bytes in front. So no decision reads all counts: a count is read when it is the newest, the oldest or dropped.
--
-- cost, count, size (ms a sub-window), buckets
-- returns  after a charge: ms until all of it has stopped counting, the sub-window, and how much counts. Otherwise nothing if nothing
--          counts, or '+' ('-' if the cost does not fit), the ms, how much counts, the sub-window, the sum and the counts
value = value or call('GET', key)
local left, counts, current, sum = 0, '', nil, 0
if value then
  current, sum = struct.unpack('<dd', value)
  counts = string.sub(value, 17)
  local stops = (current + 1 + buckets) * size
  left = now and math.max(stops - now, 0) or call('PTTL', key)
  if left < 0 or left > (1 + buckets) * size then -- no expiry, or the server's clock was set back: as if all of it were charged just now
    if not now then
      time = call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    current, counts = math.floor(now / size), struct.pack('<d', sum)
    left = (current + 1 + buckets) * size - now
    value = struct.pack('<dd', current, sum) .. counts
    call('SET', key, value, 'PXAT', string.format('%.0f', now + left))
  elseif not now then
    now = stops - left
  end
end
if left == 0 then
  if not charge then
    reply, fits = false, true
    break
  end
  if not now then
    time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  current, sum, counts = math.floor(now / size), 0, ''
end

local passed = math.floor(now / size) - current
if passed > 0 then
  local kept = math.min(#counts / 8, buckets + 1 - passed)
  local dropped = #counts / 8 - kept
  if dropped > 0 then
    local numbers = { struct.unpack('<' .. string.rep('d', dropped), counts, 8 * kept + 1) }
    for i = 1, dropped do
      sum = sum - numbers[i]
    end
  end
  counts = string.rep('\0', 8 * passed) .. string.sub(counts, 1, 8 * kept)
  current = current + passed
end
local used, stops = sum, (current + 1 + buckets) * size
if #counts > 8 * buckets then
  local oldest = struct.unpack('<d', counts, 8 * buckets + 1)
  used = sum - oldest + math.ceil(oldest * (size - now % size) / size)
end
fits = charge == 'always' or cost == 0 or used + cost <= count
if fits and charge then
  local newest = #counts > 0 and struct.unpack('<d', counts) or 0
  value = struct.pack('<ddd', current, sum + cost, newest + cost) .. string.sub(counts, 9)
  local low = stops % 1e7 -- `%d` is quick, and takes less than 2^31 on every server
  call('SET', key, value, 'PXAT', string.format('%d%07d', (stops - low) / 1e7, low))
  reply = struct.pack('<ddd', stops - now, current, used + cost)
else
  reply = (fits and '+' or '-') .. struct.pack('<dddd', stops - now, used, current, sum) .. counts
end
