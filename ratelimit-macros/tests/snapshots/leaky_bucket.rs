async fn f(limit: u64) -> R {
    if let ::core::result::Result::Err(refused) = 'decided: {
        let deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new() },
            {
                let count = ::ratelimit_runtime::__private::count(limit);
                ::ratelimit_runtime::__private::charge(
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
                        count,
                    ),
                    ::ratelimit_runtime::__private::no_key(),
                    1,
                )
            },
        ) {
            ::ratelimit_runtime::__private::Attempted::Admitted => {
                break 'decided (::core::result::Result::Ok(()));
            }
            ::ratelimit_runtime::__private::Attempted::Refused(refused) => {
                break 'decided (::core::result::Result::Err(refused));
            }
            ::ratelimit_runtime::__private::Attempted::Deferred(deferred) => {
                deferred.decide()
            }
        };
        deciding.await
    } {
        return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
    }
    {}
}
