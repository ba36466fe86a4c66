//! Parses the arguments of one attribute.

mod algorithm;
mod bounds;
mod check;
mod cost;
mod limit;
mod on_limit;
mod on_store_error;
mod table;

use std::cell::RefCell;

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::{Ident, Lit, Result, Token};

#[cfg(test)]
pub(crate) use self::table::names;
pub(crate) use self::table::runtime_path;
use self::table::{Argument, AttributeArguments, arguments};
pub(crate) use self::{
    cost::{CostArgument, SETTLED_NEEDS},
    limit::{Exclusive, LimitAttribute, LimitKind, ParsedAttribute, RuleFields, RuleSource, RuleSpec},
    on_limit::OnLimitArgument,
    on_store_error::OnStoreErrorArgument,
    table::{CallArguments, Given, PermitVariable},
};
use crate::errors::{Errors, fail};
use crate::incomplete;
use crate::kind::AttributeKind;
use crate::suggest::{list, nearest, suggest};
use crate::value::{self, at_end};

/// Parses the arguments of an attribute that stands at `at`.
pub(crate) fn parse(kind: AttributeKind, args: TokenStream, at: Span, errors: &mut Errors) -> ParsedAttribute {
    let blocking = RefCell::new(None);
    let parser = |input: ParseStream| {
        if input.peek(Ident) && input.fork().parse::<Ident>()? == "skip" {
            return skip(kind, input);
        }
        let mut parser =
            ArgumentParser { kind, arguments: AttributeArguments::default(), is_named: false, position: 0 };
        let mut errors = Errors::default();
        errors.keep(value::comma_separated(input, |input| parser.argument(input)));
        blocking.replace(parser.arguments.call.blocking.clone());
        check::check(parser.arguments, kind, at, errors).map(Box::new).map(ParsedAttribute::Limit)
    };
    let error = match parser.parse2(args.clone()) {
        Ok(parsed) => return parsed,
        Err(error) => error,
    };
    if let Some(completed) = incomplete::complete(args)
        && let Ok(ParsedAttribute::Limit(mut limit)) = parser.parse2(completed)
    {
        limit.is_incomplete = true;
        return ParsedAttribute::Limit(limit);
    }
    errors.push(error);
    ParsedAttribute::Invalid(blocking.into_inner())
}

fn skip(kind: AttributeKind, input: ParseStream) -> Result<ParsedAttribute> {
    let word: Ident = input.parse()?;
    if input.is_empty() {
        return Ok(ParsedAttribute::Skip(word));
    }
    input.parse::<TokenStream>()?;
    fail(word.span(), skip_alone(kind))
}

fn skip_alone(kind: AttributeKind) -> String {
    format!("`skip` stands alone: #[{}(skip)]", kind.name())
}

/// Returns true if an expression goes on after a name: `ttl()`, `ttl.get()`, `ttl + 1`.
fn goes_on(input: ParseStream) -> bool {
    let ends = at_end(input) || input.peek(Token![=]) || input.peek(Token![:]);
    let follows = input.peek(Lit) || (input.peek(Ident::peek_any) && !input.peek(Token![as]));
    !(ends || follows)
}

struct ArgumentParser {
    kind: AttributeKind,
    arguments: AttributeArguments,
    /// A named argument was parsed: no value without a name may follow.
    is_named: bool,
    /// The number of values without a name so far.
    position: usize,
}

impl ArgumentParser {
    fn argument(&mut self, input: ParseStream) -> Result<()> {
        let name = match input.fork().call(Ident::parse_any) {
            Ok(name) if !input.peek2(Token![::]) => name,
            _ => return self.positional(input),
        };
        let text = name.unraw().to_string();
        if text == "skip" {
            return fail(name.span(), skip_alone(self.kind));
        }
        if let Some(argument) = arguments(self.kind).find(|argument| argument.name == text)
            && !self.starts_positional(argument, input)
        {
            return self.named(argument, name, input);
        }
        if value::starts_named(input) {
            self.is_named = true;
            let names = table::names(self.kind);
            self.arguments.excused.extend(nearest(&text, &names));
            return fail(name.span(), format!("unknown argument `{name}`, {}", suggest(&text, &names)));
        }
        self.positional(input)
    }

    /// Returns true for `ttl()`, an expression that begins with the name of an argument.
    fn starts_positional(&self, argument: &Argument, input: ParseStream) -> bool {
        let fork = input.fork();
        argument.usage.is_positional && !self.is_named && fork.call(Ident::parse_any).is_ok() && goes_on(&fork)
    }

    fn named(&mut self, argument: &Argument, name: Ident, input: ParseStream) -> Result<()> {
        input.call(Ident::parse_any)?;
        let text = argument.name;
        if self.arguments.is_given(text) {
            return fail(name.span(), format!("`{text}` is set twice"));
        }
        self.arguments.given.push((text, name.span()));
        if argument.usage.is_word {
            self.is_named = true;
            let at = name.span();
            (argument.read)(&mut self.arguments, name, input)?;
            return if input.peek(Token![=]) {
                fail(at, format!("`{text}` has no value: write it alone"))
            } else {
                Ok(())
            };
        }
        if input.parse::<Option<Token![=]>>()?.is_none() || at_end(input) {
            // The name may be meant as a constant among values without names.
            self.position += 1;
            let example = argument.usage.example(self.kind).unwrap_or_default();
            return fail(name.span(), format!("`{text}` needs a value: {text} = {example}"));
        }
        self.is_named = true;
        (argument.read)(&mut self.arguments, name, input)
    }

    /// A misspelt word that stands alone, such as `blockng`, and the one that is meant.
    fn misspelt_word(&self, input: ParseStream) -> Option<(Ident, &'static Argument)> {
        let fork = input.fork();
        let name = fork.call(Ident::parse_any).ok().filter(|_| at_end(&fork))?;
        let text = name.unraw().to_string();
        let mut words = arguments(self.kind).filter(|argument| argument.usage.is_word);
        let word = words.find(|argument| nearest(&text, &[argument.name]).is_some())?;
        Some((name, word))
    }

    fn positional(&mut self, input: ParseStream) -> Result<()> {
        let positional: Vec<_> = arguments(self.kind).filter(|argument| argument.usage.is_positional).collect();
        let names: Vec<_> = positional.iter().map(|argument| argument.name).collect();
        if at_end(input) {
            return Err(input.error("expected an argument before this `,`"));
        }
        let is_over = self.is_named || self.position >= positional.len();
        if is_over && let Some((name, argument)) = self.misspelt_word(input) {
            let (at, message) = (name.span(), format!("unknown argument `{name}`, did you mean `{}`?", argument.name));
            (argument.read)(&mut self.arguments, name, input)?;
            return fail(at, message);
        }
        if self.is_named {
            self.arguments.excused.extend(names);
            return Err(input.error("a value without a name comes before the named ones: write `name = value`"));
        }
        let Some(argument) = positional.get(self.position) else {
            let names = list(&names, "and");
            return Err(input.error(format!("only {names} go without a name, in this order: write `name = value`")));
        };
        self.position += 1;
        self.arguments.given.push((argument.name, input.span()));
        let name = Ident::new(argument.name, input.span());
        let result = (argument.read)(&mut self.arguments, name, input);
        if result.is_err() {
            // If a value was left out, the ones after it are not missing too.
            self.arguments.excused.extend(names);
        }
        result
    }
}
