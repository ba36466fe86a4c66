//! The arguments of both attributes, a row for each.
//!
//! A `builder` argument needs its row, a method of `Rule`, and a line in the runtime's
//! `RuleOverride::apply`, which keeps the value when a rules file changes the rule. An `each` or
//! `once` argument is also used in `generate.rs`, and mostly in `limit.rs` and `check.rs`. One that
//! a `Rule` has itself is marked `of_rule`. All other places: "Add an argument" in CONTRIBUTING.md.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::{Error, Expr, Ident, LitStr, Path, Result, Token};

use super::algorithm::{self, AlgorithmArgument};
use super::cost::{self, CostArgument};
use super::on_limit::{self, OnLimitArgument};
use super::on_store_error::{self, OnStoreErrorArgument};
use crate::duration;
use crate::errors::{Errors, fail};
use crate::kind::AttributeKind;
use crate::tokens::text;
use crate::value::{self, Milliseconds, Number};

/// A value, and the name of the argument that gives it.
#[derive(Clone)]
pub(crate) struct Given<T> {
    pub(crate) name: Ident,
    pub(crate) value: T,
}

/// A row of the table, without the field that the value goes to.
pub(super) struct Argument {
    pub(super) name: &'static str,
    pub(super) usage: Usage,
    /// Reads the value and puts it into its field.
    pub(super) read: fn(&mut AttributeArguments, Ident, ParseStream) -> Result<()>,
}

/// The attributes that have an argument: arrays have an element for each.
#[derive(Clone, Copy)]
pub(super) struct Usage {
    /// An example of a value, for errors. `None` if this attribute does not have the argument.
    examples: [Option<&'static str>; 2],
    /// The meaning of an argument that must be given, for errors.
    meanings: Option<[&'static str; 2]>,
    /// The name can be left out.
    pub(super) is_positional: bool,
    /// The name stands alone, without a value.
    pub(super) is_word: bool,
    /// The argument is a part of the rule, and cannot stand beside `rule`.
    pub(super) is_of_rule: bool,
}

/// The arguments of one attribute.
#[derive(Default)]
pub(super) struct AttributeArguments {
    pub(super) rule: RuleArguments,
    pub(super) call: CallArguments,
    /// Names of the arguments that are given, including those whose value is invalid, and where.
    pub(super) given: Vec<(&'static str, Span)>,
    /// Names that are not reported as missing, since another error explains their absence.
    pub(super) excused: Vec<&'static str>,
}

impl AttributeArguments {
    pub(super) fn is_given(&self, name: &str) -> bool {
        self.given_at(name).is_some()
    }

    pub(super) fn given_at(&self, name: &str) -> Option<Span> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, at)| *at)
    }
}

