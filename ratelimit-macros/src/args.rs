//! Reads and checks what stands in the parentheses of one attribute, of either name.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::{Error, Expr, Ident, Path, Result, Token};

use crate::errors::{Errors, fail};
use crate::kind::AttributeKind;
use crate::suggest::{list, nearest, suggest};
use crate::value::{self, Number, at_end};

impl AttributeKind {
    /// Every argument and an example of its value. The first ones may be positional.
    fn arguments(self) -> &'static [(&'static str, &'static str)] {
        match self {
            AttributeKind::PerTime => &[
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
                ("prefetch", "1"),
                ("denial_cache", "false"),
                ("shadow", "false"),
                ("crate", "::ratelimit_runtime"),
            ],
            AttributeKind::Concurrent => &[
                ("prefix", "\"export\""),
                ("count", "3"),
                ("key", "user_id"),
                ("lease", "\"30s\""),
                ("on_limit", "Wait(max = \"30s\")"),
                ("on_store_error", "Local"),
                ("on_missing_key", "Deny"),
                ("permit", "permit"),
                ("limiter", "&self.limiter"),
                ("crate", "::ratelimit_runtime"),
            ],
        }
    }

    fn names(self) -> Vec<&'static str> {
        self.arguments().iter().map(|(name, _)| *name).collect()
    }

    /// In this order.
    fn positional(self) -> Vec<&'static str> {
        let several = match self {
            AttributeKind::PerTime => 4,
            AttributeKind::Concurrent => 2,
        };
        self.names().into_iter().take(several).collect()
    }

    /// What must be given, and what it is.
    fn required(self) -> &'static [(&'static str, &'static str)] {
        match self {
            AttributeKind::PerTime => &[
                ("prefix", "the counter's name"),
                ("unit", "the unit of `ttl`"),
                ("count", "how many calls are let through"),
            ],
            AttributeKind::Concurrent => {
                &[("prefix", "the counter's name"), ("count", "how many calls may run at once")]
            }
        }
    }
}

pub(crate) enum Attr {
    Skip(Ident),
    Limit(Box<Limit>),
}

pub(crate) struct Limit {
    pub(crate) rule: Rule,
    pub(crate) settings: Settings,
    /// What can have no second rule beside it.
    pub(crate) alone: Vec<Alone>,
    /// By what name it was written, if it is joined by the other attribute.
    pub(crate) joined: Option<Path>,
}

/// What each of several stacked attributes has for itself.
pub(crate) struct Rule {
    pub(crate) prefix: TokenStream,
    pub(crate) count: Number,
    pub(crate) key: Option<Expr>,
    pub(crate) missing_key: Option<Ident>,
    pub(crate) counted: Counted,
}

pub(crate) enum Counted {
    PerTime(Box<PerTime>),
    /// For so many milliseconds a caller that died keeps its place.
    Concurrently {
        lease: u64,
    },
}

pub(crate) struct PerTime {
    pub(crate) ttl: TokenStream,
    pub(crate) unit: u64,
    pub(crate) cost: Cost,
    pub(crate) algorithm: Algorithm,
    pub(crate) prefetch: Option<Number>,
    pub(crate) shadow: bool,
    pub(crate) denial_cache: bool,
}

pub(crate) enum Cost {
    Number(Number),
    /// The time that the call took; so many milliseconds are held until it is known.
    Elapsed {
        word: Span,
        max: Option<(u64, Span)>,
    },
    /// What the outcome says; so much is held until it is known.
    Settled {
        word: Span,
        max: Number,
    },
}

impl Rule {
    /// None of a place, which is one.
    pub(crate) fn cost(&self) -> Option<&Cost> {
        match &self.counted {
            Counted::PerTime(per_time) => Some(&per_time.cost),
            Counted::Concurrently { .. } => None,
        }
    }

