//! The store to check, and the algorithms to check it with.

use std::time::Duration;

use crate::{Algorithm, ManualClock, Refill, Store};

/// A store with its clock.
pub trait Subject {
    /// The store.
    fn store(&self) -> &dyn Store;

    /// Time since 1970-01-01 00:00 UTC, as the store's clock shows it.
    fn now(&self) -> Duration;

    /// Moves the store's clock forward.
    fn advance(&self, by: Duration);
}

/// A store that uses this clock.
impl<S: Store> Subject for (S, ManualClock) {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn now(&self) -> Duration {
        self.1.now()
    }

    fn advance(&self, by: Duration) {
        self.1.advance(by);
    }
}

/// All algorithms, with revealing numbers.
pub const ALGORITHMS: &[Algorithm] = &[
    Algorithm::FixedWindow { align: false },
    Algorithm::FixedWindow { align: true },
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow { buckets: 1 },
    Algorithm::SlidingWindow { buckets: 3 },
    Algorithm::SlidingWindow { buckets: 7 },
    Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy },
    Algorithm::TokenBucket { burst: 10, refill: Refill::Interval },
    Algorithm::TokenBucket { burst: 25, refill: Refill::Greedy },
    Algorithm::TokenBucket { burst: 5, refill: Refill::Interval },
    Algorithm::TokenBucket { burst: 25, refill: Refill::Interval },
    Algorithm::LeakyBucket { queue: 0 },
    Algorithm::LeakyBucket { queue: 5 },
    Algorithm::Concurrent,
];