/// Defines the table, and the fields that values are stored in.
///
/// A row has a field with its type, the argument's name, a function that reads the value, and the
/// attributes that have the argument. Its first word says how stacked attributes share it:
/// - `each`: a field of [`RuleArguments`]. Each attribute gives its own.
/// - `builder`: as `each`. The generated code calls this method of `Rule` with the value. If the
///   reader returns `None`, the value is the default and there is no call.
/// - `once`: a field of [`CallArguments`]. At most one attribute of a function gives it.
/// - `same`: a field of [`CallArguments`]. Several attributes may give it if they agree.
macro_rules! arguments {
    ($(
        $(each $each:ident: $each_type:ty,)?
        $(builder $builder:ident,)?
        $(once $once:ident: $once_type:ty,)?
        $(same $same:ident: $same_type:ty,)?
        $name:literal = $value:expr,
        $usage:expr;
    )*) => {
        /// Arguments that each of several stacked attributes has for itself.
        #[derive(Default)]
        pub(super) struct RuleArguments {
            $($(pub(super) $each: Option<Given<$each_type>>,)? $($builder: Option<TokenStream>,)?)*
        }

        impl RuleArguments {
            /// Methods of `Rule` to call, each with its argument.
            pub(super) fn builder_calls(&mut self) -> Vec<(&'static str, TokenStream)> {
                let calls = [$($((stringify!($builder), self.$builder.take()),)?)*];
                calls.into_iter().filter_map(|(method, value)| Some((method, value?))).collect()
            }
        }

        /// Arguments that hold for the whole call, whichever of the stacked attributes gives them.
        #[derive(Clone, Default)]
        pub(crate) struct CallArguments {
            $(
                $(pub(crate) $once: Option<Given<$once_type>>,)?
                $(pub(crate) $same: Option<Given<$same_type>>,)?
            )*
            /// The closure in `cost = Settled(..)`.
            pub(crate) settled: Option<Given<Expr>>,
        }

        impl CallArguments {
            /// Adds the arguments of a further attribute, without [`Self::settled`].
            pub(super) fn merge(&mut self, further: Self, errors: &mut Errors) {
                $($(
                    errors.keep(once(&mut self.$once, further.$once, $usage));
                )?)*
                $($(
                    errors.keep(same(&mut self.$same, further.$same));
                )?)*
            }
        }

        static ARGUMENTS: &[Argument] = &[$(Argument {
            name: $name,
            usage: $usage,
            read: |arguments, name, input| {
                let _ = &name;
                $(
                    let read: fn(ParseStream, &str) -> Result<$each_type> = $value;
                    arguments.rule.$each = Some(Given { value: read(input, $name)?, name });
                )?
                $(
                    let read: fn(ParseStream, &str) -> Result<Option<TokenStream>> = $value;
                    arguments.rule.$builder = read(input, $name)?;
                )?
                $(
                    let read: fn(ParseStream, &str) -> Result<$once_type> = $value;
                    arguments.call.$once = Some(Given { value: read(input, $name)?, name });
                )?
                $(
                    let read: fn(ParseStream, &str) -> Result<$same_type> = $value;
                    arguments.call.$same = Some(Given { value: read(input, $name)?, name });
                )?
                Ok(())
            },
        }),*];
    };
}

// Errors list the arguments in this order. Values without names are given in it, too.
arguments! {
    each prefix: TokenStream, "prefix" = prefix,
        both("\"item\"", "\"export\"").positional().required(["the counter's name"; 2]).of_rule();
    each ttl: Number, "ttl" = ttl, per_time("1").positional().of_rule();
    each unit: u64, "unit" = unit, per_time("Minutes").positional().required(["the unit of `ttl`"; 2]).of_rule();
    each period: Milliseconds, "period" = |input, _| value::milliseconds(input), per_time("\"90s\"").of_rule();
    each count: Number, "count" = value::positive,
        both("100", "3")
            .positional()
            .required(["how many calls are let through", "how many calls may run at once"])
            .of_rule();
    each rule: Expr, "rule" = rule, both("ORDERS", "EXPORTS");
    each key: Expr, "key" = key, both("user_id", "user_id");
    each algorithm: AlgorithmArgument, "algorithm" = algorithm::read, per_time("SlidingLog").of_rule();
    each cost: CostArgument, "cost" = cost::read, per_time("5");
    each lease: Milliseconds, "lease" = lease, concurrent("\"30s\"").of_rule();
    once on_limit: OnLimitArgument, "on_limit" = on_limit::read, per_time("Wait(max = \"30s\")");
    once on_busy: OnLimitArgument, "on_limit" = on_limit::read, concurrent("Wait(max = \"30s\")");
    once on_store_error: OnStoreErrorArgument, "on_store_error" = on_store_error::read, both("Local", "Local");
    each on_missing_key: Ident, "on_missing_key" = on_missing_key, both("Deny", "Deny");
    once permit: PermitVariable, "permit" = permit, both("permit", "permit");
    once limiter: Expr, "limiter" = value::expr, both("&self.limiter", "&self.limiter");
    each prefetch: Number, "prefetch" = value::positive, per_time("1").of_rule();
    each ban: Milliseconds, "ban" = ban, per_time("\"10m\"").of_rule();
    builder with_denial_cache, "denial_cache" = |input, name| value::flag(input, name, true),
        per_time("false").of_rule();
    builder with_shadow, "shadow" = |input, name| value::flag(input, name, false), per_time("false").of_rule();
    same blocking: Ident, "blocking" = word, both("", "").word();
    same krate: Path, "crate" = runtime_path, both("::ratelimit_runtime", "::ratelimit_runtime");
}

