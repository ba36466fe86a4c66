-- A log is one list of 8-byte numbers (faster to read and write than digits), oldest left. A
-- number is a time * `wrap` + a total, below 2^53, so Lua takes it apart exactly. The total,
-- modulo `wrap`, is of all charges up to and including this one. The time is in ticks, modulo
-- `cycle`. The cycle is no round number, since clocks are set back by whole hours. A charge of 1
-- is one number. A larger one is two with the same time: the total after 1 of it, and after all of
-- it. So the total before the oldest number is its own less 1. The charges of one tick are one
-- charge. A tick is a microsecond, or a millisecond for periods above 200 seconds.
--
-- The key expires between a period and a sixteenth more after the last charge. Only the first call
-- in a sixteenth reads its expiry, and only the first charge moves it.
--
-- While something is held, three strings lie left of the numbers:
--  1. nine 8-byte numbers: the amount held; when all charges have expired (ms since 1970, as all
--     times below); how many expired numbers the list still has, since they are not removed one by
--     one then; the earliest end of a hold; end and lease of the hold that ends last; when no
--     settled hold has to be kept any more; the end of a ban, and its ms. A charge needs no more
--     than these.
--  2. 32 bytes for each hold, ordered by end: id, end, lease and amount. A hold counts until a
--     period after its end, so unless settled it becomes a charge made then. 10,000 at most
--     (`MOST_HOLDS`).
--  3. 16 bytes for each hold that was settled by a retry: id, and until when it is kept. The first
--     attempt may arrive later, and charges nothing then. The latest 10,000 at most
--     (`MAX_SETTLED`).
-- Charges beside them stay for longer than a cycle distinguishes. A ban is such a hold of nothing.
--
-- cost, count, period (ms), digits
-- id       of the hold to make, renew or settle; nil: no hold
-- lease    ms until its end
-- allow_partial  1: hold what remains, at least 1, if that is less than the cost
-- exclusive  1: only while no hold is before its end
-- charged  to renew: id, lease and cost of each hold, shorter leases first; id and lease are unused
-- returns  after a charge: what remains * cycle + its time, n as -1 - n if that is the next tick.
--          Otherwise what remains (n as -1 - n if the cost does not fit), ms until all has expired,
--          and the time of the charge, the amount held, or ms until the cost fits; and while
--          something is held, 1 + its amount, or -n if the cost would not fit without it either. To
--          renew: a string with 1 for each hold that still counts and 0 for each other. To settle:
--          the amount that was held
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

