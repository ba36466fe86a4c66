//! Reads and checks what stands in the parentheses of one attribute.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::{Error, Expr, Ident, Path, Result, Token};

use crate::errors::{Errors, fail};
use crate::suggest::{nearest, suggest};
use crate::value::{self, Number, at_end};

pub(crate) enum Attr {
    Skip(Ident),
    Limit(Box<Limit>),
}

pub(crate) struct Limit {
    pub(crate) rule: Rule,
    pub(crate) settings: Settings,
    /// What only a later version can do.
    pub(crate) later: Vec<Later>,
}

/// What each of several stacked attributes has for itself.
pub(crate) struct Rule {
    pub(crate) prefix: TokenStream,
    pub(crate) ttl: TokenStream,
    pub(crate) unit: u64,
    pub(crate) count: Number,
    pub(crate) key: Option<Expr>,
    pub(crate) missing_key: Option<Ident>,
    pub(crate) cost: Number,
    pub(crate) algorithm: Algorithm,
}

/// What holds for the whole call, each with the name it was set by.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) limiter: Option<(Ident, Expr)>,
    pub(crate) on_limit: Option<(Ident, OnLimit)>,
    pub(crate) on_store_error: Option<(Ident, Ident)>,
    pub(crate) permit: Option<(Ident, Ident)>,
    pub(crate) krate: Option<(Ident, Path)>,
}

#[derive(Clone)]
pub(crate) enum OnLimit {
    Reject,
    Wait,
    WaitAtMost(u64),
    Return { word: Ident, expr: Box<Expr> },
}

#[derive(Default)]
pub(crate) enum Algorithm {
    #[default]
    FixedWindow,
    Aligned(bool),
    SlidingLog,
}

pub(crate) struct Later {
    pub(crate) span: Span,
    pub(crate) message: String,
    /// Set if there can be no second rule beside it: what stands alone.
    pub(crate) alone: Option<&'static str>,
}

/// Every argument and an example of its value; the first four may be positional.
const ARGUMENTS: [(&str, &str); 15] = [
    ("prefix", "\"item\""),
    ("ttl", "1"),
    ("unit", "Minutes"),
    ("count", "100"),
    ("key", "user_id"),
    ("algorithm", "SlidingLog"),
    ("cost", "5"),
    ("on_limit", "Wait(max = \"30s\")"),
    ("on_store_error", "Local"),
    ("on_missing_key", "Deny"),
    ("permit", "permit"),
    ("limiter", "&self.limiter"),
    ("lease", "1"),
    ("shadow", "false"),
    ("crate", "::ratelimit_runtime"),
];
const POSITIONAL: usize = 4;

const SKIP_ALONE: &str = "`skip` stands alone: #[limit_request_per_time(skip)]";

/// The longest period, in milliseconds: 3,650 days.
const LONGEST: u64 = 3_650 * 86_400_000;

const UNITS: [&str; 5] = ["Milliseconds", "Seconds", "Minutes", "Hours", "Days"];
const ALGORITHMS: [&str; 5] = ["FixedWindow", "SlidingLog", "SlidingWindow", "TokenBucket", "LeakyBucket"];

/// The arguments of an attribute standing at `at`; none if there are errors.
pub(crate) fn parse(args: TokenStream, at: Span, errors: &mut Errors) -> Option<Attr> {
    let parser = |input: ParseStream| {
        if input.peek(Ident) && input.fork().parse::<Ident>()? == "skip" {
            return skip(input);
        }
        let mut fields = Fields::default();
        let mut errors = Errors::default();
        errors.keep(value::comma_separated(input, |input| fields.argument(input)));
        fields.finish(at, errors).map(Box::new).map(Attr::Limit)
    };
    errors.keep(parser.parse2(args))
}

fn skip(input: ParseStream) -> Result<Attr> {
    let word: Ident = input.parse()?;
    if input.is_empty() {
        return Ok(Attr::Skip(word));
    }
    input.parse::<TokenStream>()?;
    fail(word.span(), SKIP_ALONE)
}

