-- A bucket is one string of three numbers of 8 bytes, which are quicker to read and write than digits: when it is full (ms since 1970),
-- how many ms that was away when it was written, and the units that were missing then. Its expiry is when it is full, so what is stored
-- and the key's PTTL tell the time.
--
-- cost (units), capacity (units), refill (units an interval), interval (ms)
-- longest  1 + ms a caller sleeps for its slot; 0: no slots
-- returns  nothing if the bucket is full, or its three numbers, after the charge if there is one, with '-' before them
--          if the cost does not fit; what is missing is then without the slots that outlast a raised count
value = value or call('GET', key)
local left, missing, taken, full = 0, 0, 0
if value then
  local away
  full, away, missing = struct.unpack('<ddd', value)
  if now then
    full = full > now and full or now
    left = full - now
  else
    left = call('PTTL', key)
  end
  if left < 0 or left > away then -- no expiry, or the server's clock was set back: as if written just now
    if not now then
      time = call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    left, full = away, now + away
    call('SET', key, struct.pack('<ddd', full, away, missing), 'PXAT', string.format('%.0f', full))
  end
  if interval > 1 then -- x + -x % interval is x rounded up to whole intervals
    missing = missing - (away + -away % interval - left - -left % interval) / interval * refill
  else
    missing = missing - (away - left) * refill
  end
  if missing < 0 or left == 0 then
    missing = 0
  end
  taken = missing
  if longest > 0 and left > 0 then
    taken = math.max(missing, (left - 1) * refill + 1) -- slots that have been given stay, also when the count was raised since
  end
end
local needed = taken + cost -- beyond 2^53, so not exact, only where it does not fit
if (needed > capacity or longest > 0 and (taken + -taken % refill) / refill >= longest) and charge ~= 'always' and cost ~= 0 then
  reply, fits = full and '-' .. struct.pack('<ddd', full, left, missing) or false, false
  break
elseif not charge then
  reply, fits = full and struct.pack('<ddd', full, left, missing) or false, true
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
local low = full % 1e7 -- `%d` is quick, and takes less than 2^31 on every server
call('SET', key, reply, 'PXAT', string.format('%d%07d', (full - low) / 1e7, low))
