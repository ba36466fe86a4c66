fn f() -> R {
    use limit_concurrent_requests as _;
    let __ratelimit_deciding = {
        ::ratelimit_runtime::__private::permit_of_several(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::DEFAULT.wait() },
            (
                {
                    ::ratelimit_runtime::__private::charge(
                        const {
                            &::ratelimit_runtime::__private::rule("calls", 100, 1, 60000)
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
                                    "export",
                                    3,
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
        )
    };
    let place = match __ratelimit_deciding.block() {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    match () {
        () => '__ratelimit_body: {
            place.is_held()
        }
    }
}
