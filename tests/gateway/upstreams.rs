//! Upstreams that are down, late, or behind TLS.

use std::{net::TcpListener, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use super::support::{Gateway, Upstream, client, eventually};

#[tokio::test]
async fn an_outage_is_two_events_and_each_request_is_counted() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap(); // refuses connections, as it does not listen
    let address = socket.local_addr().unwrap();
    let gateway = Gateway::before(&format!("http://{address}"), &[]);
    let client = client();
    for _ in 0..20 {
        assert_eq!(gateway.get(&client, "/").await.status(), 502);
    }
    let listener = socket.listen(1_024).unwrap().into_std().unwrap();
    listener.set_nonblocking(false).unwrap();
    let _upstream = Upstream::on(listener);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for _ in 0..20 {
        assert_eq!(gateway.get(&client, "/").await.status(), 200);
    }
    let log = gateway.log();
    let times = |words: &str| log.matches(words).count();
    assert_eq!((times("an upstream does not answer"), times("an upstream answers again")), (1, 1), "{log}");
    assert!(log.contains("failures=20"), "{log}");
    assert_eq!(times("WARN"), 1, "{log}");
    let scraped = gateway.get(&client, "/metrics").await.text().await.unwrap();
    let count = format!("gateway_upstream_failures_total{{upstream=\"http://{address}\"}} 20");
    assert!(scraped.lines().any(|line| line == count), "{count} is not in\n{scraped}");
}

#[tokio::test]
async fn a_late_upstream_is_a_504_and_a_slow_upload_is_not() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let gateway = Gateway::before(&url, &["--upstream-timeout", "300ms"]);
    for _ in 0..3 {
        assert_eq!(gateway.get(&client(), "/").await.status(), 504);
    }
    assert_eq!(gateway.log().matches("WARN").count(), 1);

    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url(), &["--upstream-timeout", "1s"]);
    let mut upload = TcpStream::connect(gateway.address()).await.unwrap();
    upload.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 8\r\n\r\n").await.unwrap();
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        upload.write_all(b"x").await.unwrap();
    }
    let mut answer = String::new();
    upload.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn an_upstream_that_stops_in_its_body_ends_the_response() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
        tokio::time::sleep(Duration::from_secs(600)).await;
    });
    let gateway = Gateway::before(&url, &["--upstream-timeout", "3s"]);
    let response = gateway.get(&client(), "/").await;
    assert_eq!(response.status(), 200);
    assert!(response.text().await.is_err(), "half of a body is not a whole one");
}

#[tokio::test]
async fn an_upstream_that_takes_no_connection_is_a_502() {
    // One connection in its queue, and the next one gets no answer at all.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let _listener = socket.listen(1).unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue is never full");
    }
    let gateway = Gateway::before(&format!("http://{address}"), &["--connect-timeout", "300ms"]);
    assert_eq!(gateway.get(&client(), "/").await.status(), 502);
}

/// A container may have no certificates, and needs none for upstreams without TLS.
#[tokio::test]
async fn a_system_without_certificates_reaches_http_upstreams() {
    let upstream = Upstream::start();
    let gateway = Gateway::before_with(&upstream.url(), &[], |command| {
        command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/dev/null");
    });
    assert_eq!(gateway.get(&client(), "/").await.status(), 200);
    assert!(gateway.log().contains("there is no certificate to trust"), "{}", gateway.log());
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn an_https_upstream_is_spoken_to_in_tls() {
    use std::{sync::Arc, thread};

    use ratelimit_harness::RedisServer;
    use rustls::{
        ServerConfig, ServerConnection, StreamOwned,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    };

    use super::support::{Requests, answer};

    let _ = rustls::crypto::ring::default_provider().install_default();
    // Its files have a certificate for 127.0.0.1.
    let server = RedisServer::builder().tls().start();
    let files = server.tls().unwrap();
    let folder = files.ca_pem.parent().unwrap();
    let certificate = CertificateDer::from_pem_file(folder.join("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let (config, requests) = (Arc::new(config), Requests::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::clone(&requests);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let seen = Arc::clone(&seen);
            thread::spawn(move || answer(StreamOwned::new(connection, stream), &seen));
        }
    });
    let url = format!("https://127.0.0.1:{}/base", address.port());
    let trusting = Gateway::before_with(&url, &[], |command| {
        command.env("SSL_CERT_FILE", &files.ca_pem);
    });
    let response = trusting.get(&client(), "/a?b").await;
    assert_eq!(response.status(), 200, "{}", trusting.log());
    assert_eq!(response.text().await.unwrap(), "GET /base/a?b HTTP/1.1\n");

    let strict = Gateway::before(&url, &[]);
    assert_eq!(strict.get(&client(), "/").await.status(), 502);
    eventually("the log says why", async || strict.log().contains("invalid peer certificate: UnknownIssuer")).await;
    assert_eq!(requests.lock().unwrap().len(), 1);
}
