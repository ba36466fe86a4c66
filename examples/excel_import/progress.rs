//! The progress bar. It also says for whom the rows wait, and until when.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use ratelimit_runtime::{Health, Limiter, Rule};

pub(crate) struct Progress {
    bar: ProgressBar,
    /// The sellers of the rows that wait or call the API now, by row.
    calls: Mutex<BTreeMap<u32, u64>>,
}

impl Progress {
    /// Shown only on a terminal.
    pub(crate) fn new() -> Self {
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} rows\n{wide_msg}");
        let bar = ProgressBar::new(0).with_style(style.expect("a valid template"));
        Self { bar, calls: Mutex::default() }
    }

    pub(crate) fn expect_rows(&self, rows: u64) {
        self.bar.set_length(rows);
    }

    pub(crate) fn row_is_done(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Awaits the call of a row, and keeps it in sight until it ends.
    pub(crate) async fn of_call<T>(&self, row: u32, seller: u64, call: impl Future<Output = T>) -> T {
        self.calls().insert(row, seller);
        let answer = call.await;
        self.calls().remove(&row);
        answer
    }

    /// Shows for whom the first row waits, until it is dropped.
    pub(crate) async fn show_waiting(&self, rule: Rule) {
        while !self.bar.is_hidden() {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let first = self.calls().first_key_value().map(|(row, seller)| (*row, *seller));
            let waits = match first {
                Some((row, seller)) => waits_for(&rule, seller).await.map(|whom| format!("row {row} waits for {whom}")),
                None => None,
            };
            self.bar.set_message(waits.unwrap_or_default());
        }
    }

    fn calls(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom a call of this seller would wait for now. `None` if it need not wait.
async fn waits_for(rule: &Rule, seller: u64) -> Option<String> {
    let limiter = Limiter::current();
    let counter = limiter.peek(rule, seller).await;
    if let Health::Degraded { reason, .. } = limiter.health() {
        return Some(format!("Redis: {reason}"));
    }
    let wait = counter.ok()?.retry_after()?;
    Some(format!("seller {seller}, {:.1} s more", wait.as_secs_f64()))
}
