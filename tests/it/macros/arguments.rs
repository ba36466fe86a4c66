//! The effect of each argument.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_runtime::{
    Cause, Limiter, ManualClock, Permit, RequestPerMinute, limit_concurrent_requests, limit_request_per_time,
};
use tokio::time::Instant;
use tracing::Level;

use super::{R, exceeded, limits_each_key, refused, send};
use crate::support::in_memory;
use crate::support::log::Log;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn on_limit_return_gives_the_value_instead() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id, on_limit = Return(Ok(0)))]
    async fn value(id: u64) -> R {
        Ok(id)
    }
    #[limit_request_per_time("item", 1, Hours, 1, key = id, on_limit = Return({
        assert_eq!((refused.cause(), refused.rule(), id), (Cause::Exceeded, "item", 1));
        cached(&refused, id).await
    }))]
    async fn awaited(id: u64) -> R {
        Ok(id)
    }
    #[limit_request_per_time("item", 1, Hours, 1, key = id, on_limit = OnLimit::Return(Ok(cached(&refused, id).await? + 3)))]
    async fn question_mark(id: u64) -> R {
        Ok(id)
    }
    async fn cached(_: &RequestPerMinute, id: u64) -> R {
        tokio::task::yield_now().await;
        Ok(id - 1)
    }
    let calls = async {
        assert_eq!(value(1).await.unwrap(), 1);
        assert_eq!(value(1).await.unwrap(), 0);
        assert_eq!(awaited(1).await.unwrap(), 0);
        assert_eq!(question_mark(5).await.unwrap(), 5);
        assert_eq!(question_mark(5).await.unwrap(), 7);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn on_limit_return_gives_the_value_for_every_refusal() {
    #[limit_request_per_time("item", 1, Hours, 5, key = id, cost = cost, on_missing_key = Deny, on_store_error = Deny,
        on_limit = Return(Some(refused.cause())))]
    async fn call(id: Option<u64>, cost: i64) -> Option<Cause> {
        None
    }
    let calls = async {
        assert_eq!(call(None, 1).await, Some(Cause::MissingKey));
        assert_eq!(call(Some(1), 6).await, Some(Cause::NeverFits));
        assert_eq!(call(Some(1), 5).await, None);
        assert_eq!(call(Some(1), 1).await, Some(Cause::Exceeded));
        assert_eq!(call(Some(1), -1).await, Some(Cause::Misconfigured));
    };
    Limiter::in_memory().scope(calls).await;
    assert_eq!(dead_redis().await.scope(call(Some(1), 1)).await, Some(Cause::Unavailable));
}

