//! Clients that hold their connections without using them.

use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::support::{Gateway, Upstream, client, eventually};

/// Lets this process, and the gateways that it starts, have thousands of connections.
fn allow_many_files() {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();
    let enough = files.current.is_none_or(|files| files >= 8_000);
    assert!(enough, "this test needs 8,000 open files; raise the limit with `ulimit -Hn`");
}

/// Sends a byte now and then, until the gateway closes the connection.
async fn dribble(gateway: &Gateway, begin: &str, bytes: &str) {
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream.write_all(begin.as_bytes()).await.unwrap();
    let mut answer = [0; 512];
    loop {
        tokio::select! {
            read = stream.read(&mut answer) => match read {
                Ok(1..) => {}
                _ => return,
            },
            () = tokio::time::sleep(Duration::from_millis(900)) => {
                let _ = stream.write_all(bytes.as_bytes()).await; // it may be closed by now
            }
        }
    }
}

/// Heads that never end, and bodies that stop, are closed. All other requests are answered meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_slow_connections_harm_no_other() {
    allow_many_files();
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url(), &["--connections", "1500", "--read-timeout", "3s"]);
    let gateway = std::sync::Arc::new(gateway);
    let slow: Vec<_> = (0..1_000)
        .map(|at| {
            let gateway = gateway.clone();
            tokio::spawn(async move {
                match at % 3 {
                    0 => dribble(&gateway, "GET / HTTP/1.1\r\nX-A: ", "a").await,
                    1 => dribble(&gateway, "", "\r\n").await,
                    _ => dribble(&gateway, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", "").await,
                }
            })
        })
        .collect();
    let mut healthy = Vec::new();
    for _ in 0..4 {
        let gateway = gateway.clone();
        healthy.push(tokio::spawn(async move {
            let client = client();
            for _ in 0..200 {
                assert_eq!(gateway.get(&client, "/").await.status(), 200);
            }
        }));
    }
    for client in healthy {
        client.await.unwrap();
    }
    for connection in slow {
        connection.await.unwrap();
    }
}

/// More connections than the gateway has at a time wait for those to end, and all of them do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_half_sent_heads_end() {
    allow_many_files();
    let gateway = Gateway::before("sample", &["--connections", "1000", "--read-timeout", "1s"]);
    let gateway = std::sync::Arc::new(gateway);
    // The kernel keeps 1,024 more for the gateway. It drops any others, which come again after 1, 3, 7 .. 63 seconds.
    let open = std::sync::Arc::new(tokio::sync::Semaphore::new(1_900));
    let slow: Vec<_> = (0..3_000)
        .map(|_| {
            let (gateway, open) = (gateway.clone(), open.clone());
            tokio::spawn(async move {
                let _open = open.acquire().await.unwrap();
                dribble(&gateway, "GET / HTTP/1.1\r\nX-A: ", "a").await;
            })
        })
        .collect();
    for connection in slow {
        connection.await.unwrap();
    }
    assert_eq!(gateway.get(&client(), "/").await.status(), 200);
}

#[tokio::test]
async fn connections_over_the_bound_wait_for_a_free_place() {
    let gateway = Gateway::before("sample", &["--connections", "2", "--read-timeout", "1h"]);
    let first = TcpStream::connect(gateway.address()).await.unwrap();
    let _second = TcpStream::connect(gateway.address()).await.unwrap();
    let third = tokio::time::timeout(Duration::from_secs(1), client().get(&gateway.url).send()).await;
    assert!(third.is_err(), "two places are taken");
    drop(first);
    assert_eq!(gateway.get(&client(), "/").await.status(), 200);
}

/// A client that does not take its response loses its connection, and an upload that stops is a 408.
#[tokio::test]
async fn bodies_that_stop_end_the_connection() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url(), &["--read-timeout", "500ms"]);
    let answer = gateway.raw(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(!gateway.log().contains("WARN"), "no fault of the upstream: {}", gateway.log());

    let endless = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", endless.local_addr().unwrap());
    let sender = tokio::spawn(async move {
        let (mut stream, _) = endless.accept().await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'x'; 8_192]).await.is_ok() {}
    });
    let gateway = Gateway::before(&url, &["--read-timeout", "500ms", "--upstream-timeout", "1h"]);
    let mut idle = TcpStream::connect(gateway.address()).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    eventually("the gateway gives the upstream up", async || sender.is_finished()).await;
}
