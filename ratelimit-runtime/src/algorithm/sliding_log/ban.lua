-- Bans the counter until the end of this ban, or of an earlier one if that is later. Its charges and
-- holds stay below the ban, in the form that decide.lua describes.
local ms, first = time[1] * 1000 + math.floor(time[2] / 1000), call('LINDEX', key, '0')
local reset, retry = unpack(fits == nil and reply[1] or { reply[2], reply[3] })
if first and #first > 8 then
  local numbers = { struct.unpack('<ddddddddd', first) }
  ban = math.max(ban, numbers[8] - ms)
  numbers[8], numbers[9] = ms + ban, ban
  call('LSET', key, '0', struct.pack('<ddddddddd', unpack(numbers)))
else
  local numbers = struct.pack('<ddddddddd', 0, reset > 0 and ms + reset + 1 or 0, 0, 0, 0, 0, 0, ms + ban, ban)
  call('LPUSH', key, '', '', numbers)
end
call('PEXPIRE', key, math.max(call('PTTL', key), ban + 1))
reply = { { math.max(reset, ban), math.max(retry, ban) } }
