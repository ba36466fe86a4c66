//! Replies that no script sends: each is an error or a decision within the limit, never a panic.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::{
    Algorithm, CounterName, Key, Refill, Rule,
    hostile::{replies, try_all},
    store::{Charges, Hold},
};

pub(crate) fn charge() -> impl Strategy<Value = Charge> {
    const ALGORITHMS: &[Algorithm] = &[
        Algorithm::FixedWindow { align: false },
        Algorithm::FixedWindow { align: true },
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow { buckets: 1, weighted: true },
        Algorithm::SlidingWindow { buckets: 6, weighted: true },
        Algorithm::SlidingWindow { buckets: 6, weighted: false },
        Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy },
        Algorithm::TokenBucket { burst: 1_000, refill: Refill::Interval },
        Algorithm::LeakyBucket { queue: 5 },
        Algorithm::Concurrent,
    ];
    let count = select(&[1, 2, 10, 1_000, 99_999][..]);
    let period = select(&[6, 60_000, 3_600_000, 3_650 * 86_400_000][..]).prop_map(Duration::from_millis);
    (select(ALGORITHMS), count, period, 1..12_u64).prop_map(|(algorithm, count, period, cost)| {
        let rule = Rule::new("item", count, period).with_algorithm(algorithm);
        Charge::new(rule, CounterName::new("", &rule, &Key::new(1)), cost.min(rule.limit()))
    })
}

#[test]
fn no_reply_panics_or_admits_beyond_the_limit() {
    let requests = (vec(charge(), 1..3), any::<bool>(), any::<bool>(), replies());
    try_all("replies of scripts", 10_000, &requests, |(charges, consume, holds, reply)| {
        let mut all = Charges::default();
        for (number, mut charge) in charges.into_iter().enumerate() {
            charge.counter = CounterName::new("", &charge.rule, &Key::new(number));
            charge.hold = holds.then(|| Hold::new(Duration::from_secs(30)));
            all.push(charge);
        }
        let mut request = Request::new(all, consume);
        let command = Command::decide(&mut request);
        complete(&mut request, command, Ok(reply));
        match &request.outcome {
            Ok(true) => {
                for Charge { rule, decision, .. } in request.charges.iter() {
                    assert!(decision.retry_after().is_none() && decision.limit == rule.limit(), "{decision:?}");
                }
                true
            }
            Ok(false) => true,
            Err(error) => {
                assert!(error.misconfigured && error.reason().len() < 250, "{error}");
                false
            }
        }
    });
}
