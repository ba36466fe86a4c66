-- Denies every cost of a banned counter, whose key expires a millisecond before the ban ends: Redis
-- keeps a key while its PTTL is 0.
--
-- length  ms of the ban
-- Sets `reply` to a table with a table of the ms until `remaining` is the limit and the ms until any
-- cost fits, and `fits` to nil.
local wait = call('PTTL', key) + 1
if wait < 1 or wait > length then -- no expiry, or the server's clock was set back: counts as banned now
  wait = length
  call('PEXPIRE', key, math.max(length - 1, 1))
end
reply, fits = { { wait, wait } }, nil
break
