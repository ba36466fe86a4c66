-- A log is one list of numbers of 8 bytes (which are quicker to read and write than digits), oldest left. A number is a time *
-- `wrap` + a total. The total, modulo `wrap`, is of all charges up to and including this one. The time is in ticks modulo `cycle`. It is below
-- 2^53, so Lua takes it apart exactly. The cycle is no round number, since clocks are set back by whole hours.
-- A charge of 1 is one number. A larger one is two of the same time, with the total after 1 of it and after all of it: so what
-- the oldest number was charged on top of is its total less 1. The charges of one tick are one charge.
-- A tick is a microsecond, or a millisecond for periods above 200 seconds.
--
-- The key ends between one period and a sixteenth more after the last charge: only the first call in a sixteenth looks at its end, and
-- only the first charge moves it.
--
-- cost, count, period (ms), digits
-- returns  after a charge: what remains * cycle + its time, n as -1 - n if that time is the tick after this one. Otherwise three
--          numbers: what remains (n as -1 - n if the cost does not fit), ms until all has expired, and the time of the charge or
--          ms until the cost fits
local wrap, cycle, pack, unpack = 10000000, 812345679, struct.pack, struct.unpack
if digits < 7 then
  wrap, cycle = 10 ^ digits, 8123456790000000 / 10 ^ digits
end
time = time or call('TIME')
local now, tick, ahead, longest = time[1] * 1000000 + time[2], 1, 0, period + (period + -period % 16) / 16 + 1
if period > 200000 then
  ahead = now % 1000 > 0 and 1 or 0
  now, tick = (now - now % 1000) / 1000, 1000
else
  period = period * 1000
end
now = now % cycle
local sixteenth = period / 16

-- An age is negative if the clock was set back, an eighth of the cycle at most: beyond that the key's end tells it.
local eighth = cycle / 8
local base, used, first, newest, total, latest, age, left = 0, 0, call('LINDEX', key, '0')
if first then
  first, newest = unpack('<d', first), unpack('<d', call('LINDEX', key, '-1'))
  total = newest % wrap
  latest = (newest - total) / wrap
  age = (now - latest + eighth) % cycle - eighth
  left = now - now % sixteenth ~= latest - latest % sixteenth and call('PTTL', key)
  if left and (left < 0 or left > longest) or age * tick < -1000 then
    -- No end, or the server's clock was set back: nobody knows how old the entries are. All of them count as made now.
    latest, total, age, left = (now + ahead) % cycle, (newest - first) % wrap + 1, -ahead, false
    first, newest = latest * wrap + 1, latest * wrap + total % wrap
    call('DEL', key)
    call('RPUSH', key, pack('<d', latest * wrap + 1))
    if total > 1 then
      call('RPUSH', key, pack('<d', latest * wrap + total % wrap))
    end
    call('PEXPIRE', key, longest)
  end
  if (now - (first - first % wrap) / wrap + eighth) % cycle - eighth >= period then
    -- Passing what has expired by steps twice as large each, then halving the last one.
    local function has_expired(entry)
      entry = entry and unpack('<d', entry)
      return entry and (now - (entry - entry % wrap) / wrap + eighth) % cycle - eighth >= period
    end
    local low
    low, base, first = 0, 1, call('LINDEX', key, '1')
    while has_expired(first) do
      low, base = base, 2 * base
      first = call('LINDEX', key, base)
    end
    while base - low > 1 do
      local middle = math.floor((low + base) / 2)
      local entry = call('LINDEX', key, middle)
      if has_expired(entry) then
        low = middle
      else
        base, first = middle, entry
      end
    end
    first = first and unpack('<d', first)
  end
  used = first and (newest - first) % wrap + 1 or 0
end

local remaining = used < count and count - used or 0
if charge ~= 'always' and cost > remaining or not charge then
  local retry, short = 0, used + cost - count
  fits = cost <= remaining
  if not fits and used > 0 then
    -- The first entry after whose expiry the cost fits; an entry costs 1 at least.
    short = short < used and short or used
    local low, high = base, base + short - 1
    local middle = high - 1
    while low < high do
      local entry = call('LINDEX', key, middle)
      if not entry or (unpack('<d', entry) - first) % wrap + 1 >= short then
        high = middle
      else
        low = middle + 1
      end
      middle = math.floor((low + high) / 2)
    end
    local entry = low == base and first or unpack('<d', call('LINDEX', key, low))
    retry = math.ceil((period - ((now - (entry - entry % wrap) / wrap + eighth) % cycle - eighth)) * tick / 1000)
  end
  reply = { fits and remaining or -1 - remaining, used > 0 and math.ceil((period - age) * tick / 1000) or 0, retry }
  break
end

if used == 0 then
  if base > 0 then
    call('DEL', key)
  end
  total, age, left = 0, cycle, 0
elseif base == 1 then
  call('LPOP', key)
elseif base > 1 then
  call('LTRIM', key, base, '-1')
end
remaining = remaining - cost
if age + ahead > 0 then
  latest = (now + ahead) % cycle
  local entry = pack('<d', latest * wrap + (total + cost) % wrap)
  if cost == 1 then
    call('RPUSH', key, entry)
  else
    call('RPUSH', key, pack('<d', latest * wrap + (total + 1) % wrap), entry)
  end
else
  -- One charge a tick, and time never moves back in the log.
  local entry = pack('<d', latest * wrap + (total + cost) % wrap)
  local before = call('LINDEX', key, '-2')
  before = before and unpack('<d', before)
  if before and (before - before % wrap) / wrap == latest then
    call('LSET', key, '-1', entry)
  else
    call('RPUSH', key, entry)
  end
end
if left then
  call('PEXPIRE', key, longest)
end
fits = true
if age + ahead < 0 then
  reply = { remaining, math.ceil((period - age) * tick / 1000), latest }
  break
end
remaining = remaining * cycle + latest
reply = ahead == 0 and remaining or -1 - remaining
