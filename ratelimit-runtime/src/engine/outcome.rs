//! Turns an outcome of the store, or an error, into a permit or a refusal.
//!
//! `acquire.rs` and `attempt.rs` do this themselves for the charges that an attempt decides.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    core::Origin,
    permit::{Permit, Receipt, most_restrictive_decision, uncounted_decision},
    queue::{QueueId, StoreAnswer},
    refusal::refusal,
    request::{AcquireRequest, RefusalReason},
};
use crate::{
    Decision, OnStoreError, RequestPerMinute, observe,
    store::{Batch, Charge, Charges, Hold, Reply, Request, Store as _, StoreError},
};

/// A refusal that may end if the caller waits.
pub(super) struct RetryableRefusal {
    pub(super) refusal: RequestPerMinute,
    pub(super) reason: RefusalReason,
    pub(super) ready_in: Duration,
    /// See [`Charge::may_free_early`]. Also while the store is away.
    pub(super) may_free_early: bool,
    pub(super) charges: Charges,
    /// The store's answer about these charges, for the wait queues.
    pub(super) answer: StoreAnswer,
}

/// The result of one request to the store.
#[allow(clippy::large_enum_variant)] // made and taken apart at once, and most are permits
pub(super) enum Resolution {
    /// The permit, and the time of its slot. `None`: the call may run at once.
    Admitted(Permit, Option<Duration>),
    Exceeded(Box<RetryableRefusal>),
    Rejected(RequestPerMinute),
    /// The store could not decide, and the call waits until it can, for this time at most.
    Undecided {
        error: StoreError,
        max: Duration,
    },
}

impl From<Result<Permit, RequestPerMinute>> for Resolution {
    fn from(answer: Result<Permit, RequestPerMinute>) -> Self {
        match answer {
            Ok(permit) => Self::Admitted(permit, None),
            Err(refused) => Self::Rejected(refused),
        }
    }
}

/// A refusal by shadow rules alone: their decision, and the charges of the other rules.
pub(super) struct ShadowRejection {
    pub(super) decision: Decision,
    pub(super) rest: Charges,
}

impl AcquireRequest {
    /// Turns the store's answer or error into a resolution. Returns `Err` if only shadow rules have
    /// refused: the caller then asks again without them.
    pub(super) fn resolve(
        &self,
        batch: Result<Batch, StoreError>,
        consume: bool,
        sent_at: Duration,
    ) -> Result<Resolution, Box<ShadowRejection>> {
        let (error, charges) = match batch.map(Batch::into_first) {
            Ok(Some(Request { charges, outcome: Ok(true), .. })) => {
                let resolution = self.resolve_admitted(charges, consume, Origin::Store, sent_at);
                self.engine.record_success(); // a server that can't write can still refuse
                return Ok(resolution); // if the recorder panics, its permit frees what is held
            }
            Ok(Some(Request { charges, outcome: Ok(false), .. })) => {
                return self.resolve_refused(charges, consume, Origin::Store, sent_at);
            }
            Ok(Some(Request { charges, outcome: Err(error), .. })) => (error, charges),
            Err(error) => (error, self.charges().unwrap_or_default()),
            Ok(None) => (StoreError::no_answer(), Charges::default()),
        };
        if error.misconfigured {
            return Ok(Resolution::Rejected(refusal(&self.rule(), error)));
        }
        self.engine.record_failure(&error, &charges);
        let policy = self.note_fallback();
        Ok(match policy {
            OnStoreError::Allow => match self.charges() {
                Ok(charges) => {
                    if consume {
                        charges.iter().for_each(|charge| observe::admitted(&charge.rule, charge.rule.limit()));
                    }
                    Resolution::Admitted(Permit::free(uncounted_decision(&charges)), None)
                }
                Err(refused) => Resolution::Rejected(refused),
            },
            OnStoreError::Local => self.decide_locally(&error, consume),
            OnStoreError::Wait { max } if consume && !self.is_in_shadow() => Resolution::Undecided { error, max },
            OnStoreError::Deny | OnStoreError::Wait { .. } => self.end_undecided(error).into(),
        })
    }

    /// Records that the failure policy decides, once for a call that waits for the store. It is recorded again if the
    /// rules file replaces `Wait` meanwhile.
    fn note_fallback(&self) -> OnStoreError {
        let policy = self.policy();
        if self.outage_wait.is_none() || !matches!(policy, OnStoreError::Wait { .. }) {
            observe::fallback_decision(policy);
        }
        policy
    }

