impl Api {
    async fn get(&self) -> R {
        let __ratelimit_deciding = {
            let __ratelimit_key = ::ratelimit_runtime::__private::key(&(self.id));
            ::ratelimit_runtime::__private::permit_of_one(
                ::core::option::Option::None,
                ::ratelimit_runtime::__private::Call::DEFAULT,
                const {
                    &::ratelimit_runtime::__private::concurrent("export", 3, 30000)
                },
                __ratelimit_key,
                1,
            )
        };
        let __ratelimit_permit = match __ratelimit_deciding.await {
            ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
            ::core::result::Result::Err(__ratelimit_refused) => {
                return ::ratelimit_runtime::FromRefusal::from_refusal(
                    __ratelimit_refused,
                );
            }
        };
        match () {
            () => '__ratelimit_body: {}
        }
    }
    fn put(&self) -> Pin<Box<dyn Future<Output = R>>> {
        Box::pin(async move {
            use limit_request_per_time as _;
            let __ratelimit_deciding = {
                ::ratelimit_runtime::__private::permit_of_several(
                    ::core::option::Option::None,
                    ::ratelimit_runtime::__private::Call::DEFAULT,
                    (
                        {
                            let __ratelimit_key = ::ratelimit_runtime::__private::key(
                                &(self.id),
                            );
                            ::ratelimit_runtime::__private::charge(
                                const {
                                    &::ratelimit_runtime::__private::concurrent(
                                        "export",
                                        3,
                                        30000,
                                    )
                                },
                                __ratelimit_key,
                                1,
                            )
                        },
                        (
                            {
                                ::ratelimit_runtime::__private::charge(
                                    const {
                                        &::ratelimit_runtime::__private::rule("put", 9, 1, 86400000)
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
            let __ratelimit_permit = match __ratelimit_deciding.await {
                ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
                ::core::result::Result::Err(__ratelimit_refused) => {
                    return ::ratelimit_runtime::FromRefusal::from_refusal(
                        __ratelimit_refused,
                    );
                }
            };
            match () {
                () => '__ratelimit_body: {}
            }
        })
    }
    async fn health(&self) {}
}
