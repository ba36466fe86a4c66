//! Functions that are limited by a constant `Rule`.

use ratelimit_runtime::{
    Algorithm, Cause, Limiter, Permit, Rule, config::Rules, limit_concurrent_requests, limit_request_per_time,
};
use tokio::time::Duration;

use super::{R, exceeded, limits_each_key};

const HOUR: Duration = Duration::from_secs(3600);
const ORDERS: Rule = Rule::new("orders", 1, HOUR);
static LOG: Rule = Rule::new("log", 10, HOUR).with_algorithm(Algorithm::SlidingLog);
const PLACES: Rule = Rule::new("places", 1, HOUR).with_algorithm(Algorithm::Concurrent);

#[limit_request_per_time(rule = ORDERS, key = id)]
async fn save(id: u64) -> R {
    Ok(id)
}

/// The number of permits that the function leaves is what a peek at its rule sees.
#[tokio::test]
async fn peek_and_reset_name_the_rule_of_the_function() {
    limits_each_key(save).await;
    let limiter = Limiter::in_memory();
    let calls = async {
        save(1).await.unwrap();
        assert_eq!(limiter.peek(&ORDERS, 1).await.unwrap().remaining(), 0);
        exceeded(save(1).await);
        limiter.reset(&ORDERS, 1).await.unwrap();
        save(1).await.unwrap();
    };
    limiter.scope(calls).await;
}

#[tokio::test]
async fn a_refused_function_bans_its_key() {
    const BAN: Duration = Duration::from_secs(600);
    const LOGINS: Rule = Rule::new("login", 1, HOUR).with_algorithm(Algorithm::SlidingLog).with_ban(BAN);

    #[limit_request_per_time("login", 1, Hours, 1, key = id, algorithm = SlidingLog, ban = "10m")]
    async fn log_in(id: u64) -> R {
        Ok(id)
    }

    #[limit_request_per_time(rule = LOGINS, key = id, on_limit = Return(0), blocking)]
    fn log_in_or_not(id: u64) -> u64 {
        id
    }

    let limiter = Limiter::in_memory();
    let calls = async {
        log_in(1).await.unwrap();
        let refused = log_in(1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Banned);
        assert!(refused.retry_after() > Some(BAN), "until the log has room");
        assert_eq!(log_in_or_not(1), 0);
        assert_eq!(log_in_or_not(2), 2);
        assert_eq!(log_in_or_not(2), 0);
        assert!(limiter.peek(&LOGINS, 2).await.unwrap().is_banned());
        limiter.unban(&LOGINS, 2).await.unwrap();
        log_in(2).await.unwrap();
    };
    limiter.scope(calls).await;
}

/// Paths and expressions of the rule, in each place that has constants of its own.
#[tokio::test]
async fn constants_of_all_kinds() {
    struct Shop<const N: u64>;

    #[limit_request_per_time(rule = Self::RULE, key = id)]
    impl<const N: u64> Shop<N> {
        const RULE: Rule = Rule::new("shop", N, HOUR);

        async fn call(id: u64) -> R {
            Ok(id)
        }
    }

    trait Limited {
        const RULE: Rule;

        #[limit_request_per_time(rule = Self::RULE, key = id)]
        async fn call(&self, id: u64) -> R {
            Ok(id)
        }
    }

    impl Limited for Shop<1> {
        const RULE: Rule = ORDERS;
    }

    #[limit_request_per_time(rule = Rule::new("item", 1, HOUR).with_algorithm(Algorithm::SlidingLog), key = id)]
    async fn expression(id: u64) -> R {
        Ok(id)
    }

    limits_each_key(Shop::<1>::call).await;
    limits_each_key(async |id| Limited::call(&Shop::<1>, id).await).await;
    limits_each_key(expression).await;
}

/// The arguments of the call go on working beside the rule.
#[tokio::test]
async fn arguments_of_the_call() {
    #[limit_request_per_time(rule = LOG, key = id, on_missing_key = Skip, cost = cost, on_limit = Return(Ok(99)),
        on_store_error = Deny, limiter = limiter, permit = permit)]
    async fn call(id: Option<u64>, cost: u64, limiter: &Limiter) -> R {
        Ok(permit.remaining())
    }
    #[limit_request_per_time(rule = LOG, cost = Settled(max = 10, |used| *used.as_ref().unwrap()))]
    async fn settled(used: u64) -> R {
        Ok(used)
    }
    #[limit_request_per_time(rule = LOG, cost = Elapsed(max = "5ms"), permit = permit)]
    async fn elapsed() -> R<Permit> {
        Ok(permit)
    }
    let limiter = Limiter::in_memory();
    assert_eq!(call(Some(1), 8, &limiter).await.unwrap(), 2);
    assert_eq!(call(Some(1), 8, &limiter).await.unwrap(), 99);
    call(None, 8, &limiter).await.unwrap();
    let calls = async {
        settled(4).await.unwrap();
        assert_eq!(limiter.peek(&LOG, "").await.unwrap().remaining(), 10, "of another key");
        let permit = elapsed().await.unwrap();
        assert_eq!(permit.remaining(), 1);
    };
    limiter.scope(calls).await;
}

#[tokio::test]
async fn a_function_that_is_not_async() {
    #[limit_request_per_time(rule = ORDERS, key = id, blocking, on_limit = Return(None))]
    fn call(id: u64) -> Option<u64> {
        Some(id)
    }
    let calls = async { [call(1), call(1), call(2)] };
    assert_eq!(Limiter::in_memory().scope(calls).await, [Some(1), None, Some(2)]);
}

#[tokio::test]
async fn places_and_several_limits() {
    #[limit_concurrent_requests(rule = PLACES, key = id, permit = place)]
    #[limit_request_per_time(rule = ORDERS, key = (id, "a"))]
    #[limit_request_per_time(rule = LOG, key = id)]
    async fn call(id: u64) -> R<Permit> {
        Ok(place)
    }
    let limiter = Limiter::in_memory();
    let calls = async {
        let permit = call(1).await.unwrap();
        assert_eq!(limiter.peek(&PLACES, 1).await.unwrap().remaining(), 0);
        assert_eq!(limiter.peek(&LOG, 1).await.unwrap().remaining(), 9);
        exceeded(call(1).await);
        drop(permit);
        assert_eq!(exceeded(call(1).await).rule(), "orders");
    };
    limiter.scope(calls).await;
}

/// A file changes the rule of the function as any other.
#[tokio::test]
async fn a_file_overrides_the_rule() {
    let rules = Rules::parse("[rules.orders]\ncount = 2").unwrap();
    let limiter = Limiter::builder("memory://").rules(rules).build().await.unwrap();
    let calls = async {
        save(1).await.unwrap();
        save(1).await.unwrap();
        exceeded(save(1).await);
    };
    limiter.scope(calls).await;
}
