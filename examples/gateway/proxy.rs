//! Forwards requests to upstreams, and brings their responses back.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    error::Error,
    io, iter,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{
        HeaderMap, HeaderValue, StatusCode, Uri, Version, header,
        uri::{Authority, Scheme},
    },
    response::{IntoResponse as _, Response},
};
use hyper::body::Body as _;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore};
use tokio::{net::TcpListener, time::sleep};

use crate::{
    body::{Paused, Progress, TimedBody},
    config::Target,
};

/// All upstreams, and the connections to them.
pub(crate) struct Upstreams {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    timeout: Duration,
    sample: Authority,
    outages: Mutex<BTreeMap<String, Arc<Outage>>>,
}

/// The server that a route leads to.
#[derive(Clone)]
pub(crate) struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    timeout: Duration,
    scheme: Scheme,
    authority: Authority,
    base: String,
    outage: Arc<Outage>,
}

impl Upstreams {
    /// Fails if the sample server cannot listen.
    pub(crate) async fn new(connect_timeout: Duration, timeout: Duration) -> io::Result<Self> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false); // TLS is above it
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_timeout));
        let tls = HttpsConnectorBuilder::new().with_tls_config(tls_config());
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(32)
            .build(tls.https_or_http().enable_http1().wrap_connector(connector));
        Ok(Self { client, timeout, sample: start_sample().await?, outages: Mutex::default() })
    }

    pub(crate) fn get(&self, target: &Target) -> Upstream {
        let (scheme, authority, base) = match target.clone() {
            Target::Sample => (Scheme::HTTP, self.sample.clone(), String::new()),
            Target::Server { scheme, authority, base } => (scheme, authority, base),
        };
        // An outage outlives a change of the file.
        let mut outages = self.outages.lock().unwrap_or_else(PoisonError::into_inner);
        let outage = outages.entry(format!("{scheme}://{authority}")).or_default();
        let outage = Arc::clone(outage);
        Upstream { client: self.client.clone(), timeout: self.timeout, scheme, authority, base, outage }
    }
}

/// Trusts the certificates of the system. `SSL_CERT_FILE` or `SSL_CERT_DIR` in the environment names others.
fn tls_config() -> ClientConfig {
    let config = ClientConfig::builder().with_native_roots().unwrap_or_else(|error| {
        tracing::warn!(%error, "there is no certificate to trust, so no https upstream can be used");
        ClientConfig::builder().with_root_certificates(RootCertStore::empty())
    });
    config.with_no_client_auth()
}

/// The reasons why there is no response of an upstream.
enum Failure {
    /// The client did not send the whole request.
    Client(StatusCode),
    Upstream(StatusCode, String),
}

impl Upstream {
    /// The response to a request, or the gateway's own if the upstream has none.
    pub(crate) async fn forward(self, request: Request) -> Result<Response, Infallible> {
        let Ok(uri) = self.uri(request.uri()) else { return Ok(StatusCode::URI_TOO_LONG.into_response()) };
        // Only the framing is decoded here. The upstream would get the rest without its name.
        let mut codings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
        if !codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            return Ok((StatusCode::NOT_IMPLEMENTED, "only chunked bodies can be forwarded\n").into_response());
        }
        let name = format!("{}://{}", self.scheme, self.authority);
        Ok(match self.send(request, uri).await {
            Ok(response) => {
                self.outage.answered(&name);
                response
            }
            Err(Failure::Client(status)) => (status, "the request did not arrive in full\n").into_response(),
            Err(Failure::Upstream(status, error)) => {
                self.outage.failed(&name, &error);
                (status, "the server behind this gateway does not answer\n").into_response()
            }
        })
    }

    /// The path of the upstream, then the path and the query of the request.
    fn uri(&self, of: &Uri) -> Result<Uri, axum::http::Error> {
        let path = of.path_and_query().map_or("/", |path| path.as_str());
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        uri.path_and_query(format!("{}{path}", self.base)).build()
    }

    async fn send(&self, mut request: Request, uri: Uri) -> Result<Response, Failure> {
        let progress = request.extensions().get::<Progress>().cloned().unwrap_or_default();
        let peer = request.extensions().get::<SocketAddr>().map(|peer| peer.ip().to_canonical().to_string());
        (*request.uri_mut(), *request.version_mut()) = (uri, Version::HTTP_11);
        let has_length = request.body().size_hint().exact().is_some();
        let headers = request.headers_mut();
        keep_end_to_end(headers);
        headers.remove(header::HOST); // the client names the upstream
        headers.remove(header::EXPECT); // the gateway has answered it
        if let Some(peer) = peer.and_then(|peer| HeaderValue::from_str(&peer).ok()) {
            headers.append("x-forwarded-for", peer);
        }
        if !has_length {
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let mut response = std::pin::pin!(self.client.request(request));
        let response = loop {
            tokio::select! {
                response = &mut response => break response,
                () = progress.0.notified() => {} // an upload may take its time
                () = sleep(self.timeout) => {
                    let error = format!("no response within {:?}", self.timeout);
                    return Err(Failure::Upstream(StatusCode::GATEWAY_TIMEOUT, error));
                }
            }
        };
        let mut response = response.map_err(|error| failure(&error))?;
        keep_end_to_end(response.headers_mut());
        Ok(response.map(|body| Body::new(TimedBody::new(body, self.timeout))))
    }
}

fn failure(error: &(dyn Error + 'static)) -> Failure {
    let causes = || iter::successors(Some(error), |&error| error.source());
    if causes().any(<dyn Error>::is::<Paused>) {
        return Failure::Client(StatusCode::REQUEST_TIMEOUT);
    }
    if causes().any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_user)) {
        return Failure::Client(StatusCode::BAD_REQUEST);
    }
    let last = causes().last().map(ToString::to_string).unwrap_or_default();
    Failure::Upstream(StatusCode::BAD_GATEWAY, last)
}

/// Removes the fields that are for one connection only: the standard ones, and all that
/// `Connection` names.
fn keep_end_to_end(headers: &mut HeaderMap) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH); // chunks came, so it may be wrong
    }
    let connection = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<_> = connection.flat_map(|value| value.split(',')).map(|name| name.trim().to_owned()).collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ] {
        headers.remove(name);
    }
}

/// The time in which an upstream does not answer: one event when it begins, one when it is over.
#[derive(Default)]
struct Outage(Mutex<Option<Failures>>);

struct Failures {
    count: u64,
    last: Instant,
}

/// After a failure, an upstream is back with a response that comes this much later. One that fails
/// now and then would be two events a request otherwise.
const CALM: Duration = Duration::from_secs(1);

impl Outage {
    fn failed(&self, upstream: &str, error: &str) {
        metrics::counter!("gateway_upstream_failures_total", "upstream" => upstream.to_owned()).increment(1);
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = 1 + failures.as_ref().map_or(0, |failures| failures.count);
        *failures = Some(Failures { count, last: Instant::now() });
        if count == 1 {
            tracing::warn!(upstream, error, "an upstream does not answer");
        }
    }

    fn answered(&self, upstream: &str) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Failures { count, .. }) = failures.take_if(|failures| failures.last.elapsed() >= CALM) {
            tracing::info!(upstream, failures = count, "an upstream answers again");
        }
    }
}

/// A server to try things out with: it says what it was asked for.
async fn start_sample() -> io::Result<Authority> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = Router::new().fallback(async |request: Request| format!("{} {}\n", request.method(), request.uri()));
    tokio::spawn(async move { axum::serve(listener, app).await });
    address.to_string().parse().map_err(io::Error::other)
}
