pub async fn save(req: Req) -> Result<Saved, E> {
    {
        let charges = [
            ::ratelimit_runtime::__private::charge(
                const { &::ratelimit_runtime::__private::rule("item", 100, 1, 60000) },
                ::ratelimit_runtime::__private::key(&(req.seller_id)),
                1,
            ),
        ];
        let decision = ::ratelimit_runtime::__private::limit_request_per_time(
                ::core::option::Option::None,
                const { &::ratelimit_runtime::__private::Call::new() },
                &charges,
            )
            .await;
        if let ::core::result::Result::Err(refused) = decision {
            return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
        }
    }
    { store(req).await }
}