/// The value hides the mistake from the caller, so the log must have it.
#[tokio::test]
async fn a_misconfiguration_behind_on_limit_return_is_logged() {
    #[limit_request_per_time("never logged before", 1, Hours, 5, cost = cost, on_limit = Return(()))]
    async fn call(cost: i64) {}
    let (log, _guard) = Log::install();
    // The process logs one misconfiguration a second, perhaps that of another test.
    let lines = async || {
        for _ in 0..300 {
            call(-1).await;
            let lines = log.with("never logged before");
            if let Some((level, _)) = lines.iter().find(|(_, line)| line.contains("misconfigured")) {
                return Some(*level);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    };
    assert_eq!(Limiter::in_memory().scope(lines()).await, Some(Level::ERROR));
}

#[tokio::test(start_paused = true)]
async fn on_limit_wait_waits_for_a_permit() {
    #[limit_request_per_time("item", 1, Minutes, 1, key = id, on_limit = Wait)]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    let started = Instant::now();
    let calls = async {
        for _ in 0..3 {
            call(1).await.unwrap();
        }
        call(2).await.unwrap();
    };
    Limiter::in_memory().scope(calls).await;
    assert_eq!(started.elapsed().as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn on_limit_wait_with_a_maximum_waits_at_most_that_long() {
    #[limit_request_per_time("item", 1, Minutes, 1, key = id, on_limit = Wait(max = "1m30s"))]
    async fn patient(id: u64) -> R {
        Ok(id)
    }
    #[limit_request_per_time("item", 1, Minutes, 1, key = id, on_limit = Wait(max = "59s"))]
    async fn hasty(id: u64) -> R {
        Ok(id)
    }
    let started = Instant::now();
    let calls = async {
        patient(1).await.unwrap();
        exceeded(hasty(1).await);
        assert_eq!(started.elapsed().as_secs(), 0);
        patient(1).await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 60);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn on_limit_reject_returns_the_error() {
    #[limit_request_per_time("item", 1, Minutes, 1, key = id, on_limit = Reject)]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    limits_each_key(call).await;
}

#[tokio::test]
async fn on_missing_key_decides_about_a_key_that_is_none() {
    #[limit_request_per_time("denied", 1, Hours, 1, key = user, on_missing_key = Deny)]
    async fn denied(user: Option<&str>) -> R<bool> {
        Ok(user.is_some())
    }
    #[limit_request_per_time("skipped", 1, Hours, 1, key = user, on_missing_key = Skip)]
    async fn skipped(user: Option<String>) -> R<bool> {
        Ok(user.is_some_and(|user| !user.is_empty()))
    }
    #[limit_request_per_time("shared", 1, Hours, 1, key = &user, on_missing_key = OnMissingKey::Shared)]
    async fn shared(user: Option<&(u64, String)>) -> R<bool> {
        Ok(user.is_some())
    }
    let user = || Some("ada".to_owned());
    let calls = async {
        denied(Some("ada")).await.unwrap();
        exceeded(denied(Some("ada")).await);
        denied(Some("bob")).await.unwrap();
        refused(denied(None).await, Cause::MissingKey);

        assert!(skipped(user()).await.unwrap());
        exceeded(skipped(user()).await);
        for _ in 0..3 {
            assert!(!skipped(None).await.unwrap());
        }

        assert!(shared(Some(&(1, "ada".into()))).await.unwrap());
        exceeded(shared(Some(&(1, "ada".into()))).await);
        assert!(!shared(None).await.unwrap());
        exceeded(shared(None).await);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn permit_binds_the_permit_to_a_name() {
    #[limit_request_per_time("item", 1, Hours, 5, key = id, cost = 3, permit = permit)]
    async fn returned(id: u64) -> R<Permit> {
        Ok(permit)
    }
    #[limit_request_per_time("item", 1, Hours, 5, key = id, cost = 3, permit = slot)]
    async fn refunded(id: u64) -> R {
        assert_eq!((slot.limit(), slot.remaining()), (5, 2));
        slot.refund().await
    }
    #[limit_request_per_time("item", 1, Hours, 5, key = id, cost = 3, permit = _permit)]
    async fn kept(id: u64) -> R {
        Ok(id)
    }
    let calls = async {
        let permit = returned(1).await.unwrap();
        assert_eq!((permit.limit(), permit.remaining()), (5, 2));
        exceeded(returned(1).await);
        assert_eq!(permit.refund().await.unwrap(), 3);
        for _ in 0..3 {
            assert_eq!(refunded(1).await.unwrap(), 3);
        }
        kept(1).await.unwrap();
        exceeded(kept(1).await);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn permit_stands_with_each_on_limit() {
    #[limit_request_per_time("item", 1, Hours, 1, permit = permit, on_limit = Return(Ok(refused.limit() + 7)))]
    async fn call() -> R {
        Ok(permit.remaining())
    }
    let calls = async {
        assert_eq!(call().await.unwrap(), 0);
        assert_eq!(call().await.unwrap(), 8);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn limiter_names_the_limiter_of_the_function() {
    struct Client {
        limiter: Limiter,
    }
    impl Client {
        #[limit_request_per_time("item", 1, Hours, 1, key = id, limiter = &self.limiter)]
        async fn field(&self, id: u64) -> R {
            Ok(id)
        }

        #[limit_request_per_time("item", 1, Hours, 1, key = id, limiter = self.limiter())]
        async fn method(&mut self, id: u64) -> R {
            Ok(id)
        }

        #[limit_request_per_time("item", 1, Hours, 1, key = id, limiter = &self.limiter().clone())]
        async fn temporary(&self, id: u64) -> R {
            Ok(id)
        }

        fn limiter(&self) -> &Limiter {
            &self.limiter
        }
    }
    #[limit_request_per_time("item", 1, Hours, 1, limiter = &limiter)]
    async fn smart_pointer(limiter: Arc<Limiter>) -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Hours, 1, limiter = &*limiter.lock().unwrap())]
    async fn behind_a_lock(limiter: &Mutex<Limiter>) -> R<()> {
        drop(limiter.try_lock().unwrap());
        tokio::task::yield_now().await;
        Ok(())
    }
    let mut client = Client { limiter: Limiter::in_memory() };
    client.field(1).await.unwrap();
    exceeded(client.field(1).await);
    exceeded(client.method(1).await);
    exceeded(client.temporary(1).await);
    client.method(2).await.unwrap();
    client.temporary(3).await.unwrap();
    // Not the scope's, and not another client's.
    exceeded(Limiter::in_memory().scope(client.field(1)).await);
    Client { limiter: Limiter::in_memory() }.field(1).await.unwrap();
    let limiter = Arc::new(Limiter::in_memory());
    smart_pointer(Arc::clone(&limiter)).await.unwrap();
    exceeded(smart_pointer(Arc::clone(&limiter)).await);
    let limiter = Mutex::new(Limiter::clone(&limiter));
    exceeded(send(behind_a_lock(&limiter)).await);
    *limiter.lock().unwrap() = Limiter::in_memory();
    send(behind_a_lock(&limiter)).await.unwrap();
}

/// A server that is not there.
async fn dead_redis() -> Limiter {
    Limiter::builder("redis://127.0.0.1:1").lazy().build().await.unwrap()
}

#[tokio::test]
async fn on_store_error_overrides_the_policy_of_the_limiter() {
    #[limit_request_per_time("item", 1, Hours, 1, on_store_error = Allow)]
    async fn allow() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Hours, 1, on_store_error = Deny)]
    async fn deny() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("local", 1, Hours, 1, on_store_error = Local)]
    async fn local() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("unset", 1, Hours, 1)]
    async fn unset() -> R<()> {
        Ok(())
    }
    let calls = async {
        for _ in 0..3 {
            allow().await.unwrap();
            refused(deny().await, Cause::Unavailable);
        }
        for call in [local().await, unset().await] {
            call.unwrap();
        }
        exceeded(local().await);
        exceeded(unset().await);
    };
    dead_redis().await.scope(calls).await;
}

#[tokio::test]
async fn the_count_is_an_expression_of_each_call() {
    #[limit_request_per_time("item", 1, Hours, count = count)]
    async fn call(count: i32) -> R<i32> {
        Ok(count)
    }
    let calls = async {
        refused(call(0).await, Cause::NeverFits);
        refused(call(-1).await, Cause::NeverFits);
        call(1).await.unwrap();
        exceeded(call(1).await);
        call(3).await.unwrap();
        call(3).await.unwrap();
        assert_eq!(exceeded(call(3).await).limit(), 3);
        exceeded(call(1).await);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn cost_is_an_expression_of_each_call() {
    #[limit_request_per_time("dynamic", 1, Hours, 10, cost = rows.len())]
    async fn dynamic(rows: &[u8]) -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("signed", 1, Hours, 10, cost = cost)]
    async fn signed(cost: i64) -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("literal", 1, Hours, 10, cost = 6)]
    async fn literal() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("constant", 1, Hours, 10, cost = const { 5 + 1 })]
    async fn constant() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("free", 1, Hours, 1, cost = 0)]
    async fn free() -> R<()> {
        Ok(())
    }
    let calls = async {
        refused(dynamic(&[0; 11]).await, Cause::NeverFits);
        dynamic(&[0; 7]).await.unwrap();
        assert_eq!(exceeded(dynamic(&[0; 4]).await).remaining(), 3);
        dynamic(&[0; 3]).await.unwrap();
        dynamic(&[]).await.unwrap();
        refused(signed(-1).await, Cause::Misconfigured);
        signed(10).await.unwrap();
        literal().await.unwrap();
        assert_eq!(exceeded(literal().await).remaining(), 4);
        constant().await.unwrap();
        exceeded(constant().await);
        for _ in 0..3 {
            free().await.unwrap();
        }
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn count_and_cost_may_be_of_any_integer_type() {
    macro_rules! integers {
        ($($integer:ident)*) => {{ $({
            #[limit_request_per_time("item", 1, Hours, count = count, key = stringify!($integer), cost = cost)]
            async fn call(count: $integer, cost: $integer) -> R<()> {
                Ok(())
            }
            call(100, 60).await.unwrap();
            assert_eq!(exceeded(call(100, 41).await).remaining(), 40);
            call(100, 40).await.unwrap();
            refused(call(100, 101).await, Cause::NeverFits);
        })* }};
    }
    let calls = async { integers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize) };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn each_unit_is_its_duration() {
    macro_rules! units {
        ($($unit:path, $ms:literal;)*) => {$({
            #[limit_request_per_time("item", 3, $unit, 1, key = stringify!($unit))]
            async fn call() -> R<()> {
                Ok(())
            }
            call().await.unwrap();
            assert_eq!(exceeded(call().await).period(), Duration::from_millis(3 * $ms), stringify!($unit));
        })*};
    }
    let clock = ManualClock::new();
    let calls = async {
        units! {
            Milliseconds, 1; Seconds, 1_000; Minutes, 60_000; Hours, 3_600_000; Days, 86_400_000;
            TimeUnit::Milliseconds, 1; TimeUnit::Seconds, 1_000; TimeUnit::Minutes, 60_000;
            ratelimit::TimeUnit::Hours, 3_600_000; TimeUnit::Days, 86_400_000;
        }
    };
    in_memory(&clock).await.scope(calls).await;
}

#[tokio::test]
async fn the_ttl_is_a_number_of_units() {
    const TEN: u64 = 10;
    #[limit_request_per_time(prefix = "default", unit = Minutes, count = 1)]
    async fn one_if_left_out() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("constant", TEN * 2 + 1, Seconds, 1)]
    async fn constant() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("block", const { TEN / 2 }, Seconds, const { TEN - 9 })]
    async fn const_block() -> R<()> {
        Ok(())
    }
    let clock = ManualClock::new();
    let calls = async {
        for seconds in [60, 21, 5] {
            let call = async || match seconds {
                60 => one_if_left_out().await,
                21 => constant().await,
                _ => const_block().await,
            };
            call().await.unwrap();
            clock.advance((seconds - 1) * SECOND);
            assert_eq!(exceeded(call().await).retry_after(), Some(SECOND));
            clock.advance(SECOND);
            call().await.unwrap();
        }
    };
    in_memory(&clock).await.scope(calls).await;
}

#[tokio::test]
async fn the_prefix_may_be_any_constant_text() {
    const PREFIX: &str = "constant";
    #[limit_request_per_time(prefix = PREFIX, unit = Hours, count = 1)]
    async fn constant() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time(concat!("con", "stant"), 1, Hours, 1)]
    async fn concatenated() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time(r"constant", 60, Minutes, 1)]
    async fn raw() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("other", 1, Hours, 1)]
    async fn other() -> R<()> {
        Ok(())
    }
    let calls = async {
        constant().await.unwrap();
        assert_eq!(exceeded(concatenated().await).rule(), "constant");
        exceeded(raw().await);
        other().await.unwrap();
    };
    Limiter::in_memory().scope(calls).await;
}

