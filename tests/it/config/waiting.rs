//! Callers who wait while the rules change.

use super::*;

/// A change admits a waiting caller without any time that passes.
#[tokio::test]
async fn a_change_of_the_file_reaches_waiting_callers() {
    let server = RedisServer::start();
    for url in ["memory://", &server.url()] {
        for change in ["count = 500", "enabled = false", "shadow = true"] {
            let file = File::new("[rules.item]\ncount = 1");
            let rules = Rules::watch(&file.path).unwrap();
            let builder = Limiter::builder(url).clock(ManualClock::new()).deadline(crate::support::PATIENCE);
            let limiter = builder.rules(rules).build().await.unwrap();
            let key = crate::support::fresh_key();
            limiter.acquire(&ITEM, key).await.unwrap();
            let waiting: Vec<_> =
                (0..3).map(|_| tokio::spawn(limiter.acquire_within(&ITEM, key, 10 * MINUTE))).collect();
            crate::support::settle().await;
            file.write(&format!("[rules.item]\n{change}"));
            for waiting in waiting {
                crate::support::ends(waiting).await.unwrap().unwrap_or_else(|refused| panic!("{change}: {refused}"));
            }
        }
    }
}

/// A day was written in place of a second. Who has a slot in some days is not to wait for it.
#[tokio::test]
async fn a_change_of_the_file_reaches_callers_who_wait_for_a_slot() {
    let server = RedisServer::start();
    for url in ["memory://", &server.url()] {
        for (change, seconds) in [
            ("enabled = false", 0),
            ("shadow = true\ncount = 1\nunit = \"Days\"\nalgorithm = \"LeakyBucket\"\nqueue = 5", 0),
            ("count = 5\nunit = \"Days\"", 0), // a `FixedWindow`, as in the code
            ("unit = \"Seconds\"\nalgorithm = \"LeakyBucket\"\nqueue = 5", 3),
            // The same counter: the slots stay.
            ("unit = \"Days\"\nalgorithm = \"LeakyBucket\"\nqueue = 9", 3 * 86_400),
        ] {
            let days = "[rules.item]\ncount = 1\nunit = \"Days\"\nalgorithm = \"LeakyBucket\"\nqueue = 5";
            let (clock, rules) = (ManualClock::new(), Rules::parse(days).unwrap());
            let builder = Limiter::builder(url).clock(clock.clone()).deadline(crate::support::PATIENCE);
            let limiter = builder.rules(rules.clone()).build().await.unwrap();
            let key = crate::support::fresh_key();
            limiter.acquire(&ITEM, key).await.unwrap();
            let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(limiter.acquire(&ITEM, key))).collect();
            crate::support::settle().await;
            let before = limiter.peek(&ITEM, key).await.unwrap();
            rules.replace(&format!("[rules.item]\n{change}")).unwrap();
            if seconds > 0 && url != "memory://" {
                continue; // the clock would have to be advanced after the reply
            }
            crate::support::settle().await;
            assert!(seconds == 0 || !waiting.iter().all(tokio::task::JoinHandle::is_finished), "{change}");
            clock.advance(Duration::from_secs(seconds));
            for waiting in waiting {
                crate::support::ends(waiting).await.unwrap().unwrap_or_else(|refused| panic!("{change}: {refused}"));
            }
            if change.starts_with("shadow") && url == "memory://" {
                // Each slot was charged once.
                rules.replace(&format!("{days}\nshadow = false")).unwrap();
                assert_eq!(limiter.peek(&ITEM, key).await.unwrap(), before, "{change}");
            }
        }
    }
}

/// A store with slots that come in a day. It must not be asked about a call without a rule.
#[derive(Debug)]
struct Tomorrow;

impl Store for Tomorrow {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        for request in batch.iter_mut() {
            assert!(!request.charges.is_empty());
            for charge in request.charges.iter_mut() {
                charge.decision = Decision::new(5, 1, MINUTE, None);
                charge.slot_delay = Duration::from_secs(86_400);
            }
            request.outcome = Ok(true);
        }
        Reply::Ready(batch)
    }

    fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
        Reply::Ready(Ok(1))
    }

    fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }
}

#[tokio::test]
async fn the_store_is_not_asked_when_the_rule_of_a_waiting_call_is_switched_off() {
    let rules = Rules::parse("[rules.item]\nalgorithm = \"LeakyBucket\"\nqueue = 5").unwrap();
    let builder = Limiter::builder("memory://").clock(ManualClock::new()).rules(rules.clone());
    let waiting = tokio::spawn(builder.over(Tomorrow).unwrap().acquire(&ITEM, 1));
    crate::support::settle().await;
    rules.replace("[rules.item]\nenabled = false").unwrap();
    crate::support::ends(waiting).await.unwrap().unwrap();
}

