//! Rate limits for async functions, declared with one attribute.
//!
//! No caller gets through more often than the limit's algorithm promises: in one process, or in
//! many that share one Redis server or a cluster.
//!
//! ```
//! use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
//!
//! struct Item { seller: u64 }
//!
//! #[limit_request_per_time(prefix = "item", ttl = 1, unit = Minutes, count = 2, key = item.seller)]
//! async fn save_item(item: Item) -> Result<(), RequestPerMinute> {
//!     Ok(())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! assert!(save_item(Item { seller: 4711 }).await.is_ok());
//! assert!(save_item(Item { seller: 4711 }).await.is_ok());
//! assert!(save_item(Item { seller: 4711 }).await.is_err()); // until the minute is over
//! assert!(save_item(Item { seller: 4712 }).await.is_ok());
//! # });
//! ```
//!
//! [`limit_request_per_time`] describes the attribute's arguments. The error type of the function
//! needs a `From<RequestPerMinute>`. Functions that are not async are limited with the word
//! `blocking`.
//!
//! By default, limits are counted in process memory. To share them, install a limiter once, at the
//! start of the program:
//!
//! ```no_run
//! # async fn start() -> Result<(), ratelimit_runtime::SetupError> {
//! use ratelimit_runtime::Limiter;
//!
//! Limiter::connect("redis://127.0.0.1:6379").await?.install()?;
//! # Ok(()) }
//! ```
//!
//! Code without the attribute uses a [`Rule`] and a [`Limiter`]: see [`Limiter::acquire`] and
//! [`Limiter::acquire_blocking`].
//!
//! # Promises of each algorithm
//!
//! For a count of C in a period of P:
//!
//! | algorithm | admitted at most in any window of P | state per key |
//! |---|---|---|
//! | [`Algorithm::FixedWindow`] | 2C; C in each of its windows | one integer |
//! | [`Algorithm::SlidingLog`] | C, exactly | about 10 bytes per admitted call |
//! | [`Algorithm::SlidingWindow`] of n buckets | less than 2C; C in any window of P - P/n | n + 3 integers |
//! | [`Algorithm::TokenBucket`] that holds B | B + C | three integers |
//! | [`Algorithm::LeakyBucket`] | C, by the slots that the calls are given | three integers |
//! | [`Algorithm::Concurrent`] | any number, but C at once | about 100 bytes per call that holds places |
//!
//! - The bound of a `LeakyBucket` is C - 1 + the largest cost, if costs differ from 1.
//! - A refused call consumes nothing. The amount charged is the amount granted.
//! - Several rules on one call are one decision: all are charged, or none is.
//! - Windows are half-open, `[t, t + P)`. Only the store's clock decides: with Redis, the server's.
//! - Distinct keys never share a counter, whatever a caller puts into a key.
//! - After a failure half way (a dropped future, a crash), fewer calls are admitted rather than
//!   more. [Limits of the promises](#limits-of-the-promises) lists the exceptions.
//!
//! # Decisions
//!
//! | field | meaning |
//! |---|---|
//! | `limit` | the largest cost that is ever granted |
//! | `remaining` | the largest cost that would be granted now; in a [`Permit`], after its own charge |
//! | `reset_after` | time until `remaining` equals `limit` again, without further calls |
//! | `retry_after` | shortest wait after which the cost is granted, without other calls |
//!
//! Both stores report the same values for each algorithm:
//!
//! | algorithm | `limit` | `remaining` |
//! |---|---|---|
//! | `FixedWindow` | C | C - the charges of this window |
//! | `SlidingLog` | C | C - the charges of the last period |
//! | `SlidingWindow` | C | C - the weighted count, rounded up |
//! | `TokenBucket` | B | whole tokens in the bucket |
//! | `LeakyBucket` with a queue of Q | Q + 1 | slots that can still be given |
//! | `Concurrent` | C | free places |
//!
//! | algorithm | `reset_after` is the time until | `retry_after` is the time until |
//! |---|---|---|
//! | `FixedWindow` | the window ends | the window ends |
//! | `SlidingLog` | the newest charge is one period old | enough of the oldest charges are that old |
//! | `SlidingWindow` | the newest charged sub-window leaves the last period | enough of the oldest ones have faded |
//! | `TokenBucket` | the bucket is full | the bucket holds the cost |
//! | `LeakyBucket` | the last given slot has passed | there is room, and a slot as early as the caller wants it |
//! | `Concurrent` | the last lease ends | not in the error: see below |
//!
//! A place becomes free when its holder drops it, or when its lease ends. So the error of a
//! `Concurrent` has no `retry_after`.
//!
//! Held amounts (see [Holds](#holds)) count as used. `reset_after` and `retry_after` assume that
//! they are never settled.
//!
//! Of a banned counter nothing remains, and `reset_after` and `retry_after` are at least the rest of
//! the ban.
//!
//! Durations start at the store's decision and are rounded up to a millisecond. So a caller who
//! waits for `retry_after` is never refused for coming too early.
//!
//! A denial charges nothing and writes nothing to the store. The one exception is the denial that
//! bans: the first one of a rule with a [ban](Rule::with_ban).
//!
//! # Holds
//!
//! The cost of some calls is known only when they end. Such a call holds an amount while it runs,
//! and settles it when it ends:
//!
//! | cost or limit | held while the call runs | charged when it ends |
//! |---|---|---|
//! | `cost = Elapsed(max = "5s")` | 5 seconds, or the rest if less remains | the time it took |
//! | `cost = Elapsed` | all that remains: calls of one key run one after another | the time it took |
//! | `cost = Settled(max = 4_000, \|outcome\| ..)` | 4,000 | the closure's result for the returned value |
//! | [`Limiter::reserve`] | the amount reserved | see [`Reservation`] |
//! | `limit_concurrent_requests`, [`Algorithm::Concurrent`] | a place | nothing: the place is free |
//!
//! - `Elapsed` needs a [`Algorithm::SlidingLog`], whose count is in milliseconds. `Settled` and
//!   reservations need a log, a `FixedWindow`, a `SlidingWindow` or a `TokenBucket`, without prefetch.
//!   For all but the log see [below](#settlement-by-refund).
//! - `Elapsed` also charges the time of a call that fails, panics or is cancelled. `Settled`
//!   charges its maximum if the call panics or is cancelled.
//! - No other call can use a held amount, in any process. The charge is made when the call ends,
//!   and counts for one period from then on.
//! - On a server, a background task renews a hold every third of its lease, at least every 10
//!   seconds. It also settles the hold when the permit is dropped. The next acquire of the key in
//!   this process waits for the settlement, for at most half of its deadline.
//! - If the holder dies, it is charged in full when its lease ends, and its place becomes free. A
//!   holder that was stopped for longer than its lease finds out with [`Permit::is_held`].
//! - The lease is 30 s for `Settled` and reservations. For `Elapsed` it is the maximum time of the
//!   call, but 1 s to 30 s. The rule sets the lease of places.
//! - A caller that is cancelled while a server decides refunds what it may have been granted.
//! - A `SlidingLog` has room for 10,000 holds, in memory and on a server. The next one is refused
//!   as [`Cause::Exceeded`] until one is settled. Calls that hold nothing are still admitted.
//!   Places do not count here: their number is limited by the rule's count.
//! - Reserve or hold 1 or more. A call with a cost of 0 holds nothing, and is charged nothing.
//! - While the store is away, [`OnStoreError::Local`] holds from this process' share, although
//!   others may hold the whole limit at the store. With `Deny`, no call holds anything.
//! - Earlier holds can't be renewed or settled while the store is away. When their lease ends, they
//!   are charged in full, or their place is lost.
//!
//! ## Settlement by refund
//!
//! A `FixedWindow`, a `SlidingWindow` and a `TokenBucket` do not hold. A `Settled` cost and a
//! reservation charge their maximum when the call begins. The settlement refunds what was not used, or
//! charges what was used above the maximum, whether or not it fits.
//!
//! - The charge counts from the begin of the call. A refund credits the window of the charge, and no
//!   later one. See [`Permit::refund`] for what still counts.
//! - There is no lease, and nothing is renewed. If the process dies, the maximum stays charged, and
//!   ages like any charge. The same holds for a settlement that got no answer: it is not sent again.
//! - A refused call of this kind is not answered from the denial cache, and its denial is not cached. While
//!   it waits, it asks again every 50 ms. A plain call of the same counter may be denied from the cache
//!   until its `retry_after`, unless this process has settled meanwhile.
//! - A `TokenBucket` remembers 8 charges, and merges further ones. With more calls of a key at once, a
//!   refund may be smaller than what the exact bucket would have given back, and never larger. Each takes
//!   16 bytes of its state until the bucket is full.
//!
//! # Waiting
//!
//! With `on_limit = Wait` or [`Limiter::acquire_within`], a refused caller waits in the queue of
//! each of its counters. A queue belongs to one counter in one process.
//!
//! - **Order.** Waiting callers ask the store in the order of their arrival. As many ask at a time
//!   as there is room for: what remained at the latest reply, and what refills within a round trip.
//!   The server decides the order of requests that are in flight at the same time. A caller whose
//!   cost does not fit yet holds up those behind it. Callers that do not wait are not held up.
//! - **Several rules.** A caller with several rules waits for all of its counters at once. Suppose
//!   they are A and B. It does not hold up the callers at B in two cases: A has no room for longer
//!   than B's period, or others are ahead of it at A.
//! - **Reserved costs.** One period of B before A has room, the cost of this caller is reserved at
//!   B. That needs a call that B refused within its last two periods. No waiting caller behind it
//!   gets that part, so it is not overtaken without end. A counter reserves the costs of the first
//!   16 such callers. It stands idle for a reserved cost for one period at most. If the caller was
//!   not served by then, others go first for one period.
//! - **Changes.** After a refund, a reset, a settlement or a changed rule in this process, the next
//!   caller asks at once. A change by another process is noticed after a second, or after a tenth
//!   of the period if that is longer. A place or a hold that another process frees is noticed after
//!   50 ms.
//! - **Refusals.** A caller whose turn would come too late is refused at once. Its `retry_after` is
//!   the time until its turn, if all those ahead of it stay. A caller whose time runs out in the
//!   queue gets the same refusal. [`Limiter::close`] refuses all waiting callers, and later ones
//!   that would have to wait.
//!
//! # Cached denials and prefetched quota
//!
//! This process answers some calls without a round trip to the store:
//!
//! - **Cached denials.** On by default; see [`Rule::with_denial_cache`]. A denial is cached if
//!   nothing remained, until shortly before its `retry_after`, counted from when the store was
//!   asked. It is what the store would reply, unless another process refunds to the counter or
//!   resets it. Then calls that would fit may be refused until the cached `retry_after` is over. A
//!   ban is cached for a second at most, so that [`Limiter::unban`] takes effect in every process.
//! - **Prefetched quota** of a [`Algorithm::FixedWindow`]. Off by default; see
//!   [`Rule::with_prefetch`]. The process charges several permits at once and spends them until
//!   shortly before their window ends. So each permit is charged before it is granted.
//!
//! [`Limiter::peek`] asks the store each time.
//!
//! Prefetched permits are not available to other processes:
//!
//! | with `prefetch = n` | permits of a counter in one process, at most |
//! |---|---|
//! | usually | n |
//! | if n permits last for less than 10 ms | twice as many and so on, up to 96n |
//! | near the limit | half of what remained |
//! | after [`Limiter::close`] | none |
//! | when the process is killed | its permits stay charged until the window ends |
//!
//! # Background work
//!
//! A decision runs on its caller's tokio runtime. Work that no caller awaits runs on one thread of
//! the process, named `ratelimit`: renewing and settling holds, prefetching quota, refunds and
//! clean-up. So no call depends on the runtime of another caller, which may stall or end at any
//! moment. The thread starts when it is first needed, and has connections of its own to each
//! server.
//!
//! A caller that is not async waits on its own thread, with the connections and timers of the
//! background thread: see [`Limiter::acquire_blocking`]. Limiters in memory start the background
//! thread only for such a caller, and only if it has to sleep.
//!
//! # Store failures
//!
//! A decision on Redis has a deadline, 100 ms unless [`Builder::deadline`] sets another. If the
//! store can't decide, or not in time, [`OnStoreError`] determines what happens: this process
//! counts alone (the default), the call is let through, it is refused as [`Cause::Unavailable`], or
//! it waits. No charge is sent a second time, unless the server replied that it has not run it, or
//! the call waits for the store. A settlement without an answer is sent again, and charges once.
//!
//! | policy | a call that the store cannot decide | calls admitted beyond the promise |
//! |---|---|---|
//! | `Local` | is decided by this process, within its share | a share for each process |
//! | `Allow` | is admitted | any number |
//! | `Deny` | is refused | none |
//! | `Wait` | waits until the store decides, and is refused after `max` | none; a lost reply may charge a call twice |
//!
//! Each server has a circuit breaker. It opens when three calls in a row got no reply within the
//! deadline; one round trip may carry all three. It also opens when the connection is lost and
//! cannot be opened again at once. While it is open, calls follow the policy without waiting. A
//! background task probes the server with a script that does nothing. A reply within the deadline
//! closes the breaker, also if the reply is an error.
//!
//! Connections without a reply are kept and probed, so a server that stalled for a moment is used
//! again as soon as it goes on. Another connection is opened after 2 to 4 seconds without a reply,
//! or after one to two deadlines if that is longer. A connection that has ended is replaced at
//! once.
//!
//! Pauses between attempts to connect grow to a quarter of a second. They grow to a whole second
//! while connections open but no call gets a reply. An attempt may take 2 seconds, or the deadline
//! if that is longer. After each attempt that ran out of time, the next may take twice as long, up
//! to 8 seconds. So a server is used again within about a second of its return, or within up to
//! four where packets were dropped for long. With TLS, the handshakes of all its clients come
//! first.
//!
//! A caller that leaves before the deadline, for example because of a timeout of its own, does not
//! count as a missed reply. But the server is then probed. It is also probed when it has sent
//! nothing for 5 seconds, so an outage is noticed without calls.
//!
//! [`Limiter::health`] reports whether the store decides. The log has one event at the first call
//! that fails, and one at the first call that is admitted a second or more after the last failure.
//!
//! In these cases the policy of [`OnStoreError`] applies, without delay except for the first:
//!
//! - **The server is gone, halted, unreachable or too slow**: at the deadline until the breaker
//!   opens, then at once. Bring the server back. [`Cause::Unavailable`] in the error names the
//!   latest reason, and for how long.
//! - **`LOADING`**: the server reads its data at its start. Wait.
//! - **`BUSY`**: a script of another client does not end. Use `SCRIPT KILL`.
//! - **`OOM`**: the server's memory is full. Raise `maxmemory`: it has to hold the counters.
//! - **`MISCONF`, `NOREPLICAS`**: the server accepts no writes now. See its log.
//! - **`READONLY`**: the server is a replica. Put the primary's address into the URL.
//! - **`WRONGPASS`, `NOAUTH` after a good start**: the password was changed. The log has one
//!   `ERROR`. Put the password back, or restart with the new one.
//! - **The certificate is not trusted**: also a [`SetupError`] at the start. Set the trusted
//!   authority with `Builder::ca_certificate` (feature `rustls`).
//!
//! In these cases a call gets [`Cause::Misconfigured`], whatever the policy. The log has an
//! `ERROR`, at most once a second:
//!
//! - **`WRONGTYPE`**: a value of another kind is stored under a counter's name. Choose another
//!   [`Builder::namespace`].
//! - **`NOPERM`, or another error that a user can't run a command**: grant the rights below.
//! - **`WRONGPASS`, `NOAUTH` at the start**: also a [`SetupError`] from [`Builder::build`]. Check
//!   the user and the password in the URL; for sentinels, [`Builder::sentinel_credentials`].
//! - **`MOVED`, `ASK`, `CROSSSLOT`**: the server is a node of a cluster. Write `redis+cluster://`.
//! - **Most of the sentinels, or of the cluster's nodes, refuse to answer**: also a [`SetupError`]
//!   at the start. The message names each with its reason. If others are just away, the policy
//!   applies.
//! - **Cluster support is disabled**: also a [`SetupError`] at the start. The server is in no
//!   cluster: write `redis://`.
//!
//! Two further mistakes:
//!
//! - **The URL is invalid**: a [`SetupError`] that names the place.
//! - **The server's `maxmemory-policy` evicts keys**: calls get no error, but an evicted counter
//!   starts fresh. The log has a warning when a connection opens. Set the policy to `noeviction`.
//!
//! The least rights that a Redis user needs, for counters in a namespace `shop`:
//! `ACL SETUSER limiter on >password resetkeys ~shop::* -@all +hello +evalsha +eval +get +mget +set
//! +setrange +incrby +decrby +del +pttl +pexpire +time +lrange +lindex +llen +lset +rpush +ltrim
//! +lpop +lpush +zadd +zcard +zcount +zrange +zrem +zscore +pexpireat`.
//! The last eight are needed for holds only. Add `+select` if the URL names a database, and
//! `+cluster|slots +asking` for a cluster. Add `+role` behind sentinels, and `+info` if the log is
//! to warn of a server that evicts. The scripts run on Redis 6.2 or newer.
//!
//! Sentinels with users need one that has `+sentinel|get-master-addr-by-name +sentinel|masters`.
//!
//! # Sentinel and Cluster
//!
//! Behind sentinels, all of them are asked for the primary whenever a connection is opened, and
//! twice a second while it is open. The server that most of them name is used, if it reports itself
//! as the primary. A sentinel that keeps naming another server is checked less and less often, down
//! to every 8 seconds. Distant sentinels are waited for as long as a majority is possible, within
//! the time limit of the attempt to connect; see [`Builder::deadline`].
//!
//! In a cluster, each counter lives on the node that has the slot of its key. The slot table is
//! read when the limiter is built. A background task reads it again whenever a node reports that a
//! slot has moved, or cannot be reached. A command that the server has refused to run (`MOVED`,
//! `ASK`, `TRYAGAIN`) is sent to the right node within the caller's deadline.
//!
//! Rules with the same key share a slot, and one script decides on all of them. For others, see
//! [`Limiter::acquire_all`].
//!
//! A cluster is found through any node in the URL, and later also through the nodes and replicas
//! that it has named. Put several nodes into the URL: replicas that joined after the last read are
//! not known. A node that announces no host, or no port for this kind of connection (with TLS or
//! without), is not found.
//!
//! Nodes, and primaries behind sentinels, are reached at the addresses that servers announce. Over
//! TLS their certificates must be valid for these addresses. There are two ways to achieve that:
//!
//! - Put the IP addresses into the subject alternative names of the certificates.
//! - Make servers announce host names. In a cluster, set `cluster-announce-hostname` and
//!   `cluster-preferred-endpoint-type hostname`. For sentinels, set `sentinel resolve-hostnames
//!   yes` and `sentinel announce-hostnames yes`.
//!
//! The system resolves host names whenever a connection is opened, on tokio's blocking threads. A
//! lookup that hangs keeps its thread after the attempt has been given up, and further ones follow.
//! Use IP addresses, or a resolver that always answers, even if with an error.
//!
//! Each node is available or not by itself. Until a failover is over, [`OnStoreError`] applies to
//! calls whose counters were on the lost node. All other calls go on.
//!
//! # Limits of the promises
//!
//! More calls than promised may be admitted in these cases:
//!
//! - **[`OnStoreError::Allow`]**: any number, until the store is back.
//! - **[`OnStoreError::Local`]**: in each process, what the algorithm promises for a share. A share
//!   is the count, burst and queue divided by [`Builder::instances`] and rounded down, with a burst
//!   of at least 1. The share's counters are kept from one outage to the next. When the store is
//!   back, it grants the whole count, beside places of the share that are still in use.
//! - **Redis restarts, evicts keys, or fails over to a server that missed writes**: the lost
//!   counters start fresh. A restart loses nothing with `appendonly yes` and `appendfsync always`,
//!   and up to the last second of charges with `appendfsync everysec`.
//! - **A network partition leaves a process with a primary that its sentinels have replaced**: the
//!   count on each side, until the process can reach a majority of the sentinels.
//! - **The server's clock is set forward, or another server's clock is ahead**: what the skipped
//!   time would have admitted.
//! - **A rule has [`Rule::with_prefetch`], after such a step or after the process' machine was
//!   asleep**: in each process, its prefetched permits of a window that is over by the server's
//!   clock.
//! - **The server's clock is set back**: for an aligned `FixedWindow`, its count, each time. Other
//!   algorithms admit no more. Charges may count for up to a period longer. For a `FixedWindow` it
//!   is two periods, if the step is nearly a multiple of 450.001 s. Refunds of a `TokenBucket`'s
//!   charges from before the step may also return what has refilled in the time that the clock
//!   shows twice.
//! - **A call uses more than it held**, because a query runs on after its time, or more tokens came
//!   than were reserved: the excess. It is charged, so later calls make up for it.
//! - **A settlement by refund charges the excess while the counter is at the largest number that it can
//!   store**: the part that does not fit.
//! - **A holder can't renew its hold for a whole lease**, because it was stopped, its machine was
//!   asleep or the server was away: it runs on, beside the caller that gets its place. See
//!   [`Permit::is_held`]. Its use is charged when it ends.
//! - **[`Limiter::reset`] and [`Limiter::unban`]**: the counter starts fresh. After a reset its
//!   holds are gone, too. Other processes still spend their prefetched permits of it. A permit from
//!   before that is refunded afterwards credits a `SlidingWindow` or a bucket with up to its cost.
//! - **A rule's count or burst is changed**: what the old one granted. Stored charges stay valid
//!   until the old count would have let them go. A permit from before is worth what the old count
//!   would have left of it.
//! - **A permit of a `SlidingLog` on Redis is refunded after its window is over**: its cost, but only
//!   if a later charge was made at one exact distance: to the tick, a multiple of 812 s for periods
//!   of up to 200 s, and of nine days or more for others.
//! - **A refund of a `FixedWindow` is on its way to Redis for more than half a period and for
//!   225 s, or the process' machine was asleep for as long**: its cost, but only if a later window
//!   opened, to the millisecond, a multiple of 450.001 s after the charged one.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `macros` (default) | the attributes, and `derive(RateKey)` |
//! | `redis` (default) | the Redis store |
//! | `rustls` | Redis over TLS: `rediss://`, `rediss+cluster://` and `rediss+sentinel://` |
//! | `metrics` | metrics of decisions, through the crate [`metrics`](https://docs.rs/metrics): see below |
//! | `config` | rules in a file that may change while the program runs: see [`config`] |
//! | `tower` | [`web::RateLimitLayer`], limits in front of any service of HTTP or gRPC requests |
//! | `actix-web` | the same layer as middleware of `actix-web`, and `RequestPerMinute` as its response |
//! | `axum` | `RequestPerMinute` as a response; see [`web`] |
//! | `client` | [`client::Outgoing`], outgoing calls within the limits that upstreams announce |
//! | `reqwest-middleware` | the same as a middleware for `reqwest` |
//! | `stream` | [`Limiter::limit_stream`]: each item of a stream waits until a rule admits it |
//! | `uuid` | UUIDs as keys |
//! | `conformance` | the tests that a store of your own has to pass |
//!
//! # Metrics and log
//!
//! Metrics, with the feature `metrics`:
//!
//! | metric | labels | value |
//! |---|---|---|
//! | `ratelimit_decisions_total` | `rule`, `outcome` | counter: decisions, see below |
//! | `ratelimit_near_limit_total` | `rule` | counter: admitted calls that leave less than a tenth of the limit |
//! | `ratelimit_cached_denials_total` | `rule` | counter: refusals by a cached denial |
//! | `ratelimit_store_duration_seconds` | | histogram: time until a reply, or until the wait for it ended |
//! | `ratelimit_store_round_trips_total` | | counter: round trips to Redis servers with decisions |
//! | `ratelimit_store_decisions_total` | | counter: decisions in these round trips |
//! | `ratelimit_fallback_decisions_total` | `policy` | counter: decisions by `local`, `allow`, `deny` or `wait` |
//! | `ratelimit_waiting` | `rule` | gauge: callers that wait now |
//! | `ratelimit_wait_duration_seconds` | `rule` | histogram: waiting times, of admitted and refused callers |
//! | `ratelimit_degraded` | | gauge: limiters of the process whose store does not decide |
//!
//! - `rule` is the prefix. Keys are not labels: there may be millions.
//! - `ratelimit_decisions_total` counts each rule of an admitted call as `admitted`. Of a refused
//!   call it counts the rule that refuses, as `refused`, `banned`, `never_fits`, `missing_key`,
//!   `unavailable` or `misconfigured`. A rule in shadow mode that would have refused is counted as
//!   `shadow_refused`.
//! - `ratelimit_near_limit_total` divided by the admitted decisions says how close the limit is.
//! - `ratelimit_cached_denials_total` divided by the refused decisions is the share that cost no
//!   round trip.
//! - `ratelimit_store_duration_seconds` leaves out memory, which replies at once.
//! - `ratelimit_fallback_decisions_total` counts decisions by [`OnStoreError`].
//! - Install a recorder before the first limiter is built. Then it also gets the descriptions.
//!
//! The log, through the crate [`tracing`](https://docs.rs/tracing):
//!
//! | event or span | level |
//! |---|---|
//! | event: an outage begins | `WARN` |
//! | event: an outage is over | `INFO` |
//! | event: this process admits whole limits, as [`Builder::instances`] is not set; once | `WARN` |
//! | event: a request has no address of its peer, for each [`web::KeyBy`] once | `WARN` |
//! | event: the count of a request cannot be looked up, at most once a second | `ERROR` |
//! | event: a rule or a server is misconfigured, at most once a second | `ERROR` |
//! | event: settings in the rules file do not fit the code, once | `ERROR` |
//! | event: no call has used some rules of the file within a minute, once | `WARN` |
//! | event: a rule in shadow mode would have refused, for each rule at most once a second | `INFO` |
//! | event: a call is refused | `DEBUG` |
//! | span `ask_rate_limit_store`: a request to a server that is not part of a batch | `DEBUG` |
//! | span `wait_for_rate_limit`: a wait, with an event at its begin and one at its end | `DEBUG` |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod backend;
mod background;
mod builder;
#[cfg(feature = "client")]
pub mod client;
mod clock;
#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counter;
mod deadline;
mod decision;
mod duration;
mod engine;
mod error;
mod failures;
mod guard;
mod health;
#[cfg(all(test, not(model_check)))]
mod hostile;
mod key;
mod limiter;
mod memory;
mod observe;
mod policy;
mod process;
#[cfg(feature = "redis")]
mod redis;
mod reservation;
mod rule;
pub mod store;
#[cfg(feature = "stream")]
mod stream;
mod sync;
pub mod testing;
#[cfg(any(feature = "axum", feature = "tower"))]
pub mod web;

#[doc(hidden)]
#[path = "macro_support.rs"]
#[allow(missing_docs)]
pub mod __private;

#[cfg(feature = "macros")]
pub use ratelimit_macros::{RateKey, limit_concurrent_requests, limit_request_per_time};

#[cfg(feature = "stream")]
pub use self::stream::LimitedStream;
pub use self::{
    builder::Builder,
    clock::{Clock, ManualClock},
    counter::CounterName,
    decision::Decision,
    engine::permit::Permit,
    error::{Cause, FromRefusal, RequestPerMinute, SetupError},
    health::Health,
    key::{DisplayKey, Key, KeyWriter, RateKey},
    limiter::Limiter,
    policy::OnStoreError,
    reservation::Reservation,
    rule::{Algorithm, Refill, Rule},
    store::Store,
};
