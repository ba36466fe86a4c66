async fn call(&self) -> R {
    let asked = ::ratelimit_runtime::__private::limit_request_per_time(
        ::core::option::Option::None,
        const { ::ratelimit_runtime::__private::Call::new() },
        {
            let key = ::ratelimit_runtime::__private::key(&(self.id()));
            ::ratelimit_runtime::__private::charge(
                const { &::ratelimit_runtime::__private::rule("item", 1, 1, 1000) },
                key,
                1,
            )
        },
    );
    let decided = match asked {
        ::core::result::Result::Ok(decided) => decided,
        ::core::result::Result::Err(undecided) => undecided.decide().await,
    };
    if let ::core::result::Result::Err(refused) = decided {
        return ::ratelimit_runtime::FromRefusal::from_refusal(refused);
    }
    { default() }
}
