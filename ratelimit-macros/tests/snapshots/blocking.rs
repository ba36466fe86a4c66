pub unsafe extern "C" fn f(id: u64) -> R {
    if let ::core::result::Result::Err(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new() },
            {
                let __ratelimit_key = ::ratelimit_runtime::__private::key(&(id));
                ::ratelimit_runtime::__private::charge(
                    const {
                        &::ratelimit_runtime::__private::rule("item", 100, 1, 60000)
                    },
                    __ratelimit_key,
                    1,
                )
            },
        ) {
            ::ratelimit_runtime::__private::Attempted::Admitted => {
                break 'decided (::core::result::Result::Ok(()));
            }
            ::ratelimit_runtime::__private::Attempted::Refused(__ratelimit_refused) => {
                break 'decided (::core::result::Result::Err(__ratelimit_refused));
            }
            ::ratelimit_runtime::__private::Attempted::Deferred(__ratelimit_deferred) => {
                __ratelimit_deferred.decide()
            }
        };
        __ratelimit_deciding.block()
    } {
        if ::ratelimit_runtime::__private::over_limit(&__ratelimit_refused) {
            let refused = __ratelimit_refused;
            let _ = &refused;
            return Ok(cached(refused));
        }
        return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
    }
    '__ratelimit_body: { body()? }
}