#[derive(Default)]
struct Fields {
    given: Vec<&'static str>,
    /// Not given, but reporting them as missing would be a second error for one mistake.
    excused: Vec<&'static str>,
    named: bool,
    position: usize,
    prefix: Option<TokenStream>,
    ttl: Option<Number>,
    unit: Option<u64>,
    count: Option<Number>,
    key: Option<Expr>,
    missing_key: Option<(Ident, Ident)>,
    cost: Option<Number>,
    elapsed: Option<Span>,
    algorithm: Option<(Algorithm, &'static str)>,
    lease: Option<Span>,
    settings: Settings,
    later: Vec<Later>,
}

impl Fields {
    fn argument(&mut self, input: ParseStream) -> Result<()> {
        let name = input.fork().call(Ident::parse_any);
        let name = match name {
            Ok(name) if !input.peek2(Token![::]) => name,
            _ => return self.positional(input),
        };
        let word = name.to_string();
        if word == "skip" {
            return fail(name.span(), SKIP_ALONE);
        }
        if let Some((known, example)) = ARGUMENTS.iter().find(|(known, _)| word == *known) {
            input.call(Ident::parse_any)?;
            if self.given.contains(known) {
                return fail(name.span(), format!("`{known}` is set twice"));
            }
            self.given.push(known);
            if input.parse::<Option<Token![=]>>()?.is_none() || at_end(input) {
                // Perhaps a constant of that name, among values without names.
                self.position += 1;
                let message = format!("`{known}` needs a value: {known} = {example}");
                return fail(name.span(), message);
            }
            self.named = true;
            return self.value(known, name, input);
        }
        if value::starts_named(input) {
            self.named = true;
            let names = ARGUMENTS.map(|(name, _)| name);
            self.excused.extend(nearest(&word, &names));
            let end = suggest(&word, &names);
            return fail(name.span(), format!("unknown argument `{name}`, {end}"));
        }
        self.positional(input)
    }

    fn positional(&mut self, input: ParseStream) -> Result<()> {
        let names = || ARGUMENTS.iter().take(POSITIONAL).map(|(name, _)| *name);
        if at_end(input) {
            return Err(input.error("expected an argument before this `,`"));
        }
        if self.named {
            self.excused.extend(names());
            return Err(input.error("a value without a name comes before the named ones: write `name = value`"));
        }
        let Some(name) = names().nth(self.position) else {
            return Err(input.error(
                "only `prefix`, `ttl`, `unit` and `count` go without a name, in this order: write `name = value`",
            ));
        };
        self.position += 1;
        self.given.push(name);
        let result = self.value(name, Ident::new(name, input.span()), input);
        if result.is_err() {
            // Perhaps one was left out: then those after it are not missing too.
            self.excused.extend(names());
        }
        result
    }

    fn value(&mut self, argument: &'static str, name: Ident, input: ParseStream) -> Result<()> {
        let settings = &mut self.settings;
        match argument {
            "prefix" => self.prefix = Some(value::text(input, argument, 200)?),
            "ttl" => self.ttl = Some(value::number(input, argument, 1)?),
            "unit" => self.unit = Some(unit(input)?),
            "count" => self.count = Some(value::number(input, argument, 1)?),
            "key" => self.key = Some(value::expr(input, argument)?),
            "algorithm" => self.algorithm = Some(algorithm(input, &mut self.later)?),
            "cost" => match elapsed(input)? {
                Some(span) => self.elapsed = Some(span),
                None => self.cost = Some(value::number(input, argument, 0)?),
            },
            "on_limit" => settings.on_limit = Some((name, on_limit(input)?)),
            "on_store_error" => {
                let words = ["Local", "Allow", "Deny"];
                settings.on_store_error = Some((name, variant(input, argument, &words)?));
            }
            "on_missing_key" => {
                let words = ["Deny", "Skip", "Shared"];
                self.missing_key = Some((name, variant(input, argument, &words)?));
            }
            "permit" => {
                let ident = input
                    .parse()
                    .map_err(|e| Error::new(e.span(), "`permit` is a name for the body: permit = permit"))?;
                settings.permit = Some((name, ident));
            }
            "limiter" => settings.limiter = Some((name, value::expr(input, argument)?)),
            "lease" => {
                let number = value::number(input, argument, 1)?;
                if !matches!(number, Number::Literal(1, _)) {
                    self.lease = Some(name.span());
                }
            }
            "shadow" => {
                if value::boolean(input, argument)?.value {
                    self.later.push(Later {
                        span: name.span(),
                        message: "`shadow` is not available yet, leave it out".into(),
                        alone: None,
                    });
                }
            }
            _ => settings.krate = Some((name, runtime(input)?)),
        }
        Ok(())
    }

