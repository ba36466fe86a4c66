//! Pauses hold, whatever else happens at that moment.

use std::{future::Future, thread};

use http::{Request, Response};
use ratelimit_runtime::{
    Limiter, ManualClock, OnStoreError,
    client::{Outgoing, OutgoingError},
    store::StoreError,
};
use tokio::time::{Instant, sleep, timeout};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use crate::support::{MS, SECOND, plain_store::PlainStore};

/// One call, which is answered by this.
pub(crate) fn answered<A, F>(
    outgoing: &Outgoing,
    answer: A,
) -> impl Future<Output = Result<Response<()>, OutgoingError<()>>> + Send + use<A, F>
where
    A: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Response<()>> + Send + 'static,
{
    let service = service_fn(move |_: Request<()>| {
        let answer = answer();
        async move { Ok(answer.await) }
    });
    let client = ServiceBuilder::new().layer(outgoing.clone()).service(service);
    async move { client.oneshot(Request::put("http://api/items").body(()).unwrap()).await }
}

pub(crate) fn response(status: u16, fields: &[(&str, &str)]) -> Response<()> {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap()
}

fn busy() -> Response<()> {
    response(429, &[("Retry-After", "60")])
}

fn fine() -> Response<()> {
    response(200, &[("RateLimit", "\"api\";r=100;t=1")])
}

/// The reset is less than half a second away, in whole seconds.
#[tokio::test(start_paused = true)]
async fn a_refusal_with_a_reset_of_zero_pauses_for_a_second() {
    for fields in [&[("RateLimit", "\"api\";r=0;t=0")], &[("X-RateLimit-Reset-After", "0")]] {
        let outgoing = Outgoing::new(Limiter::in_memory()).retries(0);
        answered(&outgoing, async || response(429, fields)).await.unwrap();
        let began = Instant::now();
        answered(&outgoing, async || fine()).await.unwrap();
        assert!(began.elapsed() >= SECOND, "{:?}", began.elapsed());
    }
}

/// A call of an earlier window is refused while a probe is in flight, which then is answered well.
#[tokio::test(start_paused = true)]
async fn the_answer_to_a_probe_does_not_end_a_pause() {
    for prober in 0..2 {
        let limiter = Limiter::in_memory();
        let all = [(); 3].map(|()| Outgoing::new(limiter.clone()).retries(0));
        answered(&all[0], async || fine()).await.unwrap();
        let late = answered(&all[0], async || {
            sleep(3 * SECOND).await;
            busy()
        });
        let late = tokio::spawn(late);
        sleep(2 * SECOND).await;
        let probe = answered(&all[prober], async || {
            sleep(2 * SECOND).await;
            fine()
        });
        let probe = tokio::spawn(probe);
        assert_eq!(late.await.unwrap().unwrap().status(), 429);
        let began = Instant::now();
        assert_eq!(probe.await.unwrap().unwrap().status(), 200);
        let calls = all.map(|outgoing| tokio::spawn(answered(&outgoing, async || fine())));
        for call in calls {
            call.await.unwrap().unwrap();
            assert!(began.elapsed() >= 60 * SECOND, "{:?}, prober {prober}", began.elapsed());
        }
    }
}

fn denying() -> (Outgoing, PlainStore) {
    let store = PlainStore::new(&ManualClock::new());
    let limiter = Limiter::builder("memory://").on_store_error(OnStoreError::Deny).over(store.clone()).unwrap();
    (Outgoing::new(limiter).retries(0), store)
}

/// Waits, in real time, until the store was asked about a counter of this prefix.
fn until_asked_about(store: &PlainStore, prefix: &str) {
    for _ in 0..500 {
        if store.seen().iter().any(|name| format!("{name:?}").contains(prefix)) {
            return;
        }
        thread::sleep(10 * MS);
    }
    panic!("the store was not asked about {prefix}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_once_loses_no_pause() {
    let (outgoing, store) = denying();
    let failing = store.clone();
    let refused = answered(&outgoing, move || {
        failing.fail(Some(StoreError::unavailable("away")));
        async { busy() }
    });
    assert_eq!(refused.await.unwrap().status(), 429);
    store.seen();
    store.fail(None);
    until_asked_about(&store, "client-pause"); // by the background
    timeout(59 * SECOND, answered(&outgoing, async || fine())).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_loses_no_pause() {
    let (outgoing, store) = denying();
    let holding = store.clone();
    let refused = answered(&outgoing, move || {
        holding.seen();
        holding.hold();
        async { busy() }
    });
    timeout(MS, refused).await.unwrap_err();
    (0..100).for_each(|_| store.release());
    until_asked_about(&store, "client-credits");
    timeout(59 * SECOND, answered(&outgoing, async || fine())).await.unwrap_err();
}

/// A store that hangs keeps a response for the deadline at most.
#[tokio::test(start_paused = true)]
async fn a_response_is_not_held_back_while_the_store_hangs() {
    for policy in [OnStoreError::Deny, OnStoreError::Wait { max: 3600 * SECOND }] {
        let store = PlainStore::new(&ManualClock::new());
        let limiter = Limiter::builder("memory://").on_store_error(policy).over(store.clone()).unwrap();
        let outgoing = Outgoing::new(limiter).retries(0);
        let answer = answered(&outgoing, move || {
            store.fail(Some(StoreError::unavailable("away")));
            async { fine() }
        });
        timeout(5 * SECOND, answer).await.unwrap().unwrap();
    }
}
