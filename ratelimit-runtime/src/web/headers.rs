//! The header fields that tell a client its limit.

use std::{fmt::Write as _, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use once_cell::sync::OnceCell;

use crate::{Permit, RequestPerMinute, Rule, SetupError};

/// Which header fields tell a client its limit.
///
/// `Retry-After` comes with each refusal for which waiting helps, whatever is chosen here. Seconds are
/// rounded up. Where several rules were charged, the fields are those of the one that leaves least, and
/// of these the one that takes longest; where a rule refused, its own. That holds for layers inside of
/// each other too; with `Ietf`, each layer adds its rule to the lists. A rule in
/// [shadow mode](Rule::with_shadow) has no fields.
///
/// | style | fields |
/// |---|---|
/// | `Ietf` | `RateLimit-Policy: "item";q=100;w=60` and `RateLimit: "item";r=99;t=60` |
/// | `RateLimit` | `RateLimit-Limit: 100`, `RateLimit-Remaining: 99` and `RateLimit-Reset: 60` |
/// | `XRateLimit` | `X-RateLimit-Limit: 100`, `X-RateLimit-Remaining: 99` and `X-RateLimit-Reset: 60` |
/// | `Gateway` | `X-RateLimit-Remaining: 199`, `X-RateLimit-Replenish-Rate: 100`, `X-RateLimit-Burst-Capacity: 200` and `X-RateLimit-Requested-Tokens: 1` |
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
    /// [draft 11](https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/): the policy with its quota (`q`) for
    /// a window in seconds (`w`), and what is available (`r`) for so many seconds (`t`).
    ///
    /// The quota is [`Rule::limit`], which for most rules is the count, and the window is the period. Of a bucket the quota is
    /// what it holds, and the window the time to fill it: `q=200;w=20` for 10 a second and a burst of 200. A window that is not
    /// a whole number of seconds is left out, as `w` cannot say it.
    ///
    /// `t` is the time until all of the limit is there again, and on a refusal that until the retry.
    #[default]
    Ietf,
    /// The three fields of earlier versions of that draft. `RateLimit-Reset` is `t` of [`HeaderStyle::Ietf`].
    RateLimit,
    /// The three fields of before. `X-RateLimit-Reset` is in seconds from now, not a time of day.
    XRateLimit,
    /// The four fields of gateways that count by token bucket: what remains, the rate a second, the capacity, and this request's cost. A
    /// rate that is not a whole number is written with up to three decimals.
    Gateway,
    /// None.
    None,
}

static INSTALLED: OnceCell<HeaderStyle> = OnceCell::new();

impl HeaderStyle {
    /// Makes this the style of the whole process: of each layer that has no other, of `RequestPerMinute` as a response of
    /// `axum`, and of [`Permit::headers`]. Until then it is [`HeaderStyle::Ietf`].
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if the process has one already.
    pub fn install(self) -> Result<(), SetupError> {
        let twice =
            |_| SetupError::new("this process has a style of header fields already; install one, once, at its start");
        INSTALLED.set(self).map_err(twice)
    }

    pub(super) fn installed() -> Self {
        INSTALLED.get().copied().unwrap_or_default()
    }

    /// Whether a response has fields of this style, of which there can be no others beside them.
    #[cfg(feature = "tower")]
    pub(super) fn is_written(self, headers: &HeaderMap) -> bool {
        match self {
            Self::RateLimit => headers.contains_key("ratelimit-remaining"),
            Self::XRateLimit | Self::Gateway => headers.contains_key("x-ratelimit-remaining"),
            Self::Ietf | Self::None => false,
        }
    }

