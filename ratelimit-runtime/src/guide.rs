//! The guide: pages for users of the crate. Their Rust examples are tested.
//!
//! | page | about |
//! |---|---|
//! | [`choosing`] | the algorithms: which one to take, and what each promises |
//! | [`recipes`] | per user, per tenant, behind a proxy, logins, outgoing calls, tokens, batch jobs |
//! | [`redis`] | one server, sentinels, cluster, TLS, and what to set on the server |
//! | [`failures`] | what happens to calls while Redis is away, and which policy to choose |
//! | [`operations`] | each log event and each metric, the dashboard, alerts |
//! | [`sizing`] | memory, time, and how many processes a server can serve |
//! | [`testing`] | tests without a server, and without waiting |
//! | [`own_store`] | counters elsewhere than in memory or in Redis |
//! | [`promises`] | `limit`, `remaining`, `reset_after`, `retry_after`; when more calls are admitted than promised |
//! | [`how_it_works`] | costs that are known at the end, waiting, and calls that need no round trip |
//!
//! Modules with pages of their own: [`config`], the rules file; [`web`], a
//! layer for servers; [`client`], a layer for clients.
//!
//! Coming from another limiter: [`from_governor`], [`from_tower_governor`], [`from_bucket4j`],
//! [`from_lua`].
//!
//! # Glossary
//!
//! A limit:
//!
//! | word | meaning |
//! |---|---|
//! | rule | a rate limit: a prefix, a count, a period and an algorithm |
//! | count | the quota: how many calls, or how much cost, a period has |
//! | prefix | the name of a rule |
//! | `limit` | the field `limit`: [the largest cost that is ever granted](promises#numbers) |
//! | `retry_after` | the wait until the cost is granted, without other calls; [it may be too long](promises#numbers) |
//! | period | the time for which a call counts: `ttl` and `unit`, or `period` |
//! | key | who or what is counted: a user, an address |
//! | counter | the state of one rule for one key |
//! | window | one period of a `FixedWindow`, or the last period of a `SlidingWindow` |
//! | bucket | the tokens of a `TokenBucket`; in `SlidingWindow(buckets = n)`, an n-th of the period |
//! | burst | the size of a token bucket |
//! | slot | the time at which a call of a `LeakyBucket` may begin |
//! | queue | the calls of a `LeakyBucket` that have a slot to come |
//! | shadow mode | a rule in it counts calls, but refuses none |
//! | store | where the counters are: memory, Redis, or a store of your own |
//! | limiter | a [`Limiter`]: a store with settings; functions use the one that is installed |
//! | install | to make a limiter that of the process: [`Limiter::install`] |
//!
//! A call:
//!
//! | word | meaning |
//! |---|---|
//! | cost | the amount of the count that a call takes; 1 by default |
//! | charge | the amount that a call has added to its counter |
//! | permit | the right to run, already charged with the cost of the call |
//! | refusal | the error of a call that may not run: [`RequestPerMinute`], whatever the period is |
//! | wait queue | the callers of one counter that wait in one process |
//! | refund | to take a charge back |
//! | settle | to charge what a call has used, at its end, in place of the most that it may use |
//! | hold | what a running call has taken until it ends |
//! | settlement by refund | a settlement that refunds the unused part, for algorithms without holds |
//! | place | one of the `count` calls of `limit_concurrent_requests` that may run at once; a call holds it |
//! | lease | the time after which a hold ends if its process no longer renews it |
//! | cached denial | the store's refusal, which the process repeats without asking again |
//! | prefetched permits | units of the count that a process has charged ahead, to spend without asking the store |
//! | ban | a time in which each call of a key is refused |
//! | round trip | a request to the server, and its reply |
//!
//! An outage:
//!
//! | word | meaning |
//! |---|---|
//! | away | the store cannot decide: it is unreachable, too slow, or full |
//! | deadline | the longest time that a call waits for the store: [`Builder::deadline`] |
//! | circuit breaker | stops asking [a server that does not answer](failures#the-circuit-breaker) |
//! | failure policy | what happens to calls while the store is away: [`OnStoreError`] |
//! | share | what one process may admit while the store is away, by the policy `Local` |
//!
//! HTTP:
//!
//! | word | meaning |
//! |---|---|
//! | layer | limits around a service or a client: [`web`], [`client`] |
//! | outer layer | one that sees the request first; in `axum`, a `.layer(..)` that is added later |
//! | upstream | a server that you call |

// For the links in the pages.
#[cfg(doc)]
use crate::*;

#[doc = include_str!("guide/choosing.md")]
// Within a picture of the page's width: its own is fixed.
#[doc = "<svg viewBox=\"0 0 1000 760\" width=\"100%\">"]
#[doc = include_str!("guide/algorithms.svg")]
#[doc = "</svg>"]
pub mod choosing {}

#[doc = include_str!("guide/recipes.md")]
pub mod recipes {}

#[doc = include_str!("guide/redis.md")]
pub mod redis {}

#[doc = include_str!("guide/failures.md")]
pub mod failures {}

#[doc = include_str!("guide/operations.md")]
pub mod operations {}

#[doc = include_str!("guide/sizing.md")]
#[doc = "<svg viewBox=\"0 0 1000 460\" width=\"100%\">"]
#[doc = include_str!("guide/scaling.svg")]
#[doc = "</svg>"]
pub mod sizing {}

#[doc = include_str!("guide/testing.md")]
pub mod testing {}

#[doc = include_str!("guide/own_store.md")]
pub mod own_store {}

#[doc = include_str!("guide/promises.md")]
pub mod promises {}

#[doc = include_str!("guide/how_it_works.md")]
pub mod how_it_works {}

#[doc = include_str!("guide/from_governor.md")]
pub mod from_governor {}

#[doc = include_str!("guide/from_tower_governor.md")]
pub mod from_tower_governor {}

#[doc = include_str!("guide/from_bucket4j.md")]
pub mod from_bucket4j {}

#[doc = include_str!("guide/from_lua.md")]
pub mod from_lua {}
