-- Requests about one counter each, all of one kind, decided in order and each by itself: one that fails changes nothing for the others.
--
-- ARGV[1] has a byte that says how many of the next arguments are rules, and then two bytes for each counter: 0 to look, 1 to charge, or 2 to make as many
-- as fit of so many equal charges, + 4 if the counter has been there before; and its rule, counted from 0.
-- A rule is the numbers of one charge, and what is charged. For equal charges two more arguments say how many there are, and how many the limit has room for.
--
-- Replies with a reply for each counter, or an error; if all of them are numbers, in one string of 8 bytes each, which is quicker to read. That for
-- equal charges is how many were granted, which of them, counted from 0, the reply is the one to, that reply, and that to those that do not fit.
local call, keys, requests, rules, i = redis.call, KEYS, { string.byte(ARGV[1], 1, -1) }, {}, 0
local count, at, numbers, time, now, values = #keys, requests[1] + 2, true, nil, nil, {}
if count > 1 or requests[2] % 4 == 2 then
  time = call('TIME')
  time[1], time[2] = 0 + time[1], 0 + time[2]
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  values = @values
end
local replies = values -- in the place of what was read: a table of its own would grow again and again

local function each()
  local rule, of, digits, @known -- the rule of the last counter, its number, and what is in it
  while i < count do
    local at_key = i + 1
    i = at_key
    local key, request, number = keys[at_key], requests[2 * at_key], requests[2 * at_key + 1]
    if number ~= of then
      rule, of = rules[number], number
      if not rule then
        rule = { struct.unpack('@format', ARGV[number + 2]) }
        rule[#rule] = string.format('%.0f', rule[#rule - 1]) -- in the place of where the numbers end
        rules[number] = rule
      end
      @known, digits = @rule, rule[#rule]
    end
    local value = request < 4 and values[at_key] or nil
    local reply, fits
    if request % 4 ~= 2 then
      local charge, charged, @numbers = request % 4 > 0, digits, @known
      repeat
@decide
      until true
    else
      local times, granted, place, last = 0 + ARGV[at], 0, 0, false
      local n = math.max(math.min(times, ARGV[at + 1]), 1)
      at = at + 2
      -- All at once, or else as many as are found to fit by looks, also at once: so that one reply tells of all of them.
      local is_look, fitting, too_many = false, 0, 0
      while granted < times do
        local charge, charged, @numbers = not is_look, digits, @known
        if n > 1 then
          @first, charged = @first_of_many, string.format('%.0f', @charged * n)
        end
        repeat
@decide
        until true
        value = nil
        if is_look then
          if fits then
            fitting = n
          else
            too_many = n
          end
          is_look = too_many - fitting > 1
          n = is_look and math.floor((fitting + too_many) / 2) or math.max(fitting, 1)
        elseif fits then
          place = @place
          granted, last, n = granted + n, reply, 1
        elseif n > 1 then
          is_look, fitting, too_many, n = true, 0, n, math.floor(n / 2)
        else
          break
        end
        reply = false
      end
      reply = { granted, place, last, reply }
    end
    numbers = numbers and type(reply) == 'number'
    replies[at_key] = reply
  end
end

while i < count do
  local done, failure = pcall(each)
  if not done then
    numbers = false
    replies[i] = type(failure) == 'table' and failure or { err = 'ERR ' .. failure } -- a text on servers before 7.0
  end
end
if numbers then
  return struct.pack('<' .. string.rep('d', #replies), unpack(replies))
end
return replies
