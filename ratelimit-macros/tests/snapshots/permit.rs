async fn f() -> R {
    let __ratelimit_deciding = {
        ::ratelimit_runtime::__private::permit_of_one(
            ::core::option::Option::None,
            const { ::ratelimit_runtime::__private::Call::DEFAULT.wait() },
            const { &::ratelimit_runtime::__private::rule("item", 1, 1, 1000) },
            ::ratelimit_runtime::__private::no_key(),
            0,
        )
    };
    let slot = match __ratelimit_deciding.await {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    match () {
        () => '__ratelimit_body: {
            slot.refund().await
        }
    }
}
