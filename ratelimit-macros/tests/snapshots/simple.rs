pub async fn save(req: Req) -> Result<Saved, E> {
    if let ::core::result::Result::Err(refused) = 'decided: {
        let deciding = match ::ratelimit_runtime::__private::limit_request_per_time(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::new() },
            {
                let key = ::ratelimit_runtime::__private::key(&(req.seller_id));
                ::ratelimit_runtime::__private::charge(
                    const {
                        &::ratelimit_runtime::__private::rule("item", 100, 1, 60000)
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
    { store(req).await }
}
