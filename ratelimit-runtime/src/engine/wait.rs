//! A call that waits in the queues of its counters, until it is admitted or its time is over.

use std::{
    future::{Future, pending},
    mem,
    pin::pin,
    time::Duration,
};

use smallvec::SmallVec;
use tokio::sync::watch::Receiver;

use super::{
    ask::{AcquireResult, RefundOnDrop},
    outage::OutageWait,
    outcome::{Resolution, RetryableRefusal},
    permit::{Permit, uncounted_decision},
    queue::{QueueId, QueuePosition, StoreAnswer, Turn},
    refusal::refusal,
    request::{AcquireRequest, WaitTicket},
};
use crate::{
    RequestPerMinute, Rule,
    observe::{self, WaitTimer},
    rule::RuleId,
    store::{Charges, StoreError},
};

/// Pauses before a call asks again that stands in no queue. Others may end what it waits for, such as a ban.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl AcquireRequest {
    /// Waits until the store admits these charges. `queue`: the one that the call waits in at first. `refused`: the
    /// answer that refused them, if any.
    pub(super) async fn wait(
        self,
        charges: Charges,
        queue: Option<QueueId>,
        refused: Option<StoreAnswer>,
    ) -> AcquireResult {
        let waited_for = charges.iter().find(|charge| Some(QueueId::of(charge)) == queue);
        let rule = waited_for.map_or_else(|| self.rule(), |charge| charge.rule);
        self.observed(rule, |request| request.wait_in_queues(charges, refused)).await
    }

    /// Waits for the slot of an admitted call, see [`AcquireRequest::sleep_until`].
    pub(super) async fn wait_for_slot(self, run_at: Duration, permit: RefundOnDrop) -> AcquireResult {
        let rule = self.rule();
        self.observed(rule, |request| async move { request.sleep_until(run_at, permit).await }).await
    }

    /// The wait in the metrics and the log, under the rule that the call waits for at first. Once for a call, which may
    /// wait for its store and then in queues.
    pub(super) async fn observed<F>(mut self, rule: Rule, wait: impl FnOnce(Self) -> F) -> AcquireResult
    where
        F: Future<Output = AcquireResult>,
    {
        if self.is_observed {
            return wait(self).await;
        }
        self.is_observed = true;
        let timer = WaitTimer::start(&rule);
        let span = tracing::debug_span!("wait_for_rate_limit", rule = rule.prefix());
        let answer = observe::in_span(span, pin!(wait(self))).await;
        timer.stop(answer.is_ok());
        answer
    }

    /// Waits for the slot of a permit. If the rules file takes the rule away meanwhile, or gives it another counter,
    /// the slot is given back and the call is decided anew. With rules that are invalid now, it keeps the slot. In
    /// shadow mode it need not wait for it.
    async fn sleep_until(mut self, run_at: Duration, mut pending: RefundOnDrop) -> AcquireResult {
        let (engine, rules) = (self.engine.clone(), self.rule_ids());
        self.outage_wait = None; // a later outage has a wait of its own
        loop {
            tokio::select! {
                biased;
                () = engine.settings().clock.sleep_until(run_at) => break,
                () = rules_changed(&mut self.rule_changes) => {}
            }
            self.apply_rules(false);
            if self.rule_ids() != rules && self.charges().is_ok() {
                drop(pending);
                return match self.queue_or_send() {
                    Ok(answer) => answer,
                    Err(pending) => pending.await,
                };
            }
            if self.charges.iter().filter_map(|charge| charge.rule).all(|rule| rule.is_shadow()) {
                break;
            }
        }
        pending.take().ok_or_else(|| refusal(&self.rule(), StoreError::no_answer()))
    }

    /// The rule that applies to each charge, by what makes its counter another one.
    fn rule_ids(&self) -> SmallVec<[Option<RuleId>; 1]> {
        self.charges.iter().map(|charge| charge.rule.map(|rule| rule.id())).collect()
    }

    async fn wait_in_queues(mut self, mut charges: Charges, mut refused: Option<StoreAnswer>) -> AcquireResult {
        let engine = self.engine.clone();
        let Some(WaitTicket { id, changes, .. }) = self.wait_ticket else {
            return Ok(Permit::free(uncounted_decision(&charges)));
        };
        let mut has_waited = false;
        loop {
            let (answer, mut sleeps_until) = (refused.take(), None);
            charges.iter_mut().for_each(|charge| self.limit_wait(charge));
            let (known, is_back) = (answer.as_ref().map(|known| (known, changes)), mem::replace(&mut has_waited, true));
            let mut position = match engine.queues().join(id, &charges, known, is_back) {
                Ok(position) => position,
                Err(refusal) => return Err(self.final_refusal(refusal).await),
            };
            charges = loop {
                position.longest_outage = self.longest_outage();
                let turn = tokio::select! {
                    biased;
                    () = rules_changed(&mut self.rule_changes) => None,
                    turn = position.turn() => Some(turn),
                };
                let blocked_since = turn.and_then(|_| self.note_outage(&position));
                let early = match turn {
                    None => None,
                    Some(Turn::Ask { early }) => Some(early),
                    Some(Turn::StoreAway) => match position.store_error() {
                        Some(error) => return self.end_in_outage(error),
                        None => continue,
                    },
                    Some(_) => return self.leave(position).await, // too late, or closed
                };
                self.apply_rules(false);
                let charges = self.charges()?;
                if charges.is_empty() {
                    position.probe();
                    return Ok(Permit::free(uncounted_decision(&charges)));
                }
                let Some(early) = early else {
                    position.probe(); // each caller takes over changed charges at its turn, see `update_rules` below
                    continue;
                };
                if !position.update_rules(&charges) {
                    position.probe();
                    self.outage_wait = None;
                    break charges;
                }
                if early && let Some(guard) = engine.guard() {
                    guard.forget_denials(&charges); // the store may have changed since
                }
                // If the caller leaves here, a charge that was sent stays, but for one that is settled later
                // (abandon.rs), and one in several slots of a cluster (redis/multi_slot.rs), which are
                // refunded. `position` leaves the queues.
                let asked_at = self.clock().now(); // without an answer, it takes nothing from the time of the call
                match self.ask_in_turn(charges, true).await {
                    (Resolution::Admitted(permit, at), answer) => {
                        position.admitted(&answer); // from here on, its slot keeps the order
                        return match at {
                            Some(at) => self.sleep_until(at, RefundOnDrop::new(permit)).await,
                            None => Ok(permit),
                        };
                    }
                    (Resolution::Rejected(refusal), _) => return Err(refusal),
                    // It is still its turn afterwards. Those behind it wait for the store, too.
                    (Resolution::Undecided { error, max }, _) => {
                        position.store_is_away(&error);
                        let began = Some(OutageWait::new(self.clock().now(), asked_at));
                        self.outage_wait = self.outage_wait.or(blocked_since).or(began);
                        if !self.wait_for_store(max).await {
                            return Err(refusal(&self.rule(), error));
                        }
                    }
                    (Resolution::Exceeded(exceeded), _) => {
                        let RetryableRefusal { refusal, reason, ready_in, may_free_early, charges, answer } = *exceeded;
                        let is_out_of_date = position.refused(&answer) || have_changed(self.rule_changes.as_ref());
                        if !self.waits_for(reason) {
                            position.probe(); // the others do not wait for this reason, either
                            return Err(refusal);
                        }
                        self.outage_wait = None;
                        let now = self.clock().now();
                        let left = self.wait_ticket.and_then(|ticket| self.left_of_wait(reason, ticket, now));
                        let soonest = if may_free_early || is_out_of_date { Duration::ZERO } else { ready_in };
                        let is_too_late = left.is_some_and(|left| soonest > left || left.is_zero());
                        match (position.is_refused_by(&answer), is_too_late) {
                            (true, true) => return self.leave(position).await,
                            (true, false) => {}
                            (false, true) => return Err(refusal),
                            // No queue is for this counter, as with a cost of 0 while it is banned.
                            (false, false) => {
                                let pause = ready_in.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                                sleeps_until = Some(now.saturating_add(left.map_or(pause, |left| left.min(pause))));
                                break charges;
                            }
                        }
                    }
                }
            };
            drop(position);
            if let Some(at) = sleeps_until
                && !self.pause_until(at).await
            {
                return Err(self.final_refusal(None).await);
            }
        }
    }

    /// Waits until this time, or until the rules change. Returns false if the limiter was closed.
    async fn pause_until(&mut self, at: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.engine.outage_waiters().closed() => return false,
            () = rules_changed(&mut self.rule_changes) => {}
            () = self.engine.settings().clock.sleep_until(at) => {}
        }
        true
    }

    /// Adds the time for which callers ahead have waited for the store to the time of this call. Returns the
    /// outage that goes on.
    fn note_outage(&mut self, position: &QueuePosition<'_>) -> Option<OutageWait> {
        let (blocked_for, blocked_since) = position.take_outage();
        if let Some(ticket) = &mut self.wait_ticket {
            ticket.postpone(blocked_for);
        }
        let now = self.clock().now();
        if let Some(wait) = &mut self.outage_wait {
            wait.counted_until = now; // for the time before, callers ahead have counted
        }
        blocked_since.map(|since| OutageWait::new(since, now))
    }

    /// Ends the wait. It leaves the queues before it asks the store once more: in them, it could have the turn.
    async fn leave(&self, position: QueuePosition<'_>) -> AcquireResult {
        let latest = position.refusal();
        drop(position);
        Err(self.final_refusal(latest).await)
    }

    /// The refusal of a caller who stops waiting. It includes the time when its turn would have
    /// come.
    async fn final_refusal(&self, latest: Option<(RequestPerMinute, Duration)>) -> RequestPerMinute {
        let now = self.clock().now();
        if let Some((refused, turn_at)) = latest
            && turn_at > now
        {
            return refused.retry_in(turn_at.saturating_sub(now));
        }
        // No earlier refusal is still valid. The callers ahead go first all the same.
        let charges = match self.charges() {
            Ok(charges) => charges,
            Err(refused) => return refused,
        };
        let enforced =
            charges.iter().find(|charge| !charge.rule.is_shadow()).map(|charge| (charge.rule, charge.least()));
        let (rule, cost) = enforced.unwrap_or((self.rule(), 1));
        match self.ask(charges, false).await {
            Resolution::Exceeded(exceeded) => exceeded.refusal,
            Resolution::Rejected(refused) => refused,
            Resolution::Undecided { error, .. } => refusal(&self.rule(), error),
            Resolution::Admitted(permit, _) => {
                let soon_ms = 1;
                RequestPerMinute::exceeded(&rule, cost, permit.remaining(), soon_ms)
            }
        }
    }
}

/// Whether the rules have changed since the caller has seen them.
fn have_changed(rules: Option<&Receiver<()>>) -> bool {
    rules.is_some_and(|changes| changes.has_changed().unwrap_or(false))
}

/// Waits for a change of the rules.
pub(super) async fn rules_changed(changes: &mut Option<Receiver<()>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    pending::<()>().await;
}
