-- cost, unit (units of a token), refill (units of an interval), interval (ms)
-- charged  when the bucket was charged; for a queue, when it was full after the charge
-- spare    for a queue, 1 + the units before that; otherwise 0
-- returns  tokens refunded, rounded up: those without which the bucket would not have been full
--          meanwhile, see `lows.rs`; for a queue, only the last charge is refunded
local value = call('GET', key)
local left = value and call('PTTL', key) or 0
if left <= 0 then
  return 0
end
local full, away, deficit, fastest = struct.unpack('<dddi4', value)
local pace = math.min(refill, 1073741823) -- see `decide.lua`
local is_mixed = spare == 0 and fastest ~= pace
local function intervals(ms)
  return (ms + -ms % interval) / interval
end
if spare > 0 and (full ~= charged or away * refill - deficit + 1 ~= spare) then
  return 0
end
left = math.min(left, away)
if spare == 0 and full - charged < left then
  return 0 -- the server's clock was set back since: nobody knows how much was refilled
end
deficit = deficit - (intervals(away) - intervals(left)) * refill
deficit = math.max(deficit, 0)
local units, now, kept = cost * unit, full - left, 0 -- kept: the part that can't have refilled since
local froms, lows, n, first = {}, {}, (#value - 28) / 16, 1
if spare == 0 then
  local since, lowest = intervals(full - charged) - intervals(left), 0
  for i = 1, n do
    froms[i], lows[i] = struct.unpack('<dd', value, 13 + 16 * i)
    if froms[i] <= charged then
      first = i
    end
  end
  local low = deficit
  for i = n, 1, -1 do
    low = math.min(low, lows[i])
    if i == first and froms[i] <= charged then
      lowest = low
    end
  end
  if since == 0 or refill >= 1073741823 or math.abs(fastest) < 1073741823 then -- otherwise it was any larger refill
    kept = math.max(units - since * math.max(refill, math.abs(fastest)), 0)
  end
  units = math.max(kept, math.min(units, lowest))
end
units = math.min(units, deficit)
if units == 0 then
  return 0
end
deficit = deficit - units
local refunded = math.ceil(units / unit)
local later = math.min(0, ((deficit + -deficit % refill) / refill - intervals(left)) * interval)
if is_mixed then
  fastest, later = -math.max(pace, math.abs(fastest)), 0
elseif deficit == 0 then
  call('DEL', key)
  return refunded
end
full = full + later
value = struct.pack('<dddi4', full, left + later, deficit, fastest)
local low, last = deficit, 0
for i = n, 1, -1 do
  if charged < now and i >= first then
    lows[i] = lows[i] - (froms[i] < charged and math.max(units - kept, 0) or units)
  end
  low = math.min(low, lows[i])
  lows[i] = low
end
for i = 1, n do
  if lows[i] > last then -- otherwise another pair covers it
    value = value .. struct.pack('<dd', froms[i], lows[i])
    last = lows[i]
  end
end
call('SET', key, value, 'PXAT', string.format('%.0f', full))
return refunded
