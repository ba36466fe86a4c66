async fn f<const N: usize>() -> R {
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            match ::ratelimit_runtime::__private::limit_one(
                ::core::option::Option::None,
                const {
                    ::ratelimit_runtime::__private::Call::DEFAULT
                        .on_store_error(::ratelimit_runtime::OnStoreError::Deny)
                },
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
