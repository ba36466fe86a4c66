//! Reads the values of arguments: a word, a number, a text, options in parentheses.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt as _;
use syn::parse::ParseStream;
use syn::spanned::Spanned as _;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitBool, LitInt, LitStr, Path, Result, Token};

use crate::duration;
use crate::errors::{Errors, fail};
use crate::suggest::{list, nearest, suggest};

/// `one, one, ..`, where a bad one does not hide the mistakes after the next comma.
pub(crate) fn comma_separated(input: ParseStream, mut one: impl FnMut(ParseStream) -> Result<()>) -> Result<()> {
    let mut errors = Errors::default();
    while !input.is_empty() {
        if let Err(error) = one(input) {
            errors.push(error);
            skip_to_comma(input);
        } else if starts_named(input) {
            errors.push(input.error("expected `,` before the next argument"));
            continue;
        } else if !at_end(input) {
            errors.push(input.error("unexpected token, expected `,`"));
            skip_to_comma(input);
        }
        input.parse::<Option<Token![,]>>()?;
    }
    errors.finish()
}

pub(crate) fn starts_named(input: ParseStream) -> bool {
    input.peek(Ident::peek_any) && input.peek2(Token![=])
}

/// Is the value over, or missing?
pub(crate) fn at_end(input: ParseStream) -> bool {
    input.is_empty() || input.peek(Token![,])
}

fn skip_to_comma(input: ParseStream) {
    while !at_end(input) && input.parse::<TokenTree>().is_ok() {}
}

