async fn f(id: u64) -> R {
    use limit_concurrent_requests as _;
    let deciding = ::ratelimit_runtime::__private::permit_requests_per_time(
        ::core::option::Option::None,
        const {
            ::ratelimit_runtime::__private::Call::new()
                .wait()
                .on_store_error(::ratelimit_runtime::OnStoreError::Deny)
        },
        [
            {
                let key = ::ratelimit_runtime::__private::key(&(id));
                ::ratelimit_runtime::__private::charge(
                    const {
                        &::ratelimit_runtime::__private::rule("calls", 100, 1, 60000)
                    },
                    key,
                    1,
                )
            }
                .asked(),
            {
                let key = ::ratelimit_runtime::__private::key(&(id));
                ::ratelimit_runtime::__private::charge(
                    const {
                        &::ratelimit_runtime::__private::concurrent("export", 3, 60000)
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
            if ::ratelimit_runtime::__private::fits_when_released(&refused) {
                let refused = refused;
                let _ = &refused;
                return Err(busy(refused));
            }
            return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
        }
    };
    {}
}
