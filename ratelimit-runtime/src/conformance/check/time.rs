//! Time: how long a charge counts, and the waits that a decision names.

use std::time::Duration;

use super::scenario::{COUNT, Checked, MILLISECOND};
use crate::{Rule, conformance::trial::Trial, store::Request};

/// Sends calls over two and a half periods, some of which are refused.
pub(super) async fn period(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.charge(&rule, 0, rule.limit().div_ceil(2)).await?;
    for step in 0..24 {
        trial.pass(rule.period() / 10 + MILLISECOND * (step % 3));
        trial.charge(&rule, 0, 1).await?;
        trial.charge(&rule, 0, rule.limit()).await?;
    }
    // Periods are half open.
    trial.charge(&rule, 1, rule.limit()).await?;
    trial.pass(rule.period().saturating_sub(MILLISECOND));
    trial.charge(&rule, 1, 1).await?;
    trial.pass(MILLISECOND);
    trial.charge(&rule, 1, rule.limit()).await.map(drop)
}

/// Fills the counter at several times.
async fn fill(trial: &mut Trial<'_>, rule: &Rule) -> Checked {
    trial.pass(Duration::from_millis(rule.period_ms() / 3 + 7));
    for cost in [rule.limit() / 2, rule.limit() / 4, rule.limit() - rule.limit() / 2 - rule.limit() / 4] {
        trial.charge(rule, 0, cost).await?;
        trial.pass(Duration::from_millis(rule.period_ms() / 50));
    }
    Ok(())
}

pub(super) async fn retry(mut trial: Trial<'_>, rule: Rule, cost: u64) -> Checked {
    fill(&mut trial, &rule).await?;
    for _ in 0..3 {
        if trial.charge(&rule, 0, cost).await?.outcome == Ok(true) {
            continue;
        }
        trial.pass(trial.retry_after.saturating_sub(MILLISECOND));
        trial.charge(&rule, 0, cost).await?;
        trial.pass(MILLISECOND);
        trial.charge(&rule, 0, cost).await?;
    }
    Ok(())
}

pub(super) async fn reset_after(mut trial: Trial<'_>, rule: Rule) -> Checked {
    fill(&mut trial, &rule).await?;
    trial.peek(&rule, 0, 1).await?;
    trial.pass(trial.reset_after.saturating_sub(MILLISECOND));
    trial.peek(&rule, 0, rule.limit()).await?;
    trial.pass(MILLISECOND);
    trial.peek(&rule, 0, rule.limit()).await.map(drop)
}

pub(super) async fn slots(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for step in 0..4 * rule.limit() {
        trial.charge(&rule, 0, 1 + step % 2 * u64::from(rule.limit() > 1)).await?;
        trial.pass(Duration::from_millis(rule.period_ms() / COUNT * 4 / 5));
    }
    Ok(())
}

pub(super) async fn longest_wait(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let spacing = rule.period() / u32::try_from(COUNT).expect("a small number");
    for wait in [Duration::ZERO, spacing.saturating_sub(MILLISECOND), spacing, 2 * spacing] {
        for consume in [false, true] {
            let mut charge = trial.new_charge(&rule, 0, 1);
            charge.longest_wait = wait;
            trial.decide(Request::new(charge, consume)).await?;
        }
        trial.pass(MILLISECOND);
    }
    Ok(())
}
