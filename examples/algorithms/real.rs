//! Counts on a Redis server, in real time.

use std::{
    error::Error,
    process,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ratelimit_runtime::{Algorithm, Cause, Limiter, OnStoreError};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{CANDIDATES, Outcome, traffic};

/// Sends all calls to one limiter, each traffic through all algorithms at the same time.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn send(url: &str) -> Result<Outcome, Box<dyn Error>> {
    // A counter of an earlier run may still have calls in it.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let namespace = format!("algorithms-{}-{}", process::id(), since_epoch.as_millis());
    let limiter = Limiter::builder(url).namespace(namespace).deadline(Duration::from_secs(1));
    let limiter = limiter.on_store_error(OnStoreError::Deny).build().await?;

    // The traffic begins at a full second, once all calls are prepared.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let start = Instant::now() + Duration::from_secs(since_epoch.as_secs() + 2) - since_epoch;
    let mut calls = JoinSet::new();
    let mut rows = Vec::new();
    for (row, traffic) in traffic::all().into_iter().enumerate() {
        for (column, candidate) in CANDIDATES.iter().enumerate() {
            let rule = candidate.rule();
            let is_delayed = matches!(candidate.algorithm, Algorithm::LeakyBucket { .. });
            for (number, client) in traffic.clients.iter().enumerate() {
                for at_ms in client.calls.iter().copied() {
                    let (limiter, key) = (limiter.clone(), (traffic.name, client.name));
                    calls.spawn(async move {
                        let due = start + Duration::from_millis(at_ms);
                        sleep_until(due).await;
                        let answer = limiter.acquire(&rule, key).await;
                        let late = if is_delayed { Duration::ZERO } else { due.elapsed() };
                        (row, column, number, start.elapsed(), late, answer.map(drop))
                    });
                }
            }
        }
        let admitted = vec![vec![Vec::new(); traffic.clients.len()]; CANDIDATES.len()];
        rows.push((traffic, admitted));
    }

    let mut latest = Duration::ZERO;
    while let Some(call) = calls.join_next().await {
        let (row, column, number, at, late, answer) = call?;
        latest = latest.max(late);
        match answer {
            Ok(()) => rows[row].1[column][number].push(u64::try_from(at.as_millis())?),
            Err(refused) if refused.cause() == Cause::Exceeded => {}
            Err(error) => return Err(error.into()),
        }
    }
    // A call of the leaky bucket may be late twice: in the beginning, and when it wakes up in its slot.
    Ok(Outcome { rows, late_ms: 2 * (1 + u64::try_from(latest.as_millis())?) })
}
