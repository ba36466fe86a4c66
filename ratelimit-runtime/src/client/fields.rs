//! The values of header fields that tell of limits.

use std::{
    cmp::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::HeaderMap;
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};

/// A reset of more seconds than that, some 30 years, is a time of day.
const LONGEST_RESET: u64 = 1_000_000_000;

/// One policy of `RateLimit-Policy`.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) name: Option<String>,
    pub(super) quota: u64,
    pub(super) window: Option<Duration>,
}

impl Policy {
    /// `"item";q=100;w=60`, or `100;w=60` in draft 7.
    pub(super) fn of(item: &Item) -> Option<Self> {
        let quota = number(&item.params, "q").or_else(|| whole(&item.bare_item))?;
        let window = number(&item.params, "w").filter(|window| *window > 0).map(Duration::from_secs);
        Some(Self { name: name(item), quota, window })
    }

    /// The slower one is less.
    pub(super) fn compare_rate(&self, other: &Self) -> Ordering {
        let window = |policy: &Self| u128::from(policy.window.unwrap_or_default().as_secs());
        (u128::from(self.quota) * window(other)).cmp(&(u128::from(other.quota) * window(self)))
    }
}

/// The policies in a field such as `RateLimit-Limit: 100, 10;w=1`.
pub(super) fn policies_of_limit(prefix: &str, headers: &HeaderMap) -> impl Iterator<Item = Policy> {
    let policies = lists(headers, &format!("{prefix}limit")).filter_map(|item| Policy::of(&item));
    policies.filter(|policy| policy.window.is_some()).collect::<Vec<_>>().into_iter()
}

/// Whether a policy limits requests, and not bytes or concurrent requests (its quota unit, draft 11).
pub(super) fn counts_requests(item: &Item) -> bool {
    match item.params.get("qu") {
        None => true,
        Some(BareItem::String(unit)) => unit.as_str() == "requests",
        Some(_) => false,
    }
}

pub(super) fn name(item: &Item) -> Option<String> {
    match &item.bare_item {
        BareItem::String(name) => Some(name.as_str().to_owned()),
        BareItem::Token(name) => Some(name.as_str().to_owned()),
        _ => None,
    }
}

/// The items of all lists in fields of this name. A malformed field has none.
pub(super) fn lists<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = Item> + use<'a> {
    let fields = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    fields.flat_map(|text| Parser::new(text).parse::<List>().unwrap_or_default()).filter_map(|entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    })
}

pub(super) fn dictionary(text: &str) -> Option<Dictionary> {
    Parser::new(text).parse().ok()
}

pub(super) fn number(parameters: &Parameters, name: &str) -> Option<u64> {
    whole(parameters.get(name)?)
}

/// An integer; a negative one counts as 0.
pub(super) fn whole(item: &BareItem) -> Option<u64> {
    match item {
        BareItem::Integer(number) => Some(u64::try_from(i64::from(*number)).unwrap_or(0)),
        _ => None,
    }
}

/// The values of a field. It may come several times.
pub(super) fn texts<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    headers.get_all(name).into_iter().filter_map(|value| Some(value.to_str().ok()?.trim()))
}

/// The numbers of a field, such as `100, 100;w=60`. A negative one counts as 0.
pub(super) fn decimals(text: &str) -> impl Iterator<Item = f64> {
    text.split(',').filter_map(|part| {
        let number = part.split(';').next().unwrap_or_default().trim();
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
        number.parse::<f64>().ok().filter(|number| is_number && !number.is_nan()).map(|number| number.max(0.0))
    })
}

pub(super) fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(Duration::MAX)
}

/// Seconds, or a time of day in seconds or milliseconds.
pub(super) fn reset_of(number: f64, now: SystemTime) -> Duration {
    let number = seconds(number);
    if number.as_secs() <= LONGEST_RESET {
        return number;
    }
    let time = if number.as_secs() > 1000 * LONGEST_RESET { number / 1000 } else { number };
    time.saturating_sub(now.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Seconds, or a date; one in the past is no wait. Some servers send a fraction, which no standard allows.
pub(super) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    if text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && let Ok(number) = text.parse()
    {
        return Some(seconds(number));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}
