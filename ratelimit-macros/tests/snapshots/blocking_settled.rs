fn f(&self, prompt: &str) -> Result<impl Answer, E> {
    let __ratelimit_deciding = {
        crate::limits::__private::permit_of_several(
            ::core::option::Option::None,
            crate::limits::__private::Call::DEFAULT,
            (
                {
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
                        4000,
                    )
                },
                (),
            ),
        )
    };
    let __ratelimit_permit = match __ratelimit_deciding.block() {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            return crate::limits::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    let __ratelimit_outcome = crate::limits::__private::run_body(move || {
        if let ::core::option::Option::Some(__ratelimit_outcome) = ::core::option::Option::None::<
            Result<_, E>,
        > {
            return __ratelimit_outcome;
        }
        '__ratelimit_body: { ask(prompt)? }
    });
    crate::limits::__private::settle(__ratelimit_permit, &__ratelimit_outcome, tokens);
    __ratelimit_outcome
}