impl RuleArguments {
    pub(super) fn is_shadow(&self) -> bool {
        self.with_shadow.is_some()
    }
}

/// The arguments that an attribute has, in order.
pub(super) fn arguments(kind: AttributeKind) -> impl Iterator<Item = &'static Argument> {
    ARGUMENTS.iter().filter(move |argument| argument.usage.example(kind).is_some())
}

pub(crate) fn names(kind: AttributeKind) -> Vec<&'static str> {
    arguments(kind).map(|argument| argument.name).collect()
}

impl Usage {
    const fn new(examples: [Option<&'static str>; 2]) -> Self {
        Self { examples, meanings: None, is_positional: false, is_word: false, is_of_rule: false }
    }

    const fn positional(self) -> Self {
        Self { is_positional: true, ..self }
    }

    const fn word(self) -> Self {
        Self { is_word: true, ..self }
    }

    const fn of_rule(self) -> Self {
        Self { is_of_rule: true, ..self }
    }

    const fn required(self, meanings: [&'static str; 2]) -> Self {
        Self { meanings: Some(meanings), ..self }
    }

    pub(super) fn example(&self, kind: AttributeKind) -> Option<&'static str> {
        self.examples[kind as usize]
    }

    pub(super) fn meaning(&self, kind: AttributeKind) -> Option<&'static str> {
        self.meanings.map(|meanings| meanings[kind as usize])
    }
}

const fn per_time(example: &'static str) -> Usage {
    Usage::new([Some(example), None])
}

const fn concurrent(example: &'static str) -> Usage {
    Usage::new([None, Some(example)])
}

const fn both(per_time: &'static str, concurrent: &'static str) -> Usage {
    Usage::new([Some(per_time), Some(concurrent)])
}

fn once<T>(merged: &mut Option<Given<T>>, further: Option<Given<T>>, usage: Usage) -> Result<()> {
    let Some(further) = further else { return Ok(()) };
    if merged.is_none() {
        *merged = Some(further);
        return Ok(());
    }
    let mut kinds = AttributeKind::ALL.into_iter().filter(|kind| usage.example(*kind).is_some());
    let whole = match (kinds.next(), kinds.next()) {
        (Some(kind), None) => format!("all #[{}] of a call", kind.name()),
        _ => "the whole call".to_owned(),
    };
    let Given { name, .. } = further;
    fail(name.span(), format!("`{name}` holds for {whole}: give it on one of the stacked rate limits"))
}

