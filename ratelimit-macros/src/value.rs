//! Reads values of arguments: words, numbers, strings, and options in parentheses.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::ParseStream;
use syn::spanned::Spanned as _;
use syn::token::{Brace, Bracket};
use syn::{Error, Expr, ExprLit, Ident, Lit, LitBool, LitInt, LitStr, Path, Result, Token};

use crate::duration;
use crate::errors::{Errors, fail};
use crate::suggest::{list, nearest, suggest};
use crate::tokens::{call_at, ends};

/// Reads `one, one, ..`. An error does not hide the mistakes after the next comma.
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

/// Returns true at the end of a value, or where it is missing.
pub(crate) fn at_end(input: ParseStream) -> bool {
    input.is_empty() || input.peek(Token![,])
}

fn skip_to_comma(input: ParseStream) {
    while !at_end(input) && input.parse::<TokenTree>().is_ok() {}
}

/// Reads one of `words`, possibly with a path before it: `Minutes`, `TimeUnit::Minutes`.
pub(crate) fn word(input: ParseStream, name: &str, words: &[&'static str]) -> Result<(Ident, &'static str)> {
    word_of(input, name, words, |word| word).map(|(ident, word)| (ident, *word))
}

/// Reads the word of one of the rows of a table.
pub(crate) fn word_of<'a, R>(
    input: ParseStream,
    name: &str,
    rows: &'a [R],
    word: fn(&R) -> &'static str,
) -> Result<(Ident, &'a R)> {
    let words: Vec<&'static str> = rows.iter().map(word).collect();
    if let Ok(quoted) = input.fork().parse::<LitStr>()
        && let Some(word) = nearest(&quoted.value(), &words)
    {
        let message = format!("`{name}` is a word, not a string: write `{word}` without quotes");
        return fail(quoted.span(), message);
    }
    let expected = format!("`{name}` is {}", list(&words, "or"));
    let path = Path::parse_mod_style(input).map_err(|e| Error::new(e.span(), expected))?;
    let Some(segment) = path.segments.last() else {
        return fail(path.span(), "expected a word");
    };
    let ident = segment.ident.clone();
    let text = ident.to_string();
    let Some(row) = rows.iter().find(|row| text == word(row)) else {
        let end = suggest(&text, &words);
        return fail(ident.span(), format!("unknown {name} `{text}`, {end}"));
    };
    Ok((ident, row))
}

/// Reads the variant of an enum of the runtime.
pub(crate) fn variant(input: ParseStream, name: &str, words: &[&'static str]) -> Result<Ident> {
    let (mut ident, _) = word(input, name, words)?;
    ident.set_span(ident.span().resolved_at(Span::mixed_site()));
    Ok(ident)
}

pub(crate) enum Number {
    Literal(u64, Span),
    /// `const { .. }`
    Const(Expr),
    Other(Expr),
}

impl Number {
    /// The default of most numbers.
    pub(crate) fn one() -> Self {
        Number::Literal(1, Span::mixed_site())
    }

    /// The number as a `u64` in a constant. The path of a constant may have any type of integer; of
    /// other expressions, whose type rustc infers, the type is `u64`.
    pub(crate) fn to_const(&self, krate: &TokenStream) -> TokenStream {
        match self {
            Number::Literal(number, span) => integer(*number, *span),
            Number::Other(path @ Expr::Path(_)) => {
                let constant = call_at(path, krate, "Constant");
                quote_spanned!(ends(path).0=> #constant.integer())
            }
            Number::Const(expr) | Number::Other(expr) => expr.to_token_stream(),
        }
    }

    /// [`Self::to_const`] of a number that is 1 if it is not given.
    pub(crate) fn to_const_or_one(number: Option<&Self>, krate: &TokenStream) -> TokenStream {
        number.map_or_else(|| Self::one().to_const(krate), |number| number.to_const(krate))
    }

    /// The expression to evaluate. `None` for a literal.
    pub(crate) fn expr(&self) -> Option<&Expr> {
        match self {
            Number::Literal(..) => None,
            Number::Const(expr) | Number::Other(expr) => Some(expr),
        }
    }

    /// The value, if it is known while the macro runs.
    pub(crate) fn literal(&self) -> Option<u64> {
        match self {
            Number::Literal(number, _) => Some(*number),
            Number::Const(_) | Number::Other(_) => None,
        }
    }
}

/// A duration.
#[derive(Clone)]
pub(crate) enum Milliseconds {
    Literal(u64, Span),
    /// A constant `Duration`.
    Const(Box<Expr>),
}

impl Milliseconds {
    /// The milliseconds as a `u64` in a constant.
    pub(crate) fn to_const(&self, krate: &TokenStream) -> TokenStream {
        match self {
            Self::Literal(milliseconds, span) => integer(*milliseconds, *span),
            Self::Const(expr) => call_at(expr, krate, "milliseconds"),
        }
    }

    /// The value, if it is known while the macro runs.
    pub(crate) fn literal(&self) -> Option<u64> {
        match self {
            Self::Literal(milliseconds, _) => Some(*milliseconds),
            Self::Const(_) => None,
        }
    }
}

/// An integer literal without a suffix: the runtime's function gives it its type.
pub(crate) fn integer(number: u64, span: Span) -> TokenStream {
    LitInt::new(&number.to_string(), span).into_token_stream()
}

/// Reads a number that is at least 1.
pub(crate) fn positive(input: ParseStream, name: &str) -> Result<Number> {
    number(input, name, 1)
}

/// Reads an integer literal that is at least `least`, or an expression.
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

/// Reads a string literal of at most `most` bytes, or a constant expression.
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

pub(crate) fn boolean(input: ParseStream, name: &str) -> Result<bool> {
    let literal = input.parse::<LitBool>();
    let literal = literal.map_err(|e| Error::new(e.span(), format!("`{name}` is `true` or `false`")))?;
    Ok(literal.value)
}

/// Reads a boolean. `None` if it is the default.
pub(crate) fn flag(input: ParseStream, name: &str, default: bool) -> Result<Option<TokenStream>> {
    let value = boolean(input, name)?;
    Ok((value != default).then(|| value.into_token_stream()))
}

/// Reads a duration: a string, or a constant expression.
pub(crate) fn milliseconds(input: ParseStream) -> Result<Milliseconds> {
    let at = input.span();
    match expr(input, "duration").map_err(|e| Error::new(e.span(), duration::EXPECTED))? {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
            let milliseconds = duration::parse(&text.value()).map_err(|problem| Error::new(text.span(), problem))?;
            Ok(Milliseconds::Literal(milliseconds, text.span()))
        }
        Expr::Lit(_) => fail(at, duration::EXPECTED),
        expr => Ok(Milliseconds::Const(Box::new(expr))),
    }
}

/// Reads an expression, without the invisible group around one that a macro passes on.
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

/// Returns true for a string literal, and for a tuple of nothing else.
pub(crate) fn is_text(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(ExprLit { lit, .. }) => matches!(lit, Lit::Str(_)),
        Expr::Reference(reference) => is_text(&reference.expr),
        Expr::Group(group) => is_text(&group.expr),
        Expr::Paren(paren) => is_text(&paren.expr),
        Expr::Tuple(tuple) => !tuple.elems.is_empty() && tuple.elems.iter().all(is_text),
        _ => false,
    }
}

