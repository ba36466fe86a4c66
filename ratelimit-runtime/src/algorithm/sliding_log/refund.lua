-- cost, period (ms), time of the charge, digits
-- returns  amount refunded; 0 if the counter is banned, if the charge has expired or is gone, or if
--          there are more than 5,000 entries from it on: each later total changes, and the server
--          does nothing else meanwhile
local wrap = 10 ^ digits
local cycle = 8123456790000000 / wrap
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
if period > 200000 then
  now = math.floor(now / 1000)
else
  period = period * 1000
end
local function age(at)
  return (now - at + cycle / 8) % cycle - cycle / 8
end
local function entry(index)
  local number = struct.unpack('<d', call('LINDEX', key, index))
  return math.floor(number / wrap), number % wrap
end
local first, length = call('LINDEX', key, '0'), call('LLEN', key)
local low, high = 0, length - 1
if first and #first > 8 then
  -- The holds, left of the entries, have the time when all entries expire and how many have.
  local _, charged_until, expired = struct.unpack('<ddd', first)
  if struct.unpack('<d', first, 57) > now_ms then
    return 0 -- banned
  end
  low = charged_until > now_ms and 3 + expired or length
end
if low > high or age(charged) >= period then
  return 0
end
-- Binary search for the first entry of that time or later. Expired entries count as earlier.
while low < high do
  local middle = math.floor((low + high) / 2)
  if age((entry(middle))) > age(charged) then
    low = middle + 1
  else
    high = middle
  end
end
local at, total = entry(low)
if at ~= charged or length - low > 5000 then
  return 0
end
local held, next_at = 1, low + 1
if next_at < length then
  local second, after = entry(next_at)
  if second == at then
    held, next_at = (after - total) % wrap + 1, next_at + 1
  end
end
local refunded = math.min(cost, held)
local later = call('LRANGE', key, next_at, '-1')
if low > 0 then
  call('LTRIM', key, '0', low - 1)
end
local numbers = {}
if refunded < held then
  numbers[1] = at * wrap + total
end
if refunded + 1 < held then
  numbers[2] = at * wrap + (total + held - refunded - 1) % wrap
end
for _, number in ipairs(later) do
  number = struct.unpack('<d', number)
  local its_total = number % wrap
  numbers[#numbers + 1] = number - its_total + (its_total - refunded) % wrap
end
-- A call takes a limited number of arguments.
for from = 1, #numbers, 500 do
  local to = math.min(from + 499, #numbers)
  for i = from, to do
    numbers[i] = struct.pack('<d', numbers[i])
  end
  call('RPUSH', key, unpack(numbers, from, to))
end
if low == 0 then
  -- After the writes: while a slot migrates, a deleted key can't be written again.
  call('LTRIM', key, length, '-1')
end
return refunded
