-- Requests about one counter each, all of one kind, decided in order and each by itself: one that fails changes nothing for the others.
--
-- ARGV[1] has a byte that says how many of the next arguments are rules, and then three bytes for each run of counters of which the same is asked: how many
-- they are; 0 to look, 1 to charge, or 2 to make as many as fit of so many equal charges, + 4 if they have been there before; and their rule, counted from 0.
-- A rule is the numbers of one charge, and what is charged. For equal charges two more arguments say how many there are, and how many the limit has room for.
--
-- Replies with a reply for each counter, or an error; if all of them are numbers, in one string of 8 bytes each, which is quicker to read. That for
-- equal charges is what `equal.lua` says.
local call, keys, requests, rules, i, run = redis.call, KEYS, { string.byte(ARGV[1], 1, -1) }, {}, 0, 2
local count, at, values, ends, time, now = #keys, requests[1] + 2, {}, requests[run], nil, nil
@time
values = @values

local function each()
  local call, keys, replies = call, keys, values -- in the place of what was read: a table of its own would grow again and again
  while i < count do
    if i == ends then
      run = run + 3
      ends = ends + requests[run]
    end
    local last, request, number = ends, requests[run + 1], requests[run + 2]
    local rule, read = rules[number], request < 4 and values or {}
    if not rule then
      rule = { struct.unpack('@format', ARGV[number + 2]) }
      local charged = rule[#rule - 1]
      rule[#rule] = string.format(charged < 2 ^ 31 and '%d' or '%.0f', charged) -- in the place of where the numbers end; `%d` is quick
      rules[number] = rule
    end
    local digits, is_charge, are_equal, @known, its_charge = rule[#rule], request % 4 > 0, request % 4 == 2, @rule, @charge
    while i < last do
      local at_key = i + 1
      i = at_key
      local key, value, reply, fits = keys[at_key], read[at_key], nil, nil
      if not are_equal then
        local charge, charged, @numbers = is_charge, digits, @known
        repeat
@decide
        until true
      else
        local times, most = 0 + ARGV[at], 0 + ARGV[at + 1]
        at = at + 2
@repeat
      end
      replies[at_key] = reply
    end
  end
end

while i < count do
  local done, failure = pcall(each)
  if not done then
    values[i] = type(failure) == 'table' and failure or { err = 'ERR ' .. failure } -- a text on servers before 7.0
  end
end
if type(values[1]) == 'number' then -- then no other is a text that could be read as one
  local are_numbers, packed = pcall(struct.pack, '<' .. string.rep('d', count), unpack(values, 1, count))
  if are_numbers then
    return packed
  end
end
return values
