async fn f() -> R {
    if let ::core::result::Result::Err(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = match crate::limits::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { crate::limits::__private::Call::new() },
            crate::limits::__private::charge(
                const {
                    &crate::limits::__private::with_algorithm(
                        crate::limits::__private::unchecked_rule("item", 100, 1, 60000),
                        crate::limits::Algorithm::SlidingWindow {
                            buckets: 1,
                        },
                    )
                },
                crate::limits::__private::no_key(),
                1,
            ),
        ) {
            crate::limits::__private::Attempted::Admitted => {
                break 'decided (::core::result::Result::Ok(()));
            }
            crate::limits::__private::Attempted::Refused(__ratelimit_refused) => {
                break 'decided (::core::result::Result::Err(__ratelimit_refused));
            }
            crate::limits::__private::Attempted::Deferred(__ratelimit_deferred) => {
                __ratelimit_deferred.decide()
            }
        };
        __ratelimit_deciding.await
    } {
        return crate::limits::FromRefusal::from_refusal(__ratelimit_refused);
    }
    '__ratelimit_body: {}
}
