async fn f(id: u64) -> R {
    use limit_concurrent_requests as _;
    let __ratelimit_deciding = {
        ::ratelimit_runtime::__private::permit_of_several(
            ::core::option::Option::None,
            const {
                ::ratelimit_runtime::__private::Call::DEFAULT
                    .wait()
                    .on_store_error(::ratelimit_runtime::OnStoreError::Deny)
            },
            (
                {
                    let __ratelimit_key = ::ratelimit_runtime::__private::key(&(id));
                    ::ratelimit_runtime::__private::charge(
                        const {
                            &::ratelimit_runtime::__private::rule("calls", 100, 1, 60000)
                        },
                        __ratelimit_key,
                        1,
                    )
                },
                (
                    {
                        let __ratelimit_key = ::ratelimit_runtime::__private::key(&(id));
                        ::ratelimit_runtime::__private::charge(
                            const {
                                &::ratelimit_runtime::__private::concurrent(
                                    "export",
                                    3,
                                    60000,
                                )
                            },
                            __ratelimit_key,
                            1,
                        )
                    },
                    (),
                ),
            ),
        )
    };
    let __ratelimit_permit = match __ratelimit_deciding.await {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            if ::ratelimit_runtime::__private::fits_when_released(&__ratelimit_refused) {
                let refused = __ratelimit_refused;
                let _ = &refused;
                return Err(busy(refused));
            }
            return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    match () {
        () => '__ratelimit_body: {}
    }
}
