//! Accepts connections: no more than a number of them, and none that stands still.
//!
//! They speak HTTP/1.1, without upgrades: there are no `WebSockets` through this gateway.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::sleep,
};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt as _;

use crate::body::TimedBody;

/// The bounds of a server.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Connections at a time. Others wait to be accepted.
    pub(crate) connections: usize,
    /// The longest time for the head of a request, which begins when the connection is free. Also
    /// the longest pause between two parts of a body, and of a client that takes its response.
    pub(crate) read_timeout: Duration,
}

/// Runs until it is dropped. `stop` then ends the connections.
pub(crate) async fn serve(listener: TcpListener, app: Router, bounds: Bounds, stop: &GracefulShutdown) {
    let slots = Arc::new(Semaphore::new(bounds.connections));
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (app, stop) = (app.clone(), stop.watcher());
                tokio::spawn(async move {
                    serve_connection(stream, peer, app, bounds.read_timeout, stop).await;
                    drop(slot);
                });
            }
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections");
                sleep(Duration::from_secs(1)).await; // open files become free
            }
        }
    }
}

fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn serve_connection(stream: TcpStream, peer: SocketAddr, app: Router, timeout: Duration, stop: Watcher) {
    let _ = stream.set_nodelay(true); // it is slower without, and no worse
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(timeout));
    let service = service_fn(move |request: Request<Incoming>| {
        let body = |body| TimedBody::new(body, timeout);
        let mut request = request.map(body);
        let progress = request.body().progress();
        request.extensions_mut().insert(progress);
        request.extensions_mut().insert(peer);
        app.clone().oneshot(request.map(Body::new))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(timeout);
    // An error is a client that broke off, was too slow, or does not speak HTTP.
    let _ = stop.watch(http.serve_connection(TokioIo::new(Box::pin(stream)), service)).await;
}
