//! Names: inside macros, equal to those in generated code, and the path of the runtime.

use ratelimit_runtime::{Limiter, OnStoreError, limit_request_per_time};

use super::{R, exceeded, limits_each_key};

/// As a crate does that passes the runtime on.
pub(crate) mod facade {
    pub(crate) use ::ratelimit_runtime;
}

/// Every kind of value through a macro.
macro_rules! limited {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($argument:ident: $type:ty) -> $returned:ty $body:block
     $prefix:literal, $ttl:expr, $unit:ident, $count:literal, $key:expr, $cost:expr, $limiter:expr, $word:ident, $max:literal) => {
        #[limit_request_per_time($prefix, $ttl, $unit, $count, key = $key, cost = $cost, limiter = $limiter,
            on_store_error = $word, on_limit = Wait(max = $max))]
        $(#[$meta])*
        $vis async fn $name($argument: $type) -> $returned $body
    };
}

#[tokio::test]
async fn a_function_inside_a_macro_is_limited() {
    const TWO: u64 = 2;
    limited! {
        /// Docs.
        pub(super) fn call(id: u64) -> R { Ok(id) }
        "item", TWO, Minutes, 3, id, TWO + 1, &Limiter::in_memory().clone(), Deny, "1s"
    }
    // A limiter of its own in each call.
    assert_eq!(call(1).await.unwrap(), 1);
    assert_eq!(call(1).await.unwrap(), 1);
    macro_rules! of_macro {
        ($id:ident, $count:expr, $ttl:literal) => {
            #[limit_request_per_time("item", $ttl, TimeUnit::Hours, $count, key = $id, crate = ::ratelimit_runtime)]
            async fn counted($id: u64) -> R {
                Ok($id)
            }
            #[limit_request_per_time(prefix = concat!("no", "key"), ttl = $ttl, unit = Hours, count = 1)]
            async fn without_key() -> R {
                let id = 5;
                Ok(id)
            }
        };
    }
    of_macro!(id, 1, 1);
    limits_each_key(counted).await;
    let calls = async {
        assert_eq!(without_key().await.unwrap(), 5);
        exceeded(without_key().await);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn a_function_passed_through_a_macro_is_limited() {
    macro_rules! passed_on {
        ($item:item) => {
            $item
        };
    }
    macro_rules! limited_there {
        ($item:item) => {
            #[limit_request_per_time("item", 1, Hours, 1)]
            $item
        };
    }
    macro_rules! tokens {
        ($($token:tt)*) => { $($token)* };
    }
    macro_rules! with_body {
        ($key:expr; $vis:vis fn $name:ident($id:ident) $body:block) => {
            #[limit_request_per_time("item", 1, Hours, 1, key = $key)]
            $vis async fn $name($id: u64) -> R $body
        };
    }
    passed_on! {
        #[limit_request_per_time("item", 1, Hours, 1, key = id)]
        async fn call(id: u64) -> R {
            Ok(id)
        }
    }
    limited_there! {
        #[inline]
        async fn item(id: u64) -> R {
            Ok(id)
        }
    }
    tokens! {
        #[limit_request_per_time("item", 1, Hours, 1, key = id)]
        async fn of_tokens(id: u64) -> R {
            Ok(id)
        }
    }
    with_body!((id, "one"); pub(super) fn bodied(id) { Ok(id) });
    limits_each_key(call).await;
    limits_each_key(of_tokens).await;
    limits_each_key(bodied).await;
    let calls = async {
        assert_eq!(item(1).await.unwrap(), 1);
        exceeded(item(2).await);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn an_impl_block_inside_a_macro_is_limited() {
    struct Client(u64);
    macro_rules! implement {
        ($type:ty, $returned:ty) => {
            #[limit_request_per_time("item", 1, Hours, 1, key = self.0)]
            impl $type {
                async fn call(&self) -> $returned {
                    Ok(self.0)
                }
            }
        };
    }
    implement!(Client, R);
    limits_each_key(async |id| Client(id).call().await).await;
}

/// Arguments have the names of the attribute's own locals and functions, in every setting at once.
#[tokio::test]
async fn arguments_may_have_the_names_of_generated_locals() {
    #[limit_request_per_time("item", 1, Hours, count = count, key = (deciding, refused, charges, key, rule, call), cost = cost,
        limiter = limiter, permit = permit)]
    #[limit_request_per_time("other", 1, Hours, count = rule, key = optional_key, on_missing_key = Shared, cost = call)]
    #[expect(clippy::too_many_arguments)]
    async fn every_name(
        deciding: u64,
        refused: u64,
        limiter: &Limiter,
        charges: u64,
        count: u64,
        key: u64,
        cost: u64,
        rule: u64,
        call: u64,
        optional_key: Option<u64>,
    ) -> R {
        assert_eq!((permit.limit(), limiter.peek(&ITEM, 0).await?.limit()), (1, 1));
        Ok(deciding + refused + charges + count + key + cost + rule + call + optional_key.unwrap_or_default() - 8)
    }
    const ITEM: ratelimit_runtime::Rule = ratelimit_runtime::Rule::new("item", 1, std::time::Duration::from_secs(3600));
    let limiter = Limiter::in_memory();
    let call = async |id| every_name(1, 1, &limiter, 1, 1, id, 1, 1, 1, Some(id)).await.map(|sum| sum - id + 1);
    limits_each_key(call).await;
}

#[tokio::test]
async fn functions_may_have_the_names_of_generated_locals() {
    #[limit_request_per_time("item", 1, Hours, 1, key = key, on_limit = Return(Ok(deciding(key))))]
    async fn limit(key: u64) -> R {
        Ok(key)
    }
    fn deciding(key: u64) -> u64 {
        key + 10
    }
    let calls = async {
        assert_eq!(limit(1).await.unwrap(), 1);
        assert_eq!(limit(1).await.unwrap(), 11);
        assert_eq!(limit(2).await.unwrap(), 2);
    };
    Limiter::in_memory().scope(calls).await;
}

/// In `Return`, `refused` is the error; an argument of that name is the body's.
#[tokio::test]
async fn an_argument_may_be_named_refused() {
    #[limit_request_per_time("item", 1, Hours, 3, key = refused, cost = 3, on_limit = Return(Ok(refused.limit())))]
    async fn call(refused: u64) -> R {
        Ok(refused)
    }
    let calls = async {
        assert_eq!(call(1).await.unwrap(), 1);
        assert_eq!(call(1).await.unwrap(), 3);
    };
    Limiter::in_memory().scope(calls).await;
}

/// The module has its own `Result`, `Some`, `core` and `limit_request_per_time`.
#[tokio::test]
async fn names_of_the_prelude_may_be_shadowed() {
    #[allow(dead_code, non_camel_case_types)]
    mod shadowed {
        use super::R as Returned;

        pub(super) mod core {}
        pub(super) mod std {}
        pub(super) mod ratelimit_runtime {}
        struct Result;
        struct Option;
        struct Ok;
        struct Err;
        struct Some;
        struct None;
        struct Box;
        struct Limiter;
        struct FromRefusal;
        struct OnStoreError;
        struct u64;
        struct bool;
        fn drop() {}
        fn charge() {}
        fn rule() {}
        fn from_refusal() {}
        trait From {}
        trait Into {}
        trait Future {}

        #[super::limit_request_per_time("item", 1, Hours, 1, key = id, permit = _permit, limiter = limiter,
            on_limit = Return(::core::result::Result::Err(refused)), on_store_error = Deny)]
        #[::ratelimit_runtime::limit_request_per_time("other", 1, Hours, count = count, key = key, on_missing_key = Deny,
            algorithm = FixedWindow(align = false))]
        pub(super) async fn call(
            id: ::core::primitive::u64,
            count: ::core::primitive::u8,
            key: ::core::option::Option<&str>,
            limiter: &::ratelimit_runtime::Limiter,
        ) -> Returned {
            ::core::result::Result::Ok(id)
        }
    }
    let limiter = Limiter::in_memory();
    limits_each_key(async |id| shadowed::call(id, 9, Some("key"), &limiter).await).await;
}

