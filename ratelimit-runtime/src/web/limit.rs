//! A rule, and how a request maps to its key and cost.

use std::{fmt, sync::Arc};

use http::request::Parts;

use super::{KeyBy, key_by::KeyResult};
use crate::{
    Rule,
    engine::request::{ChargeRequest, CostKind, RequestKey},
    policy::OnMissingKey,
};

/// A limit of a [`RateLimitLayer`](super::RateLimitLayer): a rule, and how to derive key and cost
/// from a request.
///
/// ```
/// use ratelimit_runtime::{Rule, web::{KeyBy, Limit}};
/// use std::time::Duration;
///
/// /// Inserted by an authenticating layer.
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// const EXPORTS: Rule = Rule::new("exports", 10, Duration::from_secs(3600));
///
/// Limit::new(EXPORTS)
///     .key(KeyBy::extension(|user: &UserId| user.0))
///     .when(|request| request.uri.path().starts_with("/export"))
///     .cost(|request| if request.uri.query() == Some("all") { 10 } else { 1 });
/// ```
#[derive(Clone)]
#[must_use = "a limit does nothing outside of a layer: RateLimitLayer::new([limit])"]
pub struct Limit {
    rule: Rule,
    key: Option<KeyBy>,
    on_missing_key: OnMissingKey,
    when: Option<RequestFn<bool>>,
    cost: Option<RequestFn<u64>>,
}

/// A function of a request's head.
type RequestFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

impl Limit {
    /// A limit with one counter for all requests, each of cost 1.
    pub fn new(rule: Rule) -> Self {
        Self { rule, key: None, on_missing_key: OnMissingKey::default(), when: None, cost: None }
    }

    /// Uses one counter per key.
    pub fn key(mut self, key: KeyBy) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the treatment of requests without a key. By default they are refused.
    pub fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = on_missing_key;
        self
    }

    /// Applies the limit only to these requests.
    pub fn when(mut self, applies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(applies));
        self
    }

    /// Sets the cost of a request, by default 1. A request of cost 0 is admitted, with or without a
    /// key.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// The charge for a request. `None` if the limit does not apply.
    pub(super) async fn ask(&self, request: &Parts) -> Option<ChargeRequest> {
        if self.when.as_ref().is_some_and(|applies| !applies(request)) {
            return None;
        }
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        let Some(by) = &self.key else {
            return Some(ChargeRequest { rule: self.rule, key: RequestKey::Shared, cost, cost_kind: CostKind::Fixed });
        };
        let (key, on_missing_key) = match by.find(request) {
            KeyResult::Ready(key) => (key, self.on_missing_key),
            KeyResult::Pending(key) => (key.await, self.on_missing_key),
            KeyResult::Ambiguous => (None, OnMissingKey::Deny),
        };
        let key = match (key, on_missing_key) {
            (Some(key), _) => RequestKey::Some(key),
            (None, OnMissingKey::Shared) => RequestKey::Shared,
            (None, OnMissingKey::Skip) => return None,
            (None, OnMissingKey::Deny) if cost == 0 => return None,
            (None, OnMissingKey::Deny) => RequestKey::Missing,
        };
        Some(ChargeRequest { rule: self.rule, key, cost, cost_kind: CostKind::Fixed })
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
