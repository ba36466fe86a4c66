pub async fn f(a: u64, b: u64) -> R<u64> {
    if let ::core::result::Result::Err(refused) = 'decided: {
        let deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new().wait_at_most(1000) },
            {
                let key = ::ratelimit_runtime::__private::key(&(a + b));
                ::ratelimit_runtime::__private::charge(
                    const {
                        &::ratelimit_runtime::__private::rule("item", 5, 1, 86400000)
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
    { body() }
}
