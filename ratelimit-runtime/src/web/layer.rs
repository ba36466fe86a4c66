//! A layer with limits in front of any HTTP service.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Extensions, Method, Request, Response, StatusCode, header::CONTENT_LENGTH, request::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    HeaderStyle, Limit, grpc,
    headers::QuotaStatus,
    problem::{self, Problem},
};
use crate::{
    Cause, Limiter, OnStoreError, Permit, RequestPerMinute,
    engine::{
        acquire::Acquire,
        request::{AcquireOptions, ChargeRequest, OnLimit},
    },
    observe::LogThrottle,
};

/// Checks limits before a request reaches a service, and answers it if a limit refuses.
///
/// The decision is made before the request's body is read. Several limits are one decision: all are
/// charged, or none.
///
/// A response of the service gets the header fields of the most restrictive limit. A refusal is a
/// response as described in [`web`](crate::web), or for gRPC and gRPC-Web a status:
/// `RESOURCE_EXHAUSTED` or `UNAVAILABLE` with a `google.rpc.RetryInfo`, `PERMISSION_DENIED` or
/// `INTERNAL`. A gRPC call is a `POST` of type `application/grpc`, `application/grpc-web` or
/// `application/grpc-web-text`, optionally followed by `+` and a format.
///
/// A place of [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) is held until the body of the
/// response ends. For upgraded connections, see [`RequestHold`].
///
/// Clones of the layer and of its services share their counters.
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use ratelimit_runtime::{Limiter, Rule, web::{KeyBy, Limit, RateLimitLayer}};
/// use std::{convert::Infallible, time::Duration};
/// use tower::{Service, ServiceBuilder, service_fn};
///
/// const PER_CLIENT: Rule = Rule::new("client", 1, Duration::from_secs(60));
/// const ALL: Rule = Rule::new("all", 10_000, Duration::from_secs(1));
///
/// async fn hello(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
///     Ok(Response::new("hello".into()))
/// }
///
/// /// Inserted into the request by an outer layer, which authenticates.
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// let limits = [Limit::new(PER_CLIENT).key(KeyBy::extension(|user: &UserId| user.0)), Limit::new(ALL)];
/// let layer = RateLimitLayer::new(limits).limiter(Limiter::in_memory());
/// let mut service = ServiceBuilder::new().layer(layer).service(service_fn(hello));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let request = || Request::builder().extension(UserId(4711)).body(()).unwrap();
/// assert_eq!(service.call(request()).await.unwrap().status(), 200);
/// assert_eq!(service.call(request()).await.unwrap().status(), 429);
/// assert_eq!(service.call(Request::new(())).await.unwrap().status(), 403); // no key
/// # });
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct RateLimitLayer(Arc<LayerConfig>);

#[derive(Clone, Debug)]
struct LayerConfig {
    limits: Vec<Limit>,
    limiter: Option<Limiter>,
    style: Option<HeaderStyle>,
    missing_key: StatusCode,
    on_store_error: Option<OnStoreError>,
}

impl RateLimitLayer {
    /// A layer with these limits, all of which a request has to pass. By default it uses the
    /// process-wide limiter.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self(Arc::new(LayerConfig {
            limits: limits.into_iter().collect(),
            limiter: None,
            style: None,
            missing_key: problem::status(Cause::MissingKey),
            on_store_error: None,
        }))
    }

    /// Uses this limiter.
    pub fn limiter(self, limiter: Limiter) -> Self {
        self.with(|config| config.limiter = Some(limiter))
    }

    /// Uses this style of header fields instead of the [installed](HeaderStyle::install) one.
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|config| config.style = Some(style))
    }

    /// Sets the status for a request without a required key. By default 403.
    pub fn missing_key_status(self, status: StatusCode) -> Self {
        self.with(|config| config.missing_key = status)
    }

    /// Sets the failure policy, instead of the limiter's.
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        self.with(|config| config.on_store_error = Some(on_store_error))
    }

    fn with(mut self, change: impl FnOnce(&mut LayerConfig)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, service: S) -> RateLimit<S> {
        RateLimit { service, config: Arc::clone(&self.0) }
    }
}

/// A service behind a [`RateLimitLayer`].
///
/// It is ready when the service is. A refused request uses up that readiness without calling the
/// service.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    service: S,
    config: Arc<LayerConfig>,
}

impl<S, I, O> Service<Request<I>> for RateLimit<S>
where
    S: Service<Request<I>, Response = Response<O>> + Clone + Send + 'static,
    S::Future: Send,
    I: Send + 'static,
{
    type Response = Response<LimitedBody<O>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        // The ready instance takes the request.
        let next = self.service.clone();
        let mut service = mem::replace(&mut self.service, next);
        let config = Arc::clone(&self.config);
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            match config.decide(&head).await {
                Ok(permit) => {
                    let status = permit.as_ref().and_then(|(permit, name)| QuotaStatus::of_permit(permit, name));
                    let holding = permit.map(|(permit, _)| permit).filter(Permit::holds);
                    let hold = holding.map(|permit| RequestHold::add(permit, &mut head.extensions));
                    let is_connect = head.method == Method::CONNECT;
                    let response = service.call(Request::from_parts(head, body)).await?;
                    let mut response = response.map(LimitedBody::of_service);
                    if let Some(status) = status {
                        config.write_headers(&status, &mut response);
                    }
                    if let Some(hold) = hold {
                        hold.check(is_connect, response.status());
                        response.body_mut().held = Some(hold);
                    }
                    Ok(response)
                }
                Err(refused) => Ok(config.refuse(&refused, &head)),
            }
        })
    }
}

