//! The store to check, and the algorithms to check it with.

use std::time::Duration;

use super::model::EXAMPLES;
use crate::{Algorithm, ManualClock, Store};

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
pub const ALGORITHMS: &[Algorithm] = &EXAMPLES;
