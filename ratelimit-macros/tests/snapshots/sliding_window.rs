async fn f() -> R {
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            match ::ratelimit_runtime::__private::limit_one(
                ::core::option::Option::None,
                ::ratelimit_runtime::__private::Call::DEFAULT,
                const {
                    &::ratelimit_runtime::__private::with_algorithm(
                        ::ratelimit_runtime::__private::unchecked_rule(
                            "item",
                            100,
                            1,
                            60000,
                        ),
                        ::ratelimit_runtime::Algorithm::SlidingWindow {
                            buckets: ::ratelimit_runtime::__private::Constant(BUCKETS)
                                .integer(),
                            weighted: true,
                        },
                    )
                },
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
