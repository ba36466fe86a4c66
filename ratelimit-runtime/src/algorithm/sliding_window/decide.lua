-- A sliding window is one string of 8-byte numbers: the sub-window of the last charge (its start
-- divided by its length), the sum of all counts, and the counts. A count is the charges of one
-- sub-window, newest first, down to the oldest that still counts. The key expires when no charge
-- counts any more, so the stored number and PTTL tell the time.
--
-- A ban is infinity and the ms of the ban, in place of the first two numbers.
--
-- No decision reads all counts: only the newest, the oldest, and once those that have expired. The
-- server hashes each string that Lua makes, byte by byte. So a charge in the newest sub-window
-- writes 24 bytes, and only one that moves on writes the whole string.
--
-- cost, count, size (ms of a sub-window)
-- earlier   sub-windows that count beside the current one
-- weighted  1 if the oldest one counts by its overlap with the last period, 0 if in full
-- returns  after a charge: ms until no charge counts, the sub-window, and the use. Otherwise false
--          if nothing counts, or '+' ('-' if the cost does not fit), the ms, the use, and the
--          string
value = value or call('GET', key)
local left, current, sum = 0
if value then
  current, sum = struct.unpack('<dd', value)
  local stops = (current + 1 + earlier) * size
  left = now and math.max(stops - now, 0) or call('PTTL', key)
  if left < 0 or not (left <= stops - current * size) then -- no expiry, the server's clock was set back, or a ban
    if current == math.huge then
      local length = sum
@banned
    end
    -- All charges count as made now.
    if not now then
      time = call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    current = math.floor(now / size)
    left = (current + 1 + earlier) * size - now
    value = struct.pack('<ddd', current, sum, sum)
    call('SET', key, value, 'PXAT', string.format('%.0f', now + left))
  elseif not now then
    now = stops - left
  end
end
if left == 0 then
  if not charge then
    reply, fits = false, true
    break
  end
  if not now then
    time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  value, current, sum = nil, math.floor(now / size), 0
end

-- Sub-windows since the last charge, counts that are stored, and counts that have not expired.
local passed, stored = math.floor(now / size) - current, value and #value / 8 - 2 or 0
local kept = math.min(stored, earlier + 1 - passed)
local used = sum
if kept < stored then
  local dropped = { struct.unpack('<' .. string.rep('d', stored - kept), value, 17 + 8 * kept) }
  for i = 1, stored - kept do
    used = used - dropped[i]
  end
  sum = used
end
if value and kept + passed > earlier and weighted > 0 then
  local oldest = struct.unpack('<d', value, 9 + 8 * kept)
  used = used - oldest + math.ceil(oldest * (size - now % size) / size)
end
fits = charge == 'always' or cost == 0 or used + cost <= count
if not fits or not charge then
  reply = value and (fits and '+' or '-') .. struct.pack('<dd', left, used) .. value or false
  break
end
current, sum = current + passed, sum + cost
if value and passed == 0 then
  local newest = struct.unpack('<d', value, 17)
  call('SETRANGE', key, '0', struct.pack('<ddd', current, sum, newest + cost))
  value = nil
else
  local older = value and string.rep('\0', 8 * (passed - 1)) .. string.sub(value, 17, 16 + 8 * kept) or ''
  local stops = (current + 1 + earlier) * size
  local low = stops % 1e7 -- `%d` is fast, but limited to 2^31 on some servers
  left, value = stops - now, struct.pack('<ddd', current, sum, cost) .. older
  call('SET', key, value, 'PXAT', string.format('%d%07d', (stops - low) / 1e7, low))
end
reply = struct.pack('<ddd', left, current, used + cost)
