//! The decision on a request, the fields of its response, and its settlement: for any kind of
//! server.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Method, Response, StatusCode, request, response::Parts};

use super::{
    HeaderStyle, Limit, RequestHold, grpc,
    headers::{QuotaPolicy, QuotaStatus},
    problem,
    request_hold::BodyHold,
    settle_by::SettleBy,
};
use crate::{
    Limiter, OnStoreError, Permit, RequestPerMinute, Rule,
    engine::{
        acquire::Acquire,
        core::{Engine, EngineRef},
        options::{AcquireOptions, OnLimit},
        request::{ChargeRequest, CostKind, RequestKey},
    },
    observe,
    rule::call_kind::CallKind,
};

/// The limits of a layer, and its settings.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) limits: Vec<Limit>,
    pub(super) limiter: Option<Limiter>,
    pub(super) style: Option<HeaderStyle>,
    pub(super) on_limit: OnLimit,
    pub(super) on_store_error: Option<OnStoreError>,
    pub(super) on_refusal: Option<RefusalFn>,
}

pub(super) type RefusalFn = Arc<dyn Fn(RefusedRequest<'_>) -> Response<Bytes> + Send + Sync>;

/// A refused request, for [`RateLimitLayer::on_refusal`](super::RateLimitLayer::on_refusal).
#[derive(Clone, Copy)]
pub struct RefusedRequest<'a> {
    refused: &'a RequestPerMinute,
    request: &'a request::Parts,
}

impl<'a> RefusedRequest<'a> {
    /// The refusal.
    pub fn refusal(&self) -> &'a RequestPerMinute {
        self.refused
    }

    /// The head of the request.
    pub fn request(&self) -> &'a request::Parts {
        self.request
    }

    /// The status that the refusal has by default; see [`web`](crate::web).
    pub fn status(&self) -> StatusCode {
        problem::status(self.refused.cause())
    }

    /// The response by default, but with this status, which the body names, too.
    pub fn problem(&self, status: StatusCode) -> Response<Bytes> {
        problem::response(self.refused, status).map(Into::into)
    }
}

/// An admitted request.
#[derive(Debug)]
pub(super) struct AdmittedRequest {
    style: HeaderStyle,
    policies: Vec<QuotaPolicy<'static>>,
    status: Option<QuotaStatus<'static>>,
    permit: Option<Permit>,
    hold: Option<RequestHold>,
    settle_by: Option<SettleBy>,
    /// The limit of `status` is settled, and the only one.
    is_only_settled: bool,
    method: Method,
}

impl Gate {
    /// The engine that decides on a request.
    pub(super) fn engine(&self) -> EngineRef {
        self.limiter.as_ref().map_or_else(Limiter::current_engine, Limiter::engine_ref)
    }

