-- A fixed window is one string, an integer to Redis. Its expiry is the end of the window. Its last ten digits are what is
-- used of the window; the digits before them are the millisecond it was opened in, modulo 900,001: they tell it from
-- another window of the same key.
--
-- cost, count, period (ms), align ('1': begin on multiples of the period)
-- returns  nothing if there is no window, or what is used before a charge, ms until the window ends, and its number:
--          ((used * period) + ms - 1) * 900,001 + number, or if that is above 2^53 the three by themselves;
--          n as -1 - n if the cost does not fit
--
-- Redis keeps a key while its PTTL is 0; the window is half open, so it is over by then.
local value = call('GET', key)
local left, length = value and call('PTTL', key) or 0, 0 + period
if left < 0 or left > length then -- no expiry, or the server's clock was set back
  time = time or call('TIME')
  left = align == '1' and length - (time[1] * 1000 + math.floor(time[2] / 1000)) % length or length
  call('PEXPIRE', key, string.format('%.0f', left))
end
local used, number, fits = 0
if left > 0 then
  number = 0 + value
  used = number % 1e10
  number = (number - used) / 1e10
  fits = used + cost <= 0 + count or cost == '0'
  if fits and charge then
    call('INCRBY', key, cost)
  end
elseif charge then
  time = time or call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  left, number, fits = align == '1' and length - now % length or length, now % 900001, true
  call('SET', key, string.format('%.0f', number * 1e10 + cost), 'PXAT', string.format('%.0f', now + left))
else
  return false, true
end
local packed = (used * length + left - 1) * 900001 + number
if packed >= 2 ^ 53 then
  return { fits and used or -1 - used, left, number }, fits
end
return fits and packed or -1 - packed, fits
