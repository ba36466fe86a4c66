//! The limit that an upstream announces in the header fields of a response.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use http::{
    HeaderMap, StatusCode,
    header::{AGE, DATE, RETRY_AFTER},
};
use sfv::{Item, ListEntry};

use super::fields::{
    Policy, counts_requests, decimals, dictionary, lists, name, number, policies_of_limit, reset_of, retry_after,
    seconds, texts, whole,
};

/// The part of a response that tells of limits. Numbers are as announced, so a caller bounds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Announcement {
    /// The upstream refused the call because of a limit: 429, or 503 with `Retry-After`.
    pub(super) is_refusal: bool,
    /// The upstream failed (500 and above), or a cache answered in its place.
    pub(super) is_failure: bool,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    /// Nothing tells what remains. It is the quota of a policy, and the reset is its whole window.
    pub(super) is_policy: bool,
    /// The least quota of the policies of which nothing tells what remains: no more calls are sent at once.
    pub(super) at_once: Option<u64>,
    /// The slowest of these policies beside one that tells: its quota and window.
    pub(super) slowest: Option<(u64, Duration)>,
    /// The limits in all fields, and the quotas of all policies. Each once, in ascending order.
    pub(super) limits: Vec<u64>,
    /// Time until the window ends.
    pub(super) reset: Option<Duration>,
    pub(super) retry_after: Option<Duration>,
}

/// The prefixes of the three fields of earlier drafts, and of their older forms.
const PREFIXES: [&str; 3] = ["ratelimit-", "x-ratelimit-", "x-rate-limit-"];

