-- A fixed window is one string, an integer to Redis: what is used of the window * 900,001 + the millisecond the window was opened in,
-- modulo 900,001, which tells it from another window of the same key. Its expiry is the end of the window.
--
-- room     the largest value a window may have for the cost to fit
-- length   ms a window
-- align    1: begin on multiples of the length; or 0
-- charged  (an argument of its own) the cost * 900,001; nil: 900,001
-- returns  nothing if there is no window, or value * length + ms until the window ends, with the value before a charge, or if
--          that is above 2^53 the value and the ms by themselves; n as -1 - n if the cost does not fit
--
-- Redis keeps a key while its PTTL is 0; the window is half open, so it is over by then.
local value, left = call('GET', key), call('PTTL', key) -- -2 if there is none
if left == -1 or left > length then -- no expiry, or the server's clock was set back
  time = time or call('TIME')
  left = align == 1 and length - (time[1] * 1000 + math.floor(time[2] / 1000)) % length or length
  call('PEXPIRE', key, string.format('%.0f', left))
end
local fits = true
if left > 0 then
  value = 0 + value
  fits = value <= room
  if fits and charge then
    call('INCRBY', key, charged or '900001')
  end
elseif charge then
  time = time or call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  value, left = now % 900001, length
  local start = value + (charged or 900001)
  start = string.format(start < 2 ^ 31 and '%d' or '%.0f', start) -- `%d` is quick, and takes less than 2^31 on every server
  if align == 1 then
    left = length - now % length
    call('SET', key, start, 'PXAT', string.format('%.0f', now + left))
  else
    call('SET', key, start, 'PX', string.format(length < 2 ^ 31 and '%d' or '%.0f', length))
  end
else
  return false, true
end
local packed = value * length + left
if packed < 2 ^ 53 then
  return fits and packed or -1 - packed, fits
end
return { fits and value or -1 - value, left }, fits
