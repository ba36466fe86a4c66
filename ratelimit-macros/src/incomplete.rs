//! Arguments while they are typed: `key = req.`, from which an editor completes the field.
//!
//! An editor expands the attribute twice, as it is and with a name at the cursor, and compares both.
//! So the incomplete expression is put where the complete one would be. rustc reports it there.

use proc_macro2::{Group, Ident, TokenStream, TokenTree};

/// The name that completes an expression until the code is generated.
const PLACEHOLDER: &str = "__ratelimit_placeholder";

/// The arguments with a name after each dot that lacks one. `None` if there is no such dot.
pub(crate) fn complete(args: TokenStream) -> Option<TokenStream> {
    let mut any = false;
    let completed = complete_in(args, &mut any);
    any.then_some(completed)
}

fn complete_in(args: TokenStream, any: &mut bool) -> TokenStream {
    let mut args = args.into_iter().peekable();
    let mut completed = Vec::new();
    let mut after_dot = false;
    while let Some(token) = args.next() {
        let is_last = args.peek().is_none_or(|next| matches!(next, TokenTree::Punct(p) if p.as_char() == ','));
        let is_dot = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '.');
        let span = token.span();
        completed.push(in_group(token, |stream| complete_in(stream, any)));
        if is_dot && is_last && !after_dot {
            *any = true;
            completed.push(Ident::new(PLACEHOLDER, span).into());
        }
        after_dot = is_dot;
    }
    completed.into_iter().collect()
}

/// The generated code with the incomplete expressions as the user wrote them.
pub(crate) fn strip(code: TokenStream) -> TokenStream {
    let is_written = |token: &TokenTree| !matches!(token, TokenTree::Ident(ident) if ident == PLACEHOLDER);
    code.into_iter().filter(is_written).map(|token| in_group(token, strip)).collect()
}

/// The token, whose content is changed if it is a group.
fn in_group(token: TokenTree, change: impl FnOnce(TokenStream) -> TokenStream) -> TokenTree {
    let TokenTree::Group(group) = token else { return token };
    let mut changed = Group::new(group.delimiter(), change(group.stream()));
    changed.set_span(group.span());
    changed.into()
}
