fn f() -> Answering {
    Box::pin(async move {
        let __ratelimit_deciding = {
            ::ratelimit_runtime::__private::permit_of_several(
                ::core::option::Option::None,
                ::ratelimit_runtime::__private::Call::DEFAULT,
                (
                    {
                        ::ratelimit_runtime::__private::charge_settled(
                            const {
                                &::ratelimit_runtime::__private::with_algorithm(
                                    ::ratelimit_runtime::__private::unchecked_rule(
                                        "tokens",
                                        100000,
                                        1,
                                        60000,
                                    ),
                                    ::ratelimit_runtime::Algorithm::SlidingLog,
                                )
                            },
                            ::ratelimit_runtime::__private::no_key(),
                            4000,
                        )
                    },
                    (),
                ),
            )
        };
        let __ratelimit_permit = match __ratelimit_deciding.await {
            ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
            ::core::result::Result::Err(__ratelimit_refused) => {
                return ::ratelimit_runtime::FromRefusal::from_refusal(
                    __ratelimit_refused,
                );
            }
        };
        let __ratelimit_outcome = async move {
            if let ::core::option::Option::Some(__ratelimit_outcome) = ::core::option::Option::None::<
                R,
            > {
                return __ratelimit_outcome;
            }
            '__ratelimit_body: { ask().await }
        }
            .await;
        ::ratelimit_runtime::__private::settle(
            __ratelimit_permit,
            &__ratelimit_outcome,
            |answer: &R| 5,
        );
        __ratelimit_outcome
    })
}
