//! The routes: the service of each, which is its upstream behind its limits.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, request::Parts},
    response::Response,
};
use ratelimit_runtime::{
    Cause, Key, Limiter, RequestPerMinute,
    web::{KeyBy, Limit, LimitedBody, RateLimitLayer},
};
use tower::{ServiceBuilder, ServiceExt as _, util::BoxCloneSyncService};

use crate::{
    config::{Clients, Config, KeySource, Route, RouteLimit},
    proxy::Upstreams,
    refusals::Refusals,
};

/// The routes of the file.
pub(crate) struct Routes(Vec<Arc<Way>>);

/// A route, and where it leads.
pub(crate) struct Way {
    route: Route,
    service: Service,
}

/// An upstream behind the limits of its route.
type Service = BoxCloneSyncService<Request, Response<LimitedBody<Body>>, Infallible>;

impl Routes {
    pub(crate) fn new(config: Config, limiter: &Limiter, upstreams: &Upstreams) -> Self {
        let Config { routes, clients } = config;
        let way = |route: Route| {
            let limits = route.limits.iter().map(|limit| limit.of_layer(&clients));
            let (denial_status, missing_key_status) = (route.denial_status, route.missing_key_status);
            let layer = RateLimitLayer::new(limits).limiter(limiter.clone()).headers(route.headers).on_refusal(
                move |refused| match refused.refusal().cause() {
                    Cause::Exceeded | Cause::NeverFits | Cause::Banned => refused.problem(denial_status),
                    Cause::MissingKey => refused.problem(missing_key_status),
                    _ => refused.problem(refused.status()),
                },
            );
            let upstream = upstreams.get(&route.upstream);
            let forward = tower::service_fn(move |request| {
                let upstream = upstream.clone();
                upstream.forward(request)
            });
            let service = BoxCloneSyncService::new(ServiceBuilder::new().layer(layer).service(forward));
            Arc::new(Way { route, service })
        };
        Self(routes.into_iter().map(way).collect())
    }

    /// The route with the longest path that this one is at or below.
    pub(crate) fn find(&self, path: &str) -> Option<Arc<Way>> {
        let leads_to = |of: &str| path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let fitting = self.0.iter().filter(|way| leads_to(way.route.path.trim_end_matches('/')));
        fitting.max_by_key(|way| way.route.path.trim_end_matches('/').len()).cloned()
    }

    /// A path that a rule is on.
    pub(crate) fn path_of(&self, rule: &str) -> Option<String> {
        let has_rule = |way: &&Arc<Way>| way.route.limits.iter().any(|limit| limit.rule.prefix() == rule);
        self.0.iter().find(has_rule).map(|way| way.route.path.clone())
    }
}

impl Way {
    /// The upstream's response, or a refusal of the limits.
    pub(crate) async fn respond(&self, request: Request, refusals: &Refusals) -> Response {
        let Ok(response) = self.service.clone().oneshot(request).await;
        if let Some(refused) = response.extensions().get::<RequestPerMinute>()
            && matches!(refused.cause(), Cause::Exceeded | Cause::NeverFits | Cause::Banned)
        {
            refusals.count(refused.rule(), &self.key_text(refused));
        }
        response.map(Body::new)
    }

    /// The key of a refusal, for the page.
    fn key_text(&self, refused: &RequestPerMinute) -> String {
        let has_key = |limit: &RouteLimit| limit.rule.prefix() == refused.rule() && limit.key.is_some();
        match refused.key() {
            Some(key) => key.to_string(),
            None if self.route.limits.iter().any(has_key) => "all others".into(),
            None => "all together".into(),
        }
    }
}

impl RouteLimit {
    fn of_layer(&self, clients: &Arc<Clients>) -> Limit {
        let cost = self.cost;
        let limit = Limit::new(self.rule).on_missing_key(self.on_missing_key).cost(move |_| cost);
        match &self.key {
            None => limit,
            Some(key) => limit.key(key.of_layer(clients)),
        }
    }
}

impl KeySource {
    fn of_layer(&self, clients: &Arc<Clients>) -> KeyBy {
        match self {
            Self::Client => {
                let clients = Arc::clone(clients);
                KeyBy::from_fn(move |request: &Parts| client(&request.headers, &clients).map(Key::new))
            }
            Self::Peer => KeyBy::peer(),
            Self::Forwarded(hops) => KeyBy::x_forwarded_for(hops.get()),
            Self::Header(name) => KeyBy::header(name.clone()),
        }
    }
}

/// The client that an API key belongs to.
fn client<'a>(headers: &HeaderMap, clients: &'a Clients) -> Option<&'a String> {
    let mut keys = headers.get_all("x-api-key").iter();
    let (Some(key), None) = (keys.next(), keys.next()) else { return None };
    clients.get(key.to_str().ok()?)
}
