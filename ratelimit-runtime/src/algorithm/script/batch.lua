-- Requests on one counter each, for one script, decided in order and each by itself: a request that
-- fails changes nothing for the others.
--
-- ARGV[1] has a byte with the number of rules, then three bytes for each run of counters with equal
-- requests: their number; 0 to evaluate, 1 to charge, or 2 for as many as fit of equal charges, + 4
-- if the counters occurred before; and the index of their rule. The next arguments are the rules:
-- the numbers of one charge, and its stored cost. Two more for each request 2 are the number of
-- charges and how many the limit has room for.
--
-- Returns a reply or an error for each counter; as one string of 8-byte numbers, faster to read, if
-- all are numbers. For the reply to equal charges see `repeat.lua`.
local call, keys, requests, rules, i, run = redis.call, KEYS, { string.byte(ARGV[1], 1, -1) }, {}, 0, 2
local count, at, values, ends, time, now = #keys, requests[1] + 2, {}, requests[run], nil, nil
@time
values = @values

local function each()
  local call, keys, replies = call, keys, values -- reuses the table: a new one would grow repeatedly
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
      rule[#rule] = string.format(charged < 2 ^ 31 and '%d' or '%.0f', charged) -- replaces the end position; `%d` is fast
      rules[number] = rule
    end
    local digits, is_charge, is_repeat, @known, its_charge = rule[#rule], request % 4 > 0, request % 4 == 2, @rule, @charge
    while i < last do
      local at_key = i + 1
      i = at_key
      local key, value, reply, fits = keys[at_key], read[at_key], nil, nil
      if not is_repeat then
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
    values[i] = type(failure) == 'table' and failure or { err = 'ERR ' .. failure } -- a string on some servers
  end
end
if type(values[1]) == 'number' then -- otherwise a string could be packed as a number
  local is_packed, packed = pcall(struct.pack, '<' .. string.rep('d', count), unpack(values, 1, count))
  if is_packed then
    return packed
  end
end
return values
