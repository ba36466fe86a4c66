async fn f(budget: u64) -> R {
    let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
        ::core::option::Option::None,
        const { ::ratelimit_runtime::__private::Call::new() },
        [
            {
                let count = ::ratelimit_runtime::__private::count(budget);
                ::ratelimit_runtime::__private::charge_elapsed(
                    ::ratelimit_runtime::__private::with_count(
                        const {
                            &::ratelimit_runtime::__private::rule_without_count(
                                    "queries",
                                    1,
                                    60000,
                                )
                                .with_algorithm(::ratelimit_runtime::Algorithm::SlidingLog)
                                .with_shadow(true)
                        },
                        count,
                    ),
                    ::ratelimit_runtime::__private::no_key(),
                    ::core::option::Option::None,
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
    { query(permit.remaining_time()).await }
}
