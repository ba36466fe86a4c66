//! A limit in front of any service of HTTP requests.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    HeaderStyle, Limit, grpc,
    headers::Told,
    problem::{self, Problem},
};
use crate::{
    Cause, Limiter, OnStoreError, Permit, RequestPerMinute,
    call::{Asked, Call, Manner, OnLimit},
};

/// Asks limits before a request reaches a service, and answers in its place if one refuses.
///
/// A limiter decides before the request's body is read. Several limits are one decision: all are charged, or none is. A
/// response of the service gets the header fields of the tightest one; a refusal is the response that [`web`](crate::web) describes, or
/// for a gRPC request a status: `RESOURCE_EXHAUSTED` with a `google.rpc.RetryInfo`, `PERMISSION_DENIED`, `UNAVAILABLE` or `INTERNAL`.
///
/// Clones of the layer and of its services count together.
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
/// let limits = [Limit::new(PER_CLIENT).key(KeyBy::header("x-api-key".parse().unwrap())), Limit::new(ALL)];
/// let layer = RateLimitLayer::new(limits).limiter(Limiter::in_memory());
/// let mut service = ServiceBuilder::new().layer(layer).service(service_fn(hello));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let request = || Request::builder().header("x-api-key", "4711").body(()).unwrap();
/// assert_eq!(service.call(request()).await.unwrap().status(), 200);
/// assert_eq!(service.call(request()).await.unwrap().status(), 429);
/// assert_eq!(service.call(Request::new(())).await.unwrap().status(), 403); // no key
/// # });
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until a service is put behind it"]
pub struct RateLimitLayer(Arc<Settings>);

#[derive(Clone, Debug)]
struct Settings {
    limits: Vec<Limit>,
    limiter: Option<Limiter>,
    style: Option<HeaderStyle>,
    missing_key: StatusCode,
    on_store_error: Option<OnStoreError>,
}

impl RateLimitLayer {
    /// These limits, all of which a request has to pass, by the process-wide limiter.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self(Arc::new(Settings {
            limits: limits.into_iter().collect(),
            limiter: None,
            style: None,
            missing_key: problem::status(Cause::MissingKey),
            on_store_error: None,
        }))
    }

    /// By this limiter.
    pub fn limiter(self, limiter: Limiter) -> Self {
        self.with(|settings| settings.limiter = Some(limiter))
    }

    /// With these header fields instead of those that are [installed](HeaderStyle::install).
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|settings| settings.style = Some(style))
    }

    /// The status for a request that has no key where one is needed. 403 if not set.
    pub fn missing_key_status(self, status: StatusCode) -> Self {
        self.with(|settings| settings.missing_key = status)
    }

    /// What happens to a request when the store cannot decide, instead of what the limiter says.
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        self.with(|settings| settings.on_store_error = Some(on_store_error))
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, service: S) -> RateLimit<S> {
        RateLimit { service, settings: Arc::clone(&self.0) }
    }
}

/// A service behind a [`RateLimitLayer`].
///
/// It is ready when the service is; a request that is refused has taken the service's readiness and leaves it unused.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    service: S,
    settings: Arc<Settings>,
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
        // The one that is ready goes with the request.
        let next = self.service.clone();
        let mut service = mem::replace(&mut self.service, next);
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            match settings.decide(&head).await {
                Ok(permit) => {
                    let response = service.call(Request::from_parts(head, body)).await?;
                    let mut response = response.map(LimitedBody::of_service);
                    if let Some((permit, name)) = permit {
                        if let Some(told) = Told::by_permit(&permit, name) {
                            settings.style().write(&told, response.headers_mut());
                        }
                        response.body_mut().held = permit.holds().then_some(permit);
                    }
                    Ok(response)
                }
                Err(refused) => Ok(settings.refuse(&refused, &head)),
            }
        })
    }
}

impl Settings {
    /// The permit, and the name of the rule that it tells of; nothing if no limit applies.
    async fn decide(&self, request: &Parts) -> Result<Option<(Permit, &'static str)>, RequestPerMinute> {
        let mut asked: Vec<Asked> = Vec::with_capacity(self.limits.len());
        for limit in &self.limits {
            asked.extend(limit.ask(request).await);
        }
        let Some(only) = asked.first().map(|asked| asked.rule.prefix()) else { return Ok(None) };
        let limiter = self.limiter.as_ref().map_or_else(Limiter::current, Limiter::hold);
        let manner = Manner::new(OnLimit::Reject, self.on_store_error);
        let permit = match asked.pop() {
            Some(Asked { rule, key, cost, .. }) if asked.is_empty() => {
                Call::decide_one(limiter, &rule, key, cost, manner).await
            }
            last => {
                asked.extend(last);
                Call::decide(limiter, asked, manner, OnLimit::Reject).await
            }
        };
        permit.map(|permit| {
            let name = permit.tightest().map(|(rule, _)| rule.prefix()).filter(|name| !name.is_empty());
            Some((permit, name.unwrap_or(only)))
        })
    }

    fn refuse<O>(&self, refused: &RequestPerMinute, request: &Parts) -> Response<LimitedBody<O>> {
        let style = self.style();
        let (status, headers, body) = if grpc::is_asked_for(request) {
            (StatusCode::OK, grpc::trailers_only(refused, style), String::new())
        } else {
            let status = match refused.cause() {
                Cause::MissingKey => self.missing_key,
                other => problem::status(other),
            };
            let Problem { headers, body } = Problem::new(refused, style, status);
            (status, headers, body)
        };
        let mut response = Response::new(LimitedBody { service: None, refusal: Some(body.into()), held: None });
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        response
    }

    fn style(&self) -> HeaderStyle {
        self.style.unwrap_or_else(HeaderStyle::installed)
    }
}

pin_project! {
    /// The body of a response from behind a [`RateLimitLayer`]: that of the service, or a refusal's.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        service: Option<B>,
        refusal: Option<Bytes>,
        // What the request holds until its response is over.
        held: Option<Permit>,
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
