fn f(id: u64) -> impl Future<Output = R> + Send {
    let next = id + 1;
    async move {
        if let ::core::result::Result::Err(refused) = 'decided: {
            let deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
                ::core::option::Option::None,
                const { ::ratelimit_runtime::__private::Call::new() },
                {
                    let key = ::ratelimit_runtime::__private::key(&(id));
                    ::ratelimit_runtime::__private::charge(
                        const {
                            &::ratelimit_runtime::__private::rule("item", 1, 1, 1000)
                        },
                        key,
                        1,
                    )
                },
            ) {
                ::ratelimit_runtime::__private::Attempted::Admitted => {
                    break 'decided (::core::result::Result::Ok(()));
                }
                ::ratelimit_runtime::__private::Attempted::Refused(refused) => {
                    break 'decided (::core::result::Result::Err(refused));
                }
                ::ratelimit_runtime::__private::Attempted::Deferred(deferred) => {
                    deferred.decide()
                }
            };
            deciding.await
        } {
            return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
        }
        { next }
    }
}
