//! A layer with limits in front of any `tower` service.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, header::CONTENT_LENGTH};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{HeaderStyle, Limit, LimitedBody, RefusedRequest, SettleBy, gate::Gate};
use crate::{Limiter, OnStoreError, engine::options::OnLimit};

/// Checks limits before a request reaches a service, and answers it if a limit refuses.
///
/// The decision is made before the request's body is read. Several limits are one decision: all are
/// charged, or none.
///
/// A response of the service gets the header fields of the limits: see [`HeaderStyle`]. A refusal is
/// a response as described in [`web`](crate::web), unless
/// [`on_refusal`](RateLimitLayer::on_refusal) makes another one. For gRPC and gRPC-Web it is always a
/// status:
/// `RESOURCE_EXHAUSTED` or `UNAVAILABLE` with a `google.rpc.RetryInfo`, `PERMISSION_DENIED` or
/// `INTERNAL`. A gRPC call is a `POST` of type `application/grpc`, `application/grpc-web` or
/// `application/grpc-web-text`, optionally followed by `+` and a format.
///
/// The extensions of a refusal's response have the
/// [`RequestPerMinute`](crate::RequestPerMinute), for outer layers that log or count refusals.
///
/// The layer is a layer of `tower`, for example for `axum`, `tonic` and `hyper`. With the feature
/// `actix-web` it is middleware for `actix-web`, too.
///
/// A place of [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) is held until the body of the
/// response ends. For upgraded connections, see [`RequestHold`](super::RequestHold).
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
pub struct RateLimitLayer(pub(super) Arc<Gate>);

impl RateLimitLayer {
    /// A layer with these limits, all of which a request has to pass. By default it uses
    /// [`Limiter::current`], so [`Limiter::scope`] applies to it in tests.
    ///
    /// # Panics
    ///
    /// If two limits are [settled](Limit::settle) by different [`SettleBy`]: the cost that a
    /// response tells is that of all settled limits. If a limit without [`Limit::cost`] and [`Limit::count`] is
    /// settled with a `max` above the count of its rule: no request would ever fit.
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        let limits: Vec<_> = limits.into_iter().collect();
        for limit in &limits {
            limit.check();
        }
        let mut settled = limits.iter().filter_map(Limit::settle_by);
        let is_one_kind = settled.next().is_none_or(|first: &SettleBy| settled.all(|other| other.is_same(first)));
        assert!(
            is_one_kind,
            "two limits of a layer are settled by different `SettleBy`; put them into two layers, or clone one"
        );
        Self(Arc::new(Gate {
            limits,
            limiter: None,
            style: None,
            on_limit: OnLimit::Reject,
            on_store_error: None,
            on_refusal: None,
        }))
    }

    /// Uses this limiter.
    pub fn limiter(self, limiter: Limiter) -> Self {
        self.with(|gate| gate.limiter = Some(limiter))
    }

    /// Uses this style of header fields instead of the [installed](HeaderStyle::install) one.
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|gate| gate.style = Some(style))
    }

    /// Lets a request wait for up to `longest` if a limit is reached, for room or for a place,
    /// instead of refusing it.
    ///
    /// Requests of one counter, with one count, are served in the order of their arrival, within this process. The
    /// wait, the refusals and the effect of a client that disconnects are those of
    /// [`Limiter::acquire_within`]. At most [`Builder::max_waiting`](crate::Builder::max_waiting)
    /// requests wait for each counter, so with a limit by key as many for each key; each keeps its
    /// connection. To bound them all, bound the connections of the server.
    ///
    /// With `actix-web`, a client of HTTP/1 that disconnects keeps its place in the line and is charged,
    /// unless the server is built with `HttpServer::h1_allow_half_closed(false)`: by default the server
    /// goes on with a request whose client has closed its side of the connection.
    ///
    /// A request that waits does not use up the capacity of the service: the service is polled ready
    /// after the wait. If it then fails, or the client leaves before it is ready, the request stays charged. So it
    /// is in a layer that may hold up requests for another reason: a slot of a
    /// [`LeakyBucket`](crate::Algorithm::LeakyBucket), [`OnStoreError::Wait`], or a look-up.
    ///
    /// ```
    /// # use ratelimit_runtime::{Rule, web::{Limit, RateLimitLayer}};
    /// # use std::time::Duration;
    /// # const RULE: Rule = Rule::new("item", 10, Duration::from_secs(1));
    /// let layer = RateLimitLayer::new([Limit::new(RULE)]).wait(Duration::from_secs(5));
    /// ```
    pub fn wait(self, longest: Duration) -> Self {
        self.with(|gate| gate.on_limit = OnLimit::Wait(Some(longest)))
    }

    /// Makes the response to a refused request, in place of the one that [`web`](crate::web)
    /// describes: for example one with another status, or a page.
    ///
    /// The header fields of the refusal are added afterwards: `Retry-After`, `Cache-Control` and those
    /// of the [`HeaderStyle`]. Fields of the response with these names are replaced. A `HEAD` request
    /// gets no body. Refusals of gRPC calls stay as they are.
    ///
    /// ```
    /// use http::{Response, StatusCode};
    /// use ratelimit_runtime::{Cause, Rule, web::{Limit, RateLimitLayer}};
    /// # use std::time::Duration;
    /// # const RULE: Rule = Rule::new("item", 10, Duration::from_secs(1));
    ///
    /// // Another status.
    /// RateLimitLayer::new([Limit::new(RULE)]).on_refusal(|refused| match refused.refusal().cause() {
    ///     Cause::MissingKey => refused.problem(StatusCode::UNAUTHORIZED),
    ///     _ => refused.problem(refused.status()),
    /// });
    ///
    /// // Another body.
    /// RateLimitLayer::new([Limit::new(RULE)]).on_refusal(|refused| {
    ///     let mut page = Response::new("<h1>Slow down</h1>");
    ///     *page.status_mut() = refused.status();
    ///     page
    /// });
    /// ```
    pub fn on_refusal<B: Into<Bytes>>(
        self,
        respond: impl Fn(RefusedRequest<'_>) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.with(|gate| gate.on_refusal = Some(Arc::new(move |refused| respond(refused).map(Into::into))))
    }

    /// Sets the failure policy, instead of the limiter's.
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        self.with(|gate| gate.on_store_error = Some(on_store_error))
    }

    fn with(mut self, change: impl FnOnce(&mut Gate)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, service: S) -> RateLimit<S> {
        RateLimit { service, gate: Arc::clone(&self.0) }
    }
}

