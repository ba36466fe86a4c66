//! The gateway's file: its routes, and one message for each mistake in them.

use std::{collections::BTreeMap, num::NonZeroUsize, ops::Range, sync::Arc};

use axum::http::{
    HeaderName, StatusCode, Uri,
    uri::{Authority, Scheme},
};
use ratelimit_runtime::{
    Rule,
    config::Rules,
    web::{HeaderStyle, OnMissingKey},
};
use serde::{Deserialize, de::DeserializeOwned};
use toml::Spanned;

use crate::paths;

/// The tables of the file that are the gateway's and not the limiter's.
pub(crate) const OWN_TABLES: &[&str] = &["routes", "clients"];

/// A file without mistakes.
pub(crate) struct Config {
    pub(crate) routes: Vec<Route>,
    pub(crate) clients: Arc<Clients>,
}

/// Names by API key.
pub(crate) type Clients = BTreeMap<String, String>;

/// A route with its rules.
pub(crate) struct Route {
    pub(crate) path: String,
    pub(crate) upstream: Target,
    pub(crate) limits: Vec<RouteLimit>,
    pub(crate) headers: HeaderStyle,
    /// The status of a request over a limit.
    pub(crate) denial_status: StatusCode,
    /// The status of a request without a key.
    pub(crate) missing_key_status: StatusCode,
}

/// A limit on a route.
pub(crate) struct RouteLimit {
    pub(crate) rule: Rule,
    pub(crate) key: Option<KeySource>,
    pub(crate) on_missing_key: OnMissingKey,
    pub(crate) cost: u64,
}

/// Where a route leads.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Target {
    /// The gateway's own server, to try things out.
    Sample,
    Server {
        scheme: Scheme,
        authority: Authority,
        /// Comes before the path of each request. Empty, or `/` and more.
        base: String,
    },
}

/// How a request is told from those of others.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum KeySource {
    /// A name of `[clients]`.
    Client,
    /// The address of the connection.
    Peer,
    /// The address in front of this many trusted proxies.
    Forwarded(NonZeroUsize),
    /// Clients choose what they send: a header that something in front has checked, or none.
    Header(HeaderName),
}

impl Config {
    /// Fails with the first mistake in the text: its line, its route, and what to do.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let rules = Rules::parse_beside(text, OWN_TABLES).map_err(|error| error.to_string())?;
        let one = |Mistake { span, .. }: Mistake| {
            format!("line {}: a route is written as [[routes]], with two brackets", line(text, &span))
        };
        let Lines { routes: lines } = from_toml(text).map_err(one)?;
        if lines.is_empty() {
            return Err("there is no route; write [[routes]], and a path, an upstream and limits below it".into());
        }
        let in_route = |Mistake { message, span }: Mistake| {
            let of = lines.iter().rev().find(|route| route.span().start <= span.start);
            let path = of.and_then(|route| route.get_ref().path.as_ref()?.as_str()).unwrap_or("without a path");
            format!("line {}, route {path}: {message}", line(text, &span))
        };
        let Raw { routes } = from_toml(text).map_err(in_route)?;
        let of_line = |Mistake { message, span }: Mistake| format!("line {}: {message}", line(text, &span));
        let RawClients { clients } = from_toml(text).map_err(of_line)?;
        let mut checked = Vec::<Route>::new();
        for (at, route) in routes.iter().enumerate() {
            let same = |other: &Route| other.path.trim_end_matches('/') == route.path.get_ref().0.trim_end_matches('/');
            if let Some(first) = checked.iter().position(same) {
                let first = line(text, &routes[first].path.span());
                let message = format!("line {first} has a route with this path already; remove one of the two");
                return Err(in_route(Mistake::at(&routes[at].path, message)));
            }
            checked.push(route.check(&rules).map_err(in_route)?);
        }
        Ok(Self { routes: checked, clients: Arc::new(clients) })
    }
}

/// A message, and the part of the text that it is about.
struct Mistake {
    message: String,
    span: Range<usize>,
}

impl Mistake {
    fn at<T>(value: &Spanned<T>, message: String) -> Self {
        Self { message, span: value.span() }
    }
}

fn line(text: &str, span: &Range<usize>) -> usize {
    1 + text[..span.start].matches('\n').count()
}

fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    toml::from_str(text).map_err(|error| Mistake {
        message: error.message().trim().replace('\n', "; "),
        span: error.span().unwrap_or_default(),
    })
}

/// Where the routes are, for messages.
#[derive(Deserialize)]
struct Lines {
    #[serde(default)]
    routes: Vec<Spanned<RouteName>>,
}

#[derive(Deserialize)]
struct RouteName {
    path: Option<toml::Value>,
}

#[derive(Deserialize)]
struct Raw {
    routes: Vec<RawRoute>,
}

