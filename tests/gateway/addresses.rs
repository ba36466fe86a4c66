//! Where the gateway and its page are, and how it ends.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::support::{Gateway, client};

const CONFIG: &str = "[[routes]]
path = \"/api\"
upstream = \"sample\"
limits = [{ rule = \"api\", key = \"header:x-user\" }]

[rules.api]
count = 1
unit = \"Days\"
";

/// Keys and limits are for the admin. An address that others can reach has neither page nor metrics.
#[tokio::test]
async fn the_page_is_where_only_its_admin_comes() {
    let client = client();
    let statuses = async |url: &str| {
        let mut statuses = Vec::new();
        for path in ["/api", "/limits", "/limits/state", "/metrics"] {
            let request = client.get(format!("{url}{path}")).header("x-user", path);
            statuses.push(request.send().await.unwrap().status().as_u16());
        }
        statuses
    };
    let local = Gateway::start(CONFIG, &[]);
    assert_eq!(statuses(&local.url).await, [200, 200, 200, 200]);

    let open = Gateway::start(CONFIG, &["--listen", "0.0.0.0:0"]);
    assert_eq!(statuses(&open.url.replace("0.0.0.0", "127.0.0.1")).await, [200, 404, 404, 404]);
    assert!(open.said.ends_with("; for its limits, pass --admin 127.0.0.1:8081\n"), "{}", open.said);

    let apart = Gateway::start(CONFIG, &["--admin", "127.0.0.1:0"]);
    assert_eq!(statuses(&apart.url).await, [200, 404, 404, 404]);
    let page = apart.said.rsplit(' ').next().unwrap().trim_end().trim_end_matches("/limits");
    assert_eq!(statuses(page).await[1..], [200, 200, 200]);
}

/// A request on its way is answered, and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_requests_on_their_way() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", upstream.local_addr().unwrap());
    let mut gateway = Gateway::before(&url, &[]);
    let request = tokio::spawn(client().get(&gateway.url).send());
    let (mut stream, _) = upstream.accept().await.unwrap();
    assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
    let stopped = tokio::task::spawn_blocking(move || gateway.stop());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!stopped.is_finished());
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").await.unwrap();
    assert_eq!(request.await.unwrap().unwrap().text().await.unwrap(), "done");
    let (status, files) = stopped.await.unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(files, ["gateway.toml", "log"]);
}
