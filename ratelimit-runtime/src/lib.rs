//! One attribute on an async function, and no caller gets through more often than its algorithm
//! promises: in one process, or in many that share one Redis or a cluster.
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
//! The attribute's arguments are described at [`limit_request_per_time`]. The function's error type needs a
//! `From<RequestPerMinute>`. Without further ado limits are counted in this process's memory; to share them, install a limiter
//! once, at the start of the program:
//!
//! ```no_run
//! # async fn start() -> Result<(), ratelimit_runtime::SetupError> {
//! use ratelimit_runtime::Limiter;
//!
//! Limiter::connect("redis://127.0.0.1:6379").await?.install()?;
//! # Ok(()) }
//! ```
//!
//! Without the attribute, a [`Rule`] and a [`Limiter`] do the same: see [`Limiter::acquire`].
//!
//! # What each algorithm promises
//!
//! For a count of C in a period of P:
//!
//! | algorithm | admitted in any window of P, at most | state a key |
//! |---|---|---|
//! | [`Algorithm::FixedWindow`] | 2C; C in each of its windows | one integer |
//! | [`Algorithm::SlidingLog`] | C, exactly | about 10 bytes an admitted call |
//! | [`Algorithm::SlidingWindow`] of n buckets | less than 2C; C in any window of P - P/n | n + 3 integers |
//! | [`Algorithm::TokenBucket`] that holds B | B + C | three integers |
//! | [`Algorithm::LeakyBucket`] | C, by the slots the calls are given; C - 1 + the largest cost, if costs differ from 1 | three integers |
//! | [`Algorithm::Concurrent`] | any number, but C at once | about 100 bytes a call that holds places |
//!
//! - A refused call consumes nothing. What is charged is what was granted.
//! - Several rules on one call are one decision: all are charged, or none is.
//! - Windows are half open, `[t, t + P)`, on the store's clock, which decides alone: with Redis, that is the
//!   server's.
//! - Whatever a caller puts into a key, distinct keys never share a counter.
//! - Where something fails half way (a dropped future, a crash), the error is on the side of admitting fewer.
//!
//! # What a decision says
//!
//! | | meaning |
//! |---|---|
//! | `limit` | the largest cost that is ever granted |
//! | `remaining` | the largest cost that would be granted now; on a [`Permit`], after its own charge |
//! | `reset_after` | how long until `remaining` is `limit` again if nobody calls |
//! | `retry_after` | the shortest wait after which the cost is granted if nobody else calls |
//!
//! Both stores say the same, for each algorithm:
//!
//! | | `limit` | `remaining` | `reset_after`: until | `retry_after`: until |
//! |---|---|---|---|---|
//! | `FixedWindow` | C | C - what this window took | the window ends | the window ends |
//! | `SlidingLog` | C | C - what the last period took | the newest charge is a period old | enough of the oldest charges are |
//! | `SlidingWindow` | C | C - the weighted count, rounded up | the newest charged sub-window is out of the last period | enough of the oldest ones have faded |
//! | `TokenBucket` | B | whole tokens in the bucket | the bucket is full | it holds the cost |
//! | `LeakyBucket` of queue Q | Q + 1 | slots that can still be given | the last slot given has passed | there is room, and a slot as soon as the caller wants it |
//! | `Concurrent` | C | free places | the last lease ends | never said: a place is free when its holder leaves it, or its lease ends |
//!
//! What is held (see below) counts as taken, and for `reset_after` and `retry_after` as if it were never settled.
//!
//! Durations count from the store's decision and are rounded up to a millisecond, so a caller who waits for
//! `retry_after` is not refused again for having come too early.
//!
//! # What a call holds while it runs
//!
//! What some calls cost is known when they are over. They hold something until then, and are settled:
//!
//! | | while it runs, it holds | when it ends, it is charged |
//! |---|---|---|
//! | `cost = Elapsed(max = "5s")` of a [`Algorithm::SlidingLog`], whose count is in milliseconds | 5 seconds, or what remains if that is less | the time it took, also if it fails, panics or is cancelled |
//! | `cost = Elapsed` | all that remains: calls of one key run one after another | the same |
//! | `cost = Settled(max = 4_000, \|outcome\| ..)` of a `SlidingLog` | 4,000 | what the closure says of what the function returns; all, if it panics or is cancelled |
//! | [`Limiter::reserve`] of a `SlidingLog` | what was reserved | see [`Reservation`] |
//! | `limit_concurrent_requests`, or [`Algorithm::Concurrent`] | a place | nothing: the place is free |
//!
//! - What is held can be used by nobody else, in any process. It is charged when it ends, and counts for a period from then on.
//! - On a server, a background task renews it every third of its lease, and settles it when the permit is dropped. The next
//!   acquire of the key in this process waits until that is done, for half of its deadline at most.
//! - A holder that died is charged in full when its lease ends, and its place is free then. The lease is 30 s for what is reserved, for `Elapsed` the most it may take (from 1 s
//!   to 30 s), and for places what the rule says. A holder that was stopped for longer finds out by [`Permit::is_held`].
//! - A caller who is cancelled while a server is being asked refunds what it may have been granted.
//! - A `SlidingLog` has room for 10,000 holds. A further one is refused as [`Cause::Exceeded`], until one of them is settled, in memory as on a
//!   server; calls that hold nothing go on. A place is not such a hold: their number is the count.
//! - What is reserved or held at most is 1 or more: a call of cost 0 holds nothing, and is charged nothing.
//! - While the store is away, [`OnStoreError::Local`] holds things of this process' share, beside what others hold of the whole at the store: with `Deny` nobody does. What was held at the server before can't be renewed or settled, so it is charged in
//!   full, or its place lost, when its lease ends.
//!
//! # Waiting
//!
//! With `on_limit = Wait` and [`Limiter::acquire_within`], a refused caller waits in the queue of each
//! of its counters. A queue belongs to one counter and one process.
//!
//! - **Order.** Waiting callers are let ask the store in the order of their arrival. As many ask at a
//!   time as there is room for: what the latest answer left, and what refills within a round trip.
//!   Questions that are on the way together are decided in the server's order. A caller whose cost
//!   does not fit yet holds up those behind it. Callers who do not wait are not held up.
//! - **Several rules.** A caller of several rules waits for all of its counters at once. While one of
//!   them has no room for longer than another's period, or others are ahead of it there, it holds up
//!   nobody at the other. From one period before it will have room, its cost is reserved there if that
//!   counter refused a call within two periods: no waiting caller behind it gets that part, so it is
//!   not overtaken without end. A counter reserves the costs of 16 callers at a time, the first ones.
//!   It stands idle for a reserved cost for one period at most; if the caller was not served by then,
//!   others go first for one period.
//! - **Changes.** A refund, a reset, a settled hold or a changed rule in this process lets the next
//!   caller ask at once. A change by another process is noticed after a second, or a tenth of the
//!   period if that is longer; a place or a hold that it refunds, after 50 ms.
//! - **Refusals.** A caller whose turn would come too late for it is refused at once. `retry_after`
//!   is then the time until its turn, if those ahead stay. A caller whose patience ends in the queue is
//!   told the same. [`Limiter::close`] refuses all who wait, and later ones who would.
//!
//! # When the store is not asked
//!
//! In front of a store that has to be asked, this process keeps two things of a counter:
//!
//! | | what is kept | until | off, or on |
//! |---|---|---|---|
//! | that it refuses | what the store said when nothing remained | shortly before `retry_after`, counted from when the store was asked | on; [`Rule::with_denial_cache`] |
//! | permits of a [`Algorithm::FixedWindow`] | a number of them, charged at once | shortly before their window ends | off; [`Rule::with_prefetch`] |
//!
//! What it answers by the first is what the store would say if nobody else refunds or resets: then it refuses what could be admitted again, until the wait it was told is over.
//! What it grants by the second has been charged before. [`Limiter::peek`] asks the store each time.
//!
//! Permits that a process holds are not there for others:
//!
//! | with `prefetch = n`, a process holds of a counter | at most |
//! |---|---|
//! | as a rule | n |
//! | where n do not last for 10 ms | twice as many and so on, up to 96n |
//! | near the limit | half of what remained |
//! | after [`Limiter::close`] | none |
//! | when it is killed | what it held stays charged until the window ends |
//!
//! # Background work
//!
//! A decision runs on its caller's tokio runtime. Work that no caller awaits runs on one thread of
//! the process, named `ratelimit`: renewing and settling what calls hold, taking permits ahead,
//! refunds and clean-up. So no call depends on the runtime of another caller, which may stand still
//! or end at any moment. The thread starts when it is first needed, and has one more connection to
//! each server. Limiters in memory never start it.
//!
//! # When the store fails
//!
//! A decision of Redis has a deadline, 100 ms unless [`Builder::deadline`] says otherwise. When it can't be made in time, or at all,
//! [`OnStoreError`] says what happens: this process counts alone (the default), the call is let through, or it is refused
//! as [`Cause::Unavailable`]. No command is sent a second time, unless the server said that it did not run.
//!
//! Each server has a breaker. It opens when three calls in a row had no answer within the deadline,
//! or when the connection is lost and cannot be opened again at once. While it is open, calls go by
//! the policy without waiting, and the server is probed in the background with a script that does
//! nothing. An answer within the deadline closes the breaker. An error that the server replies with
//! is an answer.
//!
//! Connections that had no answer are kept and probed, so a server that halted for a moment is back
//! as soon as it goes on. After 2 to 4 seconds without an answer another connection is opened, or
//! after one to two deadlines if that is longer. A connection that has ended is replaced at once.
//!
//! Pauses between attempts grow to a quarter of a second, and to a whole one while connections open
//! and no call is answered. An attempt has 2 seconds, or the deadline if that is longer, and after
//! each one that ran out of time twice as much, up to 8 seconds. So a server is back within about a
//! second, or up to four where packets were dropped for long. With TLS, handshakes of all its
//! clients come first.
//!
//! A caller that goes before the deadline, because of a timeout of its own say, does not count. The
//! server is probed then. It is also probed when it has answered nothing for 5 seconds, so an
//! outage is known without calls.
//!
//! [`Limiter::health`] says whether decisions are made; the log has one event when an outage begins and one when it is over.
//!
//! | what is wrong | a call gets | what to do |
//! |---|---|---|
//! | the server is gone, halted, unreachable or too slow | the policy, at the deadline until the breaker opens, then at once | bring it back; what calls say in [`Cause::Unavailable`] is what was found last, and for how long |
//! | `LOADING`: it reads its data at its start | the policy, at once | wait |
//! | `BUSY`: a script of somebody's runs on and on | the policy, at once | `SCRIPT KILL` |
//! | `OOM`: its memory is full | the policy, at once | raise `maxmemory`: it has to hold the counters |
//! | `MISCONF`, `NOREPLICAS`: it does not take writes now | the policy, at once | see its log |
//! | `READONLY`: it is a replica | the policy, at once | put the primary's address into the URL |
//! | its maxmemory-policy evicts | nothing: a counter that was dropped starts fresh. The log warns when it connects | set it to `noeviction` |
//! | `WRONGTYPE`: something else is stored under a counter's name | [`Cause::Misconfigured`] | choose another [`Builder::namespace`] |
//! | `NOPERM`, or that a user can't run a command | [`Cause::Misconfigured`] | give the user the rights below |
//! | `WRONGPASS`, `NOAUTH` after a good start: the password was changed | the policy, and an `ERROR` in the log, once | put the password back, or restart with the new one |
//! | `WRONGPASS`, `NOAUTH` at the start | [`Cause::Misconfigured`], and a [`SetupError`] from [`Builder::build`] | check user and password in the URL; for sentinels, [`Builder::sentinel_credentials`] |
//! | `MOVED`, `ASK`, `CROSSSLOT`: it is a node of a cluster | [`Cause::Misconfigured`] | write `redis+cluster://` |
//! | most of the sentinels, or of the cluster's nodes, refuse to say what they are asked | [`Cause::Misconfigured`], and a [`SetupError`] at the start; the policy if others are just away | the message names each with its reason |
//! | that its cluster support is disabled | [`Cause::Misconfigured`], and a [`SetupError`] at the start | it is in no cluster: write `redis://` |
//! | its certificate is not trusted | the policy, and a [`SetupError`] at the start | `Builder::ca_certificate` (feature `rustls`) names whom to trust |
//! | the URL is wrong | a [`SetupError`] that says where | |
//!
//! What is [`Cause::Misconfigured`] is returned whatever the policy, and logged, once a second at most.
//!
//! The least a Redis user needs, for counters in a namespace `shop`:
//! `ACL SETUSER limiter on >password resetkeys ~shop::* -@all +hello +evalsha +eval +get +mget +set +setrange +incrby +decrby +del +pttl
//! +pexpire +time +lrange +lindex +llen +lset +rpush +ltrim +lpop +lpush +zadd +zcard +zcount +zrange +zrem +zscore +pexpireat`. (Without the
//! last eight, but for what calls hold.) Add `+select` if the URL names a database, `+cluster|slots +asking` for
//! a cluster, `+role` behind sentinels, and `+info` if the log shall warn of a server that evicts. Redis 6.2 is the oldest server the scripts run on.
//!
//! Of a sentinel that has users, one needs `+sentinel|get-master-addr-by-name +sentinel|masters`.
//!
//! # Sentinel and Cluster
//!
//! Behind sentinels, all of them are asked for the primary whenever a connection is opened, and twice a second while it is open. The server that
//! most of them name is taken, if it says itself that it is the primary. One that goes on naming another is looked into less and less often, up to
//! every 8 seconds. Sentinels that are far away are waited for as long as a majority may come,
//! within the time of the attempt to connect; see [`Builder::deadline`].
//!
//! In a cluster, each counter lives on the node that has the slot of its key. Which node that is is read when the limiter is built, and
//! again in the background whenever a node says that something has moved, or cannot be reached. A command that the server says it has not run (`MOVED`, `ASK`,
//! `TRYAGAIN`) is sent to the right node within the caller's deadline. Rules with the same key share a slot, and one script decides on all of them; for
//! others see [`Limiter::acquire_all`].
//!
//! A cluster is found by any node of the URL, later also by the nodes and replicas it has told of. Name several: replicas that have joined
//! since it was last read are not known. A node that announces no host, or no port for this way (with TLS or without), is not found.
//!
//! Nodes, and primaries behind sentinels, are reached at the addresses that servers announce. Over TLS their certificates must be valid for
//! these, so have the IP addresses among their subject alternative names, or servers must announce host names: `cluster-announce-hostname` and
//! `cluster-preferred-endpoint-type hostname` in a cluster, `sentinel resolve-hostnames yes` and `sentinel announce-hostnames yes` for sentinels.
//!
//! Host names are looked up by the system whenever a connection is opened, on tokio's blocking threads. A look-up that hangs goes on there after
//! the attempt has been given up, and others come after it: write IP addresses, or have a resolver that answers, be it with an error.
//!
//! Each node is available or not by itself. Until a failover is over, calls whose counters were on the lost node are treated as
//! [`OnStoreError`] says; all others go on.
//!
//! # Where a promise ends
//!
//! | what happens | what may be admitted beyond the promise |
//! |---|---|
//! | [`OnStoreError::Allow`] | everything, until the store is back |
//! | [`OnStoreError::Local`] | each process, what the algorithm promises for a share: count, burst and queue divided by [`Builder::instances`] and rounded down, a burst of at least 1. The share's counters go on from one outage to the next; when the store is back, it grants the whole count, beside places of the share that are still in use |
//! | Redis restarts without persistence, evicts keys, or fails over to a server that missed writes | the counters that were lost start fresh |
//! | a network partition leaves a process with a primary that its sentinels have replaced | on each side of the partition, the count, until the process can reach a majority of the sentinels |
//! | the server's clock is set forward, or another server's is ahead | what the skipped time would have admitted |
//! | the same, or this process' machine was asleep, and a rule has a [`Rule::with_prefetch`] | in a process, what it held of a window that is over by the server's clock |
//! | it is set back | nothing, but to an aligned `FixedWindow` its count, each time; what counted may count for up to a period longer, or two periods for a `FixedWindow` and a step of nearly a multiple of 450.001 s |
//! | a call uses more than it held: a query runs on after its time, more tokens came than were reserved | so much more. It is charged, so that later calls make up for it |
//! | a holder can't renew what it holds: it was stopped, its machine asleep, or the server away, for a whole lease | it runs on, beside whoever gets its place; see [`Permit::is_held`]. What it used is charged when it ends |
//! | [`Limiter::reset`] | the counter starts fresh, and what was held of it is not any more; other processes go on spending what they hold by a [`Rule::with_prefetch`]; a permit from before, refunded after, credits a `SlidingWindow` or a bucket with up to its cost |
//! | a rule's count or burst is changed | what the old one granted; what was written stays valid until the old count would have let it go, and a permit from before is worth what the old count would have left of it |
//! | a permit is refunded after its window is over, to a `FixedWindow` or a `SlidingLog` on Redis | its cost, if the later window was opened, or the later charge made, a multiple of 450.001 s (of 812 s in a log of up to 200 s, of nine days or more in another) after it, to the tick |
//!
//! # Features
//!
//! | feature | |
//! |---|---|
//! | `macros` (default) | the attributes |
//! | `redis` (default) | the Redis store |
//! | `rustls` | `rediss://`, `rediss+cluster://` and `rediss+sentinel://`, Redis over TLS |
//! | `metrics` | what decisions come to, through the crate [`metrics`](https://docs.rs/metrics): see below |
//! | `config` | rules in a file that may change while the program runs: see [`config`] |
//! | `tower` | [`web::RateLimitLayer`], limits in front of any service of HTTP or gRPC requests |
//! | `axum` | `RequestPerMinute` as a response; see [`web`] |
//! | `uuid` | UUIDs as keys |
//! | `conformance` | the tests that a store of your own has to pass |
//!
//! # What can be seen
//!
//! | metric (feature `metrics`) | labels | |
//! |---|---|---|
//! | `ratelimit_decisions_total` | `rule`, `outcome` | each rule of a call that is let through, as `admitted`; the rule that refuses it, as `refused`, `never_fits`, `missing_key`, `unavailable` or `misconfigured`; a rule in shadow mode that would have, as `shadow_refused` |
//! | `ratelimit_near_limit_total` | `rule` | admitted calls that leave less than a tenth of the limit; over those admitted, a share that says how close the limit is |
//! | `ratelimit_cached_denials_total` | `rule` | refusals that were known without asking the store; over those refused, the share that costs nothing |
//! | `ratelimit_store_duration_seconds` | | a histogram: how long the store took for an answer, or the caller waited for none. Memory answers at once and is not in it |
//! | `ratelimit_store_round_trips_total`, `ratelimit_store_decisions_total` | | calls to Redis servers, and the decisions they carried: some travel together |
//! | `ratelimit_fallback_decisions_total` | `policy` | decisions by [`OnStoreError`], as the store could not make them: `local`, `allow` or `deny` |
//! | `ratelimit_waiting` | `rule` | a gauge: callers that wait now |
//! | `ratelimit_wait_duration_seconds` | `rule` | a histogram: how long callers have waited, whether or not they were admitted |
//! | `ratelimit_degraded` | | a gauge: how many limiters of the process have a store that does not decide |
//!
//! `rule` is the prefix. Keys are no labels: there may be millions. Install a recorder before the first limiter is built, and it has the descriptions, too.
//!
//! The log, through the crate [`tracing`](https://docs.rs/tracing): an outage and its end (`WARN`, `INFO`), what is misconfigured (`ERROR`, once a second at
//! most), what a rule in shadow mode would have refused (`INFO`, for each rule once a second at most), each refusal (`DEBUG`), a span
//! `ask_rate_limit_store` (`DEBUG`) around a question to a server that does not travel with others, and a span `wait_for_rate_limit` (`DEBUG`)
//! around each wait, with an event when it begins and one when it ends.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod backend;
mod background;
mod builder;
mod clock;
#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counter;
mod deadline;
mod decision;
mod engine;
mod error;
mod failures;
mod guard;
mod health;
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
mod sync;
pub mod testing;
#[cfg(any(feature = "axum", feature = "tower"))]
pub mod web;

#[doc(hidden)]
#[path = "macro_support.rs"]
#[allow(missing_docs)]
pub mod __private;

#[cfg(feature = "macros")]
pub use ratelimit_macros::{limit_concurrent_requests, limit_request_per_time};

pub use self::{
    builder::Builder,
    clock::{Clock, ManualClock},
    counter::CounterName,
    decision::Decision,
    engine::permit::Permit,
    error::{Cause, FromRefusal, RequestPerMinute, SetupError},
    health::Health,
    key::{Key, KeyWriter, RateKey},
    limiter::Limiter,
    policy::OnStoreError,
    reservation::Reservation,
    rule::{Algorithm, Refill, Rule},
    store::Store,
};
