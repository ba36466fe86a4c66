//! Tests without a compiler: generated code, error messages, documented arguments, no panics.

mod docs;
mod incomplete;
mod malformed;
mod messages;
mod snapshots;

use proc_macro2::{TokenStream, TokenTree};

/// Texts of the `compile_error!`s among the tokens, each with the token that it is reported at.
fn compile_errors(tokens: TokenStream) -> Vec<(String, String)> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            continue;
        };
        match tokens.get(i.wrapping_sub(2)) {
            Some(TokenTree::Ident(name)) if name == "compile_error" => {
                let text: syn::LitStr = syn::parse2(group.stream()).unwrap();
                let span = name.span().join(group.span()).unwrap_or(name.span());
                let token = span.source_text().unwrap_or_default();
                found.push((text.value(), token));
            }
            _ => found.extend(compile_errors(group.stream())),
        }
    }
    found
}
