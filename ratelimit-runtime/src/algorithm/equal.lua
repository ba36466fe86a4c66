-- Makes as many as fit of so many equal charges of one counter.
--
-- times  how many there are
-- most   how many the limit has room for
-- Sets `reply` to how many were granted, which of them, counted from 0, the reply is the one to, that reply, and that to those that do not fit.
local granted, place, last, n = 0, 0, false, math.max(math.min(times, most), 1)
-- All at once, or else as many as are found to fit by looks, also at once: so that one reply tells of all of them.
local is_look, fitting, too_many = false, 0, 0
while granted < times do
  if n < times and not now then -- all that is decided in more than one go is decided at one time
    @time
  end
  local charge, charged, @numbers = not is_look, its_charge * n, @known
  charged = string.format(charged < 2 ^ 31 and '%d' or '%.0f', charged) -- `%d` is quick, and takes less than 2^31 on every server
  if n > 1 then
    @first = @first_of_many
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
