//! A conformance suite for implementations of [`Store`] (feature `conformance`).
//!
//! The crate's own stores pass it. In your test it is one line. [The guide](crate::guide::own_store)
//! has a whole store with its test.
//!
//! ```
//! # use std::{collections::HashMap, sync::Mutex, time::Duration};
//! # use ratelimit_runtime::{Clock, CounterName, Decision, Store, store::{Batch, Charges, Reply, StoreError}};
//! use ratelimit_runtime::{Algorithm, ManualClock, conformance};
//! # #[derive(Debug)]
//! # struct MyStore { clock: Clock, windows: Mutex<HashMap<CounterName, (Duration, u64)>> }
//! # impl MyStore {
//! #     fn new(clock: impl Into<Clock>) -> Self { Self { clock: clock.into(), windows: Mutex::default() } }
//! # }
//! # impl Store for MyStore {
//! #     fn decide(&self, mut batch: Batch) -> Reply<Batch> {
//! #         let mut windows = self.windows.lock().unwrap();
//! #         let now = self.clock.now();
//! #         for request in batch.iter_mut() {
//! #             const FIXED: Algorithm = Algorithm::FixedWindow { align: false };
//! #             if request.charges.iter().any(|charge| charge.rule.algorithm() != FIXED) {
//! #                 request.outcome = Err(StoreError::misconfigured("this store has fixed windows only"));
//! #                 continue;
//! #             }
//! #             windows.retain(|_, (end, used)| *end > now && *used > 0);
//! #             let mut fits = true;
//! #             for charge in request.charges.iter_mut() {
//! #                 let (end, used) = windows.get(&charge.counter).copied().unwrap_or((now, 0));
//! #                 let remaining = charge.rule.count().saturating_sub(used);
//! #                 let wait = (charge.cost > remaining).then(|| end - now);
//! #                 charge.decision = Decision::new(charge.rule.count(), remaining, end - now, wait);
//! #                 fits &= wait.is_none();
//! #             }
//! #             if fits && request.consume {
//! #                 for charge in request.charges.iter_mut().filter(|charge| charge.cost > 0) {
//! #                     let window = windows.entry(charge.counter.clone()).or_insert((now + charge.rule.period(), 0));
//! #                     window.1 += charge.cost;
//! #                     let left = charge.rule.count() - window.1;
//! #                     charge.receipt = [u64::try_from(window.0.as_micros()).unwrap(), 0];
//! #                     charge.decision = Decision::new(charge.rule.count(), left, window.0 - now, None);
//! #                 }
//! #             }
//! #             request.outcome = Ok(fits);
//! #         }
//! #         drop(windows);
//! #         Reply::Ready(batch)
//! #     }
//! #     fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
//! #         let mut windows = self.windows.lock().unwrap();
//! #         let now = self.clock.now();
//! #         let mut back = 0;
//! #         for charge in charges.iter() {
//! #             if let Some((end, used)) = windows.get_mut(&charge.counter)
//! #                 && *end > now && u64::try_from(end.as_micros()) == Ok(charge.receipt[0])
//! #             {
//! #                 let returned = charge.cost.min(*used);
//! #                 *used -= returned;
//! #                 back += returned;
//! #             }
//! #         }
//! #         Reply::Ready(Ok(back))
//! #     }
//! #     fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
//! #         self.windows.lock().unwrap().remove(&counter);
//! #         Reply::Ready(Ok(()))
//! #     }
//! # }
//!
//! # /*
//! #[tokio::test(flavor = "multi_thread")]
//! # */
//! # #[tokio::main(flavor = "multi_thread")] async fn main() { my_store_conforms().await }
//! async fn my_store_conforms() {
//!     let clock = ManualClock::new();
//!     let store = MyStore::new(clock.clone());
//!     conformance::check(&(store, clock), &[Algorithm::FixedWindow { align: false }]).await;
//! }
//! ```
//!
//! [`check`] takes a [`Subject`], which is a store with its clock, and the algorithms that the
//! store supports: [`ALGORITHMS`] for all. Their numbers are examples; other bursts and queues are
//! tried, too. The store must reject all other algorithms with
//! [`StoreError::misconfigured`](crate::store::StoreError::misconfigured).
//!
//! It panics if a promise is broken. The message names the promise and the calls before.
//!
//! All counters have fresh names, so a store can be reused, and a database need not be empty.
//! Otherwise every run is the same, except for the order of concurrent calls. Use tokio's
//! multi-threaded runtime for more concurrency.
//!
//! # Holds
//!
//! A store with [`Store::supports_holds`] is also checked for holds, renewals and settlements.
//! These are charges to logs, if [`Algorithm::SlidingLog`](crate::Algorithm::SlidingLog) is among
//! the algorithms, and the places of [`Algorithm::Concurrent`](crate::Algorithm::Concurrent). Other
//! stores are never asked for a hold.
//!
//! # Not checked
//!
//! - A store without [`Store::supports_holds`] is never asked for places, and need not reject them.
//! - Bans, for a store without [`Store::supports_bans`].
//! - [`Charge::settles`](crate::store::Charge::settles): it is never set.
//! - The rejection of an algorithm with other options than those in the list.
//!
//! # Stores without a controllable clock
//!
//! Promises about time need control over the store's clock. Pass a [`Clock`](crate::Clock) to the
//! store, which is the system's outside of tests. If a server decides by its own clock, send it the
//! time as an argument in tests. Or run the server with a controlled clock, for example with a
//! preloaded `gettimeofday`. [`check`] reports a clock that does not show the time it has set.
//!
//! # Concurrency
//!
//! A few hundred calls from several threads check that concurrent calls never exceed the limit.
//! That finds a store that checks first and charges later, but it is no proof.

mod check;
mod model;
mod schedule;
mod subject;
mod trial;

pub use self::{
    check::check,
    subject::{ALGORITHMS, Subject},
};
#[doc(hidden)]
pub use self::{
    model::Model,
    schedule::Schedule,
    trial::{Broken, Grant, Trial},
};
use crate::{CounterName, Key, Limiter, Rule, Store};

/// The store of a limiter.
///
/// # Panics
///
/// If the limiter is unlimited, and has none.
pub fn store_of(limiter: &Limiter) -> &dyn Store {
    limiter.engine().store().expect("a limiter with a store: this one is unlimited")
}

/// The name of a rule's counter for a key, without a namespace.
#[doc(hidden)]
pub fn counter_of(rule: &Rule, key: u64) -> CounterName {
    CounterName::new("", rule, &Key::new(key))
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::{ALGORITHMS, check};
    use crate::{ManualClock, memory::Memory};

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn the_memory_store_conforms() {
        let clock = ManualClock::new();
        let store = Memory::new(clock.clone().into(), 1_000_000, 0);
        check(&(store, clock), ALGORITHMS).await;
    }
}
