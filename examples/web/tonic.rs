//! Limits in front of a `tonic` service, the health service of gRPC. A refused call has the status
//! `RESOURCE_EXHAUSTED`, with the time to wait.
//!
//! ```sh
//! cargo run --example web_tonic --features web_tonic -- 127.0.0.1:3000
//! grpcurl -plaintext 127.0.0.1:3000 grpc.health.v1.Health/Check
//! ```

mod limits;

use std::{env, error::Error};

use ratelimit_runtime::web::KeyBy;
use tokio::net::TcpListener;
use tonic::transport::server::{Server, TcpConnectInfo, TcpIncoming};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let peer = KeyBy::peer_ip(|peer: &TcpConnectInfo| peer.remote_addr().map(|peer| peer.ip()));
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let server = Server::builder().layer(limits::layer(peer).await?).add_service(health);
    server.serve_with_incoming(TcpIncoming::from(listener)).await?;
    Ok(())
}
