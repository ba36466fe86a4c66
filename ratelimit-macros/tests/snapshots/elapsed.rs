async fn f(user: u64) -> R {
    let __ratelimit_deciding = {
        ::ratelimit_runtime::__private::permit_of_several(
            ::core::option::Option::None,
            ::ratelimit_runtime::__private::Call::DEFAULT,
            (
                {
                    let __ratelimit_key = ::ratelimit_runtime::__private::key(&(user));
                    ::ratelimit_runtime::__private::charge_elapsed(
                        const {
                            &::ratelimit_runtime::__private::with_algorithm(
                                ::ratelimit_runtime::__private::unchecked_rule(
                                    "queries",
                                    20000,
                                    1,
                                    60000,
                                ),
                                ::ratelimit_runtime::Algorithm::SlidingLog,
                            )
                        },
                        __ratelimit_key,
                        ::core::option::Option::Some(const { 5000 }),
                    )
                },
                (),
            ),
        )
    };
    let __ratelimit_permit = match __ratelimit_deciding.await {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    match () {
        () => '__ratelimit_body: {
            body()
        }
    }
}