#[derive(Deserialize)]
struct RawClients {
    #[serde(default)]
    clients: Clients,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRoute {
    path: Spanned<RoutePath>,
    upstream: Target,
    limits: Vec<RawLimit>,
    #[serde(default)]
    headers: Style,
    #[serde(default = "too_many_requests")]
    denial_status: ErrorStatus,
    #[serde(default = "forbidden")]
    missing_key_status: ErrorStatus,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimit {
    rule: Spanned<String>,
    key: Option<KeySource>,
    #[serde(default)]
    on_missing_key: Missing,
    cost: Option<Spanned<u64>>,
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

impl RawRoute {
    fn check(&self, rules: &Rules) -> Result<Route, Mistake> {
        Ok(Route {
            path: self.path.get_ref().0.clone(),
            upstream: self.upstream.clone(),
            limits: self
                .limits
                .iter()
                .map(|limit| limit.check(rules, self.limits.len() == 1))
                .collect::<Result<_, _>>()?,
            headers: match self.headers {
                Style::Ietf => HeaderStyle::Ietf,
                Style::RateLimit => HeaderStyle::RateLimit,
                Style::XRateLimit => HeaderStyle::XRateLimit,
                Style::Gateway => HeaderStyle::Gateway,
                Style::None => HeaderStyle::None,
            },
            denial_status: self.denial_status.0,
            missing_key_status: self.missing_key_status.0,
        })
    }
}

impl RawLimit {
    fn check(&self, rules: &Rules, is_alone: bool) -> Result<RouteLimit, Mistake> {
        let name = self.rule.get_ref();
        let Some(rule) = rules.rule(name) else {
            let message = format!("there is no rule `{name}`; write [rules.{name}] with a count and a unit");
            return Err(Mistake::at(&self.rule, message));
        };
        let beside_another = [&rule, &rule];
        if let Err(error) = Rule::check_together(if is_alone { &beside_another[..1] } else { &beside_another }) {
            let message = format!("rule {error}; take another algorithm, or remove the other limits of the route");
            return Err(Mistake::at(&self.rule, message));
        }
        if let Some(cost) = self.cost.as_ref().filter(|cost| *cost.get_ref() > rule.limit()) {
            let (cost_of_one, limit) = (cost.get_ref(), rule.limit());
            let message = format!("rule `{name}` admits {limit} at most, so no request of cost {cost_of_one} fits");
            return Err(Mistake::at(cost, message));
        }
        let on_missing_key = match self.on_missing_key {
            Missing::Deny => OnMissingKey::Deny,
            Missing::Skip => OnMissingKey::Skip,
            Missing::Shared => OnMissingKey::Shared,
        };
        let cost = self.cost.as_ref().map_or(1, |cost| *cost.get_ref());
        Ok(RouteLimit { rule, key: self.key.clone(), on_missing_key, cost })
    }
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct RoutePath(String);

impl TryFrom<String> for RoutePath {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        let is_below = |own: &str| path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if !path.starts_with('/') {
            return Err(format!("path = \"{path}\" fits no request; write \"/{path}\""));
        }
        if path.contains(['?', '#', '%', ';']) || paths::decoded(&path).is_none() {
            let rule = "write it decoded, without a query, and without empty, `.` or `..` parts";
            return Err(format!("path = \"{path}\" fits no request; {rule}"));
        }
        if is_below("/limits") || is_below("/metrics") {
            return Err(format!("path = \"{path}\" is the gateway's own page; take another path"));
        }
        Ok(Self(path))
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(url: String) -> Result<Self, String> {
        if url == "sample" {
            return Ok(Self::Sample);
        }
        let wrong = |what: &str| format!("upstream = \"{url}\" {what}; write http://host:port or https://host/path");
        let parts = url.parse::<Uri>().map_err(|error| wrong(&format!("is no URL: {error}")))?.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(wrong("has no scheme"));
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(wrong(&format!("has the scheme {scheme}")));
        }
        if authority.as_str().contains('@') {
            return Err(wrong("has a user"));
        }
        if url.contains(['?', '#']) {
            return Err(wrong("has a query"));
        }
        let base = parts.path_and_query.map_or_else(String::new, |path| path.path().trim_end_matches('/').to_owned());
        Ok(Self::Server { scheme, authority, base })
    }
}

impl TryFrom<String> for KeySource {
    type Error = String;

    fn try_from(key: String) -> Result<Self, String> {
        match key.split_once(':') {
            None if key == "client" => Ok(Self::Client),
            None if key == "peer" => Ok(Self::Peer),
            Some(("forwarded", hops)) => hops.parse().map(Self::Forwarded).map_err(|_| {
                format!("key = \"{key}\" has no number of trusted proxies; write \"forwarded:1\", for example")
            }),
            Some(("header", name)) => {
                name.parse().map(Self::Header).map_err(|_| format!("key = \"{key}\" has no name of a header"))
            }
            _ => Err(format!("key = \"{key}\" is not client, peer, forwarded:hops or header:name")),
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "u16")]
struct ErrorStatus(StatusCode);

fn too_many_requests() -> ErrorStatus {
    ErrorStatus(StatusCode::TOO_MANY_REQUESTS)
}

fn forbidden() -> ErrorStatus {
    ErrorStatus(StatusCode::FORBIDDEN)
}

impl TryFrom<u16> for ErrorStatus {
    type Error = String;

    fn try_from(number: u16) -> Result<Self, String> {
        let status = StatusCode::from_u16(number).ok();
        let status = status.filter(|status| status.is_client_error() || status.is_server_error());
        status.map(Self).ok_or_else(|| format!("{number} is no status of an error; take one from 400 to 599"))
    }
}
