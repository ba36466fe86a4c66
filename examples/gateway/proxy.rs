//! Forwards a request to an upstream, and brings its response back.

use std::{convert::Infallible, io, net::SocketAddr};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority},
    response::{IntoResponse as _, Response},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;

/// An upstream and the connections to it.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    authority: Authority,
    client: Client<HttpConnector, Body>,
}

impl Upstream {
    pub(crate) fn new(authority: Authority) -> Self {
        Self { authority, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub(crate) async fn forward(self, mut request: Request) -> Result<Response, Infallible> {
        let path = request.uri().path_and_query().cloned();
        let uri = Uri::builder().scheme("http").authority(self.authority.clone());
        let uri = uri.path_and_query(path.map_or_else(|| "/".into(), |path| path.to_string())).build();
        let Ok(uri) = uri else { return Ok(StatusCode::BAD_REQUEST.into_response()) };
        *request.uri_mut() = uri;
        if let Some(peer) = request.extensions().get::<SocketAddr>().copied()
            && let Ok(peer) = HeaderValue::from_str(&peer.ip().to_string())
        {
            request.headers_mut().append("x-forwarded-for", peer);
        }
        keep_end_to_end(request.headers_mut());
        request.headers_mut().remove(header::HOST); // the client names the upstream
        Ok(match self.client.request(request).await {
            Ok(mut response) => {
                keep_end_to_end(response.headers_mut());
                response.map(Body::new)
            }
            Err(error) => {
                tracing::warn!(upstream = %self.authority, %error, "an upstream does not answer");
                (StatusCode::BAD_GATEWAY, "the server behind this gateway does not answer\n").into_response()
            }
        })
    }
}

/// Removes what is for one connection only.
fn keep_end_to_end(headers: &mut HeaderMap) {
    let named: Vec<_> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_owned())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"] {
        headers.remove(name);
    }
}

/// A server to try things out with: it says what it was asked for.
pub(crate) async fn start_sample() -> io::Result<Authority> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = Router::new().fallback(async |request: Request| format!("{} {}\n", request.method(), request.uri()));
    tokio::spawn(async move { axum::serve(listener, app).await });
    address.to_string().parse().map_err(io::Error::other)
}
