async fn f(id: Option<u64>, plan: Plan, rows: Vec<Row>) -> R {
    if let ::core::result::Result::Err(refused) = 'decided: {
        let deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new() },
            {
                let count = ::ratelimit_runtime::__private::count(plan.limit());
                let key = ::ratelimit_runtime::__private::optional_key(
                    &(id),
                    ::ratelimit_runtime::__private::OnMissingKey::Shared,
                );
                let cost = ::ratelimit_runtime::__private::cost(rows.len());
                ::ratelimit_runtime::__private::charge(
                    ::ratelimit_runtime::__private::with_count(
                        const {
                            &::ratelimit_runtime::__private::rule_without_count(
                                "item",
                                1,
                                1000,
                            )
                        },
                        count,
                    ),
                    key,
                    cost,
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
    {}
}
