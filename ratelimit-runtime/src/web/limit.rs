//! A rule with what a request has to say to it.

use std::{fmt, sync::Arc};

use http::request::Parts;

use super::{KeyBy, key_by::Found};
use crate::{
    Rule,
    call::{Asked, AskedKey, Holds},
};

/// What a limit does with a request that has no key.
///
/// It can be no [`KeyBy`] at all: then one counter is meant for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnMissingKey {
    /// The request is refused, as [`Cause::MissingKey`](crate::Cause::MissingKey).
    #[default]
    Deny,
    /// The limit is not asked.
    Skip,
    /// All requests without a key count together.
    Shared,
}

/// A limit of a [`RateLimitLayer`](super::RateLimitLayer): a rule, and what it takes from a request.
///
/// ```
/// use ratelimit_runtime::{Rule, web::{KeyBy, Limit}};
/// use std::time::Duration;
///
/// const EXPORTS: Rule = Rule::new("exports", 10, Duration::from_secs(3600));
///
/// Limit::new(EXPORTS)
///     .key(KeyBy::header("x-api-key".parse().unwrap()))
///     .when(|request| request.uri.path().starts_with("/export"))
///     .cost(|request| if request.uri.query() == Some("all") { 10 } else { 1 });
/// ```
#[derive(Clone)]
#[must_use = "a limit holds in a layer: RateLimitLayer::new([limit])"]
pub struct Limit {
    rule: Rule,
    key: Option<KeyBy>,
    on_missing_key: OnMissingKey,
    when: Option<Read<bool>>,
    cost: Option<Read<u64>>,
}

/// Something read from the head of a request.
type Read<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

impl Limit {
    /// One counter for all requests, each at a cost of 1.
    pub fn new(rule: Rule) -> Self {
        Self { rule, key: None, on_missing_key: OnMissingKey::default(), when: None, cost: None }
    }

    /// A counter for each key.
    pub fn key(mut self, key: KeyBy) -> Self {
        self.key = Some(key);
        self
    }

    /// What happens to a request that has no key. It is refused, if not said otherwise.
    pub fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = on_missing_key;
        self
    }

    /// Only for these requests.
    pub fn when(mut self, applies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(applies));
        self
    }

    /// What a request costs. One that costs 0 is let through.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// What it asks for a request; nothing if it does not apply.
    pub(super) async fn ask(&self, request: &Parts) -> Option<Asked> {
        if self.when.as_ref().is_some_and(|applies| !applies(request)) {
            return None;
        }
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        let Some(by) = &self.key else {
            return Some(Asked { rule: self.rule, key: AskedKey::Shared, cost, holds: Holds::Cost });
        };
        let key = match by.find(request) {
            Found::Now(key) => key,
            Found::Later(key) => key.await,
        };
        let key = match (key, self.on_missing_key) {
            (Some(key), _) => AskedKey::Some(key),
            (None, OnMissingKey::Deny) => AskedKey::Missing,
            (None, OnMissingKey::Shared) => AskedKey::Shared,
            (None, OnMissingKey::Skip) => return None,
        };
        Some(Asked { rule: self.rule, key, cost, holds: Holds::Cost })
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("rule", &self.rule)
            .field("on_missing_key", &self.on_missing_key)
            .finish_non_exhaustive()
    }
}
