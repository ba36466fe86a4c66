-- A fixed window is one string, an integer to Redis: what is used of the window * unit + when it ends (ms since 1970), or if it is aligned when it was
-- opened, modulo unit, which tells it from another window of the same key. Its expiry is the end of the window; unless that is more than five days away,
-- it is known without it. The unit is 450,001, or 2,048 times as much where windows are longer: the largest value of all is just below 2^63.
--
-- length  ms a window
-- Sets `unit`, `mark` (what is stored beside what is used, perhaps plus multiples of the unit), and makes `value` what it would be with a unit of 450,001.
value = value or call('GET', key)
local unit, mark = length < 225000 and 450001 or 921602048
if value then
  local digits = value
  value = 0 + digits
  mark = value
  if unit > 450001 then
    mark = value % unit
    local used = value - mark
    if value >= 2 ^ 53 then -- Lua has rounded it; multiples of the unit are exact, and what is above one has fewer than ten digits
      used = math.floor(value / unit) * unit
      mark = (string.sub(digits, -10) - string.sub(string.format('%.0f', used), -10)) % 1e10
      if mark >= unit then -- it was rounded up to the next
        used, mark = used - unit, mark - 1e10 + unit
      end
    end
    value = used / 2048 + mark % 450001
  end
end
