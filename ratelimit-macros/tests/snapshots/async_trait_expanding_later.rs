#[async_trait]
impl Api for Client {
    async fn get(&self, (a, b): (u64, u64)) -> R {
        if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
            let __ratelimit_deciding = {
                let mut __ratelimit_refused = ::core::option::Option::None;
                let __ratelimit_key = ::ratelimit_runtime::__private::key(&(self.id));
                match ::ratelimit_runtime::__private::limit_one(
                    ::core::option::Option::None,
                    ::ratelimit_runtime::__private::Call::DEFAULT,
                    const { &::ratelimit_runtime::__private::rule("item", 1, 1, 1000) },
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
        '__ratelimit_body: { a }
    }
}
