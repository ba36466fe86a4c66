//! Checks the arguments against each other.

use proc_macro2::Span;
use syn::{Expr, Ident, Result};

use super::algorithm::{AlgorithmArgument, Feature};
use super::cost::CostArgument;
use super::limit::{Exclusive, LimitAttribute, LimitKind, PeriodLimit, RuleFields, RuleSource, RuleSpec};
use super::on_limit::OnLimitArgument;
use super::table::{AttributeArguments, CallArguments, Given, RuleArguments, arguments};
use crate::errors::{Errors, fail};
use crate::kind::AttributeKind;
use crate::value::{Milliseconds, Number};

const DAY_MS: u64 = 86_400_000;
const LONGEST_PERIOD_MS: u64 = 3_650 * DAY_MS;
const DEFAULT_LEASE_MS: u64 = 30_000;
const MOST_BUCKETS: u64 = 1_000;

/// The limit of an attribute that stands at `at`.
pub(super) fn check(
    mut arguments: AttributeArguments,
    kind: AttributeKind,
    at: Span,
    mut errors: Errors,
) -> Result<LimitAttribute> {
    arguments.set_defaults(at);
    arguments.check_rule(kind, &mut errors);
    arguments.check_units(&mut errors);
    arguments.check_missing(kind, at, &mut errors);
    arguments.check_period(&mut errors);
    arguments.check_buckets(&mut errors);
    arguments.check_bounds(&mut errors);
    arguments.check_cost(&mut errors);
    arguments.check_missing_key(&mut errors);
    arguments.check_algorithm(&mut errors);
    arguments.check_ban(&mut errors);
    errors.finish()?;

    let (exclusive, ban) = (arguments.exclusive(), arguments.rule.ban.as_ref().map(|ban| ban.name.span()));
    let AttributeArguments { mut rule, mut call, .. } = arguments;
    if let Some(CostArgument::Settled { word, closure: Some(closure), .. }) = rule.cost.as_ref().map(|cost| &cost.value)
    {
        call.settled = Some(Given { name: word.clone(), value: (**closure).clone() });
    }
    let (key, on_missing_key) = (value(rule.key.take()), value(rule.on_missing_key.take()));
    let cost = match kind {
        AttributeKind::Places => None,
        AttributeKind::PerTime => Some(value(rule.cost.take()).unwrap_or(CostArgument::Number(Number::one()))),
    };
    let source = match value(rule.rule.take()) {
        Some(constant) => RuleSource::Constant(Box::new(constant)),
        None => RuleSource::Arguments(Box::new(rule_fields(rule, kind, at)?)),
    };
    let rule = RuleSpec { source, key, on_missing_key, cost };
    Ok(LimitAttribute { rule, call, exclusive, ban, joined: None, is_incomplete: false })
}

fn rule_fields(mut rule: RuleArguments, kind: AttributeKind, at: Span) -> Result<RuleFields> {
    let builder_calls = rule.builder_calls();
    let (Some(prefix), Some(count)) = (value(rule.prefix), value(rule.count)) else {
        return fail(at, "`prefix` and `count` are needed");
    };
    let generated = |milliseconds| Milliseconds::Literal(milliseconds, Span::mixed_site());
    let kind = match (kind, value(rule.period).or(value(rule.unit).map(generated))) {
        (AttributeKind::Places, _) => {
            LimitKind::Places { lease: value(rule.lease).unwrap_or(generated(DEFAULT_LEASE_MS)) }
        }
        (AttributeKind::PerTime, None) => return fail(at, "`unit` is needed"),
        (AttributeKind::PerTime, Some(unit)) => LimitKind::PerTime(Box::new(PeriodLimit {
            ttl: value(rule.ttl),
            unit,
            algorithm: value(rule.algorithm).unwrap_or_default(),
            prefetch: value(rule.prefetch),
            ban: value(rule.ban),
        })),
    };
    Ok(RuleFields { prefix, count, kind, builder_calls })
}

fn value<T>(given: Option<Given<T>>) -> Option<T> {
    given.map(|given| given.value)
}

impl AttributeArguments {
    /// Sets the default algorithm, and drops a `prefetch` that prefetches nothing.
    fn set_defaults(&mut self, at: Span) {
        if !self.is_given("algorithm") && !self.is_given("rule") {
            let name = Ident::new("algorithm", at);
            self.rule.algorithm = Some(Given { name, value: AlgorithmArgument::default() });
        }
        if self.rule.prefetch.as_ref().is_some_and(|prefetch| prefetch.value.literal() == Some(1)) {
            self.rule.prefetch = None;
        }
    }

