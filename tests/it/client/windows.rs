//! The permits of a new window: what was announced, less what else may count.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Response, StatusCode};
use ratelimit_runtime::{Limiter, Rule, client::Outgoing};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    api::{Api, put},
    calls,
    pauses::{answered, response},
    processes,
};
use crate::support::{MS, SECOND};

/// Counts the calls that are sent, and never answers them.
async fn sent(outgoings: &[Outgoing], calls: usize) -> usize {
    let sent = Arc::new(AtomicUsize::new(0));
    let mut all = JoinSet::new();
    for outgoing in outgoings.iter().cycle().take(calls) {
        let sent = Arc::clone(&sent);
        all.spawn(answered(outgoing, move || {
            sent.fetch_add(1, SeqCst);
            pending::<Response<()>>()
        }));
    }
    sleep(SECOND).await;
    sent.load(SeqCst)
}

/// The upstream may count them after the call that asked for the new window.
#[tokio::test(start_paused = true)]
async fn calls_in_flight_of_all_processes_are_taken_off_a_new_window() {
    let all = processes(2);
    let says = |fields: &'static str| move || async move { response(200, &[("RateLimit", fields)]) };
    answered(&all[0], says("\"api\";r=100;t=1")).await.unwrap();
    let mut slow = JoinSet::new();
    for outgoing in all.iter().cycle().take(20) {
        slow.spawn(answered(outgoing, || async {
            sleep(10 * SECOND).await;
            response(200, &[])
        }));
    }
    sleep(2 * SECOND).await;
    answered(&all[1], says("\"api\";r=30;t=3")).await.unwrap();
    assert_eq!(sent(&all, 100).await, 10);
    slow.join_all().await;
    // They have their answers, and the others count for 31 seconds.
    sleep(32 * SECOND).await;
    answered(&all[1], says("\"api\";r=30;t=3")).await.unwrap();
    assert_eq!(sent(&all, 100).await, 30);
}

/// Calls may take three times as long as a window, so some are in flight when the next one opens.
#[tokio::test(start_paused = true)]
async fn slow_calls_are_not_refused_when_windows_change() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let api = Api::new(20, SECOND).latency(MS, 1500 * MS);
        assert_eq!(calls(&api, &processes(4), 8, 6).await, 192);
        assert_eq!(api.refused(), 0, "seed {seed}");
    }
}

/// Two calls, of which one is in flight at the change. The other one begins before any answer can tell
/// of it. So no client keeps to the calls in flight at the change itself.
#[tokio::test(start_paused = true)]
async fn a_call_that_begins_before_the_change_is_known_may_be_refused() {
    let api = Api::new(100, 60 * SECOND).latency(10 * MS, 10 * MS).then(1, 0);
    let processes = processes(1);
    assert_eq!(calls(&api, &processes, 1, 1).await, 1);
    let one = tokio::spawn(put(&api, &processes[0]));
    sleep(11 * MS).await; // it has arrived, and its answer is on its way
    let other = tokio::spawn(put(&api, &processes[0]));
    sleep(15 * MS).await;
    assert_eq!((api.changed()[0].1, api.refused()), (1, 2));
    // None begins later.
    let late = timeout(SECOND, put(&api, &processes[0])).await;
    assert!(late.is_err());
    assert_eq!(api.refused(), 2);
    one.abort();
    other.abort();
}

/// The most calls at once, of an upstream whose answers have no fields.
async fn most_at_once(outgoing: &Outgoing) -> usize {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut all = JoinSet::new();
    for _ in 0..10 {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        all.spawn(answered(outgoing, move || {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                sleep(SECOND).await;
                now.fetch_sub(1, SeqCst);
                response(200, &[])
            }
        }));
    }
    all.join_all().await;
    most.load(SeqCst)
}

/// A page of a proxy, for example.
#[tokio::test(start_paused = true)]
async fn an_answer_without_fields_does_not_lift_an_announced_limit() {
    let outgoing = Outgoing::new(Limiter::in_memory());
    answered(&outgoing, async || response(200, &[("RateLimit", "\"api\";r=5;t=2")])).await.unwrap();
    sleep(3 * SECOND).await;
    assert_eq!(most_at_once(&outgoing).await, 1);
    // But for a minute only: perhaps it announces nothing any more.
    sleep(60 * SECOND).await;
    assert!(most_at_once(&outgoing).await >= 9);
}

#[tokio::test(start_paused = true)]
async fn the_quota_of_a_policy_is_shared_among_the_windows_that_it_is_cut_into() {
    let outgoing = Outgoing::new(Limiter::in_memory()).longest_pause(300 * SECOND);
    let accepted = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (outgoing, accepted) = (outgoing.clone(), Arc::clone(&accepted));
        tasks.spawn(async move {
            loop {
                let policy = async || response(200, &[("RateLimit-Policy", "\"api\";q=600;w=3600")]);
                answered(&outgoing, policy).await.unwrap();
                accepted.fetch_add(1, SeqCst);
            }
        });
    }
    sleep(3600 * SECOND).await;
    let accepted = accepted.load(SeqCst);
    assert!((590..=600).contains(&accepted), "{accepted}");
}

/// By a restart of the store, or by eviction.
#[tokio::test(start_paused = true)]
async fn a_lost_counter_is_replaced_by_a_probe() {
    // Two hours are the longest time that a counter is kept.
    const CREDITS: Rule = Rule::new("client-credits", 1, Duration::from_secs(7200));
    let limiter = Limiter::in_memory();
    let (api, outgoing) = (Api::new(50, 60 * SECOND), Outgoing::new(limiter.clone()));
    for _ in 0..3 {
        put(&api, &outgoing).await.unwrap();
    }
    assert!(limiter.peek(&CREDITS, ("api", "")).await.unwrap().reset_after() > Duration::ZERO);
    limiter.reset(&CREDITS, ("api", "")).await.unwrap();
    let began = Instant::now();
    for _ in 0..50 {
        // If the store were asked again and again, no time would pass.
        assert_eq!(put(&api, &outgoing).await.unwrap(), StatusCode::OK);
    }
    assert_eq!(api.refused(), 0);
    assert!(began.elapsed() >= 50 * SECOND, "{:?}", began.elapsed());
}
