//! The header fields, in each style.

use ratelimit_runtime::web::{HeaderStyle, SettleBy};
use ratelimit_runtime::{Algorithm, Refill};
use sfv::{BareItem, KeyRef, List, ListEntry, Parser};
use tower::Layer as _;

use super::*;

/// Parses a field of the IETF draft with a foreign parser: names and integers.
fn parse(field: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(field).parse().unwrap();
    let items = list.into_iter().map(|entry| {
        let ListEntry::Item(item) = entry else { panic!("{entry:?}") };
        let BareItem::String(name) = item.bare_item else { panic!("{item:?}") };
        let params = item.params.iter().map(|(name, value)| {
            let name: &KeyRef = name;
            (name.as_str().to_owned(), i64::from(value.as_integer().unwrap()))
        });
        (name.as_str().to_owned(), params.collect())
    });
    items.collect()
}

fn fields(response: &Response) -> Vec<(&str, &str)> {
    let fields = response.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let mut fields: Vec<_> =
        fields.filter(|(name, _)| name.contains("ratelimit") || name.starts_with("retry")).collect();
    fields.sort_unstable();
    fields
}

/// 10 a second in a bucket of 20, at a cost of 7.
async fn bucket(style: HeaderStyle) -> (Router, ManualClock) {
    let bucket = Algorithm::TokenBucket { burst: 20, refill: Refill::Greedy };
    let rule = Rule::new("item", 10, Duration::from_secs(1)).with_algorithm(bucket);
    let clock = ManualClock::new();
    let limit = Limit::new(rule).key(by_user()).cost(|_| 7);
    let layer = RateLimitLayer::new([limit]).limiter(in_memory(&clock).await).headers(style);
    (behind(layer), clock)
}

#[tokio::test]
async fn each_header_style_has_its_fields() {
    let ietf = [
        &[("ratelimit", "\"item\";r=13;t=1"), ("ratelimit-policy", "\"item\";q=20;w=2")][..],
        &[("ratelimit", "\"item\";r=6;t=1"), ("ratelimit-policy", "\"item\";q=20;w=2"), ("retry-after", "1")],
    ];
    let triple = [
        &[("ratelimit-limit", "20"), ("ratelimit-remaining", "13"), ("ratelimit-reset", "1")][..],
        &[("ratelimit-limit", "20"), ("ratelimit-remaining", "6"), ("ratelimit-reset", "1"), ("retry-after", "1")],
    ];
    let with_x = [
        &[("x-ratelimit-limit", "20"), ("x-ratelimit-remaining", "13"), ("x-ratelimit-reset", "1")][..],
        &[
            ("retry-after", "1"),
            ("x-ratelimit-limit", "20"),
            ("x-ratelimit-remaining", "6"),
            ("x-ratelimit-reset", "1"),
        ],
    ];
    let gateway = [
        &[
            ("x-ratelimit-burst-capacity", "20"),
            ("x-ratelimit-remaining", "13"),
            ("x-ratelimit-replenish-rate", "10"),
            ("x-ratelimit-requested-tokens", "7"),
        ][..],
        &[
            ("retry-after", "1"),
            ("x-ratelimit-burst-capacity", "20"),
            ("x-ratelimit-remaining", "6"),
            ("x-ratelimit-replenish-rate", "10"),
            ("x-ratelimit-requested-tokens", "7"),
        ],
    ];
    let none = [&[][..], &[("retry-after", "1")]];
    for (style, [first, refused]) in [
        (HeaderStyle::Ietf, ietf),
        (HeaderStyle::RateLimit, triple),
        (HeaderStyle::XRateLimit, with_x),
        (HeaderStyle::Gateway, gateway),
        (HeaderStyle::None, none),
    ] {
        let (router, _clock) = bucket(style).await;
        assert_eq!(fields(&send(&router, by("alice")).await), first, "{style:?}");
        assert_eq!(status(&router, by("alice")).await, 200, "{style:?}");
        let response = send(&router, by("alice")).await;
        assert_eq!(response.status(), 429, "{style:?}");
        assert_eq!(fields(&response), refused, "{style:?}");
    }
}

/// Whatever the wait, a client that obeys is let in, and one that comes when the wait begins to be short is not.
#[tokio::test]
async fn a_client_that_obeys_retry_after_is_admitted() {
    for period_ms in [1, 10, 999, 1_000, 1_001, 59_999, 60_000] {
        let rule = Rule::new("item", 1, Duration::from_millis(period_ms));
        let (router, clock) = limited(Limit::new(rule).key(by_user())).await;
        assert_eq!(status(&router, by("alice")).await, 200);
        let refused = send(&router, by("alice")).await;
        assert_eq!(refused.status(), 429);
        let wait = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert_eq!(wait, period_ms.div_ceil(1000), "{period_ms} ms");
        clock.advance(Duration::from_millis(period_ms - 1));
        assert_eq!(status(&router, by("alice")).await, 429, "{period_ms} ms");
        clock.advance(Duration::from_secs(wait) - Duration::from_millis(period_ms - 1));
        assert_eq!(status(&router, by("alice")).await, 200, "{period_ms} ms");
    }
}

