//! A call as its caller requests it: keys, costs and options, and the charges they result in.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::watch::Receiver;

use super::{
    core::EngineRef,
    options::{AcquireOptions, OnLimit},
    outage::OutageWait,
    refusal::refusal,
    settings::CurrentRules,
};
use crate::{
    Clock, Key, OnStoreError, RequestPerMinute, Rule, SetupError,
    algorithm::{Capabilities, HoldSupport, capabilities},
    backend::MAX_AT_ONCE,
    decision::round_up_ms,
    observe,
    rule::call_kind::{CallCost, CallKind},
    store::{BANS_NOTHING, Charge, Charges, HOLDS_NOTHING, Hold, StoreError},
};

/// The request of one call, and the engine that decides it.
pub(crate) struct AcquireRequest {
    pub(super) engine: EngineRef,
    pub(super) charges: SmallVec<[AppliedCharge; 1]>,
    /// One rule was requested, even if it does not apply now.
    pub(super) is_single: bool,
    pub(super) options: AcquireOptions,
    /// The choice when all places are in use.
    on_busy: OnLimit,
    /// The ticket of a call that may wait.
    pub(super) wait_ticket: Option<WaitTicket>,
    /// Changes of the rules since the request was made. `None` if they can't change.
    pub(super) rule_changes: Option<Receiver<()>>,
    /// The policy that the rules file sets for its rules.
    pub(super) rule_policy: Option<OnStoreError>,
    /// The wait of a call that outlasts failures of the store.
    pub(super) outage_wait: Option<OutageWait>,
    /// Whether metrics and the log have the wait of this call.
    pub(super) is_observed: bool,
}

/// One charge as a caller requests it.
#[derive(Clone, Debug)]
pub struct ChargeRequest {
    pub(crate) rule: Rule,
    pub(crate) key: RequestKey,
    pub(crate) cost: u64,
    pub(crate) cost_kind: CostKind,
}

/// The charges of one call. Two have no allocation of their own.
pub type ChargeRequests = SmallVec<[ChargeRequest; 2]>;

/// A [`ChargeRequest`] that is not copied yet.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedCharge<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) key: &'a RequestKey,
    pub(crate) cost: u64,
    pub(crate) cost_kind: CostKind,
}

/// The charges of one attempt: in place, as many as an attempt takes.
pub(crate) type BorrowedCharges<'a> = SmallVec<[BorrowedCharge<'a>; MAX_AT_ONCE]>;

impl ChargeRequest {
    /// The cost that has to fit: of a granted time, any part will do.
    fn least(&self) -> u64 {
        if self.cost_kind == CostKind::Elapsed { self.cost.min(1) } else { self.cost }
    }

    pub(super) fn borrowed(&self) -> BorrowedCharge<'_> {
        let Self { rule, key, cost, cost_kind } = self;
        BorrowedCharge { rule, key, cost: *cost, cost_kind: *cost_kind }
    }
}

/// A charge, and its rule as it applies now: the rules file may change while a caller waits.
pub(super) struct AppliedCharge {
    pub(super) request: ChargeRequest,
    /// `None` if the rule is skipped, see [`applied_rule`].
    pub(super) rule: Option<Rule>,
}

impl From<ChargeRequest> for AppliedCharge {
    fn from(request: ChargeRequest) -> Self {
        Self { rule: Some(request.rule), request }
    }
}

/// The kind of amount that a call is charged in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CostKind {
    /// The cost itself. Places of [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) are held.
    Fixed,
    /// The cost itself, even if it does not fit.
    Forced,
    /// The amount reported at the end. The cost counts until then.
    Reported,
    /// The elapsed milliseconds. Until the end the remaining quota is held, up to the cost.
    Elapsed,
}

