//! Charges: costs, refusals, requests that do not consume, and batches.

use super::scenario::{COUNT, Checked, MILLISECOND, rule_by};
use crate::{Algorithm, Rule, conformance::trial::Trial, store::Request};

pub(super) async fn fresh_counter(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.charge(&rule, 0, 1).await.map(drop)
}

pub(super) async fn cost(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let half = rule.limit().div_ceil(2);
    trial.charge(&rule, 0, half).await?;
    trial.pass(MILLISECOND);
    trial.charge(&rule, 0, rule.limit() - half).await?;
    trial.charge(&rule, 0, 1).await.map(drop)
}

pub(super) async fn same_instant(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for _ in 0..=rule.limit() {
        trial.charge(&rule, 0, 1).await?;
    }
    Ok(())
}

pub(super) async fn refusal(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.charge(&rule, 0, 1).await?;
    for _ in 0..3 {
        trial.charge(&rule, 0, rule.limit()).await?;
    }
    trial.charge(&rule, 0, rule.limit() - 1).await?;
    for _ in 0..3 {
        trial.charge(&rule, 0, 1).await?;
        trial.pass(MILLISECOND);
    }
    trial.peek(&rule, 0, 1).await.map(drop)
}

pub(super) async fn peek(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for _ in 0..2 {
        for cost in [1, rule.limit(), 0] {
            trial.peek(&rule, 0, cost).await?;
        }
    }
    trial.charge(&rule, 0, 1).await?;
    for _ in 0..2 {
        for cost in [1, rule.limit(), 0] {
            trial.peek(&rule, 0, cost).await?;
        }
        trial.pass(MILLISECOND);
    }
    trial.charge(&rule, 0, rule.limit() - 1).await.map(drop)
}

pub(super) async fn cost_of_zero(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.charge(&rule, 0, 0).await?;
    trial.charge(&rule, 0, rule.limit()).await?;
    for _ in 0..2 {
        trial.charge(&rule, 0, 0).await?;
        trial.peek(&rule, 0, 0).await?;
        trial.pass(MILLISECOND);
    }
    trial.peek(&rule, 0, 1).await.map(drop)
}

pub(super) async fn separate_counters(mut trial: Trial<'_>, rule: Rule, algorithms: &[Algorithm]) -> Checked {
    trial.charge(&rule, 0, rule.limit()).await?;
    trial.charge(&rule, 1, 1).await?;
    let longer = Rule::new(rule.prefix(), COUNT, 2 * rule.period()).with_algorithm(rule.algorithm());
    trial.charge(&longer, 0, 1).await?;
    let mut used = vec![trial.new_charge(&rule, 0, 1).counter];
    for other in algorithms.iter().map(|&other| rule_by(rule.prefix(), other)) {
        let counter = trial.new_charge(&other, 0, 1).counter;
        if !used.contains(&counter) {
            used.push(counter);
            trial.charge(&other, 0, 1).await?;
        }
    }
    trial.peek(&rule, 0, 1).await?;
    trial.peek(&rule, 1, rule.limit()).await?;
    trial.peek(&longer, 0, longer.limit()).await.map(drop)
}

pub(super) async fn batch(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.charge(&rule, 0, rule.limit()).await?;
    let request = |key, cost, consume| Request::new(trial.new_charge(&rule, key, cost), consume);
    let requests = vec![
        request(1, 1, true),
        request(0, 1, true),
        request(2, rule.limit(), true),
        request(3, 1, false),
        request(4, 0, true),
    ];
    trial.decide_batch(requests).await?;
    for key in 0..5 {
        trial.peek(&rule, key, 1).await?;
    }
    trial.decide_batch(vec![]).await.map(drop)
}

pub(super) async fn batch_of_one_counter(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let calls = rule.limit() + 3;
    trial.charge_many(&[rule], calls, true).await?;
    trial.peek(&rule, 0, 1).await.map(drop)
}
