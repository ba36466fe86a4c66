//! Header fields that tell a client its limit.

use std::{fmt::Write as _, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use once_cell::sync::OnceCell;

#[cfg(feature = "tower")]
use crate::algorithm::{Recovery, capabilities, recovery};
use crate::{Permit, RequestPerMinute, Rule, SetupError};

/// The header fields that tell a client its limit.
///
/// If several rules were charged, the fields are those of the most restrictive one: the least
/// remains, or else the reset takes longest. On a refusal they are those of the rule that refused.
/// So it is with nested layers. With `Ietf`, a layer names all of its rules that apply to the request
/// in `RateLimit-Policy`, and each layer adds its own to the lists. An admitted response has them also
/// if nothing was counted during an outage of the store. A refusal that is not about a limit, such as
/// 503, has none. A rule in [shadow mode](Rule::with_shadow) has no fields.
///
/// Seconds are rounded up. Each HTTP refusal for which waiting helps has `Retry-After`, in every style,
/// also with `None`; a gRPC refusal has a `RetryInfo` instead.
///
/// | style | fields |
/// |---|---|
/// | `Ietf` | `RateLimit-Policy: "item";q=100;w=60` and `RateLimit: "item";r=99;t=60` |
/// | `RateLimit` | `RateLimit-Limit: 100`, `RateLimit-Remaining: 99` and `RateLimit-Reset: 60` |
/// | `XRateLimit` | `X-RateLimit-Limit: 100`, `X-RateLimit-Remaining: 99` and `X-RateLimit-Reset: 60` |
/// | `Gateway` | `X-RateLimit-Remaining: 199` and three more, see [`HeaderStyle::Gateway`] |
/// | `None` | none |
///
/// ```
/// use ratelimit_runtime::web::HeaderStyle;
///
/// HeaderStyle::XRateLimit.install()?; // for the whole process
/// # Ok::<_, ratelimit_runtime::SetupError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// The structured fields of the IETF's
    /// [draft 11](https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/).
    ///
    /// They are the policy, with its quota (`q`) per window in seconds (`w`), and the available
    /// quota (`r`) for some seconds (`t`).
    ///
    /// - `q` is [`Rule::limit`], for most rules the count, and `w` the period. For a bucket they
    ///   are its size and the time to fill it: `q=200;w=20` for 10 a second and a burst of 200.
    /// - `w` is left out if it is not a whole number of seconds.
    /// - `t` is the time until the whole limit is available again; on a refusal, the time until the
    ///   retry.
    #[default]
    Ietf,
    /// The three fields of earlier versions of that draft. `RateLimit-Reset` is `t` of
    /// [`HeaderStyle::Ietf`].
    RateLimit,
    /// The legacy `X-RateLimit-*` fields. `X-RateLimit-Reset` is in seconds from now, not a time of
    /// day.
    XRateLimit,
    /// The four fields of gateways with token buckets:
    ///
    /// - `X-RateLimit-Remaining: 199`, the remaining tokens;
    /// - `X-RateLimit-Replenish-Rate: 100`, the rate per second, with up to three decimals;
    /// - `X-RateLimit-Burst-Capacity: 200`, the size of the bucket;
    /// - `X-RateLimit-Requested-Tokens: 1`, the cost of this request.
    Gateway,
    /// No fields.
    None,
}

static INSTALLED: OnceCell<HeaderStyle> = OnceCell::new();

impl HeaderStyle {
    /// Makes this the style of the process: of layers without a style, of `RequestPerMinute` as a
    /// response of `axum` or `actix-web`, and of [`Permit::headers`]. The default is
    /// [`HeaderStyle::Ietf`].
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if a style is already installed.
    pub fn install(self) -> Result<(), SetupError> {
        let twice = |_| {
            SetupError::new(
                "a style of header fields is already installed in this process; install one, once, at its start",
            )
        };
        INSTALLED.set(self).map_err(twice)
    }

    pub(super) fn installed() -> Self {
        INSTALLED.get().copied().unwrap_or_default()
    }

    /// Whether a response already has the fields of this style, which can only occur once.
    #[cfg(feature = "tower")]
    pub(super) fn is_written(self, headers: &HeaderMap) -> bool {
        match self {
            Self::RateLimit => headers.contains_key("ratelimit-remaining"),
            Self::XRateLimit | Self::Gateway => headers.contains_key("x-ratelimit-remaining"),
            Self::Ietf | Self::None => false,
        }
    }

    /// Adds the fields to a response: of these policies, and the numbers of one rule if it was
    /// decided.
    pub(super) fn write(self, policies: &[QuotaPolicy<'_>], status: Option<&QuotaStatus<'_>>, headers: &mut HeaderMap) {
        if self == Self::Ietf {
            write_policies(policies, headers);
        }
        // A semaphore is no quota per time.
        let Some(status) = status.filter(|status| !status.policy.rule.is_concurrent()) else { return };
        match self {
            Self::Ietf => status.write_available(headers),
            Self::RateLimit => {
                status.write_triple(["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"], headers);
            }
            Self::XRateLimit => {
                status.write_triple(["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"], headers);
            }
            Self::Gateway => status.write_bucket(headers),
            Self::None => {}
        }
    }
}

/// Whether a style writes a field of this name. By it `actix.rs` knows the fields that it copies.
pub(super) fn is_limit_field(name: &str) -> bool {
    name.starts_with("ratelimit") || name.starts_with("x-ratelimit")
}

/// The largest integer in a structured field.
const LARGEST: u64 = 999_999_999_999_999;

/// A rule under the name that a client sees.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaPolicy<'a> {
    pub(super) name: &'a str,
    pub(super) rule: Rule,
}