    /// Whether a call holds something of it until its end.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.cost(), Some(Cost::Number(_)))
    }

    /// Where it says that the outcome says the cost.
    pub(crate) fn settled(&self) -> Option<Span> {
        match self.cost() {
            Some(Cost::Settled { word, .. }) => Some(*word),
            _ => None,
        }
    }

    /// The expressions that are evaluated before the call.
    pub(crate) fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let cost = match self.cost() {
            Some(Cost::Number(cost) | Cost::Settled { max: cost, .. }) => Some(cost),
            _ => None,
        };
        let numbers = [Some(&self.count), cost].into_iter().flatten();
        self.key.iter().chain(numbers.filter_map(Number::expr))
    }
}

/// What holds for the whole call, each with the name it was set by.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) limiter: Option<(Ident, Expr)>,
    pub(crate) on_limit: Option<(Ident, OnLimit)>,
    /// The `on_limit` of the calls that may run at once.
    pub(crate) on_busy: Option<(Ident, OnLimit)>,
    pub(crate) on_store_error: Option<(Ident, Ident)>,
    pub(crate) permit: Option<(Ident, Ident)>,
    /// The closure that says what was used.
    pub(crate) settled: Option<(Ident, Expr)>,
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
    SlidingWindow {
        buckets: Number,
    },
    TokenBucket {
        burst: Option<Number>,
        refill: Ident,
    },
    LeakyBucket {
        queue: Number,
    },
}

/// A word, and where it stands.
pub(crate) struct Alone {
    pub(crate) span: Span,
    pub(crate) word: &'static str,
}

/// The longest period, in milliseconds: 3,650 days.
const LONGEST: u64 = 3_650 * 86_400_000;

/// The shortest and the longest `lease` of a place, and what it is if none is given, in milliseconds.
const SHORTEST_LEASE: u64 = 1_000;
const LONGEST_LEASE: u64 = 86_400_000;
const USUAL_LEASE: u64 = 30_000;

/// What `Settled` lacks.
pub(crate) const SETTLED_NEEDS: &str = "`Settled` needs what is held while the call runs, and a closure that says what was used: Settled(max = 4_000, |outcome| outcome.tokens())";

/// The most buckets of a `SlidingWindow`.
const MOST_BUCKETS: u64 = 1_000;

const UNITS: [&str; 5] = ["Milliseconds", "Seconds", "Minutes", "Hours", "Days"];
const ALGORITHMS: [&str; 5] = ["FixedWindow", "SlidingLog", "SlidingWindow", "TokenBucket", "LeakyBucket"];

/// The arguments of an attribute standing at `at`; none if there are errors.
pub(crate) fn parse(kind: AttributeKind, args: TokenStream, at: Span, errors: &mut Errors) -> Option<Attr> {
    let parser = |input: ParseStream| {
        if input.peek(Ident) && input.fork().parse::<Ident>()? == "skip" {
            return skip(kind, input);
        }
        let mut fields = Fields { kind, ..Fields::default() };
        let mut errors = Errors::default();
        errors.keep(value::comma_separated(input, |input| fields.argument(input)));
        fields.finish(at, errors).map(Box::new).map(Attr::Limit)
    };
    errors.keep(parser.parse2(args))
}

fn skip(kind: AttributeKind, input: ParseStream) -> Result<Attr> {
    let word: Ident = input.parse()?;
    if input.is_empty() {
        return Ok(Attr::Skip(word));
    }
    input.parse::<TokenStream>()?;
    fail(word.span(), skip_alone(kind))
}

fn skip_alone(kind: AttributeKind) -> String {
    format!("`skip` stands alone: #[{}(skip)]", kind.name())
}

