async fn f() -> R {
    let asked = ::ratelimit_runtime::__private::limit_request_per_time(
        ::core::option::Option::None,
        const { ::ratelimit_runtime::__private::Call::new() },
        {
            let count = ::ratelimit_runtime::__private::count(limit());
            ::ratelimit_runtime::__private::charge(
                ::ratelimit_runtime::__private::with_count(
                    const {
                        &::ratelimit_runtime::__private::lease(
                                ::ratelimit_runtime::__private::rule_without_count(
                                    "item",
                                    1,
                                    1000,
                                ),
                                LEASE,
                            )
                            .denial_cache(false)
                    },
                    count,
                ),
                ::ratelimit_runtime::__private::no_key(),
                1,
            )
        },
    );
    let decided = match asked {
        ::core::result::Result::Ok(decided) => decided,
        ::core::result::Result::Err(undecided) => undecided.decide().await,
    };
    if let ::core::result::Result::Err(refused) = decided {
        return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
    }
    {}
}