/// An option of a word, such as `max = "30s"` of `Wait`.
pub(crate) struct Choice<T> {
    pub(crate) name: &'static str,
    /// An example of its value, for errors.
    pub(crate) example: &'static str,
    /// Reads the value of the option with this name.
    read: fn(&mut T, ParseStream, &str) -> Result<()>,
}

impl<T> Choice<T> {
    pub(crate) const fn new(
        name: &'static str,
        example: &'static str,
        read: fn(&mut T, ParseStream, &str) -> Result<()>,
    ) -> Self {
        Self { name, example, read }
    }
}

/// Stores the value of an option.
pub(crate) fn set<T>(option: &mut Option<T>, value: Result<T>) -> Result<()> {
    *option = Some(value?);
    Ok(())
}

/// Reads the options of a word, such as `(max = "30s")` after `Wait`. Returns the given names.
pub(crate) fn options<T>(
    word: &Ident,
    input: ParseStream,
    choices: &[Choice<T>],
    into: &mut T,
) -> Result<Vec<&'static str>> {
    let mut given = Vec::new();
    if (input.peek(Brace) || input.peek(Bracket))
        && let Some(Choice { name, example, .. }) = choices.first()
    {
        return Err(input.error(format!("options stand in parentheses: {word}({name} = {example})")));
    }
    in_parentheses(input, |input| option(word, input, choices, into, &mut given))?;
    Ok(given)
}

/// Reads `(one, one, ..)`, if there are parentheses.
pub(crate) fn in_parentheses(input: ParseStream, one: impl FnMut(ParseStream) -> Result<()>) -> Result<()> {
    if !input.peek(syn::token::Paren) {
        return Ok(());
    }
    let content;
    syn::parenthesized!(content in input);
    comma_separated(&content, one)
}

/// Reads one option of `word`.
pub(crate) fn option<T>(
    word: &Ident,
    input: ParseStream,
    choices: &[Choice<T>],
    into: &mut T,
    given: &mut Vec<&'static str>,
) -> Result<()> {
    let Some(first) = choices.first() else {
        return Err(input.error(format!("`{word}` has no options, write it alone")));
    };
    if !starts_named(input) {
        let is_text = first.example.starts_with('"');
        let value = match input.fork().parse::<Lit>() {
            Ok(Lit::Int(number)) if is_text => format!("\"{number}s\""),
            Ok(lit) if is_text == matches!(lit, Lit::Str(_)) => lit.into_token_stream().to_string(),
            _ => first.example.to_string(),
        };
        return Err(input.error(format!("name the option: {word}({} = {value})", first.name)));
    }
    let ident = input.call(Ident::parse_any)?;
    let Some(choice) = choices.iter().find(|choice| ident == choice.name) else {
        let names: Vec<&'static str> = choices.iter().map(|choice| choice.name).collect();
        let end = suggest(&ident.to_string(), &names);
        return fail(ident.span(), format!("unknown option `{ident}` of `{word}`, {end}"));
    };
    if given.contains(&choice.name) {
        return fail(ident.span(), format!("`{}` is set twice", choice.name));
    }
    given.push(choice.name);
    input.parse::<Token![=]>()?;
    (choice.read)(into, input, choice.name)
}
