//! The argument `algorithm`. A further algorithm is a further row of the table.

use proc_macro2::{Span, TokenStream};
use syn::parse::ParseStream;
use syn::{Ident, Path, Result};

use super::bounds::{self, Bound};
use crate::errors::fail;
use crate::tokens::hygienic;
use crate::value::{self, Choice, Number, set};

pub(crate) struct AlgorithmArgument {
    row: &'static AlgorithmRow,
    /// The span of its word.
    pub(super) span: Span,
    pub(super) options: AlgorithmOptions,
}

struct AlgorithmRow {
    word: &'static str,
    options: &'static [Choice<AlgorithmOptions>],
    /// The reason why the first option must be given, for the error.
    required: Option<&'static str>,
    /// No second limit may stand beside it.
    is_exclusive: bool,
    features: &'static [Feature],
    /// The runtime's function that makes a rule of a known count. `rule` checks the numbers of a
    /// fixed window; otherwise the function that sets the algorithm checks them.
    constructor: &'static str,
    /// The option that bounds a cost, and by how much a cost may exceed it. `None` if it is the
    /// count.
    largest_cost: fn(&AlgorithmOptions) -> Option<(&'static str, &Number, u64)>,
    /// The bound of what is stored, for a count if it is known, and a period in milliseconds.
    /// `None` if it is known to rustc only.
    bound: fn(&AlgorithmOptions, Option<u64>, u64) -> Option<Bound>,
    /// Adds the algorithm to a rule.
    generate: fn(&AlgorithmOptions, rule: &TokenStream, krate: &TokenStream) -> TokenStream,
}

/// Something that needs an algorithm which has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    Prefetch,
    /// A cost that is reported when the call ends.
    SettledCost,
    /// The elapsed time as the cost.
    ElapsedCost,
}

/// The options of all algorithms. One that is not given, or not the algorithm's, is `None`.
#[derive(Default)]
pub(super) struct AlgorithmOptions {
    align: Option<bool>,
    pub(super) buckets: Option<Number>,
    weighted: Option<bool>,
    burst: Option<Number>,
    refill: Option<Ident>,
    queue: Option<Number>,
}

impl AlgorithmOptions {
    fn refills_at_once(&self) -> bool {
        self.refill.as_ref().is_some_and(|refill| refill == "Interval")
    }
}

/// The defaults of a row.
const PLAIN: AlgorithmRow = AlgorithmRow {
    word: "",
    options: &[],
    required: None,
    is_exclusive: false,
    features: &[],
    constructor: "unchecked_rule",
    largest_cost: |_| None,
    bound: |_, _, _| Some(bounds::WINDOW),
    generate: |_, rule, _| rule.clone(),
};