impl CostKind {
    /// The kind of cost, as far as it decides whether settings of a rules file fit the call.
    pub(crate) fn of_call(self) -> CallCost {
        match self {
            Self::Fixed => CallCost::Fixed,
            Self::Forced => CallCost::Debt,
            Self::Reported | Self::Elapsed => CallCost::Settled,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum RequestKey {
    /// [`Key::NONE`] for one counter of all callers.
    Some(Key),
    /// A missing key: the call is refused.
    Missing,
    /// A missing key: the rule is skipped.
    Skip,
    /// The call is misconfigured, for this reason.
    Invalid(&'static str),
}

impl RequestKey {
    /// The key of the counter. `None` if the call is refused, or skips the rule.
    #[inline]
    pub(super) fn counter_key(&self) -> Option<&Key> {
        if let Self::Some(key) = self { Some(key) } else { None }
    }

    /// The key of the counter. [`Key::NONE`] also if there is no counter.
    pub(crate) fn or_none(&self) -> &Key {
        self.counter_key().unwrap_or(&Key::NONE)
    }
}

/// The place in line of a caller who may wait.
#[derive(Clone, Copy)]
pub(super) struct WaitTicket {
    pub(super) id: u64,
    pub(super) arrived_at: Duration,
    /// See [`WaitQueues::changes`](super::queue::WaitQueues::changes).
    pub(super) changes: u64,
}

impl WaitTicket {
    /// Moves its time on: an outage of the store takes nothing from the time to wait for a limit.
    pub(super) fn postpone(&mut self, away: Duration) {
        self.arrived_at = self.arrived_at.saturating_add(away);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusalReason {
    Quota,
    /// All places are in use.
    Concurrency,
    /// Another caller holds all that remains.
    Exclusive,
}

/// The default lease of settled costs and reservations: how long they are held without a renewal.
/// The lease of a place is the period of its rule.
pub(super) const LEASE: Duration = Duration::from_secs(30);
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

pub(crate) const BAN_AND_WAIT: &str = "a call that waits for its limit cannot ban: remove `ban`, or reject the call";
const NO_DEBT: &str = "places and slots can't be in debt; acquire them, or charge a rule of another algorithm";
const ONLY_A_LOG_HOLDS: &str = "only a `SlidingLog` can charge the time that a call took";
const NOTHING_TO_SETTLE: &str = "slots and places have no cost to settle; settle a rule of another algorithm";
const SHARED_AND_SETTLED: &str = "two charges of the call have the same counter, and one of them is settled later; \
    give them different prefixes or keys";
const PREFETCH_OR_SETTLE: &str = "prefetched permits can't be settled: remove `prefetch`";

/// The reason why calls of a rule can't be settled. `None` if they can. `is_timed`: their cost is
/// the elapsed time.
pub(crate) const fn settle_fault(rule: &Rule, is_timed: bool) -> Option<&'static str> {
    match capabilities(rule.algorithm()).holds {
        HoldSupport::Settled => None,
        _ if is_timed => Some(ONLY_A_LOG_HOLDS),
        HoldSupport::Refunded if rule.prefetch() > 1 => Some(PREFETCH_OR_SETTLE),
        HoldSupport::Refunded => None,
        HoldSupport::Never | HoldSupport::Always => Some(NOTHING_TO_SETTLE),
    }
}

/// The rule, if its calls can be settled. In a constant, it checks that when the user's crate is
/// compiled.
///
/// # Panics
///
/// If they can't.
pub(crate) const fn check_settled(rule: Rule, is_timed: bool) -> Rule {
    if let Some(fault) = settle_fault(&rule, is_timed) {
        panic!("{}", fault);
    }
    rule
}

impl AcquireRequest {
    pub(super) fn new(
        engine: EngineRef,
        charges: SmallVec<[AppliedCharge; 1]>,
        options: AcquireOptions,
        on_busy: OnLimit,
    ) -> Self {
        let rule_changes = engine.settings().rule_changes();
        Self {
            engine,
            charges,
            is_single: false,
            options,
            on_busy,
            wait_ticket: None,
            rule_changes,
            rule_policy: None,
            outage_wait: None,
            is_observed: false,
        }
    }

    /// For one rule.
    pub(super) fn single(engine: EngineRef, rule: Rule, key: RequestKey, cost: u64, options: AcquireOptions) -> Self {
        let request = ChargeRequest { rule, key, cost, cost_kind: CostKind::Fixed };
        let charges = SmallVec::from_buf([request.into()]); // in place
        Self { is_single: true, ..Self::new(engine, charges, options, options.on_limit()) }
    }

    pub(super) fn take_wait_ticket(&self) -> Option<WaitTicket> {
        let mut reasons = [RefusalReason::Quota, RefusalReason::Concurrency, RefusalReason::Exclusive].into_iter();
        let waits = reasons.any(|reason| self.waits_for(reason));
        let ticket = || WaitTicket { id: self.engine.queues().ticket(), arrived_at: self.clock().now(), changes: 0 };
        waits.then(ticket)
    }

    /// The choice after a refusal for this reason: reject, or wait.
    fn on_refusal(&self, reason: RefusalReason) -> OnLimit {
        match (reason, self.options.on_limit()) {
            (RefusalReason::Concurrency, _) => self.on_busy,
            // Calls that use all that remains run one after another, and wait even where others are
            // rejected.
            (RefusalReason::Exclusive, OnLimit::Reject) => OnLimit::Wait(None),
            (RefusalReason::Quota | RefusalReason::Exclusive, on_limit) => on_limit,
        }
    }

    pub(super) fn waits_for(&self, reason: RefusalReason) -> bool {
        let may_be = match reason {
            RefusalReason::Quota => true,
            RefusalReason::Concurrency => self.charges.iter().any(|charge| charge.request.rule.is_concurrent()),
            RefusalReason::Exclusive => self.charges.iter().any(AppliedCharge::is_exclusive),
        };
        may_be && matches!(self.on_refusal(reason), OnLimit::Wait(_))
    }

    /// The time that is left of the longest wait. In whole milliseconds, rounded up, as the waits for a turn are:
    /// otherwise a turn in time could seem to come too late.
    pub(super) fn left_of_wait(&self, reason: RefusalReason, ticket: WaitTicket, now: Duration) -> Option<Duration> {
        let longest = match self.on_refusal(reason) {
            OnLimit::Wait(longest) => longest?,
            OnLimit::Reject => Duration::ZERO,
        };
        if longest.is_zero() {
            return Some(Duration::ZERO); // also if the clock of another processor is a little behind
        }
        let left = ticket.arrived_at.saturating_add(longest).saturating_sub(now);
        Some(Duration::from_millis(round_up_ms(left)))
    }

    /// Sets how long the caller still waits for the counter of a charge, from now on.
    pub(super) fn limit_wait(&self, charge: &mut Charge) {
        let Some(ticket) = self.wait_ticket else { return };
        let reason = match charge.hold {
            _ if charge.rule.is_concurrent() => RefusalReason::Concurrency,
            Some(Hold { exclusive: true, .. }) => RefusalReason::Exclusive,
            _ => RefusalReason::Quota,
        };
        charge.longest_wait = match self.left_of_wait(reason, ticket, self.clock().now()) {
            _ if !self.waits_for(reason) => Duration::ZERO,
            None => Duration::MAX,
            Some(left) => left.saturating_add(Charge::SHORTEST_WAIT),
        };
    }

    /// The charges of the call. They are checked, so that a store gets only charges it can decide.
    pub(super) fn charges(&self) -> Result<Charges, RequestPerMinute> {
        let mut charges = Charges::with_capacity(self.charges.len());
        let mut has_cost_to_settle = false;
        let is_moved = self.charges.iter().any(AppliedCharge::is_moved_by_file);
        for (at, AppliedCharge { request, rule }) in self.charges.iter().enumerate() {
            let (ChargeRequest { key, cost, .. }, Some(rule)) = (request, rule) else { continue };
            // It only adds its limit to the earlier charge.
            let cost = if is_moved && self.is_merged_by_file(at) { 0 } else { *cost };
            let key = match key {
                RequestKey::Some(key) => key,
                RequestKey::Missing if self.engine.store().is_some() => {
                    return Err(RequestPerMinute::missing_key(rule));
                }
                RequestKey::Missing | RequestKey::Skip => continue,
                RequestKey::Invalid(reason) => return Err(refusal(rule, StoreError::misconfigured(*reason))),
            };
            let mut charge = self.engine.charge(rule, key, cost)?;
            if request.cost_kind == CostKind::Forced && !rule.decides_at_once() {
                return Err(refusal(rule, StoreError::misconfigured(NO_DEBT)));
            }
            if request.is_settled_later() && cost > 0 {
                self.settle_later(request, &mut charge)?;
            }
            has_cost_to_settle |= charge.has_cost_to_settle();
            if has_cost_to_settle
                && let Some(other) = charges.iter().find(|other| other.counter == charge.counter)
                && other.cost > 0
                && charge.cost > 0
                && [other, &charge].into_iter().any(Charge::has_cost_to_settle)
            {
                match (other.rule.is_shadow(), rule.is_shadow()) {
                    (false, false) => return Err(refusal(rule, StoreError::misconfigured(SHARED_AND_SETTLED))),
                    // A rule in shadow mode refuses nothing.
                    (_, true) => continue,
                    (true, false) => charges.retain(|other| other.counter != charge.counter),
                }
            }
            charges.push(charge);
        }
        // By the rules as they are merged.
        for charge in &mut *charges {
            if let Some(hold) = charge.hold.as_mut().filter(|hold| hold.is_timed) {
                hold.exclusive = charge.cost >= charge.rule.limit();
                charge.cost = charge.cost.min(charge.rule.limit().max(1)); // not 0, so that a limit of 0 refuses the call
            }
            self.limit_wait(charge);
        }
        if charges.len() > 1 {
            for Charge { rule, .. } in &*charges {
                if let Some(reason) = stands_alone(rule) {
                    return Err(refusal(rule, StoreError::misconfigured(reason)));
                }
            }
        }
        if let Some(charge) = charges.iter().find(|charge| charge.rule.ban_ms() > 0) {
            let error = match self.engine.store() {
                Some(store) if !store.supports_bans() => BANS_NOTHING,
                _ if self.options.waits => BAN_AND_WAIT,
                _ => "",
            };
            if !error.is_empty() {
                return Err(refusal(&charge.rule, StoreError::misconfigured(error)));
            }
        }
        if self.options.spares {
            charges.iter_mut().for_each(|charge| charge.rule = charge.rule.with_ban(Duration::ZERO));
        }
        match charges.iter().find(|charge| charge.least() > charge.rule.limit()) {
            Some(charge) if self.engine.store().is_some() => {
                Err(RequestPerMinute::never_fits(&charge.rule, charge.cost))
            }
            _ => Ok(charges),
        }
    }

    /// True if the rules file gives this charge the counter of an earlier one of the call. By the code they have
    /// two counters with one prefix, and a cost that counts twice in one of them would exceed what the file says.
    fn is_merged_by_file(&self, at: usize) -> bool {
        let AppliedCharge { request, rule } = &self.charges[at];
        let RequestKey::Some(key) = &request.key else { return false };
        self.charges[..at].iter().any(|AppliedCharge { request: other, rule: its_rule }| {
            rule.map(|rule| rule.id()) == its_rule.map(|rule| rule.id())
                && request.rule.id() != other.rule.id()
                && matches!(&other.key, RequestKey::Some(other) if other == key)
                && (other.cost, other.cost_kind) == (request.cost, request.cost_kind)
        })
    }

    /// Makes the charge one that is settled when the call ends: with a hold if the algorithm has holds.
    fn settle_later(&self, request: &ChargeRequest, charge: &mut Charge) -> Result<(), RequestPerMinute> {
        let Charge { rule, cost, .. } = *charge;
        let is_timed = request.cost_kind == CostKind::Elapsed;
        let is_place = request.cost_kind == CostKind::Fixed;
        if let Some(fault) = settle_fault(&rule, is_timed).filter(|_| !is_place) {
            let error = format!("{fault} ({:?})", rule.algorithm());
            return Err(refusal(&rule, StoreError::misconfigured(error)));
        }
        if capabilities(rule.algorithm()).holds == HoldSupport::Refunded {
            charge.settles = true;
            return Ok(());
        }
        let lease = match request.cost_kind {
            _ if is_place => rule.period(),
            // If the holder dies, it is charged when its granted time would have been over.
            CostKind::Elapsed => Duration::from_millis(cost.min(rule.limit())).clamp(SHORTEST_LEASE, LEASE),
            _ => LEASE,
        };
        if self.engine.store().is_some_and(|store| !store.supports_holds()) {
            return Err(refusal(&rule, StoreError::misconfigured(HOLDS_NOTHING)));
        }
        let is_kept = self.engine.memory().is_some();
        let hold = if is_kept { Hold::kept(lease) } else { Hold::new(lease) };
        charge.hold = Some(Hold { allow_partial: is_timed, is_timed, ..hold });
        Ok(())
    }

    /// The rule under which an error of the store is reported.
    pub(super) fn rule(&self) -> Rule {
        let rules = || self.charges.iter().filter_map(|charge| charge.rule);
        let first = rules().find(|rule| !rule.is_shadow()).or(rules().next());
        first.or(self.charges.first().map(|charge| charge.request.rule)).unwrap_or(Rule::new("", 0, Duration::ZERO))
    }

    /// Applies the current rules to the charges, all from one table.
    pub(super) fn apply_rules(&mut self, is_first: bool) {
        let rules = self.engine.settings().rules_now();
        let kind =
            CallKind { is_one_of_several: self.charges.len() > 1, waits: self.options.waits, ..CallKind::default() };
        for AppliedCharge { request, rule } in &mut self.charges {
            *rule = applied_rule(&rules, request, kind, is_first);
        }
        self.skip_repeated_shadows(is_first);
        let mut active = self.charges.iter().filter_map(|charge| charge.rule);
        self.rule_policy = active.find_map(|rule| rules.on_store_error(rule.prefix()));
    }

    /// Skips charges by rules in shadow mode that exceed a limit of their counter together with the enforced charges of
    /// it, and the earlier ones in shadow mode. The lower limit applies to all of them.
    fn skip_repeated_shadows(&mut self, is_first: bool) {
        for at in 0..self.charges.len() {
            let AppliedCharge { request: ChargeRequest { key, cost_kind: CostKind::Fixed, .. }, rule: Some(rule) } =
                &self.charges[at]
            else {
                continue;
            };
            if !rule.is_shadow() || rule.has_fault() {
                continue;
            }
            let (mut cost, mut limit) = (0_u64, rule.limit());
            for (other, AppliedCharge { request, rule: its_rule }) in self.charges.iter().enumerate() {
                let is_same = |its: &&Rule| {
                    its.id() == rule.id()
                        && matches!((key, &request.key), (RequestKey::Some(key), RequestKey::Some(its)) if key == its)
                        && request.cost_kind == CostKind::Fixed
                };
                let Some(its_rule) = its_rule.as_ref().filter(is_same) else { continue };
                if other > at && its_rule.is_shadow() {
                    continue;
                }
                limit = limit.min(its_rule.limit());
                if !self.is_merged_by_file(other) {
                    cost = cost.saturating_add(request.cost); // one that is merged costs nothing more
                }
            }
            if cost > limit {
                if is_first {
                    observe::refused_in_shadow(rule);
                }
                self.charges[at].rule = None;
            }
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.engine.settings().clock
    }
}

/// The reason why a rule can't be one of several of a call.
fn stands_alone(rule: &Rule) -> Option<&'static str> {
    match capabilities(rule.algorithm()) {
        Capabilities { stands_alone: true, .. } => {
            Some("a `LeakyBucket` stands alone: acquire its rule in a call of its own")
        }
        _ if rule.prefetch() > 1 => Some("a rule with `prefetch` stands alone: acquire it in a call of its own"),
        _ => None,
    }
}

impl Rule {
    /// Checks that one call can charge these rules together, as [`Limiter::acquire_all`] and a layer
    /// with several limits do. Otherwise each such call is
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured).
    ///
    /// It is for rules that are not known when the program is written, such as those of a file.
    ///
    /// [`Limiter::acquire_all`]: crate::Limiter::acquire_all
    ///
    /// # Errors
    ///
    /// A [`SetupError`] that names the first invalid rule, or the first of several rules that has to
    /// stand alone: a [`LeakyBucket`](crate::Algorithm::LeakyBucket), or a rule with
    /// [prefetch](Rule::with_prefetch).
    ///
    /// ```
    /// use ratelimit_runtime::{Algorithm, Rule};
    /// use std::time::Duration;
    ///
    /// const ALL: Rule = Rule::new("all", 100, Duration::from_secs(1));
    /// const PACED: Rule = ALL.with_algorithm(Algorithm::LeakyBucket { queue: 9 });
    ///
    /// assert!(Rule::check_together(&[&PACED]).is_ok());
    /// let error = Rule::check_together(&[&ALL, &PACED]).unwrap_err();
    /// assert_eq!(error.to_string(), "`all`: a `LeakyBucket` stands alone: acquire its rule in a call of its own");
    /// ```
    pub fn check_together(rules: &[&Self]) -> Result<(), SetupError> {
        for rule in rules {
            let fault = rule.fault().or_else(|| stands_alone(rule).filter(|_| rules.len() > 1).map(str::to_owned));
            if let Some(fault) = fault {
                return Err(SetupError::new(format!("`{}`: {fault}", rule.prefix())));
            }
        }
        Ok(())
    }
}

impl ChargeRequest {
    fn is_settled_later(&self) -> bool {
        !matches!(self.cost_kind, CostKind::Fixed | CostKind::Forced) || self.rule.is_concurrent()
    }
}

impl AppliedCharge {
    /// True if the rules file gives the charge another counter than the code does.
    fn is_moved_by_file(&self) -> bool {
        self.rule.is_some_and(|rule| rule.id() != self.request.rule.id())
    }

    /// True if the call leaves nothing for others while it runs.
    fn is_exclusive(&self) -> bool {
        let (ChargeRequest { key, cost, cost_kind, .. }, rule) =
            (&self.request, self.rule.unwrap_or(self.request.rule));
        *cost_kind == CostKind::Elapsed && *cost >= rule.limit() && !matches!(key, RequestKey::Skip)
    }
}

/// The rule as it applies now. `None` if it is skipped: for a missing key, or in shadow mode if it would refuse even
/// without the store.
fn applied_rule(rules: &CurrentRules, request: &ChargeRequest, kind: CallKind, is_first: bool) -> Option<Rule> {
    let ChargeRequest { rule, key, cost_kind, .. } = request;
    let its_key = key.or_none();
    let cost = cost_kind.of_call();
    let rule = rules.applied(rule, its_key, CallKind { cost, ..kind })?.into_owned();
    // The largest limit leaves room for a debt under the limit of other calls.
    let rule = if cost == CallCost::Debt && !rule.has_fault() {
        rule.with_largest_limit().with_ban(Duration::ZERO)
    } else {
        rule
    };
    if matches!(key, RequestKey::Skip) {
        return None;
    }
    let refuses = matches!(key, RequestKey::Missing) || request.least() > rule.limit();
    if rule.is_shadow() && refuses && !rule.has_fault() {
        if is_first {
            observe::refused_in_shadow(&rule);
        }
        return None;
    }
    Some(rule)
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;
    use crate::{Algorithm, Limiter};

    const LOG: Rule = Rule::new("log", 40_000, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);

    /// The charges of a call to one counter.
    fn charges(requests: &[(u64, CostKind)]) -> Result<Charges, RequestPerMinute> {
        let applied = |(cost, cost_kind): &(u64, CostKind)| {
            let key = RequestKey::Some(Key::NONE);
            AppliedCharge::from(ChargeRequest { rule: LOG, key, cost: *cost, cost_kind: *cost_kind })
        };
        let (engine, applied) = (Limiter::in_memory().engine_ref(), requests.iter().map(applied).collect());
        AcquireRequest::new(engine, applied, AcquireOptions::default(), OnLimit::Reject).charges()
    }

    #[test]
    fn a_cost_of_0_is_not_settled_and_may_share_a_counter_with_one_that_is() {
        assert_eq!(charges(&[(0, CostKind::Reported)]).unwrap()[0].hold, None);
        let (none, settled) = ((0, CostKind::Fixed), (5, CostKind::Reported));
        for both in [[none, settled], [settled, none]] {
            let charges = charges(&both).unwrap();
            assert_eq!((charges.len(), charges[0].cost, charges[0].hold.is_some()), (1, 5, true));
        }
        assert!(charges(&[(1, CostKind::Fixed), settled]).is_err());
    }

    #[test]
    fn the_lease_of_a_call_that_is_charged_its_time_is_the_time_that_it_may_take() {
        let lease = |most_ms| charges(&[(most_ms, CostKind::Elapsed)]).unwrap()[0].hold.unwrap().lease;
        assert_eq!([100, 5_000, u64::MAX].map(lease), [SHORTEST_LEASE, Duration::from_secs(5), LEASE]);
    }
}
