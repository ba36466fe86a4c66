async fn f() -> R {
    if let ::core::result::Result::Err(refused) = 'decided: {
        let deciding = match crate::limits::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { crate::limits::__private::Call::new() },
            crate::limits::__private::charge(
                const {
                    &crate::limits::__private::with_algorithm(
                        crate::limits::__private::rule("item", 100, 1, 60000),
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
            crate::limits::__private::Attempted::Refused(refused) => {
                break 'decided (::core::result::Result::Err(refused));
            }
            crate::limits::__private::Attempted::Deferred(deferred) => deferred.decide(),
        };
        deciding.await
    } {
        return crate::limits::FromRefusal::from_refusal(refused);
    }
    {}
}
