//! The argument `cost`: a number, or a cost that is known when the call ends.

use proc_macro2::{Ident, Span, TokenTree};
use syn::parse::ParseStream;
use syn::{Expr, Path, Result};

use crate::errors::fail;
use crate::suggest::nearest;
use crate::value::{self, Choice, Milliseconds, Number, at_end, set};

pub(crate) const SETTLED_NEEDS: &str = "`Settled` needs what is held while the call runs, and a closure that says what was used: Settled(max = 4_000, |outcome| outcome.tokens()); or, without the closure, `permit = permit` for a body that calls permit.settle(tokens)";

pub(crate) enum CostArgument {
    Number(Number),
    /// The time that the call takes. `max` is held while it runs.
    Elapsed {
        word: Span,
        max: Option<Milliseconds>,
    },
    /// The number that `closure` returns. `max` is held while the call runs.
    Settled {
        word: Ident,
        max: Number,
        /// `None` if another attribute of the function has it, or the body settles its permit.
        closure: Option<Box<Expr>>,
    },
}

const WORDS: [&str; 2] = ["Elapsed", "Settled"];

/// Reads `5`, `Elapsed`, `Elapsed(max = "5s")` or `Settled(max = 4_000, |outcome| ..)`.
pub(super) fn read(input: ParseStream, name: &str) -> Result<CostArgument> {
    if !starts_with_word(input) {
        return value::number(input, name, 0).map(CostArgument::Number);
    }
    let (word, text) = value::word(input, name, &WORDS)?;
    if text == "Settled" {
        return settled(word, input);
    }
    let mut max = None;
    let choice = Choice::new("max", "\"5s\"", |max, input, _| set(max, value::milliseconds(input)));
    value::options(&word, input, &[choice], &mut max)?;
    Ok(CostArgument::Elapsed { word: word.span(), max })
}

/// Returns true for a word, and for a misspelt word that cannot be an expression for a number.
fn starts_with_word(input: ParseStream) -> bool {
    let fork = input.fork();
    let Ok(path) = Path::parse_mod_style(&fork) else { return false };
    let Some(last) = path.segments.last().map(|last| last.ident.to_string()) else { return false };
    if WORDS.contains(&&*last) {
        return true;
    }
    if fork.peek(syn::token::Paren) && fork.parse::<TokenTree>().is_err() {
        return false;
    }
    let is_camel_case = last.starts_with(char::is_uppercase) && last.contains(char::is_lowercase);
    is_camel_case && at_end(&fork) && nearest(&last, &WORDS).is_some()
}

/// Reads the parentheses of `Settled`: an option and a closure without a name, in any order.
fn settled(word: Ident, input: ParseStream) -> Result<CostArgument> {
    let choices = [Choice::new("max", "4_000", |max, input, name| set(max, value::positive(input, name)))];
    let (mut max, mut closure, mut given) = (None, None, Vec::new());
    value::in_parentheses(input, |input| {
        if value::starts_named(input) || input.peek(syn::Lit) {
            return value::option(&word, input, &choices, &mut max, &mut given);
        }
        if closure.is_some() {
            return Err(input.error("`Settled` takes one closure, and what is held by its name: max = 4_000"));
        }
        closure = Some(Box::new(value::expr(input, "Settled")?));
        Ok(())
    })?;
    match max {
        Some(max) => Ok(CostArgument::Settled { word, max, closure }),
        None => fail(word.span(), SETTLED_NEEDS),
    }
}
