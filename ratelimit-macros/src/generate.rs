//! Generates the check: statements before the user's body, and around it if a cost is reported by the outcome.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote_spanned};
use syn::{Expr, GenericArgument, Path, PathArguments, Type};

use crate::args::{Algorithm, Cost, Counted, Limit, OnLimit, PerTime, Rule, Settings};
use crate::entry_points;
use crate::item::Function;
use crate::tokens::{ends, hygienic, parenthesize};
use crate::value::{self, Number};

/// What stands around the body.
pub(crate) struct GeneratedCheck {
    prologue: TokenStream,
    settle: Option<Settle>,
}

/// What becomes of the permit where the outcome says the cost.
struct Settle {
    /// Tells the type of the outcome.
    typed: Option<TokenStream>,
    call: TokenStream,
}

impl GeneratedCheck {
    // Output:
    //     if let Err(refused) = 'decided: {
    //         let deciding = match limit_request_per_time(None, const { Call::new() }, {
    //             let key = key(&(seller_id));
    //             charge(const { &rule("item", 100, 1, 60_000) }, key, 1)
    //         }) {
    //             Ok(decided) => break 'decided decided,
    //             Err(undecided) => undecided.decide(),
    //         };
    //         deciding.await
    //     } {
    //         return FromRefusal::from_refusal(refused);
    //     }
    //
    // or, for several limits, or where something is held, or (`permit_request_per_time`) where the body wants the permit,
    //     let deciding = limit_requests_per_time(None, const { Call::new() }, [..]);
    //     if let Err(refused) = deciding.await {
    //         return FromRefusal::from_refusal(refused);
    //     }
    //
    // What is awaited is made in a statement of its own: what a key expression borrows, say a guard, is
    // gone before the await, and the future stays `Send`.
    //
    // A call that holds something until its end keeps the permit in this scope, around the body's.
    pub(crate) fn new(limits: &[&Limit], settings: &Settings, function: &Function) -> Self {
        let path = settings.krate.as_ref().map(|(_, path)| path);
        let runtime = &Runtime(path.map(ToTokens::to_token_stream));
        let krate = runtime.path();
        let is_held = limits.iter().any(|limit| limit.rule.is_held());
        let charges: Vec<_> = limits.iter().map(|limit| charge(&limit.rule, runtime)).collect();
        let call = call(&krate, settings);
        let is_alone = limits.len() == 1 && !is_held;
        let (entry_point, charges) = match &charges[..] {
            charges if is_held => (entry_points::HOLD, hygienic!([#(#charges.asked()),*])),
            [charge] if settings.permit.is_some() => (entry_points::LIMIT_WITH_PERMIT, charge.clone()),
            [charge] => (entry_points::LIMIT, charge.clone()),
            charges => (entry_points::LIMIT_ALL, hygienic!([#(#charges.asked()),*])),
        };
        let entry_point = Ident::new(entry_point, Span::mixed_site());
        let limit = |limiter| hygienic!(#krate::__private::#entry_point(#limiter, #call, #charges));
        let asked = match &settings.limiter {
            None => limit(hygienic!(::core::option::Option::None)),
            Some((_, expr)) => {
                let limit = limit(hygienic!(::core::option::Option::Some(limiter)));
                hygienic! {{
                    let limiter: &#krate::Limiter = #expr;
                    #limit
                }}
            }
        };
        let places = limits.iter().any(|limit| matches!(limit.rule.counted, Counted::Concurrently { .. }));
        let refusal = refusal(runtime, settings, places, function.output_ends());
        let settle = settings.settled.as_ref().map(|(_, used)| settle(runtime, used, function.output()));
        let permit = match &settings.permit {
            Some((_, permit)) => Some(permit.to_token_stream()),
            None if settle.is_some() => Some(hygienic!(permit)),
            None => is_held.then(|| hygienic!(_permit)),
        };
        let joined = limits.iter().find_map(|limit| limit.joined.as_ref()).map(used);
        let prologue = match permit {
            None if is_alone => hygienic! {
                #joined
                if let ::core::result::Result::Err(refused) = 'decided: {
                    let deciding = match #asked {
                        ::core::result::Result::Ok(decided) => break 'decided decided,
                        ::core::result::Result::Err(undecided) => undecided.decide(),
                    };
                    deciding.await
                } {
                    #refusal
                }
            },
            None => hygienic! {
                #joined
                let deciding = #asked;
                if let ::core::result::Result::Err(refused) = deciding.await {
                    #refusal
                }
            },
            Some(permit) => hygienic! {
                #joined
                let deciding = #asked;
                let #permit = match deciding.await {
                    ::core::result::Result::Ok(permit) => permit,
                    ::core::result::Result::Err(refused) => {
                        #refusal
                    }
                };
            },
        };
        Self { prologue, settle }
    }

    // Output, where the outcome says the cost; in a block of its own the body may `return`:
    //     prologue
    //     let outcome = async move {
    //         if let Some(outcome) = None::<R> {
    //             return outcome;
    //         }
    //         { body }
    //     }.await;
    //     settle(permit, &outcome, |outcome| outcome.tokens());
    //     outcome
    pub(crate) fn around(&self, body: &Group) -> TokenStream {
        let prologue = &self.prologue;
        match &self.settle {
            None => hygienic!(#prologue #body),
            Some(Settle { typed, call }) => hygienic! {
                #prologue
                let outcome = async move { #typed #body }.await;
                #call;
                outcome
            },
        }
    }
}

/// Uses the name of an attribute that was joined: to the compiler, whoever imported it for that would have done so for nothing.
fn used(path: &Path) -> TokenStream {
    let path = path.to_token_stream().into_iter().map(|mut token| {
        if token.to_string() != "$crate" {
            token.set_span(Span::mixed_site().located_at(token.span())); // what is ours has no lints
        }
        token
    });
    let path: TokenStream = path.collect();
    hygienic!(use #path as _;)
}

fn settle(runtime: &Runtime, used: &Expr, output: Option<&Type>) -> Settle {
    let typed = output.map(|output| {
        let mut output = output.clone();
        leave_out_unnamed(&mut output);
        // An async block can't be given a type. The first thing it returns gives it one, though it never does.
        hygienic! {
            if let ::core::option::Option::Some(outcome) = ::core::option::Option::None::<#output> {
                return outcome;
            }
        }
    });
    let (start, end) = ends(used);
    let krate = runtime.at(start);
    let arguments = parenthesize(hygienic!(permit, &outcome, #used), end);
    Settle { typed, call: quote_spanned!(start=> #krate::__private::settle #arguments) }
}

/// Makes `Result<_, E>` of `Result<impl Display, E>`.
fn leave_out_unnamed(ty: &mut Type) {
    match ty {
        Type::ImplTrait(_) => *ty = Type::Verbatim(hygienic!(_)),
        Type::Group(group) => leave_out_unnamed(&mut group.elem),
        Type::Paren(paren) => leave_out_unnamed(&mut paren.elem),
        Type::Reference(reference) => leave_out_unnamed(&mut reference.elem),
        Type::Array(array) => leave_out_unnamed(&mut array.elem),
        Type::Tuple(tuple) => tuple.elems.iter_mut().for_each(leave_out_unnamed),
        Type::Path(path) => {
            for segment in &mut path.path.segments {
                if let PathArguments::AngleBracketed(arguments) = &mut segment.arguments {
                    for argument in &mut arguments.args {
                        if let GenericArgument::Type(ty) = argument {
                            leave_out_unnamed(ty);
                        }
                    }
                }
            }
        }
        _ => {}
    }
}

/// The path of the runtime.
struct Runtime(Option<TokenStream>);

impl Runtime {
    fn path(&self) -> TokenStream {
        self.0.clone().unwrap_or_else(|| hygienic!(::ratelimit_runtime))
    }

    /// Where an error should be drawn. Only `$crate` still resolves where it was written: an error
    /// is drawn over several tokens only if they are all of one kind.
    fn at(&self, span: Span) -> TokenStream {
        let Some(path) = self.0.clone() else {
            return quote_spanned!(span=> ::ratelimit_runtime);
        };
        let move_token = |mut token: TokenTree| {
            let at = match token.to_string().as_str() {
                "$crate" => span.resolved_at(token.span()),
                _ => span,
            };
            token.set_span(at);
            token
        };
        path.into_iter().map(move_token).collect()
    }
}

/// `charge(rule, key, cost)`, or `{ let key = key(&(seller_id)); charge(rule, key, cost) }`
fn charge(rule: &Rule, runtime: &Runtime) -> TokenStream {
    let krate = &runtime.path();
    let prefix = &rule.prefix;
    // Each value of the user's in a statement of its own: the next may lock what this one has locked.
    let mut values = hygienic!();
    let mut value = |name: &str, function: &str, expr: &Expr, more: Option<TokenStream>| {
        let call = call_on(runtime, function, expr, more);
        let name = Ident::new(name, Span::mixed_site());
        values.extend(hygienic!(let #name = #call;));
        hygienic!(#name)
    };
    let charged = match &rule.count {
        Number::Literal(..) | Number::Const(_) => {
            let count = rule.count.to_const();
            constant(&rule.counted, krate, |name, period| hygienic!(#krate::__private::#name(#prefix, #count, #period)))
        }
        Number::Other(count) => {
            let count = value("count", "count", count, None);
            let constant = constant(&rule.counted, krate, |name, period| {
                let name = format_ident!("{name}_without_count");
                hygienic!(#krate::__private::#name(#prefix, #period))
            });
            hygienic!(#krate::__private::with_count(#constant, #count))
        }
    };
    let key = match (&rule.key, &rule.missing_key) {
        (None, _) => hygienic!(#krate::__private::no_key()),
        (Some(key), None) => value("key", "key", key, Some(hygienic!())),
        (Some(key), Some(word)) => {
            value("key", "optional_key", key, Some(hygienic!(, #krate::__private::OnMissingKey::#word)))
        }
    };
    let mut number = |number: &Number| match number {
        Number::Literal(number, span) => value::integer(*number, *span),
        Number::Const(expr) | Number::Other(expr) => value("cost", "cost", expr, None),
    };
    let charge = match rule.cost() {
        None => hygienic!(#krate::__private::charge(#charged, #key, 1)),
        Some(Cost::Number(cost)) => {
            let cost = number(cost);
            hygienic!(#krate::__private::charge(#charged, #key, #cost))
        }
        Some(Cost::Settled { max, .. }) => {
            let max = number(max);
            hygienic!(#krate::__private::charge_settled(#charged, #key, #max))
        }
        Some(Cost::Elapsed { max, .. }) => {
            let max = match max {
                None => hygienic!(::core::option::Option::None),
                Some((max, span)) => {
                    let max = value::integer(*max, *span);
                    hygienic!(::core::option::Option::Some(#max))
                }
            };
            hygienic!(#krate::__private::charge_elapsed(#charged, #key, #max))
        }
    };
    if values.is_empty() { charge } else { hygienic!({ #values #charge }) }
}

/// The rule in a `const` block: `plain` makes it of the function's name and its last arguments.
fn constant(counted: &Counted, krate: &TokenStream, plain: impl Fn(Ident, TokenStream) -> TokenStream) -> TokenStream {
    let name = |name| Ident::new(name, Span::mixed_site());
    let rule = match counted {
        Counted::Concurrently { lease } => {
            let lease = value::integer(*lease, Span::mixed_site());
            plain(name("concurrent"), lease)
        }
        Counted::PerTime(per_time) => {
            let PerTime { ttl, unit, algorithm, prefetch, shadow, denial_cache, .. } = &**per_time;
            let unit = value::integer(*unit, Span::mixed_site());
            let mut rule = with_algorithm(&plain(name("rule"), hygienic!(#ttl, #unit)), algorithm, krate);
            if let Some(permits) = prefetch.as_ref().map(Number::to_const) {
                rule = hygienic!(#krate::__private::prefetch(#rule, #permits));
            }
            let cache = (!denial_cache).then(|| hygienic!(.with_denial_cache(false)));
            let shadow = shadow.then(|| hygienic!(.with_shadow(true)));
            hygienic!(#rule #cache #shadow)
        }
    };
    hygienic!(const { &#rule })
}

fn with_algorithm(rule: &TokenStream, algorithm: &Algorithm, krate: &TokenStream) -> TokenStream {
    match algorithm {
        Algorithm::FixedWindow => rule.clone(),
        Algorithm::Aligned(align) => hygienic!(#rule.with_algorithm(#krate::Algorithm::FixedWindow { align: #align })),
        Algorithm::SlidingLog => hygienic!(#rule.with_algorithm(#krate::Algorithm::SlidingLog)),
        Algorithm::SlidingWindow { buckets } => {
            let buckets = buckets.to_const();
            hygienic!(#krate::__private::sliding_window(#rule, #buckets))
        }
        Algorithm::TokenBucket { burst: None, refill } => {
            hygienic!(#krate::__private::token_bucket_of_count(#rule, #krate::Refill::#refill))
        }
        Algorithm::TokenBucket { burst: Some(burst), refill } => {
            let burst = burst.to_const();
            hygienic!(#krate::__private::token_bucket(#rule, #burst, #krate::Refill::#refill))
        }
        Algorithm::LeakyBucket { queue } => {
            let queue = queue.to_const();
            hygienic!(#krate::__private::leaky_bucket(#rule, #queue))
        }
    }
}

/// `name(expr)`, or with more arguments `name(&(expr), more)`, where errors are drawn at `expr`.
fn call_on(runtime: &Runtime, name: &str, expr: &Expr, more: Option<TokenStream>) -> TokenStream {
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

/// `(a, b)` as `(&(a), &(b))`, so that a tuple made for the key moves nothing into it.
fn borrow_parts(expr: &Expr) -> TokenStream {
    let Expr::Tuple(tuple) = expr else { return expr.to_token_stream() };
    let parts = tuple.elems.iter().map(|part| {
        let (start, end) = ends(part);
        let part = parenthesize(borrow_parts(part), end);
        quote_spanned!(start=> &#part,)
    });
    let mut group = Group::new(Delimiter::Parenthesis, parts.collect());
    group.set_span(tuple.paren_token.span.join());
    group.into_token_stream()
}

fn call(krate: &TokenStream, settings: &Settings) -> TokenStream {
    let waits = |on_limit: &Option<(Ident, OnLimit)>, (wait, wait_at_most): (&str, &str)| match on_limit {
        Some((_, OnLimit::Wait)) => {
            let wait = Ident::new(wait, Span::mixed_site());
            hygienic!(.#wait())
        }
        Some((_, OnLimit::WaitAtMost(milliseconds))) => {
            let milliseconds = value::integer(*milliseconds, Span::mixed_site());
            let wait_at_most = Ident::new(wait_at_most, Span::mixed_site());
            hygienic!(.#wait_at_most(#milliseconds))
        }
        _ => hygienic!(),
    };
    let for_limit = waits(&settings.on_limit, ("wait", "wait_at_most"));
    let for_place = waits(&settings.on_busy, ("wait_for_place", "wait_for_place_at_most"));
    let store = settings.on_store_error.as_ref();
    let store = store.map(|(_, word)| hygienic!(.on_store_error(#krate::OnStoreError::#word)));
    hygienic!(const { #krate::__private::Call::new() #for_limit #for_place #store })
}

/// What becomes of a call that is `refused`. If it takes a place, the place may be what it is refused for.
fn refusal(runtime: &Runtime, settings: &Settings, places: bool, (start, end): (Span, Span)) -> TokenStream {
    let krate = runtime.path();
    let answer = |on_limit: &Option<(Ident, OnLimit)>, condition: TokenStream| {
        let Some((_, OnLimit::Return { word, expr })) = on_limit else { return hygienic!() };
        // The user's name for the error, which the expression can see.
        let visible = Ident::new("refused", word.span());
        hygienic! {
            if #condition {
                let #visible = refused;
                let _ = &#visible;
                return #expr;
            }
        }
    };
    let busy = answer(&settings.on_busy, hygienic!(#krate::__private::fits_when_released(&refused)));
    let not_busy = places.then(|| hygienic!(&& !#krate::__private::fits_when_released(&refused)));
    let over_limit = answer(&settings.on_limit, hygienic!(#krate::__private::over_limit(&refused) #not_busy));
    // All of the call lies at the returned type: where a type can't say that a call was refused,
    // this is where the error belongs.
    let krate = runtime.at(start);
    let path = quote_spanned!(start=> #krate::FromRefusal);
    let function = quote_spanned!(end=> ::from_refusal(refused));
    hygienic! {
        #busy
        #over_limit
        return #path #function;
    }
}
