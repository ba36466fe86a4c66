//! Spans of generated tokens: hygiene for names, and places for errors in the user's code.

use proc_macro2::{Delimiter, Group, Span, TokenStream};
use quote::ToTokens;
use syn::token::Brace;

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
