//! The web examples, run as a user runs them: a client of each server meets the same limits.
//!
//! They have to be built: `cargo test --workspace --all-features` does.

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use reqwest::Client;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// An example that serves on a port of its own, until it is dropped.
struct Example {
    process: Child,
    address: String,
}

impl Example {
    fn start(name: &str) -> Self {
        let path = env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples").join(name);
        assert!(path.exists(), "{} is not built: run the tests with tests/run", path.display());
        let mut command = Command::new(path);
        let mut process = command.arg("127.0.0.1:0").env_remove("REDIS_URL").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { process, address }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Ten requests a minute for each client, and three failed logins.
#[tokio::test]
async fn each_server_keeps_the_limits() {
    for name in ["web_axum", "web_actix", "web_hyper"] {
        let example = Example::start(name);
        let client = Client::builder().no_proxy().build().unwrap();
        let get = async |path: &str| {
            let response = client.get(format!("http://{}{path}", example.address)).send().await.unwrap();
            let fields = ["ratelimit-policy", "ratelimit"].map(|field| response.headers().get(field).cloned());
            let status = response.status().as_u16();
            let _ = response.bytes().await;
            (status, fields.map(|field| field.map(|field| field.to_str().unwrap().to_owned())))
        };
        for remaining in [9, 8, 7, 6] {
            let (status, [policies, limit]) = get("/").await;
            assert_eq!((status, policies.as_deref()), (200, Some("\"client\";q=10;w=60")), "{name}");
            assert!(limit.unwrap().starts_with(&format!("\"client\";r={remaining};t=")), "{name}");
        }
        for _ in 0..3 {
            let (status, [policies, _]) = get("/login").await;
            let all = "\"client\";q=10;w=60, \"failed-logins\";q=3;w=60";
            assert_eq!((status, policies.as_deref()), (401, Some(all)), "{name}");
        }
        assert_eq!(get("/login").await.0, 429, "{name}");
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(get("/").await.0);
        }
        assert_eq!(statuses, [200, 200, 200, 429], "{name}: the refused login has charged no limit");
    }
}

#[tokio::test]
async fn a_grpc_service_keeps_the_limits() {
    let example = Example::start("web_tonic");
    let channel = Channel::from_shared(format!("http://{}", example.address)).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut check =
        async || client.check(HealthCheckRequest { service: String::new() }).await.map_err(|status| status.code());
    for _ in 0..10 {
        check().await.unwrap();
    }
    assert_eq!(check().await.unwrap_err(), Code::ResourceExhausted);
}