impl QuotaPolicy<'static> {
    pub(super) fn new(rule: Rule) -> Self {
        Self { name: rule.prefix(), rule }
    }
}

fn write_policies(policies: &[QuotaPolicy<'_>], headers: &mut HeaderMap) {
    let mut list = String::new();
    for QuotaPolicy { name, rule } in policies.iter().filter(|policy| !policy.rule.is_concurrent()) {
        let separator = if list.is_empty() { "" } else { ", " };
        let _ = write!(list, "{separator}{};q={}", quoted(name), rule.limit().min(LARGEST));
        if let Some(window) = window(rule) {
            let _ = write!(list, ";w={window}");
        }
    }
    if !list.is_empty() {
        headers.append("ratelimit-policy", value(&list));
    }
}

/// The numbers of one rule that a client sees.
#[derive(Debug)]
pub(super) struct QuotaStatus<'a> {
    policy: QuotaPolicy<'a>,
    cost: u64,
    remaining: u64,
    /// Time until the whole limit is available, or until the retry. `None` if no wait helps.
    wait: Option<Duration>,
}

impl<'a> QuotaStatus<'a> {
    /// The numbers of a permit's most restrictive rule. `None` if nothing was counted.
    pub(super) fn of_permit(permit: &Permit, name: &'a str) -> Option<Self> {
        let (rule, cost) = permit.most_restrictive()?;
        let policy = QuotaPolicy { name, rule };
        Some(Self { policy, cost, remaining: permit.remaining(), wait: Some(permit.reset_after()) })
    }

    /// The numbers of the rule that refused.
    pub(super) fn of_refusal(refused: &RequestPerMinute) -> Self {
        let (rule, cost) = refused.rule_and_cost();
        let policy = QuotaPolicy::new(rule);
        Self { policy, cost, remaining: refused.remaining(), wait: refused.retry_after() }
    }

    /// Corrects what remains, and the wait, once the cost is known, in place of the most that it could be.
    #[cfg(feature = "tower")]
    pub(super) fn settle(&mut self, used: u64) {
        let rule = self.policy.rule;
        // In the overflow of a memory store, a charge of a fixed window counts for one or two periods, and no refund
        // is possible.
        let is_window = capabilities(rule.algorithm()).has_prefetch;
        let is_in_overflow = is_window && self.wait.is_some_and(|wait| wait > rule.period());
        let counted = if is_in_overflow { used.max(self.cost) } else { used };
        let with_cost = self.remaining.saturating_add(self.cost);
        self.remaining = with_cost.saturating_sub(counted).min(rule.limit());
        self.wait = self.wait.map(|wait| match used.saturating_sub(self.cost) {
            _ if self.remaining == rule.limit() => Duration::ZERO,
            0 => wait,
            _ if is_in_overflow => 2 * rule.period(),
            excess => wait_after_excess(wait, &rule, excess),
        });
        self.cost = used;
    }

    pub(super) fn policy(&self) -> QuotaPolicy<'a> {
        self.policy
    }

    fn write_available(&self, headers: &mut HeaderMap) {
        if let Some(wait) = self.wait {
            let name = quoted(self.policy.name);
            let available = format!("{name};r={};t={}", self.remaining.min(LARGEST), seconds(wait).min(LARGEST));
            headers.append("ratelimit", value(&available));
        }
    }

    fn write_triple(&self, [limit, remaining, reset]: [&'static str; 3], headers: &mut HeaderMap) {
        if self.is_less_restrictive(remaining, Some(reset), headers) {
            return;
        }
        insert(headers, limit, &self.policy.rule.limit().to_string());
        insert(headers, remaining, &self.remaining.to_string());
        match self.wait {
            Some(wait) => insert(headers, reset, &seconds(wait).to_string()),
            None => drop(headers.remove(reset)),
        }
    }

    fn write_bucket(&self, headers: &mut HeaderMap) {
        const REMAINING: &str = "x-ratelimit-remaining";
        if self.is_less_restrictive(REMAINING, None, headers) {
            return;
        }
        insert(headers, REMAINING, &self.remaining.to_string());
        insert(headers, "x-ratelimit-replenish-rate", &rate(&self.policy.rule));
        insert(headers, "x-ratelimit-burst-capacity", &self.policy.rule.limit().to_string());
        insert(headers, "x-ratelimit-requested-tokens", &self.cost.to_string());
    }

    /// Whether the service or an inner layer has written a rule that is at least as restrictive.
    fn is_less_restrictive(&self, remaining: &str, reset: Option<&str>, headers: &HeaderMap) -> bool {
        let written = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()?.parse::<u64>().ok());
        match written(remaining) {
            Some(other) if other != self.remaining => other < self.remaining,
            Some(_) => reset.and_then(written).unwrap_or(u64::MAX) >= self.wait.map_or(u64::MAX, seconds),
            None => false,
        }
    }
}