#[tokio::test]
async fn a_parser_of_structured_fields_reads_any_rule_name() {
    for (prefix, name) in [("item", "item"), ("a \"b\"\\;c,d", "a \"b\"\\;c,d"), ("größe\n", "gr%C3%B6%C3%9Fe%0A")] {
        let rule = Rule::new(prefix, 3, Duration::from_millis(1_500));
        let (router, _clock) = limited(Limit::new(rule)).await;
        let response = send(&router, anonymous()).await;
        let field = |name: &str| parse(response.headers()[name].to_str().unwrap());
        assert_eq!(field("ratelimit"), [(name.to_owned(), vec![("r".to_owned(), 2), ("t".to_owned(), 2)])]);
        // No whole number of seconds, so no window.
        assert_eq!(field("ratelimit-policy"), [(name.to_owned(), vec![("q".to_owned(), 3)])]);
    }
}

#[tokio::test]
async fn the_largest_numbers_are_still_integers_of_a_structured_field() {
    let millisecond = Duration::from_millis(1);
    let rule =
        Rule::new("item", 1 << 52, millisecond).with_algorithm(Algorithm::SlidingWindow { buckets: 1, weighted: true });
    let (router, _clock) = limited(Limit::new(rule)).await;
    let response = send(&router, anonymous()).await;
    assert_eq!(response.status(), 200);
    let policy = parse(response.headers()["ratelimit-policy"].to_str().unwrap());
    assert_eq!(policy[0].1[0], ("q".to_owned(), 999_999_999_999_999));
}

/// Several rules of one layer.
#[tokio::test]
async fn headers_report_the_tightest_rule_of_a_layer() {
    const WIDE: Rule = Rule::new("wide", 10, MINUTE);
    const TIGHT: Rule = Rule::new("tight", 3, MINUTE);
    let server = ratelimit_harness::RedisServer::start();
    for limiter in [Limiter::in_memory(), crate::support::limiter_on(&server).await] {
        for limits in [[WIDE, TIGHT], [TIGHT, WIDE]] {
            let user = crate::support::fresh_key().to_string();
            let layer = RateLimitLayer::new(limits.map(|rule| Limit::new(rule).key(by_user())));
            let router = behind(layer.limiter(limiter.clone()));
            let response = send(&router, by(&user)).await;
            let policies = parse(response.headers()["ratelimit-policy"].to_str().unwrap());
            let names: Vec<_> = policies.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, limits.map(|rule| rule.prefix()), "all, in the order of the limits");
            assert_eq!(response.headers()["ratelimit"], "\"tight\";r=2;t=60");
        }
    }
}

