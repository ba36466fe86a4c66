-- A log is one list, oldest left. An entry is the number '1', a time, a running total of costs: the
-- total of all charges up to and including this one, so that what lies between two entries is a
-- subtraction. A time has `digits` digits and a total has the rest of 18, both wrap around: an entry is a 64-bit
-- integer, 10 bytes in the list. The first entry is the base: the last one that expired, kept for its total.
--
-- key      the counter
-- charge   true to charge, false to look
-- cost, count, lifetime (ms), tick (us), period (ticks), digits
-- returns  remaining (-1 - remaining if the cost does not fit), ms until all of it has expired,
--          the entry's time; if the cost does not fit, ms until it would
local function sliding_log_entry(entry, digits)
  return tonumber(string.sub(entry, 2, digits + 1)), tonumber(string.sub(entry, digits + 2))
end

local function sliding_log_text(time, total, digits)
  return string.format('1%0' .. digits .. '.0f%0' .. 18 - digits .. '.0f', time, total)
end

local function sliding_log(key, charge, cost, count, lifetime, tick, period, digits)
  local cycle, wrap = 10 ^ digits, 10 ^ (18 - digits)
  local clock = redis.call('TIME')
  local micros = clock[1] * 1e6 + clock[2]
  local now = math.floor(micros / tick)

  local function age(time) -- negative by less than a millisecond, if at all: see below
    return (now - time + cycle / 2) % cycle - cycle / 2
  end
  local function ms(ticks)
    return math.ceil(ticks * tick / 1000)
  end
  local function at(index)
    return sliding_log_entry(redis.call('LINDEX', key, index), digits)
  end

  local first = redis.call('LRANGE', key, 0, 2)
  if #first > 0 then
    local left = redis.call('PTTL', key)
    if left < 0 or left > lifetime then
      -- No expiry, or the server's clock was set back: nobody knows how old the entries are. All of them count as made now.
      local _, before = sliding_log_entry(first[1], digits)
      local _, after = at(-1)
      local time = math.ceil(micros / tick) % cycle
      first = { sliding_log_text(time, 0, digits), sliding_log_text(time, (after - before) % wrap, digits) }
      redis.call('DEL', key)
      redis.call('RPUSH', key, first[1], first[2])
      redis.call('PEXPIRE', key, lifetime)
    end
  end
  local length, base, base_total = #first, 0, 0
  local newest, newest_total, used = nil, 0, 0
  if length > 0 then
    if length == 3 then
      length = redis.call('LLEN', key)
    end
    newest, newest_total = at(-1)
    -- The base is the last expired entry: one of the first two, or found by halving.
    local low, high = 0, length - 1
    while low < high do
      local middle = low < 2 and low + 1 or math.ceil((low + high) / 2)
      local time
      if middle < 3 then
        time = sliding_log_entry(first[middle + 1], digits)
      else
        time = at(middle)
      end
      if age(time) >= period then
        low = middle
      else
        high = middle - 1
      end
    end
    base = low
    local _
    if base < 3 then
      _, base_total = sliding_log_entry(first[base + 1], digits)
    else
      _, base_total = at(base)
    end
    used = (newest_total - base_total) % wrap
  end

  local remaining = math.max(count - used, 0)
  if cost > remaining then
    local retry = 0
    local short = math.min(used + cost - count, used)
    if short > 0 then
      -- The first entry after whose expiry the cost fits; an entry costs 1 at least.
      local low, high = base + 1, math.min(base + short, length - 1)
      local middle = high - 1
      while low < high do
        local _, total = at(middle)
        if (total - base_total) % wrap >= short then
          high = middle
        else
          low = middle + 1
        end
        middle = math.floor((low + high) / 2)
      end
      retry = ms(period - age((at(low))))
    end
    return -1 - remaining, used > 0 and ms(period - age(newest)) or 0, retry
  end
  if not charge or cost == 0 then
    return remaining, used > 0 and ms(period - age(newest)) or 0, 0
  end

  local time = math.ceil(micros / tick) % cycle
  if used > 0 and (time - newest + cycle / 2) % cycle < cycle / 2 then
    time = newest -- time never moves back in the log
  end
  if base > 0 then
    redis.call('LTRIM', key, base, -1)
  end
  local entry = sliding_log_text(time, (newest_total + cost) % wrap, digits)
  if used > 0 and time == newest then
    redis.call('LSET', key, -1, entry)
  elseif length > 0 then
    redis.call('RPUSH', key, entry)
  else
    redis.call('RPUSH', key, sliding_log_text(time, 0, digits), entry)
  end
  redis.call('PEXPIRE', key, lifetime)
  return remaining - cost, ms(period - age(time)), time
end

-- charged  the time of the entry that took the charge
-- returns  how much was given back: nothing if the entry has expired, is gone, or has more than 5,000 behind it: each
--          later total changes, and the server does nothing else meanwhile
local function sliding_log_give_back(key, charged, cost, count, lifetime, tick, period, digits)
  local cycle, wrap = 10 ^ digits, 10 ^ (18 - digits)
  local clock = redis.call('TIME')
  local now = math.floor((clock[1] * 1e6 + clock[2]) / tick)
  local function age(time)
    return (now - time + cycle / 2) % cycle - cycle / 2
  end
  local function at(index)
    return sliding_log_entry(redis.call('LINDEX', key, index), digits)
  end

  local length = redis.call('LLEN', key)
  if length < 2 or age(charged) >= period then
    return 0
  end
  -- The first entry of that time or later; an expired one is earlier, however old.
  local low, high = 1, length - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if age((at(middle))) > age(charged) then
      low = middle + 1
    else
      high = middle
    end
  end
  local time, total = at(low)
  if time ~= charged or length - low > 5000 then
    return 0
  end
  local _, before = at(low - 1)
  local back = math.min(cost, (total - before) % wrap)
  if back == 0 then
    return 0
  end
  local later = redis.call('LRANGE', key, low, -1)
  redis.call('LTRIM', key, 0, low - 1)
  for i, entry in ipairs(later) do
    local entry_time, entry_total = sliding_log_entry(entry, digits)
    entry_total = (entry_total - back) % wrap
    if i > 1 or entry_total ~= before then -- an entry that costs nothing any more is dropped
      redis.call('RPUSH', key, sliding_log_text(entry_time, entry_total, digits))
    end
  end
  if redis.call('LLEN', key) == 1 then
    redis.call('DEL', key)
  end
  return back
end

