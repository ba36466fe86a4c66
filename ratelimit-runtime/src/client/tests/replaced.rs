//! Windows that another process has replaced, after the upstream refused one of its calls.

use super::*;

/// Ends the open window, and opens another one.
async fn replace(upstream: &Arc<UpstreamState>, said: Announcement) {
    let mut refused = admit(upstream).await.unwrap();
    let refusal = Announcement { is_refusal: true, retry_after: Some(2 * SECOND), ..Announcement::default() };
    upstream.learn(&mut refused, &refusal).await.unwrap();
    sleep(3 * SECOND).await;
    open(upstream, said).await;
}

/// Two processes. The first one has opened a window of 300 seconds, 10 seconds ago.
async fn processes_that_have_seen_a_window() -> (Arc<UpstreamState>, Arc<UpstreamState>) {
    let limiter = Limiter::in_memory();
    let (one, other) = (upstream(&limiter), upstream(&limiter));
    open(&one, says(100, 300)).await;
    let mut seen = admit(&other).await.unwrap();
    other.learn(&mut seen, &says(99, 299)).await.unwrap();
    sleep(10 * SECOND).await;
    (one, other)
}

#[tokio::test(start_paused = true)]
async fn a_process_that_has_seen_the_window_before_does_not_use_what_is_left_of_the_new_one() {
    let (one, other) = processes_that_have_seen_a_window().await;
    replace(&one, says(40, 5)).await;
    sleep(80 * SECOND).await;
    assert_eq!(admitted(&other).await.len(), 1, "a probe");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_has_seen_the_window_before_uses_the_new_one() {
    let (one, other) = processes_that_have_seen_a_window().await;
    replace(&one, says(40, 300)).await;
    assert_eq!(admitted(&other).await.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_late_response_says_nothing_of_the_new_window() {
    let limiter = Limiter::in_memory();
    let (one, other) = (upstream(&limiter), upstream(&limiter));
    open(&one, says(100, 300)).await;
    let mut late = admit(&other).await.unwrap();
    sleep(10 * SECOND).await;
    replace(&one, says(99, 300)).await;
    let said = Announcement { limit: Some(10), limits: vec![10], ..says(0, 285) };
    other.learn(&mut late, &said).await.unwrap();
    // The late call may count in the new window, and one is kept to ask again.
    assert_eq!(admitted(&one).await.len(), 99 - 1 - 1);
}