/// Also if it is settled later.
#[tokio::test]
async fn headers_report_a_settled_rule_that_is_the_tightest() {
    let tight = Rule::new("tight", 3, MINUTE).with_algorithm(Algorithm::SlidingLog);
    let places = Rule::new("places", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    let server = ratelimit_harness::RedisServer::start();
    for limiter in [Limiter::in_memory(), crate::support::limiter_on(&server).await] {
        let user = crate::support::fresh_key().to_string();
        let limits =
            [Limit::new(per_minute(10)), Limit::new(tight).settle(1, SettleBy::response(|_| 1)), Limit::new(places)];
        let layer = RateLimitLayer::new(limits.map(|limit| limit.key(by_user()))).limiter(limiter);
        let response = send(&behind(layer), by(&user)).await;
        let told = response.headers()["ratelimit"].to_str().unwrap();
        assert!(told.starts_with("\"tight\";r=2;t="), "{told}");
    }
}

/// Of one limit, what the head of the response tells is known when its fields are written. Of several, another one may
/// be the tightest by then.
#[tokio::test]
async fn headers_report_a_cost_that_the_head_tells() {
    let rule = Rule::new("item", 5, MINUTE).with_algorithm(Algorithm::SlidingLog);
    let remaining = async |used: u64, limits: &[Limit]| {
        let limits = limits.iter().cloned().chain([Limit::new(rule).settle(2, SettleBy::response(move |_| used))]);
        let layer = RateLimitLayer::new(limits).limiter(Limiter::in_memory()).headers(HeaderStyle::RateLimit);
        let response = send(&behind(layer), anonymous()).await;
        response.headers()["ratelimit-remaining"].to_str().unwrap().parse::<u64>().unwrap()
    };
    for (used, expected) in [(0, 5), (1, 4), (2, 3), (4, 1), (9, 0)] {
        assert_eq!(remaining(used, &[]).await, expected);
        assert_eq!(remaining(used, &[Limit::new(per_minute(10))]).await, 3);
    }
}

/// The remaining amount and the reset that the fields tell to alice, whose request reserves `cost`. After some seconds,
/// the head of its response tells what was used.
async fn told_after(seconds: u64, (cost, used): (u64, u64), rule: Rule, clock: &ManualClock, on: &Limiter) -> [u64; 2] {
    let limits = [Limit::new(rule).key(by_user()).settle(cost, SettleBy::response(move |_| used))];
    let layer = RateLimitLayer::new(limits).limiter(on.clone()).headers(HeaderStyle::RateLimit);
    let late = clock.clone();
    let service = tower::service_fn(move |_: http::Request<()>| {
        late.advance(Duration::from_secs(seconds));
        async { Ok::<_, std::convert::Infallible>(http::Response::new(Body::from("hello"))) }
    });
    let request = http::Request::builder().header("x-user", "alice").body(()).unwrap();
    let response = layer.layer(service).oneshot(request).await.unwrap();
    ["ratelimit-remaining", "ratelimit-reset"]
        .map(|name| response.headers()[name].to_str().unwrap().parse::<u64>().unwrap())
}

/// An amount used above the cost counts from now on. The whole limit is then available later, never earlier, than told.
#[tokio::test]
async fn headers_do_not_tell_a_settled_limit_to_be_available_too_early() {
    let rules = [
        (Algorithm::FixedWindow { align: false }, MINUTE),
        (Algorithm::SlidingWindow { buckets: 1, weighted: true }, MINUTE),
        (Algorithm::SlidingWindow { buckets: 6, weighted: false }, MINUTE),
        (Algorithm::SlidingLog, MINUTE),
        (Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy }, 10 * MINUTE),
        (Algorithm::TokenBucket { burst: 30, refill: Refill::Interval }, MINUTE),
    ];
    for (algorithm, period) in rules {
        let rule = Rule::new("item", 10, period).with_algorithm(algorithm);
        for (used, takes) in [0, 1, 2, 5, 10, 100].into_iter().flat_map(|used| [0, 59, 61].map(|takes| (used, takes))) {
            let clock = ManualClock::new();
            let limiter = in_memory(&clock).await;
            let [_, told] = told_after(takes, (1, used), rule, &clock, &limiter).await;
            let whole = limiter.peek(&rule, "alice").await.unwrap().reset_after();
            assert!(
                Duration::from_secs(told) >= whole,
                "{algorithm:?}, {used} after {takes} s: {told} s, not {whole:?}"
            );
            if used == 0 {
                assert_eq!(told, 0, "{algorithm:?}: nothing was used");
            }
        }
    }
}

/// In the overflow, a charge counts for one or two periods, and nothing is refunded.
#[tokio::test]
async fn headers_do_not_tell_a_settled_limit_to_be_available_too_early_in_the_overflow() {
    let rule = Rule::new("item", 10, MINUTE);
    for (used, takes) in [0, 5, 7, 30].into_iter().flat_map(|used| [0, 2, 59, 61].map(|takes| (used, takes))) {
        let clock = ManualClock::new();
        let builder = Limiter::builder("memory://").clock(clock.clone()).max_keys(1).overflow_bytes(1 << 16);
        let limiter = builder.build().await.unwrap();
        limiter.acquire(&rule, "bob").await.unwrap();
        let [remaining, told] = told_after(takes, (5, used), rule, &clock, &limiter).await;
        let found = limiter.peek(&rule, "alice").await.unwrap();
        let what = format!("{used} after {takes} s: {remaining}, {told} s, not {found:?}");
        assert!(remaining <= found.remaining() && Duration::from_secs(told) >= found.reset_after(), "{what}");
    }
}

/// Layers one around the other: a list can name both, a triple the tighter one, whichever it is.
#[tokio::test]
async fn headers_of_nested_layers_are_combined() {
    let layer = |style, count| {
        RateLimitLayer::new([Limit::new(per_minute(count))]).limiter(Limiter::in_memory()).headers(style)
    };
    for (inner, outer) in [(3, 10), (10, 3)] {
        let router = behind(layer(HeaderStyle::XRateLimit, inner)).layer(layer(HeaderStyle::XRateLimit, outer));
        let response = send(&router, anonymous()).await;
        assert_eq!(response.headers()["x-ratelimit-limit"], "3");
        assert_eq!(response.headers()["x-ratelimit-remaining"], "2");
    }
    let router = behind(layer(HeaderStyle::Ietf, 3)).layer(layer(HeaderStyle::Ietf, 10));
    let response = send(&router, anonymous()).await;
    assert_eq!(response.headers().get_all("ratelimit").iter().count(), 2);
}

