//! Keys: addresses behind proxies, values of middleware, several ways in turn, and allow lists.

use ratelimit_runtime::Key;
use ratelimit_runtime::web::{Networks, OnMissingKey, TrustedProxies};

use super::*;

fn networks(list: &[&str]) -> Networks {
    Networks::parse(list).unwrap()
}

#[tokio::test]
async fn the_address_of_the_peer_is_a_key_without_extra_work() {
    for kind in KINDS {
        let (layer, limiter, _clock) = timed([Limit::new(per_minute(2)).key(KeyBy::peer())]).await;
        let service = Service::start(kind, layer);
        assert_eq!(service.statuses(3, || service.get("/")).await, [200, 200, 429], "{kind:?}");
        assert_eq!(limiter.peek(&per_minute(2), "127.0.0.1").await.unwrap().remaining(), 0, "{kind:?}");
    }
}

/// Some servers decode the path before they find a route for it. A client that escapes letters gets around no limit.
#[tokio::test]
async fn an_escaped_path_is_the_path_of_its_route() {
    for kind in KINDS {
        let by_path = Limit::new(Rule::new("paths", 2, MINUTE)).key(KeyBy::path());
        let limit = Limit::new(per_minute(1)).when(|request| request.uri.path() == "/status/204");
        let (layer, limiter, _clock) = timed([limit, by_path]).await;
        let service = Service::start(kind, layer);
        assert_eq!(service.status(service.get("/status/204")).await, 204, "{kind:?}");
        for path in ["/%73tatus/204", "/s%74atus/%32%30%34?a=b"] {
            let status = service.status(service.get(path)).await;
            assert!(status != 204, "{kind:?}: {path} got around the limit");
            assert_eq!(status, if kind == Kind::Actix { 429 } else { 200 }, "{kind:?}: {path}");
        }
        let left = limiter.peek(&Rule::new("paths", 2, MINUTE), "/status/204").await.unwrap().remaining();
        assert_eq!(left, 1, "{kind:?}");
    }
}

#[tokio::test]
async fn a_value_of_middleware_is_a_key() {
    for kind in KINDS {
        let by = KeyBy::extension(|user: &UserId| user.0.clone());
        let (layer, ..) = timed([Limit::new(per_minute(1)).key(by)]).await;
        let service = Service::start(kind, layer);
        let as_user = |user: &str| service.get("/").header("x-user-id", user);
        assert_eq!(service.statuses(2, || as_user("alice")).await, [200, 429], "{kind:?}");
        assert_eq!(service.status(as_user("bob")).await, 200, "{kind:?}");
        assert_eq!(service.status(service.get("/")).await, 403, "{kind:?}");
    }
}

