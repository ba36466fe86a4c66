-- A bucket is one string of three 8-byte numbers, faster to read and write than digits: when it is
-- full (ms since 1970), how far away that was at the last write (ms), and the deficit then (units).
-- The key expires when the bucket is full, so the stored numbers and PTTL tell the time.
--
-- A ban has its ms, -1 and 0 in place of these numbers.
--
-- cost (units), capacity (units), refill (units of an interval), interval (ms)
-- longest  1 + longest wait for a slot in ms; 0: no slots
-- returns  false if the bucket is full, or its three numbers, after the charge if there is one;
--          after '-' if the cost does not fit, the deficit without slots that outlast a raised
--          count
value = value or call('GET', key)
local left, deficit, taken, full = 0, 0, 0
if value then
  local away
  full, away, deficit = struct.unpack('<ddd', value)
  if now then
    full = full > now and full or now
    left = full - now
  else
    left = call('PTTL', key)
  end
  if left < 0 or left > away then -- no expiry, the server's clock was set back, or a ban
    if away == -1 then
      local length = struct.unpack('<d', value)
@banned
    end
    -- It counts as written now.
    if not now then
      time = call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    left, full = away, now + away
    call('SET', key, struct.pack('<ddd', full, away, deficit), 'PXAT', string.format('%.0f', full))
  end
  if interval > 1 then -- x + -x % interval rounds x up to whole intervals
    deficit = deficit - (away + -away % interval - left - -left % interval) / interval * refill
  else
    deficit = deficit - (away - left) * refill
  end
  if deficit < 0 or left == 0 then
    deficit = 0
  end
  taken = deficit
  if longest > 0 and left > 0 then
    taken = math.max(deficit, (left - 1) * refill + 1) -- given slots stay, even if the count was raised since
  end
end
local needed = taken + cost -- exact if it fits, as that is below 2^53
if (needed > capacity or longest > 0 and (taken + -taken % refill) / refill >= longest) and charge ~= 'always' and cost ~= 0 then
  reply, fits = full and '-' .. struct.pack('<ddd', full, left, deficit) or false, false
  break
elseif not charge then
  reply, fits = full and struct.pack('<ddd', full, left, deficit) or false, true
  break
end
if not full then
  if not now then
    time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  full = now
end
local later = (needed + -needed % refill) / refill - left
if interval > 1 then
  later = (later + left) * interval - left - -left % interval
end
full, left = full + later, left + later
reply, fits = struct.pack('<ddd', full, left, needed), true
local low = full % 1e7 -- `%d` is fast, but limited to 2^31 on some servers
call('SET', key, reply, 'PXAT', string.format('%d%07d', (full - low) / 1e7, low))