    /// Checks the arguments against each other.
    fn finish(mut self, at: Span, mut errors: Errors) -> Result<Limit> {
        for (name, what) in [
            ("prefix", "the counter's name"),
            ("unit", "the unit of `ttl`"),
            ("count", "how many calls are let through"),
        ] {
            if !self.given.contains(&name)
                && !self.excused.contains(&name)
                && let Some((_, example)) = ARGUMENTS.iter().find(|(known, _)| *known == name)
            {
                errors.add(at, format!("missing `{name}`, {what}: {name} = {example}"));
            }
        }
        if let (Some(Number::Literal(ttl, span)), Some(unit)) = (&self.ttl, self.unit)
            && ttl.checked_mul(unit).is_none_or(|milliseconds| milliseconds > LONGEST)
        {
            errors.add(*span, "`ttl` is longer than 3,650 days");
        }
        if let (Some((name, _)), false) = (&self.missing_key, self.given.contains(&"key")) {
            let message = "`on_missing_key` needs a `key` that may be missing: key = user_id";
            errors.add(name.span(), message);
        }
        let algorithm = self.algorithm.as_ref().map_or("FixedWindow", |(_, word)| word);
        if let Some(span) = self.lease {
            self.only_with(span, "lease", algorithm, "FixedWindow", &mut errors);
        }
        if let Some(span) = self.elapsed {
            self.only_with(span, "Elapsed", algorithm, "SlidingLog", &mut errors);
        }
        errors.finish()?;
        let (Some(prefix), Some(unit), Some(count)) = (self.prefix, self.unit, self.count) else {
            return fail(at, "`prefix`, `unit` and `count` are needed");
        };
        Ok(Limit {
            rule: Rule {
                prefix,
                ttl: self.ttl.unwrap_or(Number::Literal(1, Span::mixed_site())).into_const(),
                unit,
                count,
                key: self.key,
                missing_key: self.missing_key.map(|(_, word)| word),
                cost: self.cost.unwrap_or(Number::Literal(1, Span::mixed_site())),
                algorithm: self.algorithm.map(|(algorithm, _)| algorithm).unwrap_or_default(),
            },
            settings: self.settings,
            later: self.later,
        })
    }

