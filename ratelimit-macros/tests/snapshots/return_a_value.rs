async fn f() -> R {
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            match ::ratelimit_runtime::__private::limit_one(
                ::core::option::Option::None,
                ::ratelimit_runtime::__private::Call::DEFAULT,
                const { &::ratelimit_runtime::__private::rule("item", 1, 1, 1000) },
                ::ratelimit_runtime::__private::no_key(),
                1,
                &mut __ratelimit_refused,
            ) {
                ::ratelimit_runtime::__private::Attempted::Admitted => {
                    break 'decided (::core::option::Option::None);
                }
                ::ratelimit_runtime::__private::Attempted::Refused => {
                    break 'decided __ratelimit_refused;
                }
                ::ratelimit_runtime::__private::Attempted::Deferred(
                    __ratelimit_deciding,
                ) => __ratelimit_deciding,
            }
        };
        __ratelimit_deciding.await
    } {
        let refused = __ratelimit_refused;
        let _ = &refused;
        return cached(&refused).await;
    }
    '__ratelimit_body: {}
}
