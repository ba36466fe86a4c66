-- charged  the time of the entry that took the charge
-- returns  how much was given back: nothing if the entry has expired, is gone, or has more than 5,000 behind it: each
--          later total changes, and the server does nothing else meanwhile
local function entry_of(entry, digits)
  return tonumber(string.sub(entry, 2, digits + 1)), tonumber(string.sub(entry, digits + 2))
end

local function text_of(time, total, digits)
  return string.format('1%0' .. digits .. '.0f%0' .. 18 - digits .. '.0f', time, total)
end
cost, tick, period, digits, charged = 0 + cost, 0 + tick, 0 + period, 0 + digits, 0 + charged
local cycle, wrap = 10 ^ digits, 10 ^ (18 - digits)
local clock = call('TIME')
local now = math.floor((clock[1] * 1e6 + clock[2]) / tick)
local function age(time)
  return (now - time + cycle / 2) % cycle - cycle / 2
end
local function at(index)
  return entry_of(call('LINDEX', key, index), digits)
end

local length = call('LLEN', key)
if length < 2 or age(charged) >= period then
  return 0
end
-- The first entry of that time or later; an expired one is earlier, however old.
local low, high = 1, length - 1
while low < high do
  local middle = math.floor((low + high) / 2)
  if age((at(middle))) > age(charged) then
    low = middle + 1
  else
    high = middle
  end
end
local time, total = at(low)
if time ~= charged or length - low > 5000 then
  return 0
end
local _, before = at(low - 1)
local back = math.min(cost, (total - before) % wrap)
if back == 0 then
  return 0
end
local later = call('LRANGE', key, low, -1)
call('LTRIM', key, 0, low - 1)
for i, entry in ipairs(later) do
  local entry_time, entry_total = entry_of(entry, digits)
  entry_total = (entry_total - back) % wrap
  if i > 1 or entry_total ~= before then -- an entry that costs nothing any more is dropped
    call('RPUSH', key, text_of(entry_time, entry_total, digits))
  end
end
if call('LLEN', key) == 1 then
  call('DEL', key)
end
return back
