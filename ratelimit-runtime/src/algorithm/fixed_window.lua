-- See fixed_window_value.lua, which comes before this.
--
-- room     the largest value a window may have for the cost to fit
-- length   ms a window
-- align    1: begin on multiples of the length; or 0
-- charged  (an argument of its own) the cost * unit; nil: the unit
-- returns  nothing if there is no window, or value * length + ms until the window ends, with the value before a charge, or if
--          that is above 2^53 the value and the ms by themselves; n as -1 - n if the cost does not fit
--
-- Redis keeps a key while its PTTL is 0; the window is half open, so it is over by then.
local left
if value and now and length < 460000000 then
  if align == 0 then
    left = (mark - now) % unit
    if left > length then
      left = nil -- it has just ended, or the server's clock was set back
    end
  elseif (now - mark) % unit <= now % length then
    left = length - now % length
  end
end
left = left or value and call('PTTL', key) or -2
if left == -1 or left > length or left <= 0 and charge then
  if not now then
    time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local full = align == 1 and length - now % length or length
  local ends = now + full
  local low = ends % 1e7
  local is_over = left ~= -1 and left <= 0
  if is_over then
    mark = align == 1 and now or ends
    value = mark % 450001
  elseif align == 0 then -- no expiry, or the server's clock was set back
    mark = ends
    value = value - value % 450001 + mark % 450001
  end
  left = full
  local used = is_over and (charged or unit) or (value - value % 450001) * (unit / 450001)
  local start = used + mark % unit
  local is_exact = start < 2 ^ 53
  -- `%d` is quick, and takes less than 2^31 on every server
  call('SET', key, string.format(start < 2 ^ 31 and '%d' or '%.0f', is_exact and start or used), 'PXAT', string.format('%d%07d', (ends - low) / 1e7, low))
  if not is_exact then
    call('INCRBY', key, mark % unit)
  end
  charge = charge and not is_over
elseif left <= 0 then
  reply, fits = false, true
  break
end
fits = value <= room
if fits and charge then
  call('INCRBY', key, charged or length < 225000 and '450001' or '921602048') -- the unit, in digits
end
local packed = value * length + left
if packed < 2 ^ 53 then
  reply = fits and packed or -1 - packed
else
  reply = { fits and value or -1 - value, left }
end
