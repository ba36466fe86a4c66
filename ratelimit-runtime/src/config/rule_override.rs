//! The settings that override one rule of the code.

use std::time::Duration;

use crate::{
    Algorithm, OnStoreError, Rule,
    algorithm::{HoldSupport, capabilities},
    duration::ReadableDuration,
    rule::{
        algorithm::RuleField,
        call_kind::{CallCost, CallKind},
        limits::{MOST_BUCKETS, RuleFault, is_lease, lease_bounds},
    },
};

/// Settings for one rule. `None` keeps the rule's own.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleOverride {
    pub(super) enabled: Option<bool>,
    pub(super) count: Option<u64>,
    pub(super) period: Option<Duration>,
    pub(super) algorithm: Option<AlgorithmSpec>,
    pub(super) shadow: Option<bool>,
    /// Zero: no ban.
    pub(super) ban: Option<Duration>,
    pub(super) on_store_error: Option<OnStoreError>,
}

/// An algorithm with its options.
#[derive(Clone, Copy, Debug)]
pub(super) enum AlgorithmSpec {
    Complete(Algorithm),
    /// Without the option that bounds a cost, such as `burst`. It then is the count.
    SizedByCount(Algorithm),
}

impl RuleOverride {
    /// The rule with these settings.
    pub(super) fn apply(&self, rule: &Rule) -> Rule {
        let count = self.count.unwrap_or(rule.count());
        let algorithm = match self.algorithm {
            // The code has sized it by the count of this call.
            None if rule.count() == 0 && rule.algorithm().lacks_burst() => rule.algorithm().with_largest_cost(count),
            None => rule.algorithm(),
            Some(AlgorithmSpec::Complete(algorithm)) => algorithm,
            Some(AlgorithmSpec::SizedByCount(algorithm)) => algorithm.with_largest_cost(count),
        };
        let changed = Rule::new(rule.prefix(), count, self.period.unwrap_or(rule.period())).with_algorithm(algorithm);
        let changed =
            changed.with_shadow(self.shadow.unwrap_or(rule.is_shadow())).with_denial_cache(rule.caches_denials());
        let changed =
            if capabilities(algorithm).has_prefetch { changed.with_prefetch(rule.prefetch()) } else { changed };
        // The code's own ban gives way to settings that exclude one.
        let keeps_ban = changed.supports_bans() && !changed.is_shadow();
        changed.with_ban(self.ban.or(rule.ban().filter(|_| keeps_ban)).unwrap_or_default())
    }

    #[cfg(feature = "tower")]
    pub(super) fn has_slots(&self) -> bool {
        self.algorithm.is_some_and(|algorithm| match algorithm {
            AlgorithmSpec::Complete(algorithm) | AlgorithmSpec::SizedByCount(algorithm) => {
                capabilities(algorithm).has_slots
            }
        })
    }

    /// The rule that these settings define by themselves. `None` without a count or a period.
    pub(super) fn to_rule(&self, prefix: &'static str) -> Option<Rule> {
        let rule = Rule::new(prefix, self.count?, self.period?);
        Some(self.apply(&rule))
    }

    /// The fault that these settings have with any rule of the code.
    pub(super) fn own_fault(&self) -> Option<String> {
        if let Some(rule) = self.to_rule("checked") {
            let fault = rule.fault()?;
            let is_count = matches!(rule.first_fault(), Some(RuleFault::TooLarge { field: RuleField::Count, .. }));
            return Some(if is_count && self.algorithm.is_none() {
                format!("{fault}; if the rule has another algorithm, write it beside the count")
            } else {
                fault
            });
        }
        // A rule of the code that allows as much as any. A count of 0 bounds no burst.
        let shortest_ms = match self.algorithm {
            Some(AlgorithmSpec::Complete(algorithm)) => algorithm.key_tag().buckets.map_or(1, |n| n.min(MOST_BUCKETS)),
            _ => 1,
        };
        let rule = Rule::new("checked", 0, self.period.unwrap_or(Duration::from_millis(shortest_ms)));
        // The largest count depends on the algorithm.
        let count = self.count.filter(|_| self.algorithm.is_some());
        let fault = Self { count, ..self.clone() }.apply(&rule).fault();
        fault.map(|fault| format!("{fault} (whatever the code says)"))
    }

    /// The reason why these settings do not fit a rule of the code, and what to change.
    pub(super) fn fault_with(&self, rule: &Rule, kind: CallKind) -> Option<String> {
        let changed = self.apply(rule);
        if rule.is_concurrent() && self.ban.is_some_and(|ban| !ban.is_zero()) {
            return Some("a limit of concurrent calls cannot ban; remove `ban` from the file".into());
        }
        if let (Some(fault), false) = (changed.fault(), rule.has_fault()) {
            return Some(fault);
        }
        let (before, after) = (rule.algorithm(), changed.algorithm());
        let (can_before, can_after) = (capabilities(before), capabilities(after));
        match () {
            // Also if the rule has this algorithm from the file, by `Rules::rule`.
            () if kind.is_one_of_several && can_after.stands_alone && self.algorithm.is_some() => Some(format!(
                "a {} cannot be one of several rules of a call; set another algorithm in the file",
                can_after.name
            )),
            () if rule.is_concurrent() && self.period.is_some_and(|lease| !is_lease(lease)) => Some(format!(
                "the time of a limit of concurrent calls is the lease of a place, and must be {}; the file says {}",
                lease_bounds!(),
                ReadableDuration(changed.period())
            )),
            () if before == after => None,
            () if kind.cost == CallCost::Debt && !changed.decides_at_once() => Some(format!(
                "calls that are charged without asking have no place in a {}; set another algorithm in the file",
                can_after.name
            )),
            () if rule.is_concurrent() => Some(
                "a limit of concurrent calls cannot have another algorithm; remove `algorithm` from the file".into(),
            ),
            () if kind.cost == CallCost::Settled && can_before.holds == HoldSupport::Settled => {
                let needed = can_before.name;
                Some(format!(
                    "the cost of these calls is held until it is settled, as the code says {needed}; the file says \
                     {after:?}; set algorithm = \"{needed}\", or remove it"
                ))
            }
            () if kind.cost == CallCost::Settled && can_after.holds == HoldSupport::Never => Some(format!(
                "the cost of these calls is settled, and a {} has no cost to settle; set another algorithm in the file",
                can_after.name
            )),
            () => None,
        }
    }

    /// These settings, with those of `under` where they are missing.
    pub(super) fn merged_over(self, under: &Self) -> Self {
        Self {
            enabled: self.enabled.or(under.enabled),
            count: self.count.or(under.count),
            period: self.period.or(under.period),
            algorithm: self.algorithm.or(under.algorithm),
            shadow: self.shadow.or(under.shadow),
            ban: self.ban.or(under.ban),
            on_store_error: self.on_store_error.or(under.on_store_error),
        }
    }
}
