async fn f(state: State) -> R {
    #![allow(unused)]
    if let ::core::result::Result::Err(refused) = 'decided: {
        let deciding = match {
            let limiter: &::facade::limits::Limiter = &state.limiter;
            ::facade::limits::__private::limit_request_per_time(
                ::core::option::Option::Some(limiter),
                const {
                    ::facade::limits::__private::Call::new()
                        .wait_at_most(90000)
                        .on_store_error(::facade::limits::OnStoreError::Allow)
                },
                ::facade::limits::__private::charge(
                    const {
                        &::facade::limits::__private::rule(
                                concat!("a", "b"),
                                5,
                                1,
                                86400000,
                            )
                            .with_algorithm(::facade::limits::Algorithm::FixedWindow {
                                align: true,
                            })
                    },
                    ::facade::limits::__private::no_key(),
                    1,
                ),
            )
        } {
            ::facade::limits::__private::Attempted::Admitted => {
                break 'decided (::core::result::Result::Ok(()));
            }
            ::facade::limits::__private::Attempted::Refused(refused) => {
                break 'decided (::core::result::Result::Err(refused));
            }
            ::facade::limits::__private::Attempted::Deferred(deferred) => {
                deferred.decide()
            }
        };
        deciding.await
    } {
        return ::facade::limits::FromRefusal::from_refusal(refused);
    }
    { body() }
}
