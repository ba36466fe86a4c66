//! The argument `on_limit`: the reaction to a call that is over the limit.

use proc_macro2::Ident;
use syn::parse::ParseStream;
use syn::{Expr, Result, Token};

use crate::errors::fail;
use crate::value::{self, Choice, Milliseconds, set};

#[derive(Clone)]
pub(crate) enum OnLimitArgument {
    Reject,
    Wait,
    WaitAtMost(Milliseconds),
    Return { word: Ident, expr: Box<Expr> },
}

pub(super) fn read(input: ParseStream, name: &str) -> Result<OnLimitArgument> {
    let (word, text) = value::word(input, name, &["Reject", "Wait", "Return"])?;
    if text == "Return" {
        let expr = Box::new(returned_value(&word, input)?);
        return Ok(OnLimitArgument::Return { word, expr });
    }
    let mut max = None;
    let max_choice = Choice::new("max", "\"30s\"", |max, input, _| set(max, value::milliseconds(input)));
    let choices = if text == "Wait" { &[max_choice][..] } else { &[] };
    value::options(&word, input, choices, &mut max)?;
    Ok(match (text, max) {
        ("Reject", _) => OnLimitArgument::Reject,
        (_, Some(milliseconds)) => OnLimitArgument::WaitAtMost(milliseconds),
        _ => OnLimitArgument::Wait,
    })
}

/// Reads the parentheses of `Return(expr)`.
fn returned_value(word: &Ident, input: ParseStream) -> Result<Expr> {
    let expected = "`Return` needs the value to return: Return(Ok(cached))";
    if !input.peek(syn::token::Paren) {
        return fail(word.span(), expected);
    }
    let content;
    syn::parenthesized!(content in input);
    if content.is_empty() {
        return fail(word.span(), expected);
    }
    let expr = value::expr(&content, "Return")?;
    content.parse::<Option<Token![,]>>()?;
    if !content.is_empty() {
        return Err(content.error("`Return` takes one value: Return((a, b))"));
    }
    Ok(expr)
}
