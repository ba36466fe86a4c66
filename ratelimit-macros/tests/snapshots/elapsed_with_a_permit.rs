async fn f(budget: u64) -> R {
    let __ratelimit_deciding = {
        ::ratelimit_runtime::__private::permit_of_several(
            ::core::option::Option::None,
            ::ratelimit_runtime::__private::Call::DEFAULT,
            (
                {
                    let __ratelimit_count = ::ratelimit_runtime::__private::count(
                        budget,
                    );
                    ::ratelimit_runtime::__private::charge_elapsed(
                        ::ratelimit_runtime::__private::with_count(
                            const {
                                &::ratelimit_runtime::__private::with_algorithm(
                                        ::ratelimit_runtime::__private::rule_without_count(
                                            "queries",
                                            1,
                                            60000,
                                        ),
                                        ::ratelimit_runtime::Algorithm::SlidingLog,
                                    )
                                    .with_shadow(true)
                            },
                            __ratelimit_count,
                        ),
                        ::ratelimit_runtime::__private::no_key(),
                        ::core::option::Option::None,
                    )
                },
                (),
            ),
        )
    };
    let permit = match __ratelimit_deciding.await {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    match () {
        () => '__ratelimit_body: {
            query(permit.remaining_time()).await
        }
    }
}