    fn policy(&self) -> OnStoreError {
        let settings = self.engine.settings();
        let policy = self.options.on_store_error().unwrap_or(settings.on_store_error);
        match self.rule_policy.unwrap_or(policy) {
            OnStoreError::Local if settings.is_local => OnStoreError::Deny, // this process is full
            policy => policy,
        }
    }

    /// The longest wait for the store, if the call waits for it.
    pub(super) fn longest_outage(&self) -> Option<Duration> {
        match self.policy() {
            OnStoreError::Wait { max } => Some(max),
            _ => None,
        }
    }

    /// All rules of the call are in shadow mode.
    fn is_in_shadow(&self) -> bool {
        self.charges.iter().filter_map(|charge| charge.rule).all(|rule| rule.is_shadow())
    }

    /// The end of a call that has waited for the store, behind others, for as long as it may.
    pub(super) fn end_in_outage(&self, error: StoreError) -> Result<Permit, RequestPerMinute> {
        self.note_fallback();
        self.end_undecided(error)
    }

    /// Refuses a call without a decision, unless all of its rules are in shadow mode.
    fn end_undecided(&self, error: StoreError) -> Result<Permit, RequestPerMinute> {
        if !error.misconfigured && self.is_in_shadow() {
            return Ok(Permit::free(Decision::fresh(self.rule().limit())));
        }
        Err(refusal(&self.rule(), error))
    }

    /// Decides in this process, within its share of each rule.
    fn decide_locally(&self, error: &StoreError, consume: bool) -> Resolution {
        let mut charges = match self.charges() {
            Ok(charges) => charges,
            Err(refused) => return Resolution::Rejected(refused),
        };
        let instances = self.engine.settings().instances.map_or(1, |instances| instances.get().into());
        for charge in &mut *charges {
            let rule = charge.rule;
            charge.rule = rule.divided_among(instances);
            let share = charge.rule.limit();
            if let Some(hold) = &mut charge.hold {
                hold.is_kept = true;
                charge.cost = if hold.allow_partial { charge.cost.min(share.max(1)) } else { charge.cost };
            }
            if charge.cost > share && !charge.rule.is_shadow() {
                let (prefix, cost) = (rule.prefix(), charge.cost);
                let reason = format!(
                    "{error}; the share of `{prefix}` for one of {instances} instances is {share}, below the cost of {cost}"
                );
                return Resolution::Rejected(refusal(&rule, StoreError::unavailable(reason)));
            }
        }
        // A shadow rule does not refuse because of its small share.
        charges.retain(|charge| charge.cost <= charge.rule.limit());
        if charges.is_empty() {
            return Resolution::Admitted(Permit::free(Decision::fresh(self.rule().limit())), None);
        }
        loop {
            let Reply::Ready(batch) = self.engine.local().decide(Request::new(charges, consume).into()) else {
                return Resolution::Rejected(refusal(&self.rule(), StoreError::no_answer()));
            };
            let resolution = match batch.into_first() {
                Some(Request { charges, outcome: Ok(true), .. }) => {
                    Ok(self.resolve_admitted(charges, consume, Origin::LocalFallback, self.clock().now()))
                }
                Some(Request { charges, outcome: Ok(false), .. }) => {
                    self.resolve_refused(charges, consume, Origin::LocalFallback, self.clock().now())
                }
                Some(Request { outcome: Err(error), .. }) => Ok(self.end_undecided(error).into()),
                None => Ok(Resolution::Rejected(refusal(&self.rule(), StoreError::no_answer()))),
            };
            charges = match resolution {
                Ok(resolution) => return resolution,
                Err(rejection) if rejection.rest.is_empty() => {
                    return Resolution::Admitted(Permit::free(rejection.decision), None);
                }
                Err(rejection) => rejection.rest,
            };
        }
    }

    /// Gives charges that were decided by the share of this process the rules of the call again: the caller waits for
    /// these.
    fn restore_rules(&self, charges: &mut Charges) {
        let whole = self.charges().unwrap_or_default();
        for charge in &mut **charges {
            if let Some(whole) = whole.iter().find(|whole| whole.counter == charge.counter) {
                (charge.rule, charge.cost) = (whole.rule, whole.cost);
            }
        }
    }

