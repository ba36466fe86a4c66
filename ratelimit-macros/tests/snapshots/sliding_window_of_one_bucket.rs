async fn f() -> R {
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            match crate::limits::__private::limit_one(
                ::core::option::Option::None,
                crate::limits::__private::Call::DEFAULT,
                const {
                    &crate::limits::__private::with_algorithm(
                        crate::limits::__private::unchecked_rule("item", 100, 1, 60000),
                        crate::limits::Algorithm::SlidingWindow {
                            buckets: 1,
                            weighted: true,
                        },
                    )
                },
                crate::limits::__private::no_key(),
                1,
                &mut __ratelimit_refused,
            ) {
                crate::limits::__private::Attempted::Admitted => {
                    break 'decided (::core::option::Option::None);
                }
                crate::limits::__private::Attempted::Refused => {
                    break 'decided __ratelimit_refused;
                }
                crate::limits::__private::Attempted::Deferred(__ratelimit_deciding) => {
                    __ratelimit_deciding
                }
            }
        };
        __ratelimit_deciding.await
    } {
        return crate::limits::FromRefusal::from_refusal(__ratelimit_refused);
    }
    '__ratelimit_body: {}
}