/// The peer, 127.0.0.1, is a trusted proxy here, or is not.
#[tokio::test]
async fn proxies_are_trusted_by_their_networks() {
    /// The field, the key, and how proxies write a list of addresses.
    type Field = (&'static str, fn(TrustedProxies) -> KeyBy, fn(&str) -> String);
    let fields: [Field; 2] = [
        ("x-forwarded-for", |trusted| KeyBy::x_forwarded_for(trusted), str::to_owned),
        (
            "forwarded",
            |trusted| KeyBy::forwarded(trusted),
            |list| list.split(", ").map(|address| format!("for={address}")).collect::<Vec<_>>().join(", "),
        ),
    ];
    for kind in KINDS {
        for (field, by, write) in fields {
            for (trusted, sent, key) in [
                // A client cannot choose its key, whatever it puts in front.
                (&["127.0.0.0/8"][..], Some("9.9.9.9, 203.0.113.7"), Some("203.0.113.7")),
                (&["127.0.0.0/8", "198.51.100.0/24"], Some("9.9.9.9, 203.0.113.7, 198.51.100.1"), Some("203.0.113.7")),
                (&["127.0.0.0/8", "198.51.100.0/24"], Some("198.51.100.9"), Some("198.51.100.9")),
                (&["127.0.0.1"], None, Some("127.0.0.1")),
                (&["127.0.0.1"], Some("203.0.113.7, unknown"), None),
                // It has not come through a proxy.
                (&["10.0.0.0/8"], Some("203.0.113.7"), Some("127.0.0.1")),
                (&[], Some("203.0.113.7"), Some("127.0.0.1")),
            ] {
                let what = format!("{kind:?}, {field}: {sent:?} behind {trusted:?}");
                let limit = Limit::new(per_minute(5)).key(by(networks(trusted).into()));
                let (layer, limiter, _clock) = timed([limit]).await;
                let service = Service::start(kind, layer);
                let request = match sent {
                    Some(list) => service.get("/").header(field, write(list)),
                    None => service.get("/"),
                };
                assert_eq!(service.status(request).await, if key.is_some() { 200 } else { 403 }, "{what}");
                if let Some(key) = key {
                    assert_eq!(limiter.peek(&per_minute(5), key).await.unwrap().remaining(), 4, "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_first_of_several_keys_counts() {
    for kind in KINDS {
        let by = || {
            let looked_up = KeyBy::from_async_fn(|request| {
                let name = request.headers.get("x-name").map(|name| name.as_bytes().to_vec());
                async move {
                    tokio::task::yield_now().await;
                    name.map(Key::new)
                }
            });
            KeyBy::first_of([KeyBy::extension(|user: &UserId| user.0.clone()), by_user(), looked_up])
        };
        let (layer, limiter, _clock) = timed([Limit::new(per_minute(9)).key(by())]).await;
        let service = Service::start(kind, layer);
        let all = service.get("/").header("x-user-id", "alice").header("x-user", "bob").header("x-name", "carol");
        assert_eq!(service.status(all).await, 200);
        let two = service.get("/").header("x-user", "alice").header("x-name", "carol");
        assert_eq!(service.status(two).await, 200);
        assert_eq!(service.status(service.get("/").header("x-name", "alice")).await, 200);
        assert_eq!(service.status(service.get("/")).await, 403, "{kind:?}: no key at all");
        let twice = service.get("/").header("x-user", "a").header("x-user", "b").header("x-name", "carol");
        assert_eq!(service.status(twice).await, 403, "{kind:?}: ambiguous");
        // One name, found in three ways, is three keys.
        for key in [Key::new("alice"), Key::new((1, "alice")), Key::new((2, "alice"))] {
            assert_eq!(limiter.peek(&per_minute(9), &key).await.unwrap().remaining(), 8, "{kind:?}: {key}");
        }
    }
}

#[tokio::test]
async fn an_allow_list_lifts_a_limit_for_its_keys_only() {
    for kind in KINDS {
        let limit = Limit::new(per_minute(1)).key(by_user()).allow_keys(["health", "admin"]);
        let (layer, ..) = timed([limit.on_missing_key(OnMissingKey::Shared)]).await;
        let service = Service::start(kind, layer);
        for user in ["health", "admin"] {
            assert_eq!(service.statuses(3, || service.get("/").header("x-user", user)).await, [200; 3], "{kind:?}");
        }
        assert_eq!(service.statuses(2, || service.get("/").header("x-user", "alice")).await, [200, 429], "{kind:?}");
        assert_eq!(service.statuses(2, || service.get("/")).await, [200, 429], "{kind:?}: no key is on no list");

        let by = KeyBy::first_of([by_user(), KeyBy::x_forwarded_for(1)]);
        let limit = Limit::new(per_minute(1)).key(by).allow_networks(networks(&["10.0.0.0/8", "2001:db8::/32"]));
        let service = Service::start(kind, timed([limit]).await.0);
        for (address, expected) in [
            ("10.1.2.3", [200, 200]),
            ("::ffff:10.1.2.3", [200, 200]),
            ("64:ff9b::10.1.2.3", [200, 200]),
            ("2001:db8::1", [200, 200]),
            ("11.1.2.3", [200, 429]),
            ("2001:db9::1", [200, 429]),
        ] {
            let from = || service.get("/").header("x-forwarded-for", address);
            assert_eq!(service.statuses(2, from).await, expected, "{kind:?}, {address}");
        }
        // A network of translated addresses is not that of the addresses they stand for.
        let limit =
            Limit::new(per_minute(1)).key(KeyBy::x_forwarded_for(1)).allow_networks(networks(&["64:ff9b::/96"]));
        let translated = Service::start(kind, timed([limit]).await.0);
        for (address, expected) in [("64:ff9b::10.1.2.3", [200, 200]), ("10.1.2.3", [200, 429])] {
            let from = || translated.get("/").header("x-forwarded-for", address);
            assert_eq!(translated.statuses(2, from).await, expected, "{kind:?}, {address}");
        }
        // A name is no address, even if it looks like one.
        let named = || service.get("/").header("x-user", "10.1.2.3");
        assert_eq!(service.statuses(2, named).await, [200, 429], "{kind:?}");
    }
}
