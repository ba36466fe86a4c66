async fn f() -> R {
    use limit_request_per_time as _;
    let __ratelimit_deciding = {
        ::ratelimit_runtime::__private::permit_of_several(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::DEFAULT.wait_for_place() },
            (
                {
                    ::ratelimit_runtime::__private::charge(
                        const {
                            &::ratelimit_runtime::__private::concurrent(
                                "export",
                                3,
                                30000,
                            )
                        },
                        ::ratelimit_runtime::__private::no_key(),
                        1,
                    )
                },
                (
                    {
                        ::ratelimit_runtime::__private::charge(
                            const {
                                &::ratelimit_runtime::__private::rule(
                                    "calls",
                                    100,
                                    1,
                                    60000,
                                )
                            },
                            ::ratelimit_runtime::__private::no_key(),
                            1,
                        )
                    },
                    (
                        {
                            ::ratelimit_runtime::__private::charge(
                                const {
                                    &::ratelimit_runtime::__private::concurrent(
                                        "all",
                                        const { N },
                                        30000,
                                    )
                                },
                                ::ratelimit_runtime::__private::no_key(),
                                1,
                            )
                        },
                        (),
                    ),
                ),
            ),
        )
    };
    let __ratelimit_permit = match __ratelimit_deciding.await {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            if ::ratelimit_runtime::__private::over_limit(&__ratelimit_refused)
                && !::ratelimit_runtime::__private::fits_when_released(
                    &__ratelimit_refused,
                )
            {
                let refused = __ratelimit_refused;
                let _ = &refused;
                return cached(refused);
            }
            return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    match () {
        () => '__ratelimit_body: {}
    }
}
