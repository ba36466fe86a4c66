//! A call that waits until the store decides again, under `OnStoreError::Wait`.
//!
//! If only the reply was lost, the call was charged, and is charged again when it asks anew.

use std::{future::pending, time::Duration};

use super::{
    ask::AcquireResult,
    core::Engine,
    outage::{CountedWaiter, OutageWait},
    outcome::Resolution,
    permit::{Permit, uncounted_decision},
    refusal::refusal,
    request::AcquireRequest,
    wait::rules_changed,
};
use crate::{
    clock::sleep,
    duration::part_of,
    store::{Charge, StoreError},
};

impl Engine {
    /// Whether a server of these counters is known to be away.
    fn is_away(&self, charges: &[Charge]) -> bool {
        self.guard().is_some_and(|guard| guard.is_away(charges))
    }

    /// Returns once no server of these counters is known to be away.
    async fn returned(&self, charges: &[Charge]) {
        if let Some(guard) = self.guard() {
            guard.returned(charges).await;
        }
    }
}

impl AcquireRequest {
    /// Waits until the store may decide again, or the rules have changed, for `max` after the first failure
    /// of this call. Returns false if that time is over, if the limiter is closed, or if too many calls wait.
    pub(super) async fn wait_for_store(&mut self, max: Duration) -> bool {
        let engine = self.engine.clone();
        let (clock, waiters) = (&engine.settings().clock, engine.outage_waiters());
        let now = clock.now();
        let wait = self.outage_wait.get_or_insert(OutageWait::new(now, now));
        let OutageWait { since, counted_until, attempts, mut is_last } = *wait;
        wait.attempts = attempts.saturating_add(1);
        let until = since.saturating_add(max); // `max` may have changed
        let Some(waiter) = CountedWaiter::new(waiters) else { return false };
        let charges = self.charges().unwrap_or_default();
        let may_decide = async {
            let was_away = engine.is_away(&charges);
            engine.returned(&charges).await;
            // All callers know it now. They ask one after another, and each once more before its time is over.
            let (pause, left) = (waiter.pause(attempts), until.saturating_sub(clock.now()));
            if is_last && !was_away && pause >= left {
                pending::<()>().await;
            }
            is_last = pause >= left;
            sleep(if is_last { part_of(left) } else { pause }).await;
        };
        let returns = tokio::select! {
            biased;
            () = waiters.closed() => false,
            () = clock.sleep_until(until) => false,
            () = rules_changed(&mut self.rule_changes) => true,
            () = may_decide => true,
        };
        drop(waiter);
        let now = clock.now();
        if let Some(wait) = &mut self.outage_wait {
            (wait.is_last, wait.counted_until) = (is_last, now);
        }
        if let Some(ticket) = &mut self.wait_ticket {
            ticket.postpone(now.saturating_sub(counted_until)); // with the request that had no answer
        }
        returns
    }

    /// Asks again whenever the store may decide, until it does. `error`: why it could not.
    pub(super) async fn outlast(self, error: StoreError, max: Duration) -> AcquireResult {
        let rule = self.rule();
        self.observed(rule, |request| request.ask_until_decided(error, max)).await
    }

    async fn ask_until_decided(mut self, mut error: StoreError, mut max: Duration) -> AcquireResult {
        let resolution = loop {
            if !self.wait_for_store(max).await {
                return Err(refusal(&self.rule(), error));
            }
            self.apply_rules(false);
            let charges = self.charges()?;
            if charges.is_empty() {
                return Ok(Permit::free(uncounted_decision(&charges)));
            }
            match self.ask(charges, true).await {
                Resolution::Undecided { error: latest, max: longest } => (error, max) = (latest, longest),
                resolution => break resolution,
            }
        };
        self.outage_wait = None; // a later outage has a wait of its own
        match self.act_on(resolution) {
            Ok(answer) => answer,
            Err(waiting) => waiting.await,
        }
    }
}
