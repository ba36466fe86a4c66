/// Docs.
#[inline]
async unsafe fn f(id: u64, limit: u64) -> R {
    {
        let rule_1 = ::ratelimit_runtime::__private::with_count(
            const { &::ratelimit_runtime::__private::rule("second", 1, 1, 3600000) },
            ::ratelimit_runtime::__private::amount_count(limit),
        );
        let charges = [
            ::ratelimit_runtime::__private::charge(
                const { &::ratelimit_runtime::__private::rule("first", 1, 1, 1000) },
                ::ratelimit_runtime::__private::key(&(id)),
                1,
            ),
            ::ratelimit_runtime::__private::charge(
                &rule_1,
                ::ratelimit_runtime::__private::no_key(),
                1,
            ),
            ::ratelimit_runtime::__private::charge(
                const {
                    &::ratelimit_runtime::__private::rule("third", 1000, 1, 86400000)
                },
                ::ratelimit_runtime::__private::no_key(),
                1,
            ),
        ];
        let decision = ::ratelimit_runtime::__private::limit_request_per_time(
                ::core::option::Option::None,
                const { &::ratelimit_runtime::__private::Call::new().wait() },
                &charges,
            )
            .await;
        if let ::core::result::Result::Err(refused) = decision {
            return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
        }
    }
    {}
}
