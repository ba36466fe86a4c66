//! Servers over TLS: certificates are checked, and a client can present its own.

use std::fs::read;

use ratelimit_harness::{RedisServer, TlsFiles};
use ratelimit_runtime::{Limiter, OnStoreError};

use crate::support::PATIENCE;
use crate::support::servers::{SECRET, keeps_the_secret, recovers, works};

fn builder(server: &RedisServer, ca: &TlsFiles) -> ratelimit_runtime::Builder {
    let builder = Limiter::builder(&server.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    builder.ca_certificate(read(&ca.ca_pem).unwrap())
}

#[tokio::test]
async fn a_server_of_the_given_authority_is_trusted() {
    let mut server = RedisServer::builder().tls().password(SECRET).start();
    let limiter = builder(&server, server.tls().unwrap()).build().await.unwrap();
    works(&limiter).await;
    keeps_the_secret(&limiter);
    server.restart();
    recovers(&limiter).await;
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let (server, stranger) = (RedisServer::builder().tls().start(), RedisServer::builder().tls().start());
    let url = server.url();
    let errors = [
        builder(&server, stranger.tls().unwrap()).build().await.unwrap_err(),
        Limiter::connect(&url).await.unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        assert!(error.contains("certificate") && error.contains(&server.port().to_string()), "{error}");
    }
}

#[tokio::test]
async fn a_client_certificate_is_presented_to_the_server() {
    let server = RedisServer::builder().tls().arg("--tls-auth-clients", "yes").start();
    let (files, stranger) = (server.tls().unwrap(), RedisServer::builder().tls().start());
    let with = |files: &TlsFiles| (read(&files.client_cert_pem).unwrap(), read(&files.client_key_pem).unwrap());
    let (cert, key) = with(files);
    works(&builder(&server, files).client_certificate(cert, key).build().await.unwrap()).await;
    assert!(builder(&server, files).build().await.is_err());
    let (cert, key) = with(stranger.tls().unwrap());
    assert!(builder(&server, files).client_certificate(cert, key).build().await.is_err());
}

#[tokio::test]
async fn an_invalid_authority_certificate_is_an_error() {
    let server = RedisServer::builder().tls().start();
    let builder = Limiter::builder(&server.url()).ca_certificate(b"no certificate".to_vec());
    assert!(builder.build().await.is_err());
}
