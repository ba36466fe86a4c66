//! Calls that leave or hang, stores that are away, and credentials.

use std::{
    convert::Infallible,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use http::{Request, Response, StatusCode};
use ratelimit_runtime::{
    Cause, Limiter, ManualClock, OnStoreError,
    client::{Outgoing, OutgoingError},
    store::StoreError,
};
use tokio::time::{Instant, timeout};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use super::api::{Api, put};
use crate::support::{
    MS, SECOND,
    plain_store::{PlainStore, on_plain_store},
};

async fn hangs(outgoing: &Outgoing) {
    let client = ServiceBuilder::new().layer(outgoing.clone());
    let client = client.service(service_fn(|_: Request<()>| pending::<Result<Response<()>, Infallible>>()));
    client.oneshot(Request::put("http://api/items").body(()).unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_probe_that_was_cancelled_the_next_call_goes_at_once() {
    let (api, outgoing) = (Api::new(10, SECOND), Outgoing::new(Limiter::in_memory()));
    timeout(SECOND, hangs(&outgoing)).await.unwrap_err();
    let began = Instant::now();
    put(&api, &outgoing).await.unwrap();
    assert!(began.elapsed() <= 30 * MS, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_keeps_others_waiting_for_10_seconds() {
    let (api, outgoing) = (Api::new(10, SECOND), Outgoing::new(Limiter::in_memory()));
    let hanging = outgoing.clone();
    let task = tokio::spawn(async move { hangs(&hanging).await });
    tokio::time::sleep(MS).await;
    let began = Instant::now();
    put(&api, &outgoing).await.unwrap();
    assert!(began.elapsed() >= 9 * SECOND && began.elapsed() <= 11 * SECOND, "{:?}", began.elapsed());
    task.abort();
}

/// Calls that wait, and leave before they are sent.
#[tokio::test(start_paused = true)]
async fn callers_who_leave_keep_nobody_waiting() {
    let (api, outgoing) = (Api::new(5, 10 * SECOND), Outgoing::new(Limiter::in_memory()));
    for _ in 0..5 {
        put(&api, &outgoing).await.unwrap();
    }
    for _ in 0..20 {
        let (api, outgoing) = (api.clone(), outgoing.clone());
        tokio::spawn(async move { timeout(fastrand::u32(1..9_000) * MS, put(&api, &outgoing)).await.map(drop) });
    }
    let began = Instant::now();
    assert_eq!(put(&api, &outgoing).await.unwrap(), StatusCode::OK);
    assert!(began.elapsed() <= 11 * SECOND, "{:?}", began.elapsed());
    assert_eq!(api.refused(), 0);
}

/// Here each first part of a path has a limit of its own.
#[tokio::test(start_paused = true)]
async fn the_key_of_calls_can_be_set() {
    let first = |path: &str| path.split('/').nth(1).unwrap_or_default().to_owned();
    let outgoing = Outgoing::new(Limiter::in_memory()).key(move |request| first(request.path)).retries(0);
    let status = async |path: &str, status: u16| {
        let client = ServiceBuilder::new().layer(outgoing.clone());
        let client = client.service(service_fn(move |_: Request<()>| {
            let answer = Response::builder().status(status).header("Retry-After", "60").body(());
            async { Ok::<_, Infallible>(answer.unwrap()) }
        }));
        timeout(SECOND, client.oneshot(Request::put(format!("http://api/{path}")).body(()).unwrap())).await
    };
    status("alice/items", 429).await.unwrap().unwrap();
    assert!(status("alice/prices", 200).await.is_err());
    status("bob/items", 200).await.unwrap().unwrap();
}

fn on_store(policy: OnStoreError) -> (Outgoing, PlainStore) {
    let store = PlainStore::new(&ManualClock::new());
    let limiter = Limiter::builder("memory://").on_store_error(policy).instances(4).over(store.clone()).unwrap();
    (Outgoing::new(limiter), store)
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_a_process_keeps_to_what_it_is_told() {
    for policy in [OnStoreError::Local, OnStoreError::Allow] {
        let (outgoing, store) = on_store(policy);
        store.fail(Some(StoreError::unavailable("away")));
        let api = Api::new(5, 10 * SECOND);
        let began = Instant::now();
        for _ in 0..12 {
            assert_eq!(put(&api, &outgoing).await.unwrap(), StatusCode::OK);
        }
        assert!(began.elapsed() >= 20 * SECOND && began.elapsed() <= 22 * SECOND, "{:?}", began.elapsed());
        assert_eq!(api.refused(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn with_deny_no_call_is_sent_without_the_store() {
    let (outgoing, store) = on_store(OnStoreError::Deny);
    store.fail(Some(StoreError::unavailable("away")));
    let api = Api::new(5, 10 * SECOND);
    let Err(OutgoingError::Refused(refused)) = put(&api, &outgoing).await else { panic!() };
    assert_eq!(refused.cause(), Cause::Unavailable);
    assert!(api.seen().is_empty());
}

/// A credential has an upstream's limit of its own, and is not stored.
#[tokio::test(start_paused = true)]
async fn hosts_and_credentials_are_told_apart_and_no_credential_is_stored() {
    let (limiter, store, _) = on_plain_store();
    let outgoing = Outgoing::new(limiter);
    let sent = Arc::new(AtomicUsize::new(0));
    let probes = async |uri: &str, fields: &[(&str, &str)]| {
        let sent = Arc::clone(&sent);
        let client = service_fn(move |_: Request<()>| {
            sent.fetch_add(1, SeqCst);
            async { Ok::<_, Infallible>(Response::new(())) }
        });
        let client = ServiceBuilder::new().layer(outgoing.clone()).service(client);
        let mut request = Request::get(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let _ = timeout(MS, client.oneshot(request.body(()).unwrap())).await;
        let names = store.seen();
        let of_probe = |name: &&ratelimit_runtime::CounterName| format!("{name:?}").contains("client-probe");
        let probe = names.iter().find(of_probe).map(|name| format!("{name:?}"));
        assert!(names.iter().all(|name| !format!("{name:?}").contains("swordfish")));
        probe
    };
    let mut keys = Vec::new();
    for (uri, fields) in [
        ("http://one/a", &[][..]),
        ("http://two/a", &[]),
        ("http://one:8080/a", &[]),
        ("http://one/a", &[("authorization", "Bearer swordfish")]),
        ("http://one/a", &[("authorization", "Bearer swordfish2")]),
        ("http://one/a", &[("x-api-key", "Bearer swordfish")]),
    ] {
        keys.push(probes(uri, fields).await.expect("a new upstream is probed"));
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6, "{keys:?}");
}
