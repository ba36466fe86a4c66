//! One suite for all servers: each test sends the same requests to a service of `axum` and to one of `actix-web`, which
//! have the same limits, and expects the same answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::Mutex;
use std::thread;

use actix_web::dev::ServerHandle;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::{self, StreamExt as _};
use http::HeaderMap;
use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
use reqwest::{Client, RequestBuilder};

use super::*;

mod counts;
mod features;
mod keys;
mod refusals;
mod settlements;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Axum,
    Actix,
}

const KINDS: [Kind; 2] = [Kind::Axum, Kind::Actix];

/// Inserted by middleware, from the field `x-user-id`.
#[derive(Clone)]
struct UserId(String);

/// A part of a body.
#[derive(Clone, Debug)]
enum Part {
    Text(String),
    /// Nothing of a cost, again and again.
    Forever,
    Failure,
}

/// The users whose responses are being sent.
static OPEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn is_open(user: &str) -> bool {
    OPEN.lock().unwrap().contains(user)
}

/// The number of requests of each user that are in progress, and of those that have reached a handler.
static REQUESTS: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::new(BTreeMap::new());

/// A request in [`REQUESTS`], until it is dropped: also by a server whose client has left.
struct InProgress(String);

impl InProgress {
    fn of(user: &[u8]) -> Self {
        let user = String::from_utf8_lossy(user).into_owned();
        REQUESTS.lock().unwrap().entry(user.clone()).or_default().0 += 1;
        Self(user)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        REQUESTS.lock().unwrap().get_mut(&self.0).unwrap().0 -= 1;
    }
}

/// The requests of a user that are in progress, and those that have reached a handler.
fn requests(user: &str) -> (u64, u64) {
    REQUESTS.lock().unwrap().get(user).copied().unwrap_or_default()
}

fn hello(headers: &HeaderMap) -> &'static str {
    if let Some(user) = headers.get("x-user") {
        REQUESTS.lock().unwrap().entry(user.to_str().unwrap().to_owned()).or_default().1 += 1;
    }
    "hello"
}

/// In [`OPEN`], until it is dropped.
struct OpenBody(String);

impl Drop for OpenBody {
    fn drop(&mut self) {
        OPEN.lock().unwrap().remove(&self.0);
    }
}

/// The parts of the body that a request asks for: `x-parts: tokens=3|tokens=4|forever`.
fn parts(headers: &HeaderMap) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static + use<> {
    let user = headers.get("x-user").map(|user| user.to_str().unwrap().to_owned()).unwrap_or_default();
    OPEN.lock().unwrap().insert(user.clone());
    let open = OpenBody(user);
    let parts = headers.get("x-parts").map(|parts| parts.to_str().unwrap().to_owned()).unwrap_or_default();
    let parts: Vec<_> = parts
        .split('|')
        .map(|part| match part {
            "forever" => Part::Forever,
            "failure" => Part::Failure,
            text => Part::Text(text.to_owned()),
        })
        .collect();
    stream::iter(parts)
        .flat_map(|part| match part {
            Part::Text(text) => stream::once(async { Ok(Bytes::from(text)) }).boxed(),
            Part::Failure => stream::once(async { Err(std::io::Error::other("broken")) }).boxed(),
            Part::Forever => stream::repeat(())
                .then(|()| async {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Ok(Bytes::from_static(b"."))
                })
                .boxed(),
        })
        .inspect(move |_| {
            let _ = &open;
        })
}

#[limit_request_per_time(prefix = "annotated", ttl = 1, unit = Minutes, count = 1)]
async fn annotated() -> Result<&'static str, RequestPerMinute> {
    Ok("hello")
}

/// A service on a port of its own, until it is dropped.
struct Service {
    url: String,
    client: Client,
    stop: Stop,
}

enum Stop {
    Axum(tokio::task::JoinHandle<()>),
    Actix(ServerHandle),
}

impl Drop for Service {
    fn drop(&mut self) {
        match &self.stop {
            Stop::Axum(task) => task.abort(),
            Stop::Actix(server) => drop(server.stop(false)),
        }
    }
}

impl Service {
    fn start(kind: Kind, layer: RateLimitLayer) -> Self {
        Self::start_with(kind, layer, RateLimitLayer::new([]))
    }

    /// Behind two layers.
    fn start_with(kind: Kind, inner: RateLimitLayer, outer: RateLimitLayer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = match kind {
            Kind::Axum => Stop::Axum(start_axum(listener, inner, outer)),
            Kind::Actix => Stop::Actix(start_actix(listener, inner, outer)),
        };
        let client = Client::builder().no_proxy().build().unwrap();
        Self { url, client, stop }
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.url))
    }

    async fn status(&self, request: RequestBuilder) -> u16 {
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let _ = response.bytes().await;
        status
    }

    /// The statuses of so many equal requests.
    async fn statuses(&self, number: usize, request: impl Fn() -> RequestBuilder) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..number {
            statuses.push(self.status(request()).await);
        }
        statuses
    }
}

