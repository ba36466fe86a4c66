async fn f(user: u64) -> R {
    let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
        ::core::option::Option::None,
        const { ::ratelimit_runtime::__private::Call::new() },
        [
            {
                let key = ::ratelimit_runtime::__private::key(&(user));
                ::ratelimit_runtime::__private::charge_elapsed(
                    const {
                        &::ratelimit_runtime::__private::rule("queries", 20000, 1, 60000)
                            .with_algorithm(::ratelimit_runtime::Algorithm::SlidingLog)
                    },
                    key,
                    ::core::option::Option::Some(5000),
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
    { body() }
}
