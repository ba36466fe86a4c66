//! The guide: pages for users of the crate, each with examples that are tested.
//!
//! | page | about |
//! |---|---|
//! | [`choosing`] | which algorithm to take, and what each promises |
//! | [`recipes`] | per user, per tenant, behind a proxy, logins, outgoing calls, tokens, batch jobs |
//! | [`redis`] | one server, sentinels, cluster, TLS, and what to set on the server |
//! | [`failures`] | what happens to calls when Redis fails, and which policy to choose |
//! | [`operations`] | each log event and each metric, the dashboard, alerts |
//! | [`sizing`] | memory, time, and processes for a server |
//! | [`testing`] | tests without a server, and without waiting |
//! | [`own_store`] | counters elsewhere than in memory or in Redis |
//! | [`promises`] | what each number means, and when a promise does not hold |
//! | [`how_it_works`] | holds, waiting, cached denials, prefetched quota, background work |
//!
//! Coming from another limiter: [`from_governor`], [`from_tower_governor`], [`from_bucket4j`],
//! [`from_lua`].
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | rule | a prefix, a count, a period and an algorithm |
//! | key | who or what is counted: a user, an address |
//! | counter | the state of one rule for one key |
//! | cost | what a call takes of the count; 1 by default |
//! | charge | a cost that was counted |
//! | permit | the right to run once, already charged |
//! | refusal, denial | a call that may not run now: [`RequestPerMinute`] |
//! | refund | takes a charge back |
//! | hold | an amount that a log or a semaphore keeps for a call until it ends |
//! | settle | charge what a call used: end its hold, or refund the rest of its charge |
//! | place | a hold of `limit_concurrent_requests` |
//! | lease | the time for which a hold counts without being renewed |
//! | quota, prefetch | permits that a process has charged in advance |
//! | burst | the size of a token bucket |
//! | store | what keeps the counters: memory, Redis, or your own |
//! | share | what one process may admit by itself while the store is away |

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
