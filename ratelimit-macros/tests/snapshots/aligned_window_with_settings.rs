async fn f(state: State) -> R {
    #![allow(unused)]
    if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
        let __ratelimit_deciding = {
            let mut __ratelimit_refused = ::core::option::Option::None;
            let __ratelimit_limiter: &::facade::limits::Limiter = &state.limiter;
            match ::facade::limits::__private::limit_one(
                ::core::option::Option::Some(__ratelimit_limiter),
                const {
                    ::facade::limits::__private::Call::DEFAULT
                        .wait_at_most(90000)
                        .on_store_error(::facade::limits::OnStoreError::Allow)
                },
                const {
                    &::facade::limits::__private::rule(concat!("a", "b"), 5, 1, 86400000)
                        .with_algorithm(::facade::limits::Algorithm::FixedWindow {
                            align: true,
                        })
                },
                ::facade::limits::__private::no_key(),
                1,
                &mut __ratelimit_refused,
            ) {
                ::facade::limits::__private::Attempted::Admitted => {
                    break 'decided (::core::option::Option::None);
                }
                ::facade::limits::__private::Attempted::Refused => {
                    break 'decided __ratelimit_refused;
                }
                ::facade::limits::__private::Attempted::Deferred(
                    __ratelimit_deciding,
                ) => __ratelimit_deciding,
            }
        };
        __ratelimit_deciding.await
    } {
        return ::facade::limits::FromRefusal::from_refusal(__ratelimit_refused);
    }
    '__ratelimit_body: { body() }
}
