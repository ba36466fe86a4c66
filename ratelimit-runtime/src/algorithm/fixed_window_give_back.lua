-- cost (* 450,001), number of the window that was charged, length (ms a window)
-- returns  how much was given back: nothing to another window
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
  call('DECRBY', key, string.format('%.0f', back * (unit / 450001)))
end
return back / 450001
