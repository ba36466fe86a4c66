//! Holds: leases, renewals and settlements.

use std::time::Duration;

use super::scenario::{Checked, LEASE, LONG_LEASE, MILLISECOND};
use crate::{
    Rule,
    conformance::trial::Trial,
    store::{Charge, Charges, Hold, Request},
};

pub(super) async fn held(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.hold(&rule, 0, 6, Hold::new(LEASE)).await?;
    trial.charge(&rule, 0, 5).await?;
    trial.hold(&rule, 0, 5, Hold::new(LEASE)).await?;
    trial.charge(&rule, 0, 3).await?;
    trial.hold(&rule, 0, 1, Hold::new(LEASE)).await?;
    trial.pass(MILLISECOND);
    trial.peek(&rule, 0, 1).await.map(drop)
}

pub(super) async fn end_of_lease(mut trial: Trial<'_>, rule: Rule, lease: Duration) -> Checked {
    trial.hold(&rule, 0, 6, Hold::new(lease)).await?;
    for time in [lease, rule.period()] {
        trial.pass(time.saturating_sub(MILLISECOND));
        trial.peek(&rule, 0, 5).await?;
        trial.pass(MILLISECOND);
        trial.peek(&rule, 0, 5).await?;
    }
    trial.charge(&rule, 0, rule.limit()).await.map(drop)
}

pub(super) async fn settle(mut trial: Trial<'_>, rule: Rule, used: u64) -> Checked {
    trial.hold(&rule, 0, 6, Hold::new(LEASE)).await?;
    let grant = trial.pop_hold(0).expect("it fits");
    trial.pass(LEASE / 2);
    trial.settle(&grant, |_| used).await?;
    trial.peek(&rule, 0, rule.limit()).await?;
    trial.pass(rule.period().saturating_sub(MILLISECOND));
    trial.peek(&rule, 0, rule.limit()).await?;
    trial.pass(MILLISECOND);
    trial.charge(&rule, 0, rule.limit()).await.map(drop)
}

pub(super) async fn settle_above(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for used in [5, 3, 100] {
        trial.hold(&rule, 0, 2, Hold::new(LEASE)).await?;
        let grant = trial.pop_hold(0).expect("it fits");
        trial.pass(MILLISECOND);
        trial.settle(&grant, |_| used).await?;
        trial.peek(&rule, 0, 1).await?;
    }
    // The charges expire like any other.
    for time in [rule.period().saturating_sub(2 * MILLISECOND), MILLISECOND, MILLISECOND] {
        trial.pass(time);
        trial.peek(&rule, 0, rule.limit()).await?;
    }
    Ok(())
}

pub(super) async fn renew(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.hold(&rule, 0, 6, Hold::new(LEASE)).await?;
    trial.hold(&rule, 0, 2, Hold::new(LEASE)).await?;
    let renewed = trial.pop_hold(1).expect("it fits");
    for _ in 0..3 {
        trial.pass(LEASE.saturating_sub(MILLISECOND));
        trial.renew(&renewed).await?;
        trial.peek(&rule, 0, 5).await?;
    }
    for time in [LEASE, rule.period()] {
        trial.pass(time.saturating_sub(MILLISECOND));
        trial.peek(&rule, 0, 5).await?;
        trial.pass(MILLISECOND);
        trial.peek(&rule, 0, 5).await?;
    }
    Ok(())
}

/// Renews holds with different leases, one of which was settled before.
pub(super) async fn renew_together(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let mut grants = Vec::new();
    for leases in [3, 1, 4, 2, 1] {
        trial.hold(&rule, 0, 1, Hold::new(leases * LEASE)).await?;
        grants.push(trial.pop_hold(0).expect("it fits"));
    }
    trial.hold(&rule, 0, 1, Hold::new(2 * LEASE)).await?;
    trial.settle(&grants[3], |used| used).await?;
    trial.pass(LEASE.saturating_sub(MILLISECOND));
    trial.renew_together(&grants).await?;
    for time in [LEASE, LEASE, LEASE, LEASE, rule.period()] {
        trial.pass(time.saturating_sub(MILLISECOND));
        trial.peek(&rule, 0, rule.limit()).await?;
        trial.pass(MILLISECOND);
        trial.peek(&rule, 0, rule.limit()).await?;
    }
    Ok(())
}