    /// Adds the fields to a response.
    pub(super) fn write(self, status: &QuotaStatus<'_>, headers: &mut HeaderMap) {
        if status.rule.is_concurrent() {
            return; // places are no quota of a time
        }
        match self {
            Self::Ietf => status.write_policy(headers),
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

/// What a client is told of one rule.
#[derive(Debug)]
pub(super) struct QuotaStatus<'a> {
    name: &'a str,
    rule: Rule,
    cost: u64,
    remaining: u64,
    /// Until all is there again, or until the retry; none if no wait helps.
    wait: Option<Duration>,
}

impl<'a> QuotaStatus<'a> {
    /// Of a rule that a permit was charged for. Nothing if nothing was counted.
    pub(super) fn of_permit(permit: &Permit, name: &'a str) -> Option<Self> {
        let (rule, cost) = permit.most_restrictive()?;
        Some(Self { name, rule, cost, remaining: permit.remaining(), wait: Some(permit.reset_after()) })
    }

    /// Of a rule that was asked and has refused.
    pub(super) fn of_refusal(refused: &'a RequestPerMinute) -> Self {
        let (rule, cost) = refused.asked();
        Self { name: rule.prefix(), rule, cost, remaining: refused.remaining(), wait: refused.retry_after() }
    }

    fn write_policy(&self, headers: &mut HeaderMap) {
        /// The largest integer of a structured field.
        const LARGEST: u64 = 999_999_999_999_999;
        let name = quoted(self.name);
        let mut policy = format!("{name};q={}", self.rule.limit().min(LARGEST));
        if let Some(window) = window(&self.rule) {
            let _ = write!(policy, ";w={window}");
        }
        headers.append("ratelimit-policy", value(&policy));
        if let Some(wait) = self.wait {
            let available = format!("{name};r={};t={}", self.remaining.min(LARGEST), seconds(wait));
            headers.append("ratelimit", value(&available));
        }
    }

    fn write_triple(&self, [limit, remaining, reset]: [&'static str; 3], headers: &mut HeaderMap) {
        if self.is_looser(remaining, Some(reset), headers) {
            return;
        }
        insert(headers, limit, &self.rule.limit().to_string());
        insert(headers, remaining, &self.remaining.to_string());
        match self.wait {
            Some(wait) => insert(headers, reset, &seconds(wait).to_string()),
            None => drop(headers.remove(reset)),
        }
    }

    fn write_bucket(&self, headers: &mut HeaderMap) {
        const REMAINING: &str = "x-ratelimit-remaining";
        if self.is_looser(REMAINING, None, headers) {
            return;
        }
        insert(headers, REMAINING, &self.remaining.to_string());
        insert(headers, "x-ratelimit-replenish-rate", &rate(&self.rule));
        insert(headers, "x-ratelimit-burst-capacity", &self.rule.limit().to_string());
        insert(headers, "x-ratelimit-requested-tokens", &self.cost.to_string());
    }

    /// Whether a layer further in, or the service, has told of a rule that leaves less, or as much and takes as long.
    fn is_looser(&self, remaining: &str, reset: Option<&str>, headers: &HeaderMap) -> bool {
        let told = |name| headers.get(name).and_then(|told: &HeaderValue| told.to_str().ok()?.parse::<u64>().ok());
        match told(remaining) {
            Some(told) if told != self.remaining => told < self.remaining,
            Some(_) => reset.and_then(told).unwrap_or(u64::MAX) >= self.wait.map_or(u64::MAX, seconds),
            None => false,
        }
    }
}

/// Adds how long to wait. A client that waits so long comes neither too early nor at once.
pub(super) fn write_retry_after(wait: Duration, headers: &mut HeaderMap) {
    headers.insert(RETRY_AFTER, seconds(wait).max(1).into());
}

impl Permit {
    /// The header fields that tell a client of a permit's rule, in the style that is [installed](HeaderStyle::install); none if
    /// nothing was counted. `name` is what the client sees the rule as, usually its prefix.
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
    /// With `axum`, a header map in front of a response's body is added to the response.
    pub fn headers(&self, name: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(status) = QuotaStatus::of_permit(self, name) {
            HeaderStyle::installed().write(&status, &mut headers);
        }
        headers
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, text: &str) {
    headers.insert(HeaderName::from_static(name), value(text));
}

/// Of digits, and of text that was [`quoted`].
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// A string of a structured field (RFC 9651), which takes the printable characters of ASCII; others are percent-encoded.
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

/// The time in which the whole limit comes back at the rate of the rule, if that is a whole number of seconds.
fn window(rule: &Rule) -> Option<u128> {
    let (nanos, a_second) =
        (rule.period().as_nanos() * u128::from(rule.limit()), u128::from(rule.count()) * 1_000_000_000);
    (a_second > 0 && nanos.is_multiple_of(a_second)).then(|| nanos / a_second)
}

/// The count a second, with decimals where it needs them.
fn rate(rule: &Rule) -> String {
    let period = rule.period().as_millis().max(1);
    let thousandths = u128::from(rule.count()) * 1_000_000 / period;
    let rate = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    rate.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
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
