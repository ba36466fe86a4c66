//! The attribute macro of `ratelimit-runtime`.

mod args;
mod duration;
mod errors;
mod expand;
mod function;
mod suggest;
mod value;

#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Docs.
#[proc_macro_attribute]
pub fn limit_request_per_time(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), item.into()).into()
}
