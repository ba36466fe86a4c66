//! Limits in front of an `actix-web` service.
//!
//! ```sh
//! cargo run --example web_actix --features web_actix -- 127.0.0.1:3000
//! curl -i http://127.0.0.1:3000/
//! ```

mod limits;

use std::{env, error::Error, net::TcpListener};

use actix_web::{App, HttpResponse, HttpServer, web};
use ratelimit_runtime::web::KeyBy;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    // Made once: clones share their counters, and each thread of the server has an app of its own.
    let layer = limits::layer(KeyBy::peer()).await?;
    let app = move || {
        App::new()
            .wrap(layer.clone())
            .route("/", web::get().to(async || "hello\n"))
            .route("/login", web::get().to(async || HttpResponse::Unauthorized().body("wrong password\n")))
    };
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    // A client that disconnects then leaves its place in the line, and is not charged, if a layer waits.
    let server = HttpServer::new(app).h1_allow_half_closed(false);
    server.listen(listener)?.run().await?;
    Ok(())
}
