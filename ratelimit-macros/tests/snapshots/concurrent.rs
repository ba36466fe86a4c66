async fn f(id: u64) -> R {
    let __ratelimit_deciding = {
        let __ratelimit_key = ::ratelimit_runtime::__private::key(&(id));
        ::ratelimit_runtime::__private::permit_of_one(
            ::core::option::Option::None,
            ::ratelimit_runtime::__private::Call::DEFAULT,
            const { &::ratelimit_runtime::__private::concurrent("export", 3, 30000) },
            __ratelimit_key,
            1,
        )
    };
    let __ratelimit_permit = match __ratelimit_deciding.await {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            return ::ratelimit_runtime::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    match () {
        () => '__ratelimit_body: {
            export(id).await
        }
    }
}
