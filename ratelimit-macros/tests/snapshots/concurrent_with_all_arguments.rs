async fn f(&self, id: Option<u64>) -> R {
    let deciding = {
        let limiter: &::facade::Limiter = &self.limiter;
        ::facade::__private::permit_requests_per_time(
            ::core::option::Option::Some(limiter),
            const {
                ::facade::__private::Call::new()
                    .wait_for_place_at_most(5000)
                    .on_store_error(::facade::OnStoreError::Deny)
            },
            [
                {
                    let count = ::facade::__private::count(plan.places());
                    let key = ::facade::__private::optional_key(
                        &(id),
                        ::facade::__private::OnMissingKey::Skip,
                    );
                    ::facade::__private::charge(
                        ::facade::__private::with_count(
                            const {
                                &::facade::__private::concurrent_without_count(
                                    "export",
                                    60000,
                                )
                            },
                            count,
                        ),
                        key,
                        1,
                    )
                }
                    .asked(),
            ],
        )
    };
    let place = match deciding.await {
        ::core::result::Result::Ok(permit) => permit,
        ::core::result::Result::Err(refused) => {
            return ::facade::FromRefusal::from_refusal(refused);
        }
    };
    { place.is_held() }
}
