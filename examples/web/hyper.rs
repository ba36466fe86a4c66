//! Limits in front of a `hyper` service.
//!
//! ```sh
//! cargo run --example web_hyper --features web_hyper -- 127.0.0.1:3000
//! curl -i http://127.0.0.1:3000/
//! ```

mod limits;

use std::{convert::Infallible, env, error::Error};

use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use ratelimit_runtime::web::KeyBy;
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceExt as _, service_fn};

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new("hello\n".into());
    if request.uri().path() == "/login" {
        *response.status_mut() = StatusCode::UNAUTHORIZED;
    }
    Ok(response)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let limited = limits::layer(KeyBy::peer()).await?.layer(service_fn(respond));
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        let limited = limited.clone();
        // The key of a request is made of the address of its peer.
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            limited.clone().oneshot(request)
        });
        let service = TowerToHyperService::new(service);
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
