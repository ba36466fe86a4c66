//! Hostile URLs: no fault of a URL is a panic, and no message shows a part of the password.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::hostile::{mutated, try_all};

#[cfg(unix)]
#[test]
fn a_plus_in_a_password_is_itself_in_every_form_of_url() {
    for url in [
        "redis://us+er:pass+word@localhost",
        "redis+unix:///run/redis.sock?user=us+er&pass=pass+word",
        "redis+unix:///run/redis.sock?user=us%2Ber&pass=pass%2Bword&db=1",
    ] {
        let Ok(RedisTopology::Single(ServerSource::Fixed(client))) = parse(url) else { panic!("{url}") };
        let settings = client.get_connection_info().redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("us+er"), Some("pass+word")), "{url}");
    }
}

/// Each four letters of it occur in no message.
const PASSWORD: &str = "XQZJKVWY";

const SEEDS: &[&str] = &[
    "redis://127.0.0.1:6379",
    "redis://user:XQZJKVWY@localhost:6379/2?protocol=resp2",
    "redis://:XQZJKVWY@[::1]:6379/",
    "rediss://user:XQZJKVWY@redis.example.com/0#insecure",
    "redis+unix:///run/redis.sock?db=1&user=user&pass=XQZJKVWY&protocol=3",
    "unix:/run/redis.sock",
    "redis+cluster://user:XQZJKVWY@one:7001,two:7002,[2001:db8::1]:7003",
    "rediss+cluster://:XQZJKVWY@one:7001,two",
    "redis+sentinel://user:XQZJKVWY@one:26379,two,three:1/service/2?protocol=resp3",
    "rediss+sentinel://:XQZJKVWY@one/my.service-1_2",
    "unix:/run/redis.sock?protocol=XQZJKVWY",
    "unix:/run/redis.sock?protocol=://XQZJKVWY",
    "u\nnix:/run/redis.sock?protocol=XQZJKVWY",
    "valkey://h",
    "memory://",
    "",
];

const WORDS: &[&str] = &[
    "://",
    ":",
    "@",
    "/",
    "//",
    "?",
    "#",
    "&",
    "=",
    ",",
    "[",
    "]",
    "%",
    "%4",
    "%2F",
    "%00",
    "%FF",
    "+",
    " ",
    "\0",
    "\n",
    "é",
    "😀",
    "0",
    "-1",
    "65536",
    "99999999999999999999",
    "redis",
    "+cluster",
    "+sentinel",
    "+unix",
    "db=",
    "pass=",
    "protocol=",
    "#insecure",
    "xn--",
    "..",
    "1.2.3.4.5",
];

fn parse(url: &str) -> Result<RedisTopology, SetupError> {
    RedisTopology::new(url, &Certificates::default(), None)
}

fn shows_a_part(message: &str, password: &str) -> bool {
    let letters: Vec<char> = password.chars().filter(char::is_ascii_alphabetic).collect();
    letters.windows(4).any(|part| message.contains(&part.iter().collect::<String>()))
}

#[test]
fn no_url_panics_or_shows_its_password() {
    try_all("URLs", 5_000, &mutated(SEEDS, WORDS), |url| {
        let parsed = parse(&url);
        if let Err(error) = &parsed {
            let message = error.to_string();
            assert!(!shows_a_part(&message, PASSWORD), "{message}");
            assert!(!message.is_empty() && message.len() < 400, "{message}");
        }
        let is_accepted = parsed.is_ok();
        // Displayed in log events.
        drop(parsed.map(|topology| topology.to_string()));
        is_accepted
    });
}

/// A password with characters that a URL has to escape, and that are not.
#[test]
fn no_unescaped_password_is_shown() {
    const PIECES: &[&str] =
        &["xqzj", "kvwy", "qjxz", "/", "?", "#", "@", ":", ",", "&", "=", "%", "[", "]", "pass=", " "];
    let places = select(
        &[
            ("redis://user:", "@localhost:6379/0"),
            ("redis://:", "@localhost"),
            ("rediss://user:", "@localhost#insecure"),
            ("redis+cluster://user:", "@one:7001,two:7002"),
            ("redis+sentinel://user:", "@one:26379,two/service/1"),
            ("redis+unix:///run/redis.sock?db=1&pass=", ""),
            ("redis+unix:///run/redis.sock?pass=", "&db=1"),
        ][..],
    );
    let password = vec(select(PIECES), 1..8).prop_map(|pieces| pieces.concat());
    try_all("unescaped passwords", 5_000, &(places, password), |((before, after), password)| {
        let url = format!("{before}{password}{after}");
        let shown = match parse(&url) {
            Ok(topology) => topology.to_string(),
            Err(error) => error.to_string(),
        };
        let is_part = |piece: &str| password.contains(piece) && shown.contains(piece);
        assert!(!["xqzj", "kvwy", "qjxz"].into_iter().any(is_part), "{url}: {shown}");
        parse(&url).is_ok()
    });
}
