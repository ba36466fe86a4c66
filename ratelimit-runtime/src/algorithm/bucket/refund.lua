-- cost, unit (units of a token), refill (units of an interval), interval (ms)
-- charged  when the bucket was charged; for a queue, when it was full after the charge
-- spare    for a queue, 1 + the units before that; otherwise 0
-- returns  tokens refunded, rounded up: those that can't have been refilled since the charge; for a
--          queue, only the last charge is refunded
local value = call('GET', key)
local left = value and call('PTTL', key) or 0
if left <= 0 then
  return 0
end
local full, away, deficit = struct.unpack('<ddd', value)
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
if spare > 0 then
  deficit = math.max(deficit, (left - 1) * refill + 1)
end
deficit = math.max(deficit, 0)
local refunded = cost * unit
if spare == 0 then
  local since = intervals(full - charged) - intervals(left)
  refunded = math.max(refunded - since * refill, 0)
end
refunded = math.min(refunded, deficit)
if refunded == 0 then
  return 0
end
deficit = deficit - refunded
refunded = math.ceil(refunded / unit)
if deficit == 0 then
  call('DEL', key)
  return refunded
end
local later = ((deficit + -deficit % refill) / refill - intervals(left)) * interval
full = full + later
call('SET', key, struct.pack('<ddd', full, left + later, deficit), 'PXAT', string.format('%.0f', full))
return refunded
