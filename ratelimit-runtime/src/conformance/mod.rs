//! The tests that a [`Store`] has to pass (feature `conformance`).
//!
//! The crate's own stores pass them. In a test of yours they are one line:
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
//! #             if request.charges.iter().any(|charge| charge.rule.algorithm() != Algorithm::FixedWindow { align: false }) {
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
//! [`check`] panics when a promise is broken, and says which, and after which calls. It takes a [`Subject`], a store
//! with its time, and the algorithms that the store has: [`ALGORITHMS`] for all. The numbers in them are examples; other bursts and queues
//! are asked for too. An algorithm that is not among them has to be refused with [`StoreError::misconfigured`](crate::store::StoreError::misconfigured).
//!
//! Counters have names that were never used before, so one store serves many runs, and a database need not be empty.
//! Every run asks the same, but for these names and the order in which concurrent calls arrive. Run it on tokio's multi-threaded runtime: there, more happens at once.
//!
//! # Holds
//!
//! A store that says by [`Store::supports_holds`] that it can hold charges is asked to hold, renew and settle them: those to logs, if
//! [`Algorithm::SlidingLog`](crate::Algorithm::SlidingLog) is among its algorithms, and the places of [`Algorithm::Concurrent`](crate::Algorithm::Concurrent). Of a store that can't, neither is asked.
//!
//! # A store whose clock can't be moved
//!
//! What a store promises about time can't be checked without control over its time. Let the store ask a [`Clock`](crate::Clock)
//! that it is given, and give it the system's outside of tests; or, if a server decides by a clock of its own, let the time be
//! an argument of what is sent there in tests, or run the server on a clock of the test's (a `gettimeofday` that is loaded before
//! the system's will do). [`check`] says so when the time it sees is not the time it has set.
//!
//! # Concurrency
//!
//! That calls at once never get more than the limit is tried with a few hundred calls from several threads. That finds a store that looks
//! and then charges; it proves nothing.

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

/// The store a limiter counts in.
///
/// # Panics
///
/// For a limiter that counts nothing.
pub fn store_of(limiter: &Limiter) -> &dyn Store {
    limiter.engine().store().expect("a limiter that counts: this one is unlimited")
}

/// The name of the rule's counter for a key, in a limiter without a namespace.
#[doc(hidden)]
pub fn counter_of(rule: &Rule, key: u64) -> CounterName {
    CounterName::new("", rule, Some(&Key::new(key)))
}
