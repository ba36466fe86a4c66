fn f<'life0, 'async_trait>(
    &'life0 self,
    x: u64,
    __arg1: (u64, u64),
) -> ::core::pin::Pin<Box<dyn ::core::future::Future<Output = R> + Send + 'async_trait>>
where
    'life0: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        if let ::core::result::Result::Err(refused) = 'decided: {
            let deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
                ::core::option::Option::None,
                const { ::ratelimit_runtime::__private::Call::new() },
                {
                    let key = ::ratelimit_runtime::__private::key(&((&(self.id), &(x))));
                    ::ratelimit_runtime::__private::charge(
                        const {
                            &::ratelimit_runtime::__private::rule("item", 1, 1, 1000)
                        },
                        key,
                        1,
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
        {
            let __self = self;
            let x = x;
            let (a, b) = {
                let __arg1 = __arg1;
                __arg1
            };
            let __ret: R = { a + b };
            __ret
        }
    })
}
