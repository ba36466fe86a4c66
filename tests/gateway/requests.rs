//! The path, the header fields and the framing of a request, on their way to an upstream.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    thread,
};

use serde_json::Value;

use super::support::{Gateway, Upstream, client};

/// Servers read these paths in two ways: limited as one of them, they would be answered as the other.
#[test]
fn a_path_that_servers_read_in_two_ways_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url(), &[]);
    for path in [
        "/api/../search",
        "/api/./search",
        "/api/..",
        "/api//search",
        "//search",
        "/api/%2e%2e/search",
        "/api/.%2E/search",
        "/api%2fsearch",
        "/api%2Fsearch",
        "/api%5csearch",
        "/api\\..\\search",
        "/api/..;a=b/search",
        "/api/%2e%2e%3b/search",
        "/api/;/search",
        "/api/%252e%252e/search",
        "/api/%2525252525252e/search",
        "/api%252fsearch",
        "/api%00/search",
        "/api/%c0%ae%c0%ae/search",
        "*",
    ] {
        let method = if path == "*" { "OPTIONS" } else { "GET" };
        let status =
            gateway.raw_status(format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes());
        assert_eq!(status, 400, "{path}");
    }
    assert_eq!(gateway.raw_status(b"CONNECT host:1 HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
    assert_eq!(upstream.heads(), [""; 0]);
    for path in ["/", "/api/", "/a%20b", "/100%25", "/..a/.b", "/a;b=c/d", "/%C3%A9?../%2e//"] {
        let status =
            gateway.raw_status(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes());
        assert_eq!(status, 200, "{path}");
        assert!(upstream.heads().last().unwrap().starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{path}");
    }
}

/// Other spellings of a path have its route and its limits.
#[tokio::test]
async fn a_path_in_another_spelling_is_limited_as_the_same() {
    let limits = |rule: &str| format!("limits = [{{ rule = \"{rule}\" }}]");
    let rules = [("api", "count = 4\nunit = \"Days\""), ("all", "count = 100\nunit = \"Days\"")];
    let gateway = Gateway::with("memory://", &[("/api", &limits("api")), ("/", &limits("all"))], &rules);
    for (path, status) in
        [("/api", 200), ("/%61pi", 200), ("/api;a=b/c", 200), ("/ap%69/c?d", 200), ("/api", 429), ("/%61pi", 429)]
    {
        let answer = gateway.raw(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    assert_eq!(gateway.get(&client(), "/apis").await.status(), 200);
}

#[tokio::test]
async fn the_path_of_an_upstream_comes_before_that_of_the_request() {
    let upstream = Upstream::start();
    for base in ["/base", "/base/", "/a/b"] {
        let gateway = Gateway::before(&format!("{}{base}", upstream.url()), &[]);
        let answer = gateway.get(&client(), "/api/items?page=1&x=%2f").await.text().await.unwrap();
        assert_eq!(answer, format!("GET {}/api/items?page=1&x=%2f HTTP/1.1\n", base.trim_end_matches('/')));
    }
    let gateway = Gateway::before(&format!("{}/base", upstream.url()), &[]);
    assert_eq!(gateway.get(&client(), "/?x").await.text().await.unwrap(), "GET /base/?x HTTP/1.1\n");
}

/// Fields of one connection end here, and no client takes a field away that the gateway adds.
#[tokio::test]
async fn fields_of_one_connection_are_not_forwarded() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url(), &[]);
    let request = "POST /a HTTP/1.1\r\nHost: x\r\nConnection: X-Forwarded-For , x-one,close\r\nConnection: X-Two, content-length\r\n\
                   X-Forwarded-For: 9.9.9.9\r\nX-One: 1\r\nX-Two: 2\r\nX-Three: 3\r\nKeep-Alive: timeout=5\r\n\
                   Proxy-Connection: close\r\nProxy-Authorization: me\r\nTE: trailers\r\nTrailer: x\r\nUpgrade: websocket\r\n\
                   Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello";
    assert!(gateway.raw(request.as_bytes()).contains("HTTP/1.1 200"));
    let head = upstream.heads().pop().unwrap().to_lowercase();
    let mut lines: Vec<_> = head.trim_end().lines().skip(1).collect();
    lines.sort_unstable();
    let host = format!("host: {}", upstream.address);
    assert_eq!(lines, ["content-length: 5", &host, "x-forwarded-for: 127.0.0.1", "x-three: 3"]);
    assert_eq!(upstream.requests.lock().unwrap()[0].1, b"hello");

    let plain = "GET /a HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n";
    gateway.raw(plain.as_bytes());
    let head = upstream.heads().pop().unwrap().to_lowercase();
    assert!(head.contains("x-forwarded-for: 9.9.9.9\r\nx-forwarded-for: 127.0.0.1\r\n"), "{head}");
}

/// Bytes that two servers could read as one request or as two are one request, or none.
#[test]
fn one_request_is_never_two_upstream_requests() {
    /// A request that follows a body that ends early.
    const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url(), &[]);
    let chunk = format!("{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len());
    let length = SMUGGLED.len();
    let statuses = Mutex::new(Vec::new());
    let try_one = |name: &str, allowed: &[u16], fields: &str, body: &str| {
        let request = format!("POST /{name} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n{body}");
        let answer = gateway.raw(request.as_bytes());
        let status: u16 = answer.get(9..12).map_or(0, |status| status.parse().unwrap());
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{name}: {answer}");
        assert!(allowed.contains(&status), "{name}: {answer}");
        statuses.lock().unwrap().push((name.to_owned(), status));
    };
    let whole = format!("0\r\n\r\n{SMUGGLED}");
    let both = whole.len();
    let cases = [
        ("cl-te", vec![200, 400], format!("Content-Length: {both}\r\nTransfer-Encoding: chunked"), whole.clone()),
        ("te-cl", vec![200, 400], format!("Transfer-Encoding: chunked\r\nContent-Length: {both}"), whole.clone()),
        ("te-cl-short", vec![200, 400], "Transfer-Encoding: chunked\r\nContent-Length: 4".into(), chunk.clone()),
        (
            "cl-te-odd-case",
            vec![200, 400],
            format!("Content-Length: {both}\r\nTransfer-Encoding: cHuNkEd"),
            whole.clone(),
        ),
        ("te-odd-case", vec![200], "tRANSFER-eNCODING: CHUNKED".into(), chunk.clone()),
        ("te-twice", vec![400, 501], "Transfer-Encoding: chunked, chunked".into(), chunk.clone()),
        ("te-identity", vec![400], format!("Content-Length: {both}\r\nTransfer-Encoding: identity"), whole.clone()),
        ("te-gzip", vec![501], "Transfer-Encoding: gzip, chunked".into(), chunk.clone()),
        (
            "te-then-identity",
            vec![400],
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity".into(),
            chunk.clone(),
        ),
        ("te-unknown", vec![400], format!("Content-Length: {both}\r\nTransfer-Encoding: xchunked"), whole.clone()),
        ("te-space", vec![400], format!("Content-Length: {both}\r\nTransfer-Encoding : chunked"), whole.clone()),
        (
            "te-vertical-tab",
            vec![400],
            format!("Content-Length: {both}\r\nTransfer-Encoding: \x0bchunked"),
            whole.clone(),
        ),
        ("te-folded", vec![400], format!("Content-Length: {both}\r\nTransfer-Encoding:\r\n chunked"), whole.clone()),
        ("folded", vec![400], format!("X: a\r\n Content-Length: 0\r\nContent-Length: {length}"), SMUGGLED.into()),
        ("cl-differs", vec![400], format!("Content-Length: 0\r\nContent-Length: {length}"), SMUGGLED.into()),
        ("cl-same", vec![200, 400], format!("Content-Length: {length}\r\nContent-Length: {length}"), SMUGGLED.into()),
        ("cl-list", vec![400], format!("Content-Length: {length}, {length}"), SMUGGLED.into()),
        ("cl-plus", vec![400], format!("Content-Length: +{length}"), SMUGGLED.into()),
        ("cl-hex", vec![400], format!("Content-Length: 0x{length:x}"), SMUGGLED.into()),
        ("cl-huge", vec![400, 413], "Content-Length: 18446744073709551617".into(), SMUGGLED.into()),
        ("cl-null", vec![400], format!("Content-Length: {length}\0"), SMUGGLED.into()),
        ("bare-cr", vec![400], format!("X: a\rContent-Length: 0\r\nContent-Length: {length}"), SMUGGLED.into()),
        ("bare-lf", vec![200, 400], format!("X: a\nContent-Length: {length}"), SMUGGLED.into()),
        ("chunk-size-huge", vec![400], "Transfer-Encoding: chunked".into(), format!("10000000000000000{chunk}")),
        ("chunk-size-signed", vec![400], "Transfer-Encoding: chunked".into(), format!("+{chunk}")),
        ("chunk-bare-lf", vec![400], "Transfer-Encoding: chunked".into(), chunk.replace("\r\n0\r\n", "\n0\n")),
        ("chunk-extension-lf", vec![400], "Transfer-Encoding: chunked".into(), format!("1;\n{chunk}")),
        (
            "chunk-trailers",
            vec![200],
            "Transfer-Encoding: chunked".into(),
            "0\r\nContent-Length: 9\r\nX: y\r\n\r\n".into(),
        ),
        (
            "connection-te",
            vec![200],
            "Connection: transfer-encoding, close\r\nTransfer-Encoding: chunked".into(),
            chunk.clone(),
        ),
        (
            "connection-cl",
            vec![200],
            format!("Connection: content-length, close\r\nContent-Length: {length}"),
            SMUGGLED.into(),
        ),
    ];
    thread::scope(|scope| {
        for (name, allowed, fields, body) in &cases {
            scope.spawn(|| try_one(name, allowed, fields, body));
        }
    });
    let admitted = statuses.into_inner().unwrap().into_iter().filter(|(_, status)| *status == 200);
    let admitted: BTreeSet<_> = admitted.map(|(name, _)| format!("POST /{name} HTTP/1.1")).collect();
    let heads = upstream.heads();
    let arrived: BTreeSet<_> = heads.iter().map(|head| head.lines().next().unwrap().to_owned()).collect();
    assert_eq!(heads.len(), arrived.len(), "{heads:?}");
    assert_eq!(admitted, arrived);
    let limit = "ratelimit_decisions_total{rule=\"all\",outcome=\"admitted\"} ";
    let scraped = gateway.raw(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let counted = scraped.lines().find_map(|line| line.strip_prefix(limit)).unwrap().parse::<usize>().unwrap();
    assert!(counted >= arrived.len(), "{counted} of {arrived:?}");
}

/// The body of a GET is rare, and no reason to forward something else.
#[test]
fn a_body_keeps_its_framing() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url(), &[]);
    for (method, fields, body) in [
        ("GET", "", ""),
        ("GET", "Content-Length: 5\r\n", "hello"),
        ("GET", "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        ("POST", "Content-Length: 0\r\n", ""),
        ("POST", "", ""),
        ("PUT", "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let request = format!("{method} /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n{body}");
        assert_eq!(gateway.raw_status(request.as_bytes()), 200);
        let requests = Arc::clone(&upstream.requests);
        let (head, arrived) = requests.lock().unwrap().pop().unwrap();
        assert_eq!(String::from_utf8(arrived).unwrap(), body, "{head}");
    }
}

#[tokio::test]
async fn refusals_have_the_status_of_their_route() {
    let routes = [
        ("/busy", "denial_status = 503\nlimits = [{ rule = \"api\", key = \"header:x-user\" }]"),
        ("/plain", "limits = [{ rule = \"api\" }]"),
        (
            "/none",
            "denial_status = 503\nmissing_key_status = 429\nlimits = [{ rule = \"api\", key = \"header:x-user\" }]",
        ),
    ];
    let gateway = Gateway::with("memory://", &routes, &[("api", "count = 1\nunit = \"Days\"")]);
    let client = client();
    let get =
        async |user: &str| client.get(format!("{}/busy", gateway.url)).header("x-user", user).send().await.unwrap();
    assert_eq!(get("alice").await.status(), 200);
    let refused = get("alice").await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after") && refused.headers().contains_key("ratelimit"));
    let length = refused.headers()["content-length"].clone();
    let problem: Value = refused.json().await.unwrap();
    assert_eq!((&problem["status"], &problem["violated-policies"][0]), (&503.into(), &"api".into()));
    let head = client.head(format!("{}/busy", gateway.url)).header("x-user", "alice").send().await.unwrap();
    assert_eq!((head.status().as_u16(), &head.headers()["content-length"]), (503, &length));
    assert_eq!(gateway.get(&client, "/busy").await.status(), 403);
    let missing: Value = gateway.get(&client, "/none").await.json().await.unwrap();
    assert_eq!(missing["status"], 429);
    assert_eq!(gateway.get(&client, "/plain").await.status(), 200);
    assert_eq!(gateway.get(&client, "/plain").await.status(), 429);
}

/// The page names the keys that are refused most. The metrics name none.
#[tokio::test]
async fn the_keys_that_are_refused_most_are_on_the_page_alone() {
    let routes = [
        ("/user", "limits = [{ rule = \"user\", key = \"header:x-user\" }]"),
        ("/peer", "limits = [{ rule = \"peer\", key = \"peer\" }]"),
        ("/hops", "limits = [{ rule = \"hops\", key = \"forwarded:1\" }]"),
        ("/name", "limits = [{ rule = \"name\", key = \"client\", on_missing_key = \"Shared\" }]"),
    ];
    let rule = "count = 1\nunit = \"Days\"";
    let clients = format!("{rule}\n[clients]\n\"key-of-bob\" = \"bob\"");
    let rules = [("user", rule), ("peer", rule), ("hops", rule), ("name", clients.as_str())];
    let gateway = Gateway::with("memory://", &routes, &rules);
    let client = client();
    let get = async |path: &str, field: &str, value: &str, times: u64| {
        for _ in 0..times {
            client.get(format!("{}{path}", gateway.url)).header(field, value).send().await.unwrap();
        }
    };
    // More keys than are counted, of which the frequent ones are not lost.
    for user in 0..150 {
        get("/user", "x-user", &format!("user-{user}"), 2).await;
        get("/user", "x-user", "alice", 3).await;
    }
    get("/user", "x-user", "carol", 40).await;
    get("/peer", "x-any", "1", 4).await;
    get("/hops", "x-forwarded-for", "9.9.9.9, 2001:db8::1", 3).await;
    get("/name", "x-api-key", "key-of-bob", 3).await;
    get("/name", "x-api-key", "made-up", 5).await;
    let state: Value = gateway.get(&client, "/limits/state").await.json().await.unwrap();
    let most = |rule: &str| {
        let shown = state.as_array().unwrap().iter().find(|shown| shown["rule"] == rule).unwrap();
        shown["refused_most"].clone()
    };
    assert_eq!(most("user")[0], serde_json::json!(["alice", 449]));
    assert_eq!(most("user")[1][0], "carol");
    assert_eq!(most("user").as_array().unwrap().len(), 5);
    assert_eq!(most("peer"), serde_json::json!([["127.0.0.1", 3]]));
    assert_eq!(most("hops"), serde_json::json!([["2001:db8::/64", 2]]));
    assert_eq!(most("name"), serde_json::json!([["all others", 4], ["bob", 2]]));
    let scraped = gateway.get(&client, "/metrics").await.text().await.unwrap();
    for key in ["alice", "carol", "127.0.0.1", "2001", "bob"] {
        assert!(!scraped.contains(key), "{key} is in\n{scraped}");
    }
}
