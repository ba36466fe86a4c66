//! The arguments of one attribute after all checks.

use proc_macro2::{Span, TokenStream};
use syn::{Expr, Ident, Path};

use super::algorithm::AlgorithmArgument;
use super::cost::CostArgument;
use super::table::{CallArguments, Given};
use crate::tokens::text;
use crate::value::{Milliseconds, Number};

/// One attribute.
pub(crate) enum ParsedAttribute {
    Skip(Ident),
    Limit(Box<LimitAttribute>),
    /// With errors. Its word `blocking` still tells what the function is meant to be.
    Invalid(Option<Given<Ident>>),
}

pub(crate) struct LimitAttribute {
    pub(crate) rule: RuleSpec,
    pub(crate) call: CallArguments,
    /// Words that allow no second limit on the same function.
    pub(crate) exclusive: Vec<Exclusive>,
    /// The word `ban`: no call may wait for the limit.
    pub(crate) ban: Option<Span>,
    /// The path that it was written with, if an attribute of the other name expands it.
    pub(crate) joined: Option<Path>,
    /// An expression lacks a name after a dot. See `incomplete.rs`.
    pub(crate) is_incomplete: bool,
}

/// A word that allows no second limit.
pub(crate) struct Exclusive {
    pub(crate) span: Span,
    pub(crate) word: &'static str,
}

/// The rule of one attribute, with its key and its cost.
pub(crate) struct RuleSpec {
    pub(crate) source: RuleSource,
    pub(crate) key: Option<Expr>,
    pub(crate) on_missing_key: Option<Ident>,
    /// `None` for a place, whose cost is 1.
    pub(crate) cost: Option<CostArgument>,
}

pub(crate) enum RuleSource {
    /// `rule = ORDERS`
    Constant(Box<Expr>),
    Arguments(Box<RuleFields>),
}

/// A rule that is given field by field.
pub(crate) struct RuleFields {
    pub(crate) prefix: TokenStream,
    pub(crate) count: Number,
    pub(crate) kind: LimitKind,
    /// Methods of the runtime's `Rule` to call, each with its argument.
    pub(crate) builder_calls: Vec<(&'static str, TokenStream)>,
}

pub(crate) enum LimitKind {
    PerTime(Box<PeriodLimit>),
    /// Calls at once. A place is free again so long after its holder died.
    Places {
        lease: Milliseconds,
    },
}

/// The part of a rule that [`LimitKind::Places`] does not have.
pub(crate) struct PeriodLimit {
    /// The number of units in the period. 1 if it is not given.
    pub(crate) ttl: Option<Number>,
    pub(crate) unit: Milliseconds,
    pub(crate) algorithm: AlgorithmArgument,
    pub(crate) prefetch: Option<Number>,
    pub(crate) ban: Option<Milliseconds>,
}

impl RuleSpec {
    pub(crate) fn is_place(&self) -> bool {
        self.cost.is_none()
    }

    /// Returns true if a call holds a place or a cost until it ends.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.cost, Some(CostArgument::Number(_)))
    }

    /// The span of the word `Settled`, if the outcome reports the cost.
    pub(crate) fn settled(&self) -> Option<Span> {
        match &self.cost {
            Some(CostArgument::Settled { word, .. }) => Some(word.span()),
            _ => None,
        }
    }

    /// A text that is equal for limits of one function whose counters are the same.
    pub(crate) fn counter(&self) -> String {
        let key = self.key.as_ref().map(text);
        let fields = match &self.source {
            RuleSource::Constant(rule) => return format!("{} {key:?}", text(rule)),
            RuleSource::Arguments(fields) => fields,
        };
        let counted = match &fields.kind {
            LimitKind::Places { .. } => "places".to_owned(),
            LimitKind::PerTime(limit) => {
                let PeriodLimit { ttl, unit, algorithm, .. } = &**limit;
                let units = ttl.as_ref().map_or(Some(1), Number::literal);
                let period = units.zip(unit.literal()).and_then(|(ttl, unit)| ttl.checked_mul(unit));
                let words = |ttl, unit| format!("{} {}", text(&ttl), text(&unit));
                let krate = &TokenStream::new();
                let period = period.map_or_else(
                    || words(Number::to_const_or_one(ttl.as_ref(), krate), unit.to_const(krate)),
                    |period| period.to_string(),
                );
                format!("{} {period}", algorithm.counter_tag())
            }
        };
        format!("{} {key:?} {counted}", fields.prefix)
    }

    /// The expressions that are evaluated before the call.
    pub(crate) fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let count = match &self.source {
            RuleSource::Constant(_) => None,
            RuleSource::Arguments(fields) => Some(&fields.count),
        };
        let cost = match &self.cost {
            Some(CostArgument::Number(cost) | CostArgument::Settled { max: cost, .. }) => Some(cost),
            _ => None,
        };
        let numbers = [count, cost].into_iter().flatten();
        self.key.iter().chain(numbers.filter_map(Number::expr))
    }
}
