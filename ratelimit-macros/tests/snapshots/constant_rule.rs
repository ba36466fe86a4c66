async fn f(id: u64) -> R {
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            let __ratelimit_key = ::ratelimit_runtime::__private::key(&(id));
            match ::ratelimit_runtime::__private::limit_one(
                ::core::option::Option::None,
                ::ratelimit_runtime::__private::Call::DEFAULT,
                const {
                    &::ratelimit_runtime::__private::rule_of_cost(
                        ::ratelimit_runtime::__private::rule_per_time(rules::ORDERS),
                        5,
                    )
                },
                __ratelimit_key,
                5,
                &mut __ratelimit_refused,
            ) {
                ::ratelimit_runtime::__private::Attempted::Admitted => {
                    break 'decided (::core::option::Option::None);
                }
                ::ratelimit_runtime::__private::Attempted::Refused => {
                    break 'decided __ratelimit_refused;
                }
                ::ratelimit_runtime::__private::Attempted::Deferred(
                    __ratelimit_deciding,
                ) => __ratelimit_deciding,
            }
        };
        __ratelimit_deciding.await
    } {
        return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
    }
    '__ratelimit_body: {}
}
