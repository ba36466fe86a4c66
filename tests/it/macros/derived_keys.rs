//! Keys that are derived from the fields of a type.

use std::collections::HashMap;
use std::net::SocketAddr;

use proptest::prelude::*;
use ratelimit_runtime::{DisplayKey, Key, RateKey, limit_request_per_time};

use super::{R, limits_each_key};

#[derive(Clone, Debug, PartialEq, Eq, Hash, RateKey)]
struct Seller(u64);

#[derive(Clone, Debug, PartialEq, Eq, Hash, RateKey)]
struct Pair<T> {
    left: T,
    right: T,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, RateKey)]
#[allow(non_camel_case_types)]
enum Caller {
    Anonymous,
    Text(String),
    Texts(String, String),
    Named { name: String, seller: Seller },
    Nested(Box<Caller>),
    Pair(Pair<String>),
    Callers(Box<(Caller, Caller)>),
    r#type,
}

/// Texts that look like the keys of others.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("Anonymous".to_owned()),
        Just("type".to_owned()),
        "[a,()%01]{0,5}",
        "\\((Text|Texts|Nested|Pair),[a,()]{0,4}\\)",
    ]
}

fn callers() -> impl Strategy<Value = Caller> {
    let leaf = prop_oneof![
        Just(Caller::Anonymous),
        Just(Caller::r#type),
        texts().prop_map(Caller::Text),
        (texts(), texts()).prop_map(|(a, b)| Caller::Texts(a, b)),
        (texts(), 0..3_u64).prop_map(|(name, seller)| Caller::Named { name, seller: Seller(seller) }),
        (texts(), texts()).prop_map(|(left, right)| Caller::Pair(Pair { left, right })),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|caller| Caller::Nested(Box::new(caller))),
            (inner.clone(), inner).prop_map(|both| Caller::Callers(Box::new(both))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn two_values_never_have_one_key(callers in prop::collection::vec(callers(), 1..200)) {
        let mut values = HashMap::new();
        for caller in callers {
            let other = values.entry(Key::new(&caller)).or_insert_with(|| caller.clone());
            prop_assert_eq!(&*other, &caller, "{}", Key::new(&caller));
        }
    }
}

#[test]
fn keys_read_as_documented() {
    struct Weighed(f64);
    impl RateKey for Weighed {
        fn write_key(&self, key: &mut ratelimit_runtime::KeyWriter<'_>) {
            DisplayKey(self.0).write_key(key);
        }
    }
    #[derive(RateKey)]
    struct Unsized<T: ?Sized>(T);
    #[derive(RateKey)]
    struct Nine<'a, const N: usize>(u8, i8, char, bool, &'a str, String, [u8; N], SocketAddr, Weighed);
    #[derive(RateKey)]
    struct Named<T>
    where
        T: Copy,
    {
        name: T,
    }

    assert_eq!(Key::new(Seller(4711)), Key::new(4711));
    assert_eq!(Key::new(Named { name: "a,b" }), Key::new("a,b"));
    let bytes: &Unsized<[u8]> = &Unsized(*b"ab");
    assert_eq!(Key::new(bytes), Key::new("ab"));
    let address = "[::1]:80".parse().unwrap();
    let nine = Nine(1, -2, '(', true, "a b", "%".to_owned(), *b"x,", address, Weighed(0.5));
    assert_eq!(Key::new(nine).to_string(), "(1,-2,%28,true,a b,%25,x%2C,[::1]:80,0.5)");
    for (caller, key) in [
        (Caller::Anonymous, "Anonymous"),
        (Caller::r#type, "type"),
        (Caller::Text(String::new()), "(Text,)"),
        (Caller::Named { name: "a".into(), seller: Seller(1) }, "(Named,a,1)"),
        (Caller::Nested(Box::new(Caller::Text("b".into()))), "(Nested,(Text,b))"),
        (Caller::Pair(Pair { left: "a".into(), right: "b".into() }), "(Pair,(a,b))"),
    ] {
        assert_eq!(Key::new(caller).to_string(), key);
    }
}

#[tokio::test]
async fn annotated_functions_take_derived_and_printed_keys() {
    #[limit_request_per_time("seller", 1, Hours, 1, key = seller)]
    async fn derived(seller: Seller) -> R {
        Ok(seller.0)
    }
    #[limit_request_per_time("optional", 1, Hours, 1, key = seller, on_missing_key = Deny)]
    async fn optional(seller: Option<&Seller>) -> R {
        Ok(seller.map_or(0, |seller| seller.0))
    }
    #[limit_request_per_time("printed", 1, Hours, 1, key = (DisplayKey(&amount), "a"))]
    async fn printed(amount: f64) -> R<f64> {
        Ok(amount)
    }
    limits_each_key(async |id| derived(Seller(id)).await).await;
    limits_each_key(async |id| optional(Some(&Seller(id))).await).await;
    limits_each_key(async |id| printed(if id == 1 { 0.5 } else { 1.5 }).await.map(|_| id)).await;
}

#[test]
fn addresses_and_printed_values_are_their_texts() {
    let address: SocketAddr = "127.0.0.1:80".parse().unwrap();
    assert_eq!(Key::new(address), Key::new("127.0.0.1:80"));
    assert_ne!(Key::new(address), Key::new(address.ip()));
    let scoped: SocketAddr = "[fe80::1%5]:80".parse().unwrap();
    assert_eq!(Key::new(scoped).to_string(), "[fe80::1%255]:80");
    let SocketAddr::V6(scoped_v6) = scoped else { panic!("an IPv6 address") };
    assert_eq!(Key::new(scoped_v6), Key::new(scoped));
    assert_eq!(Key::new(DisplayKey(4711)), Key::new(4711));
    assert_eq!(Key::new(DisplayKey("a,(b)")), Key::new("a,(b)"));
    assert_ne!(Key::new(DisplayKey("(a,b)")), Key::new(("a", "b")));
}
