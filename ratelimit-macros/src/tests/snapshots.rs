//! Compares the generated code with the files in `tests/snapshots/`. `UPDATE_SNAPSHOTS=1` rewrites
//! them.

use std::path::Path;

use proc_macro2::{Delimiter, Group, TokenStream};
use quote::{ToTokens as _, quote};

use crate::expand::expand;
use crate::kind::AttributeKind;
use crate::rate_key::derive;

fn check(kind: AttributeKind, name: &str, args: &str, item: &str) {
    compare(name, &expand(kind, args.parse().unwrap(), item.parse().unwrap()));
}

fn compare(name: &str, tokens: &TokenStream) {
    let found = prettyplease::unparse(&syn::parse2(tokens.clone()).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/snapshots/{name}.rs"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found,
        expected,
        "the generated code differs from {}. If that is intended, run UPDATE_SNAPSHOTS=1 cargo test -p ratelimit-macros",
        path.display()
    );
}

#[test]
fn derived_keys() {
    let derived = [
        "struct Seller<T: ?Sized>(T);",
        "struct Account<'a, const N: usize> { shop: &'a str, seller: [u8; N] }",
        "enum Caller { Anonymous, r#Type(u64, char), Account { id: u64 } }",
        "#[rate_key(crate = crate::limits)] struct Elsewhere<T>(T, u8);",
        "#[rate_key(crate = ::limits::runtime)] enum Elsewhere { Anonymous, User(u64) }",
    ];
    compare("derived_keys", &derived.into_iter().map(|item| derive(item.parse().unwrap())).collect());
}

