//! Annotated functions that hold something while they run: each way a body can end, and refusals.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Limiter, Permit, RequestPerMinute, Rule, limit_concurrent_requests, limit_request_per_time};
use tokio::time::{Instant, sleep};

use crate::support::holds::remaining;
use crate::support::{LOG, MS, SECOND, Timed, ends, eventually, exceeded, fresh_key, limiter_on, settle};

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Well,
    InError,
    Early,
    InPanic,
    /// The caller drops the future.
    Never,
}

#[limit_request_per_time("body", 1, Minutes, 20_000, key = id, algorithm = SlidingLog, cost = Elapsed(max = "5s"), limiter = &timed.limiter)]
async fn body(timed: &Timed, id: u64, end: End) -> Result<(), RequestPerMinute> {
    timed.advance(1234 * MS);
    match end {
        End::Well => Ok(()),
        End::InError => Err(timed.limiter.acquire(&Rule::new("none", 0, SECOND), 1).await.unwrap_err()),
        End::Early => {
            timed.limiter.acquire(&Rule::new("none", 0, SECOND), 1).await?;
            unreachable!("none fits")
        }
        End::InPanic => panic!("the body's own"),
        End::Never => std::future::pending().await,
    }
}

#[tokio::test]
async fn a_body_is_charged_its_time_however_it_ends() {
    const RULE: Rule = Rule::new("body", 20_000, Duration::from_secs(60)).with_algorithm(LOG);
    for timed in Timed::both().await {
        for end in [End::Well, End::InError, End::Early, End::InPanic, End::Never] {
            let id = fresh_key();
            let mut call = Box::pin(AssertUnwindSafe(body(&timed, id, end)).catch_unwind());
            // Dropped by its caller's own limit, or done.
            let ended = tokio::time::timeout(SECOND, &mut call).await;
            match end {
                End::Well => assert_eq!(ended.unwrap().unwrap(), Ok(())),
                End::InError | End::Early => assert_eq!(ended.unwrap().unwrap().unwrap_err().rule(), "none"),
                End::InPanic => drop(ended.unwrap().unwrap_err()),
                End::Never => drop(ended.unwrap_err()),
            }
            if end == End::Never {
                assert_eq!(remaining(&timed.limiter, &RULE, id).await, 15_000, "{}: it runs on", timed.name());
            }
            drop(call);
            // Another call waits until that is settled; a look does not.
            eventually("it is charged", || async { remaining(&timed.limiter, &RULE, id).await == 20_000 - 1234 }).await;
        }
    }
}

#[limit_request_per_time("settled", 1, Minutes, 1000, key = id, algorithm = SlidingLog, cost = Settled(max = 600, |outcome| outcome.as_ref().map_or(7, |used| *used)), limiter = limiter)]
async fn settled(limiter: &Limiter, id: u64, used: Result<u64, RequestPerMinute>) -> Result<u64, RequestPerMinute> {
    let used = used?;
    assert!(used != 13, "the body's own");
    Ok(used)
}

#[tokio::test]
async fn a_body_is_charged_the_cost_that_its_outcome_reports() {
    const RULE: Rule = Rule::new("settled", 1000, Duration::from_secs(60)).with_algorithm(LOG);
    for timed in Timed::both().await {
        let (limiter, id) = (&timed.limiter, fresh_key());
        let left =
            |left| eventually("it is charged", move || async move { remaining(limiter, &RULE, id).await == left });
        assert_eq!(settled(limiter, id, Ok(100)).await, Ok(100));
        left(900).await;
        let error = limiter.acquire(&Rule::new("none", 0, SECOND), 1).await.unwrap_err();
        assert_eq!(settled(limiter, id, Err(error.clone())).await, Err(error));
        left(893).await;
        assert!(AssertUnwindSafe(settled(limiter, id, Ok(13))).catch_unwind().await.is_err());
        left(293).await;
        assert_eq!(exceeded(settled(limiter, id, Ok(1)).await).remaining(), 293);
    }
}

#[limit_concurrent_requests("export", 1, key = id, lease = "10s", on_limit = Wait(max = "5s"), permit = permit, limiter = limiter)]
#[limit_request_per_time("export-rate", 1, Minutes, 2, key = id)]
async fn export(limiter: &Limiter, id: u64) -> Result<Permit, RequestPerMinute> {
    assert!(permit.is_held());
    Ok(permit)
}

/// The wait applies to the place only: the refusal of the other rule comes at once.
#[tokio::test]
async fn each_attribute_of_a_function_has_its_own_on_limit() {
    for limiter in [Limiter::in_memory(), limiter_on(&RedisServer::start()).await] {
        let id = fresh_key();
        let first = export(&limiter, id).await.unwrap();
        let next = tokio::spawn({
            let limiter = limiter.clone();
            async move { export(&limiter, id).await }
        });
        sleep(100 * MS).await;
        assert!(!next.is_finished());
        drop(first);
        drop(ends(next).await.unwrap().unwrap());
        let began = Instant::now();
        assert_eq!(exceeded(export(&limiter, id).await).rule(), "export-rate");
        assert!(began.elapsed() < 4 * SECOND, "refused at once");
    }
}

/// Also for calls that have waited behind others for the place.
#[tokio::test]
async fn calls_that_waited_for_a_place_do_not_wait_for_the_rate() {
    for limiter in [Limiter::in_memory(), limiter_on(&RedisServer::start()).await] {
        let id = fresh_key();
        let first = export(&limiter, id).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let limiter = limiter.clone();
            waiting.push(tokio::spawn(async move { export_when_free(&limiter, id).await }));
            sleep(20 * MS).await;
        }
        assert!(waiting.iter().all(|call| !call.is_finished()));
        drop(first);
        drop(ends(waiting.remove(0)).await.unwrap().unwrap());
        for call in waiting {
            assert_eq!(exceeded(ends(call).await.unwrap()).rule(), "export-rate");
        }
        assert_eq!(exceeded(ends(export_when_free(&limiter, id)).await).rule(), "export-rate");
    }
}

