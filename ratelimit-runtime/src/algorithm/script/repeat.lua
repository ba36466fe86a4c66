-- Makes as many as fit of so many equal charges of one counter, at one time and in at most three decisions: all at once; if that is too
-- much, as many as the refusal leaves room for; and the first that does not fit.
--
-- times  how many there are
-- most   how many the limit has room for
-- Sets `reply` to how many were granted, which of them, counted from 0, the reply is the one to, that reply, and that to those that do not fit.
local granted, place, last, n = 0, 0, false, math.max(math.min(times, most), 1)
while granted < times do
  local charge, charged, @numbers = true, its_charge * n, @known
  charged = string.format(charged < 2 ^ 31 and '%d' or '%.0f', charged) -- `%d` is quick, and takes less than 2^31 on every server
  if n > 1 then
    @first = @first_of_many
  end
  repeat
@decide
  until true
  if fits then
    place = @place
    value = @stored
    granted, last, n = granted + n, reply, 1
  elseif n > 1 then
@fitting
    n = math.max(math.min(math.floor(fitting), n - 1), 1)
  else
    break
  end
  reply = false
end
reply = { granted, place, last, reply }
