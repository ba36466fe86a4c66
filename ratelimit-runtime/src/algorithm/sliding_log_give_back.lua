-- cost, period (ms), the time of the charge, digits
-- returns  how much was given back: nothing if the charge has expired, is gone, or has more than 5,000 entries behind it: each
--          later total changes, and the server does nothing else meanwhile
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
local function push(at, total)
  call('RPUSH', key, struct.pack('<d', at * wrap + total % wrap))
end

local first, length = call('LINDEX', key, '0'), call('LLEN', key)
-- What is held is left of all entries, and says when they have expired.
local low, high = first and #first > 8 and 1 or 0, length - 1
if low > high or age(charged) >= period or low == 1 and select(2, struct.unpack('<dd', first)) <= now_ms then
  return 0
end
-- The first entry of that time or later; an expired one is earlier, however old.
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
local held, behind = 1, low + 1
if behind < length then
  local second, after = entry(behind)
  if second == at then
    held, behind = (after - total) % wrap + 1, behind + 1
  end
end
local back = math.min(cost, held)
local left, later = call('PTTL', key), call('LRANGE', key, behind, '-1')
if low > 0 then
  call('LTRIM', key, '0', low - 1)
else
  call('DEL', key)
end
if back < held then
  push(at, total)
end
if back + 1 < held then
  push(at, total + held - back - 1)
end
for _, number in ipairs(later) do
  number = struct.unpack('<d', number)
  push(math.floor(number / wrap), number % wrap - back)
end
if low == 0 and left > 0 then
  call('PEXPIRE', key, left)
end
return back