    fn only_with(&mut self, span: Span, word: &'static str, algorithm: &str, only: &str, errors: &mut Errors) {
        if algorithm == only {
            let message = format!("`{word}` is not available yet, leave it out");
            let alone = (word == "lease").then_some(word);
            self.later.push(Later { span, message, alone });
        } else if !self.given.contains(&"algorithm") || self.algorithm.is_some() {
            let message = format!("`{word}` needs `algorithm = {only}`, not `{algorithm}`");
            errors.add(span, message);
        }
    }
}

/// The variant of an enum of the runtime.
fn variant(input: ParseStream, argument: &str, words: &[&'static str]) -> Result<Ident> {
    let (mut word, _) = value::word(input, argument, words)?;
    word.set_span(word.span().resolved_at(Span::mixed_site()));
    Ok(word)
}

/// Milliseconds a unit.
fn unit(input: ParseStream) -> Result<u64> {
    let (_, word) = value::word(input, "unit", &UNITS)?;
    Ok(match word {
        "Milliseconds" => 1,
        "Seconds" => 1_000,
        "Minutes" => 60_000,
        "Hours" => 3_600_000,
        _ => 86_400_000,
    })
}

fn algorithm(input: ParseStream, later: &mut Vec<Later>) -> Result<(Algorithm, &'static str)> {
    let (ident, word) = value::word(input, "algorithm", &ALGORITHMS)?;
    let options: &[(&str, &str)] = match word {
        "FixedWindow" => &[("align", "true")],
        "SlidingWindow" => &[("buckets", "1")],
        "TokenBucket" => &[("burst", "200"), ("refill", "Interval")],
        "LeakyBucket" => &[("queue", "50")],
        _ => &[],
    };
    let mut algorithm = match word {
        "SlidingLog" => Algorithm::SlidingLog,
        _ => Algorithm::FixedWindow,
    };
    let mut queue = false;
    value::options(&ident, input, options, |name, input| {
        match name {
            "align" => algorithm = Algorithm::Aligned(value::boolean(input, name)?.value),
            "refill" => drop(value::word(input, "refill", &["Greedy", "Interval"])?),
            "queue" => {
                value::number(input, name, 0)?;
                queue = true;
            }
            _ => drop(value::number(input, name, 1)?),
        }
        Ok(())
    })?;
    if word == "LeakyBucket" && !queue {
        let message = "`LeakyBucket` needs to know how many may wait: LeakyBucket(queue = 50)";
        return fail(ident.span(), message);
    }
    if !matches!(word, "FixedWindow" | "SlidingLog") {
        later.push(Later {
            span: ident.span(),
            message: format!("algorithm `{word}` is not available yet, use `FixedWindow` or `SlidingLog`"),
            alone: (word == "LeakyBucket").then_some(word),
        });
    }
    Ok((algorithm, word))
}

/// `Elapsed` or `Elapsed(max = "5s")`, if that is what stands here.
fn elapsed(input: ParseStream) -> Result<Option<Span>> {
    let fork = input.fork();
    match Path::parse_mod_style(&fork) {
        Ok(path) if path.segments.last().is_some_and(|last| last.ident == "Elapsed") => {}
        _ => return Ok(None),
    }
    let (word, _) = value::word(input, "cost", &["Elapsed"])?;
    value::options(&word, input, &[("max", "\"5s\"")], |_, input| value::milliseconds(input).map(drop))?;
    Ok(Some(word.span()))
}

fn on_limit(input: ParseStream) -> Result<OnLimit> {
    let (word, name) = value::word(input, "on_limit", &["Reject", "Wait", "Return"])?;
    if name == "Return" {
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
        return Ok(OnLimit::Return { word, expr: Box::new(expr) });
    }
    let mut max = None;
    let options: &[_] = if name == "Wait" { &[("max", "\"30s\"")] } else { &[] };
    value::options(&word, input, options, |_, input| {
        max = Some(value::milliseconds(input)?);
        Ok(())
    })?;
    Ok(match (name, max) {
        ("Reject", _) => OnLimit::Reject,
        (_, Some(milliseconds)) => OnLimit::WaitAtMost(milliseconds),
        _ => OnLimit::Wait,
    })
}

/// The path of the runtime, one that means the same wherever the attribute stands.
fn runtime(input: ParseStream) -> Result<Path> {
    let at = input.span();
    let fail = || {
        let message = "`crate` is a path that starts with `::`, `crate` or `$crate`: crate = ::ratelimit_runtime";
        Error::new(at, message)
    };
    let path = Path::parse_mod_style(input).map_err(|_| fail())?;
    let first = path.segments.first().ok_or_else(fail)?;
    if path.leading_colon.is_some() || first.ident == "crate" || first.ident == "$crate" {
        Ok(path)
    } else {
        Err(fail())
    }
}
