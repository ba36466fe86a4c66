//! Limits in front of an `axum` service.
//!
//! ```sh
//! cargo run --example web_axum --features web_axum -- 127.0.0.1:3000
//! curl -i http://127.0.0.1:3000/
//! ```

mod limits;

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, http::StatusCode, routing::get};
use ratelimit_runtime::web::KeyBy;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/login", get(async || (StatusCode::UNAUTHORIZED, "wrong password\n")))
        .layer(limits::layer(KeyBy::peer()).await?);
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
