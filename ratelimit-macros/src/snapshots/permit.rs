async fn f() -> R {
    let slot = {
        let charges = [
            ::ratelimit_runtime::__private::charge(
                const { &::ratelimit_runtime::__private::rule("item", 1, 1, 1000) },
                ::ratelimit_runtime::__private::no_key(),
                0,
            ),
        ];
        let decision = ::ratelimit_runtime::__private::limit_request_per_time(
                ::core::option::Option::None,
                const { &::ratelimit_runtime::__private::Call::new().wait() },
                &charges,
            )
            .await;
        match decision {
            ::core::result::Result::Ok(permit) => permit,
            ::core::result::Result::Err(refused) => {
                return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
            }
        }
    };
    { slot.give_back().await }
}
