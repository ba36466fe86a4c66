async fn f(id: Option<u64>, plan: Plan, rows: Vec<Row>) -> R {
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            let __ratelimit_count = ::ratelimit_runtime::__private::count(plan.limit());
            let __ratelimit_key = ::ratelimit_runtime::__private::optional_key(
                &(id),
                ::ratelimit_runtime::__private::OnMissingKey::Shared,
            );
            let __ratelimit_cost = ::ratelimit_runtime::__private::cost(rows.len());
            match ::ratelimit_runtime::__private::limit_one(
                ::core::option::Option::None,
                ::ratelimit_runtime::__private::Call::DEFAULT,
                ::ratelimit_runtime::__private::with_count(
                    const {
                        &::ratelimit_runtime::__private::rule_without_count(
                            "item",
                            1,
                            1000,
                        )
                    },
                    __ratelimit_count,
                ),
                __ratelimit_key,
                __ratelimit_cost,
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