/// A service behind a [`RateLimitLayer`].
///
/// It is ready when the service is. A refused request uses up that readiness without calling the
/// service.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    pub(super) service: S,
    pub(super) gate: Arc<Gate>,
}

impl<S, I, O> Service<Request<I>> for RateLimit<S>
where
    S: Service<Request<I>, Response = Response<O>> + Clone + Send + 'static,
    S::Future: Send,
    I: Send + 'static,
    O: Body<Data = Bytes>,
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
        let gate = Arc::clone(&self.gate);
        Box::pin(async move {
            let engine = gate.engine();
            let waits = gate.waits(&engine);
            if waits {
                // Its readiness may be a share of the service's capacity, which others use meanwhile.
                service = service.clone();
            }
            let (mut head, body) = request.into_parts();
            let mut admission = match gate.admit(engine, &head).await {
                Ok(admission) => admission,
                Err(refused) => return Ok(refusal(refused, &head.method)),
            };
            if waits {
                poll_fn(|context| service.poll_ready(context)).await?;
            }
            if let Some(hold) = admission.hold(|| head.extensions.remove()) {
                head.extensions.insert(hold);
            }
            let (mut head, body) = service.call(Request::from_parts(head, body)).await?.into_parts();
            let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
            let hold = admission.finish(&mut head, length);
            Ok(Response::from_parts(head, LimitedBody::of_service(body, hold)))
        })
    }
}

/// The response to a refused request. That to a `HEAD` request has the length of the body, and none.
fn refusal<O>(mut response: Response<Bytes>, method: &Method) -> Response<LimitedBody<O>> {
    if method == Method::HEAD {
        let length = mem::take(response.body_mut()).len();
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    response.map(LimitedBody::of_refusal)
}