/// One of a few words, perhaps behind a path: `Minutes`, `TimeUnit::Minutes`.
pub(crate) fn word(input: ParseStream, what: &str, words: &[&'static str]) -> Result<(Ident, &'static str)> {
    if let Ok(quoted) = input.fork().parse::<LitStr>()
        && let Some(word) = nearest(&quoted.value(), words)
    {
        let message = format!("`{what}` is a word, not a string: write `{word}` without quotes");
        return fail(quoted.span(), message);
    }
    let expected = format!("`{what}` is {}", list(words, "or"));
    let path = Path::parse_mod_style(input).map_err(|e| Error::new(e.span(), expected))?;
    let Some(segment) = path.segments.last() else {
        return fail(path.span(), "expected a word");
    };
    let ident = segment.ident.clone();
    let text = ident.to_string();
    let Some(word) = words.iter().find(|word| text == **word) else {
        let end = suggest(&text, words);
        return fail(ident.span(), format!("unknown {what} `{text}`, {end}"));
    };
    Ok((ident, word))
}

pub(crate) enum Number {
    Literal(u64, Span),
    /// `const { .. }`
    Const(Expr),
    Other(Expr),
}

impl Number {
    /// What holds if nothing is said.
    pub(crate) fn one() -> Self {
        Number::Literal(1, Span::mixed_site())
    }

    /// As an argument of a `const fn`.
    pub(crate) fn to_const(&self) -> TokenStream {
        match self {
            Number::Literal(number, span) => integer(*number, *span),
            Number::Const(expr) | Number::Other(expr) => expr.to_token_stream(),
        }
    }

    /// What is evaluated.
    pub(crate) fn expr(&self) -> Option<&Expr> {
        match self {
            Number::Literal(..) => None,
            Number::Const(expr) | Number::Other(expr) => Some(expr),
        }
    }

    /// What is known while the macro runs.
    pub(crate) fn literal(&self) -> Option<u64> {
        match self {
            Number::Literal(number, _) => Some(*number),
            Number::Const(_) | Number::Other(_) => None,
        }
    }
}

/// Without a suffix, so that it is what the runtime asks for.
pub(crate) fn integer(number: u64, span: Span) -> TokenStream {
    LitInt::new(&number.to_string(), span).into_token_stream()
}

pub(crate) fn number(input: ParseStream, name: &str, least: u64) -> Result<Number> {
    let expr = expr(input, name)?;
    let problem = match &expr {
        Expr::Const(_) => return Ok(Number::Const(expr)),
        Expr::Lit(ExprLit { lit: Lit::Int(int), .. }) => match int.base10_parse::<u64>() {
            _ if !["", "u8", "u16", "u32", "u64", "usize"].contains(&int.suffix()) => {
                format!("`{name}` counts in u64: leave out the suffix")
            }
            Ok(number) if number >= least => return Ok(Number::Literal(number, int.span())),
            Err(_) if !int.base10_digits().starts_with('-') => {
                format!("`{name}` is at most {}", u64::MAX)
            }
            _ => format!("`{name}` must be at least {least}"),
        },
        Expr::Unary(minus) if matches!(*minus.expr, Expr::Lit(_)) => {
            format!("`{name}` must be at least {least}")
        }
        Expr::Lit(_) => format!("`{name}` is an integer"),
        _ => return Ok(Number::Other(expr)),
    };
    let message = format!("{problem}, for example {name} = {}", least.max(1));
    Err(Error::new_spanned(expr, message))
}

/// A string literal that fits `most` bytes, or an expression for a const.
pub(crate) fn text(input: ParseStream, name: &str, most: usize) -> Result<TokenStream> {
    let expr = expr(input, name)?;
    let problem = match &expr {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => match text.value().len() {
            0 => format!("`{name}` must not be empty, it names the counter"),
            length if length > most => {
                format!("`{name}` is {length} bytes long, at most {most} are allowed")
            }
            _ if text.suffix().is_empty() => return Ok(text.into_token_stream()),
            _ => format!("`{name}` is a plain string: leave out the suffix"),
        },
        Expr::Path(_) | Expr::Macro(_) | Expr::Const(_) => return Ok(expr.into_token_stream()),
        _ => format!("`{name}` is a string in quotes, for example {name} = \"item\""),
    };
    Err(Error::new_spanned(expr, problem))
}

pub(crate) fn boolean(input: ParseStream, name: &str) -> Result<LitBool> {
    input.parse().map_err(|e| Error::new(e.span(), format!("`{name}` is `true` or `false`")))
}

pub(crate) fn milliseconds(input: ParseStream) -> Result<u64> {
    let text: LitStr = input.parse().map_err(|e| Error::new(e.span(), duration::EXPECTED))?;
    duration::parse(&text.value()).map_err(|problem| Error::new(text.span(), problem))
}

/// An expression, without the invisible group around what came through a macro.
pub(crate) fn expr(input: ParseStream, name: &str) -> Result<Expr> {
    let mut expr: Expr =
        input.parse().map_err(|e| Error::new(e.span(), format!("`{name}` needs an expression here: {e}")))?;
    loop {
        expr = match expr {
            Expr::Group(group) => *group.expr,
            Expr::Paren(paren) if matches!(*paren.expr, Expr::Lit(_)) => *paren.expr,
            other => return Ok(other),
        };
    }
}

/// The options of a word, such as `(max = "30s")` after `Wait`. `examples` are all there are.
pub(crate) fn options(
    word: &Ident,
    input: ParseStream,
    examples: &[(&'static str, &'static str)],
    mut set: impl FnMut(&'static str, ParseStream) -> Result<()>,
) -> Result<()> {
    let mut seen = Vec::new();
    in_parentheses(input, |input| set(option(word, input, examples, &mut seen)?, input))
}

/// `(one, one, ..)`, if there are parentheses.
pub(crate) fn in_parentheses(input: ParseStream, one: impl FnMut(ParseStream) -> Result<()>) -> Result<()> {
    if !input.peek(syn::token::Paren) {
        return Ok(());
    }
    let content;
    syn::parenthesized!(content in input);
    comma_separated(&content, one)
}

/// The name of an option of `word`, up to its value.
pub(crate) fn option(
    word: &Ident,
    input: ParseStream,
    examples: &[(&'static str, &'static str)],
    seen: &mut Vec<&'static str>,
) -> Result<&'static str> {
    let Some((first, example)) = examples.first() else {
        return Err(input.error(format!("`{word}` has no options, write it alone")));
    };
    if !starts_named(input) {
        let value = match input.fork().parse::<Lit>() {
            Ok(lit) => lit.into_token_stream().to_string(),
            Err(_) => (*example).to_string(),
        };
        return Err(input.error(format!("name the option: {word}({first} = {value})")));
    }
    let names: Vec<&'static str> = examples.iter().map(|(name, _)| *name).collect();
    let ident = input.call(Ident::parse_any)?;
    let Some(name) = names.iter().find(|name| ident == **name) else {
        let end = suggest(&ident.to_string(), &names);
        return fail(ident.span(), format!("unknown option `{ident}` of `{word}`, {end}"));
    };
    if seen.contains(name) {
        return fail(ident.span(), format!("`{name}` is set twice"));
    }
    seen.push(name);
    input.parse::<Token![=]>()?;
    Ok(name)
}
