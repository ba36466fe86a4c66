-- A fixed window is one string that Redis takes as an integer: use * 450,001 + window number.
-- The number is the end of the window (its opening if aligned) in ms since 1970, modulo 450,001.
-- The key expires at the end of the window. A short window's end also follows from its number.
--
-- A ban is a number that is infinite as a double: `600000e999`, with the ms of the ban in front.
--
-- room     largest value of the window for the cost to fit
-- length   ms of a window
-- align    1: windows begin on multiples of the length; or 0
-- charged  (its own argument) cost * 450,001; nil: 450,001
-- returns  false if there is no window, or value * length + ms until its end, with the value before
--          the charge; above 2^53 the value and the ms apart; n as -1 - n if the cost does not fit
--
-- Redis keeps a key while its PTTL is 0. The window is half open, so it is over by then.
local left
value = value or call('GET', key)
if value then
  value = 0 + value
  if now and length < 225000 then
    if align == 0 then
      left = (value - now) % 450001
      if left > length then
        left = nil -- just ended, or the server's clock was set back
      end
    elseif (now - value) % 450001 <= now % length then
      left = length - now % length
    end
  elseif now then
    -- PTTL may be read up to 200 s later than `now`. The window number tells by how much.
    left = call('PTTL', key)
    local cycle = align == 0 and 450001 or length
    local later = left < 0 and 0 or (value * (1 - align) - now - left) % cycle
    left = later < 200000 and left + later or math.max(left + later - cycle, 0)
  end
end
left = left or value and call('PTTL', key) or -2
if (left == -1 or left > length or left <= 0 and charge) and value ~= math.huge then
  if not now then
    time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local full = align == 1 and length - now % length or length
  local ends = now + full
  local low = ends % 1e7
  local is_over = left ~= -1 and left <= 0
  if is_over then
    value = (align == 1 and now or ends) % 450001
  elseif align == 0 then -- no expiry, or the server's clock was set back
    value = value - value % 450001 + ends % 450001
  end
  left = full
  local start = is_over and value + (charged or 450001) or value
  start = string.format(start < 2 ^ 31 and '%d' or '%.0f', start) -- `%d` is fast, but limited to 2^31 on some servers
  call('SET', key, start, 'PXAT', string.format('%d%07d', (ends - low) / 1e7, low))
  charge = charge and not is_over
elseif left <= 0 and value ~= math.huge then
  reply, fits = false, true
  break
end
fits = value <= room
if fits and charge then
  call('INCRBY', key, charged or '450001')
end
local packed = value * length + left
if packed < 2 ^ 53 then
  reply = fits and packed or -1 - packed
elseif value == math.huge then
  local length = 0 + string.match(call('GET', key), '%d+')
@banned
else
  reply = { fits and value or -1 - value, left }
end
