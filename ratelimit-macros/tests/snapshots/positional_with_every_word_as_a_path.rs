async fn f<const N: usize>() -> R {
    if let ::core::result::Result::Err(refused) = 'decided: {
        let deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const {
                ::ratelimit_runtime::__private::Call::new()
                    .on_store_error(::ratelimit_runtime::OnStoreError::Deny)
            },
            ::ratelimit_runtime::__private::charge(
                const {
                    &::ratelimit_runtime::__private::rule(
                            "item",
                            const { N as u64 },
                            TTL,
                            3600000,
                        )
                        .with_algorithm(::ratelimit_runtime::Algorithm::SlidingLog)
                },
                ::ratelimit_runtime::__private::no_key(),
                1,
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
