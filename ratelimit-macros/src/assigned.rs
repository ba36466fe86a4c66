//! The values that a variable gets after its declaration.

use proc_macro2::{Ident, Spacing, TokenStream, TokenTree};
use syn::Expr;
use syn::parse::{ParseStream, Parser as _};

use crate::tokens::is_punct;

/// The tokens behind each `name =`, `name: Type =` and `(name, other) =` in these statements, up to the next `;`.
///
/// Scopes are ignored: a `name` in a closure or in a spawned block counts, too.
pub(crate) fn values_of(name: &Ident, statements: &TokenStream) -> Vec<TokenStream> {
    let mut values = Vec::new();
    find_values(name, statements.clone(), &mut values);
    values
}

fn find_values(name: &Ident, tokens: TokenStream, found: &mut Vec<TokenStream>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let is_sign = |at: usize, signs: &str| tokens.get(at).is_some_and(|token| is_punct(token, signs));
    let is_joint = |at: usize| matches!(&tokens[at], TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint);
    let assigns = |at: usize| is_sign(at, "=") && !is_joint(at) && !is_joint(at - 1);
    for (at, token) in tokens.iter().enumerate() {
        let is_it = match token {
            TokenTree::Ident(word) => word == name && !(at > 0 && is_sign(at - 1, ".")),
            TokenTree::Group(group) => {
                find_values(name, group.stream(), found);
                // Only at the beginning of a statement: not the arguments of a call, nor an index.
                let begins = at == 0 || is_sign(at - 1, ";");
                begins && group.stream().into_iter().any(|part| matches!(part, TokenTree::Ident(word) if word == *name))
            }
            _ => false,
        };
        if !is_it {
            continue;
        }
        let end = (at..tokens.len()).find(|at| is_sign(*at, ";")).unwrap_or(tokens.len());
        let assigned = if is_sign(at + 1, ":") {
            // A type may have `=` between its brackets, as in `Box<dyn Future<Output = R>>`.
            let mut depth = 0_usize;
            (at + 2..end).find(|at| {
                match &tokens[*at] {
                    TokenTree::Punct(punct) if punct.as_char() == '<' => depth += 1,
                    TokenTree::Punct(punct) if punct.as_char() == '>' && !is_sign(at - 1, "-") => {
                        depth = depth.saturating_sub(1);
                    }
                    _ => {}
                }
                depth == 0 && assigns(*at)
            })
        } else {
            (at + 1 < end && assigns(at + 1)).then_some(at + 1)
        };
        found.extend(assigned.map(|assigned| tokens[assigned + 1..end].iter().cloned().collect()));
    }
}

/// The expression at the beginning of these tokens.
pub(crate) fn begin_of(tokens: TokenStream) -> Option<Expr> {
    let begin = |input: ParseStream<'_>| {
        let value: Expr = input.parse()?;
        input.parse::<TokenStream>().map(|_| value)
    };
    begin.parse2(tokens).ok()
}
