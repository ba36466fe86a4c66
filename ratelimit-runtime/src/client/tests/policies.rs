//! Responses that tell of several policies.

use super::*;

/// Such as a quota of a minute and one of a day, of which each response tells the nearer one.
#[tokio::test(start_paused = true)]
async fn a_response_that_tells_of_another_policy_does_not_lower_the_limit() {
    let limiter = Limiter::in_memory();
    let (upstream, other) = (upstream(&limiter), upstream(&limiter));
    let limits = vec![100, 10_000];
    open(&upstream, Announcement { limit: Some(10_000), limits: limits.clone(), ..says(90, 200) }).await;
    for upstream in [&upstream, &other] {
        let mut call = admit(upstream).await.unwrap();
        let said = Announcement { limit: Some(100), limits: limits.clone(), ..says(50, 30) };
        upstream.learn(&mut call, &said).await.unwrap();
    }
    assert_eq!(admitted(&other).await.len(), 50 - 1);
}

/// Beside a larger one, which stays.
#[tokio::test(start_paused = true)]
async fn a_limit_that_falls_is_taken_off_once() {
    for is_same_process in [true, false] {
        let limiter = Limiter::in_memory();
        let (one, other) = (upstream(&limiter), upstream(&limiter));
        open(&one, Announcement { limit: Some(100), limits: vec![100, 10_000], ..says(99, 60) }).await;
        let follower = if is_same_process { &one } else { &other };
        let mut calls = Vec::new();
        for _ in 0..40 {
            calls.push(admit(follower).await.unwrap());
        }
        let fallen = Announcement { limit: Some(50), limits: vec![50, 10_000], ..says(48, 60) };
        for call in &mut calls[..2] {
            follower.learn(call, &fallen).await.unwrap();
        }
        assert_eq!(admitted(&one).await.len(), 9);
    }
}

/// The counters hold no more than `MOST`.
#[tokio::test(start_paused = true)]
async fn a_limit_that_is_too_large_for_its_counter_has_not_fallen() {
    let upstream = upstream(&Limiter::in_memory());
    let said =
        |remaining| Announcement { limit: Some(10_000_000), limits: vec![10_000, 10_000_000], ..says(remaining, 300) };
    open(&upstream, said(1156)).await;
    let mut call = admit(&upstream).await.unwrap();
    upstream.learn(&mut call, &said(1155)).await.unwrap();
    assert_eq!(admitted(&upstream).await.len(), 1155);
}

/// Such as one of an hour. It is kept also if calls without an answer may count in the new window.
#[tokio::test(start_paused = true)]
async fn a_policy_of_which_no_response_tells_is_not_asked_for_again() {
    let upstream = upstream(&Limiter::in_memory());
    let said = || Announcement { slowest: Some((1000, 3600 * SECOND)), ..says(90_000, 300) };
    open(&upstream, said()).await;
    sleep(285 * SECOND).await;
    drop(admit(&upstream).await); // without an answer
    sleep(16 * SECOND).await;
    open(&upstream, said()).await;
    assert_eq!(admitted(&upstream).await.len(), 82 - 1);
    sleep(2 * FLIGHT).await;
    assert_eq!(admitted(&upstream).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_policy_of_which_no_response_tells_is_kept() {
    let upstream = upstream(&Limiter::in_memory());
    open(&upstream, Announcement { at_once: Some(10), slowest: Some((10, SECOND)), ..says(700, 300) }).await;
    assert_eq!(admitted(&upstream).await.len(), 9, "the probe was the first one");
    sleep(2 * SECOND).await;
    assert_eq!(admitted(&upstream).await.len(), 1, "a probe");
}