pub(super) async fn renew_late(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for (key, pause) in [LEASE, LEASE + MILLISECOND, LEASE + rule.period()].into_iter().enumerate() {
        let key = key as u64;
        trial.hold(&rule, key, 6, Hold::new(LEASE)).await?;
        let grant = trial.pop_hold(0).expect("it fits");
        trial.pass(pause);
        // A log can renew a hold that has become a charge, as long as the charge counts.
        trial.renew(&grant).await?;
        trial.peek(&rule, key, 5).await?;
        trial.pass(LEASE);
        trial.peek(&rule, key, 5).await?;
    }
    trial.hold(&rule, 9, 6, Hold::new(LEASE)).await?;
    let grant = trial.pop_hold(0).expect("it fits");
    trial.settle(&grant, |_| 1).await?;
    trial.renew(&grant).await?;
    trial.peek(&rule, 9, rule.limit()).await.map(drop)
}

/// Renews a hold that has become a charge: callers that it refuses have to wait longer.
pub(super) async fn renew_again(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.hold(&rule, 0, rule.limit(), Hold::new(LEASE)).await?;
    let grant = trial.pop_hold(0).expect("it fits");
    for _ in 0..3 {
        trial.pass(LEASE + MILLISECOND);
        trial.charge(&rule, 0, 1).await?;
        trial.pass(MILLISECOND);
        trial.renew(&grant).await?;
        trial.charge(&rule, 0, 1).await?;
    }
    Ok(())
}

/// Holds so long that a store which keeps times in a few bytes may mistake an old one for a new
/// one.
pub(super) async fn charge_beside_hold(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.hold(&rule, 0, 1, Hold::new(100 * rule.period())).await?;
    trial.charge(&rule, 0, 5).await?;
    let charged = trial.pop_grant(0).expect("it fits");
    trial.pass(rule.period());
    for _ in 0..110 {
        trial.pass(rule.period() * 9 / 10);
        trial.peek(&rule, 0, 5).await?;
        trial.refund(charged.clone()).await?;
    }
    trial.peek(&rule, 0, 5).await.map(drop)
}

pub(super) async fn settle_late(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for (key, pause) in
        [LEASE, LEASE + rule.period().saturating_sub(MILLISECOND), LEASE + rule.period()].into_iter().enumerate()
    {
        let key = key as u64;
        trial.hold(&rule, key, 6, Hold::new(LEASE)).await?;
        let grant = trial.pop_hold(0).expect("it fits");
        trial.pass(pause);
        trial.peek(&rule, key, rule.limit()).await?;
        trial.settle(&grant, |_| 2).await?;
        trial.peek(&rule, key, rule.limit()).await?;
        trial.pass(rule.period().saturating_sub(MILLISECOND));
        trial.peek(&rule, key, rule.limit()).await?;
        trial.pass(MILLISECOND);
        trial.peek(&rule, key, rule.limit()).await?;
    }
    Ok(())
}

pub(super) async fn settle_twice(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for (key, pause) in
        [Duration::ZERO, MILLISECOND, LEASE, rule.period(), LEASE + rule.period()].into_iter().enumerate()
    {
        for (key, is_retry_first) in [(2 * key as u64, true), (2 * key as u64 + 1, false)] {
            trial.hold(&rule, key, 4, Hold::new(LEASE)).await?;
            let grant = trial.pop_hold(0).expect("it fits");
            for is_retry in [is_retry_first, !is_retry_first, true] {
                if is_retry {
                    trial.settle_retry(&grant, |_| 3).await?;
                } else {
                    trial.settle(&grant, |_| 3).await?;
                }
                // Nothing is held any more, so an exclusive hold fits.
                trial.renew(&grant).await?;
                trial.peek(&rule, key, rule.limit()).await?;
                trial.hold(&rule, key, 0, Hold { exclusive: true, ..Hold::new(LEASE) }).await?;
                trial.pass(pause);
            }
            trial.hold(&rule, key, 1, Hold { exclusive: true, ..Hold::new(LEASE) }).await?;
        }
    }
    // The charge of the unsettled hold has expired.
    trial.hold(&rule, 99, 4, Hold::new(LEASE)).await?;
    let grant = trial.pop_hold(0).expect("it fits");
    trial.pass(LEASE + rule.period());
    trial.settle_retry(&grant, |_| 3).await?;
    trial.peek(&rule, 99, rule.limit()).await?;
    trial.settle(&grant, |_| 3).await?;
    trial.peek(&rule, 99, rule.limit()).await.map(drop)
}

