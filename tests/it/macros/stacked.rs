//! Several attributes on one function.

use ratelimit_runtime::{Limiter, limit_request_per_time};
use tokio::time::{Duration, Instant};

use super::{R, exceeded, limits_each_key};

#[tokio::test]
async fn stacked_attributes_charge_all_or_nothing() {
    #[limit_request_per_time(prefix = "narrow", unit = Hours, count = 1, key = id)]
    #[limit_request_per_time("wide", 1, Hours, 2)]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    #[limit_request_per_time("wide", 1, Hours, 2)]
    #[limit_request_per_time(prefix = "narrow", unit = Hours, count = 1, key = id)]
    async fn turned(id: u64) -> R {
        Ok(id)
    }
    limits_each_key(call).await;
    limits_each_key(turned).await;
    let calls = async {
        call(1).await.unwrap();
        for _ in 0..5 {
            // Charged to neither, or the next would not fit.
            assert_eq!(exceeded(call(1).await).rule(), "narrow");
            assert_eq!(exceeded(turned(1).await).rule(), "narrow");
        }
        call(2).await.unwrap();
        assert_eq!(exceeded(turned(3).await).rule(), "wide");
        // Nor has the narrow one been charged for 3.
        assert_eq!(exceeded(call(3).await).rule(), "wide");
    };
    Limiter::in_memory().scope(calls).await;
}

/// Count, key and cost of each attribute in turn, from top to bottom, those of the block first. Then the limiter.
#[tokio::test]
async fn values_of_stacked_attributes_are_evaluated_from_top_to_bottom() {
    struct Log(Vec<&'static str>);
    impl Log {
        fn add(&mut self, name: &'static str) -> u64 {
            self.0.push(name);
            1
        }
    }
    #[limit_request_per_time("a", 1, Hours, self.add("count a"), key = self.add("key a"), cost = self.add("cost a"))]
    #[limit_request_per_time("b", 1, Hours, self.add("count b"), key = self.add("key b"))]
    impl Log {
        #[limit_request_per_time("c", 1, Hours, 1, cost = self.add("cost c"), limiter = {
            self.add("limiter");
            limiter
        })]
        #[limit_request_per_time("d", 1, Hours, self.add("count d"), on_limit = Return({ self.add("return"); Ok(2) }))]
        async fn call(&mut self, limiter: &Limiter) -> R {
            Ok(self.add("body"))
        }
    }
    let (mut log, limiter) = (Log(Vec::new()), Limiter::in_memory());
    let charges = ["count a", "key a", "cost a", "count b", "key b", "cost c", "count d", "limiter"];
    assert_eq!(log.call(&limiter).await.unwrap(), 1);
    assert_eq!(log.0, [&charges[..], &["body"]].concat());
    log.0.clear();
    assert_eq!(log.call(&limiter).await.unwrap(), 2);
    assert_eq!(log.0, [&charges[..], &["return"]].concat());
}

#[tokio::test]
async fn three_stacked_attributes_with_costs_in_both_forms() {
    #[limit_request_per_time("a", 1, Seconds, 10, key = id, cost = 5)]
    #[limit_request_per_time(count = const { 10 }, unit = TimeUnit::Minutes, prefix = "b", algorithm = SlidingLog)]
    #[limit_request_per_time("c", 2, Hours, limit, cost = weight)]
    async fn call(id: u64, limit: u64, weight: u8) -> R {
        Ok(id)
    }
    let calls = async {
        call(1, 100, 50).await.unwrap();
        assert_eq!(exceeded(call(1, 100, 51).await).rule(), "c");
        call(1, 100, 50).await.unwrap();
        // The longest wait is reported: `a` and `c` refuse.
        let refused = exceeded(call(1, 100, 1).await);
        assert_eq!((refused.rule(), refused.limit()), ("c", 100));
        assert_eq!(exceeded(call(1, 101, 1).await).rule(), "a");
    };
    Limiter::in_memory().scope(calls).await;
}

/// Settings of the whole call may stand on any one of the attributes.
#[tokio::test(start_paused = true)]
async fn settings_of_the_call_may_be_on_any_stacked_attribute() {
    #[limit_request_per_time("second", 1, Seconds, 1, on_limit = Wait, permit = permit)]
    #[limit_request_per_time("minute", 1, Minutes, 2, limiter = limiter, on_store_error = Deny)]
    async fn call(limiter: &Limiter) -> R {
        Ok(permit.remaining())
    }
    let (limiter, started) = (Limiter::in_memory(), Instant::now());
    for _ in 0..5 {
        assert_eq!(call(&limiter).await.unwrap(), 0);
    }
    assert_eq!(started.elapsed().as_secs(), 120);
    assert!(started.elapsed() < Duration::from_millis(120_010));
}

/// The one above finds the others, whatever its own name is here.
#[tokio::test]
async fn the_first_stacked_attribute_may_have_another_name() {
    use ratelimit_runtime::limit_request_per_time as limited;

    #[limited("narrow", 1, Hours, 1, key = id)]
    #[limit_request_per_time("wide", 1, Hours, 2)]
    #[inline]
    #[ratelimit_runtime::limit_request_per_time("widest", 1, Hours, 3)]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    narrow_then_wide(call).await;
}

#[tokio::test]
async fn stacked_attributes_may_come_from_cfg_attr() {
    #[cfg_attr(test, limit_request_per_time("narrow", 1, Hours, 1, key = id))]
    #[limit_request_per_time("wide", 1, Hours, 2)]
    async fn above(id: u64) -> R {
        Ok(id)
    }
    #[limit_request_per_time("narrow", 1, Hours, 1, key = id)]
    #[cfg_attr(test, limit_request_per_time("wide", 1, Hours, 2))]
    #[cfg_attr(not(test), limit_request_per_time(nonsense))]
    async fn below(id: u64) -> R {
        Ok(id)
    }
    narrow_then_wide(above).await;
    narrow_then_wide(below).await;
}

/// A call that `narrow` refuses is not charged to `wide`, which admits two.
async fn narrow_then_wide(call: impl AsyncFn(u64) -> R) {
    let calls = async {
        call(1).await.unwrap();
        for _ in 0..3 {
            assert_eq!(exceeded(call(1).await).rule(), "narrow");
        }
        call(2).await.unwrap();
        assert_eq!(exceeded(call(3).await).rule(), "wide");
    };
    Limiter::in_memory().scope(calls).await;
}
