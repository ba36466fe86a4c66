-- Makes as many as fit of equal charges of one counter, at one time and in at most three decisions:
-- all at once; if they don't fit, as many as the denial leaves room for; and the first that does
-- not fit.
--
-- times  number of charges
-- most   how many the limit has room for
-- Sets `reply` to the number granted, the index of the charge that the reply describes, that reply,
-- and the reply to those that do not fit.
local granted, place, last, n = 0, 0, false, math.max(math.min(times, most), 1)
while granted < times do
  local charge, charged, @numbers = true, its_charge * n, @known
  charged = string.format('%.0f', charged) -- not `%d`, which is limited to 2^31 on some servers
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
  elseif n > 1 and fits == false then -- nil: banned
@fitting
    n = math.max(math.min(math.floor(fitting), n - 1), 1)
  else
    break
  end
  reply = false
end
reply = { granted, place, last, reply }
