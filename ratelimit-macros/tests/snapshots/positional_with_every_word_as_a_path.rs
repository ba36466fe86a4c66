async fn f<const N: usize>() -> R {
    if let ::core::result::Result::Err(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const {
                ::ratelimit_runtime::__private::Call::new()
                    .on_store_error(::ratelimit_runtime::OnStoreError::Deny)
            },
            ::ratelimit_runtime::__private::charge(
                const {
                    &::ratelimit_runtime::__private::with_algorithm(
                        ::ratelimit_runtime::__private::unchecked_rule(
                            "item",
                            const { N as u64 },
                            ::ratelimit_runtime::__private::Constant(TTL).integer(),
                            3600000,
                        ),
                        ::ratelimit_runtime::Algorithm::SlidingLog,
                    )
                },
                ::ratelimit_runtime::__private::no_key(),
                1,
            ),
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
