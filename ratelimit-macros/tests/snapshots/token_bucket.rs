async fn f() -> R {
    if let ::core::result::Result::Err(refused) = 'decided: {
        let deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new() },
            ::ratelimit_runtime::__private::charge(
                const {
                    &::ratelimit_runtime::__private::with_algorithm(
                        ::ratelimit_runtime::__private::rule("item", 100, 1, 60000),
                        ::ratelimit_runtime::Algorithm::TokenBucket {
                            burst: 200,
                            refill: ::ratelimit_runtime::Refill::Interval,
                        },
                    )
                },
                ::ratelimit_runtime::__private::no_key(),
                200,
            ),
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
