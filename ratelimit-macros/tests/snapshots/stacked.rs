/// Docs.
#[inline]
async unsafe fn f(id: u64, limit: u64) -> R {
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            match ::ratelimit_runtime::__private::limit_several(
                ::core::option::Option::None,
                const { ::ratelimit_runtime::__private::Call::DEFAULT.wait() },
                (
                    {
                        let __ratelimit_key = ::ratelimit_runtime::__private::key(&(id));
                        ::ratelimit_runtime::__private::charge(
                            const {
                                &::ratelimit_runtime::__private::rule("first", 1, 1, 1000)
                            },
                            __ratelimit_key,
                            1,
                        )
                    },
                    (
                        {
                            let __ratelimit_count = ::ratelimit_runtime::__private::count(
                                limit,
                            );
                            ::ratelimit_runtime::__private::charge(
                                ::ratelimit_runtime::__private::with_count(
                                    const {
                                        &::ratelimit_runtime::__private::rule_without_count(
                                            "second",
                                            1,
                                            3600000,
                                        )
                                    },
                                    __ratelimit_count,
                                ),
                                ::ratelimit_runtime::__private::no_key(),
                                1,
                            )
                        },
                        (
                            {
                                ::ratelimit_runtime::__private::charge(
                                    const {
                                        &::ratelimit_runtime::__private::rule(
                                            "third",
                                            1000,
                                            1,
                                            86400000,
                                        )
                                    },
                                    ::ratelimit_runtime::__private::no_key(),
                                    1,
                                )
                            },
                            (),
                        ),
                    ),
                ),
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
