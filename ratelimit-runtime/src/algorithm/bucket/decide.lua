-- A bucket is one string of four numbers, faster to read and write than digits: when it is full (ms
-- since 1970), how far away that was at the last write (ms), the deficit then (units), and in 4 bytes
-- the refill of the rules that have written it since it was full. If their refills differ, it is the
-- largest one, times -1, and the bucket is not full until each charge has come back by its own rule. It
-- is at most 2^30 - 1, which stands for all above. A queue has 0. The key expires when the bucket is
-- full, so the stored numbers and PTTL tell the time.
--
-- Behind them is a pair of 8-byte numbers for each of at most 8 charges that are settled later, oldest
-- first: the time of the charge (ms since 1970), and the lowest deficit since, which later refunds are
-- taken out of. See `lows.rs`.
--
-- A ban has its ms, -1, 0 and 0 in place of these numbers.
--
-- cost (units), capacity (units), refill (units of an interval), interval (ms)
-- longest  1 + longest wait for a slot in ms; 0: no slots; -1: the charge is settled later
-- returns  false if the bucket is full, or its four numbers, after the charge if there is one;
--          after '-' if the cost does not fit, the deficit without slots that outlast a raised
--          count
value = value or call('GET', key)
local left, deficit, taken, fastest, full = 0, 0, 0, 0
if value then
  local away
  full, away, deficit, fastest = struct.unpack('<dddi4', value)
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
    value = struct.pack('<dddi4', full, away, deficit, fastest)
    call('SET', key, value, 'PXAT', string.format('%.0f', full))
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
  reply, fits = full and '-' .. struct.pack('<dddi4', full, left, deficit, fastest) or false, false
  break
elseif not charge then
  reply, fits = full and struct.pack('<dddi4', full, left, deficit, fastest) or false, true
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
local pace = longest > 0 and 0 or refill < 1073741823 and refill or 1073741823
if left > 0 and fastest ~= pace then
  pace, later = -math.max(pace, math.abs(fastest)), math.max(later, 0)
end
full, left = full + later, left + later
reply, fits = struct.pack('<dddi4', full, left, needed, pace), true
local before = value
value = reply
if longest < 0 or before and #before > 28 then
  local froms, lows, n = {}, {}, 0
  while before and 28 + 16 * n < #before do
    n = n + 1
    froms[n], lows[n] = struct.unpack('<dd', before, 13 + 16 * n)
  end
  for i = n, 1, -1 do
    deficit = math.min(deficit, lows[i])
    lows[i] = deficit
  end
  if longest < 0 then
    if froms[n] ~= full - left then
      n = n + 1
    end
    froms[n], lows[n] = full - left, needed
  end
  local last, nearest, closest, kept = 0, nil, nil, 0
  for i = 1, n do
    if lows[i] > last then -- otherwise another pair covers it
      kept = kept + 1
      froms[kept], lows[kept] = froms[i], lows[i]
      if kept > 1 and not (closest and closest <= lows[i] - last) then
        nearest, closest = kept, lows[i] - last
      end
      last = lows[i]
    end
  end
  for i = 1, kept do
    if kept < 9 or i ~= nearest then
      value = value .. struct.pack('<dd', froms[i], lows[i])
    end
  end
end
local low = full % 1e7 -- `%d` is fast, but limited to 2^31 on some servers
call('SET', key, value, 'PXAT', string.format('%d%07d', (full - low) / 1e7, low))
