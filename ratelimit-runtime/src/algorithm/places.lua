-- Places are a sorted set: the number of who holds one and which of theirs it is, in 16 bytes, by when it ends (ms since 1970). One that has ended is free.
--
-- cost, count
-- id       the number of who holds them
-- lease    ms they last unless they are renewed
-- returns  what remains (n as -1 - n if the cost does not fit), ms until all are free, and how many were taken, or ms until the cost fits and how
--          many are held. After a renewal: 1 if they are still held. After a settlement: 0
local function places()
  local names = {}
  for place = 1, cost do
    names[place] = struct.pack('<dd', id, place)
  end
  return names
end
if charge == 'settle' then
  call('ZREM', key, unpack(places()))
  reply = 0
  break
end
time = time or call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local function hold()
  local ends = string.format('%.0f', ms + (time[2] % 1000 > 0 and 1 or 0) + lease)
  for _, place in ipairs(places()) do
    call('ZADD', key, ends, place)
  end
  local latest = 0 + call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2]
  call('PEXPIREAT', key, string.format('%.0f', latest + 1))
  return latest - ms
end
if charge == 'renew' then
  local ends = call('ZSCORE', key, places()[1])
  reply = ends and 0 + ends > ms and 1 or 0
  if reply == 1 then
    hold()
  end
  break
end

local now_ms = string.format('%.0f', ms)
local taken = call('ZCOUNT', key, '(' .. now_ms, '+inf')
local remaining = math.max(count - taken, 0)
fits = cost <= remaining
if charge ~= 'always' and not fits or not charge then
  local latest = taken > 0 and call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] - ms or 0
  reply = { fits and remaining or -1 - remaining, latest, 0 }
  if not fits and taken > 0 then
    -- So many of those that are taken have to end.
    local nth = call('ZCARD', key) - taken + math.min(cost - remaining, taken) - 1
    reply[3] = call('ZRANGE', key, nth, nth, 'WITHSCORES')[2] - ms
  end
  reply[4] = taken
  break
end
call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
fits = true
reply = { remaining - cost, hold(), cost }
