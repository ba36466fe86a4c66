//! The routes: the service of each, which is its upstream behind its limits.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::{
    body::Body,
    extract::Request,
    http::{Extensions, HeaderMap, request::Parts},
    response::Response,
};
use ratelimit_runtime::{
    Key, Limiter,
    web::{KeyBy, Limit, LimitedBody, RateLimitLayer},
};
use tower::{ServiceBuilder, ServiceExt as _, util::BoxCloneSyncService};

use crate::{
    config::{Clients, Config, KeySource, Route, RouteLimit},
    proxy::Upstreams,
    refusals::{Forwarded, Refusals},
};

/// The routes of the file.
pub(crate) struct Routes(Vec<Arc<Way>>);

/// A route, and where it leads.
pub(crate) struct Way {
    route: Route,
    service: Service,
    clients: Arc<Clients>,
}

/// An upstream behind the limits of its route.
type Service = BoxCloneSyncService<Request, Response<LimitedBody<Body>>, Infallible>;

impl Routes {
    pub(crate) fn new(config: Config, limiter: &Limiter, upstreams: &Upstreams) -> Self {
        let Config { routes, clients } = config;
        let way = |route: Route| {
            let limits = route.limits.iter().map(|limit| limit.of_layer(&clients));
            let layer = RateLimitLayer::new(limits)
                .limiter(limiter.clone())
                .headers(route.headers)
                .missing_key_status(route.missing_key_status);
            let upstream = upstreams.get(&route.upstream);
            let forward = tower::service_fn(move |request| {
                let upstream = upstream.clone();
                async move { upstream.forward(request).await.map(Forwarded::mark) }
            });
            let service = BoxCloneSyncService::new(ServiceBuilder::new().layer(layer).service(forward));
            Arc::new(Way { route, service, clients: Arc::clone(&clients) })
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
        let limits = self.route.limits.iter();
        let (headers, extensions) = (request.headers(), request.extensions());
        let keys: Vec<_> =
            limits.map(|limit| (limit.rule.prefix(), limit.key_text(headers, extensions, &self.clients))).collect();
        match self.service.clone().oneshot(request).await {
            Ok(response) => refusals.finish(response.map(Body::new), self.route.denial_status, &keys).await,
            Err(never) => match never {},
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

    /// The key of a request, for the page.
    fn key_text(&self, headers: &HeaderMap, extensions: &Extensions, clients: &Clients) -> String {
        let key = self.key.as_ref().and_then(|key| key.text(headers, extensions, clients));
        key.unwrap_or_else(|| if self.key.is_some() { "all others" } else { "all together" }.into())
    }
}

impl KeySource {
    fn of_layer(&self, clients: &Arc<Clients>) -> KeyBy {
        match self {
            Self::Client => {
                let clients = Arc::clone(clients);
                KeyBy::from_fn(move |request: &Parts| client(&request.headers, &clients).map(Key::new))
            }
            Self::Peer => KeyBy::peer_ip(|peer: &SocketAddr| peer.ip()),
            Self::Forwarded(hops) => KeyBy::x_forwarded_for(hops.get()),
            Self::Header(name) => KeyBy::header(name.clone()),
        }
    }

    fn text(&self, headers: &HeaderMap, extensions: &Extensions, clients: &Clients) -> Option<String> {
        match self {
            Self::Client => client(headers, clients).cloned(),
            Self::Peer => extensions.get::<SocketAddr>().map(|peer| address(peer.ip())),
            Self::Forwarded(hops) => {
                let lines = headers.get_all("x-forwarded-for").iter().rev().filter_map(|line| line.to_str().ok());
                let text = lines.flat_map(|line| line.rsplit(',')).nth(hops.get() - 1)?.trim();
                Some(text.parse().map_or_else(|_| text.to_owned(), address))
            }
            Self::Header(name) => headers.get(name)?.to_str().ok().map(str::to_owned),
        }
    }
}

/// The client that an API key belongs to.
fn client<'a>(headers: &HeaderMap, clients: &'a Clients) -> Option<&'a String> {
    let mut keys = headers.get_all("x-api-key").iter();
    let (Some(key), None) = (keys.next(), keys.next()) else { return None };
    clients.get(key.to_str().ok()?)
}

/// An address as limits tell it from others: of IPv6, the network of a customer.
fn address(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}