/// Has the counters of [`export`], but no longest wait.
#[limit_concurrent_requests("export", 1, key = id, lease = "10s", on_limit = Wait, permit = permit, limiter = limiter)]
#[limit_request_per_time("export-rate", 1, Minutes, 2, key = id)]
async fn export_when_free(limiter: &Limiter, id: u64) -> Result<Permit, RequestPerMinute> {
    Ok(permit)
}

#[limit_concurrent_requests("slow", 5, key = id, lease = "10s", on_limit = Wait, permit = permit, limiter = limiter)]
#[limit_request_per_time("slow-rate", 4, Seconds, 1, key = id, on_limit = Wait(max = "5s"))]
async fn slow(limiter: &Limiter, id: u64) -> Result<Permit, RequestPerMinute> {
    Ok(permit)
}

/// However long the calls would wait for a place.
#[tokio::test]
async fn the_longest_wait_for_a_rate_is_kept_behind_others() {
    let timed = Timed::memory().await;
    let id = fresh_key();
    drop(slow(&timed.limiter, id).await.unwrap());
    let call = || {
        let limiter = timed.limiter.clone();
        tokio::spawn(async move { slow(&limiter, id).await })
    };
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(call()); // there is room in 4 s, 8 s and 12 s
        settle().await;
    }
    timed.advance(4 * SECOND);
    drop(ends(waiting.remove(0)).await.unwrap().unwrap());
    timed.advance(SECOND);
    for call in waiting {
        let refused = exceeded(ends(call).await.unwrap());
        assert_eq!(refused.rule(), "slow-rate");
        assert!(refused.retry_after() >= Some(3 * SECOND), "{refused}");
    }
}

/// An answer that is still being delivered when the function has returned.
struct StreamedAnswer {
    parts: Vec<u64>,
    permit: Permit,
}

impl Iterator for StreamedAnswer {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let tokens = self.parts.pop()?;
        self.permit.record(tokens);
        Some(tokens)
    }
}

/// Two settled limits, and one that is charged as it is.
#[limit_request_per_time("answer", 1, Minutes, 10_000, key = id, algorithm = SlidingLog, cost = Settled(max = 4_000),
    permit = permit, limiter = limiter)]
#[limit_request_per_time("all answers", 1, Minutes, 20_000, key = id, algorithm = SlidingLog, cost = Settled(max = 4_000))]
#[limit_request_per_time("answers", 1, Minutes, 10, key = id)]
async fn streamed(limiter: &Limiter, id: u64) -> Result<StreamedAnswer, RequestPerMinute> {
    Ok(StreamedAnswer { parts: vec![1, 20, 300], permit })
}

#[tokio::test]
async fn a_permit_that_outlives_the_function_is_settled_by_what_was_delivered() {
    const MINUTE: Duration = Duration::from_secs(60);
    let answer = Rule::new("answer", 10_000, MINUTE).with_algorithm(LOG);
    let all = Rule::new("all answers", 20_000, MINUTE).with_algorithm(LOG);
    let calls = Rule::new("answers", 10, MINUTE);
    for timed in Timed::both().await {
        let (limiter, id) = (&timed.limiter, fresh_key());
        let left = async || {
            (
                remaining(limiter, &answer, id).await,
                remaining(limiter, &all, id).await,
                remaining(limiter, &calls, id).await,
            )
        };
        let becomes = async |expected| eventually("it is settled", || async { left().await == expected }).await;

        let mut delivered = streamed(limiter, id).await.unwrap();
        assert_eq!(left().await, (6_000, 16_000, 9), "{}", timed.name());
        assert_eq!(delivered.by_ref().take(2).sum::<u64>(), 320);
        assert_eq!(left().await, (6_000, 16_000, 9), "{}", timed.name());
        drop(delivered);
        becomes((9_680, 19_680, 9)).await;

        // The reported cost replaces what was recorded.
        let mut settled = streamed(limiter, id).await.unwrap();
        assert_eq!(settled.next(), Some(300));
        settled.permit.settle(5_000).await.unwrap();
        assert_eq!(left().await, (4_680, 14_680, 8), "{}", timed.name());

        // Nothing was recorded: all that was held is charged.
        drop(streamed(limiter, id).await.unwrap());
        becomes((680, 10_680, 7)).await;
    }
}

/// Of a permit that does not hold a settled cost.
#[tokio::test]
async fn a_record_changes_no_other_charge() {
    let (limiter, rule) = (Limiter::in_memory(), Rule::new("item", 5, SECOND));
    let mut permit = limiter.acquire(&rule, 1).await.unwrap();
    permit.record(3);
    permit.settle(4).await.unwrap();
    assert_eq!(remaining(&limiter, &rule, 1).await, 4);
}

/// The body records the cost itself.
#[tokio::test]
async fn a_permit_may_be_a_mutable_variable() {
    const TOKENS: Rule = Rule::new("item", 10, SECOND);

    #[limit_request_per_time(rule = TOKENS, key = 1, cost = Settled(max = 8), permit = mut usage)]
    async fn answer() -> Result<(), RequestPerMinute> {
        usage.record(3);
        Ok(())
    }

    let limiter = Limiter::in_memory();
    limiter.scope(answer()).await.unwrap();
    assert_eq!(remaining(&limiter, &TOKENS, 1).await, 7);
}
