async fn f() -> R {
    let deciding = ::ratelimit_runtime::__private::permit_request_per_time(
        ::core::option::Option::None,
        const { ::ratelimit_runtime::__private::Call::new().wait() },
        ::ratelimit_runtime::__private::charge(
            const { &::ratelimit_runtime::__private::rule("item", 1, 1, 1000) },
            ::ratelimit_runtime::__private::no_key(),
            0,
        ),
    );
    let slot = match deciding.await {
        ::core::result::Result::Ok(permit) => permit,
        ::core::result::Result::Err(refused) => {
            return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
        }
    };
    { slot.refund().await }
}
