fn f() -> Answering {
    Box::pin(async move {
        let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new() },
            [
                ::ratelimit_runtime::__private::charge_settled(
                        const {
                            &::ratelimit_runtime::__private::rule(
                                    "tokens",
                                    100000,
                                    1,
                                    60000,
                                )
                                .with_algorithm(::ratelimit_runtime::Algorithm::SlidingLog)
                        },
                        ::ratelimit_runtime::__private::no_key(),
                        4000,
                    )
                    .asked(),
            ],
        );
        let permit = match deciding.await {
            ::core::result::Result::Ok(permit) => permit,
            ::core::result::Result::Err(refused) => {
                return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
            }
        };
        let outcome = async move { { ask().await } }.await;
        ::ratelimit_runtime::__private::settle(permit, &outcome, |answer: &R| 5);
        outcome
    })
}