/// A client computes with `r <= q`, and with `q` in `w` seconds as the rate.
#[tokio::test]
async fn headers_report_the_capacity_of_a_bucket() {
    let bucket = |burst| Algorithm::TokenBucket { burst, refill: Refill::Greedy };
    for (count, algorithm, policy, available) in [
        (10, bucket(200), "\"item\";q=200;w=20", "\"item\";r=199;t=1"),
        (10, bucket(5), "\"item\";q=5", "\"item\";r=4;t=1"), // half a second
        (10, bucket(10), "\"item\";q=10;w=1", "\"item\";r=9;t=1"),
        (10, Algorithm::LeakyBucket { queue: 19 }, "\"item\";q=20;w=2", "\"item\";r=19;t=1"),
    ] {
        let rule = Rule::new("item", count, Duration::from_secs(1)).with_algorithm(algorithm);
        let (router, _clock) = limited(Limit::new(rule)).await;
        let response = send(&router, anonymous()).await;
        let told = ["ratelimit-policy", "ratelimit"].map(|name| response.headers()[name].to_str().unwrap());
        assert_eq!(told, [policy, available], "{algorithm:?}");
    }
}

/// `Retry-After` and the other fields belong together, so an outer layer does not change them.
#[tokio::test]
async fn an_outer_layer_keeps_the_headers_of_a_refusal() {
    let (item, second) = (Rule::new("item", 2, Duration::from_secs(10)), Duration::from_secs(1));
    let bucket =
        Rule::new("item", 10, second).with_algorithm(Algorithm::TokenBucket { burst: 20, refill: Refill::Greedy });
    // The inner layer refuses with 0 left while the outer one has 0 left, and with 6 left while the
    // outer one has 0.
    for (inner, cost, refused) in [
        (item, 2, [("limit", "2"), ("remaining", "0"), ("reset", "10")]),
        (bucket, 14, [("limit", "20"), ("remaining", "6"), ("reset", "1")]),
    ] {
        let outer = Rule::new("outer", 2, 60 * MINUTE);
        let layer = |limit| RateLimitLayer::new([limit]).limiter(Limiter::in_memory()).headers(HeaderStyle::XRateLimit);
        let router = behind(layer(Limit::new(inner).cost(move |_| cost))).layer(layer(Limit::new(outer)));
        assert_eq!(status(&router, anonymous()).await, 200);
        let response = send(&router, anonymous()).await;
        assert_eq!(response.status(), 429);
        for (name, value) in refused {
            assert_eq!(response.headers()[format!("x-ratelimit-{name}")], value, "{inner:?}: {name}");
        }
        let waits = ["retry-after", "x-ratelimit-reset"].map(|name| response.headers()[name].clone());
        assert_eq!(waits[0], waits[1]);
    }
}

/// Both leave as much. The layer that takes longer is reported, as within one layer.
#[tokio::test]
async fn headers_of_equal_layers_report_the_slower_one() {
    let layer = |seconds| {
        let rule = Rule::new("item", 2, Duration::from_secs(seconds));
        RateLimitLayer::new([Limit::new(rule)]).limiter(Limiter::in_memory()).headers(HeaderStyle::RateLimit)
    };
    for (inner, outer) in [(10, 3600), (3600, 10)] {
        let response = send(&behind(layer(inner)).layer(layer(outer)), anonymous()).await;
        assert_eq!(response.headers()["ratelimit-reset"], "3600", "{inner} inside of {outer}");
    }
}

/// A rule that is only tried out is not told, whatever stands beside it.
#[tokio::test]
async fn headers_never_report_a_shadow_rule() {
    let tried = Rule::new("tried", 5, MINUTE).with_shadow(true);
    let places = Rule::new("places", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    let server = ratelimit_harness::RedisServer::start();
    for limiter in [Limiter::in_memory(), crate::support::limiter_on(&server).await] {
        for rules in [vec![tried], vec![tried, places], vec![places, tried]] {
            let layer = RateLimitLayer::new(rules.into_iter().map(Limit::new)).limiter(limiter.clone());
            let response = send(&behind(layer), anonymous()).await;
            assert_eq!(response.status(), 200);
            assert_eq!(fields(&response), []);
        }
    }
}
