-- The ban lasts at least until no charge would count any more, or until an earlier ban ends. A charge
-- that was refunded may have left empty sub-windows in front. Then the key expires later than the last
-- charge that counts, by these sub-windows.
local lasts, at = fits == nil and reply[1][1] or call('PTTL', key), 17
while fits ~= nil and value and at < #value and struct.unpack('<d', value, at) == 0 do
  lasts, at = lasts - size, at + 8
end
ban = math.max(ban, lasts)
call('SET', key, struct.pack('<dd', 1e999, ban), 'PX', string.format('%.0f', math.max(ban - 1, 1)))
reply = { { ban, ban } }
