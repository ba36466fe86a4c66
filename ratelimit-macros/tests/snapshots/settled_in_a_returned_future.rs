fn f(prompt: String) -> BoxFuture<'static, R<u64>> {
    let a = 5;
    async move {
        let __ratelimit_deciding = {
            crate::limits::__private::permit_of_several(
                ::core::option::Option::None,
                crate::limits::__private::Call::DEFAULT,
                (
                    {
                        let __ratelimit_cost = crate::limits::__private::cost(
                            most(&prompt),
                        );
                        crate::limits::__private::charge_settled(
                            const {
                                &crate::limits::__private::with_algorithm(
                                    crate::limits::__private::unchecked_rule(
                                        "tokens",
                                        100000,
                                        1,
                                        60000,
                                    ),
                                    crate::limits::Algorithm::SlidingLog,
                                )
                            },
                            crate::limits::__private::no_key(),
                            __ratelimit_cost,
                        )
                    },
                    (),
                ),
            )
        };
        let __ratelimit_permit = match __ratelimit_deciding.await {
            ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
            ::core::result::Result::Err(__ratelimit_refused) => {
                return crate::limits::FromRefusal::from_refusal(__ratelimit_refused);
            }
        };
        let __ratelimit_outcome = async move {
            if let ::core::option::Option::Some(__ratelimit_outcome) = ::core::option::Option::None::<
                R<u64>,
            > {
                return __ratelimit_outcome;
            }
            '__ratelimit_body: { a }
        }
            .await;
        crate::limits::__private::settle(
            __ratelimit_permit,
            &__ratelimit_outcome,
            tokens,
        );
        __ratelimit_outcome
    }
        .boxed()
}
