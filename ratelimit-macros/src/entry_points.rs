//! The functions of the runtime that a generated check calls, one of them in each limited function.

use proc_macro2::{TokenStream, TokenTree};

/// One limit, no permit for the body.
pub(crate) const LIMIT_ONE: &str = "limit_one";
/// One limit, and the body uses the permit, or the limit is a place.
pub(crate) const PERMIT_OF_ONE: &str = "permit_of_one";
/// Several limits, no permit for the body.
pub(crate) const LIMIT_SEVERAL: &str = "limit_several";
/// Several limits, and the body uses the permit, or one of them is held until the call ends. Also one limit
/// whose cost is settled then.
pub(crate) const PERMIT_OF_SEVERAL: &str = "permit_of_several";

const ALL: [&str; 4] = [LIMIT_ONE, PERMIT_OF_ONE, LIMIT_SEVERAL, PERMIT_OF_SEVERAL];

/// Returns true if the body is limited already: it contains one of the calls, such as
/// `__private::limit_one`.
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
