fn f(prompt: String) -> BoxFuture<'static, R<u64>> {
    let a = 5;
    async move {
        let deciding = crate::limits::__private::permit_requests_per_time(
            ::core::option::Option::None,
            const { crate::limits::__private::Call::new() },
            [
                {
                    let cost = crate::limits::__private::cost(most(&prompt));
                    crate::limits::__private::charge_settled(
                        const {
                            &crate::limits::__private::rule("tokens", 100000, 1, 60000)
                                .with_algorithm(crate::limits::Algorithm::SlidingLog)
                        },
                        crate::limits::__private::no_key(),
                        cost,
                    )
                }
                    .asked(),
            ],
        );
        let permit = match deciding.await {
            ::core::result::Result::Ok(permit) => permit,
            ::core::result::Result::Err(refused) => {
                return crate::limits::FromRefusal::from_refusal(refused);
            }
        };
        let outcome = async move {
            if let ::core::option::Option::Some(outcome) = ::core::option::Option::None::<
                R<u64>,
            > {
                return outcome;
            }
            { a }
        }
            .await;
        crate::limits::__private::settle(permit, &outcome, tokens);
        outcome
    }
        .boxed()
}
