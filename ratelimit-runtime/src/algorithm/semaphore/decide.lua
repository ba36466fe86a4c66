-- Places are a sorted set of holds by when they end (ms since 1970).
--
-- Each hold is split into powers of two, one member for each: a hold of 5 places is a member of 4 and a member of 1. The score of 2^n
-- places is n * `era` + the end. So a count of a range of scores says how many places of that size are held, and none is walked over.
-- Holds that have ended count no more. A few of them are removed whenever places are taken.
--
-- cost, count
-- id       the id of the hold to be made, renewed or settled
-- lease    ms it lasts unless it is renewed
-- allow_partial  1: take what remains, at least 1, if that is less than the cost
-- returns  what remains (n as -1 - n if the cost does not fit), ms until all are free, and how many were taken, or ms until the first
--          hold ends and how many places are held. After a renewal: a string with 1 for each hold whose places are still
--          held, and 0 for each other one. After a settlement: how many were held
-- charged  for a renewal: id, lease and cost of each hold, those with shorter leases first; cost, id and lease are of no use then
time = time or call('TIME')
local ms, era = time[1] * 1000 + math.floor(time[2] / 1000), 2 ^ 44
local function end_of(lease)
  return math.min(ms + (time[2] % 1000 > 0 and 1 or 0) + lease, era - 1)
end
local ends = end_of(lease)
local function digits(number)
  return string.format('%.0f', number)
end

if charge == 'renew' or charge == 'settle' or charge == 'again' then
  -- Says whether it was still held.
  local function change(id, cost, new_end)
    local rest, size, was_held = cost, 0, false
    while rest > 0 do
      if rest % 2 == 1 then
        local name = struct.pack('<dB', id, size)
        local score = call('ZSCORE', key, name)
        if not score or score - size * era <= ms then
          break -- all of them have ended, or were settled
        elseif new_end then
          call('ZADD', key, digits(size * era + new_end), name)
        else
          call('ZREM', key, name)
        end
        was_held = true
      end
      rest, size = (rest - rest % 2) / 2, size + 1
    end
    return was_held
  end
  if charge ~= 'renew' then
    reply = change(id, cost) and cost or 0
    break
  end
  local said, latest = {}, 0
  for at = 1, #charged, 24 do
    local id, lease, cost = struct.unpack('<ddd', charged, at)
    local its_end = end_of(lease)
    local is_held = change(id, cost, its_end)
    said[#said + 1], latest = is_held and '1' or '0', is_held and its_end or latest
  end
  if latest > 0 and call('PTTL', key) <= latest - ms then
    call('PEXPIREAT', key, digits(latest + 1))
  end
  reply = table.concat(said)
  break
end

-- The holds of each size, the largest first: how many places they take, and the last end.
local taken, latest, members, sizes = 0, ms, 0, {}
local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2]
while last do
  local from = last - last % era
  local size = 2 ^ (from / era)
  if last - from > ms then
    local held = call('ZCOUNT', key, digits(from + ms + 1), last)
    taken, latest, members = taken + held * size, math.max(latest, last - from), members + held
  end
  sizes[#sizes + 1] = from
  last = size > 1 and call('ZRANGE', key, '(' .. digits(from), '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')[2]
end
local remaining = math.max(count - taken, 0)
local least = allow_partial == 1 and math.min(cost, 1) or cost
if charge ~= 'always' and least > remaining or not charge then
  fits = least <= remaining
  local soonest = latest
  for _, from in ipairs(fits and {} or sizes) do
    local first = call('ZRANGE', key, digits(from + ms + 1), digits(from + era - 1), 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
    soonest = first and math.min(soonest, first - from) or soonest
  end
  reply = { fits and remaining or -1 - remaining, latest - ms, soonest - ms, taken }
  break
end
fits = true
if allow_partial == 1 then
  cost = math.min(cost, remaining)
end
local has_ended = #sizes > 0 and call('ZCARD', key) > members
local rest, size = cost, 0
while rest > 0 do
  if rest % 2 == 1 then
    call('ZADD', key, digits(size * era + ends), struct.pack('<dB', id, size))
  end
  rest, size = (rest - rest % 2) / 2, size + 1
end
if has_ended then
  -- Not before: a key that is gone can't be written again while its slot moves to another node.
  for _, from in ipairs(sizes) do
    local ended = call('ZRANGE', key, digits(from), digits(from + ms), 'BYSCORE', 'LIMIT', '0', '100')
    if #ended > 0 then
      call('ZREM', key, unpack(ended))
    end
  end
end
latest = math.max(latest, ends)
call('PEXPIREAT', key, digits(latest + 1))
reply = { remaining - cost, latest - ms, cost }
