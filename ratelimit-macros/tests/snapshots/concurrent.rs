async fn f(id: u64) -> R {
    let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
        ::core::option::Option::None,
        const { ::ratelimit_runtime::__private::Call::new() },
        [
            {
                let key = ::ratelimit_runtime::__private::key(&(id));
                ::ratelimit_runtime::__private::charge(
                    const {
                        &::ratelimit_runtime::__private::concurrent("export", 3, 30000)
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
    { export(id).await }
}
