unsafe impl<const N: usize> Api<{ N }> {
    #![allow(unused)]
    const LIMIT: u64 = 1;
    pub(crate) async fn get(&self) -> R {
        if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
            let __ratelimit_deciding = {
                let mut __ratelimit_refused = ::core::option::Option::None;
                let __ratelimit_key = ::ratelimit_runtime::__private::key(&(self.id));
                match ::ratelimit_runtime::__private::limit_one(
                    ::core::option::Option::None,
                    ::ratelimit_runtime::__private::Call::DEFAULT,
                    const { &::ratelimit_runtime::__private::rule("api", 1, 1, 1000) },
                    __ratelimit_key,
                    1,
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
        '__ratelimit_body: { self.id }
    }
    async fn put(mut self: Box<Self>) -> R {
        if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
            let __ratelimit_deciding = {
                let mut __ratelimit_refused = ::core::option::Option::None;
                match ::ratelimit_runtime::__private::limit_several(
                    ::core::option::Option::None,
                    ::ratelimit_runtime::__private::Call::DEFAULT,
                    (
                        {
                            let __ratelimit_key = ::ratelimit_runtime::__private::key(
                                &(self.id),
                            );
                            ::ratelimit_runtime::__private::charge(
                                const {
                                    &::ratelimit_runtime::__private::rule("api", 1, 1, 1000)
                                },
                                __ratelimit_key,
                                1,
                            )
                        },
                        (
                            {
                                ::ratelimit_runtime::__private::charge(
                                    const {
                                        &::ratelimit_runtime::__private::rule("put", 9, 1, 86400000)
                                    },
                                    ::ratelimit_runtime::__private::no_key(),
                                    1,
                                )
                            },
                            (),
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
    async fn health(&self) {}
    fn id(&self) -> u64 {
        self.id
    }
}
