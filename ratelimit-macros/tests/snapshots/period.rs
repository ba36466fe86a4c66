async fn f() -> R {
    if let ::core::result::Result::Err(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const {
                ::ratelimit_runtime::__private::Call::new()
                    .wait_at_most(::ratelimit_runtime::__private::milliseconds(LONGEST))
            },
            ::ratelimit_runtime::__private::charge(
                const { &::ratelimit_runtime::__private::rule("item", 5, 1, 90000) },
                ::ratelimit_runtime::__private::no_key(),
                1,
            ),
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
        __ratelimit_deciding.await
    } {
        return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
    }
    '__ratelimit_body: {}
}
