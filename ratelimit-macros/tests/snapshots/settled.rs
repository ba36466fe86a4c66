async fn f(user: u64) -> Result<impl Answer, (E, [impl X; 1])> {
    let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
        ::core::option::Option::None,
        const { ::ratelimit_runtime::__private::Call::new() },
        [
            {
                let key = ::ratelimit_runtime::__private::key(&(user));
                ::ratelimit_runtime::__private::charge_settled(
                    const {
                        &::ratelimit_runtime::__private::rule("tokens", 100000, 1, 60000)
                            .with_algorithm(::ratelimit_runtime::Algorithm::SlidingLog)
                    },
                    key,
                    4000,
                )
            }
                .asked(),
        ],
    );
    let permit = match deciding.await {
        ::core::result::Result::Ok(permit) => permit,
        ::core::result::Result::Err(refused) => {
            return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
        }
    };
    let outcome = async move {
        if let ::core::option::Option::Some(outcome) = ::core::option::Option::None::<
            Result<_, (E, [_; 1])>,
        > {
            return outcome;
        }
        { ask(user).await }
    }
        .await;
    ::ratelimit_runtime::__private::settle(permit, &outcome, |answer| answer.tokens());
    outcome
}