impl LayerConfig {
    /// The permit, and the name of its most restrictive rule. `None` if no limit applies.
    async fn decide(&self, request: &Parts) -> Result<Option<(Permit, &'static str)>, RequestPerMinute> {
        let mut asked: Vec<ChargeRequest> = Vec::with_capacity(self.limits.len());
        for limit in &self.limits {
            asked.extend(limit.ask(request).await);
        }
        let Some(only) = asked.first().map(|asked| asked.rule.prefix()) else { return Ok(None) };
        let limiter = self.limiter.as_ref().map_or_else(Limiter::current_engine, Limiter::engine_ref);
        let manner = AcquireOptions::new(OnLimit::Reject, self.on_store_error);
        let permit = match asked.pop() {
            Some(ChargeRequest { rule, key, cost, .. }) if asked.is_empty() => {
                Acquire::single(limiter, &rule, key, cost, manner).await
            }
            last => {
                asked.extend(last);
                Acquire::all(limiter, asked, manner, OnLimit::Reject).await
            }
        };
        permit.map(|permit| {
            let name = permit.most_restrictive().map(|(rule, _)| rule.prefix()).filter(|name| !name.is_empty());
            Some((permit, name.unwrap_or(only)))
        })
    }

    fn refuse<O>(&self, refused: &RequestPerMinute, request: &Parts) -> Response<LimitedBody<O>> {
        let style = self.style();
        let (status, mut headers, mut body) = if let Some(media_type) = grpc::media_type(request) {
            (StatusCode::OK, grpc::trailers_only(refused, style, &media_type), String::new())
        } else {
            let status = match refused.cause() {
                Cause::MissingKey => self.missing_key,
                other => problem::status(other),
            };
            let Problem { headers, body } = Problem::new(refused, style, status);
            (status, headers, body)
        };
        if request.method == Method::HEAD {
            // The length of the response to a GET.
            headers.insert(CONTENT_LENGTH, body.len().into());
            body.clear();
        }
        let mut response = Response::new(LimitedBody { service: None, refusal: Some(body.into()), held: None });
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        response
    }

    /// Adds the header fields of a charged rule. A refusal of an inner layer keeps its own.
    fn write_headers<O>(&self, status: &QuotaStatus<'_>, response: &mut Response<O>) {
        let style = self.style();
        if !(problem::is_refusal(response) && style.is_written(response.headers())) {
            style.write(status, response.headers_mut());
        }
    }

    fn style(&self) -> HeaderStyle {
        self.style.unwrap_or_else(HeaderStyle::installed)
    }
}

/// The place that a request holds by [`Algorithm::Concurrent`](crate::Algorithm::Concurrent), in
/// the extensions of the request.
///
/// The place is held until the body of the response ends and all clones of this are dropped. The
/// body of an upgrade (`101 Switching Protocols`, or a `CONNECT`) ends at once. A service that
/// upgrades a connection, for example to a WebSocket, must therefore keep a clone while it uses the
/// connection. If it does not, the log has a warning.
///
/// ```
/// use http::{Request, Response};
/// use ratelimit_runtime::web::RequestHold;
///
/// async fn chat(mut request: Request<()>) -> Response<()> {
///     let hold = request.extensions_mut().remove::<RequestHold>();
///     tokio::spawn(async move {
///         // Uses the upgraded connection until it is closed, and then frees the place.
///         drop(hold);
///     });
///     Response::builder().status(101).body(()).unwrap()
/// }
/// ```
///
/// An `axum` handler takes it as `Option<Extension<RequestHold>>`.
#[derive(Clone)]
#[must_use = "the place is freed when all clones of this are dropped"]
pub struct RequestHold(Arc<LayerHold>);

/// The permit of one layer, and the holds of outer layers.
struct LayerHold {
    _permit: Permit,
    _outer: Option<RequestHold>,
}

impl RequestHold {
    fn add(permit: Permit, to: &mut Extensions) -> Self {
        let hold = Self(Arc::new(LayerHold { _permit: permit, _outer: to.remove() }));
        to.insert(hold.clone());
        hold
    }

    /// Warns about a place that is freed before the upgraded connection ends.
    fn check(&self, is_connect: bool, status: StatusCode) {
        static LOGGED: LogThrottle = LogThrottle::new();
        let is_upgrade = status == StatusCode::SWITCHING_PROTOCOLS || is_connect && status.is_success();
        if is_upgrade && Arc::strong_count(&self.0) == 1 && LOGGED.allow() {
            tracing::warn!(
                "the place of an upgraded connection is freed at once, as the service keeps no `RequestHold`"
            );
        }
    }
}

impl fmt::Debug for RequestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHold").finish_non_exhaustive()
    }
}

pin_project! {
    /// The response body of a [`RateLimitLayer`]: the service's, or that of a refusal.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        service: Option<B>,
        refusal: Option<Bytes>,
        held: Option<RequestHold>,
    }
}

impl<B> LimitedBody<B> {
    fn of_service(body: B) -> Self {
        Self { service: Some(body), refusal: None, held: None }
    }
}

impl<B: Default> Default for LimitedBody<B> {
    fn default() -> Self {
        Self::of_service(B::default())
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let body = self.project();
        match body.service.as_pin_mut() {
            Some(service) => service.poll_frame(context),
            None => Poll::Ready(body.refusal.take().filter(|text| !text.is_empty()).map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.service {
            Some(service) => service.is_end_stream(),
            None => self.refusal.as_ref().is_none_or(Bytes::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.service {
            Some(service) => service.size_hint(),
            None => SizeHint::with_exact(self.refusal.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