/// Adds `Retry-After`: rounded up, so that no client retries too early, and at least 1, so that
/// none retries at once.
pub(super) fn write_retry_after(wait: Duration, headers: &mut HeaderMap) {
    headers.insert(RETRY_AFTER, seconds(wait).max(1).into());
}

impl Permit {
    /// The header fields of the permit's rule, in the [installed](HeaderStyle::install) style. None
    /// if nothing was counted.
    ///
    /// `name` is the name of the rule for the client, usually its prefix.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 100, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let permit = Limiter::in_memory().acquire(&RULE, 4711).await?;
    /// let headers = permit.headers("item");
    /// assert_eq!(headers["RateLimit-Policy"], "\"item\";q=100;w=60");
    /// assert_eq!(headers["RateLimit"], "\"item\";r=99;t=60");
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    ///
    /// In `axum`, return the header map in front of the body to add it to a response. It is a map of the
    /// crate `http` 1: for `actix-web`, which has an older one, copy names and values.
    pub fn headers(&self, name: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(status) = QuotaStatus::of_permit(self, name) {
            HeaderStyle::installed().write(&[status.policy()], Some(&status), &mut headers);
        }
        headers
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, text: &str) {
    debug_assert!(is_limit_field(name), "{name}");
    headers.insert(HeaderName::from_static(name), value(text));
}

/// The value of digits, or of text that was [`quoted`]: always valid.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// A string in a structured field (RFC 9651). It allows printable ASCII; other bytes are
/// percent-encoded.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => drop(write!(quoted, "%{byte:02X}")),
        }
    }
    quoted.push('"');
    quoted
}

/// The time in which the whole limit comes back. `None` if it is not a whole number of seconds.
fn window(rule: &Rule) -> Option<u128> {
    let (nanos, a_second) =
        (rule.period().as_nanos() * u128::from(rule.limit()), u128::from(rule.count()) * 1_000_000_000);
    (a_second > 0 && nanos.is_multiple_of(a_second)).then(|| nanos / a_second)
}

/// The time until the whole limit is available, if a charge of `excess` is added to what is available after `wait`.
/// It may be too long: the store knows the exact one, but is not asked. It is too short only if the counter has expired
/// meanwhile, and a full memory store counts the excess in its overflow.
#[cfg(feature = "tower")]
fn wait_after_excess(wait: Duration, rule: &Rule, excess: u64) -> Duration {
    let count = rule.count().max(1);
    let refill_of = |amount: u64| {
        let ms = rule.period().as_millis().saturating_mul(amount.into()).div_ceil(count.into());
        Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
    };
    match recovery(rule) {
        Recovery::Even => wait.saturating_add(refill_of(excess)),
        Recovery::Lumps => {
            let whole_periods = excess.div_ceil(count).saturating_mul(count);
            wait.max(rule.period()).saturating_add(refill_of(whole_periods))
        }
        Recovery::Whole | Recovery::Released => wait.max(rule.period()),
    }
}

/// The count per second, with up to three decimals.
fn rate(rule: &Rule) -> String {
    let period = rule.period().as_millis().max(1);
    let thousandths = u128::from(rule.count()) * 1_000_000 / period;
    let rate = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    rate.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_where_they_can_be() {
        for (count, ms, text) in [
            (100, 1000, "100"),
            (10, 100, "100"),
            (100, 60_000, "1.666"),
            (1, 1_000_000, "0.001"),
            (1_500, 1_000, "1500"),
            (3, 2_000, "1.5"),
        ] {
            assert_eq!(rate(&Rule::new("rate", count, Duration::from_millis(ms))), text, "{count} in {ms} ms");
        }
    }

    /// A structured field has integers of 15 digits.
    #[test]
    fn the_longest_wait_fits_its_field() {
        let policy = QuotaPolicy::new(Rule::new("item", 1, Duration::from_secs(60)));
        let status = QuotaStatus { policy, cost: 1, remaining: u64::MAX, wait: Some(Duration::from_millis(u64::MAX)) };
        let mut headers = HeaderMap::new();
        status.write_available(&mut headers);
        assert_eq!(headers["ratelimit"], "\"item\";r=999999999999999;t=999999999999999");
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (ms, seconds_up) in [(0, 0), (1, 1), (999, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(seconds(Duration::from_millis(ms)), seconds_up, "{ms} ms");
        }
    }

    #[test]
    fn any_prefix_is_a_string_of_a_structured_field() {
        assert_eq!(quoted("item"), "\"item\"");
        assert_eq!(quoted("a \"b\" \\"), "\"a \\\"b\\\" \\\\\"");
        assert_eq!(quoted("größe\r\n"), "\"gr%C3%B6%C3%9Fe%0D%0A\"");
    }
}
