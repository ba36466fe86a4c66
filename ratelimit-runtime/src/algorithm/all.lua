-- Several counters, all or nothing: a look at each, then, if all of them fit, a charge to each.
-- Replies with three numbers a counter, those of its function.
local functions = { fixed_window = fixed_window, sliding_log = sliding_log }

local function each(charge)
  local reply, fits = {}, true
  for i, key in ipairs(KEYS) do
    local at = 7 * i - 5
    local numbers = {}
    for n = 1, 6 do
      numbers[n] = tonumber(ARGV[at + n])
    end
    local a, b, c = functions[ARGV[at]](key, charge, unpack(numbers))
    reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] = a, b, c
    fits = fits and a >= 0
  end
  return reply, fits
end

local reply, fits = each(false)
if fits and ARGV[1] == '1' then
  reply = each(true)
end
return reply