    /// Turns charges that were made, or would fit, into a permit.
    fn resolve_admitted(&self, charges: Charges, consume: bool, origin: Origin, sent_at: Duration) -> Resolution {
        let admitted = charges.iter().filter(|_| consume).map(|charge| (charge.rule, charge.decision.remaining));
        let admitted: SmallVec<[_; 4]> = admitted.collect();
        let enforced = charges.iter().filter(|charge| !charge.rule.is_shadow());
        let delay = enforced.map(|charge| charge.slot_delay).max().filter(|delay| !delay.is_zero());
        let run_at = delay.map(|delay| self.clock().now().saturating_add(delay));
        let (decision, engine) = (most_restrictive_decision(&charges), self.engine.clone());
        let receipt = if consume && charges.iter().any(Charge::is_settled_later) {
            Receipt::of_holds(engine, charges, origin, sent_at)
        } else {
            Receipt::of_charges(engine, charges, origin, self.is_single)
        };
        let permit = Permit::with_numbers(decision, receipt);
        // If a recorder panics, the permit frees what is held.
        admitted.iter().for_each(|(rule, remaining)| observe::admitted(rule, *remaining));
        Resolution::Admitted(permit, run_at)
    }

    /// Turns charges of which some do not fit into a refusal.
    fn resolve_refused(
        &self,
        charges: Charges,
        consume: bool,
        origin: Origin,
        sent_at: Duration,
    ) -> Result<Resolution, Box<ShadowRejection>> {
        let is_over = |charge: &Charge| charge.decision.retry_after().is_some();
        let refusing = charges.iter().filter(|charge| is_over(charge));
        // Enforced rules come before shadow rules. Next come charges that would not fit even if all
        // others released theirs. Then the longest wait decides.
        let precedence =
            |charge: &&Charge| (!charge.rule.is_shadow(), !charge.fits_when_released, charge.decision.retry_after());
        let Some(charge) = refusing.max_by_key(precedence) else {
            let error = StoreError::misconfigured("the store refused a request, but marked no counter as refused");
            return Ok(Resolution::Rejected(refusal(&self.rule(), error)));
        };
        if charge.rule.is_shadow() {
            let decision = charge.decision;
            let mut rest = charges;
            rest.retain(|charge| {
                let is_over = is_over(charge);
                if is_over && consume {
                    observe::refused_in_shadow(&charge.rule);
                }
                !is_over
            });
            rest.iter_mut().for_each(|charge| charge.hold = charge.hold.map(Hold::anew));
            return Err(Box::new(ShadowRejection { decision, rest }));
        }
        let Decision { remaining, retry_after_ms, .. } = charge.decision;
        let refused = RequestPerMinute::exceeded(&charge.rule, charge.least(), remaining, retry_after_ms);
        if charge.slot_delay > charge.longest_wait {
            return Ok(Resolution::Rejected(refused)); // waiting and asking again brings the slot no sooner
        }
        let refused = match charge.hold {
            // The cost would fit, but there are too many holds, or it is another caller's turn.
            Some(hold) if !hold.exclusive && charge.least() <= charge.decision.remaining => refused.of_holds(),
            Some(hold) if hold.is_timed => refused.of_time(),
            _ => refused,
        };
        let is_exclusive = charge.hold.is_some_and(|hold| hold.exclusive);
        let reason = match charge.fits_when_released {
            true if charge.rule.is_concurrent() => RefusalReason::Concurrency,
            true if is_exclusive => RefusalReason::Exclusive,
            _ => RefusalReason::Quota,
        };
        if consume && !self.waits_for(reason) {
            let shadowing = charges.iter().filter(|charge| charge.rule.is_shadow() && is_over(charge));
            shadowing.for_each(|charge| observe::refused_in_shadow(&charge.rule));
        }
        let (counter, may_free_early) =
            (charge.counter.id(), charge.may_free_early() || matches!(origin, Origin::LocalFallback));
        let ready_in = charge.decision.retry_after().unwrap_or_default();
        let mut charges = charges;
        let answer = match origin {
            Origin::Store => StoreAnswer::of(&charges, sent_at),
            Origin::LocalFallback => {
                self.restore_rules(&mut charges);
                StoreAnswer::of_local(&charges, sent_at)
            }
        };
        let refusing = charges.iter().find(|charge| charge.counter.id() == counter);
        let refusal = refusing.map(|charge| (QueueId::of(charge), refused.clone()));
        let answer = StoreAnswer { refusal, ..answer };
        Ok(Resolution::Exceeded(Box::new(RetryableRefusal {
            refusal: refused,
            reason,
            ready_in,
            may_free_early,
            charges,
            answer,
        })))
    }
}
