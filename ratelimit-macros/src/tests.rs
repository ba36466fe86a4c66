//! Tests without a compiler: what is generated, what is said, and that nothing panics.

mod malformed;
mod messages;
mod snapshots;

use proc_macro2::{TokenStream, TokenTree};

/// The texts of all `compile_error!`s among the tokens.
fn compile_errors(tokens: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            continue;
        };
        match tokens.get(i.wrapping_sub(2)) {
            Some(TokenTree::Ident(name)) if name == "compile_error" => {
                found.extend(syn::parse2::<syn::LitStr>(group.stream()).map(|text| text.value()));
            }
            _ => found.extend(compile_errors(group.stream())),
        }
    }
    found
}
