//! The attribute macro of `ratelimit-runtime`.
use proc_macro::TokenStream;
/// Stub.
#[proc_macro_attribute]
pub fn limit_request_per_time(_: TokenStream, item: TokenStream) -> TokenStream {
    item
}
