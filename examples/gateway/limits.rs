//! The page that shows the limits and changes them.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::Html,
};
use ratelimit_runtime::{Algorithm, Refill, config::Rules};
use serde::{Deserialize, Serialize};
use toml_edit::{DocumentMut, Item, TableLike, Value};

use crate::{
    Gateway,
    history::{Decisions, counts},
};

pub(crate) async fn page() -> Html<&'static str> {
    Html(include_str!("limits.html"))
}

/// A rule as the page has it; the names are those of the file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    count: i64,
    ttl: i64,
    unit: String,
    algorithm: String,
    /// `buckets`, `burst` or `queue`, whichever the algorithm has.
    option: Option<i64>,
    shadow: bool,
}

#[derive(Serialize)]
pub(crate) struct Shown {
    rule: String,
    /// One that it is on.
    path: Option<String>,
    settings: Settings,
    decisions: Decisions,
    /// Times of the last minute, and the decisions until then: see `History::of`.
    history: Vec<[u64; 3]>,
    /// The keys that were refused most, and how often.
    refused_most: Vec<(String, u64)>,
}

pub(crate) async fn state(State(gateway): State<Arc<Gateway>>) -> Json<Vec<Shown>> {
    let mut counts = counts(&gateway.metrics.render());
    let (rules, routes) = (gateway.live.rules(), gateway.live.routes());
    let shown = rules.prefixes().into_iter().filter_map(|rule| {
        let settings = settings(rules, &rule)?;
        let (decisions, history) = (counts.remove(&rule).unwrap_or_default(), gateway.history.of(&rule));
        let (path, refused_most) = (routes.path_of(&rule), gateway.refusals.most(&rule));
        Some(Shown { rule, path, settings, decisions, history, refused_most })
    });
    Json(shown.collect())
}

/// Writes a changed rule into the file. What could not be started with is refused.
pub(crate) async fn change(
    State(gateway): State<Arc<Gateway>>,
    Path(prefix): Path<String>,
    Json(new): Json<Settings>,
) -> Result<StatusCode, (StatusCode, String)> {
    let saved = gateway.live.save(|file| new.write(file, &prefix)).await;
    saved.map(|()| StatusCode::NO_CONTENT).map_err(|error| (StatusCode::UNPROCESSABLE_ENTITY, error))
}

impl Settings {
    fn write(self, file: &mut DocumentMut, prefix: &str) -> Result<(), String> {
        let rule = file.get_mut("rules").and_then(|rules| rules.get_mut(prefix));
        let rule = rule.and_then(Item::as_table_like_mut);
        let rule = rule.ok_or_else(|| format!("there is no rule `{prefix}` in the file"))?;
        let (option, others): (_, &[_]) = match self.algorithm.as_str() {
            "FixedWindow" => (None, &["buckets", "weighted", "burst", "refill", "queue"]),
            "SlidingWindow" => (Some("buckets"), &["align", "burst", "refill", "queue"]),
            "TokenBucket" => (Some("burst"), &["align", "buckets", "weighted", "queue"]),
            "LeakyBucket" => (Some("queue"), &["align", "buckets", "weighted", "burst", "refill"]),
            _ => (None, &["align", "buckets", "weighted", "burst", "refill", "queue"]),
        };
        for other in others {
            rule.remove(other);
        }
        let is_default = self.algorithm == "FixedWindow";
        set(rule, "count", self.count, false);
        set(rule, "ttl", self.ttl, self.ttl == 1);
        set(rule, "unit", self.unit, false);
        set(rule, "algorithm", self.algorithm, is_default);
        if let (Some(name), Some(number)) = (option, self.option) {
            set(rule, name, number, false);
        }
        set(rule, "shadow", self.shadow, !self.shadow);
        Ok(())
    }
}

/// Sets a value, and leaves what is written around it. One that goes without saying is not written where none is.
fn set(rule: &mut dyn TableLike, name: &str, new: impl Into<Value>, is_default: bool) {
    let mut new = new.into();
    match rule.get(name).and_then(Item::as_value) {
        Some(old) => *new.decor_mut() = old.decor().clone(),
        None if is_default => return,
        None => {}
    }
    rule.insert(name, Item::Value(new));
}

fn settings(rules: &Rules, prefix: &str) -> Option<Settings> {
    const UNITS: [(&str, u128); 5] =
        [("Days", 86_400_000), ("Hours", 3_600_000), ("Minutes", 60_000), ("Seconds", 1_000), ("Milliseconds", 1)];
    let rule = rules.rule(prefix)?;
    let period = rule.period().as_millis();
    let (unit, length) = UNITS.into_iter().find(|(_, length)| period.is_multiple_of(*length))?;
    let (algorithm, option) = match rule.algorithm() {
        Algorithm::FixedWindow { .. } => ("FixedWindow", None),
        Algorithm::SlidingLog => ("SlidingLog", None),
        Algorithm::SlidingWindow { buckets, .. } => ("SlidingWindow", Some(buckets)),
        Algorithm::TokenBucket { burst, refill: Refill::Greedy | Refill::Interval } => ("TokenBucket", Some(burst)),
        Algorithm::LeakyBucket { queue } => ("LeakyBucket", Some(queue)),
        _ => return None,
    };
    Some(Settings {
        count: rule.count().try_into().ok()?,
        ttl: (period / length).try_into().ok()?,
        unit: unit.into(),
        algorithm: algorithm.into(),
        option: option.and_then(|option| option.try_into().ok()),
        shadow: rule.is_shadow(),
    })
}