impl Announcement {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        Self::at(status, headers, SystemTime::now())
    }

    fn at(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        // Times of day are of the upstream's clock.
        let now =
            texts(headers, DATE.as_str()).next().and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
        let retry_after = texts(headers, RETRY_AFTER.as_str()).filter_map(|text| retry_after(text, now)).max();
        let mut said = Self {
            is_refusal: status == StatusCode::TOO_MANY_REQUESTS
                || status == StatusCode::SERVICE_UNAVAILABLE && retry_after.is_some(),
            is_failure: status.is_server_error(),
            retry_after,
            ..Self::default()
        };
        let (policies, mut unreported) = said.read_structured(headers);
        let (structured, mut told) = (said.limit, Vec::new());
        for prefix in PREFIXES {
            told.extend(said.read_triple(prefix, headers, now));
            let others = policies_of_limit(prefix, headers).filter(|policy| Some(policy.quota) != structured);
            unreported.extend(others);
        }
        said.limits.extend(unreported.iter().map(|policy| policy.quota));
        said.limits.sort_unstable();
        said.limits.dedup();
        said.is_policy = said.remaining.is_none();
        let policy = if said.is_policy {
            // A quota without a time is no limit that can be kept to.
            let timed = || policies.iter().filter(|policy| policy.window.is_some());
            said.at_once = timed().map(|policy| policy.quota).min();
            timed().min_by(|one, other| one.compare_rate(other))
        } else {
            let others = || unreported.iter().filter(|policy| !told.contains(&policy.quota));
            said.at_once = others().map(|policy| policy.quota).min();
            let slowest = others().min_by(|one, other| one.compare_rate(other));
            said.slowest = slowest.and_then(|policy| Some((policy.quota, policy.window?)));
            policies.iter().find(|policy| Some(policy.quota) == said.limit).or(policies.first())
        };
        if let Some(policy) = policy {
            said.limit = said.limit.or(Some(policy.quota));
            said.reset = said.reset.or(policy.window);
            // The call itself took one.
            said.remaining = said.remaining.or(Some(policy.quota.saturating_sub(1)));
        }
        said.is_policy &= said.remaining.is_some();
        if let (Some(limit), Some(remaining)) = (said.limit, &mut said.remaining) {
            *remaining = (*remaining).min(limit);
        }
        // The numbers of a stored response were true when it was made.
        let is_stored = texts(headers, AGE.as_str()).flat_map(decimals).any(|age| age > 0.0);
        if is_stored && said.is_announced() && !said.is_refusal {
            return Self { is_failure: true, ..Self::default() };
        }
        said
    }

    /// The length of the window that the response opens. `None` if it does not say.
    pub(super) fn length(&self) -> Option<Duration> {
        self.reset.filter(|reset| !reset.is_zero())
    }

    /// Whether the response tells of a limit.
    pub(super) fn is_announced(&self) -> bool {
        self.remaining.is_some()
    }

    /// Reads `RateLimit` and `RateLimit-Policy`. Of several policies, the one with the least remaining counts. Returns
    /// the policies that may be in force, the most likely first, and those with a window of which nothing tells what
    /// remains. Policies that limit something else than requests are left out.
    fn read_structured(&mut self, headers: &HeaderMap) -> (Vec<Policy>, Vec<Policy>) {
        let (counted, others): (Vec<_>, Vec<_>) = lists(headers, "ratelimit-policy").partition(counts_requests);
        let mut policies: Vec<Policy> = counted.iter().filter_map(Policy::of).collect();
        let others: HashSet<String> = others.iter().filter_map(name).collect();
        let is_other = |name: &Option<String>| name.as_ref().is_some_and(|name| others.contains(name));
        policies.sort_by_key(|policy| policy.quota);
        self.limits = policies.iter().map(|policy| policy.quota).collect();
        let mut reported = HashSet::new();
        let mut least: Option<(u64, Option<Duration>, Option<String>)> = None;
        for item in lists(headers, "ratelimit").filter(|item| !is_other(&name(item))) {
            let Some(remaining) = number(&item.params, "r") else { continue };
            let reset = number(&item.params, "t").map(Duration::from_secs);
            reported.extend(name(&item));
            let (name, order) = (name(&item), |remaining: u64, reset: Option<Duration>| {
                (remaining, u64::MAX - reset.unwrap_or_default().as_secs())
            });
            if least.as_ref().is_none_or(|(other, its_reset, _)| order(remaining, reset) < order(*other, *its_reset)) {
                least = Some((remaining, reset, name));
            }
        }
        let is_reported = |policy: &&Policy| policy.name.as_ref().is_some_and(|name| reported.contains(name));
        let unreported = policies.iter().filter(|policy| !is_reported(policy) && policy.window.is_some());
        let mut unreported: Vec<Policy> = unreported.cloned().collect();
        if let Some((remaining, reset, name)) = least {
            (self.remaining, self.reset) = (Some(remaining), reset);
            policies.sort_by_key(|policy| policy.name != name);
            if name.is_some() {
                policies.retain(|policy| policy.name == name);
                self.limit = policies.first().map(|policy| policy.quota);
            }
        } else {
            // The form of draft 7: `limit=100, remaining=50, reset=5`.
            let fields: Vec<_> = texts(headers, "ratelimit").filter_map(dictionary).collect();
            let numbers = |name: &'static str| {
                fields.iter().filter_map(move |fields| match fields.get(name) {
                    Some(ListEntry::Item(Item { bare_item, .. })) => whole(bare_item),
                    _ => None,
                })
            };
            (self.limit, self.remaining) = (numbers("limit").min(), numbers("remaining").min());
            self.reset = numbers("reset").max().map(Duration::from_secs);
            self.limits.extend(self.limit);
            unreported.retain(|policy| Some(policy.quota) != self.limit);
        }
        (policies, unreported)
    }

    /// Reads three fields such as `X-RateLimit-Limit`, if they are stricter than what is known already. Of several
    /// values, the least number of calls and the longest time count. Returns the limit of which they tell what remains.
    fn read_triple(&mut self, prefix: &str, headers: &HeaderMap, now: SystemTime) -> Option<u64> {
        let values =
            |name: &str| -> Vec<f64> { texts(headers, &format!("{prefix}{name}")).flat_map(decimals).collect() };
        // Not rounded up: half a call is none.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
        let whole = |number: f64| number as u64;
        let least = |name| values(name).into_iter().map(whole).min();
        // A refusal may tell no more than when to come again.
        let tells_time = || !values("reset").is_empty() || !values("reset-after").is_empty();
        let none = || (self.is_refusal && self.remaining.is_none() && tells_time()).then_some(0);
        let remaining = least("remaining").or_else(none)?;
        let after = values("reset-after").into_iter().map(seconds).max();
        let reset = after.or_else(|| values("reset").into_iter().map(|number| reset_of(number, now)).max());
        // In `100, 10;w=1, 1000;w=3600` the first is the limit, and the others are policies.
        let limit = texts(headers, &format!("{prefix}limit")).flat_map(|text| text.split(','));
        let limit = limit.filter(|part| !part.contains(';')).flat_map(decimals).map(whole).min();
        let limit = limit.or_else(|| least("limit"));
        self.limits.extend(limit);
        let is_known = |known: u64| known < remaining || known == remaining && self.reset >= reset;
        if !self.remaining.is_some_and(is_known) {
            self.remaining = Some(remaining);
            self.limit = limit.or(self.limit);
            self.reset = reset.or(self.reset);
        }
        limit
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::time::UNIX_EPOCH;

    use http::HeaderName;
    use proptest::prelude::*;

    use super::*;

    fn said(status: u16, fields: &[(&str, &str)]) -> Announcement {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        // 2015-10-21 07:28:00
        let now = UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        Announcement::at(StatusCode::from_u16(status).unwrap(), &headers, now)
    }

    fn numbers(fields: &[(&str, &str)]) -> (Option<u64>, Option<u64>, Option<u64>) {
        let said = said(200, fields);
        (said.limit, said.remaining, said.reset.map(|reset| reset.as_secs()))
    }

    #[test]
    fn each_dialect_is_read() {
        let all = (Some(100), Some(50), Some(30));
        for fields in [
            &[("RateLimit-Policy", "\"item\";q=100;w=60"), ("RateLimit", "\"item\";r=50;t=30")][..],
            &[("RateLimit", "limit=100, remaining=50, reset=30"), ("RateLimit-Policy", "100;w=60")],
            &[("RateLimit-Limit", "100"), ("RateLimit-Remaining", "50"), ("RateLimit-Reset", "30")],
            &[("RateLimit-Limit", "100, 100;w=60"), ("RateLimit-Remaining", "50"), ("RateLimit-Reset", "30")],
            &[("RateLimit-Limit", "100, 10;w=1"), ("RateLimit-Remaining", "50"), ("RateLimit-Reset", "30")],
            &[("RateLimit-Limit", "100;w=60"), ("RateLimit-Remaining", "50"), ("RateLimit-Reset", "30")],
            &[("X-RateLimit-Limit", "100"), ("X-RateLimit-Remaining", "50"), ("X-RateLimit-Reset", "30")],
            &[("X-RateLimit-Limit", "100"), ("X-RateLimit-Remaining", "50"), ("X-RateLimit-Reset", "1445412510")],
            &[("X-RateLimit-Limit", "100"), ("X-RateLimit-Remaining", "50"), ("X-RateLimit-Reset", "1445412510000")],
            &[("X-Rate-Limit-Limit", "100"), ("X-Rate-Limit-Remaining", "50.9"), ("X-Rate-Limit-Reset", "30")],
            &[("X-RateLimit-Limit", "100"), ("X-RateLimit-Remaining", "50"), ("X-RateLimit-Reset-After", "30.5")],
        ] {
            assert_eq!(numbers(fields), all, "{fields:?}");
        }
        assert_eq!(numbers(&[]), (None, None, None));
        assert_eq!(numbers(&[("RateLimit", "\"item\";r=5")]), (None, Some(5), None));
        assert_eq!(numbers(&[("RateLimit-Policy", "\"item\";q=9;w=10")]), (Some(9), Some(8), Some(10)));
    }

    #[test]
    fn of_several_policies_the_one_with_the_least_remaining_counts() {
        let policies = ("RateLimit-Policy", "\"day\";q=1000;w=86400, \"burst\";q=10;w=1");
        let day = [policies, ("RateLimit", "\"burst\";r=9;t=1, \"day\";r=3;t=4000")];
        assert_eq!(numbers(&day), (Some(1000), Some(3), Some(4000)));
        let burst = [policies, ("RateLimit", "\"burst\";r=2"), ("RateLimit", "\"day\";r=700;t=4000")];
        assert_eq!(numbers(&burst), (Some(10), Some(2), Some(1)));
    }

    /// Such as bytes, or requests at once.
    #[test]
    fn a_policy_that_does_not_limit_requests_is_left_out() {
        let policies = (
            "RateLimit-Policy",
            "\"calls\";q=100;w=60;qu=\"requests\", \"bytes\";q=9;w=60;qu=\"content-bytes\", \"open\";q=5;qu=\"concurrent-requests\"",
        );
        let all = [policies, ("RateLimit", "\"calls\";r=50;t=30, \"bytes\";r=1;t=9, \"open\";r=0")];
        assert_eq!(numbers(&all), (Some(100), Some(50), Some(30)));
        assert_eq!(numbers(&[policies, ("RateLimit", "\"open\";r=0")]), (Some(100), Some(99), Some(60)));
        assert_eq!(numbers(&[policies]), (Some(100), Some(99), Some(60)));
    }

    /// Of a quota per second and one per day, that of the day is used up first.
    #[test]
    fn of_several_policies_alone_the_slowest_counts() {
        for (fields, expected, at_once) in [
            ("\"burst\";q=10;w=1, \"day\";q=1000;w=86400", (1000, 999, 86400), 10),
            ("\"day\";q=100000000;w=86400, \"burst\";q=10;w=1", (10, 9, 1), 10),
            ("\"open\";q=5, \"minute\";q=100;w=60", (100, 99, 60), 100),
        ] {
            let (limit, remaining, reset) = expected;
            let fields = [("RateLimit-Policy", fields)];
            assert_eq!(numbers(&fields), (Some(limit), Some(remaining), Some(reset)));
            assert_eq!(said(200, &fields).at_once, Some(at_once));
        }
    }

    #[test]
    fn a_policy_of_which_nothing_tells_what_remains_bounds_the_calls_at_once() {
        let ten = Some(10);
        let burst = "\"burst\";q=10;w=1, \"day\";q=1000;w=86400";
        for (fields, at_once) in [
            (&[("RateLimit-Policy", burst), ("RateLimit", "\"day\";r=700;t=4000")][..], ten),
            (&[("RateLimit-Policy", burst), ("RateLimit", "\"day\";r=700;t=4000, \"burst\";r=9;t=1")], None),
            (&[("RateLimit-Policy", "\"day\";q=9;w=9"), ("RateLimit", "\"day\";r=7;t=4")], None),
            (&[("RateLimit-Policy", "100;w=60, 10;w=1"), ("RateLimit", "limit=100, remaining=50, reset=30")], ten),
            (&[("RateLimit-Limit", "100, 10;w=1"), ("RateLimit-Remaining", "50"), ("RateLimit-Reset", "30")], ten),
            (&[("RateLimit-Limit", "100, 100;w=60"), ("RateLimit-Remaining", "50"), ("RateLimit-Reset", "30")], None),
            // Each of two dialects tells of its own.
            (
                &[
                    ("RateLimit-Policy", "5000;w=86400"),
                    ("RateLimit", "limit=5000, remaining=4000, reset=40000"),
                    ("X-RateLimit-Limit", "100, 100;w=60"),
                    ("X-RateLimit-Remaining", "90"),
                    ("X-RateLimit-Reset", "30"),
                ],
                None,
            ),
            (
                &[
                    ("RateLimit-Policy", "\"burst\";q=10;w=1"),
                    ("RateLimit", "\"burst\";r=9;t=1"),
                    ("X-RateLimit-Limit", "100, 100;w=60"),
                    ("X-RateLimit-Remaining", "50"),
                ],
                None,
            ),
        ] {
            let said = said(200, fields);
            assert_eq!(said.at_once, at_once, "{fields:?}");
            assert_eq!(said.slowest, at_once.map(|quota| (quota, Duration::from_secs(1))), "{fields:?}");
        }
        // Of two with one quota, the names say which one is told of.
        let equal = ("RateLimit-Policy", "\"minute\";q=100;w=60, \"hour\";q=100;w=3600");
        let hour = said(200, &[equal, ("RateLimit", "\"minute\";r=99;t=60")]);
        assert_eq!((hour.at_once, hour.slowest), (Some(100), Some((100, Duration::from_secs(3600)))));
        let three = ("RateLimit-Policy", "\"burst\";q=10;w=1, \"hour\";q=100;w=3600, \"day\";q=1000;w=86400");
        let said = said(200, &[three, ("RateLimit", "\"day\";r=700;t=4000")]);
        assert_eq!((said.at_once, said.slowest), (Some(10), Some((100, Duration::from_secs(3600)))));
    }

    /// A gateway in front of an application, for example.
    #[test]
    fn of_two_dialects_the_stricter_one_counts() {
        let gateway = [("RateLimit-Remaining", "500"), ("RateLimit-Reset", "60")];
        let application = [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "30")];
        assert_eq!(numbers(&[gateway, application].concat()), (None, Some(0), Some(30)));
        assert_eq!(numbers(&[application, gateway].concat()), (None, Some(0), Some(30)));
        let structured = [("RateLimit", "\"item\";r=0;t=9")];
        assert_eq!(numbers(&[&structured[..], &application].concat()), (None, Some(0), Some(30)));
        assert_eq!(numbers(&[&structured[..], &gateway].concat()), (None, Some(0), Some(9)));
        let limits = [("RateLimit-Limit", "1000"), ("X-RateLimit-Limit", "100")];
        let both = said(200, &[&limits[..], &gateway, &application].concat());
        assert_eq!((both.limit, both.limits), (Some(100), vec![100, 1000]));
    }

    #[test]
    fn a_limit_without_a_policy_of_its_name_has_the_quota_of_no_other() {
        let fields = [("RateLimit-Policy", "\"burst\";q=10;w=1"), ("RateLimit", "\"day\";r=500;t=4000")];
        assert_eq!(numbers(&fields), (None, Some(500), Some(4000)));
    }

    #[test]
    fn a_refusal_may_tell_no_more_than_the_reset() {
        let reset = [("X-RateLimit-Reset", "30")];
        assert_eq!((said(429, &reset).remaining, said(429, &reset).reset), (Some(0), Some(Duration::from_secs(30))));
        assert_eq!(said(200, &reset).remaining, None);
        let after = [("X-RateLimit-Reset-After", "30")];
        assert_eq!((said(429, &after).remaining, said(429, &after).reset), (Some(0), Some(Duration::from_secs(30))));
    }

    /// Without `RateLimit` nothing tells what remains, and without a window nothing tells for how long.
    #[test]
    fn a_policy_alone_counts_only_with_a_window() {
        let policy = |text| said(200, &[("RateLimit-Policy", text)]);
        let alone = policy("\"item\";q=9;w=10");
        assert!(alone.is_policy && alone.is_announced());
        for text in ["\"item\";q=9;w=0", "\"item\";q=9"] {
            assert_eq!((policy(text).limit, policy(text).is_announced()), (None, false), "{text}");
        }
        assert!(!said(200, &[("RateLimit-Policy", "9;w=10"), ("RateLimit-Remaining", "3")]).is_policy);
        let told = [("RateLimit-Policy", "\"item\";q=9"), ("RateLimit", "\"item\";r=3;t=2")];
        assert_eq!(numbers(&told), (Some(9), Some(3), Some(2)));
    }

    #[test]
    fn of_a_field_that_comes_twice_the_strictest_value_counts() {
        let twice = [
            ("X-RateLimit-Limit", "100"),
            ("X-RateLimit-Limit", "10"),
            ("X-RateLimit-Remaining", "70"),
            ("X-RateLimit-Remaining", "3"),
            ("X-RateLimit-Reset", "2"),
            ("X-RateLimit-Reset", "30"),
        ];
        for order in [[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]] {
            assert_eq!(numbers(&order.map(|at| twice[at])), (Some(10), Some(3), Some(30)));
        }
        let joined = [("X-RateLimit-Remaining", "70, 3"), ("X-RateLimit-Reset", "2, 30")];
        assert_eq!(numbers(&joined), (None, Some(3), Some(30)));
        let dictionaries =
            [("RateLimit", "limit=100, remaining=50, reset=3"), ("RateLimit", "limit=9, remaining=4, reset=1")];
        assert_eq!(numbers(&dictionaries), (Some(9), Some(4), Some(3)));
        let waits = [("Retry-After", "3"), ("Retry-After", "60"), ("Retry-After", "soon")];
        assert_eq!(said(429, &waits).retry_after, Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_retry_after_is_seconds_or_a_date() {
        let wait = |text| said(429, &[("Retry-After", text)]).retry_after.map(|wait| wait.as_secs());
        for (text, seconds) in [
            ("120", Some(120)),
            ("Wed, 21 Oct 2015 07:30:00 GMT", Some(120)),
            ("Wednesday, 21-Oct-15 07:30:00 GMT", Some(120)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("0", Some(0)),
            ("1000000000000000000", Some(1_000_000_000_000_000_000)),
            ("100000000000000000000000000", Some(u64::MAX)),
            ("-1", None),
            ("30.5", Some(30)),
            (".5", None),
            ("1.2.3", None),
            ("1e3", None),
            ("", None),
            ("soon", None),
        ] {
            assert_eq!(wait(text), seconds, "{text:?}");
        }
        let skewed = [("Date", "Wed, 21 Oct 2015 08:00:00 GMT"), ("Retry-After", "Wed, 21 Oct 2015 08:00:07 GMT")];
        assert_eq!(said(429, &skewed).retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_refusal_is_a_429_or_a_503_that_says_when() {
        assert!(said(429, &[]).is_refusal);
        assert!(said(503, &[("Retry-After", "1")]).is_refusal);
        assert!(said(503, &[("Retry-After", "0.5")]).is_refusal);
        assert!(!said(503, &[]).is_refusal && said(503, &[]).is_failure);
        assert!(!said(200, &[("Retry-After", "1")]).is_refusal);
    }

    #[test]
    fn the_fields_of_a_stored_response_are_not_believed() {
        let field = ("RateLimit", "\"item\";r=50;t=30");
        let nothing = Announcement { is_failure: true, ..Announcement::default() };
        assert_eq!(said(200, &[field, ("Age", "40")]), nothing);
        assert_eq!(said(200, &[field, ("Age", "0")]), said(200, &[field]));
        assert_eq!(said(200, &[("Age", "40")]), Announcement::default());
        assert_eq!(said(429, &[field, ("Age", "40")]), said(429, &[field]));
    }

    #[test]
    fn impossible_numbers_are_bounded() {
        let of = |limit, remaining, reset| {
            numbers(&[("X-RateLimit-Limit", limit), ("X-RateLimit-Remaining", remaining), ("X-RateLimit-Reset", reset)])
        };
        assert_eq!(of("10", "20", "5"), (Some(10), Some(10), Some(5)));
        assert_eq!(of("10", "-3", "-5"), (Some(10), Some(0), Some(0)));
        assert_eq!(of("10", "5", "1000000000001"), (Some(10), Some(5), Some(0)));
        assert_eq!(of("1e9", "5", "inf"), (None, Some(5), None));
        assert_eq!(of("1", "NaN", "1"), (None, None, None));
        let wide = "9".repeat(400);
        assert_eq!(of(&wide, &wide, "1"), (Some(u64::MAX), Some(u64::MAX), Some(1)));
        assert_eq!(numbers(&[("RateLimit", "\"item\";r=-4;t=-2")]), (None, Some(0), Some(0)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Any bytes that a field may have, and texts that are nearly right.
        #[test]
        fn no_field_makes_it_panic(
            fields in prop::collection::vec((0..13_usize, prop_oneof![
                "[ -~]{0,40}",
                "-?[0-9]{0,30}(\\.[0-9]{0,5})?",
                "\"[a-z]{0,3}\";[qrtw]=-?[0-9]{0,16};[qrtw]=-?[0-9]{0,16}(, \"b\";r=[0-9]{1,3};t=[0-9]{1,3})?",
                "(limit|remaining|reset)=-?[0-9]{0,16}, (limit|remaining|reset)=[0-9]{0,16}",
                "(Wed|Mon), [0-9]{2} Oct [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
            ]), 0..6),
            status in prop_oneof![Just(200_u16), Just(429), Just(503)],
        ) {
            const NAMES: [&str; 13] = [
                "Retry-After", "Date", "RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining",
                "RateLimit-Reset", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
                "X-RateLimit-Reset-After", "X-Rate-Limit-Remaining", "Age",
            ];
            let fields: Vec<_> = fields.iter().map(|(at, value)| (NAMES[*at], value.as_str())).collect();
            let said = said(status, &fields);
            if let (Some(limit), Some(remaining)) = (said.limit, said.remaining) {
                prop_assert!(remaining <= limit);
            }
        }
    }
}
