//! The layer as middleware of `actix-web`, and a refusal as its response.
//!
//! `actix-web` has an older version of the crate `http`, and bodies and extensions of its own. Heads
//! of requests and responses are copied here.

use std::{
    fmt::Write as _,
    future::{self, Future, poll_fn},
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use actix_web::{
    Error, HttpMessage as _, HttpResponse, ResponseError,
    body::{BodySize, BoxBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
    error::ErrorBadRequest,
    http as old,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version, request, response};

use super::{LimitedBody, RateLimit, RateLimitLayer, gate::Gate, headers::is_limit_field, problem};
use crate::{FromRefusal, RequestPerMinute};

/// Middleware with the same limits as the `tower` layer.
///
/// - [`KeyBy::peer`](super::KeyBy::peer) finds the address of the connection.
/// - [`KeyBy::extension`](super::KeyBy::extension) and [`KeyBy::peer_ip`](super::KeyBy::peer_ip) find
///   the values that an outer middleware inserts with `request.extensions_mut()`. Other functions
///   of a request see such a value only if one of the layer's keys is made of it.
/// - [`RequestHold`](super::RequestHold) is in the extensions of the request.
/// - Limits see the path that `actix-web` finds a route for, which it decodes first: `/%6Cogin` is
///   `/login`. Only what cannot stand in a path is escaped: `/a b` is `/a%20b`.
/// - A request whose head the crate `http` 1 would not accept is answered with `400 Bad Request`.
/// - If the service returns an `Err`, as some middleware does, it passes. All that is
///   [held](super::Limit::settle) is charged then. The errors of handlers and extractors are responses
///   here.
///
/// ```
/// use actix_web::{App, HttpResponse, dev::Service as _, test, web};
/// use ratelimit_runtime::{Limiter, Rule, web::{KeyBy, Limit, RateLimitLayer}};
/// use std::time::Duration;
///
/// const PER_CLIENT: Rule = Rule::new("client", 1, Duration::from_secs(60));
///
/// let layer = RateLimitLayer::new([Limit::new(PER_CLIENT).key(KeyBy::peer())]).limiter(Limiter::in_memory());
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let hello = web::to(|| async { HttpResponse::Ok().body("hello") });
/// let app = test::init_service(App::new().wrap(layer).default_service(hello)).await;
///
/// let request = || test::TestRequest::default().peer_addr("192.0.2.1:80".parse().unwrap()).to_request();
/// assert_eq!(app.call(request()).await.unwrap().status(), 200);
/// assert_eq!(app.call(request()).await.unwrap().status(), 429);
/// # });
/// ```
///
/// The closure of `HttpServer::new` makes an app for each thread. Make the layer outside of it and
/// clone it, as clones share their counters.
impl<S, B> Transform<S, ServiceRequest> for RateLimitLayer
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody,
{
    type Response = ServiceResponse<LimitedBody<B>>;
    type Error = Error;
    type Transform = RateLimit<Rc<S>>;
    type InitError = ();
    type Future = future::Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        future::ready(Ok(RateLimit { service: Rc::new(service), gate: Arc::clone(&self.0) }))
    }
}

impl<S, B> Service<ServiceRequest> for RateLimit<Rc<S>>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody,
{
    type Response = ServiceResponse<LimitedBody<B>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.service.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (service, gate) = (Rc::clone(&self.service), Arc::clone(&self.gate));
        Box::pin(async move {
            let Some(head) = head_of_request(&request, &gate) else {
                return Err(ErrorBadRequest("the head of the request is malformed"));
            };
            let engine = gate.engine();
            let waits = gate.waits(&engine);
            let mut admission = match gate.admit(engine, &head).await {
                Ok(admission) => admission,
                Err(refused) => return Ok(request.into_response(refusal(refused.map(LimitedBody::of_refusal)))),
            };
            if waits {
                poll_fn(|context| service.poll_ready(context)).await?;
            }
            if let Some(hold) = admission.hold(|| request.extensions_mut().remove()) {
                request.extensions_mut().insert(hold);
            }
            let mut response = service.call(request).await?;
            let mut head = head_of_response(response.response());
            let length = match response.response().body().size() {
                BodySize::None => Some(0),
                BodySize::Sized(length) => Some(length),
                BodySize::Stream => None,
            };
            let hold = admission.finish(&mut head, length);
            write_back(&head.headers, response.headers_mut());
            Ok(response.map_body(|_, body| LimitedBody::of_service(body, hold)))
        })
    }
}

/// The head of a request. `None` if it is malformed.
fn head_of_request(request: &ServiceRequest, gate: &Gate) -> Option<request::Parts> {
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = Method::from_bytes(request.method().as_str().as_bytes()).ok()?;
    head.uri = routed_uri(request)?;
    head.version = match request.version() {
        old::Version::HTTP_09 => Version::HTTP_09,
        old::Version::HTTP_10 => Version::HTTP_10,
        old::Version::HTTP_2 => Version::HTTP_2,
        old::Version::HTTP_3 => Version::HTTP_3,
        _ => Version::HTTP_11,
    };
    for (name, value) in request.headers() {
        let (name, value) = field(name, value)?;
        head.headers.append(name, value);
    }
    if let Some(peer) = request.peer_addr() {
        head.extensions.insert::<SocketAddr>(peer);
    }
    let extensions = request.extensions();
    gate.limits.iter().for_each(|limit| limit.import(&extensions, &mut head.extensions));
    drop(extensions);
    Some(head)
}