-- The holds, and where the numbers begin behind them. `holds` is read when it is needed.
local settles = charge == 'settle' or charge == 'again'
local skip, expired, held, charged_until, settled_until, known, turn = 0, 0, 0, 0, 0, longest, 0
local holds, stored, settled, first_end, last_end, last_lease, beyond, ms, bytes_until, hold, is_renewed, banned_until, ban
local first = call('LINDEX', key, '0')
if id or first and #first > 8 then
  beyond, ms = period * tick / 1000, time[1] * 1000 + math.floor(time[2] / 1000)
  local ceiling = ms + (time[2] % 1000 > 0 and 1 or 0)
  holds, first_end, last_end, last_lease, banned_until, ban = '', 0, 0, 0, 0, 0
  if first and #first > 8 then
    skip = 3
    held, charged_until, expired, first_end, last_end, last_lease, settled_until, banned_until, ban = unpack('<ddddddddd', first)
    if banned_until - ms > ban then -- the server's clock was set back: counts as banned now
      banned_until = ms + ban
      call('LSET', key, '0', pack('<ddddddddd', held, charged_until, expired, first_end, last_end, last_lease, settled_until, banned_until, ban))
    elseif banned_until <= ms then
      banned_until, ban = 0, 0 -- it does not come back with an earlier clock
    end
    turn = math.max(banned_until - ms, 0)
    local is_set_back = held > 0 and last_end > ceiling + last_lease
    local has_ended = held > 0 and first_end + beyond <= ms
    holds = (id or is_set_back or has_ended) and call('LINDEX', key, '1')
    stored = holds
    known = math.max(known, held > 0 and last_end + beyond - ms + 1000 or 0, math.max(settled_until, banned_until) - ms + 1000)
    if is_set_back then
      -- The server's clock was set back since the last hold was made: moves all ends back.
      local ahead, kept = last_end - last_lease - ceiling, {}
      for at = 1, #holds, 32 do
        local hold_id, ends, length, amount = unpack('<dddd', holds, at)
        kept[#kept + 1] = pack('<dddd', hold_id, ends - ahead, length, amount)
      end
      holds, first_end, last_end = table.concat(kept), first_end - ahead, last_end - ahead
    end
  end
  -- Bytes of the holds that end then or earlier.
  function bytes_until(ends)
    local low, high = 0, #holds / 32
    while low < high do
      local middle = math.floor((low + high) / 2)
      if select(2, unpack('<dd', holds, middle * 32 + 1)) > ends then
        high = middle
      else
        low = middle + 1
      end
    end
    return low * 32
  end
  local function measure()
    first_end, last_end, last_lease = 0, 0, 0
    if holds ~= '' then
      local _
      _, first_end = unpack('<dd', holds)
      _, last_end, last_lease = unpack('<ddd', holds, #holds - 31)
    end
  end
  function hold(amount)
    local at, ends = bytes_until(ceiling + lease), ceiling + lease
    holds = string.sub(holds, 1, at) .. pack('<dddd', id, ends, lease, amount) .. string.sub(holds, at + 1)
    held = held + amount
    measure()
  end
  if held > 0 and first_end + beyond <= ms then
    local gone = bytes_until(ms - beyond)
    for at = 25, gone, 32 do
      held = held - unpack('<d', holds, at)
    end
    holds = string.sub(holds, gone + 1)
    measure()
  end
  if charge == 'renew' then
    -- One pass over all holds, and one over those to renew. Shorter leases come first, so the new
    -- ends are in order.
    local ids, leases, place, amount_of, found, parts, said = {}, {}, {}, {}, {}, {}, {}
    for at = 1, #charged, 24 do
      local hold_id, length = unpack('<dd', charged, at)
      ids[#ids + 1], leases[#leases + 1] = hold_id, length
      place[hold_id] = #ids
    end
    for at = 1, #holds, 32 do
      local hold_id, _, _, amount = unpack('<dddd', holds, at)
      if place[hold_id] then
        amount_of[place[hold_id]], found[#found + 1] = amount, at
      end
    end
    local from, next_found, to = 1, 1, nil
    local function keep(last)
      while found[next_found] and found[next_found] <= last do
        if from < found[next_found] then
          parts[#parts + 1] = string.sub(holds, from, found[next_found] - 1)
        end
        from, next_found = found[next_found] + 32, next_found + 1
      end
      if from <= last then
        parts[#parts + 1] = string.sub(holds, from, last)
        from = last + 1
      end
    end
    for i, hold_id in ipairs(ids) do
      local amount, ends = amount_of[i], ceiling + leases[i]
      if amount then
        to = to or bytes_until(ends)
        while to < #holds and select(2, unpack('<dd', holds, to + 1)) <= ends do
          to = to + 32
        end
        keep(to)
        parts[#parts + 1] = pack('<dddd', hold_id, ends, leases[i], amount)
      end
      said[i] = amount and '1' or '0'
    end
    keep(#holds)
    reply, is_renewed = table.concat(said), #found > 0
    if is_renewed then
      holds = table.concat(parts)
      measure()
    end
  elseif settles then
    local at, name = 0, pack('<d', id)
    reply = 0
    repeat
      at = string.find(holds, name, at + 1, true)
    until not at or at % 32 == 1
    if at then
      local amount = unpack('<d', holds, at + 24)
      holds, held = string.sub(holds, 1, at - 1) .. string.sub(holds, at + 32), held - amount
      measure()
      if charge == 'again' then
        settled = skip > 0 and call('LINDEX', key, '2') or ''
        local from = math.max(1, #settled - 159983)
        while from < #settled and select(2, unpack('<dd', settled, from)) <= ms do
          from = from + 16
        end
        settled_until = math.max(settled_until, ceiling + lease + beyond)
        settled = string.sub(settled, from) .. name .. pack('<d', ceiling + lease + beyond)
      end
      reply = amount
    elseif charge == 'settle' and settled_until > ms then
      local remembered = call('LINDEX', key, '2')
      repeat
        at = string.find(remembered, name, at and at + 1 or 1, true)
      until not at or at % 16 == 1
      if at and select(2, unpack('<dd', remembered, at)) > ms then
        break
      end
    end
  end
  longest = math.max(longest, held > 0 and last_end + beyond - ms + 1 or 0, math.max(settled_until, banned_until) - ms + 1)
  if charge == 'renew' or charge == 'again' and reply == 0 then
    if is_renewed then
      call('LSET', key, '1', holds)
      call('LSET', key, '0', pack('<ddddddddd', held, charged_until, expired, first_end, last_end, last_lease, settled_until, banned_until, ban))
      call('PEXPIRE', key, longest)
    end
    break
  end
  first = skip == 0 and first or call('LINDEX', key, skip + expired)
end
local base, used, newest, total, latest, age, left = 0, 0
local offset = skip + expired
if first and skip > 0 and charged_until <= ms then
  first, base = nil, call('LLEN', key) - offset
end

now = now % cycle
local sixteenth = period / 16

-- Negative ages, down to an eighth of the cycle, show that the clock was set back. Beyond that, the
-- key's expiry shows it.
local eighth = cycle / 8
if first then
  first, newest = unpack('<d', first), unpack('<d', call('LINDEX', key, '-1'))
  total = newest % wrap
  latest = (newest - total) / wrap
  age = (now - latest + eighth) % cycle - eighth
  local at = (now + ahead) % cycle -- the time of a charge that is made now
  left = at - at % sixteenth ~= latest - latest % sixteenth and call('PTTL', key)
  if left and (left < 0 or left > known) or age * tick < -1000 or skip > 0 and charged_until > ms + beyond + 1000 then
    -- No expiry, or the server's clock was set back: all entries count as made now.
    latest, total, age, left = (now + ahead) % cycle, (newest - first) % wrap + 1, -ahead, false
    first, newest = latest * wrap + 1, latest * wrap + total % wrap
    if skip > 0 then
      call('LTRIM', key, '0', '2')
      expired, offset, charged_until = 0, skip, ms + beyond + 1
      if holds ~= stored then
        call('LSET', key, '1', holds)
        stored = holds
      end
      call('LSET', key, '0', pack('<ddddddddd', held, charged_until, 0, first_end, last_end, last_lease, settled_until, banned_until, ban))
    end
    local before = skip > 0 and 0 or call('LLEN', key)
    call('RPUSH', key, pack('<d', latest * wrap + 1))
    if total > 1 then
      call('RPUSH', key, pack('<d', latest * wrap + total % wrap))
    end
    call('LTRIM', key, before, '-1')
    call('PEXPIRE', key, longest)
  end
  if (now - (first - first % wrap) / wrap + eighth) % cycle - eighth >= period then
    -- Exponential search for the first entry that has not expired, then binary search.
    local function has_expired(entry)
      entry = entry and unpack('<d', entry)
      return entry and (now - (entry - entry % wrap) / wrap + eighth) % cycle - eighth >= period
    end
    local low
    low, base, first = 0, 1, call('LINDEX', key, 1 + offset)
    while has_expired(first) do
      low, base = base, 2 * base
      first = call('LINDEX', key, base + offset)
    end
    while base - low > 1 do
      local middle = math.floor((low + base) / 2)
      local entry = call('LINDEX', key, middle + offset)
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
local least, is_sure = allow_partial == 1 and cost > 0 and 1 or cost, charge == 'always' or settles
-- How long a hold has to wait for others: until the last one ends, or until the first one expires.
-- A banned counter lets every cost wait.
if id and not settles and cost > 0 and held > 0 then
  turn = exclusive == 1 and math.max(turn, last_end - ms) or turn
  turn = #holds >= 320000 and math.max(turn, first_end + beyond - ms) or turn
end
if not is_sure and (least > remaining or turn > 0) or not charge then
  fits = least <= remaining and turn == 0
  local retry, reset = 0, used > 0 and math.ceil((period - age) * tick / 1000) or 0
  local short = least > remaining and math.min(used + held + least - count, used + held) or 0
  -- Sums of the first holds: of those that have ended, and on until only entries can be in the way.
  local sums, last, sum, ended_sum = {}, 0, 0, 0
  if held > 0 and not fits then
    holds = holds or call('LINDEX', key, '1')
    ended_sum = bytes_until(ms) / 32
    while last < ended_sum or sum < short and last * 32 < #holds do
      last = last + 1
      sum = sum + unpack('<d', holds, last * 32 - 7)
      sums[last] = sum
    end
    ended_sum = sums[ended_sum] or 0
  end
  if short > 0 then
    -- The more holds expire, the fewer entries have to. Binary search for the shortest wait.
    local few, many = 0, last + 1
    retry = math.huge
    repeat
      local ended, wait = math.floor((few + many) / 2), 0
      local after = ended > 0 and select(2, unpack('<dd', holds, ended * 32 - 31)) + beyond - ms or 0
      local rest = ended > 0 and short - sums[ended] or short
      if rest > used then
        wait = math.huge
      elseif rest > 0 then
        -- The first entry whose expiry frees enough. An entry costs 1 at least.
        local low, high = base, base + rest - 1
        local middle = high - 1
        while low < high do
          local entry = call('LINDEX', key, middle + offset)
          if not entry or (unpack('<d', entry) - first) % wrap + 1 >= rest then
            high = middle
          else
            low = middle + 1
          end
          middle = math.floor((low + high) / 2)
        end
        local entry = low == base and first or unpack('<d', call('LINDEX', key, low + offset))
        wait = math.ceil((period - ((now - (entry - entry % wrap) / wrap + eighth) % cycle - eighth)) * tick / 1000)
      end
      retry = math.min(retry, math.max(wait, after))
      if wait <= after then
        many = ended
      else
        few = ended + 1
      end
    until few == many
  end
  reply = { fits and remaining or -1 - remaining, reset, math.max(retry, turn) }
  if skip > 0 then
    if held > 0 then
      reply[2] = math.max(reset, last_end + beyond - ms)
      local live = held - ended_sum
      reply[4] = used + ended_sum + least <= count and 1 + live or -live
    end
    if banned_until > ms then
      reply, fits = { { math.max(reply[2], banned_until - ms), reply[3] } }, nil
    end
  end
  break
end

fits = true
if settles then
  cost = math.min(cost, wrap - used)
elseif allow_partial == 1 then
  cost = math.min(cost, remaining)
end
local keeps = id and not settles or held > 0 or ms and math.max(settled_until, banned_until) > ms
-- Stale elements are removed after the new ones are written: while a slot migrates, a deleted key
-- can't be written again.
local stale = used == 0 and (skip == 0 or not keeps) and offset + base or 0
if stale > 0 then
  skip, expired = 0, 0
elseif skip == 0 then
  if base == 1 then
    call('LPOP', key)
  elseif base > 1 then
    call('LTRIM', key, base, '-1')
  end
elseif not keeps or offset + base > 1000 and used > 0 then
  -- The three strings go with the expired entries, and are written again if needed.
  holds, settled = holds or call('LINDEX', key, '1'), settled or call('LINDEX', key, '2')
  call('LTRIM', key, offset + base, '-1')
  skip, expired = 0, 0
elseif used > 0 then
  expired = expired + base
elseif offset + base > skip then
  call('LTRIM', key, '0', '2')
  expired = 0
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
    -- One entry a tick, and the times of entries never decrease.
    local entry = pack('<d', latest * wrap + (total + cost) % wrap)
    local before = call('LINDEX', key, '-2')
    before = before and #before == 8 and unpack('<d', before)
    if before and (before - before % wrap) / wrap == latest then
      call('LSET', key, '-1', entry)
    else
      call('RPUSH', key, entry)
    end
  end
end
local held_until = 0
if ms then
  charged_until = age < cycle and ms + math.ceil((period - age) * tick / 1000) + 1 or 0
  held_until = held > 0 and last_end + beyond - ms or 0
  longest, left = math.max(longest, held_until + 1), 0
  local numbers = pack('<ddddddddd', held, charged_until, expired, first_end, last_end, last_lease, settled_until, banned_until, ban)
  if keeps and stale > 0 then
    call('RPUSH', key, numbers, holds, settled or '')
  elseif keeps and skip == 0 then
    call('LPUSH', key, settled or '', holds, numbers)
  elseif keeps then
    if holds ~= stored then
      call('LSET', key, '1', holds)
    end
    if settled then
      call('LSET', key, '2', settled)
    end
    call('LSET', key, '0', numbers)
  end
end
if left then
  call('PEXPIRE', key, longest)
end
if stale > 0 then
  call('LTRIM', key, stale, '-1')
end
if not settles and (ms or age + ahead < 0) then
  local reset = age < cycle and math.ceil((period - age) * tick / 1000) or 0
  reply = { remaining - cost, math.max(reset, held_until), id and cost or latest }
elseif not settles then
  remaining = (remaining - cost) * cycle + latest
  reply = ahead == 0 and remaining or -1 - remaining
end