    /// Decides on a request. The error is the response to a refused one, with the refusal in its
    /// extensions. If this is dropped, the request is charged as by [`Limiter::acquire_within`].
    pub(super) async fn admit(
        &self,
        engine: EngineRef,
        request: &request::Parts,
    ) -> Result<AdmittedRequest, Response<Bytes>> {
        let mut asked = Vec::with_capacity(self.limits.len());
        for limit in &self.limits {
            asked.extend(limit.ask(request).await.map(|charge| (limit, charge)));
        }
        let is_one_of_several = asked.len() > 1;
        let lacks_key = asked.iter().any(|(_, charge)| self.lacks_key(&engine, charge, is_one_of_several));
        // Without a key it is refused whatever the counts, and an unlimited limiter needs none.
        let needs_counts = !lacks_key && engine.store().is_some();
        let mut charges: Vec<ChargeRequest> = Vec::with_capacity(asked.len());
        let mut settle_by: Option<SettleBy> = None;
        for (limit, mut charge) in asked {
            if needs_counts && let Err(error) = limit.set_count(&mut charge, request, &engine.settings().clock).await {
                match self.refusal_without_count(&engine, &charge, is_one_of_several, &error) {
                    Some(refused) => return Err(self.refusal(refused, &[], request)),
                    None => continue,
                }
            }
            settle_by = settle_by.or_else(|| limit.settle_by().cloned()); // all of a layer have the same
            charges.push(charge);
        }
        let style = self.style.unwrap_or_else(HeaderStyle::installed);
        let method = request.method.clone();
        let Some(only) = charges.first().map(|charge| charge.rule.prefix()) else {
            return Ok(AdmittedRequest {
                style,
                policies: Vec::new(),
                status: None,
                permit: None,
                hold: None,
                settle_by,
                is_only_settled: false,
                method,
            });
        };
        let is_only_settled = settle_by.is_some() && charges.len() == 1;
        let (rules_of, told) = (engine.clone(), if style == HeaderStyle::Ietf { charges.clone() } else { Vec::new() });
        let options = AcquireOptions::new(self.on_limit, self.on_store_error);
        let acquire = match charges.pop() {
            Some(ChargeRequest { rule, key, cost, cost_kind: CostKind::Fixed }) if charges.is_empty() => {
                Acquire::single(engine, &rule, key, cost, options)
            }
            last => {
                charges.extend(last);
                Acquire::all(engine, |requests| requests.extend(charges), options, self.on_limit)
            }
        };
        let decided = acquire.await;
        // The rules may have changed while the request waited.
        let policies = self.policies(&rules_of, &told);
        match decided {
            Ok(permit) => {
                let name = permit.most_restrictive().map(|(rule, _)| rule.prefix()).filter(|name| !name.is_empty());
                let status = QuotaStatus::of_permit(&permit, name.unwrap_or(only));
                let permit = Some(permit).filter(Permit::holds);
                Ok(AdmittedRequest { style, policies, status, permit, hold: None, settle_by, is_only_settled, method })
            }
            Err(refused) => Err(self.refusal(refused, &policies, request)),
        }
    }

    /// Whether a charge is refused for lack of a key.
    fn lacks_key(&self, engine: &Engine, charge: &ChargeRequest, is_one_of_several: bool) -> bool {
        matches!(charge.key, RequestKey::Missing)
            && self.applied(engine, charge, is_one_of_several).is_some_and(|rule| !rule.is_shadow())
    }

    /// The refusal of a request whose count could not be looked up. `None` if it is not refused: it costs
    /// nothing, or the rule is switched off or in shadow mode.
    fn refusal_without_count(
        &self,
        engine: &Engine,
        charge: &ChargeRequest,
        is_one_of_several: bool,
        error: &str,
    ) -> Option<RequestPerMinute> {
        static LOGGED: observe::LogThrottle = observe::LogThrottle::new();
        if LOGGED.allow() {
            tracing::error!(rule = charge.rule.prefix(), error, "cannot look up the count of a rule");
        }
        let rule = self.applied(engine, charge, is_one_of_several).filter(|_| charge.cost > 0)?;
        if rule.is_shadow() {
            observe::refused_in_shadow(&rule);
            return None;
        }
        let refused = RequestPerMinute::unavailable(&rule, format!("its count could not be looked up: {error}"));
        observe::refused(&refused);
        Some(refused)
    }