pub(super) async fn partial(mut trial: Trial<'_>, rule: Rule) -> Checked {
    let hold = || Hold { allow_partial: true, ..Hold::new(LEASE) };
    trial.hold(&rule, 0, 4, hold()).await?;
    trial.hold(&rule, 0, rule.limit(), hold()).await?;
    trial.hold(&rule, 0, rule.limit(), hold()).await?;
    trial.hold(&rule, 0, 1, hold()).await?;
    trial.hold(&rule, 0, 0, hold()).await?;
    let rest = trial.pop_hold(0).expect("some of it fits");
    trial.settle(&rest, |_| 1).await?;
    trial.peek(&rule, 0, 1).await?;
    trial.hold(&rule, 0, rule.limit(), hold()).await?;
    let rest = trial.pop_hold(0).expect("some of it fits");
    trial.refund(rest).await?;
    trial.peek(&rule, 0, 1).await.map(drop)
}

pub(super) async fn exclusive(mut trial: Trial<'_>, rule: Rule) -> Checked {
    if rule.is_concurrent() {
        return Ok(()); // places are shared by definition
    }
    let hold = || Hold { exclusive: true, ..Hold::new(LEASE) };
    trial.hold(&rule, 0, 2, hold()).await?;
    trial.hold(&rule, 0, 1, Hold::new(LONG_LEASE)).await?;
    for cost in [1, rule.limit(), 0] {
        trial.hold(&rule, 0, cost, hold()).await?;
    }
    for time in [LEASE, LONG_LEASE.saturating_sub(LEASE + MILLISECOND), MILLISECOND] {
        trial.pass(time);
        trial.hold(&rule, 0, 3, hold()).await?;
    }
    let grant = trial.pop_hold(0).expect("it fits");
    trial.hold(&rule, 0, 1, hold()).await?;
    trial.settle(&grant, |_| 1).await?;
    trial.hold(&rule, 0, 1, hold()).await.map(drop)
}

pub(super) async fn refund_held(mut trial: Trial<'_>, rule: Rule) -> Checked {
    for (key, pause) in [MILLISECOND, LEASE, LEASE + rule.period()].into_iter().enumerate() {
        let key = key as u64;
        trial.hold(&rule, key, 6, Hold::new(LEASE)).await?;
        let grant = trial.pop_hold(0).expect("it fits");
        trial.pass(pause);
        trial.charge(&rule, key, 3).await?;
        for _ in 0..2 {
            trial.refund(grant.clone()).await?;
            trial.peek(&rule, key, rule.limit()).await?;
        }
    }
    Ok(())
}

pub(super) async fn held_by_others(mut trial: Trial<'_>, rule: Rule) -> Checked {
    trial.charge(&rule, 0, 2).await?;
    trial.hold(&rule, 0, 4, Hold::new(LEASE)).await?;
    trial.hold(&rule, 0, 2, Hold::new(LONG_LEASE)).await?;
    for pause in [MILLISECOND, LEASE, LONG_LEASE] {
        for cost in [3, 8, 9, rule.limit()] {
            trial.peek(&rule, 0, cost).await?;
        }
        trial.hold(&rule, 0, rule.limit(), Hold::new(LEASE)).await?;
        trial.pass(pause);
    }
    // A partial hold needs a remainder of 1.
    for held in [rule.limit() - 1, 1] {
        trial.hold(&rule, 1, held, Hold::new(LEASE)).await?;
        trial.hold(&rule, 1, rule.limit(), Hold { allow_partial: true, ..Hold::new(LEASE) }).await?;
    }
    Ok(())
}

pub(super) async fn held_with(mut trial: Trial<'_>, rule: Rule, other: Rule) -> Checked {
    let both = |trial: &Trial<'_>, held, charged| {
        let mut charges = Charges::from(trial.new_charge(&other, 0, charged));
        charges.push(Charge { hold: Some(Hold::new(LEASE)), ..trial.new_charge(&rule, 0, held) });
        Request::new(charges, true)
    };
    let limit = other.limit();
    // Both fit, then only one, then only the other.
    for (held, charged) in [(6, 1), (5, 1), (1, limit), (4, limit - 1), (1, 1)] {
        trial.decide(both(&trial, held, charged)).await?;
        trial.peek(&rule, 0, 1).await?;
        trial.peek(&other, 0, 1).await?;
    }
    let grant = trial.pop_hold(0).expect("the last but one was granted");
    trial.refund(grant).await?;
    trial.peek(&rule, 0, 1).await?;
    trial.peek(&other, 0, 1).await.map(drop)
}
