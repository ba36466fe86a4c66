-- cost (* 450,001), number of the window that was charged
-- returns  how much was refunded: nothing to another window
local value = call('GET', key)
if not value or call('PTTL', key) == 0 then
  return 0
end
local used = value - value % 450001
local back = math.min(cost, used)
if value % 450001 ~= number or back == 0 then
  return 0
elseif back == used then
  call('DEL', key)
else
  call('DECRBY', key, string.format('%.0f', back))
end
return back / 450001
