//! The routes, and the limits on them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use axum::{
    body::Body,
    extract::Request,
    http::{StatusCode, Uri, uri::Authority},
    response::Response,
};
use ratelimit_runtime::{
    Key, Limiter,
    config::Rules,
    web::{HeaderStyle, KeyBy, Limit, LimitedBody, OnMissingKey, RateLimitLayer},
};
use serde::Deserialize;
use tower::{ServiceBuilder, util::BoxCloneSyncService};

use crate::proxy::Upstream;

#[derive(Deserialize)]
struct File {
    routes: Vec<Route>,
    /// Names by API key.
    #[serde(default)]
    clients: Clients,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Route {
    path: String,
    upstream: String,
    limits: Vec<OfRoute>,
    #[serde(default)]
    headers: Style,
    /// The status for a request without a key.
    missing_key_status: Option<u16>,
}

/// A limit on a route.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfRoute {
    rule: String,
    /// `client`, `peer`, `forwarded:hops` or `header:name`; without one, all requests count together.
    ///
    /// Of a header, clients choose what they send: a key that something in front has checked, or none.
    key: Option<String>,
    #[serde(default)]
    on_missing_key: Missing,
    cost: Option<u64>,
}

#[derive(Clone, Copy, Default, Deserialize)]
enum Style {
    #[default]
    Ietf,
    RateLimit,
    XRateLimit,
    Gateway,
    None,
}

#[derive(Clone, Copy, Default, Deserialize)]
enum Missing {
    #[default]
    Deny,
    Skip,
    Shared,
}

/// A route's upstream, behind its limits.
pub(crate) type Service = BoxCloneSyncService<Request, Response<LimitedBody<Body>>, Infallible>;

/// The routes of the file, as they are now.
pub(crate) struct Routes(Arc<ArcSwap<Vec<Way>>>);

/// A path, the prefixes of the rules on it, and where it leads.
struct Way {
    path: String,
    rules: Vec<String>,
    service: Service,
}

/// The parts of the routes.
struct Parts {
    config: PathBuf,
    rules: Rules,
    limiter: Limiter,
    sample: Authority,
}

impl Routes {
    /// Reads the routes now and whenever the file changes; while it is wrong, those before stay.
    pub(crate) fn watch(
        config: &Path,
        rules: &Rules,
        limiter: &Limiter,
        sample: Authority,
    ) -> Result<Self, Box<dyn Error>> {
        let parts = Parts { config: config.to_owned(), rules: rules.clone(), limiter: limiter.clone(), sample };
        let mut known = fs::read_to_string(config)?;
        let routes = Arc::new(ArcSwap::from_pointee(parts.build(&known)?));
        let watched = Arc::clone(&routes);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                match tokio::fs::read_to_string(&parts.config).await {
                    Ok(text) if text != known => {
                        match parts.build(&text) {
                            Ok(routes) => watched.store(Arc::new(routes)),
                            Err(error) => tracing::error!(%error, "the routes stay as they were"),
                        }
                        known = text;
                    }
                    _ => {} // the rules tell of a file that is gone
                }
            }
        });
        Ok(Self(routes))
    }

    /// The service behind the longest path that this one is at or below.
    pub(crate) fn find(&self, path: &str) -> Option<Service> {
        let leads_to = |of: &str| path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let routes = self.0.load();
        let fitting = routes.iter().filter(|way| leads_to(way.path.trim_end_matches('/')));
        fitting.max_by_key(|way| way.path.len()).map(|way| way.service.clone())
    }

    /// A path that a rule is on.
    pub(crate) fn path_of(&self, rule: &str) -> Option<String> {
        self.0.load().iter().find(|way| way.rules.iter().any(|other| other == rule)).map(|way| way.path.clone())
    }
}

impl Parts {
    fn build(&self, text: &str) -> Result<Vec<Way>, Box<dyn Error>> {
        let File { routes, clients } = toml::from_str(text)?;
        let clients = Arc::new(clients);
        let ways = routes.into_iter().map(|route| {
            let rules = route.limits.iter().map(|limit| limit.rule.clone()).collect();
            Ok(Way { path: route.path.clone(), rules, service: self.service(&route, &clients)? })
        });
        ways.collect()
    }

    fn service(&self, route: &Route, clients: &Arc<Clients>) -> Result<Service, Box<dyn Error>> {
        let authority = match route.upstream.as_str() {
            "sample" => self.sample.clone(),
            url => {
                let uri: Uri = url.parse()?;
                uri.authority().cloned().ok_or_else(|| format!("upstream = \"{url}\" is not http://host:port"))?
            }
        };
        let limits: Vec<Limit> =
            route.limits.iter().map(|limit| self.limit(limit, clients)).collect::<Result<_, _>>()?;
        let layer = RateLimitLayer::new(limits).limiter(self.limiter.clone()).headers(match route.headers {
            Style::Ietf => HeaderStyle::Ietf,
            Style::RateLimit => HeaderStyle::RateLimit,
            Style::XRateLimit => HeaderStyle::XRateLimit,
            Style::Gateway => HeaderStyle::Gateway,
            Style::None => HeaderStyle::None,
        });
        let layer = match route.missing_key_status {
            Some(status) => layer.missing_key_status(StatusCode::from_u16(status)?),
            None => layer,
        };
        let upstream = Upstream::new(authority);
        let forward = tower::service_fn(move |request| upstream.clone().forward(request));
        Ok(BoxCloneSyncService::new(ServiceBuilder::new().layer(layer).service(forward)))
    }

    fn limit(&self, of: &OfRoute, clients: &Arc<Clients>) -> Result<Limit, Box<dyn Error>> {
        let OfRoute { rule, key, on_missing_key, cost } = of;
        let known = self.rules.rule(rule);
        let rule = known.ok_or_else(|| format!("there is no [rules.{rule}] with a count and a unit"))?;
        let limit = Limit::new(rule).on_missing_key(match on_missing_key {
            Missing::Deny => OnMissingKey::Deny,
            Missing::Skip => OnMissingKey::Skip,
            Missing::Shared => OnMissingKey::Shared,
        });
        let limit = match *cost {
            Some(cost) => limit.cost(move |_| cost),
            None => limit,
        };
        Ok(match key {
            None => limit,
            Some(key) => limit.key(key_by(key, clients)?),
        })
    }
}

type Clients = BTreeMap<String, String>;

fn key_by(text: &str, clients: &Arc<Clients>) -> Result<KeyBy, Box<dyn Error>> {
    match text.split_once(':') {
        None if text == "client" => {
            let clients = Arc::clone(clients);
            Ok(KeyBy::from_fn(move |request| {
                let mut keys = request.headers.get_all("x-api-key").iter();
                let (Some(key), None) = (keys.next(), keys.next()) else { return None };
                clients.get(key.to_str().ok()?).map(Key::new)
            }))
        }
        None if text == "peer" => Ok(KeyBy::peer_ip(|peer: &std::net::SocketAddr| peer.ip())),
        Some(("header", name)) => Ok(KeyBy::header(name.parse()?)),
        Some(("forwarded", hops)) => {
            let hops = hops.parse::<std::num::NonZeroUsize>()?;
            Ok(KeyBy::x_forwarded_for(hops.get()))
        }
        _ => Err(format!("key = \"{text}\" is not client, peer, forwarded:hops or header:name").into()),
    }
}
