//! Waiting for servers.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// A server that takes longer to start, to answer or to change has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again; panics with what was `expected` and what the last answer said is missing.
pub(crate) fn wait_until<T>(expected: &str, mut answer: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match answer() {
            Ok(answer) => return answer,
            Err(missing) => assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {expected}; {missing}"),
        }
        sleep(Duration::from_millis(10));
    }
}
