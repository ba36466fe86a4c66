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
-- What is held lies to the left of all that, in one string: how much it is together and when all charges have expired (ms since 1970), in 16 bytes, and
-- for each hold 32 bytes, in the order of their ends: its number, when it ends (ms since 1970), how long it was to last and how much it is. It counts
-- until a period after its end, so one that nobody settles becomes a charge made then. Charges beside it lie there for longer than a cycle tells apart.
--
-- cost, count, period (ms), digits
-- id       the number of the hold to be made, renewed or settled; nil: this is no hold
-- lease    ms it is to last
-- partial  1: hold what remains, at least 1, if that is less than the cost
-- alone    1: only while nothing is held whose time is not over
-- returns  after a charge: what remains * cycle + its time, n as -1 - n if that time is the tick after this one. Otherwise three
--          numbers: what remains (n as -1 - n if the cost does not fit), ms until all has expired, and the time of the charge, or how much is held, or
--          ms until the cost fits; and, if something is held, how much, as -n if the cost would not fit without it either.
--          After a renewal: 1 if the hold still counts. After a settlement: how much was held
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

-- The holds that still count, how much they are together, and how long beyond their ends they count.
local settles = charge == 'settle' or charge == 'again'
local holds, held, charged_until, beyond, skip, ms, hold, known = nil, 0, 0, nil, 0, nil, nil, longest
local first = call('LINDEX', key, '0')
if id or first and #first > 8 then
  beyond, ms = period * tick / 1000, time[1] * 1000 + math.floor(time[2] / 1000)
  local ceiling = ms + (time[2] % 1000 > 0 and 1 or 0)
  holds, skip = '', first and #first > 8 and 1 or 0
  if skip == 1 then
    held, charged_until = unpack('<dd', first)
    holds = string.sub(first, 17)
    local _, ends, length = unpack('<ddd', holds, #holds - 31)
    if ends > ceiling + length or select(2, unpack('<dd', holds)) + beyond <= ms then
      -- The server's clock was set back, or some no longer count.
      local kept = {}
      held = 0
      for at = 1, #holds, 32 do
        local number, much
        number, ends, length, much = unpack('<dddd', holds, at)
        ends = math.min(ends, ceiling + length)
        if ends + beyond > ms then
          held = held + much
          kept[#kept + 1] = { ends, pack('<dddd', number, ends, length, much) }
        end
      end
      table.sort(kept, function(one, other) return one[1] < other[1] end)
      for i, hold in ipairs(kept) do
        kept[i] = hold[2]
      end
      holds = table.concat(kept)
    end
  end
  function hold(much)
    local ends, at = ceiling + lease, #holds - 31
    while at > 0 and select(2, unpack('<dd', holds, at)) > ends do
      at = at - 32
    end
    holds = string.sub(holds, 1, at + 31) .. pack('<dddd', id, ends, lease, much) .. string.sub(holds, at + 32)
    held = held + much
  end
  if #holds > 0 then
    known = math.max(known, select(2, unpack('<dd', holds, #holds - 31)) + beyond - ms + 1000)
  end
  if charge == 'renew' or settles then
    local at = 0
    reply = 0
    repeat
      at = string.find(holds, pack('<d', id), at + 1, true)
    until not at or at % 32 == 1
    if at then
      local much = select(4, unpack('<dddd', holds, at))
      holds, held = string.sub(holds, 1, at - 1) .. string.sub(holds, at + 32), held - much
      if charge == 'renew' then
        hold(much)
      end
      reply = charge == 'renew' and 1 or much
    end
  end
  if #holds > 0 then
    longest = math.max(longest, select(2, unpack('<dd', holds, #holds - 31)) + beyond - ms + 1)
  end
  if charge == 'renew' or charge == 'again' and reply == 0 then
    if reply == 1 then
      call('LSET', key, '0', pack('<dd', held, charged_until) .. holds)
      call('PEXPIRE', key, longest)
    end
    break
  end
  first = skip == 1 and call('LINDEX', key, '1') or skip == 0 and first
end
local base, used, newest, total, latest, age, left = 0, 0
if first and skip == 1 and charged_until <= ms then
  first, base = nil, call('LLEN', key)
end

now = now % cycle
local sixteenth = period / 16

-- An age is negative if the clock was set back, an eighth of the cycle at most: beyond that the key's end tells it.
local eighth = cycle / 8
if first then
  first, newest = unpack('<d', first), unpack('<d', call('LINDEX', key, '-1'))
  total = newest % wrap
  latest = (newest - total) / wrap
  age = (now - latest + eighth) % cycle - eighth
  left = now - now % sixteenth ~= latest - latest % sixteenth and call('PTTL', key)
  if left and (left < 0 or left > known) or age * tick < -1000 or skip == 1 and charged_until > ms + beyond + 1000 then
    -- No end, or the server's clock was set back: nobody knows how old the entries are. All of them count as made now.
    latest, total, age, left = (now + ahead) % cycle, (newest - first) % wrap + 1, -ahead, false
    first, newest = latest * wrap + 1, latest * wrap + total % wrap
    call('DEL', key)
    if held > 0 then
      call('RPUSH', key, pack('<dd', held, ms + beyond + 1) .. holds)
    else
      skip = 0
    end
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
    low, base, first = 0, 1, call('LINDEX', key, 1 + skip)
    while has_expired(first) do
      low, base = base, 2 * base
      first = call('LINDEX', key, base + skip)
    end
    while base - low > 1 do
      local middle = math.floor((low + base) / 2)
      local entry = call('LINDEX', key, middle + skip)
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

local remaining = used + held < count and count - used - held or 0
local least, is_sure = partial == 1 and cost > 0 and 1 or cost, charge == 'always' or settles
-- How long until the last of what is held has ended, if it has to be waited for.
local turn = alone == 1 and cost > 0 and held > 0 and math.max(0, select(2, unpack('<dd', holds, #holds - 31)) - ms) or 0
if not is_sure and (least > remaining or turn > 0) or not charge then
  fits = least <= remaining and turn == 0
  local retry, reset = 0, used > 0 and math.ceil((period - age) * tick / 1000) or 0
  if least > remaining and used + held > 0 then
    local short, at, after = math.min(used + held + least - count, used + held), 1, 0
    retry = nil
    repeat
      -- How long until so much has expired, if the first holds have, and for the rest entries.
      local wait = short <= used and 0
      if wait and short > 0 then
        -- The first entry after whose expiry it has; an entry costs 1 at least.
        local low, high = base, base + short - 1
        local middle = high - 1
        while low < high do
          local entry = call('LINDEX', key, middle + skip)
          if not entry or (unpack('<d', entry) - first) % wrap + 1 >= short then
            high = middle
          else
            low = middle + 1
          end
          middle = math.floor((low + high) / 2)
        end
        local entry = low == base and first or unpack('<d', call('LINDEX', key, low + skip))
        wait = math.ceil((period - ((now - (entry - entry % wrap) / wrap + eighth) % cycle - eighth)) * tick / 1000)
      end
      if wait then
        retry = math.min(retry or 2 ^ 53, math.max(wait, after))
      end
      local is_last = held == 0 or at > #holds or wait and wait <= after
      if not is_last then
        local _, ends, _, much = unpack('<dddd', holds, at)
        short, at, after = short - much, at + 32, ends + beyond - ms
      end
    until is_last
  end
  reply = { fits and remaining or -1 - remaining, reset, math.max(retry, turn) }
  if held > 0 then
    reply[2] = math.max(reset, select(2, unpack('<dd', holds, #holds - 31)) + beyond - ms)
    local live, at = held, 1
    while at < #holds do
      local _, ends, _, much = unpack('<dddd', holds, at)
      if ends > ms then
        break
      end
      live, at = live - much, at + 32
    end
    reply[4] = used + held - live + least <= count and live or -live
  end
  break
end

fits = true
if settles then
  cost = math.min(cost, wrap - used)
elseif partial == 1 then
  cost = math.min(cost, remaining)
end
if skip == 1 then
  call('LTRIM', key, base + 1, '-1')
  left = 0
elseif used == 0 then
  if base > 0 then
    call('DEL', key)
  end
elseif base == 1 then
  call('LPOP', key)
elseif base > 1 then
  call('LTRIM', key, base, '-1')
end
if used == 0 then
  total, age, left = 0, cycle, 0
end
if id and not settles then
  hold(cost)
  left = 0
elseif cost > 0 then
  if age + ahead > 0 then
    age, latest = -ahead, (now + ahead) % cycle
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
end
local held_until = 0
if held > 0 then
  charged_until = age < cycle and ms + math.ceil((period - age) * tick / 1000) + 1 or 0
  call('LPUSH', key, pack('<dd', held, charged_until) .. holds)
  held_until = select(2, unpack('<dd', holds, #holds - 31)) + beyond - ms
  longest = math.max(longest, held_until + 1)
end
if left then
  call('PEXPIRE', key, longest)
end
if not settles and (holds or age + ahead < 0) then
  local reset = age < cycle and math.ceil((period - age) * tick / 1000) or 0
  reply = { remaining - cost, math.max(reset, held_until), id and cost or latest }
elseif not settles then
  remaining = (remaining - cost) * cycle + latest
  reply = ahead == 0 and remaining or -1 - remaining
end