/// The admission times of two calls a minute distinguish the algorithms.
#[tokio::test]
async fn algorithm_selects_each_of_the_algorithms() {
    macro_rules! admitted {
        ($($algorithm:tt)*) => {{
            #[limit_request_per_time("item", 1, Minutes, 2, key = stringify!($($algorithm)*), $($algorithm)*)]
            async fn call() -> R<()> {
                Ok(())
            }
            let clock = ManualClock::new();
            clock.advance(30 * SECOND); // aligned windows end at 30 s
            let admitted = async {
                let mut admitted = Vec::new();
                for second in 0..=120 {
                    let calls = if second == 0 { 1 } else { 2 };
                    if [0, 29, 30, 59, 60, 89, 90].contains(&second) {
                        for _ in 0..calls {
                            if call().await.is_ok() {
                                admitted.push(second);
                            }
                        }
                    }
                    clock.advance(SECOND);
                }
                admitted
            };
            in_memory(&clock).await.scope(admitted).await
        }};
    }
    let fixed = [0, 29, 60, 60];
    assert_eq!(admitted!(prefetch = 1), fixed);
    assert_eq!(admitted!(algorithm = FixedWindow), fixed);
    assert_eq!(admitted!(algorithm = Algorithm::FixedWindow), fixed);
    assert_eq!(admitted!(algorithm = FixedWindow(align = false)), fixed);
    assert_eq!(admitted!(algorithm = FixedWindow(align = true)), [0, 29, 30, 30, 90, 90]);
    assert_eq!(admitted!(algorithm = SlidingLog), [0, 29, 60, 89]);
    assert_eq!(admitted!(algorithm = ratelimit_runtime::Algorithm::SlidingLog, shadow = false), [0, 29, 60, 89]);
}

