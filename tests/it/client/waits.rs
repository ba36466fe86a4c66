//! How a call waits: for how long, how often it asks the store, and what it does when it may be sent.

use std::{
    convert::Infallible,
    future::pending,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{
    Cause, Limiter, ManualClock, RequestPerMinute,
    client::{Outgoing, OutgoingError},
};
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, Sleep, sleep},
};
use tower::{Service, ServiceBuilder, ServiceExt as _};

use super::{
    pauses::{answered, response},
    processes,
};
use crate::support::{MS, SECOND, plain_store::PlainStore};

fn refused<T>(answer: Result<T, OutgoingError<()>>) -> RequestPerMinute {
    match answer {
        Err(OutgoingError::Refused(refused)) => refused,
        _ => panic!("it was sent"),
    }
}

async fn told_to_wait(outgoing: &Outgoing, seconds: &'static str) {
    let busy = move || async move { response(429, &[("Retry-After", seconds)]) };
    assert_eq!(answered(outgoing, busy).await.unwrap().status(), 429);
}

async fn fine() -> Response<()> {
    response(200, &[("RateLimit", "\"api\";r=1;t=60")])
}

#[tokio::test(start_paused = true)]
async fn of_several_pauses_the_longest_holds_in_all_processes() {
    for order in [["60", "5"], ["5", "60"]] {
        let limiter = Limiter::in_memory();
        let all = [(); 3].map(|()| Outgoing::new(limiter.clone()).retries(0));
        answered(&all[0], async || response(200, &[("RateLimit", "\"api\";r=9;t=60")])).await.unwrap();
        let began = Instant::now();
        let [one, other] = [0, 1].map(|at| {
            let seconds = order[at];
            tokio::spawn(answered(&all[at], move || async move {
                sleep(u32::try_from(at + 1).unwrap() * 10 * MS).await;
                response(429, &[("Retry-After", seconds)])
            }))
        });
        one.await.unwrap().unwrap();
        other.await.unwrap().unwrap();
        let bounded = Outgoing::new(limiter).longest_pause(SECOND);
        let calls = [all[0].clone(), all[1].clone(), all[2].clone(), bounded];
        let calls = calls.map(|outgoing| {
            tokio::spawn(async move {
                answered(&outgoing, fine).await.unwrap();
                began.elapsed()
            })
        });
        for call in calls {
            let took = call.await.unwrap();
            assert!(took >= 60 * SECOND, "{took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_no_longer_than_the_longest_wait() {
    let all: Vec<_> = processes(2).into_iter().map(|outgoing| outgoing.retries(0).longest_wait(10 * SECOND)).collect();
    told_to_wait(&all[0], "60").await;
    for outgoing in &all {
        // The wait is known, so it fails at once.
        let began = Instant::now();
        let refused = refused(answered(outgoing, fine).await);
        assert_eq!((refused.cause(), began.elapsed()), (Cause::Exceeded, Duration::ZERO));
        assert!(refused.retry_after().unwrap() > 59 * SECOND, "{refused:?}");
    }
    sleep(55 * SECOND).await;
    assert_eq!(answered(&all[0], fine).await.unwrap().status(), 200);
    assert_eq!(answered(&all[0], fine).await.unwrap().status(), 200);
    for outgoing in &all {
        // Nothing remains of the window.
        assert_eq!(refused(answered(outgoing, fine).await).cause(), Cause::Exceeded);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_behind_a_probe_waits_for_no_longer_than_the_longest_wait() {
    let limiter = Limiter::in_memory();
    let all = [(); 2].map(|()| Outgoing::new(limiter.clone()).longest_wait(3 * SECOND));
    let probe = tokio::spawn(answered(&all[0], pending));
    sleep(MS).await;
    let began = Instant::now();
    let calls = [&all[0], &all[0], &all[1], &all[1]].map(|outgoing| tokio::spawn(answered(outgoing, fine)));
    for call in calls {
        assert_eq!(refused(call.await.unwrap()).cause(), Cause::Exceeded);
    }
    assert_eq!(began.elapsed().as_secs(), 3);
    probe.abort();
}

#[tokio::test(start_paused = true)]
async fn with_a_longest_wait_of_zero_calls_are_rejected() {
    let outgoing = Outgoing::new(Limiter::in_memory()).longest_wait(Duration::ZERO);
    let began = Instant::now();
    for _ in 0..2 {
        assert_eq!(answered(&outgoing, fine).await.unwrap().status(), 200);
    }
    let refused = refused(answered(&outgoing, fine).await);
    assert_eq!(refused.to_string(), "`client-wait` is limited to 1 per 61 seconds; retry in 1 min");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn closing_the_limiter_ends_all_waits() {
    let limiter = Limiter::in_memory();
    let outgoing = Outgoing::new(limiter.clone()).retries(0);
    answered(&outgoing, async || response(200, &[("RateLimit", "\"api\";r=9;t=60")])).await.unwrap();
    told_to_wait(&outgoing, "60").await;
    let other = Outgoing::new(limiter.clone());
    let waiting = [&outgoing, &outgoing, &other, &other].map(|outgoing| tokio::spawn(answered(outgoing, fine)));
    sleep(SECOND).await;
    let began = Instant::now();
    limiter.close().await;
    for call in waiting {
        assert_eq!(refused(call.await.unwrap()).cause(), Cause::Exceeded);
    }
    refused(answered(&other, fine).await);
    assert_eq!(began.elapsed(), Duration::ZERO);
    // A call that need not wait is sent.
    sleep(60 * SECOND).await;
    assert_eq!(answered(&outgoing, fine).await.unwrap().status(), 200);
}

/// The pause after a response that is not a refusal. The caller gets that response.
#[tokio::test(start_paused = true)]
async fn closing_the_limiter_ends_the_pause_before_a_retry() {
    let limiter = Limiter::in_memory();
    let outgoing = Outgoing::new(limiter.clone()).retries(12);
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let call = tokio::spawn(async move {
        answered(&outgoing, move || {
            counted.fetch_add(1, SeqCst);
            async { response(502, &[]) }
        })
        .await
    });
    while sent.load(SeqCst) < 8 {
        sleep(MS).await;
    }
    let (before, began) = (sent.load(SeqCst), Instant::now()); // a pause may have had no length
    limiter.close().await;
    assert_eq!(call.await.unwrap().unwrap().status(), 502);
    assert_eq!((sent.load(SeqCst), began.elapsed()), (before, Duration::ZERO));
}

fn on_plain_store() -> (Limiter, PlainStore) {
    let store = PlainStore::new(&ManualClock::new());
    (Limiter::builder("memory://").over(store.clone()).unwrap(), store)
}

#[tokio::test(start_paused = true)]
async fn a_process_seldom_asks_while_another_one_probes() {
    let (limiter, store) = on_plain_store();
    let all = [(); 2].map(|()| Outgoing::new(limiter.clone()));
    let probe = tokio::spawn(answered(&all[0], async || {
        sleep(8 * SECOND).await;
        response(200, &[("RateLimit", "\"api\";r=100;t=60")])
    }));
    sleep(MS).await;
    let (calls, began) = (store.calls(), Instant::now());
    let waiting = [(); 10].map(|()| tokio::spawn(answered(&all[1], fine)));
    sleep(7 * SECOND).await;
    let asked = store.calls() - calls;
    // Twice each time: for the window, and for the probe.
    assert!(asked < 2 * 70, "{asked}");
    probe.await.unwrap().unwrap();
    for call in waiting {
        call.await.unwrap().unwrap();
    }
    assert!(began.elapsed() <= 8 * SECOND + 300 * MS, "{:?}", began.elapsed());
}

/// So a call of another process that asks a store round trip later is not sent.
#[tokio::test(start_paused = true)]
async fn a_refusal_takes_the_credits_in_the_first_round_trip() {
    let (limiter, store) = on_plain_store();
    let outgoing = Outgoing::new(limiter).retries(0);
    answered(&outgoing, async || response(200, &[("RateLimit", "\"api\";r=9;t=60")])).await.unwrap();
    let holding = store.clone();
    let refused = tokio::spawn(answered(&outgoing, move || {
        holding.hold();
        holding.seen();
        async { response(429, &[("Retry-After", "60")]) }
    }));
    for _ in 0..10 {
        yield_now().await;
    }
    let seen = format!("{:?}", store.seen());
    assert!(seen.contains("client-pause") && seen.contains("client-credits"), "{seen}");
    refused.abort();
}

/// The store grants it a credit while the refusal of another call arrives. In real time, with a server
/// that is halted meanwhile.
#[tokio::test]
async fn a_call_that_asks_the_store_when_a_refusal_arrives_is_not_sent() {
    let server = RedisServer::start();
    let limiter = Limiter::builder(&server.url()).deadline(30 * SECOND).build().await.unwrap();
    let outgoing = Outgoing::new(limiter).retries(0);
    let says = async || {
        sleep(10 * MS).await;
        response(200, &[("RateLimit", "\"api\";r=9;t=90")])
    };
    answered(&outgoing, says).await.unwrap();
    let (sent, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (counted, arrived) = (Arc::clone(&sent), Arc::clone(&answer));
    let refused = tokio::spawn(answered(&outgoing, move || {
        counted.fetch_add(1, SeqCst);
        let is_known = Arc::clone(&arrived);
        async move {
            is_known.notified().await;
            response(429, &[("Retry-After", "60")])
        }
    }));
    while sent.load(SeqCst) == 0 {
        sleep(MS).await;
    }
    server.stop();
    let counted = Arc::clone(&sent);
    let call = tokio::spawn(answered(&outgoing, move || {
        counted.fetch_add(1, SeqCst);
        fine()
    }));
    sleep(50 * MS).await; // it asks the store
    answer.notify_one();
    sleep(50 * MS).await; // the refusal is known
    server.cont();
    refused.await.unwrap().unwrap();
    sleep(300 * MS).await;
    assert_eq!(sent.load(SeqCst), 1);
    call.abort();
}

/// A service that is ready after a time.
struct Slow {
    after: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
    sent: Arc<AtomicUsize>,
}

impl Clone for Slow {
    fn clone(&self) -> Self {
        Self { after: self.after, sleep: None, sent: Arc::clone(&self.sent) }
    }
}

impl Service<Request<()>> for Slow {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let after = self.after;
        self.sleep.get_or_insert_with(|| Box::pin(sleep(after))).as_mut().poll(context).map(Ok)
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.sent.fetch_add(1, SeqCst);
        std::future::ready(Ok(response(200, &[("RateLimit", "\"api\";r=9;t=60")])))
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_the_service_sees_a_pause_that_comes_meanwhile() {
    let outgoing = Outgoing::new(Limiter::in_memory()).retries(0);
    answered(&outgoing, async || response(200, &[("RateLimit", "\"api\";r=9;t=60")])).await.unwrap();
    let (sent, began) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let slow = Slow { after: 5 * SECOND, sleep: None, sent: Arc::clone(&sent) };
    let slow = ServiceBuilder::new().layer(outgoing.clone()).service(slow);
    let call = tokio::spawn(slow.oneshot(Request::put("http://api/items").body(()).unwrap()));
    sleep(SECOND).await;
    told_to_wait(&outgoing, "30").await;
    sleep(29 * SECOND).await;
    assert_eq!(sent.load(SeqCst), 0);
    call.await.unwrap().unwrap();
    let took = began.elapsed();
    // It gave its place up, and the service takes its time again.
    assert!(took >= 36 * SECOND && took < 37 * SECOND, "{took:?}");
}

/// The first pause fits. The second one comes while the call waits for the service, and does not.
#[tokio::test(start_paused = true)]
async fn the_longest_wait_bounds_the_sum_of_the_pauses_of_a_call() {
    let outgoing = Outgoing::new(Limiter::in_memory()).retries(0).longest_wait(20 * SECOND);
    answered(&outgoing, async || response(200, &[("RateLimit", "\"api\";r=9;t=60")])).await.unwrap();
    let late = tokio::spawn(answered(&outgoing, async || {
        sleep(16 * SECOND).await;
        response(429, &[("Retry-After", "20")])
    }));
    sleep(MS).await;
    told_to_wait(&outgoing, "15").await;
    let began = Instant::now();
    let slow = Slow { after: 5 * SECOND, sleep: None, sent: Arc::default() };
    let slow = ServiceBuilder::new().layer(outgoing.clone()).service(slow);
    let answer = slow.oneshot(Request::put("http://api/items").body(()).unwrap()).await;
    assert!(matches!(answer, Err(OutgoingError::Refused(_))), "sent after {:?}", began.elapsed());
    assert!(began.elapsed() <= 21 * SECOND, "{:?}", began.elapsed());
    late.await.unwrap().unwrap();
}
