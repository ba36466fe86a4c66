//! The functions of the runtime that a generated check calls, one of them in each limited function.

use proc_macro2::{TokenStream, TokenTree};

/// One limit, no permit for the body.
pub(crate) const LIMIT: &str = "limit_request_per_time";
/// One limit, and the body uses the permit.
pub(crate) const LIMIT_WITH_PERMIT: &str = "permit_request_per_time";
/// Several limits, no permit for the body.
pub(crate) const LIMIT_ALL: &str = "limit_requests_per_time";
/// Several limits, and the body uses the permit; or a limit that is held until the call ends.
pub(crate) const LIMIT_ALL_WITH_PERMIT: &str = "permit_requests_per_time";

const ALL: [&str; 4] = [LIMIT, LIMIT_WITH_PERMIT, LIMIT_ALL, LIMIT_ALL_WITH_PERMIT];

/// Returns true if the body is limited already: it contains one of the calls, such as
/// `__private::limit_request_per_time`.
pub(crate) fn contains_check(body: &TokenStream) -> bool {
    fn contains(tokens: TokenStream) -> bool {
        let mut after_private = false;
        tokens.into_iter().any(|token| match token {
            TokenTree::Group(group) => contains(group.stream()),
            TokenTree::Ident(ident) => {
                std::mem::replace(&mut after_private, ident == "__private") && ALL.iter().any(|name| ident == name)
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => false,
        })
    }
    // The text is searched first: it takes one request to the compiler, the tokens one each.
    body.to_string().contains("__private") && contains(body.clone())
}