/// Periods, waits and leases may be strings or constants, and numbers constants of any integer type.
#[tokio::test(start_paused = true)]
async fn durations_and_numbers_may_be_constants() {
    const MAX: Duration = Duration::from_secs(90);
    const HALF: Duration = Duration::from_secs(30);
    const TWO: u32 = 2;
    const FIVE: i8 = 5;
    #[limit_request_per_time(prefix = "period", period = "90s", count = 1)]
    async fn text() -> R {
        Ok(0)
    }
    #[limit_request_per_time(prefix = "period", period = MAX, count = 1)]
    async fn constant() -> R {
        Ok(0)
    }
    #[limit_request_per_time("period", 45 * 2, Seconds, 1, on_limit = Wait(max = MAX))]
    async fn waits() -> R {
        Ok(0)
    }
    #[limit_request_per_time("two", TWO, Minutes, 1)]
    async fn two_minutes() -> R {
        Ok(0)
    }
    #[limit_request_per_time("bucket", TWO, Minutes, 1, algorithm = TokenBucket(burst = FIVE), permit = permit)]
    async fn bucket() -> R {
        Ok(permit.limit())
    }
    #[limit_request_per_time("log", 1, Minutes, 60_000, algorithm = SlidingLog, cost = Elapsed(max = HALF),
        permit = permit)]
    async fn elapsed() -> R {
        Ok(permit.remaining())
    }
    #[limit_concurrent_requests("place", 1, lease = MAX, permit = place, on_limit = Wait(max = MAX))]
    async fn place() -> R<Permit> {
        Ok(place)
    }
    let calls = async {
        text().await.unwrap();
        let refused = exceeded(constant().await);
        assert_eq!(refused.period(), MAX);
        let started = Instant::now();
        waits().await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 90);
        two_minutes().await.unwrap();
        assert_eq!(exceeded(two_minutes().await).period(), Duration::from_secs(120));
        assert_eq!(bucket().await.unwrap(), 5);
        assert_eq!(elapsed().await.unwrap(), 30_000);
        let permit = place().await.unwrap();
        assert_eq!(permit.reset_after().as_secs(), 90);
        let started = Instant::now();
        assert_eq!(exceeded(place().await).period(), MAX);
        assert_eq!(started.elapsed().as_secs(), 90);
    };
    Limiter::in_memory().scope(calls).await;
}