    /// Reports arguments beside `rule`, which may be misspelt, that the rule has itself.
    fn check_rule(&mut self, kind: AttributeKind, errors: &mut Errors) {
        if !self.is_given("rule") && !self.excused.contains(&"rule") {
            return;
        }
        for argument in arguments(kind).filter(|argument| argument.usage.is_of_rule) {
            let name = argument.name;
            self.excused.push(name);
            if let Some(at) = self.given_at(name) {
                let message =
                    format!("`{name}` is a part of the rule: leave it out beside `rule`, or change the constant");
                errors.add(at, message);
            }
        }
    }

    /// Reports `ttl` and `unit` beside `period`, which may be misspelt.
    fn check_units(&mut self, errors: &mut Errors) {
        if !self.is_given("period") && !self.excused.contains(&"period") {
            return;
        }
        self.excused.push("unit");
        if self.is_given("rule") {
            return;
        }
        for name in ["ttl", "unit"] {
            if let Some(at) = self.given_at(name) {
                errors.add(at, format!("`{name}` and `period` exclude each other: leave one of them out"));
            }
        }
    }

    /// `None` if the given one is invalid, or if rustc knows it only.
    fn algorithm(&self) -> Option<&AlgorithmArgument> {
        self.rule.algorithm.as_ref().map(|algorithm| &algorithm.value)
    }

    fn check_missing(&self, kind: AttributeKind, at: Span, errors: &mut Errors) {
        for argument in arguments(kind) {
            let name = argument.name;
            if let (Some(meaning), Some(example)) = (argument.usage.meaning(kind), argument.usage.example(kind))
                && !self.is_given(name)
                && !self.excused.contains(&name)
            {
                errors.add(at, format!("missing `{name}`, {meaning}: {name} = {example}"));
            }
        }
    }

    fn check_period(&self, errors: &mut Errors) {
        if let (Some(Given { value: Number::Literal(ttl, span), .. }), Some(unit)) = (&self.rule.ttl, &self.rule.unit)
            && ttl.checked_mul(unit.value).is_none_or(|period| period > LONGEST_PERIOD_MS)
        {
            errors.add(*span, "`ttl` is longer than 3,650 days");
        }
        if let Some(Given { value: Milliseconds::Literal(period, span), .. }) = &self.rule.period
            && *period > LONGEST_PERIOD_MS
        {
            errors.add(*span, "`period` is longer than 3,650 days");
        }
    }

    /// The period in milliseconds. `None` if it is too long, or known to rustc only.
    fn period(&self) -> Option<u64> {
        let period = if let Some(period) = &self.rule.period {
            period.value.literal()
        } else {
            let ttl = match &self.rule.ttl {
                None => 1,
                Some(ttl) => ttl.value.literal()?,
            };
            ttl.checked_mul(self.rule.unit.as_ref()?.value)
        };
        period.filter(|period| *period <= LONGEST_PERIOD_MS)
    }

