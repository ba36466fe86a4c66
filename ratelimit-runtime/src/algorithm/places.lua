-- Places are a sorted set of those who hold some: the number of each and how many it holds, in 16 bytes, by when they end (ms since 1970).
-- Those that have ended are free. The empty name is of all of them together: how many they hold, as a number below 0.
--
-- cost, count
-- id       the number of who holds them
-- lease    ms they last unless they are renewed
-- partial  1: take what remains, at least 1, if that is less than the cost
-- returns  what remains (n as -1 - n if the cost does not fit), ms until all are free, and how many were taken, or ms until the cost fits and how
--          many are held. After a renewal: 1 if they are still held. After a settlement: how many were held
time = time or call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local function digits(number)
  return string.format('%.0f', number)
end
local function much(name)
  local _, places = struct.unpack('<dd', name)
  return places
end

if charge == 'renew' or charge == 'settle' or charge == 'again' then
  local name = struct.pack('<dd', id, cost)
  local ends = call('ZSCORE', key, name)
  reply = 0
  if ends and 0 + ends > ms then
    if charge == 'renew' then
      call('ZADD', key, digits(ms + (time[2] % 1000 > 0 and 1 or 0) + lease), name)
      call('PEXPIREAT', key, digits(call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + 1))
      reply = 1
    else
      reply = cost
      call('ZREM', key, name)
      if 0 + call('ZINCRBY', key, digits(cost), '') == 0 then
        call('DEL', key)
      end
    end
  end
  break
end

-- The sum, and those who have ended.
local ended = call('ZRANGEBYSCORE', key, '-inf', digits(ms), 'WITHSCORES')
local taken = ended[2] and -ended[2] or 0
for at = 3, #ended, 2 do
  taken = taken - much(ended[at])
end
local remaining = math.max(count - taken, 0)
local least = partial == 1 and math.min(cost, 1) or cost
if charge ~= 'always' and least > remaining or not charge then
  local latest = taken > 0 and call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] - ms or 0
  fits = least <= remaining
  reply = { fits and remaining or -1 - remaining, latest, 0, taken }
  -- So many of those that are taken have to end, those that end first before the others.
  local short, at = fits and 0 or math.min(taken + least - count, taken), 0
  while short > 0 do
    local holders = call('ZRANGEBYSCORE', key, '(' .. digits(ms), '+inf', 'WITHSCORES', 'LIMIT', at, '100')
    for i = 1, #holders, 2 do
      if short > 0 then
        short, reply[3] = short - much(holders[i]), holders[i + 1] - ms
      end
    end
    short, at = #holders > 0 and short or 0, at + 100
  end
  break
end
fits = true
if partial == 1 then
  cost = math.min(cost, remaining)
end
if #ended > 2 then
  call('ZREMRANGEBYSCORE', key, '0', digits(ms))
end
local ends = digits(ms + (time[2] % 1000 > 0 and 1 or 0) + lease)
call('ZADD', key, digits(-taken - cost), '', ends, struct.pack('<dd', id, cost))
local latest = 0 + call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2]
call('PEXPIREAT', key, digits(latest + 1))
reply = { remaining - cost, latest - ms, cost }
