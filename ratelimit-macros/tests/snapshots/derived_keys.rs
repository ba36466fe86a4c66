#[automatically_derived]
impl<T: ?Sized> ::ratelimit_runtime::RateKey for Seller<T>
where
    T: ::ratelimit_runtime::RateKey,
{
    fn write_key(&self, __ratelimit_key: &mut ::ratelimit_runtime::KeyWriter<'_>) {
        ::ratelimit_runtime::RateKey::write_key(&self.0, __ratelimit_key)
    }
    #[inline]
    fn rate_key(&self) -> ::ratelimit_runtime::Key {
        ::ratelimit_runtime::RateKey::rate_key(&self.0)
    }
}
#[automatically_derived]
impl<'a, const N: usize> ::ratelimit_runtime::RateKey for Account<'a, N> {
    fn write_key(&self, __ratelimit_key: &mut ::ratelimit_runtime::KeyWriter<'_>) {
        ::ratelimit_runtime::__private::write_fields(
            __ratelimit_key,
            &[&&self.shop, &&self.seller],
        )
    }
}
#[automatically_derived]
impl ::ratelimit_runtime::RateKey for Caller {
    fn write_key(&self, __ratelimit_key: &mut ::ratelimit_runtime::KeyWriter<'_>) {
        match self {
            Self::Anonymous { .. } => {
                ::ratelimit_runtime::RateKey::write_key("Anonymous", __ratelimit_key)
            }
            Self::r#Type { 0: __ratelimit_field0, 1: __ratelimit_field1 } => {
                ::ratelimit_runtime::__private::write_fields(
                    __ratelimit_key,
                    &[&"Type", &__ratelimit_field0, &__ratelimit_field1],
                )
            }
            Self::Account { id: __ratelimit_field0 } => {
                ::ratelimit_runtime::__private::write_fields(
                    __ratelimit_key,
                    &[&"Account", &__ratelimit_field0],
                )
            }
        }
    }
}
#[automatically_derived]
impl<T> crate::limits::RateKey for Elsewhere<T>
where
    T: crate::limits::RateKey,
{
    fn write_key(&self, __ratelimit_key: &mut crate::limits::KeyWriter<'_>) {
        crate::limits::__private::write_fields(__ratelimit_key, &[&&self.0, &&self.1])
    }
}
#[automatically_derived]
impl ::limits::runtime::RateKey for Elsewhere {
    fn write_key(&self, __ratelimit_key: &mut ::limits::runtime::KeyWriter<'_>) {
        match self {
            Self::Anonymous { .. } => {
                ::limits::runtime::RateKey::write_key("Anonymous", __ratelimit_key)
            }
            Self::User { 0: __ratelimit_field0 } => {
                ::limits::runtime::__private::write_fields(
                    __ratelimit_key,
                    &[&"User", &__ratelimit_field0],
                )
            }
        }
    }
}
