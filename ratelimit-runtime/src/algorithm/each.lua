-- Requests about one counter each, all of one kind, decided in order and each by itself: one that fails changes nothing for the others.
--
-- ARGV[1] has a byte that says how many of the next arguments are rules, and then two bytes for each counter: 0 to look, 1 to charge, or 2 to make as many
-- as fit of so many equal charges, + 4 if the counter has been there before; and its rule, counted from 0.
-- A rule is the numbers of one charge, and what is charged. For equal charges two more arguments say how many there are, and how many the limit has room for.
--
-- Replies with a reply for each counter, or an error; if all of them are numbers, in one string of 8 bytes each, which is quicker to read. That for
-- equal charges is how many were granted, which of them, counted from 0, the reply is the one to, that reply, and that to those that do not fit.
local call, requests, rules, replies, i = redis.call, { string.byte(ARGV[1], 1, -1) }, {}, {}, 0
local at, numbers, time, now, values = requests[1] + 2, true, nil, nil, {}
if #KEYS > 1 or requests[2] % 4 == 2 then
  time = call('TIME')
  time[1], time[2] = 0 + time[1], 0 + time[2]
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  values = @values
end

local function each()
  while i < #KEYS do
    i = i + 1
    local key, request, number = KEYS[i], requests[2 * i], requests[2 * i + 1]
    local rule = rules[number]
    if not rule then
      rule = { struct.unpack('@format', ARGV[number + 2]) }
      rule.digits = string.format('%.0f', rule[#rule - 1])
      rules[number] = rule
    end
    local is_equal, times, n, granted, place, last = request % 4 == 2, 1, 1, 0, 0, false
    if is_equal then
      times = 0 + ARGV[at]
      n = math.max(math.min(times, ARGV[at + 1]), 1)
      at = at + 2
    end
    local value = request < 4 and values[i] or nil
    -- All at once, or else as many as are found to fit by looks, also at once: so that one reply tells of all of them.
    local is_look, fitting, too_many = false, 0, 0
    while granted < times do
      local reply, fits
      local charge, charged, @numbers = request % 4 > 0 and not is_look, rule.digits, @rule
      if n > 1 then
        @first, charged = @first_of_many, string.format('%.0f', @charged * n)
      end
      repeat
@decide
      until true
      value = nil
      if not is_equal then
        last = reply
        break
      elseif is_look then
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
        last = { granted, place, last, reply }
        break
      end
    end
    if is_equal and granted == times then
      last = { granted, place, last, false }
    end
    numbers = numbers and type(last) == 'number'
    replies[i] = last
  end
end

while i < #KEYS do
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
