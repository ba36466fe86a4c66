//! Generates the check: statements before the user's body, and around it if the outcome reports
//! the cost.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote_spanned};
use syn::{AssocType, Expr, GenericArgument, Path, PathArguments, Type, TypeParamBound};

use crate::args::{
    CallArguments, CostArgument, Given, LimitAttribute, LimitKind, OnLimitArgument, OnStoreErrorArgument, RuleFields,
    RuleSource, RuleSpec,
};
use crate::entry_points;
use crate::incomplete;
use crate::item::Function;
use crate::names::parameter_type;
use crate::tokens::{borrow_parts, ends, hygienic, locate, parenthesize, text};
use crate::value::{self, Number};

/// The code to put around a body.
pub(crate) struct GeneratedCheck {
    prologue: TokenStream,
    has_permit: bool,
    settlement: Option<Settlement>,
    /// The function `run_body` of the runtime, if the function is not async.
    run_body: Option<TokenStream>,
}

/// The code that charges what the outcome reports.
struct Settlement {
    /// A statement that gives the type of the outcome.
    type_hint: Option<TokenStream>,
    call: TokenStream,
}

impl GeneratedCheck {
    // Output:
    //     if let Some(refused) = 'decided: {
    //         let deciding = {
    //             let mut refused = None;
    //             let key = key(&(seller_id));
    //             let rule = const { &rule("item", 100, 1, 60_000) };
    //             match limit_one(None, Call::DEFAULT, rule, key, 1, &mut refused) {
    //                 Attempted::Admitted => break 'decided None,
    //                 Attempted::Refused => break 'decided refused,
    //                 Attempted::Deferred(deciding) => deciding,
    //             }
    //         };
    //         deciding.await
    //     } {
    //         return FromRefusal::from_refusal(refused);
    //     }
    //     '__ratelimit_body: { body }
    //
    // This is compiled into each limited function, so each statement counts: measure a change with
    // the bench `compile_cost`.
    //
    // The names begin with `__ratelimit_`: an item of the user, such as `static key`, would replace
    // a local of its name, whatever its hygiene.
    //
    // With a limit that is held, or a permit for the body:
    //     let deciding = { permit_of_several(None, Call::DEFAULT, (..)) }; // or permit_of_one
    //     let permit = match deciding.await {
    //         Ok(permit) => permit,
    //         Err(refused) => return FromRefusal::from_refusal(refused),
    //     };
    //
    // The call is made in a statement of its own: temporaries of the key expression, such as a lock
    // guard, are dropped before the await, so the future stays `Send`.
    //
    // A limit that is held until the call ends keeps its permit in this scope, which encloses the
    // body. Before edition 2024, temporaries of the body's last expression outlive the scope: the arm
    // of a `match` drops them earlier.
    //     match () { () => '__ratelimit_body: { body } }
    //
    // With `blocking`, nothing is awaited:
    //     deciding.block()
    pub(crate) fn new(limits: &[&LimitAttribute], arguments: &CallArguments, function: &Function) -> Self {
        let path = arguments.krate.as_ref().map(|krate| krate.value.to_token_stream());
        let runtime = &RuntimePath(path);
        let is_held = limits.iter().any(|limit| limit.rule.is_held());
        let places = limits.iter().filter(|limit| limit.rule.is_place()).count();
        let kinds = match places {
            0 => LimitKinds::PerTime,
            places if places == limits.len() => LimitKinds::Places,
            _ => LimitKinds::Both,
        };
        let deciding = ask_limiter(limits, is_held, arguments, runtime);
        let refusal = refusal(runtime, arguments, kinds, function.output_ends());
        let settled = arguments.settled.as_ref();
        let settlement = settled.map(|closure| settlement(runtime, &closure.value, function.output()));
        let permit = match &arguments.permit {
            Some(permit) => Some(permit.value.to_token_stream()),
            None => is_held.then(|| hygienic!(__ratelimit_permit)),
        };
        let krate = runtime.tokens();
        let run_body = arguments.blocking.is_some().then(|| hygienic!(#krate::__private::run_body));
        let decided = if run_body.is_some() {
            hygienic!(__ratelimit_deciding.block())
        } else {
            hygienic!(__ratelimit_deciding.await)
        };
        let joined = limits.iter().find_map(|limit| limit.joined.as_ref()).map(use_attribute);
        let has_permit = permit.is_some();
        let prologue = match permit {
            None => hygienic! {
                #joined
                if let ::core::option::Option::Some(__ratelimit_refused) = 'decided: {
                    let __ratelimit_deciding = #deciding;
                    #decided
                } {
                    #refusal
                }
            },
            Some(permit) => hygienic! {
                #joined
                let __ratelimit_deciding = #deciding;
                let #permit = match #decided {
                    ::core::result::Result::Ok(__ratelimit_permit) => __ratelimit_permit,
                    ::core::result::Result::Err(__ratelimit_refused) => {
                        #refusal
                    }
                };
            },
        };
        let mut check = Self { prologue, has_permit, settlement, run_body };
        if limits.iter().any(|limit| limit.is_incomplete) {
            check.prologue = incomplete::strip(check.prologue);
            check.settlement = check
                .settlement
                .map(|settlement| Settlement { call: incomplete::strip(settlement.call), ..settlement });
        }
        check
    }