/// A rule with slots stands alone, so the other one has to be switched off.
#[tokio::test]
async fn a_slot_is_kept_beside_a_rule_that_is_switched_on() {
    let (clock, rules) = (ManualClock::new(), Rules::parse("[rules.other]\nenabled = false").unwrap());
    let builder = Limiter::builder("memory://").clock(clock.clone()).rules(rules.clone());
    let limiter = builder.build().await.unwrap();
    let slots = Rule::new("slots", 1, MINUTE).with_algorithm(Algorithm::LeakyBucket { queue: 5 });
    let other = Rule::new("other", 9, MINUTE);
    let both = [(&slots, Key::new(1), 1), (&other, Key::new(1), 1)];
    limiter.acquire_all(&both).await.unwrap();
    let waiting = tokio::spawn(limiter.acquire_all(&both));
    settle().await;
    rules.replace("[rules.item]\ncount = 1").unwrap();
    settle().await;
    assert!(!waiting.is_finished());
    clock.advance(MINUTE);
    ends(waiting).await.unwrap().unwrap();
}

/// Another period is another counter. Callers who wait go there one by one, in their order.
#[tokio::test]
async fn waiting_callers_keep_their_order_if_the_period_changes() {
    let (clock, rules) = (ManualClock::new(), Rules::parse("[rules.other]\ncount = 1").unwrap());
    let builder = Limiter::builder("memory://").clock(clock.clone()).rules(rules.clone());
    let (limiter, rule) = (builder.build().await.unwrap(), Rule::new("item", 1, MINUTE));
    limiter.acquire(&rule, "alice").await.unwrap();
    let waiting: Vec<_> = (0..5).map(|_| tokio::spawn(limiter.acquire_within(&rule, "alice", 60 * MINUTE))).collect();
    crate::support::settle().await;
    rules.replace("[rules.item]\nttl = 2\nunit = \"Minutes\"").unwrap();
    for admitted in 1..=5 {
        crate::support::settle().await;
        let finished: Vec<_> = waiting.iter().map(tokio::task::JoinHandle::is_finished).collect();
        assert!(finished[..admitted].iter().all(|is_finished| *is_finished), "{finished:?}");
        assert_eq!(finished.iter().filter(|is_finished| **is_finished).count(), admitted);
        clock.advance(2 * MINUTE);
    }
}

/// A program that watches its file itself.
#[tokio::test]
async fn rules_replaced_by_a_text_reach_new_and_waiting_callers() {
    let text = |count: u64| format!("[rules.item]\ncount = {count}\n[routes]\na = 1");
    let rules = Rules::parse_beside(&text(1), &["routes"]).unwrap().expect(&[&ITEM]).unwrap();
    let clock = ManualClock::new();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).clock(clock).build().await.unwrap();
    limiter.acquire(&ITEM, "alice").await.unwrap();
    let waiting = tokio::spawn(limiter.acquire_within(&ITEM, "alice", 10 * MINUTE));
    tokio::task::yield_now().await;
    for (text, mistake) in [
        (text(0), "`count` is 0"),
        (text(2).replace("item", "itme"), "the prefix `itme`"),
        (text(2).replace("routes", "rutes"), "rutes"),
    ] {
        let error = rules.replace(&text).unwrap_err().to_string();
        assert!(error.contains(mistake), "{error}");
    }
    assert_eq!(limit(&limiter, "alice").await, 1, "nothing has changed");
    assert!(!waiting.is_finished());
    rules.replace(&text(2)).unwrap();
    eventually("the caller runs", || async { waiting.is_finished() }).await;
    assert_eq!(waiting.await.unwrap().unwrap().remaining(), 0);
    assert_eq!(limit(&limiter, "alice").await, 2);
}

/// Removed settings no longer apply, also to callers who waited through them.
#[tokio::test]
async fn a_removed_setting_no_longer_applies_to_waiting_callers() {
    let file = File::new("[rules.item]\ncount = 1");
    let rules = Rules::watch(&file.path).unwrap();
    let limiter = Limiter::builder("memory://").clock(ManualClock::new()).rules(rules.clone()).build().await.unwrap();
    let rule = Rule::new("item", 3, MINUTE);
    limiter.acquire_n(&rule, "alice", 1).await.unwrap();
    let waiting = tokio::spawn(limiter.acquire_within(&rule, "alice", 10 * MINUTE));
    crate::support::settle().await;
    file.write("[rules.other]\ncount = 1");
    let permit = crate::support::ends(waiting).await.unwrap().unwrap();
    assert_eq!(permit.limit(), 3);
}

/// It has waited before, in the queue of its own count.
#[tokio::test]
async fn a_waiting_caller_whose_count_changes_finds_no_queue_full() {
    let (clock, rules) = (ManualClock::new(), Rules::parse("[rules.other]\ncount = 1").unwrap());
    let builder = Limiter::builder("memory://").clock(clock.clone()).max_waiting(1);
    let limiter = builder.rules(rules.clone()).build().await.unwrap();
    let of_count = |count| Rule::new("item", count, MINUTE);
    limiter.acquire_n(&of_count(2), 1, 2).await.unwrap();
    let mut waiting = Vec::new();
    for count in [1, 2] {
        waiting.push(tokio::spawn(limiter.acquire_within(&of_count(count), 1, 10 * MINUTE)));
        crate::support::settle().await;
    }
    rules.replace("[rules.item]\ncount = 1").unwrap();
    for served in [0, 1, 2] {
        crate::support::settle().await;
        let finished = waiting.iter().filter(|waiting| waiting.is_finished()).count();
        assert_eq!(finished, served);
        clock.advance(MINUTE);
    }
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
}
