//! All or nothing: several rules in one request, and concurrent calls.

use super::scenario::{Checked, resized, rule_by};
use crate::{
    Rule,
    conformance::trial::Trial,
    store::{Charges, Request},
};

pub(super) async fn several(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let other = rule_by("other", rule.algorithm());
    trial.charge(&other, 0, 1).await?;
    let both = |trial: &Trial<'_>, rules: [(&Rule, u64); 2]| {
        let mut charges = Charges::default();
        for (rule, cost) in rules {
            charges.push(trial.new_charge(rule, 0, cost));
        }
        charges
    };
    for consume in [false, true] {
        // First the second charge does not fit, then the first.
        let mut charges = both(&trial, [(&rule, 1), (&other, other.limit())]);
        for _ in 0..2 {
            trial.decide(Request::new(charges.clone(), consume)).await?;
            charges = both(&trial, [(&other, other.limit()), (&rule, 1)]);
        }
        trial.peek(&rule, 0, rule.limit()).await?;
        trial.peek(&other, 0, 1).await?;
    }
    let charges = both(&trial, [(&rule, rule.limit()), (&other, other.limit() - 1)]);
    for _ in 0..2 {
        trial.decide(Request::new(charges.clone(), true)).await?;
    }
    let grant = trial.pop_grant(0).expect("the first was granted");
    trial.refund(grant).await?;
    trial.peek(&rule, 0, 1).await?;
    trial.peek(&other, 0, 1).await.map(drop)
}

/// Enough calls that some are concurrent.
const MANY: u64 = 120;

pub(super) async fn concurrent_calls(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let rule = resized("crowd", rule, MANY);
    trial.charge_many(&[rule], 3 * MANY, false).await?;
    trial.peek(&rule, 0, 1).await.map(drop)
}

pub(super) async fn concurrent_requests(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let rules = [resized("crowd one", rule, MANY / 2), resized("crowd two", rule, MANY)];
    trial.charge_many(&rules, 2 * MANY, false).await?;
    trial.peek(&rules[0], 0, 1).await?;
    trial.peek(&rules[1], 0, 1).await.map(drop)
}
