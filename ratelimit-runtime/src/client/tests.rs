//! Credits of an upstream in one process, whose store may be away.

mod policies;
mod replaced;
mod services;
mod switched;

use std::{
    future::{self, Future, pending},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
    thread,
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{Request, Response};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::{ServiceExt as _, service_fn};
use tower_layer::Layer as _;
use tower_service::Service;

use self::{
    services::{Few, all_sent},
    switched::Switched,
};
use super::{
    Outgoing, OutgoingError,
    announcement::Announcement,
    counters::{Counters, FLIGHT, LIMIT, LONGEST_WINDOW, PAUSE, PROBE},
    upstream::{Admission, UpstreamState},
};
use crate::{Cause, Clock, Key, Limiter, ManualClock, OnStoreError};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The limiter of one process on the store.
fn over(store: &Switched, policy: OnStoreError) -> Limiter {
    Limiter::builder("memory://").on_store_error(policy).over(store.clone()).unwrap()
}

fn upstream(limiter: &Limiter) -> Arc<UpstreamState> {
    Arc::new(UpstreamState::new(Counters::new(limiter.clone(), Key::new("api")), limiter.clone(), 300 * SECOND))
}

fn says(remaining: u64, seconds: u32) -> Announcement {
    Announcement { remaining: Some(remaining), reset: Some(seconds * SECOND), ..Announcement::default() }
}

/// A call that need not wait, and is sent.
async fn admit(upstream: &Arc<UpstreamState>) -> Option<Admission> {
    let mut admission = upstream.admit(Some(upstream.now())).await.ok()?;
    admission.is_sent = true;
    Some(admission)
}

async fn open(upstream: &Arc<UpstreamState>, said: Announcement) {
    let mut probe = admit(upstream).await.unwrap();
    upstream.learn(&mut probe, &said).await.unwrap();
}

/// The calls that need not wait, in flight.
async fn admitted(upstream: &Arc<UpstreamState>) -> Vec<Admission> {
    let mut all = Vec::new();
    while let Some(admission) = admit(upstream).await {
        all.push(admission);
    }
    all
}

fn request() -> Request<()> {
    Request::put("http://api/items").body(()).unwrap()
}

/// One call through the layer, answered with this status and field.
async fn answered(outgoing: &Outgoing, status: u16, name: &'static str, value: &'static str) -> u16 {
    let client = outgoing.layer(service_fn(move |_: Request<()>| async move {
        Ok::<_, ()>(Response::builder().status(status).header(name, value).body(()).unwrap())
    }));
    client.oneshot(request()).await.unwrap().status().as_u16()
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_granted_are_sent_when_nothing_remains() {
    let upstream = upstream(&Limiter::in_memory());
    open(&upstream, says(5, 60)).await;
    let granted = admitted(&upstream).await;
    assert_eq!(granted.len(), 5);
    assert!(granted.iter().all(Admission::is_current));
    // Not after a pause, also when it is over.
    upstream.pause_here(&Announcement { is_refusal: true, retry_after: Some(SECOND), ..Announcement::default() });
    assert!(!granted.iter().any(Admission::is_current));
    sleep(2 * SECOND).await;
    assert!(!granted.iter().any(Admission::is_current));
}

#[tokio::test(start_paused = true)]
async fn calls_that_failed_do_not_use_up_the_next_window() {
    let upstream = upstream(&Limiter::in_memory());
    open(&upstream, says(256, 5)).await;
    drop(admitted(&upstream).await); // without an answer
    sleep(6 * SECOND).await;
    open(&upstream, says(99, 300)).await;
    // It is unknown whether the upstream has counted them, so it is asked again.
    assert!(admit(&upstream).await.is_none());
    sleep(FLIGHT + SECOND).await;
    open(&upstream, says(99, 300)).await;
    assert_eq!(admitted(&upstream).await.len(), 99);
}

#[tokio::test(start_paused = true)]
async fn a_window_with_calls_in_flight_is_asked_for_again() {
    let upstream = upstream(&Limiter::in_memory());
    open(&upstream, says(10, 5)).await;
    drop(admitted(&upstream).await);
    sleep(6 * SECOND).await;
    open(&upstream, says(15, 300)).await;
    // One is left to ask again.
    assert_eq!(admitted(&upstream).await.len(), 4);
    sleep(FLIGHT + SECOND).await;
    open(&upstream, says(10, 5)).await;
    drop(admitted(&upstream).await);
    sleep(6 * SECOND).await;
    // Nothing remains, whoever was in flight.
    open(&upstream, says(0, 300)).await;
    sleep(60 * SECOND).await;
    assert!(admit(&upstream).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_is_forgotten_when_its_window_is_asked_for_again() {
    let limiter = Limiter::in_memory();
    let upstream = upstream(&limiter);
    open(&upstream, says(9, 60)).await;
    let _call = admit(&upstream).await;
    let counters = Counters::new(limiter, Key::new("api"));
    sleep(FLIGHT.saturating_sub(SECOND + 10 * MS)).await;
    assert_eq!(counters.in_flight().await.unwrap(), 1);
    sleep(SECOND + 10 * MS).await;
    assert_eq!(counters.in_flight().await.unwrap(), 0);
}

/// A log refunds only the last few thousand of its charges.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_answered_after_thousands_of_later_ones_is_not_in_flight() {
    let limiter = Limiter::in_memory();
    let upstream = upstream(&limiter);
    open(&upstream, says(10_000, 60)).await;
    let mut calls = Vec::new();
    for _ in 0..5_002 {
        calls.push(admit(&upstream).await.unwrap());
        sleep(MS).await;
    }
    calls.iter_mut().for_each(Admission::end_flight);
    sleep(SECOND).await;
    let counters = Counters::new(limiter, Key::new("api"));
    assert_eq!(counters.in_flight().await.unwrap(), 0);
}

/// It may have arrived after the probe, and been answered before it.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_answered_while_the_probe_is_in_flight_is_taken_off() {
    let upstream = upstream(&Limiter::in_memory());
    open(&upstream, says(10, 1)).await;
    let mut late = admit(&upstream).await.unwrap();
    sleep(2 * SECOND).await;
    let mut probe = admit(&upstream).await.unwrap();
    upstream.learn(&mut late, &says(4, 60)).await.unwrap();
    drop(late);
    upstream.learn(&mut probe, &says(5, 20)).await.unwrap();
    drop(probe);
    assert_eq!(admitted(&upstream).await.len(), 4);
}

/// The other one is sent while a slow one opens a window. No call could use it, and none would know. Also if the store
/// fails when it is asked whether the credits are there.
#[tokio::test(start_paused = true)]
async fn a_window_whose_credits_another_probe_has_taken_is_closed() {
    // The requests of `open` after it has reset the credits, up to the one that sets its timer. After that, the other
    // probe itself sees the window. 0: no request fails.
    for (waits_at, fails_at) in [(3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (5, 9), (5, 10)] {
        let store = Switched::new(ManualClock::new().into());
        let limiter = over(&store, OnStoreError::Deny);
        let upstream = upstream(&limiter);
        let mut slow = admit(&upstream).await.unwrap();
        store.waits_at(waits_at);
        store.fails_at(fails_at);
        let said = says(9, 60);
        let mut learning = Box::pin(upstream.learn(&mut slow, &said));
        assert!(learning.as_mut().now_or_never().is_none(), "request {waits_at}");
        Counters::new(limiter, Key::new("api")).take_all_credits().await.unwrap();
        assert_eq!(learning.await.is_err(), fails_at > 0, "request {fails_at}");
        drop(slow);
        open(&upstream, says(7, 60)).await;
        assert_eq!(admitted(&upstream).await.len(), 7, "requests {waits_at} and {fails_at}");
    }
}

/// Another probe that is answered late has not taken them.
#[tokio::test(start_paused = true)]
async fn a_window_that_calls_have_used_up_is_not_closed() {
    let upstream = upstream(&Limiter::in_memory());
    let mut slow = admit(&upstream).await.unwrap();
    sleep(PROBE.period() + SECOND).await;
    let mut late = admit(&upstream).await.unwrap();
    upstream.learn(&mut slow, &says(3, 60)).await.unwrap();
    drop(slow);
    assert_eq!(admitted(&upstream).await.len(), 1); // one is in flight, and one left for the next probe
    upstream.learn(&mut late, &says(2, 60)).await.unwrap();
    drop(late);
    assert!(admit(&upstream).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_or_leaves_before_it_is_sent_is_not_in_flight() {
    for request in 3..=6 {
        for set in [Switched::fails_at, Switched::waits_at] {
            let store = Switched::new(Clock::system());
            let limiter = over(&store, OnStoreError::Deny);
            let upstream = upstream(&limiter);
            set(&store, request);
            let probe = admit(&upstream).now_or_never().flatten();
            let in_flight = Counters::new(limiter, Key::new("api")).in_flight().await.unwrap();
            assert_eq!(in_flight, u64::from(probe.is_some()), "request {request}");
        }
    }
}

/// In real time for the background, which closes the window.
#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_while_it_closes_a_window_leaves_none_without_credits() {
    let store = Switched::new(ManualClock::new().into());
    let limiter = over(&store, OnStoreError::Deny);
    let [one, other] = [(); 2].map(|()| upstream(&limiter));
    open(&other, says(5, 60)).await;
    one.doubt();
    store.waits_at(1);
    assert!(one.admit(None).now_or_never().is_none()); // it has taken the credits
    for _ in 0..500 {
        if admit(&other).await.is_some() {
            return; // a probe
        }
        thread::sleep(10 * MS);
    }
    panic!("no process may probe");
}

/// In real time for the background, which tells the store. The store's time stands still.
#[tokio::test(start_paused = true)]
async fn a_pause_that_was_learnt_while_the_store_was_away_is_told_later() {
    let store = Switched::new(ManualClock::new().into());
    let limiter = over(&store, OnStoreError::Local);
    let outgoing = Outgoing::new(limiter.clone()).retries(0);
    store.is_away(true);
    assert_eq!(answered(&outgoing, 429, "Retry-After", "60").await, 429);
    store.is_away(false);
    let counters = counters(&limiter);
    for _ in 0..500 {
        if counters.left_of(&PAUSE).await.is_ok_and(|left| left > 50 * SECOND) {
            return;
        }
        thread::sleep(10 * MS);
    }
    panic!("the store knows of no pause");
}

fn counters(limiter: &Limiter) -> Counters {
    Counters::new(limiter.clone(), Key::new(("api", "")))
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_shared_credits_are_not_granted_again() {
    let store = Switched::new(Clock::system());
    let outgoing = Outgoing::new(over(&store, OnStoreError::Local)).retries(0);
    let sends = |remaining| answered(&outgoing, 200, "RateLimit", remaining);
    sends("\"api\";r=5;t=60").await;
    store.is_away(true);
    for remaining in ["\"api\";r=4;t=60", "\"api\";r=3;t=60", "\"api\";r=2;t=60"] {
        sends(remaining).await;
    }
    store.is_away(false);
    // The limiter asks a store that was away again after a while.
    sleep(30 * SECOND).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let mut all = JoinSet::new();
    for _ in 0..10 {
        let counted = Arc::clone(&sent);
        let client = outgoing.layer(service_fn(move |_: Request<()>| {
            let left = 1_usize.saturating_sub(counted.fetch_add(1, SeqCst));
            let field = format!("\"api\";r={left};t=60");
            async move {
                sleep(SECOND).await;
                Ok::<_, ()>(Response::builder().header("RateLimit", field).body(()).unwrap())
            }
        }));
        all.spawn(async move { drop(client.oneshot(request()).await.unwrap()) });
    }
    sleep(10 * SECOND).await;
    assert_eq!(sent.load(SeqCst), 2);
}

/// Also if there are many upstreams, of which most are forgotten.
#[tokio::test(start_paused = true)]
async fn credits_that_an_outage_made_doubtful_are_not_forgotten() {
    let store = Switched::new(Clock::system());
    let outgoing = Outgoing::new(over(&store, OnStoreError::Local)).retries(0).key(|_| "api");
    answered(&outgoing, 200, "RateLimit", "\"api\";r=5;t=60").await;
    store.is_away(true);
    answered(&outgoing, 200, "RateLimit", "\"api\";r=4;t=60").await;
    store.is_away(false);
    for number in 0..5_000 {
        drop(outgoing.0.upstream(&Key::new(number)));
    }
    let shared = outgoing.0.upstream(&Key::new("api"));
    assert!(shared.knows_more() && !outgoing.0.upstream(&Key::new(1)).knows_more());
    // The limiter asks a store that was away again after a while. The first call is a probe again.
    sleep(30 * SECOND).await;
    assert_eq!(admitted(&shared).await.len(), 1);
    assert!(!shared.knows_more());
}

/// By then, its window has ended in the store, too.
#[tokio::test(start_paused = true)]
async fn an_upstream_is_in_doubt_for_a_window_at_most() {
    let upstream = upstream(&Limiter::in_memory());
    assert!(upstream.doubt() && upstream.knows_more());
    sleep(LONGEST_WINDOW / 2).await;
    assert!(upstream.knows_more());
    sleep(LONGEST_WINDOW / 2).await;
    assert!(!upstream.knows_more());
}

#[tokio::test(start_paused = true)]
async fn one_task_tells_of_a_pause_after_many_refusals() {
    let store = Switched::new(Clock::system());
    let outgoing = Outgoing::new(over(&store, OnStoreError::Local)).retries(0).longest_wait(SECOND);
    answered(&outgoing, 200, "RateLimit", "\"api\";r=1000;t=60").await;
    let mut all = JoinSet::new();
    for _ in 0..100 {
        let client = outgoing.layer(service_fn(|_: Request<()>| async {
            sleep(SECOND).await;
            Ok::<_, ()>(Response::builder().status(429).header("Retry-After", "20").body(()).unwrap())
        }));
        all.spawn(async move { drop(client.oneshot(request()).await.unwrap()) });
    }
    sleep(SECOND / 2).await;
    store.is_away(true);
    all.join_all().await;
    let asked = store.asked();
    for _ in 0..15 {
        sleep(SECOND).await;
        thread::sleep(5 * MS); // it is reported on the background thread
    }
    assert!(store.asked() - asked < 100, "{asked} and then {}", store.asked());
}

/// Nothing makes its calls pause, so they wait a random time.
#[tokio::test(start_paused = true)]
async fn an_unlimited_limiter_does_not_hurry_retries() {
    let outgoing = Outgoing::new(Limiter::unlimited());
    let began = Instant::now();
    assert_eq!(answered(&outgoing, 429, "Retry-After", "10").await, 429);
    assert!(!began.elapsed().is_zero());
}

#[tokio::test(start_paused = true)]
async fn closing_the_limiter_ends_waits_in_an_outage() {
    let store = Switched::new(Clock::system());
    let limiter = over(&store, OnStoreError::Local);
    let outgoing = Outgoing::new(limiter.clone()).retries(0);
    store.is_away(true);
    assert_eq!(answered(&outgoing, 200, "RateLimit", "\"api\";r=0;t=60").await, 200);
    let mut waiting = all_sent(&outgoing, &Few::new(1, MS, ""), 1);
    sleep(SECOND).await;
    limiter.close().await;
    timeout(SECOND, waiting.join_next()).await.unwrap().unwrap().unwrap_err(); // not sent
}

#[tokio::test(start_paused = true)]
async fn a_call_that_can_not_be_repeated_returns_the_response_that_it_had() {
    let outgoing = Outgoing::new(Limiter::in_memory()).longest_wait(SECOND);
    assert_eq!(answered(&outgoing, 429, "Retry-After", "60").await, 429);
    let client = outgoing.layer(service_fn(|_: Request<()>| pending::<Result<Response<()>, ()>>()));
    let Err(OutgoingError::Refused(refused)) = client.oneshot(request()).await else { panic!("it was sent") };
    assert_eq!(refused.cause(), Cause::Exceeded);
}

#[cfg(feature = "reqwest-middleware")]
#[tokio::test(start_paused = true)]
async fn the_middleware_returns_the_response_that_it_had() {
    use reqwest_middleware::{
        ClientBuilder, Middleware, Next, Result,
        reqwest::{self, Client},
    };

    struct Busy;
    #[async_trait::async_trait]
    impl Middleware for Busy {
        async fn handle(
            &self,
            _: reqwest::Request,
            _: &mut http::Extensions,
            _: Next<'_>,
        ) -> Result<reqwest::Response> {
            Ok(Response::builder().status(429).header("Retry-After", "60").body("").unwrap().into())
        }
    }
    let outgoing = Outgoing::new(Limiter::in_memory()).longest_wait(SECOND);
    let client = ClientBuilder::new(Client::new()).with(outgoing).with(Busy).build();
    assert_eq!(client.put("http://api/items").send().await.unwrap().status(), 429);
    client.put("http://api/items").send().await.unwrap_err(); // not sent
}

const WAIT: OnStoreError = OnStoreError::Wait { max: Duration::from_secs(3600) };

#[tokio::test(start_paused = true)]
async fn what_is_learnt_while_the_store_is_away_does_not_wait_for_it() {
    let store = Switched::new(Clock::system());
    let upstream = upstream(&over(&store, WAIT));
    for said in [says(5, 60), Announcement { is_refusal: true, ..Announcement::default() }] {
        let mut probe = admit(&upstream).await.unwrap();
        store.is_away(true);
        let refused = timeout(5 * SECOND, upstream.learn(&mut probe, &said)).await.unwrap().unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable);
        store.is_away(false);
        drop(probe);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_for_no_longer_than_the_longest_wait() {
    let store = Switched::new(Clock::system());
    let upstream = upstream(&over(&store, WAIT));
    store.is_away(true);
    let admission = upstream.admit(Some(upstream.now() + 3 * SECOND));
    timeout(4 * SECOND, admission).await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn retries_after_a_pause_of_no_time_spend_the_budget() {
    let outgoing = Outgoing::new(Limiter::in_memory()).retry_budget(2, 3600 * SECOND);
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let client = outgoing.layer(service_fn(move |_: Request<()>| {
        counted.fetch_add(1, SeqCst);
        async { Ok::<_, ()>(Response::builder().status(429).header("Retry-After", "0").body(()).unwrap()) }
    }));
    assert_eq!(client.oneshot(request()).await.unwrap().status(), 429);
    assert_eq!(sent.load(SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_lost_limit_does_not_end_the_window() {
    let limiter = Limiter::in_memory();
    let upstream = upstream(&limiter);
    open(&upstream, Announcement { limit: Some(100), ..says(50, 60) }).await;
    limiter.reset(&LIMIT, Key::new("api")).await.unwrap();
    let mut call = admit(&upstream).await.unwrap();
    upstream.learn(&mut call, &Announcement { limit: Some(90), ..says(48, 60) }).await.unwrap();
    drop(call);
    assert_eq!(admitted(&upstream).await.len(), 48);
}

/// With the policy `Local`, the process has a budget of its own then.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_sent_before_an_outage_is_repeated() {
    let store = Switched::new(Clock::system());
    let outgoing = Outgoing::new(over(&store, OnStoreError::Local));
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let client = outgoing.layer(service_fn(move |_: Request<()>| {
        store.is_away(true);
        let status = if counted.fetch_add(1, SeqCst) == 0 { 502 } else { 200 };
        async move { Ok::<_, ()>(Response::builder().status(status).body(()).unwrap()) }
    }));
    assert_eq!(client.oneshot(request()).await.unwrap().status(), 200);
    assert_eq!(sent.load(SeqCst), 2);
}
