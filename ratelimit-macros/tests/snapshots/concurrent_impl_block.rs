impl Api {
    async fn get(&self) -> R {
        let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new() },
            [
                {
                    let key = ::ratelimit_runtime::__private::key(&(self.id));
                    ::ratelimit_runtime::__private::charge(
                        const {
                            &::ratelimit_runtime::__private::concurrent(
                                "export",
                                3,
                                30000,
                            )
                        },
                        key,
                        1,
                    )
                }
                    .asked(),
            ],
        );
        let _permit = match deciding.await {
            ::core::result::Result::Ok(permit) => permit,
            ::core::result::Result::Err(refused) => {
                return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
            }
        };
        {}
    }
    fn put(&self) -> Pin<Box<dyn Future<Output = R>>> {
        Box::pin(async move {
            use limit_request_per_time as _;
            let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
                ::core::option::Option::None,
                const { ::ratelimit_runtime::__private::Call::new() },
                [
                    {
                        let key = ::ratelimit_runtime::__private::key(&(self.id));
                        ::ratelimit_runtime::__private::charge(
                            const {
                                &::ratelimit_runtime::__private::concurrent(
                                    "export",
                                    3,
                                    30000,
                                )
                            },
                            key,
                            1,
                        )
                    }
                        .asked(),
                    ::ratelimit_runtime::__private::charge(
                            const {
                                &::ratelimit_runtime::__private::rule("put", 9, 1, 86400000)
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
                    return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
                }
            };
            {}
        })
    }
    async fn health(&self) {}
}