    /// The rules of the charges that a client sees.
    fn policies(&self, engine: &Engine, charges: &[ChargeRequest]) -> Vec<QuotaPolicy<'static>> {
        if engine.store().is_none() {
            return Vec::new(); // nothing is limited
        }
        let is_one_of_several = charges.len() > 1;
        let rules = charges.iter().filter_map(|charge| self.applied(engine, charge, is_one_of_several));
        rules.filter(|rule| !rule.is_shadow()).map(QuotaPolicy::new).collect()
    }

    /// The rule of a charge as it applies now. `None` if it is switched off.
    fn applied(&self, engine: &Engine, charge: &ChargeRequest, is_one_of_several: bool) -> Option<Rule> {
        let kind = CallKind {
            cost: charge.cost_kind.of_call(),
            is_one_of_several,
            waits: matches!(self.on_limit, OnLimit::Wait(_)),
        };
        Some(*engine.settings().rules_now().applied(&charge.rule, charge.key.or_none(), kind)?)
    }

    /// Requests may be held up: for a limit, a slot, a store that is away, or a look-up.
    pub(super) fn waits(&self, engine: &Engine) -> bool {
        let rules = engine.settings().rules_now();
        let of_rule = |limit: &Limit| rules.on_store_error(limit.rule().prefix());
        let policy = self.on_store_error.unwrap_or(engine.settings().on_store_error);
        matches!(self.on_limit, OnLimit::Wait(_))
            || matches!(policy, OnStoreError::Wait { .. })
            || self.limits.iter().any(|limit| {
                limit.waits()
                    || rules.has_slots(limit.rule().prefix())
                    || matches!(of_rule(limit), Some(OnStoreError::Wait { .. }))
            })
    }

    /// The response to a refused request. `policies`: of the rules that apply to it.
    fn refusal(
        &self,
        refused: RequestPerMinute,
        policies: &[QuotaPolicy<'_>],
        request: &request::Parts,
    ) -> Response<Bytes> {
        let style = self.style.unwrap_or_else(HeaderStyle::installed);
        if let Some(media_type) = grpc::media_type(request) {
            let mut response = Response::new(Bytes::new());
            *response.headers_mut() = grpc::trailers_only(&refused, style, policies, &media_type);
            response.extensions_mut().insert(refused);
            return response;
        }
        let refused_request = RefusedRequest { refused: &refused, request };
        let mut response = match &self.on_refusal {
            Some(respond) => respond(refused_request),
            None => refused_request.problem(refused_request.status()),
        };
        problem::finish(&mut response, refused, style, policies);
        response
    }
}

impl AdmittedRequest {
    /// The holds of the request, if there are any, for its extensions. `outer`: those of an outer
    /// layer.
    pub(super) fn hold(&mut self, outer: impl FnOnce() -> Option<RequestHold>) -> Option<RequestHold> {
        let permit = self.permit.take()?;
        self.hold.insert(RequestHold::new(permit, outer())).clone().into()
    }

    /// Adds the fields of the limits to a response, and settles what its head and the length of its body
    /// tell. What is returned goes with the body.
    pub(super) fn finish(mut self, response: &mut Parts, body_length: Option<u64>) -> Option<BodyHold> {
        let (settle_by, hold) = (self.settle_by.take(), self.hold.clone());
        let hold = hold.map(|hold| BodyHold::new(hold, settle_by, &self.method, response, body_length));
        self.hold = None; // only now: a function of the user may have panicked
        let (style, status) = (self.style, &mut self.status);
        if self.is_only_settled
            && let Some(status) = status
            && let Some(used) = hold.as_ref().and_then(|hold| hold.used_by_head)
        {
            status.settle(used);
        }
        // A refusal of an inner layer keeps its own fields.
        if !(problem::is_refusal(response) && style.is_written(&response.headers)) {
            style.write(&self.policies, status.as_ref(), &mut response.headers);
        }
        hold
    }
}

/// There is no response, or its cost is not known: the service or a function of the user has failed, or the client has
/// left. Then all that is held is charged, also if the service has kept a clone of the hold.
impl Drop for AdmittedRequest {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.settle(None);
        }
    }
}

impl fmt::Debug for RefusedRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A request has secrets in its fields.
        f.debug_struct("RefusedRequest").field("refusal", &self.refused).finish_non_exhaustive()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("limits", &self.limits)
            .field("limiter", &self.limiter)
            .field("style", &self.style)
            .field("on_limit", &self.on_limit)
            .field("on_store_error", &self.on_store_error)
            .finish_non_exhaustive()
    }
}
