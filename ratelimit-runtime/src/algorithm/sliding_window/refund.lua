-- cost, size (ms of a sub-window), earlier, weighted: as in decide.lua
-- charged  number of the charge's sub-window
-- returns  amount refunded: the weight that the charge still had
local value = call('GET', key)
local left = value and call('PTTL', key) or 0
if left <= 0 then
  return 0
end
local current, sum = struct.unpack('<dd', value)
local now = math.max((current + 1 + earlier) * size - left, current * size)
local at, age = 17 + 8 * (current - charged), math.floor(now / size) - charged
if age > earlier or at < 17 or at > #value then
  return 0
end
local before = struct.unpack('<d', value, at)
local after = before - math.min(cost, before)
sum = sum - before + after
if sum == 0 then
  call('DEL', key)
else
  call('SETRANGE', key, '8', struct.pack('<d', sum))
  call('SETRANGE', key, at - 1, struct.pack('<d', after))
end
if age == earlier and weighted > 0 then
  local weight = size - now % size
  before, after = math.ceil(before * weight / size), math.ceil(after * weight / size)
end
return before - after