    fn check_buckets(&self, errors: &mut Errors) {
        let buckets = self.algorithm().and_then(|algorithm| algorithm.options.buckets.as_ref());
        let Some(Number::Literal(buckets, span)) = buckets else {
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

    /// Reports a number that the algorithm cannot store.
    fn check_bounds(&self, errors: &mut Errors) {
        let (Some(algorithm), Some(period)) = (self.algorithm(), self.period()) else { return };
        let count = self.rule.count.as_ref().map(|count| &count.value);
        if let Some((name, span, largest)) = algorithm.too_large(count, period) {
            let word = algorithm.word();
            errors.add(span, format!("`{name}` is at most {largest} for `{word}` and a period of {period} ms"));
        }
    }

    /// Reports a cost that no call can ever be charged.
    fn check_cost(&self, errors: &mut Errors) {
        let (Some(cost), Some(algorithm)) = (&self.rule.cost, self.algorithm()) else { return };
        let (what, unit, cost, span) = match &cost.value {
            CostArgument::Number(Number::Literal(cost, span)) => ("cost", "", *cost, *span),
            // With another algorithm, that is the mistake to report.
            CostArgument::Elapsed { .. } if !algorithm.has(Feature::ElapsedCost) => return,
            CostArgument::Settled { .. } if !algorithm.has(Feature::SettledCost) => return,
            CostArgument::Elapsed { max: Some(Milliseconds::Literal(max, span)), .. } => ("`max`", " ms", *max, *span),
            CostArgument::Settled { max: Number::Literal(max, span), .. } => ("`max`", "", *max, *span),
            _ => return,
        };
        let count = self.rule.count.as_ref().map(|count| &count.value);
        if let Some((name, number, largest)) = algorithm.largest_cost(count)
            && cost > largest
        {
            let message =
                format!("a {what} of {cost}{unit} never fits: with {name} = {number} the largest is {largest}{unit}");
            errors.add(span, message);
        }
    }

    fn check_missing_key(&self, errors: &mut Errors) {
        if let Some(Given { name, .. }) = &self.rule.on_missing_key
            && !self.is_given("key")
        {
            errors.add(name.span(), "`on_missing_key` needs a `key` that may be missing: key = user_id");
        }
    }

    /// Reports words that need another algorithm.
    fn check_algorithm(&self, errors: &mut Errors) {
        let Some(algorithm) = self.algorithm() else { return };
        let prefetch = self.rule.prefetch.as_ref();
        let prefetch = prefetch.map(|prefetch| (prefetch.name.span(), "prefetch", Feature::Prefetch));
        let cost = self.rule.cost.as_ref().and_then(|cost| match &cost.value {
            CostArgument::Number(_) => None,
            CostArgument::Elapsed { word, .. } => Some((*word, "Elapsed", Feature::ElapsedCost)),
            CostArgument::Settled { word, .. } => Some((word.span(), "Settled", Feature::SettledCost)),
        });
        for (span, word, needed) in prefetch.into_iter().chain(cost).filter(|(.., needed)| !algorithm.has(*needed)) {
            let (needed, algorithm) = (needed.algorithms(), algorithm.word());
            errors.add(span, format!("`{word}` needs `algorithm = {needed}`, not `{algorithm}`"));
        }
        let is_settled = cost.is_some_and(|(.., needed)| needed == Feature::SettledCost);
        if let (Some((span, ..)), true, true) = (prefetch, is_settled, algorithm.has(Feature::Prefetch)) {
            errors.add(span, "`prefetch` and `Settled` exclude each other: prefetched permits can't be settled");
        }
    }

    /// Reports words that exclude a ban.
    fn check_ban(&self, errors: &mut Errors) {
        let Some(Given { name, .. }) = &self.rule.ban else { return };
        let message = if let Some(algorithm) = self.algorithm().filter(|algorithm| algorithm.is_exclusive()) {
            format!("`ban` needs another algorithm than `{}`, whose slots cannot be taken back", algorithm.word())
        } else if self.rule.prefetch.is_some() {
            "`ban` and `prefetch` exclude each other: prefetched permits would be granted during a ban".to_owned()
        } else if self.rule.is_shadow() {
            "`ban` and `shadow` exclude each other: a rule in shadow mode refuses nothing".to_owned()
        } else {
            return;
        };
        errors.add(name.span(), message);
    }

    fn exclusive(&self) -> Vec<Exclusive> {
        let algorithm = self.algorithm().filter(|algorithm| algorithm.is_exclusive());
        let algorithm = algorithm.map(|algorithm| Exclusive { span: algorithm.span, word: algorithm.word() });
        let prefetch = self.rule.prefetch.as_ref();
        let prefetch = prefetch.map(|prefetch| Exclusive { span: prefetch.name.span(), word: "prefetch" });
        algorithm.into_iter().chain(prefetch).collect()
    }
}

impl CallArguments {
    /// The call waits for its limit.
    pub(crate) fn waits(&self) -> bool {
        let on_limit = self.on_limit.as_ref().map(|on_limit| &on_limit.value);
        matches!(on_limit, Some(OnLimitArgument::Wait | OnLimitArgument::WaitAtMost(_)))
    }

    /// The expressions that may use arguments of the function.
    pub(crate) fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let given = [&self.limiter, &self.settled].into_iter().flatten().map(|given| &given.value);
        let returned = [&self.on_limit, &self.on_busy].into_iter().flatten().filter_map(|given| match &given.value {
            OnLimitArgument::Return { expr, .. } => Some(&**expr),
            _ => None,
        });
        given.chain(returned)
    }

    /// Adds the arguments of further attributes of the same call.
    pub(crate) fn merge_all(mut self, limits: &[LimitAttribute], errors: &mut Errors) -> Self {
        for limit in limits {
            let further = limit.call.clone();
            let permit = further.permit.as_ref().map(|permit| permit.name.span());
            let settled = further.settled.as_ref().map(|settled| settled.name.span());
            if let (Some(at), Some(_)) = (settled, &self.settled) {
                let message = "one closure settles the whole call: leave this one out, Settled(max = ..)";
                errors.add(at, message);
            }
            self.settled = self.settled.or_else(|| further.settled.clone());
            self.merge(further, errors);
            if let (Some(at), Some(_), Some(_)) = (permit.or(settled), &self.permit, &self.settled) {
                let message = "`permit` and a closure of `Settled` exclude each other: leave the closure out, and let the body call permit.settle(..)";
                errors.add(at, message);
            }
        }
        self
    }
}
