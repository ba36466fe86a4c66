//! Waiting for what servers do in their own time.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take to start, to answer, or to come to what it was asked for. Only what fails takes so long.
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
