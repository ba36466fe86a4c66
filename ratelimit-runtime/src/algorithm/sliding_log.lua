-- A log is one list of integers, oldest left: 10 bytes each in the list. An integer is the time of a charge, in ticks modulo
-- `cycle`, and below it the total of all charges up to then, modulo `wrap`; the two moduli make 2^53, so Lua takes it
-- apart exactly. A charge of 1 is one of them. A larger one is two of the same time, with the total after the first 1 of it and
-- after all of it: so what the oldest of a log was charged on top of is always its total less 1. What is charged in one tick is one charge.
-- A tick is a microsecond, or a millisecond for periods above 200 seconds.
--
-- The key ends between one lifetime and an eighth more after the last charge: it need not be told so at each of them.
--
-- cost, count, period (ms), cycle (nil: 2^29)
-- returns  after a charge: what remains * cycle + its time, n as -1 - n if that time is the tick after this one; otherwise three
--          numbers: what remains (n as -1 - n if the cost does not fit), ms until all has expired, and the time of the charge or ms until the cost fits
cost, count, period, cycle = 0 + cost, 0 + count, 0 + period, 0 + (cycle or 536870912)
time = time or call('TIME')
local now, tick, ahead, wrap, lifetime = time[1] * 1000000 + time[2], 1, 0, 9007199254740992 / cycle, period + 1
if period > 200000 then
  ahead = now % 1000 > 0 and 1 or 0
  now, tick = (now - now % 1000) / 1000, 1000
else
  period = period * 1000
end
now = now % cycle

-- An age is negative if the clock was set back, an eighth of the cycle at most: beyond that the key's end tells it.
local eighth = cycle / 8
local left, base, used, newest, age, total = 0, 0, 0
local first = call('LINDEX', key, '0')
if first then
  first, newest, left = 0 + first, 0 + call('LINDEX', key, '-1'), call('PTTL', key)
  total = newest % wrap
  age = (now - (newest - total) / wrap + eighth) % cycle - eighth
  if left < 0 or left > lifetime * 1.125 or age * tick < -1000 then
    -- No end, or the server's clock was set back: nobody knows how old the entries are. All of them count as made now.
    total, age, left = (newest - first) % wrap + 1, -ahead, 0
    local made = (now + ahead) % cycle * wrap
    first, newest = made + 1, made + total
    call('DEL', key)
    call('RPUSH', key, string.format('%.0f', first))
    if total > 1 then
      call('RPUSH', key, string.format('%.0f', newest))
    end
    call('PEXPIRE', key, string.format('%.0f', lifetime))
    left = lifetime
  end
  if (now - (first - first % wrap) / wrap + eighth) % cycle - eighth >= period then
    -- Passing what has expired by steps twice as large each, then halving the last one.
    local function has_expired(entry)
      return entry and (now - (entry - entry % wrap) / wrap + eighth) % cycle - eighth >= period
    end
    local low
    low, base, first = 0, 1, tonumber(call('LINDEX', key, '1'))
    while has_expired(first) do
      low, base = base, 2 * base
      first = tonumber(call('LINDEX', key, base))
    end
    while base - low > 1 do
      local middle = math.floor((low + base) / 2)
      local entry = tonumber(call('LINDEX', key, middle))
      if has_expired(entry) then
        low = middle
      else
        base, first = middle, entry
      end
    end
  end
  used = first and (newest - first) % wrap + 1 or 0
end

local remaining = used < count and count - used or 0
if charge ~= 'always' and cost > remaining or not charge then
  local retry, short, fits = 0, used + cost - count, cost <= remaining
  if not fits and used > 0 then
    -- The first entry after whose expiry the cost fits; an entry costs 1 at least.
    short = short < used and short or used
    local low, high = base, base + short - 1
    local middle = high - 1
    while low < high do
      local entry = tonumber(call('LINDEX', key, middle))
      if not entry or (entry - first) % wrap + 1 >= short then
        high = middle
      else
        low = middle + 1
      end
      middle = math.floor((low + high) / 2)
    end
    local entry = low == base and first or 0 + call('LINDEX', key, low)
    retry = math.ceil((period - ((now - (entry - entry % wrap) / wrap + eighth) % cycle - eighth)) * tick / 1000)
  end
  return { fits and remaining or -1 - remaining, used > 0 and math.ceil((period - age) * tick / 1000) or 0, retry }, fits
end

if used == 0 then
  if base > 0 then
    call('DEL', key)
  end
  left, total, age = 0, 0, cycle
elseif base == 1 then
  call('LPOP', key)
elseif base > 1 then
  call('LTRIM', key, base, '-1')
end
remaining = remaining - cost
if age + ahead > 0 then
  time = (now + ahead) % cycle
  if cost > 1 then
    call('RPUSH', key, string.format('%.0f', time * wrap + (total + 1) % wrap))
  end
  call('RPUSH', key, string.format('%.0f', time * wrap + (total + cost) % wrap))
else
  -- Time never moves back in the log.
  time = (newest - newest % wrap) / wrap
  local entry, before = string.format('%.0f', time * wrap + (total + cost) % wrap), tonumber(call('LINDEX', key, '-2'))
  if before and (before - before % wrap) / wrap == time then
    call('LSET', key, '-1', entry)
  else
    call('RPUSH', key, entry)
  end
end
if left < lifetime then
  call('PEXPIRE', key, string.format('%.0f', math.floor(lifetime * 1.125)))
end
if age + ahead < 0 then
  return { remaining, math.ceil((period - age) * tick / 1000), time }, true
end
remaining = remaining * cycle + time
return ahead == 0 and remaining or -1 - remaining, true
