-- Ends the ban of the counter. It is fresh then, but for its holds.
local numbers = { struct.unpack('<ddddddddd', call('LINDEX', key, '0')) }
if numbers[1] == 0 and call('LINDEX', key, '2') == '' then
  call('DEL', key)
else
  call('LTRIM', key, '0', '2')
  call('LSET', key, '0', struct.pack('<ddddddddd', numbers[1], 0, 0, numbers[4], numbers[5], numbers[6], numbers[7], 0, 0))
end
