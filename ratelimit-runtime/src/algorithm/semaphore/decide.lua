-- Places are a sorted set of holds by their ends (ms since 1970).
--
-- Each hold is split into powers of two, one member for each: 5 places are a member of 4 and one of
-- 1. The score of 2^n places is n * `era` + the end. So counting a range of scores yields the
-- places of one size that are held, without a visit of each. A charge removes some holds that have
-- ended.
--
-- cost, count
-- id       of the hold to make, renew or settle
-- lease    ms until its end unless it is renewed
-- allow_partial  1: take what remains, at least 1, if that is less than the cost
-- charged  to renew: id, lease and cost of each hold, shorter leases first; cost, id and lease are
--          unused
-- returns  what remains (n as -1 - n if the cost does not fit), ms until all are free, and the
--          places taken, or ms until the first hold ends and 1 + the places held. To renew: a
--          string with 1 for each hold that is still held and 0 for each other. To settle: the
--          places that were held
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
  -- Moves a hold to a new end, or removes it. False if it had ended.
  local function change(id, cost, new_end)
    local rest, size, was_held = cost, 0, false
    while rest > 0 do
      if rest % 2 == 1 then
        local name = struct.pack('<dB', id, size)
        local score = call('ZSCORE', key, name)
        if not score or score - size * era <= ms then
          break -- ended or settled
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
  local replies, latest = {}, 0
  for at = 1, #charged, 24 do
    local id, lease, cost = struct.unpack('<ddd', charged, at)
    local its_end = end_of(lease)
    local is_held = change(id, cost, its_end)
    replies[#replies + 1], latest = is_held and '1' or '0', is_held and its_end or latest
  end
  if latest > 0 and call('PTTL', key) <= latest - ms then
    call('PEXPIREAT', key, digits(latest + 1))
  end
  reply = table.concat(replies)
  break
end

-- For each size, the largest first: the places held, and the last end.
local held_places, latest, members, sizes = 0, ms, 0, {}
local last = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2]
while last do
  local from = last - last % era
  local size = 2 ^ (from / era)
  if last - from > ms then
    local held = call('ZCOUNT', key, digits(from + ms + 1), last)
    held_places, latest, members = held_places + held * size, math.max(latest, last - from), members + held
  end
  sizes[#sizes + 1] = from
  last = size > 1 and call('ZRANGE', key, '(' .. digits(from), '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')[2]
end
local remaining = math.max(count - held_places, 0)
local least = allow_partial == 1 and math.min(cost, 1) or cost
if charge ~= 'always' and least > remaining or not charge then
  fits = least <= remaining
  local soonest = latest
  for _, from in ipairs(fits and {} or sizes) do
    local first = call('ZRANGE', key, digits(from + ms + 1), digits(from + era - 1), 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
    soonest = first and math.min(soonest, first - from) or soonest
  end
  reply = { fits and remaining or -1 - remaining, latest - ms, soonest - ms, 1 + held_places }
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
  -- After the charge: while a slot migrates, a deleted key can't be written again.
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
