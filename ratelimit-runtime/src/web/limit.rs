//! A rule, and how a request maps to its key and cost.

use std::{collections::HashSet, fmt, future::Future, sync::Arc, time::Duration};

use http::request::Parts;

use super::{
    KeyBy, Networks, SettleBy,
    count_by::{CountBy, CountCache},
    key_by::{FoundKey, includes},
};
use crate::{
    Clock, CounterName, Key, RateKey, Rule,
    algorithm::capabilities,
    engine::request::{ChargeRequest, CostKind, RequestKey, settle_fault},
    policy::OnMissingKey,
};

/// A limit of a [`RateLimitLayer`](super::RateLimitLayer): a rule, and how to derive key, cost and
/// count from a request.
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
    count: Option<CountBy>,
    settle: Option<(u64, SettleBy)>,
    allowed_networks: Option<Networks>,
    allowed_keys: Option<Arc<HashSet<Key>>>,
}

/// A function of a request's head.
type RequestFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

impl Limit {
    /// A limit with one counter for all requests, each of cost 1.
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            key: None,
            on_missing_key: OnMissingKey::default(),
            when: None,
            cost: None,
            count: None,
            settle: None,
            allowed_networks: None,
            allowed_keys: None,
        }
    }

    /// Uses one counter per key.
    pub fn key(mut self, key: KeyBy) -> Self {
        self.key = Some(key);
        if let Some(CountBy::Lookup(counts)) = &mut self.count {
            *counts = Arc::new(counts.emptied()); // a clone of this may have another key
        }
        self
    }

    /// Sets the treatment of requests without a key. By default they are refused.
    pub fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = on_missing_key;
        self
    }

    /// Applies the limit only to these requests.
    ///
    /// A layer inside of a nested router of `axum` sees the path without the prefix of the nest: see
    /// [`KeyBy::path`].
    pub fn when(mut self, applies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(applies));
        self
    }

    /// Sets the cost of a request, by default 1. A request of cost 0 is admitted, with or without a
    /// key; a [settled](Limit::settle) limit holds at least 1 of each. With a key the store is asked all the
    /// same: a banned counter refuses the request, and so may the failure policy.
    ///
    /// A client must not choose the cost, for example in a query: it would choose 0.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Sets the count for a request, in place of the rule's. The burst of a
    /// [`TokenBucket`](crate::Algorithm::TokenBucket) and the queue of a
    /// [`LeakyBucket`](crate::Algorithm::LeakyBucket) stay as they are in the rule. A count of 0
    /// admits nothing. A count above the largest that the [algorithm](crate::Algorithm) can store
    /// answers the request with status 500: bound a count that comes from outside.
    ///
    /// The count is no part of the counter: when it changes, earlier requests still count. A count in
    /// a rules file goes over it.
    ///
    /// ```
    /// # use ratelimit_runtime::{Rule, web::{KeyBy, Limit}};
    /// # use std::time::Duration;
    /// #[derive(Clone)]
    /// struct User { id: u64, is_paying: bool }
    ///
    /// const API: Rule = Rule::new("api", 100, Duration::from_secs(60));
    ///
    /// Limit::new(API)
    ///     .key(KeyBy::extension(|user: &User| user.id))
    ///     .count(|request| match request.extensions.get() {
    ///         Some(User { is_paying: true, .. }) => 1_000,
    ///         _ => 100,
    ///     });
    /// ```
    pub fn count(mut self, count: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.count = Some(CountBy::Request(Arc::new(count)));
        self
    }

    /// Looks up the count for a request, for example the one of a user's plan. Otherwise as
    /// [`Limit::count`].
    ///
    /// A count is kept for the time `ttl`, by the limiter's clock, for all requests with the same key:
    /// it must depend on nothing else. Requests of one key that come at once share one look-up. Up to
    /// some 4,000 keys are kept, those that were used last. Each other key is a look-up, so
    /// authenticate first: a client must not make up keys.
    ///
    /// Counts are looked up before any limit of the layer is decided, and only if no key is missing. A
    /// limit that protects the look-up belongs into an outer layer of its own.
    ///
    /// If the look-up fails, the request is refused with
    /// [`Cause::Unavailable`](crate::Cause::Unavailable), whatever the failure policy. The log has
    /// the error. The failure is not kept. To admit such requests by another count, return that count
    /// in place of the error. A request of cost 0 is admitted all the same.
    ///
    /// The look-up has no time limit of its own. If the request that made it is dropped, the next one
    /// that waits makes it again.
    ///
    /// ```
    /// # use ratelimit_runtime::{Rule, web::{KeyBy, Limit}};
    /// # use std::time::Duration;
    /// #[derive(Clone)]
    /// struct UserId(u64);
    ///
    /// async fn count_of_plan(user: u64) -> Result<u64, String> {
    /// #   let _ = user;
    /// #   Ok(100)
    ///     // queries a database
    /// }
    ///
    /// const API: Rule = Rule::new("api", 100, Duration::from_secs(60));
    ///
    /// Limit::new(API)
    ///     .key(KeyBy::extension(|user: &UserId| user.0))
    ///     .count_async(Duration::from_secs(30), |request| {
    ///         let user = request.extensions.get::<UserId>().cloned();
    ///         async move { count_of_plan(user.ok_or("no user")?.0).await }
    ///     });
    /// ```
    pub fn count_async<F, E>(mut self, ttl: Duration, look_up: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<u64, E>> + Send + 'static,
        E: fmt::Display,
    {
        self.count = Some(CountBy::Lookup(Arc::new(CountCache::new(ttl, look_up))));
        self
    }

    /// Charges a cost that the response tells, for example only failed logins, or the tokens of an
    /// answer: see [`SettleBy`].
    ///
    /// Until then `max` counts, so that concurrent requests can't exceed the limit. With
    /// [`Limit::cost`] its cost counts, but at least 1 and at most `max`. A response may cost more
    /// than that: the excess counts, too. A [`SlidingLog`](crate::Algorithm::SlidingLog) holds it, and
    /// other algorithms [refund](crate::guide::how_it_works#settlement-by-refund) what was not used.
    ///
    /// Beside a rule of [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) in the same layer, the
    /// cost is held as long as the place. To settle it earlier, put the two into two layers.
    ///
    /// A request whose `max` is above the count never fits, and is refused. So [`Limit::count`], or a
    /// count in a rules file, must not be below `max`.
    ///
    /// All of it is charged if the response does not tell the cost: the service failed or
    /// panicked, the client disconnected in between, or the body did not end. If such a body has told more,
    /// that is charged.
    ///
    /// The fields of the response tell what remains. If this is the only limit of the layer, and the head of the
    /// response tells the cost, they count that cost. If not, they count what is held until then.
    ///
    /// ```
    /// # use ratelimit_runtime::{Algorithm, Rule, web::{KeyBy, Limit, SettleBy}};
    /// # use std::time::Duration;
    /// const FAILED_LOGINS: Rule =
    ///     Rule::new("failed-logins", 5, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);
    ///
    /// Limit::new(FAILED_LOGINS)
    ///     .key(KeyBy::peer())
    ///     .settle(1, SettleBy::response(|response| u64::from(response.status == 401)));
    /// ```
    ///
    /// Several limits of a layer may be settled by clones of one [`SettleBy`]: each is charged the
    /// same cost, if the response tells it. For different ones, use several layers.
    ///
    /// # Panics
    ///
    /// If the rule is one of a [`LeakyBucket`](crate::Algorithm::LeakyBucket) or of
    /// [places](crate::Algorithm::Concurrent), or has a [prefetch](Rule::with_prefetch). If
    /// `max` is 0, as a request without a charge is not settled.
    #[track_caller]
    pub fn settle(mut self, max: u64, by: SettleBy) -> Self {
        let prefix = self.rule.prefix();
        if let Some(fault) = settle_fault(&self.rule, false) {
            panic!("`{prefix}`: {fault}");
        }
        assert!(max > 0, "`{prefix}`: `max` is 0, so no response would be counted; charge at least 1");
        self.settle = Some((max, by));
        self
    }

    /// Does not limit clients with an address in these networks, such as those of health checks.
    ///
    /// The address is that of the limit's key: by [`KeyBy::peer`], [`KeyBy::peer_ip`],
    /// [`KeyBy::x_forwarded_for`] or [`KeyBy::forwarded`], also within [`KeyBy::first_of`]. Other keys
    /// have no address.
    ///
    /// ```
    /// # use ratelimit_runtime::{Rule, web::{KeyBy, Limit, Networks}};
    /// # use std::time::Duration;
    /// # const CLIENTS: Rule = Rule::new("clients", 100, Duration::from_secs(60));
    /// let inside = Networks::parse(["10.0.0.0/8"])?;
    /// Limit::new(CLIENTS).key(KeyBy::peer()).allow_networks(inside);
    /// # Ok::<_, ratelimit_runtime::SetupError>(())
    /// ```
    pub fn allow_networks(mut self, networks: Networks) -> Self {
        self.allowed_networks = Some(networks);
        self
    }

    /// Does not limit requests with these keys, as [`Limit::key`] finds them.
    ///
    /// ```
    /// # use ratelimit_runtime::{Rule, web::{KeyBy, Limit}};
    /// # use std::time::Duration;
    /// # const USERS: Rule = Rule::new("users", 100, Duration::from_secs(60));
    /// # #[derive(Clone)]
    /// # struct UserId(u64);
    /// Limit::new(USERS).key(KeyBy::extension(|user: &UserId| user.0)).allow_keys([1, 2]);
    /// ```
    pub fn allow_keys<K: RateKey>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.allowed_keys = Some(Arc::new(keys.into_iter().map(Key::new).collect()));
        self
    }

    /// The way in which the response tells the cost.
    pub(super) fn settle_by(&self) -> Option<&SettleBy> {
        self.settle.as_ref().map(|(_, by)| by)
    }

    /// Panics if no request can ever fit.
    #[track_caller]
    pub(super) fn check(&self) {
        let (prefix, limit) = (self.rule.prefix(), self.rule.limit());
        if let Self { settle: Some((max, _)), cost: None, count: None, .. } = self {
            let fits = *max <= limit || limit == 0;
            assert!(fits, "`{prefix}`: each request would hold {max}, above the count of {limit}, and be refused");
        }
    }

    /// Copies the extensions that the key is made of.
    #[cfg(feature = "actix-web")]
    pub(super) fn import(&self, from: &actix_web::dev::Extensions, to: &mut http::Extensions) {
        if let Some(key) = &self.key {
            key.import(from, to);
        }
    }

    pub(super) fn rule(&self) -> &Rule {
        &self.rule
    }

    /// A request may be held up, even if it does not wait for the limit: for a slot, or a look-up.
    pub(super) fn waits(&self) -> bool {
        capabilities(self.rule.algorithm()).has_slots
            || matches!(self.count, Some(CountBy::Lookup(_)))
            || self.key.as_ref().is_some_and(KeyBy::is_looked_up)
    }

    /// The charge of a request, with the count of the rule. `None` if the limit does not apply.
    pub(super) async fn ask(&self, request: &Parts) -> Option<ChargeRequest> {
        if self.when.as_ref().is_some_and(|applies| !applies(request)) {
            return None;
        }
        let cost = self.cost.as_ref().map(|cost| cost(request));
        let (cost, cost_kind) = match &self.settle {
            None => (cost.unwrap_or(1), CostKind::Fixed),
            // A cost of 0 charges nothing, so the response could not settle it.
            Some((max, _)) => (cost.unwrap_or(*max).clamp(1, *max), CostKind::Reported),
        };
        let key = self.key_of(request, cost).await?;
        Some(ChargeRequest { rule: self.rule, key, cost, cost_kind })
    }

    /// Sets the count of a charge that was asked. An error is that of a look-up.
    pub(super) async fn set_count(
        &self,
        charge: &mut ChargeRequest,
        request: &Parts,
        clock: &Clock,
    ) -> Result<(), Arc<str>> {
        let count = match (&self.count, &charge.key) {
            // Without a key it is refused, whatever the count.
            (None, _) | (_, RequestKey::Missing) => return Ok(()),
            (Some(CountBy::Request(count)), _) => count(request),
            (Some(CountBy::Lookup(counts)), key) => {
                let its_key = key.or_none();
                counts.count(CounterName::new("", &self.rule, its_key), request, clock).await?
            }
        };
        charge.rule = self.rule.with_count(count);
        Ok(())
    }

    /// The key of a request. `None` if the limit does not apply.
    async fn key_of(&self, request: &Parts, cost: u64) -> Option<RequestKey> {
        let Some(by) = &self.key else { return Some(RequestKey::Some(Key::NONE)) };
        let (found, on_missing_key) = match by.find(request).await {
            Ok(found) => (found, self.on_missing_key),
            Err(_ambiguous) => (None, OnMissingKey::Deny),
        };
        match (found, on_missing_key) {
            (Some(found), _) if self.allows(&found) => None,
            (Some(found), _) => Some(RequestKey::Some(found.key)),
            (None, OnMissingKey::Shared) => Some(RequestKey::Some(Key::NONE)),
            (None, OnMissingKey::Skip) => None,
            (None, OnMissingKey::Deny) if cost == 0 => None,
            (None, OnMissingKey::Deny) => Some(RequestKey::Missing),
        }
    }

    fn allows(&self, FoundKey { key, ip }: &FoundKey) -> bool {
        self.allowed_keys.as_ref().is_some_and(|allowed| allowed.contains(key))
            || self.allowed_networks.as_ref().zip(*ip).is_some_and(|(allowed, ip)| includes(allowed, ip))
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
