-- Several counters, all or nothing: evaluates each, then charges each if all fit. Both use one
-- reading of the clock: set back in between, it could make room that does not exist, or take some
-- away. A counter that is over its limit is banned in the evaluation, if its rule has a ban. Returns
-- the reply for each counter, then 1 if all fit and 0 otherwise.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function each(charge)
  local replies, all_fit, at = {}, true, 2
  for i, key in ipairs(KEYS) do
    local id, numbers, charged = 0 + ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local reply, fits = scripts[id](key, redis.call, charged ~= '0' and charge, time, now, numbers, charged@ban)
    replies[i] = reply
    all_fit = all_fit and fits
    at = at + 3
  end
  return replies, all_fit
end

local replies, all_fit = each(false)
if all_fit and ARGV[1] == '1' then
  replies = each('always')
end
replies[#KEYS + 1] = all_fit and 1 or 0
return replies
