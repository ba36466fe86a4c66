-- A fixed window is one string. Its expiry is the end of the window; its last ten digits are what is used of the
-- window; the digits before them tell this window from an earlier or later one of the same key.
--
-- key      the counter
-- charge   true to charge, false to look
-- cost, count, period (ms), align (1: begin on multiples of the period)
-- returns  the value (-1 - value if the cost does not fit), ms until the window ends, 0
--
-- Redis keeps a key while its PTTL is 0; the window is half open, so it is over by then.
local function fixed_window(key, charge, cost, count, period, align)
  local value = redis.call('GET', key)
  local left = value and redis.call('PTTL', key)
  if value and left ~= 0 then
    value = tonumber(value)
    if left < 0 or left > period then -- no expiry, or the server's clock was set back
      redis.call('PEXPIRE', key, period)
      left = period
    end
    if cost > 0 and value % 1e10 + cost > count then
      return -1 - value, left, 0
    end
    if charge and cost > 0 then
      value = redis.call('INCRBY', key, cost)
    end
    return value, left, 0
  end
  if cost > count then
    return -1, 0, 0
  end
  if not charge or cost == 0 then
    return 0, 0, 0
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  left = period
  if align == 1 then
    left = period - now % period
  end
  value = now % 899981 * 1e10 + cost
  redis.call('SET', key, value, 'PX', left)
  return value, left, 0
end

-- window   the digits before the last ten, when the charge was made
-- returns  how much was given back: nothing to a window other than that of the charge
local function fixed_window_give_back(key, window, cost)
  local value = tonumber(redis.call('GET', key) or 0)
  local used = value % 1e10
  if (value - used) / 1e10 ~= window or redis.call('PTTL', key) == 0 then
    return 0
  end
  local back = math.min(cost, used)
  if back == used then
    redis.call('DEL', key)
  elseif back > 0 then
    redis.call('DECRBY', key, back)
  end
  return back
end

