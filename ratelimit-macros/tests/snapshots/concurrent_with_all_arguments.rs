async fn f(&self, id: Option<u64>) -> R {
    let __ratelimit_deciding = {
        let __ratelimit_count = ::facade::__private::count(plan.places());
        let __ratelimit_key = ::facade::__private::optional_key(
            &(id),
            ::facade::__private::OnMissingKey::Skip,
        );
        let __ratelimit_limiter: &::facade::Limiter = &self.limiter;
        ::facade::__private::permit_of_one(
            ::core::option::Option::Some(__ratelimit_limiter),
            const {
                ::facade::__private::Call::DEFAULT
                    .wait_at_most(5000)
                    .on_store_error(::facade::OnStoreError::Deny)
            },
            ::facade::__private::with_count(
                const {
                    &::facade::__private::concurrent_without_count("export", 60000)
                },
                __ratelimit_count,
            ),
            __ratelimit_key,
            1,
        )
    };
    let place = match __ratelimit_deciding.await {
        ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
        ::core::result::Result::Err(__ratelimit_refused) => {
            return ::facade::FromRefusal::from_refusal(__ratelimit_refused);
        }
    };
    match () {
        () => '__ratelimit_body: {
            place.is_held()
        }
    }
}
