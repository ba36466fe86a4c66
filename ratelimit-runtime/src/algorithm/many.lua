-- Several requests, decided in order and each by itself: one that fails changes nothing for the others.
--
-- ARGV[1] has a byte for each request, and then come the arguments of each:
--   one counter        its kind, +4 to charge, +8 if what is charged is told
--                      numbers, and what is charged
--   equal charges      its kind, +16: as many as fit of so many charges to one counter
--                      the numbers of one; and how many there are, how many the limit has room for, by how much the first of the
--                      numbers is larger for each further one, and what is charged for one
--   several counters   32, or 33 to charge: all or nothing
--                      how many, and for each its kind, numbers and what is charged
--
-- Replies with a reply for each request, or an error.
local call = redis.call

-- Charges as many as fit: all at once, or else by halves. Replies with how many that were, which of them, counted from 0, the
-- reply is the one to, that reply, and that to those that do not fit.
local function equal(kind, key, numbers, repetition)
  local times, most, step, charged = struct.unpack('<dddd', repetition)
  local first, rest = struct.unpack('<d', numbers), string.sub(numbers, 9)
  local granted, at, reply, refusal = 0, 0, false, false
  local function charge(n)
    local answer, fits = kinds[kind](key, call, true, nil, struct.pack('<d', first + (n - 1) * step) .. rest, n * charged)
    if fits then
      at = kind == 0 and granted or granted + n - 1 -- a window replies with what was before
      granted, reply = granted + n, answer
    else
      refusal = answer
    end
    return fits
  end
  local n = math.min(times, most)
  while granted < times do
    n = math.min(n, times - granted)
    if not charge(n) then
      if n == 1 then
        break
      end
      n = math.floor(n / 2)
    end
  end
  return { granted, at, reply, refusal }
end

-- A look at each, then, if all of them fit, a charge to each. One reading of the clock serves both: set back in between, it could make
-- room that is not there, or take away what is. Replies with what each replied, then 1 if all of them fit and 0 otherwise.
local function several(charge, key, at, count)
  local time = call('TIME')
  local function each(charge)
    local replies, all_fit, at = {}, true, at
    for i = 1, count do
      local kind, numbers, charged = ARGV[at], ARGV[at + 1], ARGV[at + 2]
      local decide = kinds[tonumber(kind)]
      local reply, fits = decide(KEYS[key + i - 1], call, charged ~= '0' and charge, time, numbers, charged)
      replies[i] = reply
      all_fit = all_fit and fits
      at = at + 3
    end
    return replies, all_fit
  end
  local replies, all_fit = each(false)
  if all_fit and charge then
    replies = each('always')
  end
  replies[count + 1] = all_fit and 1 or 0
  return replies
end

local replies, key, at = {}, 1, 2
for i, request in ipairs({ string.byte(ARGV[1], 1, -1) }) do
  local done, reply
  if request < 8 then
    done, reply = pcall(kinds[request % 4], KEYS[key], call, request > 3, nil, ARGV[at])
    key, at = key + 1, at + 1
  elseif request < 16 then
    done, reply = pcall(kinds[request % 4], KEYS[key], call, request > 11, nil, ARGV[at], ARGV[at + 1])
    key, at = key + 1, at + 2
  elseif request < 32 then
    done, reply = pcall(equal, request % 4, KEYS[key], ARGV[at], ARGV[at + 1])
    key, at = key + 1, at + 2
  else
    local count = tonumber(ARGV[at])
    done, reply = pcall(several, request == 33, key, at + 1, count)
    key, at = key + count, at + 1 + 3 * count
  end
  if not done and type(reply) ~= 'table' then
    reply = { err = 'ERR ' .. reply } -- as servers before 7.0 tell it
  end
  replies[i] = reply
end
return replies
