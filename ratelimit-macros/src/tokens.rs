//! Spans of generated tokens: hygiene for names, and places for errors in the user's code; and tuples that borrow.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::token::Brace;
use syn::{Expr, ExprTuple};

/// Generated tokens with mixed-site hygiene, which keeps their local names and the user's apart.
macro_rules! hygienic {
    ($($tokens:tt)*) => { ::quote::quote_spanned!(::proc_macro2::Span::mixed_site()=> $($tokens)*) };
}
pub(crate) use hygienic;

/// Spans of the first and last token, for generated code whose errors belong there.
pub(crate) fn ends(tokens: impl ToTokens) -> (Span, Span) {
    let mut spans = tokens.to_token_stream().into_iter().map(|token| token.span());
    let first = spans.next().unwrap_or_else(Span::call_site);
    let last = spans.last().unwrap_or(first);
    let mixed_site = Span::mixed_site();
    (first.resolved_at(mixed_site), last.resolved_at(mixed_site))
}

/// Changes `(a, b)` to `(&(a), &(b))`: the tuple of a key moves none of its parts. So it does behind `&` and in
/// parentheses.
pub(crate) fn borrow_parts(expr: &Expr) -> TokenStream {
    let Some(tuple) = tuple_of(expr) else { return expr.to_token_stream() };
    let parts = tuple.elems.iter().map(|part| {
        let (start, end) = ends(part);
        let part = parenthesize(borrow_parts(part), end);
        quote_spanned!(start=> &#part,)
    });
    let mut group = Group::new(Delimiter::Parenthesis, parts.collect());
    group.set_span(tuple.paren_token.span.join());
    group.into_token_stream()
}

fn tuple_of(expr: &Expr) -> Option<&ExprTuple> {
    match expr {
        Expr::Tuple(tuple) => Some(tuple),
        Expr::Paren(inner) => tuple_of(&inner.expr),
        Expr::Group(inner) => tuple_of(&inner.expr),
        Expr::Reference(reference) => tuple_of(&reference.expr),
        _ => None,
    }
}

/// A path at a span where rustc is to report an error.
///
/// `$crate` keeps its hygiene, without which it does not resolve. All other tokens get the hygiene
/// of `span`: rustc reports an error over several tokens only if they have the same.
pub(crate) fn locate(path: TokenStream, span: Span) -> TokenStream {
    let move_token = |mut token: TokenTree| {
        let at = match token.to_string().as_str() {
            "$crate" => span.resolved_at(token.span()),
            _ => span,
        };
        token.set_span(at);
        token
    };
    path.into_iter().map(move_token).collect()
}

/// `krate::__private::name(expr)`. Errors are reported at `expr`.
pub(crate) fn call_at(expr: &impl ToTokens, krate: &TokenStream, name: &str) -> TokenStream {
    let (start, end) = ends(expr);
    let krate = locate(krate.clone(), start);
    let (name, argument) = (Ident::new(name, start), parenthesize(expr.to_token_stream(), end));
    quote_spanned!(start=> #krate::__private::#name #argument)
}

/// Braces at the place of the user's.
pub(crate) fn block(brace: Brace, tokens: TokenStream) -> Group {
    let mut group = Group::new(Delimiter::Brace, tokens);
    group.set_span(brace.span.join());
    group
}

pub(crate) fn parenthesize(tokens: TokenStream, at: Span) -> Group {
    let mut group = Group::new(Delimiter::Parenthesis, tokens);
    group.set_span(at);
    group
}

/// The tokens as text, to compare them.
pub(crate) fn text(tokens: &impl ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

pub(crate) fn is_punct(token: &TokenTree, any_of: &str) -> bool {
    matches!(token, TokenTree::Punct(punct) if any_of.contains(punct.as_char()))
}