#[tokio::test]
async fn the_runtime_may_be_at_another_path() {
    #[limit_request_per_time("item", 1, Hours, limit, key = id, crate = crate::macros::names::facade::ratelimit_runtime,
        on_store_error = Deny, on_missing_key = Deny, limiter = limiter, algorithm = SlidingLog, permit = _permit)]
    async fn of_crate(id: Option<u64>, limit: u64, limiter: &Limiter) -> R {
        Ok(id.unwrap_or_default())
    }
    macro_rules! of_macro {
        ($id:ident) => {
            #[limit_request_per_time("item", 1, Hours, 1, key = $id,
                                                    crate = $crate::macros::names::facade::ratelimit_runtime)]
            #[limit_request_per_time("other", 1, Hours, 1, key = $id,
                                                    crate = $crate::macros::names::facade::ratelimit_runtime)]
            async fn of_dollar_crate($id: u64) -> R {
                Ok($id)
            }
        };
    }
    of_macro!(id);
    let limiter = Limiter::in_memory();
    limits_each_key(async |id| of_crate(Some(id), 1, &limiter).await).await;
    limits_each_key(of_dollar_crate).await;
}

/// Imported under another name, or not at all.
#[tokio::test]
async fn the_attribute_may_be_imported_under_another_name() {
    use ratelimit_runtime::limit_request_per_time as limited;

    #[limited("item", 1, Hours, 1, key = id)]
    async fn renamed(id: u64) -> R {
        Ok(id)
    }
    #[ratelimit_runtime::limit_request_per_time("item", 1, Hours, 1, key = id)]
    async fn by_path(id: u64) -> R {
        Ok(id)
    }
    limits_each_key(renamed).await;
    limits_each_key(by_path).await;
}

/// Words of the attribute may stand behind any path, even where other things have their names.
#[tokio::test]
async fn words_of_the_attribute_are_not_resolved_as_paths() {
    #[expect(dead_code, reason = "only its name matters")]
    struct Minutes;
    #[limit_request_per_time("item", 1, Minutes, 1, key = id, on_store_error = OnStoreError::Deny,
        algorithm = Algorithm::SlidingLog)]
    async fn call(id: u64) -> R {
        let _ = OnStoreError::Deny;
        Ok(id)
    }
    limits_each_key(call).await;
}
