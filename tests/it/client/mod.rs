//! Outgoing calls within limits that nobody configured. All in paused time.

mod api;
mod failures;
mod pauses;
mod retries;
mod waits;
mod windows;

use std::time::Duration;

use http::{Request, Response, StatusCode};
use ratelimit_runtime::{Limiter, client::Outgoing};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use self::api::{Api, put};
use crate::support::{MS, SECOND};

/// Makes calls in several processes, each with some tasks, and returns how many were accepted.
///
/// A process is an `Outgoing` of its own: it shares nothing but the store.
async fn calls(api: &Api, processes: &[Outgoing], tasks: u64, calls: u64) -> u64 {
    let mut all = JoinSet::new();
    for outgoing in processes {
        for _ in 0..tasks {
            let (api, outgoing) = (api.clone(), outgoing.clone());
            all.spawn(async move {
                let mut accepted = 0;
                for _ in 0..calls {
                    accepted += u64::from(put(&api, &outgoing).await.unwrap() == StatusCode::OK);
                }
                accepted
            });
        }
    }
    all.join_all().await.into_iter().sum()
}

fn processes(number: usize) -> Vec<Outgoing> {
    let limiter = Limiter::in_memory();
    (0..number).map(|_| Outgoing::new(limiter.clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn the_announced_limit_is_kept_and_used_up() {
    let began = Instant::now();
    let api = Api::new(25, 2 * SECOND).latency(MS, 50 * MS);
    assert_eq!(calls(&api, &processes(4), 16, 5).await, 320);
    assert_eq!(api.refused(), 0);
    // Thirteen windows, of which the last need not end. Each takes a probe and some rounding.
    let took = began.elapsed();
    assert!(took >= 24 * SECOND && took < 27 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn until_the_limit_is_known_one_call_is_in_flight() {
    let api = Api::new(1, 2 * SECOND).latency(MS, 50 * MS);
    assert_eq!(calls(&api, &processes(4), 16, 1).await, 64);
    assert_eq!(api.refused(), 0);
}

/// The limit changes three times. Each call that is refused was in flight at the change, or was sent before an answer
/// could tell of it, so each caller is refused once at most.
#[tokio::test(start_paused = true)]
async fn a_changed_limit_refuses_no_call_that_is_sent_when_a_refusal_is_known() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let api = Api::new(60, 5 * SECOND).latency(MS, 80 * MS).then(90, 20).then(150, 100).then(300, 7);
        assert_eq!(calls(&api, &processes(4), 16, 6).await, 384);
        let (seen, changed) = (api.seen(), api.changed());
        assert_eq!(changed.len(), 3);
        for (at, (time, in_flight)) in changed.iter().enumerate() {
            let until = changed.get(at + 1).map(|(time, _)| *time);
            let here = |call: &&api::Seen| call.arrived >= *time && until.is_none_or(|until| call.arrived < until);
            let refused: Vec<_> = seen.iter().filter(here).filter(|call| call.is_refused).collect();
            let Some(told) = refused.iter().map(|call| call.answered).min() else { continue };
            // In memory the store is asked in no time, and timers are rounded up to a millisecond.
            assert!(refused.iter().all(|call| call.sent <= told + MS), "seed {seed}");
            let earlier = refused.iter().filter(|call| call.sent <= *time).count() as u64;
            assert!(earlier <= *in_flight && refused.len() <= 64, "{} of {in_flight}, seed {seed}", refused.len());
        }
    }
}

/// The calls in flight have taken theirs already: a lower limit that leaves room for them refuses none.
#[tokio::test(start_paused = true)]
async fn a_lower_limit_counts_the_calls_in_flight() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let api = Api::new(1000, 60 * SECOND).latency(20 * MS, 80 * MS).then(300, 500);
        assert_eq!(calls(&api, &processes(4), 32, 5).await, 640);
        assert_eq!(api.refused(), 0, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn use_by_others_is_taken_off() {
    let api = Api::new(100, 60 * SECOND);
    let processes = processes(2);
    assert_eq!(calls(&api, &processes, 1, 5).await, 10);
    api.use_elsewhere(80);
    let began = Instant::now();
    assert_eq!(calls(&api, &processes, 1, 10).await, 20);
    assert!(began.elapsed() >= 50 * SECOND, "{:?}", began.elapsed());
    // Only the call in flight: nobody can tell whether it was counted.
    assert!(api.refused() <= 1, "{}", api.refused());
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_announces_nothing_is_only_paused() {
    let api = Api::new(50, 10 * SECOND).silent();
    let processes = processes(2);
    assert_eq!(calls(&api, &processes, 4, 5).await, 40);
    let began = Instant::now();
    assert_eq!(calls(&api, &processes, 4, 5).await, 40);
    assert!(began.elapsed() >= 9 * SECOND);
    // Of the calls in flight; one probe after the pause.
    assert!(api.refused() <= 8, "{}", api.refused());
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_stops_all_processes_and_no_longer_than_the_bound() {
    for (text, pause) in [
        ("7", 7 * SECOND),
        ("0", Duration::ZERO),
        ("-1", SECOND),
        ("soon", SECOND),
        ("1000000000000000000", 60 * SECOND),
        ("99999999999999999999999999", 60 * SECOND),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 60 * SECOND),
        ("Sun, 06 Nov 1994 08:49:37 GMT", Duration::ZERO),
    ] {
        for status in [429, 503] {
            if status == 503 && pause == SECOND {
                continue; // a 503 without a time is no refusal
            }
            let limiter = Limiter::in_memory();
            let [one, other] = [(); 2].map(|()| Outgoing::new(limiter.clone()).longest_pause(60 * SECOND).retries(0));
            let send = async |outgoing: &Outgoing, status: u16| {
                let answer = service_fn(move |_: Request<()>| {
                    let response = Response::builder().status(status).header("Retry-After", text).body(());
                    async move { Ok::<_, ()>(response.unwrap()) }
                });
                let client = ServiceBuilder::new().layer(outgoing.clone()).service(answer);
                client.oneshot(Request::get("http://api/").body(()).unwrap()).await.unwrap().status()
            };
            send(&one, 200).await;
            assert_eq!(send(&one, status).await, status);
            let began = Instant::now();
            send(&other, 200).await;
            let took = began.elapsed();
            assert!(took >= pause && took <= pause + 20 * MS, "{text:?}: {took:?}");
        }
    }
}

/// Whatever an upstream says, the next call waits for the bound at most.
#[tokio::test(start_paused = true)]
async fn no_header_field_makes_a_wait_longer_than_the_bound() {
    const NAMES: [&str; 11] = [
        "Retry-After",
        "Date",
        "RateLimit",
        "RateLimit-Policy",
        "RateLimit-Limit",
        "RateLimit-Remaining",
        "RateLimit-Reset",
        "X-RateLimit-Limit",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
        "X-RateLimit-Reset-After",
    ];
    for seed in 0..3_000 {
        fastrand::seed(seed);
        let outgoing = Outgoing::new(Limiter::in_memory()).longest_pause(30 * SECOND).retries(0);
        let answer = service_fn(async |_: Request<()>| {
            let mut response = Response::builder().status(fastrand::choice([200_u16, 204, 429, 503, 500]).unwrap());
            for _ in 0..fastrand::usize(0..6) {
                response = response.header(fastrand::choice(NAMES).unwrap(), field());
            }
            Ok::<_, ()>(response.body(()).unwrap())
        });
        let client = ServiceBuilder::new().layer(outgoing).service(answer);
        for _ in 0..5 {
            let call = client.clone().oneshot(Request::get("http://api/").body(()).unwrap());
            timeout(30 * SECOND + 50 * MS, call).await.unwrap_or_else(|_| panic!("seed {seed}")).unwrap();
        }
    }
}

/// A value that is nearly right.
fn field() -> String {
    let number = || match fastrand::u8(0..6) {
        0 => "0".into(),
        1 => format!("-{}", fastrand::u32(..)),
        2 => fastrand::u64(..).to_string(),
        3 => format!("{}.{}", fastrand::u8(..), fastrand::u8(..)),
        4 => "9".repeat(fastrand::usize(1..40)),
        _ => fastrand::u16(..).to_string(),
    };
    match fastrand::u8(0..6) {
        0 => number(),
        1 => format!("\"a\";q={};w={}", number(), number()),
        2 => format!("\"a\";r={};t={}", number(), number()),
        3 => format!("limit={}, remaining={}, reset={}", number(), number(), number()),
        4 => format!("Wed, 21 Oct {} 07:28:00 GMT", fastrand::u16(0..10_000)),
        _ => (0..fastrand::usize(0..20)).map(|_| fastrand::char(' '..='~')).collect(),
    }
}
