//! Changes of a counter other than charges: refunds, resets and changed rules.

use std::time::Duration;

use super::scenario::{COUNT, Checked, MILLISECOND, resized};
use crate::{
    Rule,
    conformance::{model::Model, trial::Trial},
};

pub(super) async fn refund(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for cost in [1, rule.limit().div_ceil(2), rule.limit()] {
        trial.charge(&rule, 0, cost).await?;
        let grant = trial.pop_grant(0).expect("it fits");
        trial.refund(grant).await?;
        trial.peek(&rule, 0, rule.limit()).await?;
    }
    // Later, while another charge counts.
    for pause in [rule.period() / 50, rule.period() / 7 * 2] {
        for _ in 0..2 {
            trial.charge(&rule, 0, rule.limit().div_ceil(3)).await?;
            trial.pass(Duration::from_millis(u64::try_from(pause.as_millis()).expect("a minute")));
        }
        while let Some(grant) = trial.pop_grant(0) {
            trial.refund(grant).await?;
            trial.peek(&rule, 0, 1).await?;
        }
    }
    trial.charge(&rule, 0, 1).await.map(drop)
}

/// As a settlement does it, for algorithms without holds.
pub(super) async fn refund_part(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for tenths in [3, 9] {
        trial.charge(&rule, tenths, rule.limit()).await?;
        let grant = trial.pop_grant(0).expect("it fits");
        trial.refund(grant.part(tenths)).await?;
        trial.peek(&rule, tenths, rule.limit()).await?;
    }
    Ok(())
}

/// For prefetched permits: see [`Charge::receipt`](crate::store::Charge::receipt).
pub(super) async fn receipts(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let mut grants = Vec::new();
    for _ in 0..2 {
        trial.charge(&rule, 0, 1).await?;
        grants.extend(trial.pop_grant(0));
        trial.pass(trial.reset_after / 2);
    }
    trial.pass(trial.reset_after);
    trial.charge(&rule, 0, 1).await?;
    grants.extend(trial.pop_grant(0));
    trial.compare_windows(&grants)
}

pub(super) async fn refund_late(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let third = Duration::from_millis(rule.period_ms() / 3);
    for (key, pause) in
        [2 * third, rule.period().saturating_sub(MILLISECOND), rule.period(), rule.period() + third].iter().enumerate()
    {
        let key = key as u64;
        trial.charge(&rule, key, rule.limit()).await?;
        let grant = trial.pop_grant(0).expect("it fits");
        trial.pass(*pause);
        trial.charge(&rule, key, 1).await?;
        trial.refund(grant).await?;
        trial.peek(&rule, key, 1).await?;
    }
    // And after everything has expired.
    trial.pass(3 * rule.period() + third);
    trial.charge(&rule, 9, rule.limit()).await?;
    let grant = trial.pop_grant(0).expect("it fits");
    trial.pass(trial.reset_after);
    trial.refund(grant).await?;
    trial.charge(&rule, 9, rule.limit()).await.map(drop)
}

pub(super) async fn reset(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.reset(&rule, 0).await?;
    trial.charge(&rule, 0, rule.limit()).await?;
    let old = trial.pop_grant(0).expect("it fits");
    trial.charge(&rule, 1, 1).await?;
    trial.pass(MILLISECOND);
    trial.reset(&rule, 0).await?;
    trial.peek(&rule, 0, 1).await?;
    trial.peek(&rule, 1, 1).await?;
    // Charges in the instant of a reset cannot be told from earlier ones.
    trial.pass(MILLISECOND);
    trial.charge(&rule, 0, 1).await?;
    if Model::tells_resets_apart(&rule) {
        trial.refund(old).await?;
    }
    trial.peek(&rule, 0, 1).await.map(drop)
}

pub(super) async fn change(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let changed = |count, limit| {
        let algorithm = resized(rule.prefix(), rule, limit).algorithm();
        Rule::new(rule.prefix(), count, rule.period()).with_algorithm(algorithm)
    };
    // At different times, so that they do not expire together.
    trial.charge(&rule, 0, rule.limit().div_ceil(2)).await?;
    trial.pass(Duration::from_millis(rule.period_ms() / 50));
    trial.charge(&rule, 0, rule.limit() / 2).await?;
    for (count, size) in [(2 * COUNT, 9), (3, 9), (COUNT, 2), (COUNT, 30), (0, 30), (40, 30)] {
        let changed = changed(count, size);
        for cost in [0, 1, changed.limit()] {
            trial.peek(&changed, 0, cost.min(changed.limit())).await?;
        }
        trial.charge(&changed, 0, changed.limit().min(1)).await?;
        trial.pass(Duration::from_millis(rule.period_ms() / 9));
    }
    trial.peek(&rule, 0, 1).await.map(drop)
}
