//! Each mistake is one message with what to do, at the start and on saving, and changes nothing.

use std::{fs, net::TcpListener};

use serde_json::json;

use super::support::{Gateway, client, command, eventually};

const GOOD: &str = "[[routes]]
path = \"/api\"
upstream = \"sample\"
limits = [{ rule = \"api\" }]

[[routes]]
path = \"/search\"
upstream = \"http://127.0.0.1:9\"
limits = [{ rule = \"search\", key = \"peer\" }, { rule = \"api\" }]

[clients]
\"key-of-alice\" = \"alice\"

[rules.api]
count = 50
unit = \"Seconds\"

[rules.search]
count = 20
ttl = 10
unit = \"Seconds\"
";

/// A text of the file, its replacement, and the message.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("path = \"/api\"", "path = \"api\"", "line 2, route api: path = \"api\" fits no request; write \"/api\""),
    (
        "path = \"/api\"",
        "path = \"/api/../x\"",
        "line 2, route /api/../x: path = \"/api/../x\" fits no request; write it decoded, without a query, and \
     without empty, `.` or `..` parts",
    ),
    (
        "path = \"/api\"",
        "path = \"/limits\"",
        "line 2, route /limits: path = \"/limits\" is the gateway's own page; take another path",
    ),
    (
        "path = \"/search\"",
        "path = \"/api/\"",
        "line 7, route /api/: line 2 has a route with this path already; remove one of the two",
    ),
    ("path = \"/api\"\n", "", "line 1, route without a path: missing field `path`"),
    ("path = \"/api\"", "path = 7", "line 2, route without a path: invalid type: integer `7`, expected a string"),
    ("upstream = \"sample\"\n", "", "line 1, route /api: missing field `upstream`"),
    (
        "upstream = \"sample\"",
        "uptream = \"sample\"",
        "line 3, route /api: unknown field `uptream`, expected one of `path`, `upstream`, `limits`, `headers`, \
     `denial_status`, `missing_key_status`",
    ),
    (
        "http://127.0.0.1:9",
        "127.0.0.1:9",
        "line 8, route /search: upstream = \"127.0.0.1:9\" has no scheme; write http://host:port or \
     https://host/path",
    ),
    (
        "http://127.0.0.1:9",
        "ftp://host",
        "line 8, route /search: upstream = \"ftp://host\" has the scheme ftp; write http://host:port or \
     https://host/path",
    ),
    (
        "http://127.0.0.1:9",
        "http://me:secret@host",
        "line 8, route /search: upstream = \"http://me:secret@host\" has a user; write http://host:port or \
     https://host/path",
    ),
    (
        "http://127.0.0.1:9",
        "http://host/a?b=c",
        "line 8, route /search: upstream = \"http://host/a?b=c\" has a query; write http://host:port or \
     https://host/path",
    ),
    (
        "http://127.0.0.1:9",
        "http://a b",
        "line 8, route /search: upstream = \"http://a b\" is no URL: invalid uri character; write \
     http://host:port or https://host/path",
    ),
    (
        "limits = [{ rule = \"api\" }]",
        "limits = [{ rule = \"apii\" }]",
        "line 4, route /api: there is no rule `apii`; write [rules.apii] with a count and a unit",
    ),
    (
        "count = 50\nunit = \"Seconds\"",
        "count = 50",
        "line 4, route /api: there is no rule `api`; write [rules.api] with a count and a unit",
    ),
    (
        "limits = [{ rule = \"api\" }]",
        "limits = [{ rule = \"api\", cost = 51 }]",
        "line 4, route /api: rule `api` admits 50 at most, so no request of cost 51 fits",
    ),
    (
        "limits = [{ rule = \"api\" }]",
        "limits = [{ rule = \"api\", cots = 51 }]",
        "line 4, route /api: unknown field `cots`, expected one of `rule`, `key`, `on_missing_key`, `cost`",
    ),
    (
        "key = \"peer\"",
        "key = \"ip\"",
        "line 9, route /search: key = \"ip\" is not client, peer, forwarded:hops or header:name",
    ),
    (
        "key = \"peer\"",
        "key = \"forwarded:0\"",
        "line 9, route /search: key = \"forwarded:0\" has no number of trusted proxies; write \"forwarded:1\", \
     for example",
    ),
    (
        "key = \"peer\"",
        "key = \"header:x user\"",
        "line 9, route /search: key = \"header:x user\" has no name of a header",
    ),
    (
        "upstream = \"sample\"",
        "upstream = \"sample\"\ndenial_status = 200",
        "line 4, route /api: 200 is no status of an error; take one from 400 to 599",
    ),
    (
        "upstream = \"sample\"",
        "upstream = \"sample\"\nheaders = \"ietf\"",
        "line 4, route /api: unknown variant `ietf`, expected one of `Ietf`, `RateLimit`, `XRateLimit`, \
     `Gateway`, `None`",
    ),
    (
        "count = 20",
        "count = 20\nalgorithm = \"LeakyBucket\"\nqueue = 5",
        "line 9, route /search: rule `search`: a `LeakyBucket` stands alone: acquire its rule in a call of its own; take \
     another algorithm, or remove the other limits of the route",
    ),
    ("\"alice\"", "7", "line 12: invalid type: integer `7`, expected a string"),
    ("count = 50", "count = 0", "line 15: `count` is 0; it must be at least 1"),
    ("count = 50", "count = ", "line 15: string values must be quoted, expected literal string"),
    ("[rules.search]", "[rule.search]", "line 18: unknown table `rule`; write a rule as [rules.item]"),
    ("[[routes]]", "[[route]]", "line 1: unknown table `route`; write a rule as [rules.item]"),
    ("[[routes]]", "[routes]", "line 6: duplicate key"),
];

/// The message of a gateway that does not start.
fn message(config: &str, args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    fs::write(&path, config).unwrap();
    let output = command(&path, args).env("TMPDIR", folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    message.replace(&format!("{}: ", path.display()), "").trim_end().to_owned()
}

#[test]
fn each_mistake_in_the_file_is_one_message_with_its_route_and_line() {
    for (right, wrong, expected) in MISTAKES {
        assert_eq!(message(&GOOD.replacen(right, wrong, 1), &[]), format!("gateway: {expected}"), "{wrong}");
    }
    let none = "[rules.api]\ncount = 50\nunit = \"Seconds\"\n";
    let expected = "gateway: there is no route; write [[routes]], and a path, an upstream and limits below it";
    assert_eq!(message(none, &[]), expected);
    assert_eq!(message(&format!("routes = []\n{none}"), &[]), expected);
    let one = format!("[routes]\npath = \"/\"\n{none}");
    assert_eq!(message(&one, &[]), "gateway: line 1: a route is written as [[routes]], with two brackets");
}

#[test]
fn a_start_that_fails_says_why_in_a_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_eq!(
        message(GOOD, &["--listen", &address]),
        format!("gateway: cannot listen on {address}: the address is in use")
    );
    assert_eq!(
        message(GOOD, &["--listen", "127.0.0.1:0", "--admin", &address]),
        format!("gateway: cannot listen on {address}: the address is in use")
    );
    let missing = command("nope.toml".as_ref(), &[]).output().unwrap();
    assert_eq!(String::from_utf8(missing.stderr).unwrap(), "gateway: cannot read nope.toml: there is no such file\n");
    assert_eq!(
        message(GOOD, &["--store", "reddis://me:secret@host"]),
        "gateway: cannot use the store: unknown URL scheme `reddis`; use memory://, redis://, rediss://, \
         redis+unix://, redis+cluster://, rediss+cluster://, redis+sentinel:// or rediss+sentinel://"
    );
}

/// A good rule beside a bad route changes nothing, and neither does the other way round.
#[tokio::test]
async fn a_file_applies_as_a_whole_or_not_at_all() {
    let gateway = Gateway::start(&GOOD.replace("http://127.0.0.1:9", "sample"), &[]);
    let whole = fs::read_to_string(&gateway.config).unwrap();
    let client = client();
    let policy = async || gateway.get(&client, "/api").await.headers()["ratelimit-policy"].to_str().unwrap().to_owned();
    for (bad, part) in [("count = 20", "cuont = 20"), ("path = \"/search\"", "path = \"search\"")] {
        let new =
            whole.replace("count = 50", "count = 60").replace("path = \"/api\"", "path = \"/\"").replace(bad, part);
        gateway.write(|_| new.clone());
        tokio::time::sleep(std::time::Duration::from_millis(1_700)).await;
        assert_eq!(policy().await, "\"api\";q=50;w=1", "{part}");
        assert_eq!(gateway.get(&client, "/elsewhere").await.status(), 404, "{part}");
        let (log, kept) = (gateway.log(), "the routes and rules stay as they were");
        assert_eq!(
            log.lines().filter(|line| line.contains(kept)).count(),
            if part.starts_with('c') { 1 } else { 2 },
            "{log}"
        );
    }
    gateway.write(|_| whole.replace("count = 50", "count = 60").replace("path = \"/api\"", "path = \"/\""));
    eventually("the file is right again", async || policy().await == "\"api\";q=60;w=1").await;
    assert_eq!(gateway.get(&client, "/elsewhere").await.status(), 200);
}

/// A save is checked as a file at the start is.
#[tokio::test]
async fn a_save_that_would_take_a_route_down_is_refused() {
    let gateway = Gateway::start(&GOOD.replace("http://127.0.0.1:9", "sample"), &[]);
    let before = fs::read_to_string(&gateway.config).unwrap();
    let client = client();
    let save = async |rule: &str, algorithm: &str, option: Option<u64>| {
        let body = json!({
            "count": 20, "ttl": 10, "unit": "Seconds", "algorithm": algorithm, "option": option, "shadow": false
        });
        let response = client.put(format!("{}/limits/rules/{rule}", gateway.url)).json(&body).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    let message = "line 9, route /search: rule `search`: a `LeakyBucket` stands alone: acquire its rule in a call of its \
                   own; take another algorithm, or remove the other limits of the route";
    assert_eq!(save("search", "LeakyBucket", Some(5)).await, (422, message.into()));
    let (status, message) = save("search", "TokenBucket", Some(0)).await;
    assert_eq!((status, message.as_str()), (422, "line 23: `burst` is 0; it must be at least 1"));
    assert_eq!(save("other", "FixedWindow", None).await, (422, "there is no rule `other` in the file".into()));
    assert_eq!(fs::read_to_string(&gateway.config).unwrap(), before);
    assert_eq!(gateway.get(&client, "/search").await.status(), 200);
    assert_eq!(save("search", "TokenBucket", Some(30)).await, (204, String::new()));
    assert_eq!(gateway.get(&client, "/search").await.status(), 200);
}