#[derive(Default)]
struct Fields {
    kind: AttributeKind,
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
    cost: Option<Cost>,
    algorithm: Option<(Algorithm, &'static str)>,
    shadow: bool,
    prefetch: Option<(Number, Span)>,
    lease: Option<u64>,
    no_denial_cache: bool,
    settings: Settings,
    alone: Vec<Alone>,
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
            return fail(name.span(), skip_alone(self.kind));
        }
        if let Some((known, example)) = self.kind.arguments().iter().find(|(known, _)| word == *known) {
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
            let names = self.kind.names();
            self.excused.extend(nearest(&word, &names));
            let end = suggest(&word, &names);
            return fail(name.span(), format!("unknown argument `{name}`, {end}"));
        }
        self.positional(input)
    }

    fn positional(&mut self, input: ParseStream) -> Result<()> {
        let names = self.kind.positional();
        if at_end(input) {
            return Err(input.error("expected an argument before this `,`"));
        }
        if self.named {
            self.excused.extend(names);
            return Err(input.error("a value without a name comes before the named ones: write `name = value`"));
        }
        let Some(&name) = names.get(self.position) else {
            let names = list(&names, "and");
            return Err(input.error(format!("only {names} go without a name, in this order: write `name = value`")));
        };
        self.position += 1;
        self.given.push(name);
        let result = self.value(name, Ident::new(name, input.span()), input);
        if result.is_err() {
            // Perhaps one was left out: then those after it are not missing too.
            self.excused.extend(names);
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
            "algorithm" => self.algorithm = Some(algorithm(input, &mut self.alone)?),
            "cost" => self.cost = Some(cost(input, settings)?),
            "on_limit" => {
                let slot = match self.kind {
                    AttributeKind::PerTime => &mut settings.on_limit,
                    AttributeKind::Concurrent => &mut settings.on_busy,
                };
                *slot = Some((name, on_limit(input)?));
            }
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
            "lease" => self.lease = Some(lease(input)?),
            "prefetch" => {
                let number = value::number(input, argument, 1)?;
                if !matches!(number, Number::Literal(1, _)) {
                    self.prefetch = Some((number, name.span()));
                }
            }
            "denial_cache" => self.no_denial_cache = !value::boolean(input, argument)?.value,
            "shadow" => self.shadow = value::boolean(input, argument)?.value,
            _ => settings.krate = Some((name, runtime(input)?)),
        }
        Ok(())
    }

    /// Checks the arguments against each other.
    fn finish(mut self, at: Span, mut errors: Errors) -> Result<Limit> {
        for (name, what) in self.kind.required() {
            if !self.given.contains(name)
                && !self.excused.contains(name)
                && let Some((_, example)) = self.kind.arguments().iter().find(|(known, _)| known == name)
            {
                errors.add(at, format!("missing `{name}`, {what}: {name} = {example}"));
            }
        }
        if let (Some(Number::Literal(ttl, span)), Some(unit)) = (&self.ttl, self.unit)
            && ttl.checked_mul(unit).is_none_or(|milliseconds| milliseconds > LONGEST)
        {
            errors.add(*span, "`ttl` is longer than 3,650 days");
        }
        self.check_buckets(&mut errors);
        self.check_cost(&mut errors);
        if let (Some((name, _)), false) = (&self.missing_key, self.given.contains(&"key")) {
            let message = "`on_missing_key` needs a `key` that may be missing: key = user_id";
            errors.add(name.span(), message);
        }
        if let Some((_, span)) = self.prefetch {
            self.only_with(span, "prefetch", "FixedWindow", &mut errors);
            self.alone.push(Alone { span, word: "prefetch" });
        }
        match self.cost {
            Some(Cost::Elapsed { word, .. }) => self.only_with(word, "Elapsed", "SlidingLog", &mut errors),
            Some(Cost::Settled { word, .. }) => self.only_with(word, "Settled", "SlidingLog", &mut errors),
            Some(Cost::Number(_)) | None => {}
        }
        errors.finish()?;
        let (Some(prefix), Some(count)) = (self.prefix, self.count) else {
            return fail(at, "`prefix` and `count` are needed");
        };
        let counted = match (self.kind, self.unit) {
            (AttributeKind::Concurrent, _) => Counted::Concurrently { lease: self.lease.unwrap_or(USUAL_LEASE) },
            (AttributeKind::PerTime, None) => return fail(at, "`unit` is needed"),
            (AttributeKind::PerTime, Some(unit)) => Counted::PerTime(Box::new(PerTime {
                ttl: self.ttl.unwrap_or_else(Number::one).to_const(),
                unit,
                cost: self.cost.unwrap_or_else(|| Cost::Number(Number::one())),
                algorithm: self.algorithm.map(|(algorithm, _)| algorithm).unwrap_or_default(),
                prefetch: self.prefetch.map(|(number, _)| number),
                shadow: self.shadow,
                denial_cache: !self.no_denial_cache,
            })),
        };
        let missing_key = self.missing_key.map(|(_, word)| word);
        Ok(Limit {
            rule: Rule { prefix, count, key: self.key, missing_key, counted },
            settings: self.settings,
            alone: self.alone,
            joined: None,
        })
    }

    /// The period in milliseconds, if it is written down and not too long.
    fn period(&self) -> Option<u64> {
        let ttl = match &self.ttl {
            None => 1,
            Some(ttl) => ttl.literal()?,
        };
        ttl.checked_mul(self.unit?).filter(|period| *period <= LONGEST)
    }

    fn check_buckets(&self, errors: &mut Errors) {
        let Some((Algorithm::SlidingWindow { buckets: Number::Literal(buckets, span) }, _)) = &self.algorithm else {
            return;
        };
        if *buckets > MOST_BUCKETS {
            errors.add(*span, format!("`buckets` must be at most {MOST_BUCKETS}, for example buckets = 60"));
        } else if let Some(period) = self.period()
            && !period.is_multiple_of(*buckets)
            && let Some(near) =
                (1..=MOST_BUCKETS).filter(|n| period.is_multiple_of(*n)).min_by_key(|n| n.abs_diff(*buckets))
        {
            let message = format!(
                "{period} milliseconds can't be divided into {buckets} equal buckets, for example buckets = {near}"
            );
            errors.add(*span, message);
        }
    }

    fn check_cost(&self, errors: &mut Errors) {
        let (what, unit, cost, span) = match &self.cost {
            Some(Cost::Number(Number::Literal(cost, span))) => ("cost", "", *cost, *span),
            // Of another algorithm, that is the mistake.
            _ if !matches!(self.algorithm, Some((Algorithm::SlidingLog, _))) => return,
            Some(Cost::Elapsed { max: Some((max, span)), .. }) => ("`max`", " ms", *max, *span),
            Some(Cost::Settled { max: Number::Literal(max, span), .. }) => ("`max`", "", *max, *span),
            _ => return,
        };
        let (name, number, more) = match &self.algorithm {
            None if self.given.contains(&"algorithm") => return,
            Some((Algorithm::TokenBucket { burst: Some(burst), .. }, _)) => ("burst", Some(burst), 0),
            Some((Algorithm::LeakyBucket { queue }, _)) => ("queue", Some(queue), 1),
            _ => ("count", self.count.as_ref(), 0),
        };
        if let Some(Number::Literal(number, _)) = number
            && cost > number.saturating_add(more)
        {
            let largest = number.saturating_add(more);
            let message =
                format!("a {what} of {cost}{unit} never fits: with {name} = {number} the largest is {largest}{unit}");
            errors.add(span, message);
        }
    }

    fn only_with(&self, span: Span, word: &str, only: &str, errors: &mut Errors) {
        let algorithm = self.algorithm.as_ref().map_or("FixedWindow", |(_, word)| word);
        if algorithm != only && (!self.given.contains(&"algorithm") || self.algorithm.is_some()) {
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

fn algorithm(input: ParseStream, alone: &mut Vec<Alone>) -> Result<(Algorithm, &'static str)> {
    if let Ok(path) = Path::parse_mod_style(&input.fork())
        && let Some(last) = path.segments.last().filter(|last| last.ident == "Concurrent")
    {
        let message =
            "calls that run at once have an attribute of their own: #[limit_concurrent_requests(\"export\", 3)]";
        return fail(last.ident.span(), message);
    }
    let (ident, word) = value::word(input, "algorithm", &ALGORITHMS)?;
    let options: &[(&str, &str)] = match word {
        "FixedWindow" => &[("align", "true")],
        "SlidingWindow" => &[("buckets", "1")],
        "TokenBucket" => &[("burst", "200"), ("refill", "Interval")],
        "LeakyBucket" => &[("queue", "50")],
        _ => &[],
    };
    let (mut align, mut buckets, mut burst, mut refill, mut queue) = (None, None, None, None, None);
    value::options(&ident, input, options, |name, input| {
        match name {
            "align" => align = Some(value::boolean(input, name)?.value),
            "buckets" => buckets = Some(value::number(input, name, 1)?),
            "burst" => burst = Some(value::number(input, name, 1)?),
            "refill" => refill = Some(variant(input, name, &["Greedy", "Interval"])?),
            _ => queue = Some(value::number(input, name, 0)?),
        }
        Ok(())
    })?;
    let algorithm = match word {
        "FixedWindow" => align.map_or(Algorithm::FixedWindow, Algorithm::Aligned),
        "SlidingLog" => Algorithm::SlidingLog,
        "SlidingWindow" => Algorithm::SlidingWindow { buckets: buckets.unwrap_or_else(Number::one) },
        "TokenBucket" => {
            let refill = refill.unwrap_or_else(|| Ident::new("Greedy", Span::mixed_site()));
            Algorithm::TokenBucket { burst, refill }
        }
        _ => {
            let Some(queue) = queue else {
                let message = "`LeakyBucket` needs to know how many may wait: LeakyBucket(queue = 50)";
                return fail(ident.span(), message);
            };
            alone.push(Alone { span: ident.span(), word });
            Algorithm::LeakyBucket { queue }
        }
    };
    Ok((algorithm, word))
}

/// A number, `Elapsed`, `Elapsed(max = "5s")` or `Settled(max = 4_000, |outcome| outcome.tokens())`.
fn cost(input: ParseStream, settings: &mut Settings) -> Result<Cost> {
    let words = ["Elapsed", "Settled"];
    if !is_word_of_cost(input, &words) {
        return value::number(input, "cost", 0).map(Cost::Number);
    }
    let (word, name) = value::word(input, "cost", &words)?;
    if name == "Settled" {
        let (max, used) = settled(&word, input)?;
        let span = word.span();
        settings.settled = used.map(|used| (word, used));
        return Ok(Cost::Settled { word: span, max });
    }
    let mut max = None;
    value::options(&word, input, &[("max", "\"5s\"")], |_, input| {
        let at = input.span();
        max = Some((value::milliseconds(input)?, at));
        Ok(())
    })?;
    Ok(Cost::Elapsed { word: word.span(), max })
}

/// Whether one of the words stands here, or is meant: written like one, which no number is, it is nearly one.
fn is_word_of_cost(input: ParseStream, words: &[&'static str]) -> bool {
    let fork = input.fork();
    let Ok(path) = Path::parse_mod_style(&fork) else { return false };
    let Some(last) = path.segments.last().map(|last| last.ident.to_string()) else { return false };
    if words.contains(&&*last) {
        return true;
    }
    if fork.peek(syn::token::Paren) && fork.parse::<TokenTree>().is_err() {
        return false;
    }
    let like_a_word = last.starts_with(char::is_uppercase) && last.contains(char::is_lowercase);
    like_a_word && at_end(&fork) && nearest(&last, words).is_some()
}

/// What is held, and the closure that says what was used, unless another attribute has it.
fn settled(word: &Ident, input: ParseStream) -> Result<(Number, Option<Expr>)> {
    let (mut max, mut used, mut seen) = (None, None, Vec::new());
    value::in_parentheses(input, |input| {
        if !value::starts_named(input) && !input.peek(syn::Lit) {
            if used.is_some() {
                return Err(input.error("`Settled` takes one closure, and what is held by its name: max = 4_000"));
            }
            used = Some(value::expr(input, "Settled")?);
            return Ok(());
        }
        let name = value::option(word, input, &[("max", "4_000")], &mut seen)?;
        max = Some(value::number(input, name, 1)?);
        Ok(())
    })?;
    match max {
        Some(max) => Ok((max, used)),
        None => fail(word.span(), SETTLED_NEEDS),
    }
}

/// For how long, in milliseconds, a caller that died keeps its place.
fn lease(input: ParseStream) -> Result<u64> {
    let at = input.span();
    let lease = value::milliseconds(input)?;
    if lease < SHORTEST_LEASE {
        return fail(at, "`lease` must be at least \"1s\", for example lease = \"30s\"");
    }
    if lease > LONGEST_LEASE {
        return fail(at, "`lease` must be at most \"1d\", for example lease = \"30s\"");
    }
    Ok(lease)
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