/// The URI of a request, with the path that `actix-web` finds a route for. It decodes escapes first, and
/// middleware may have changed the path.
fn routed_uri(request: &ServiceRequest) -> Option<Uri> {
    let uri: Uri = request.uri().to_string().parse().ok()?;
    let path = escaped_once(request.match_info().as_str());
    if path == uri.path() {
        return Some(uri);
    }
    let mut parts = uri.into_parts();
    let path_and_query = match parts.path_and_query.as_ref()?.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    parts.path_and_query = Some(path_and_query.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// A path with an escape for each byte that needs one, and for no other: equal paths have equal texts.
fn escaped_once(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
    let hex = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut text, mut rest) = (String::with_capacity(path.len()), path.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        let mut byte = *first;
        // An escape that is left in a path.
        if let (b'%', [high, low, after @ ..]) = (byte, after)
            && let (Some(high), Some(low)) = (hex(high), hex(low))
        {
            (byte, rest) = (high << 4 | low, after);
        }
        if is_plain(byte) || *first == b'/' {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn field(name: &old::header::HeaderName, value: &old::header::HeaderValue) -> Option<(HeaderName, HeaderValue)> {
    Some((name.as_str().parse().ok()?, HeaderValue::from_bytes(value.as_bytes()).ok()?))
}

/// The head of a response. Malformed fields are left out.
fn head_of_response<B>(response: &HttpResponse<B>) -> response::Parts {
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = StatusCode::from_u16(response.status().as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    head.headers.extend(response.headers().iter().filter_map(|(name, value)| field(name, value)));
    if let Some(refused) = response.extensions().get::<RequestPerMinute>() {
        head.extensions.insert(refused.clone());
    }
    head
}

/// Replaces the fields of limits.
fn write_back(from: &HeaderMap, to: &mut old::header::HeaderMap) {
    to.retain(|name, _| !is_limit_field(name.as_str()));
    append(from.iter().filter(|(name, _)| is_limit_field(name.as_str())), to);
}

fn append<'a>(from: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>, to: &mut old::header::HeaderMap) {
    for (name, value) in from {
        let name = old::header::HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, old::header::HeaderValue::from_bytes(value.as_bytes())) {
            to.append(name, value);
        }
    }
}

fn status(of: StatusCode) -> old::StatusCode {
    old::StatusCode::from_u16(of.as_u16()).unwrap_or(old::StatusCode::TOO_MANY_REQUESTS)
}

/// The response to a refusal. The server leaves its body out if the request was a `HEAD`.
fn refusal<B>(response: Response<B>) -> HttpResponse<B> {
    let (mut head, body) = response.into_parts();
    let mut response = HttpResponse::with_body(status(head.status), body);
    append(head.headers.iter(), response.headers_mut());
    if let Some(refused) = head.extensions.remove::<RequestPerMinute>() {
        response.extensions_mut().insert(refused);
    }
    response
}

impl<B: MessageBody> MessageBody for LimitedBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        match self.parts() {
            Ok(service) => service.size(),
            Err(refusal) => BodySize::Sized(refusal.len() as u64),
        }
    }

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, B::Error>>> {
        self.poll_part(|service| service.poll_next(context), |data| data, |data| Some(data), |_, _| false)
    }
}

/// The response to a refused request, see [`web`](crate::web). Annotated handlers return it.
///
/// ```
/// use actix_web::{HttpResponse, ResponseError as _};
/// use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};
///
/// #[limit_request_per_time(prefix = "greet", ttl = 1, unit = Minutes, count = 1)]
/// async fn greet() -> Result<HttpResponse, RequestPerMinute> {
///     Ok(HttpResponse::Ok().body("hello"))
/// }
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(Limiter::in_memory().scope(async {
/// assert_eq!(greet().await.unwrap().status(), 200);
/// let response = greet().await.unwrap_err().error_response();
/// assert_eq!(response.status(), 429);
/// assert_eq!(response.headers().get("Retry-After").unwrap(), "60");
/// # }));
/// ```
impl ResponseError for RequestPerMinute {
    fn status_code(&self) -> old::StatusCode {
        status(problem::status(self.cause()))
    }

    fn error_response(&self) -> HttpResponse {
        refusal(problem::whole_response(self.clone()).map(BoxBody::new))
    }
}

/// An annotated handler may return an `HttpResponse`.
#[diagnostic::do_not_recommend]
impl FromRefusal for HttpResponse {
    fn from_refusal(refused: RequestPerMinute) -> Self {
        refused.error_response()
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use actix_web::{dev::Url, test::TestRequest};

    use super::*;

    /// However its client writes it.
    #[test]
    fn a_path_has_one_text() {
        for (sent, path) in [
            ("/login", "/login"),
            ("/%6Cog%69n", "/login"),
            ("/%6cogin?next=%6C", "/login?next=%6C"),
            ("/a%20b%3Fc%23d", "/a%20b%3Fc%23d"),
            ("/gr%c3%b6%C3%9Fe", "/gr%C3%B6%C3%9Fe"),
            ("/a%2fb%2Fc/d", "/a%2Fb%2Fc/d"),
            ("/1%2B1=%32", "/1+1=2"),
            ("/100%/100%25", "/100%25/100%25"),
            // Decoded twice: once for the route, and once more for the handler.
            ("/%%36Cogin", "/login"),
            ("/a|b", "/a%7Cb"),
            ("//", "//"),
            ("*", "*"),
            ("http://localhost/%6Cogin", "http://localhost/login"),
        ] {
            let request = TestRequest::with_uri(sent).to_srv_request();
            assert_eq!(routed_uri(&request).unwrap().to_string(), path, "{sent}");
        }
        let mut moved = TestRequest::with_uri("/a?b").to_srv_request();
        moved.match_info_mut().set(Url::new("/c?d".parse().unwrap()));
        assert_eq!(routed_uri(&moved).unwrap(), "/c?b", "by middleware");
    }
}
