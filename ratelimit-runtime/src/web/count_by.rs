//! The count of a limit that depends on the request, and a cache of counts that are looked up.

use std::{
    collections::HashMap,
    fmt::Display,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::request::Parts;
use tokio::sync::OnceCell;

use crate::{Clock, CounterName};

/// Counters that a cache of counts has at most. Twice as many while those in use move on.
const MOST_KEYS: usize = 2_048;

/// The count for a request.
#[derive(Clone)]
pub(super) enum CountBy {
    Request(Arc<dyn Fn(&Parts) -> u64 + Send + Sync>),
    Lookup(Arc<CountCache>),
}

type LookupFuture = Pin<Box<dyn Future<Output = Result<u64, Arc<str>>> + Send>>;

/// Counts that are looked up, each kept for some time.
pub(super) struct CountCache {
    look_up: Arc<dyn Fn(&Parts) -> LookupFuture + Send + Sync>,
    ttl: Duration,
    cells: Mutex<CountCells>,
}

/// Two generations of cells. When the younger one is full, it takes the place of the older one. A
/// cell that is used moves into the younger one.
///
/// The name of a counter is short, whatever the length of its key.
#[derive(Default)]
struct CountCells {
    younger: HashMap<CounterName, CountCell>,
    older: HashMap<CounterName, CountCell>,
}

/// The count of one key. Empty while it is looked up: all requests of the key wait for one look-up.
type CountCell = Arc<OnceCell<LookedUpCount>>;

struct LookedUpCount {
    count: Result<u64, Arc<str>>,
    /// The time when the look-up began.
    at: Duration,
}

impl CountCache {
    pub(super) fn new<F, E>(ttl: Duration, look_up: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<u64, E>> + Send + 'static,
        E: Display,
    {
        let look_up = Arc::new(move |request: &Parts| -> LookupFuture {
            let count = look_up(request);
            Box::pin(async { count.await.map_err(|error| error.to_string().into()) })
        });
        Self { look_up, ttl, cells: Mutex::default() }
    }

    /// A cache of the same look-up, without counts.
    pub(super) fn emptied(&self) -> Self {
        Self { look_up: Arc::clone(&self.look_up), ttl: self.ttl, cells: Mutex::default() }
    }

    /// The count for a request of this counter. An error is the look-up's, which is not kept.
    ///
    /// If the request that looks up is dropped, another one that waits looks up in its place.
    pub(super) async fn count(&self, counter: CounterName, request: &Parts, clock: &Clock) -> Result<u64, Arc<str>> {
        let cell = self.cell(&counter, clock.now());
        let look_up = async || {
            let at = clock.now();
            LookedUpCount { count: (self.look_up)(request).await, at }
        };
        let count = cell.get_or_init(look_up).await.count.clone();
        if count.is_err() {
            self.remove(&counter, &cell);
        }
        count
    }

    /// The cell of a counter, empty if its count is too old.
    fn cell(&self, counter: &CounterName, now: Duration) -> CountCell {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cells.younger.remove(counter).or_else(|| cells.older.remove(counter));
        // A time far ahead is that of another limiter's clock.
        let is_valid = |cell: &CountCell| cell.get().is_none_or(|known| now.abs_diff(known.at) < self.ttl);
        let cell = known.filter(is_valid).unwrap_or_default();
        if cells.younger.len() >= MOST_KEYS {
            cells.older = mem::take(&mut cells.younger);
            cells.older.retain(|_, cell| is_valid(cell));
        }
        cells.younger.insert(counter.clone(), Arc::clone(&cell));
        cell
    }

    fn remove(&self, counter: &CounterName, failed: &CountCell) {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let CountCells { younger, older } = &mut *cells;
        for generation in [younger, older] {
            if generation.get(counter).is_some_and(|cell| Arc::ptr_eq(cell, failed)) {
                generation.remove(counter);
            }
        }
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use http::Request;

    use super::*;
    use crate::{Key, ManualClock, Rule};

    fn counter(key: &Key) -> CounterName {
        CounterName::new("", &Rule::new("item", 1, Duration::from_secs(1)), key)
    }

    /// Keys that clients make up displace others, and do not fill the memory, however long they are.
    #[tokio::test]
    async fn a_cache_is_bounded_and_keeps_the_keys_in_use() {
        let clock = Clock::from(ManualClock::new());
        let asked = Arc::new(Mutex::new(0));
        let counting = Arc::clone(&asked);
        let cache = CountCache::new(Duration::from_secs(60), move |_| {
            *counting.lock().unwrap() += 1;
            async { Ok::<_, String>(1) }
        });
        let request = Request::new(()).into_parts().0;
        let long = "made up".repeat(1_000);
        for made_up in 0..10 * MOST_KEYS {
            for key in [Key::new("alice"), Key::new((&long[..if made_up % 100 == 0 { 7_000 } else { 7 }], made_up))] {
                assert_eq!(cache.count(counter(&key), &request, &clock).await, Ok(1));
            }
            let cells = cache.cells.lock().unwrap();
            assert!(cells.younger.len().max(cells.older.len()) <= MOST_KEYS);
            if made_up % 100 == 0 {
                assert!(cells.younger.keys().all(|counter| counter.as_bytes().len() < 300));
            }
        }
        assert_eq!(*asked.lock().unwrap(), 1 + 10 * MOST_KEYS, "alice is looked up once");
    }

    #[tokio::test]
    async fn counts_that_are_too_old_are_dropped() {
        let manual = ManualClock::new();
        let clock = Clock::from(manual.clone());
        let cache = CountCache::new(Duration::from_secs(60), |_| async { Ok::<_, String>(1) });
        let request = Request::new(()).into_parts().0;
        for user in 0..MOST_KEYS {
            cache.count(counter(&Key::new(user)), &request, &clock).await.unwrap();
        }
        manual.advance(Duration::from_secs(60));
        cache.count(counter(&Key::new("alice")), &request, &clock).await.unwrap();
        let cells = cache.cells.lock().unwrap();
        assert_eq!((cells.younger.len(), cells.older.len()), (1, 0));
    }
}
