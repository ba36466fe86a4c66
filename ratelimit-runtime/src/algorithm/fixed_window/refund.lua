-- cost     * 450,001
-- number   of the window that was charged
-- longest  ms until the end of that window, at most
-- returns  amount refunded; 0 if another window is stored
local value = call('GET', key)
local left = value and call('PTTL', key) or 0
if left == 0 or left > longest then
  return 0
end
local used = value - value % 450001
local refunded = math.min(cost, used)
if value % 450001 ~= number or refunded == 0 then
  return 0
elseif refunded == used then
  call('DEL', key)
else
  call('DECRBY', key, string.format('%.0f', refunded))
end
return refunded / 450001
