async fn f() -> R {
    if let ::core::result::Result::Err(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new() },
            {
                let __ratelimit_count = ::ratelimit_runtime::__private::count(limit());
                ::ratelimit_runtime::__private::charge(
                    ::ratelimit_runtime::__private::with_count(
                        const {
                            &::ratelimit_runtime::__private::prefetch(
                                    ::ratelimit_runtime::__private::rule_without_count(
                                        "item",
                                        1,
                                        1000,
                                    ),
                                    ::ratelimit_runtime::__private::Constant(SIZE).integer(),
                                )
                                .with_denial_cache(false)
                        },
                        __ratelimit_count,
                    ),
                    ::ratelimit_runtime::__private::no_key(),
                    1,
                )
            },
        ) {
            ::ratelimit_runtime::__private::Attempted::Admitted => {
                break 'decided (::core::result::Result::Ok(()));
            }
            ::ratelimit_runtime::__private::Attempted::Refused(__ratelimit_refused) => {
                break 'decided (::core::result::Result::Err(__ratelimit_refused));
            }
            ::ratelimit_runtime::__private::Attempted::Deferred(__ratelimit_deferred) => {
                __ratelimit_deferred.decide()
            }
        };
        __ratelimit_deciding.await
    } {
        return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
    }
    '__ratelimit_body: {}
}
