//! The decisions of the last minute, which the page draws from the start.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;

/// The decisions on a rule since the gateway began.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Decisions {
    admitted: u64,
    refused: u64,
    /// Admitted, and refused if the rule were not in shadow mode.
    shadow_refused: u64,
}

/// The decisions on all rules.
pub(crate) type Counts = BTreeMap<String, Decisions>;

/// Counts at some times, the oldest first.
#[derive(Default)]
pub(crate) struct History(Mutex<VecDeque<(Instant, Counts)>>);

impl History {
    const LENGTH: Duration = Duration::from_secs(60);
    const INTERVAL: Duration = Duration::from_millis(500);

    /// Keeps the counts of the last minute up to date.
    pub(crate) async fn record(&self, metrics: &PrometheusHandle) {
        loop {
            let (now, counts) = (Instant::now(), counts(&metrics.render()));
            {
                let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                samples.push_back((now, counts));
                while samples.front().is_some_and(|(at, _)| now.duration_since(*at) > Self::LENGTH) {
                    samples.pop_front();
                }
            }
            tokio::time::sleep(Self::INTERVAL).await;
        }
    }

    /// For each time: how many milliseconds ago it was, and how many calls were admitted and refused until then.
    pub(crate) fn of(&self, rule: &str) -> Vec<[u64; 3]> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let point = |(at, counts): &(Instant, Counts)| {
            let Decisions { admitted, refused, shadow_refused } = counts.get(rule).copied().unwrap_or_default();
            [at.elapsed().as_millis().try_into().unwrap_or(u64::MAX), admitted, refused + shadow_refused]
        };
        samples.iter().map(point).collect()
    }
}

/// Reads the counts from the text that Prometheus scrapes.
pub(crate) fn counts(metrics: &str) -> Counts {
    let mut found = Counts::new();
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("ratelimit_decisions_total{"));
    for (labels, count) in lines.filter_map(|line| line.rsplit_once("} ")) {
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        if let (Some(rule), Some(outcome), Ok(count)) = (label("rule"), label("outcome"), count.parse::<u64>()) {
            let decisions = found.entry(rule).or_default();
            match outcome.as_str() {
                "admitted" => decisions.admitted += count,
                "shadow_refused" => decisions.shadow_refused += count,
                _ => decisions.refused += count,
            }
        }
    }
    found
}