/// The first one is the default of the argument.
static ALGORITHMS: &[AlgorithmRow] = &[
    AlgorithmRow {
        word: "FixedWindow",
        constructor: "rule",
        options: &[Choice::new("align", "true", |to, input, name| set(&mut to.align, value::boolean(input, name)))],
        features: &[Feature::Prefetch, Feature::SettledCost],
        generate: |options, rule, krate| match options.align {
            None => rule.clone(),
            Some(align) => hygienic!(#rule.with_algorithm(#krate::Algorithm::FixedWindow { align: #align })),
        },
        ..PLAIN
    },
    AlgorithmRow {
        word: "SlidingLog",
        features: &[Feature::SettledCost, Feature::ElapsedCost],
        bound: |_, _, period| Some(bounds::entries(period)),
        generate: |_, rule, krate| checked(rule, krate, &hygienic!(SlidingLog)),
        ..PLAIN
    },
    AlgorithmRow {
        word: "SlidingWindow",
        features: &[Feature::SettledCost],
        bound: |options, _, period| {
            let buckets = options.buckets.as_ref().map_or(Some(1), Number::literal)?;
            Some(bounds::parts(buckets, period))
        },
        options: &[
            Choice::new("buckets", "1", |to, input, name| set(&mut to.buckets, value::positive(input, name))),
            Choice::new("weighted", "false", |to, input, name| set(&mut to.weighted, value::boolean(input, name))),
        ],
        generate: |options, rule, krate| {
            let buckets = Number::to_const_or_one(options.buckets.as_ref(), krate);
            let weighted = options.weighted != Some(false);
            checked(rule, krate, &hygienic!(SlidingWindow { buckets: #buckets, weighted: #weighted }))
        },
        ..PLAIN
    },
    AlgorithmRow {
        word: "TokenBucket",
        features: &[Feature::SettledCost],
        options: &[
            Choice::new("burst", "200", |to, input, name| set(&mut to.burst, value::positive(input, name))),
            Choice::new("refill", "Interval", |to, input, name| {
                set(&mut to.refill, value::variant(input, name, &["Greedy", "Interval"]))
            }),
        ],
        bound: |options, count, period| {
            let name = if options.burst.is_some() { "burst" } else { "count" };
            let at_once = if options.refills_at_once() { count? } else { 1 };
            Some(bounds::tokens(name, at_once, period))
        },
        largest_cost: |options| Some(("burst", options.burst.as_ref()?, 0)),
        generate: |options, rule, krate| {
            let greedy = Ident::new("Greedy", Span::mixed_site());
            let refill = options.refill.as_ref().unwrap_or(&greedy);
            let bucket = |burst: TokenStream| hygienic!(TokenBucket { burst: #burst, refill: #krate::Refill::#refill });
            match options.burst.as_ref().map(|burst| burst.to_const(krate)) {
                None => checked_with_count(rule, krate, &bucket(hygienic!(0))),
                Some(burst) => checked(rule, krate, &bucket(burst)),
            }
        },
        ..PLAIN
    },
    AlgorithmRow {
        word: "LeakyBucket",
        options: &[Choice::new("queue", "50", |to, input, name| set(&mut to.queue, value::number(input, name, 0)))],
        required: Some("to know how many may wait"),
        is_exclusive: true,
        bound: |_, _, period| Some(bounds::slots(period)),
        largest_cost: |options| Some(("queue", options.queue.as_ref()?, 1)),
        generate: |options, rule, krate| {
            let queue = Number::to_const_or_one(options.queue.as_ref(), krate);
            checked(rule, krate, &hygienic!(LeakyBucket { queue: #queue }))
        },
        ..PLAIN
    },
];

/// The rule with an algorithm whose numbers are checked while the user's crate is compiled.
fn checked(rule: &TokenStream, krate: &TokenStream, algorithm: &TokenStream) -> TokenStream {
    hygienic!(#krate::__private::with_algorithm(#rule, #krate::Algorithm::#algorithm))
}

/// [`checked`], and the count is the largest cost, too.
fn checked_with_count(rule: &TokenStream, krate: &TokenStream, algorithm: &TokenStream) -> TokenStream {
    hygienic!(#krate::__private::with_algorithm_of_count(#rule, #krate::Algorithm::#algorithm))
}

impl Feature {
    /// The words of the algorithms that have it: `A`, or `A or B`.
    pub(super) fn algorithms(self) -> String {
        let words: Vec<_> = ALGORITHMS.iter().filter(|row| row.features.contains(&self)).map(|row| row.word).collect();
        match &words[..] {
            [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            words => words.concat(),
        }
    }
}

impl Default for AlgorithmArgument {
    fn default() -> Self {
        Self { row: &ALGORITHMS[0], span: Span::call_site(), options: AlgorithmOptions::default() }
    }
}

impl AlgorithmArgument {
    pub(super) fn word(&self) -> &'static str {
        self.row.word
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.row.is_exclusive
    }

    pub(super) fn has(&self, feature: Feature) -> bool {
        self.row.features.contains(&feature)
    }

    pub(crate) fn constructor(&self) -> &'static str {
        self.row.constructor
    }

    /// The number that is more than the algorithm can store: its name, its span, and the largest
    /// value. `None` if all fit, or are known to rustc only.
    pub(super) fn too_large(&self, count: Option<&Number>, period: u64) -> Option<(&'static str, Span, u64)> {
        let (name, largest) = (self.row.bound)(&self.options, count.and_then(Number::literal), period)?;
        let number = match name {
            "burst" => self.options.burst.as_ref(),
            "queue" => self.options.queue.as_ref(),
            _ => count,
        };
        match number? {
            Number::Literal(number, span) if *number > largest => Some((name, *span, largest)),
            _ => None,
        }
    }

    /// The counters of limits with the same tag may be the same.
    pub(crate) fn counter_tag(&self) -> String {
        let AlgorithmOptions { align, buckets, weighted, .. } = &self.options;
        let buckets = Number::to_const_or_one(buckets.as_ref(), &TokenStream::new());
        let (align, weighted) = (*align == Some(true), *weighted != Some(false));
        format!("{} {align} {buckets} {weighted} {}", self.row.word, self.options.refills_at_once())
    }

    /// The argument or option that bounds a cost, its value, and the largest cost. `None` if they
    /// are known to rustc only.
    pub(super) fn largest_cost(&self, count: Option<&Number>) -> Option<(&'static str, u64, u64)> {
        let (name, number, more) = match (self.row.largest_cost)(&self.options) {
            Some(bound) => bound,
            None => ("count", count?, 0),
        };
        let number = number.literal()?;
        Some((name, number, number.saturating_add(more)))
    }

    /// The rule with this algorithm.
    pub(crate) fn generate(&self, rule: &TokenStream, krate: &TokenStream) -> TokenStream {
        (self.row.generate)(&self.options, rule, krate)
    }
}

pub(super) fn read(input: ParseStream, name: &str) -> Result<AlgorithmArgument> {
    if let Ok(path) = Path::parse_mod_style(&input.fork())
        && let Some(last) = path.segments.last().filter(|last| last.ident == "Concurrent")
    {
        let message =
            "calls that run at once have an attribute of their own: #[limit_concurrent_requests(\"export\", 3)]";
        return fail(last.ident.span(), message);
    }
    let (ident, row) = value::word_of(input, name, ALGORITHMS, |row| row.word)?;
    let mut options = AlgorithmOptions::default();
    let given = value::options(&ident, input, row.options, &mut options)?;
    if let (Some(why), Some(option)) = (row.required, row.options.first())
        && !given.contains(&option.name)
    {
        let (name, example) = (option.name, option.example);
        return fail(ident.span(), format!("`{ident}` needs {why}: {ident}({name} = {example})"));
    }
    Ok(AlgorithmArgument { row, span: ident.span(), options })
}