    // Output if the outcome reports the cost. The block lets the body `return`:
    //     prologue
    //     let outcome = async move {
    //         if let Some(outcome) = None::<R> {
    //             return outcome;
    //         }
    //         '__ratelimit_body: { body }
    //     }.await;
    //     settle(permit, &outcome, |outcome| outcome.tokens());
    //     outcome
    //
    // With `blocking`, the block is that of a closure: `let outcome = run_body(move || { .. });`.
    //
    // The braces of both blocks are located in the user's code: clippy skips generated blocks, and
    // with them some lints of the statements inside. The label is never used. It keeps rustc from
    // reporting the braces as unused.
    pub(crate) fn around(&self, body: &Group) -> TokenStream {
        let prologue = &self.prologue;
        let at = body.span();
        let labelled = quote_spanned!(at=> '__ratelimit_body: #body);
        match &self.settlement {
            None if self.has_permit => hygienic!(#prologue match () { () => #labelled }),
            None => hygienic!(#prologue #labelled),
            Some(Settlement { type_hint, call }) => {
                let mut block = Group::new(Delimiter::Brace, hygienic!(#type_hint #labelled));
                block.set_span(at);
                let outcome = match &self.run_body {
                    None => {
                        let future = quote_spanned!(at=> async move #block);
                        hygienic!(#future.await)
                    }
                    Some(run_body) => {
                        let closure = quote_spanned!(at=> move || #block);
                        hygienic!(#run_body(#closure))
                    }
                };
                hygienic! {
                    #prologue
                    let __ratelimit_outcome = #outcome;
                    #call;
                    __ratelimit_outcome
                }
            }
        }
    }
}

/// A block that evaluates what the user gives, and calls the entry point.
fn ask_limiter(
    limits: &[&LimitAttribute],
    is_held: bool,
    arguments: &CallArguments,
    runtime: &RuntimePath,
) -> TokenStream {
    let krate = runtime.tokens();
    let company = Company { is_stacked: limits.len() > 1, waits: arguments.waits() };
    let needs_permit = is_held || arguments.permit.is_some();
    let charges: Vec<_> = limits.iter().map(|limit| ChargeTokens::new(&limit.rule, company, runtime)).collect();
    let is_one_place = limits.len() == 1 && limits.iter().all(|limit| limit.rule.is_place());
    let (values, charges, entry_point) = match &charges[..] {
        [ChargeTokens { values, arguments, .. }] if !is_held || is_one_place => {
            let entry_point = if needs_permit { entry_points::PERMIT_OF_ONE } else { entry_points::LIMIT_ONE };
            (values.clone(), arguments.clone(), entry_point)
        }
        all => {
            let list = all.iter().rev().fold(hygienic!(()), |others, ChargeTokens { values, arguments, function }| {
                let function = Ident::new(function, Span::mixed_site());
                hygienic!(({ #values #krate::__private::#function(#arguments) }, #others))
            });
            let entry_point = if needs_permit { entry_points::PERMIT_OF_SEVERAL } else { entry_points::LIMIT_SEVERAL };
            match arguments.limiter {
                None => (hygienic!(), list, entry_point),
                Some(_) => (hygienic!(let __ratelimit_charges = #list;), hygienic!(__ratelimit_charges), entry_point),
            }
        }
    };
    let entry_point = Ident::new(entry_point, Span::mixed_site());
    let options = call_options(&krate, arguments, is_one_place);
    // It comes behind the values: they may need a lock that it takes.
    let (limiter, argument) = match &arguments.limiter {
        None => (None, hygienic!(::core::option::Option::None)),
        Some(Given { value: expr, .. }) => (
            Some(hygienic!(let __ratelimit_limiter: &#krate::Limiter = #expr;)),
            hygienic!(::core::option::Option::Some(__ratelimit_limiter)),
        ),
    };
    if needs_permit {
        return hygienic!({ #values #limiter #krate::__private::#entry_point(#argument, #options, #charges) });
    }
    hygienic!({
        let mut __ratelimit_refused = ::core::option::Option::None;
        #values
        #limiter
        match #krate::__private::#entry_point(#argument, #options, #charges, &mut __ratelimit_refused) {
            #krate::__private::Attempted::Admitted => break 'decided (::core::option::Option::None),
            #krate::__private::Attempted::Refused => break 'decided __ratelimit_refused,
            #krate::__private::Attempted::Deferred(__ratelimit_deciding) => __ratelimit_deciding,
        }
    })
}

/// Uses the name of an attribute that another one expands. Otherwise rustc would report its import
/// as unused.
fn use_attribute(path: &Path) -> TokenStream {
    let path = path.to_token_stream().into_iter().map(|mut token| {
        if token.to_string() != "$crate" {
            token.set_span(Span::mixed_site().located_at(token.span())); // rustc lints no generated code
        }
        token
    });
    let path: TokenStream = path.collect();
    hygienic!(use #path as _;)
}

fn settlement(runtime: &RuntimePath, closure: &Expr, output: Option<&Type>) -> Settlement {
    // The type in a signature may be that of an alias, `BoxFuture<T>` of a `Result<T, E>`.
    let type_hint = parameter_type(closure).or(output).map(|output| {
        let mut output = output.clone();
        infer_impl_types(&mut output);
        // There is no syntax for the type of an async block. This `return` sets it, and never runs.
        hygienic! {
            if let ::core::option::Option::Some(__ratelimit_outcome) = ::core::option::Option::None::<#output> {
                return __ratelimit_outcome;
            }
        }
    });
    let (start, end) = ends(closure);
    let krate = runtime.at(start);
    let arguments = parenthesize(hygienic!(__ratelimit_permit, &__ratelimit_outcome, #closure), end);
    Settlement { type_hint, call: quote_spanned!(start=> #krate::__private::settle #arguments) }
}

/// Changes `Result<impl Display, E>` to `Result<_, E>`.
fn infer_impl_types(ty: &mut Type) {
    match ty {
        Type::ImplTrait(_) => *ty = Type::Verbatim(hygienic!(_)),
        Type::Group(group) => infer_impl_types(&mut group.elem),
        Type::Paren(paren) => infer_impl_types(&mut paren.elem),
        Type::Reference(reference) => infer_impl_types(&mut reference.elem),
        Type::Array(array) => infer_impl_types(&mut array.elem),
        Type::Slice(slice) => infer_impl_types(&mut slice.elem),
        Type::Tuple(tuple) => tuple.elems.iter_mut().for_each(infer_impl_types),
        Type::Path(path) => infer_in_path(&mut path.path),
        Type::TraitObject(object) => {
            for bound in &mut object.bounds {
                if let TypeParamBound::Trait(bound) = bound {
                    infer_in_path(&mut bound.path);
                }
            }
        }
        _ => {}
    }
}

fn infer_in_path(path: &mut Path) {
    for segment in &mut path.segments {
        if let PathArguments::AngleBracketed(arguments) = &mut segment.arguments {
            for argument in &mut arguments.args {
                match argument {
                    GenericArgument::Type(ty) | GenericArgument::AssocType(AssocType { ty, .. }) => {
                        infer_impl_types(ty);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The path of the runtime, if it is not the usual one.
struct RuntimePath(Option<TokenStream>);

impl RuntimePath {
    fn tokens(&self) -> TokenStream {
        self.0.clone().unwrap_or_else(|| hygienic!(::ratelimit_runtime))
    }

    /// The path at a span where rustc is to report an error.
    fn at(&self, span: Span) -> TokenStream {
        locate(self.tokens(), span)
    }
}

/// The call that a rule is a part of.
#[derive(Clone, Copy)]
struct Company {
    is_stacked: bool,
    waits: bool,
}

/// The charge of one rule.
struct ChargeTokens {
    /// Statements that evaluate the user's expressions. Each releases the locks that it takes.
    values: TokenStream,
    /// `rule, key, cost`
    arguments: TokenStream,
    /// The function that makes a charge of the arguments.
    function: &'static str,
}

impl ChargeTokens {
    fn new(rule: &RuleSpec, company: Company, runtime: &RuntimePath) -> Self {
        let krate = &runtime.tokens();
        let mut values = hygienic!();
        let mut evaluate = |name: &str, function: &str, expr: &Expr, more: Option<TokenStream>| {
            let call = call_on(runtime, function, expr, more);
            let name = format_ident!("__ratelimit_{name}", span = Span::mixed_site());
            values.extend(hygienic!(let #name = #call;));
            hygienic!(#name)
        };
        let charged = match &rule.source {
            RuleSource::Constant(constant) => given_rule(constant, rule, company, runtime),
            RuleSource::Arguments(fields) => match &fields.count {
                Number::Other(count) => {
                    let count = evaluate("count", "count", count, None);
                    let rule = rule_of_fields(fields, None, krate);
                    hygienic!(#krate::__private::with_count(#rule, #count))
                }
                count => rule_of_fields(fields, Some(count), krate),
            },
        };
        let key = match (&rule.key, &rule.on_missing_key) {
            (None, _) => hygienic!(#krate::__private::no_key()),
            (Some(key), None) => evaluate("key", "key", key, Some(hygienic!())),
            (Some(key), Some(word)) => {
                evaluate("key", "optional_key", key, Some(hygienic!(, #krate::__private::OnMissingKey::#word)))
            }
        };
        let mut number = |number: &Number| match number {
            Number::Literal(number, span) => value::integer(*number, *span),
            Number::Const(expr) | Number::Other(expr) => evaluate("cost", "cost", expr, None),
        };
        let (function, cost) = match &rule.cost {
            None => ("charge", hygienic!(1)),
            Some(CostArgument::Number(cost)) => ("charge", number(cost)),
            Some(CostArgument::Settled { max, .. }) => ("charge_settled", number(max)),
            Some(CostArgument::Elapsed { max: None, .. }) => {
                ("charge_elapsed", hygienic!(::core::option::Option::None))
            }
            Some(CostArgument::Elapsed { max: Some(max), .. }) => {
                let max = max.to_const(krate);
                ("charge_elapsed", hygienic!(::core::option::Option::Some(const { #max })))
            }
        };
        Self { values, arguments: hygienic!(#charged, #key, #cost), function }
    }
}

/// `const { &rule_per_time(ORDERS) }`, with a function around it for each property that the rule
/// must have. They check it while the user's crate is compiled.
fn given_rule(constant: &Expr, limit: &RuleSpec, company: Company, runtime: &RuntimePath) -> TokenStream {
    let (start, end) = ends(constant);
    let krate = runtime.at(start);
    let mut rule = constant.to_token_stream();
    let mut check = |name: &str, more: TokenStream| {
        let name = Ident::new(name, start);
        let arguments = parenthesize(hygienic!(#rule #more), end);
        rule = quote_spanned!(start=> #krate::__private::#name #arguments);
    };
    check(if limit.is_place() { "rule_of_places" } else { "rule_per_time" }, hygienic!());
    match &limit.cost {
        Some(CostArgument::Settled { .. }) => check("settled_rule", hygienic!(, false)),
        Some(CostArgument::Elapsed { .. }) => check("settled_rule", hygienic!(, true)),
        _ => {}
    }
    if company.is_stacked {
        check("stacked_rule", hygienic!());
    }
    if company.waits && !limit.is_place() {
        check("waiting_rule", hygienic!());
    }
    let cost = match &limit.cost {
        Some(CostArgument::Number(cost) | CostArgument::Settled { max: cost, .. }) => cost.literal(),
        Some(CostArgument::Elapsed { max: Some(max), .. }) => max.literal(),
        _ => None,
    };
    if let Some(cost) = cost.filter(|cost| *cost > 1) {
        let cost = value::integer(cost, Span::mixed_site());
        check("rule_of_cost", hygienic!(, #cost));
    }
    hygienic!(const { &#rule })
}

/// The rule in a `const` block, without a count if that is known at the call only.
fn rule_of_fields(rule: &RuleFields, count: Option<&Number>, krate: &TokenStream) -> TokenStream {
    let prefix = &rule.prefix;
    let call = |name: &str, without_count: &str, arguments: TokenStream| {
        let count = count.map(|count| count.to_const(krate)).map(|count| hygienic!(#count,));
        let name = Ident::new(if count.is_some() { name } else { without_count }, Span::mixed_site());
        hygienic!(#krate::__private::#name(#prefix, #count #arguments))
    };
    let mut constant = match &rule.kind {
        LimitKind::Places { lease } => call("concurrent", "concurrent_without_count", lease.to_const(krate)),
        LimitKind::PerTime(limit) => {
            let (ttl, unit) = (Number::to_const_or_one(limit.ttl.as_ref(), krate), limit.unit.to_const(krate));
            let algorithm = &limit.algorithm;
            let rule = call(algorithm.constructor(), "rule_without_count", hygienic!(#ttl, #unit));
            let constant = algorithm.generate(&rule, krate);
            let constant = match limit.prefetch.as_ref().map(|permits| permits.to_const(krate)) {
                None => constant,
                Some(permits) => hygienic!(#krate::__private::prefetch(#constant, #permits)),
            };
            match limit.ban.as_ref().map(|ban| ban.to_const(krate)) {
                None => constant,
                Some(ban) => hygienic!(#krate::__private::ban(#constant, #ban)),
            }
        }
    };
    for (method, argument) in &rule.builder_calls {
        let method = Ident::new(method, Span::mixed_site());
        constant = hygienic!(#constant.#method(#argument));
    }
    hygienic!(const { &#constant })
}

/// `name(expr)`, or `name(&(expr), more)` with further arguments. Errors are reported at `expr`.
fn call_on(runtime: &RuntimePath, name: &str, expr: &Expr, more: Option<TokenStream>) -> TokenStream {
    let (start, end) = ends(expr);
    let krate = runtime.at(start);
    let name = Ident::new(name, start);
    let argument = match more {
        None => expr.to_token_stream(),
        Some(more) => {
            let expr = parenthesize(borrow_parts(expr), end);
            quote_spanned!(start=> &#expr #more)
        }
    };
    let arguments = parenthesize(argument, end);
    quote_spanned!(start=> #krate::__private::#name #arguments)
}

/// `Call::DEFAULT`, with waiting and the failure policy.
/// `is_one_place`: the call has no other limit, so it has the options of a call of one rule.
fn call_options(krate: &TokenStream, arguments: &CallArguments, is_one_place: bool) -> TokenStream {
    let waits = |on_limit: &Option<Given<OnLimitArgument>>, (wait, wait_at_most): (&str, &str)| match on_limit
        .as_ref()
        .map(|on_limit| &on_limit.value)
    {
        Some(OnLimitArgument::Wait) => {
            let wait = Ident::new(wait, Span::mixed_site());
            hygienic!(.#wait())
        }
        Some(OnLimitArgument::WaitAtMost(longest)) => {
            let milliseconds = longest.to_const(krate);
            let wait_at_most = Ident::new(wait_at_most, Span::mixed_site());
            hygienic!(.#wait_at_most(#milliseconds))
        }
        _ => hygienic!(),
    };
    let of_limit = ("wait", "wait_at_most");
    let of_place = if is_one_place { of_limit } else { ("wait_for_place", "wait_for_place_at_most") };
    let for_limit = waits(&arguments.on_limit, of_limit);
    let for_place = waits(&arguments.on_busy, of_place);
    let on_store_error = arguments.on_store_error.as_ref().map(|Given { value, .. }| match value {
        OnStoreErrorArgument::Policy(word) => hygienic!(.on_store_error(#krate::OnStoreError::#word)),
        OnStoreErrorArgument::WaitAtMost(longest) => {
            let longest = longest.to_const(krate);
            hygienic!(.wait_for_store_at_most(#longest))
        }
    });
    let options = hygienic!(#for_limit #for_place #on_store_error);
    if options.is_empty() {
        return hygienic!(#krate::__private::Call::DEFAULT); // a `const` block would take time to compile
    }
    hygienic!(const { #krate::__private::Call::DEFAULT #options })
}

/// The limits of one function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitKinds {
    PerTime,
    Places,
    Both,
}

/// Returns from the function with the expression of `Return`, or with the error `refused`.
///
/// With limits of both kinds, each has an `on_limit` for its own refusals. The error tells which
/// kind refused. A call that could not be decided is a refusal by neither.
fn refusal(
    runtime: &RuntimePath,
    arguments: &CallArguments,
    kinds: LimitKinds,
    (start, end): (Span, Span),
) -> TokenStream {
    let krate = runtime.tokens();
    let return_value = |on_limit: &Option<Given<OnLimitArgument>>| {
        let Some(OnLimitArgument::Return { word, expr }) = on_limit.as_ref().map(|on_limit| &on_limit.value) else {
            return None;
        };
        // A name that the user's expression sees, in `"{refused}"`, too.
        let visible = text(expr).contains("refused").then(|| {
            let visible = Ident::new("refused", word.span());
            hygienic! {
                let #visible = __ratelimit_refused;
                let _ = &#visible;
            }
        });
        // Clippy reports `return ()` as the user's.
        let value = Some(expr).filter(|expr| !matches!(&***expr, Expr::Tuple(tuple) if tuple.elems.is_empty()));
        Some(hygienic!(#visible return #value;))
    };
    // The whole call has the span of the returned type: rustc reports a type that cannot hold a
    // refusal there.
    let at_type = runtime.at(start);
    let path = quote_spanned!(start=> #at_type::FromRefusal);
    let function = quote_spanned!(end=> ::from_refusal(__ratelimit_refused));
    let error = hygienic!(return #path #function;);
    let (for_limit, for_place) = (return_value(&arguments.on_limit), return_value(&arguments.on_busy));
    let is_of_place = hygienic!(#krate::__private::fits_when_released(&__ratelimit_refused));
    match (kinds, for_limit, for_place) {
        (LimitKinds::PerTime, Some(value), _) | (LimitKinds::Places, _, Some(value)) => value,
        (LimitKinds::Both, Some(for_limit), Some(for_place)) => hygienic!(if #is_of_place { #for_place } #for_limit),
        (LimitKinds::Both, Some(for_limit), None) => {
            let is_over_limit = hygienic!(#krate::__private::over_limit(&__ratelimit_refused));
            hygienic!(if #is_over_limit && !#is_of_place { #for_limit } #error)
        }
        (LimitKinds::Both, None, Some(for_place)) => hygienic!(if #is_of_place { #for_place } #error),
        _ => error,
    }
}
