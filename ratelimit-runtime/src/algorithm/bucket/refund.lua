-- cost, unit (units a token), refill (units an interval), interval (ms)
-- charged  when the bucket was charged; for a queue, when it was full after the charge
-- spare    for a queue, 1 + how many units before that; otherwise 0
-- returns  how much was refunded, in tokens, a part of one as one: what the bucket cannot have refilled since; of a queue,
--          only what was charged last
local value = call('GET', key)
local left = value and call('PTTL', key) or 0
if left <= 0 then
  return 0
end
local full, away, missing = struct.unpack('<ddd', value)
local function intervals(ms)
  return (ms + -ms % interval) / interval
end
if spare > 0 and (full ~= charged or away * refill - missing + 1 ~= spare) then
  return 0
end
left = math.min(left, away)
missing = missing - (intervals(away) - intervals(left)) * refill
if spare > 0 then
  missing = math.max(missing, (left - 1) * refill + 1)
end
missing = math.max(missing, 0)
local back = cost * unit
if spare == 0 then
  local since = math.max(intervals(math.max(full - charged, 0)) - intervals(left), 0)
  back = math.max(back - since * refill, 0)
end
back = math.min(back, missing)
if back == 0 then
  return 0
end
missing = missing - back
back = math.ceil(back / unit)
if missing == 0 then
  call('DEL', key)
  return back
end
local later = ((missing + -missing % refill) / refill - intervals(left)) * interval
full = full + later
call('SET', key, struct.pack('<ddd', full, left + later, missing), 'PXAT', string.format('%.0f', full))
return back
