async fn f() -> R {
    use limit_request_per_time as _;
    let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
        ::core::option::Option::None,
        const { ::ratelimit_runtime::__private::Call::new().wait_for_place() },
        [
            ::ratelimit_runtime::__private::charge(
                    const {
                        &::ratelimit_runtime::__private::concurrent("export", 3, 30000)
                    },
                    ::ratelimit_runtime::__private::no_key(),
                    1,
                )
                .asked(),
            ::ratelimit_runtime::__private::charge(
                    const {
                        &::ratelimit_runtime::__private::rule("calls", 100, 1, 60000)
                    },
                    ::ratelimit_runtime::__private::no_key(),
                    1,
                )
                .asked(),
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
                .asked(),
        ],
    );
    let _permit = match deciding.await {
        ::core::result::Result::Ok(permit) => permit,
        ::core::result::Result::Err(refused) => {
            if ::ratelimit_runtime::__private::over_limit(&refused)
                && !::ratelimit_runtime::__private::fits_when_released(&refused)
            {
                let refused = refused;
                let _ = &refused;
                return cached(refused);
            }
            return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
        }
    };
    {}
}