fn same<T: ToTokens>(merged: &mut Option<Given<T>>, further: Option<Given<T>>) -> Result<()> {
    match (&*merged, further) {
        (Some(first), Some(Given { name, value })) if text(&first.value) != text(&value) => fail(
            name.span(),
            format!("`{name}` differs between the rate limits of one function: they share one runtime"),
        ),
        (None, further) => {
            *merged = further;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn prefix(input: ParseStream, name: &str) -> Result<TokenStream> {
    const MAX_BYTES: usize = 200;
    value::text(input, name, MAX_BYTES)
}

/// Reads the constant or expression of a whole rule.
fn rule(input: ParseStream, name: &str) -> Result<Expr> {
    match value::expr(input, name)? {
        Expr::Lit(literal) => {
            let message = format!(
                "`{name}` is a constant of the type `Rule`, which has the prefix and the numbers: {name} = ORDERS"
            );
            Err(Error::new_spanned(literal, message))
        }
        rule => Ok(rule),
    }
}

/// Reads an expression. A string would give all callers one counter, which is hardly ever meant.
fn key(input: ParseStream, name: &str) -> Result<Expr> {
    let key = value::expr(input, name)?;
    if !value::is_text(&key) {
        return Ok(key);
    }
    let unquoted = text(&key).replace('"', "");
    let example = if syn::parse_str::<Expr>(&unquoted).is_ok() { &unquoted } else { "user_id" };
    let message = format!(
        "`{name}` is an expression, not a string: write {name} = {example} without quotes, or leave `{name}` out for one counter"
    );
    Err(Error::new_spanned(key, message))
}

/// Reads a number. A duration is another argument.
fn ttl(input: ParseStream, name: &str) -> Result<Number> {
    if let Ok(text) = input.fork().parse::<LitStr>()
        && duration::parse(&text.value()).is_ok()
    {
        let message =
            format!("`{name}` is a number of units: write period = {} in place of `ttl` and `unit`", text.token());
        return fail(text.span(), message);
    }
    value::positive(input, name)
}

/// The units of `ttl` in milliseconds. `Unit` in `config/parse.rs` of the runtime has the same, and
/// `Period` in its `error.rs` prints them.
const UNITS: [(&str, u64); 5] =
    [("Milliseconds", 1), ("Seconds", 1_000), ("Minutes", 60_000), ("Hours", 3_600_000), ("Days", 86_400_000)];

/// Milliseconds in a unit.
fn unit(input: ParseStream, name: &str) -> Result<u64> {
    value::word_of(input, name, &UNITS, |unit| unit.0).map(|(_, (_, unit))| *unit)
}

/// The time until a place is free again after its holder died.
fn lease(input: ParseStream, _: &str) -> Result<Milliseconds> {
    match value::milliseconds(input)? {
        Milliseconds::Literal(..1_000, at) => fail(at, "`lease` must be at least \"1s\", for example lease = \"30s\""),
        Milliseconds::Literal(86_400_001.., at) => {
            fail(at, "`lease` must be at most \"1d\", for example lease = \"30s\"")
        }
        lease => Ok(lease),
    }
}

/// The time for which a refusal bans the key.
fn ban(input: ParseStream, _: &str) -> Result<Milliseconds> {
    match value::milliseconds(input)? {
        Milliseconds::Literal(4_233_600_001.., at) => {
            fail(at, "`ban` must be at most \"49d\", for example ban = \"10m\"")
        }
        ban => Ok(ban),
    }
}

fn on_missing_key(input: ParseStream, name: &str) -> Result<Ident> {
    value::variant(input, name, &["Deny", "Skip", "Shared"])
}

/// The variable with the permit: `usage` or `mut usage`.
#[derive(Clone)]
pub(crate) struct PermitVariable {
    mutable: Option<Token![mut]>,
    pub(crate) name: Ident,
}

impl ToTokens for PermitVariable {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.mutable.to_tokens(tokens);
        self.name.to_tokens(tokens);
    }
}

fn permit(input: ParseStream, _: &str) -> Result<PermitVariable> {
    let mutable = input.parse()?;
    match input.parse() {
        Ok(name) => Ok(PermitVariable { mutable, name }),
        Err(error) => fail(error.span(), "`permit` is a name for the body: permit = permit"),
    }
}

/// A word that stands alone.
#[allow(clippy::unnecessary_wraps)] // as all readers
fn word(input: ParseStream, name: &str) -> Result<Ident> {
    Ok(Ident::new(name, input.span()))
}

/// The path of the runtime. It must mean the same wherever the attribute stands.
pub(crate) fn runtime_path(input: ParseStream, _: &str) -> Result<Path> {
    let at = input.span();
    if let Ok(path) = Path::parse_mod_style(input)
        && let Some(first) = path.segments.first()
        && (path.leading_colon.is_some() || first.ident == "crate" || first.ident == "$crate")
    {
        return Ok(path);
    }
    fail(at, "`crate` is a path that starts with `::`, `crate` or `$crate`: crate = ::ratelimit_runtime")
}
