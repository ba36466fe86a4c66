-- A log is one list, oldest left. An entry is the number '1', a time, a running total of costs: the
-- total of all charges up to and including this one, so that what lies between two entries is a
-- subtraction. A time has `digits` digits and a total has the rest of 18, both wrap around: an entry is a 64-bit
-- integer, 10 bytes in the list. The first entry is the base: the last one that expired, kept for its total.
--
-- cost, count, lifetime (ms), tick (us), period (ticks), digits
-- returns  remaining (-1 - remaining if the cost does not fit), ms until all of it has expired,
--          the entry's time; if the cost does not fit, ms until it would
local function entry_of(entry, digits)
  return tonumber(string.sub(entry, 2, digits + 1)), tonumber(string.sub(entry, digits + 2))
end

local function text_of(time, total, digits)
  return string.format('1%0' .. digits .. '.0f%0' .. 18 - digits .. '.0f', time, total)
end
cost, count, lifetime, tick, period, digits = 0 + cost, 0 + count, 0 + lifetime, 0 + tick, 0 + period, 0 + digits
local cycle, wrap = 10 ^ digits, 10 ^ (18 - digits)
time = time or call('TIME')
local micros = time[1] * 1e6 + time[2]
local now = math.floor(micros / tick)

local function age(at_time) -- negative by less than a millisecond, if at all: see below
  return (now - at_time + cycle / 2) % cycle - cycle / 2
end
local function ms(ticks)
  return math.ceil(ticks * tick / 1000)
end
local function at(index)
  return entry_of(call('LINDEX', key, index), digits)
end

local first = call('LRANGE', key, 0, 2)
if #first > 0 then
  local left = call('PTTL', key)
  if left < 0 or left > lifetime then
    -- No expiry, or the server's clock was set back: nobody knows how old the entries are. All of them count as made now.
    local _, before = entry_of(first[1], digits)
    local _, after = at(-1)
    local time = math.ceil(micros / tick) % cycle
    first = { text_of(time, 0, digits), text_of(time, (after - before) % wrap, digits) }
    call('DEL', key)
    call('RPUSH', key, first[1], first[2])
    call('PEXPIRE', key, lifetime)
  end
end
local length, base, base_total = #first, 0, 0
local newest, newest_total, used = nil, 0, 0
if length > 0 then
  if length == 3 then
    length = call('LLEN', key)
  end
  newest, newest_total = at(-1)
  -- The base is the last expired entry: one of the first two, or found by halving.
  local low, high = 0, length - 1
  while low < high do
    local middle = low < 2 and low + 1 or math.ceil((low + high) / 2)
    local time
    if middle < 3 then
      time = entry_of(first[middle + 1], digits)
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
    _, base_total = entry_of(first[base + 1], digits)
  else
    _, base_total = at(base)
  end
  used = (newest_total - base_total) % wrap
end

local remaining = math.max(count - used, 0)
if charge ~= 'always' and cost > remaining then
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
  return { -1 - remaining, used > 0 and ms(period - age(newest)) or 0, retry }, false
end
if not charge then
  return { remaining, used > 0 and ms(period - age(newest)) or 0, 0 }, true
end

local time = math.ceil(micros / tick) % cycle
if used > 0 and (time - newest + cycle / 2) % cycle < cycle / 2 then
  time = newest -- time never moves back in the log
end
if base > 0 then
  call('LTRIM', key, base, -1)
end
local entry = text_of(time, (newest_total + cost) % wrap, digits)
if used > 0 and time == newest then
  call('LSET', key, -1, entry)
elseif length > 0 then
  call('RPUSH', key, entry)
else
  call('RPUSH', key, text_of(time, 0, digits), entry)
end
call('PEXPIRE', key, lifetime)
return { remaining - cost, ms(period - age(time)), time }, true
