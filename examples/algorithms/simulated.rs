//! Counts in memory, by a clock that is moved by hand.

use std::{
    error::Error,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ratelimit_runtime::{Cause, Limiter, ManualClock, Rule};
use tokio::runtime;

use crate::{
    Admitted, CANDIDATES, END_MS, Outcome,
    traffic::{self, Traffic},
};

/// Five seconds take no time, and each run is the same.
pub(crate) fn send() -> Result<Outcome, Box<dyn Error>> {
    let mut rows = Vec::new();
    for traffic in traffic::all() {
        let admitted =
            CANDIDATES.iter().map(|candidate| send_one(&traffic, &candidate.rule())).collect::<Result<_, _>>()?;
        rows.push((traffic, admitted));
    }
    Ok(Outcome { rows, late_ms: 0 })
}

/// Sends the calls to a limiter of their own.
fn send_one(traffic: &Traffic, rule: &Rule) -> Result<Admitted, Box<dyn Error>> {
    let clock = ManualClock::new(); // at a full second
    let limiter = Limiter::builder("memory://").clock(clock.clone()).build();
    let limiter = runtime::Builder::new_current_thread().build()?.block_on(limiter)?;

    let mut admitted = vec![Vec::new(); traffic.clients.len()];
    let mut calls = Vec::new();
    for now_ms in 0..END_MS {
        for (number, client) in traffic.clients.iter().enumerate() {
            for _ in client.calls.iter().filter(|at_ms| **at_ms == now_ms) {
                calls.push((number, Box::pin(limiter.acquire(rule, client.name))));
            }
        }
        // Sleeping calls are polled after each move of the clock, so nothing has to wake them.
        let mut waiting = Vec::new();
        for (number, mut call) in calls {
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(_)) => admitted[number].push(now_ms),
                Poll::Ready(Err(refused)) if refused.cause() == Cause::Exceeded => {}
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => waiting.push((number, call)),
            }
        }
        calls = waiting;
        clock.advance(Duration::from_millis(1));
    }
    if calls.is_empty() {
        Ok(admitted)
    } else {
        Err(format!("{} calls still wait after {END_MS} ms", calls.len()).into())
    }
}