fn start_axum(listener: TcpListener, inner: RateLimitLayer, outer: RateLimitLayer) -> tokio::task::JoinHandle<()> {
    use axum::extract::Path;
    use axum::middleware::{Next, from_fn};
    use axum::response::IntoResponse;
    use axum::routing::get;

    async fn insert_user(mut request: Request, next: Next) -> Response {
        let _in_progress = request.headers().get("x-user").map(|user| InProgress::of(user.as_bytes()));
        if let Some(user) = request.headers().get("x-user-id") {
            let user = UserId(user.to_str().unwrap().to_owned());
            request.extensions_mut().insert(user);
        }
        let mut response = next.run(request).await;
        if let Some(refused) = response.extensions().get::<RequestPerMinute>() {
            let rule = refused.rule().parse().unwrap();
            response.headers_mut().insert("x-refused-by", rule);
        }
        response
    }

    let routes = Router::new()
        .route("/annotated", get(annotated))
        .route("/status/{status}", get(async |Path(status): Path<u16>| http::StatusCode::from_u16(status).unwrap()))
        .route("/stream", get(async |headers: HeaderMap| Body::from_stream(parts(&headers))))
        .route("/panic", get(async || if true { panic!("a handler panics") } else { "" }))
        .route(
            "/used",
            get(async |headers: HeaderMap| {
                let used = headers.get("x-use").cloned();
                (used.map(|used| [("x-used", used)]), "used").into_response()
            }),
        )
        .fallback(async |headers: HeaderMap| hello(&headers));
    let limited = routes.layer(inner).layer(outer).layer(from_fn(insert_user));
    let service = limited.into_make_service_with_connect_info::<SocketAddr>();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() })
}

fn start_actix(listener: TcpListener, inner: RateLimitLayer, outer: RateLimitLayer) -> ServerHandle {
    use actix_web::body::MessageBody;
    use actix_web::dev::{ServiceRequest, ServiceResponse};
    use actix_web::http::header::{HeaderName, HeaderValue};
    use actix_web::middleware::{Next, from_fn};
    use actix_web::{App, Error, HttpMessage as _, HttpRequest, HttpResponse, HttpServer, web};

    async fn insert_user(
        request: ServiceRequest,
        next: Next<impl MessageBody + 'static>,
    ) -> Result<ServiceResponse<impl MessageBody>, Error> {
        let _in_progress = request.headers().get("x-user").map(|user| InProgress::of(user.as_bytes()));
        if let Some(user) = request.headers().get("x-user-id") {
            let user = UserId(user.to_str().unwrap().to_owned());
            request.extensions_mut().insert(user);
        }
        let mut response = next.call(request).await?;
        let rule = response.response().extensions().get::<RequestPerMinute>().map(RequestPerMinute::rule);
        if let Some(rule) = rule {
            let name = HeaderName::from_static("x-refused-by");
            response.headers_mut().insert(name, HeaderValue::from_static(rule));
        }
        Ok(response)
    }

    /// The fields that the shared functions read.
    fn fields(request: &HttpRequest) -> HeaderMap {
        let fields = request.headers().iter();
        fields
            .map(|(name, value)| {
                let name: http::HeaderName = name.as_str().parse().unwrap();
                (name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap())
            })
            .collect()
    }

    let (sender, handle) = std::sync::mpsc::channel();
    thread::spawn(move || {
        actix_web::rt::System::new().block_on(async move {
            let app = move || {
                App::new()
                    .wrap(inner.clone())
                    .wrap(outer.clone())
                    .wrap(from_fn(insert_user))
                    .route("/annotated", web::get().to(annotated))
                    .route(
                        "/status/{status}",
                        web::get().to(|status: web::Path<u16>| async move {
                            HttpResponse::new(actix_web::http::StatusCode::from_u16(*status).unwrap())
                        }),
                    )
                    .route(
                        "/stream",
                        web::to(|request: HttpRequest| async move {
                            HttpResponse::Ok().streaming(parts(&fields(&request)))
                        }),
                    )
                    .route("/panic", web::get().to(|| async { if true { panic!("a handler panics") } else { "" } }))
                    .route(
                        "/used",
                        web::get().to(|request: HttpRequest| async move {
                            let mut response = HttpResponse::Ok();
                            if let Some(used) = request.headers().get("x-use") {
                                response.insert_header(("x-used", used.clone()));
                            }
                            response.body("used")
                        }),
                    )
                    .default_service(web::to(|request: HttpRequest| async move { hello(&fields(&request)) }))
            };
            let server = HttpServer::new(app).workers(2).disable_signals().shutdown_timeout(0);
            // Otherwise a client that leaves keeps its place in the line.
            let server = server.h1_allow_half_closed(false).listen(listener).unwrap().run();
            sender.send(server.handle()).unwrap();
            let _ = server.await;
        });
    });
    handle.recv().unwrap()
}

/// A layer in memory, by a clock of the test.
async fn timed(limits: impl IntoIterator<Item = Limit>) -> (RateLimitLayer, Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    (RateLimitLayer::new(limits).limiter(limiter.clone()), limiter, clock)
}
