-- A fixed window is one string, an integer to Redis. Its expiry is the end of the window. Its last ten digits are what is
-- used of the window; the digits before them are the millisecond it was opened in, modulo 899,999,999, plus 1: they
-- tell it from an earlier or a later window of the same key. Above 2^53, so Lua takes it apart as text.
local function fixed_window_left(period, align)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  return align == 1 and period - now % period or period, now
end

-- key      the counter
-- charge   true to charge, false to look
-- cost, count, period (ms), align (1: begin on multiples of the period)
-- returns  what is used (-1 - used if the cost does not fit), ms until the window ends, the window's first digits
--
-- Redis keeps a key while its PTTL is 0; the window is half open, so it is over by then.
local function fixed_window(key, charge, cost, count, period, align)
  local value = redis.call('GET', key)
  local left = value and redis.call('PTTL', key)
  if value and left ~= 0 then
    if left < 0 or left > period then -- no expiry, or the server's clock was set back
      left = fixed_window_left(period, align)
      redis.call('PEXPIRE', key, left)
    end
    local used, window = tonumber(string.sub(value, -10)), tonumber(string.sub(value, 1, -11))
    if cost > 0 and used + cost > count then
      return -1 - used, left, window
    end
    if charge and cost > 0 then
      redis.call('INCRBY', key, cost)
      used = used + cost
    end
    return used, left, window
  end
  if cost > count then
    return -1, 0, 0
  end
  if not charge or cost == 0 then
    return 0, 0, 0
  end
  local now
  left, now = fixed_window_left(period, align)
  local window = now % 899999999 + 1
  redis.call('SET', key, string.format('%.0f%010.0f', window, cost), 'PXAT', now + left)
  return cost, left, window
end

-- window   the first digits when the charge was made
-- returns  how much was given back: nothing to a window other than that of the charge
local function fixed_window_give_back(key, window, cost)
  local value = redis.call('GET', key)
  if not value or tonumber(string.sub(value, 1, -11)) ~= window or redis.call('PTTL', key) == 0 then
    return 0
  end
  local used = tonumber(string.sub(value, -10))
  local back = math.min(cost, used)
  if back == used then
    redis.call('DEL', key)
  elseif back > 0 then
    redis.call('DECRBY', key, back)
  end
  return back
end

