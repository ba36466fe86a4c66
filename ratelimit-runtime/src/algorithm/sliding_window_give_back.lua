-- cost, size (ms a sub-window), buckets
-- charged  the number of the sub-window of the charge
-- returns  how much was given back: what the charge still weighs
local value = call('GET', key)
local left = value and call('PTTL', key) or 0
if left <= 0 then
  return 0
end
local counts, current = {}
for number in string.gmatch(value, '%d+') do
  if current then
    counts[#counts + 1] = 0 + number
  else
    current = 0 + number
  end
end
local now = math.max((current + 1 + buckets) * size - left, current * size)
local i = current - charged + 1
local age = math.floor(now / size) - charged
if age > buckets or not counts[i] then
  return 0
end
local function weight(charged_then)
  return age < buckets and charged_then or math.ceil(charged_then * (size - now % size) / size)
end
local before = weight(counts[i])
counts[i] = counts[i] - math.min(cost, counts[i])
local text, sum = string.format('%.0f', current), 0
for n = 1, #counts do
  text = text .. string.format(' %.0f', counts[n])
  sum = sum + counts[n]
end
if sum == 0 then
  call('DEL', key)
else
  call('SET', key, text, 'KEEPTTL')
end
return before - weight(counts[i])
