async fn f(limit: u64) -> R {
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            let __ratelimit_count = ::ratelimit_runtime::__private::count(limit);
            match ::ratelimit_runtime::__private::limit_one(
                ::core::option::Option::None,
                ::ratelimit_runtime::__private::Call::DEFAULT,
                ::ratelimit_runtime::__private::with_count(
                    const {
                        &::ratelimit_runtime::__private::with_algorithm(
                            ::ratelimit_runtime::__private::rule_without_count(
                                "item",
                                1,
                                60000,
                            ),
                            ::ratelimit_runtime::Algorithm::LeakyBucket {
                                queue: const { N * 2 },
                            },
                        )
                    },
                    __ratelimit_count,
                ),
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
        return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
    }
    '__ratelimit_body: {}
}