macro_rules! snapshots {
    ($kind:ident: $($name:ident: #[$args:literal] $item:literal)*) => {
        $(
            #[test]
            fn $name() {
                check(AttributeKind::$kind, stringify!($name), $args, $item);
            }
        )*
    };
}

snapshots! {
    PerTime:

    simple:
        #[r#"prefix = "item", ttl = 1, unit = Minutes, count = 100, key = req.seller_id"#]
        "pub async fn save(req: Req) -> Result<Saved, E> { store(req).await }"

    positional_with_every_word_as_a_path:
        #[r#""item", TTL, TimeUnit::Hours, const { N as u64 }, algorithm = Algorithm::SlidingLog, on_store_error = OnStoreError::Deny"#]
        "async fn f<const N: usize>() -> R {}"

    aligned_window_with_settings:
        #[r#"prefix = concat!("a", "b"), unit = Days, count = 5, algorithm = FixedWindow(align = true), limiter = &state.limiter, on_limit = Wait(max = "1m30s"), on_store_error = Allow, crate = ::facade::limits, prefetch = 1, shadow = false"#]
        "async fn f(state: State) -> R { #![allow(unused)] body() }"

    dynamic_count_and_cost:
        #[r#"prefix = "item", unit = Seconds, count = plan.limit(), key = id, on_missing_key = Shared, cost = rows.len()"#]
        "async fn f(id: Option<u64>, plan: Plan, rows: Vec<Row>) -> R {}"

    prefetched_without_denial_cache:
        #[r#"prefix = "item", unit = Seconds, count = limit(), algorithm = FixedWindow, prefetch = SIZE, denial_cache = false"#]
        "async fn f() -> R {}"

    period:
        #[r#"prefix = "item", period = "90s", count = 5, on_limit = Wait(max = LONGEST)"#]
        "async fn f() -> R {}"

    constant_rule:
        #["rule = rules::ORDERS, key = id, cost = 5"]
        "async fn f(id: u64) -> R {}"

    shadow:
        #[r#""item", 1, Minutes, 100, algorithm = TokenBucket, shadow = true"#]
        "async fn f() -> R {}"

    sliding_window:
        #[r#"prefix = "item", unit = Minutes, count = 100, algorithm = SlidingWindow(buckets = BUCKETS)"#]
        "async fn f() -> R {}"

    sliding_window_of_one_bucket:
        #[r#"prefix = "item", unit = Minutes, count = 100, algorithm = SlidingWindow, crate = crate::limits"#]
        "async fn f() -> R {}"

    token_bucket:
        #[r#"prefix = "item", unit = Minutes, count = 100, algorithm = TokenBucket(burst = 200u64, refill = Refill::Interval), cost = 200"#]
        "async fn f() -> R {}"

    token_bucket_that_holds_a_dynamic_count:
        #[r#"prefix = "item", unit = Minutes, count = limit, algorithm = Algorithm::TokenBucket"#]
        "async fn f(limit: u64) -> R {}"

    leaky_bucket:
        #[r#"prefix = "item", unit = Minutes, count = limit, algorithm = LeakyBucket(queue = const { N * 2 })"#]
        "async fn f(limit: u64) -> R {}"

    return_a_value:
        #[r#"prefix = "item", unit = Seconds, count = 1, on_limit = Return(cached(&refused).await)"#]
        "async fn f() -> R {}"

    permit:
        #[r#"prefix = "item", unit = Seconds, count = 1, permit = slot, on_limit = Wait, cost = 0"#]
        "async fn f() -> R { slot.refund().await }"

    stacked:
        #[r#"prefix = "first", unit = Seconds, count = 1, key = id"#]
        r#"
            /// Docs.
            #[limit_request_per_time(prefix = "second", unit = Hours, count = limit, on_limit = Wait)]
            #[inline]
            #[ratelimit_runtime::limit_request_per_time("third", 1, Days, 1000)]
            async unsafe fn f(id: u64, limit: u64) -> R {}
        "#

    impl_block:
        #[r#"prefix = "api", unit = Seconds, count = 1, key = self.id"#]
        r#"
            unsafe impl<const N: usize> Api<{ N }> {
                #![allow(unused)]
                const LIMIT: u64 = 1;
                pub(crate) async fn get(&self) -> R { self.id }
                #[limit_request_per_time(prefix = "put", unit = Days, count = 9)]
                async fn put(mut self: Box<Self>) -> R {}
                #[limit_request_per_time(skip)]
                async fn health(&self) {}
                fn id(&self) -> u64 { self.id }
            }
        "#

    trait_default_method:
        #[r#"prefix = "item", unit = Seconds, count = 1, key = self.id()"#]
        "async fn call(&self) -> R { default() }"

    returns_a_future:
        #[r#"prefix = "item", unit = Seconds, count = 1, key = id"#]
        "fn f(id: u64) -> impl Future<Output = R> + Send { let next = id + 1; async move { next } }"

    returns_a_boxed_future:
        #[r#"prefix = "item", unit = Seconds, count = 1, key = id"#]
        "fn f(id: u64) -> Pin<Box<dyn Future<Output = R> + Send>> { Box::pin(async move { id }) as _ }"

    async_trait_expanded_first:
        #[r#"prefix = "item", unit = Seconds, count = 1, key = (self.id, x)"#]
        "
            fn f<'life0, 'async_trait>(&'life0 self, x: u64, __arg1: (u64, u64))
                -> ::core::pin::Pin<Box<dyn ::core::future::Future<Output = R> + Send + 'async_trait>>
            where 'life0: 'async_trait, Self: 'async_trait
            {
                Box::pin(async move {
                    let __self = self;
                    let x = x;
                    let (a, b) = { let __arg1 = __arg1; __arg1 };
                    let __ret: R = { a + b };
                    __ret
                })
            }
        "

    async_trait_expanding_later:
        #[r#"prefix = "item", unit = Seconds, count = 1, key = self.id"#]
        "#[async_trait] impl Api for Client { async fn get(&self, (a, b): (u64, u64)) -> R { a } }"

    elapsed:
        #[r#""queries", 1, Minutes, 20_000, key = user, algorithm = SlidingLog, cost = Elapsed(max = "5s")"#]
        "async fn f(user: u64) -> R { body() }"

    elapsed_with_a_permit:
        #[r#""queries", 1, Minutes, budget, algorithm = SlidingLog, cost = Elapsed, permit = permit, shadow = true"#]
        "async fn f(budget: u64) -> R { query(permit.remaining_time()).await }"

    settled:
        #[r#""tokens", 1, Minutes, 100_000, key = user, algorithm = SlidingLog, cost = Settled(max = 4_000, |answer| answer.tokens())"#]
        "async fn f(user: u64) -> Result<impl Answer, (E, [impl X; 1])> { ask(user).await }"

    settled_in_a_returned_future:
        #[r#""tokens", 1, Minutes, 100_000, algorithm = SlidingLog, cost = Settled(tokens, max = most(&prompt)), crate = crate::limits"#]
        "fn f(prompt: String) -> BoxFuture<'static, R<u64>> { let a = 5; async move { a }.boxed() }"

    settled_in_an_alias:
        #[r#""tokens", 1, Minutes, 100_000, algorithm = SlidingLog, cost = Settled(max = 4_000, |answer: &R| 5)"#]
        "fn f() -> Answering { Box::pin(async move { ask().await }) }"

    blocking:
        #[r#""item", 1, Minutes, 100, key = id, on_limit = Return(Ok(cached(refused))), blocking"#]
        "pub unsafe extern \"C\" fn f(id: u64) -> R { body()? }"

    blocking_settled:
        #[r#""tokens", 1, Minutes, 100_000, algorithm = SlidingLog, cost = Settled(max = 4_000, tokens), crate = crate::limits, blocking"#]
        "fn f(&self, prompt: &str) -> Result<impl Answer, E> { ask(prompt)? }"

    blocking_beside_a_concurrent_one:
        #[r#""calls", 1, Minutes, 100, on_limit = Wait"#]
        r#"
            #[limit_concurrent_requests("export", 3, permit = place, blocking)]
            fn f() -> R { place.is_held() }
        "#

    beside_a_concurrent_one:
        #[r#""calls", 1, Minutes, 100, key = id, on_limit = Wait, on_store_error = Deny"#]
        r#"
            #[limit_concurrent_requests("export", 3, key = id, lease = "1m", on_limit = Return(Err(busy(refused))))]
            async fn f(id: u64) -> R {}
        "#

    errors_keep_the_item:
        #[r#"prefx = "item", unit = Minuts, count = 0"#]
        r#"
            #[inline]
            #[limit_request_per_time(prefix = "second", unit = Hours)]
            async fn f() -> R { body }
        "#
}

snapshots! {
    Places:

    concurrent:
        #[r#"prefix = "export", count = 3, key = id"#]
        "async fn f(id: u64) -> R { export(id).await }"

    concurrent_with_all_arguments:
        #[r#""export", plan.places(), key = id, lease = "1m", on_limit = Wait(max = "5s"), on_store_error = Deny, on_missing_key = Skip, permit = place, limiter = &self.limiter, crate = ::facade"#]
        "async fn f(&self, id: Option<u64>) -> R { place.is_held() }"

    concurrent_above_others:
        #[r#""export", 3, on_limit = Wait"#]
        r#"
            #[limit_request_per_time("calls", 1, Minutes, 100, on_limit = Return(cached(refused)))]
            #[limit_concurrent_requests(prefix = "all", count = const { N })]
            async fn f() -> R {}
        "#

    concurrent_impl_block:
        #[r#""export", 3, key = self.id"#]
        r#"
            impl Api {
                async fn get(&self) -> R {}
                #[limit_request_per_time("put", 1, Days, 9)]
                fn put(&self) -> Pin<Box<dyn Future<Output = R>>> { Box::pin(async move {}) }
                #[limit_request_per_time(skip)]
                async fn health(&self) {}
            }
        "#
}

/// A `macro_rules!` macro passes its arguments on in groups without delimiters.
#[test]
fn through_a_macro() {
    let hidden = |text: &str| Group::new(Delimiter::None, text.parse().unwrap()).into_token_stream();
    let (prefix, count, key) = (hidden("\"item\""), hidden("5"), hidden("a + b"));
    let (unit, on_limit) = (hidden("TimeUnit::Days"), hidden("Wait(max = \"1s\")"));
    let (ty, body) = (hidden("R<u64>"), hidden("{ body() }"));
    let args = quote!(prefix = #prefix, unit = #unit, count = #count, key = #key, on_limit = #on_limit);
    let item = quote!(pub async fn f(a: u64, b: u64) -> #ty #body);
    let group = hidden(&item.to_string());
    for item in [item, quote!(#group)] {
        let tokens = expand(AttributeKind::PerTime, args.clone(), item);
        compare("through_a_macro", &tokens.to_string().parse().unwrap());
    }
}
