//! Generates the check: statements that come before the user's body.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::Expr;

use crate::args::{Algorithm, Limit, OnLimit, Settings};
use crate::function::ends;
use crate::value::{self, Number};

/// Tokens of ours: the user's code can't see the names among them, nor they its.
macro_rules! ours {
    ($($tokens:tt)*) => { quote_spanned!(Span::mixed_site()=> $($tokens)*) };
}

// Output:
//     let deciding = limit_request_per_time(None, const { Call::new() }, {
//         let key = key(&(seller_id));
//         charge(const { rule("item", 100, 1, 60_000) }, key, 1)
//     });
//     if let Err(refused) = deciding.await {
//         return FromRefusal::from_refusal(refused);
//     }
//
// What is awaited is made in a statement of its own: what a key expression borrows, say a guard, is
// gone before the await, and the future stays `Send`.
pub(crate) fn prologue(limits: &[&Limit], settings: &Settings, returned: (Span, Span)) -> TokenStream {
    let path = settings.krate.as_ref().map(|(_, path)| path);
    let runtime = &Runtime(path.map(ToTokens::to_token_stream));
    let krate = runtime.path();
    let charges: Vec<_> = limits.iter().map(|limit| charge(limit, runtime)).collect();
    let call = call(&krate, settings);
    let limit = |limiter| match &charges[..] {
        [charge] => ours!(#krate::__private::limit_request_per_time(#limiter, #call, #charge)),
        charges => ours!(#krate::__private::limit_requests_per_time(#limiter, #call, [#(#charges),*])),
    };
    let deciding = match &settings.limiter {
        None => limit(ours!(::core::option::Option::None)),
        Some((_, expr)) => {
            let limit = limit(ours!(::core::option::Option::Some(limiter)));
            ours! {{
                let limiter: &#krate::Limiter = #expr;
                #limit
            }}
        }
    };
    let refusal = refusal(runtime, settings, returned);
    match &settings.permit {
        None => ours! {
            let deciding = #deciding;
            if let ::core::result::Result::Err(refused) = deciding.await {
                #refusal
            }
        },
        Some((_, permit)) => ours! {
            let deciding = #deciding;
            let #permit = match deciding.await {
                ::core::result::Result::Ok(permit) => permit,
                ::core::result::Result::Err(refused) => {
                    #refusal
                }
            };
        },
    }
}

/// The path of the runtime.
struct Runtime(Option<TokenStream>);

impl Runtime {
    fn path(&self) -> TokenStream {
        self.0.clone().unwrap_or_else(|| ours!(::ratelimit_runtime))
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
fn charge(limit: &Limit, runtime: &Runtime) -> TokenStream {
    let krate = &runtime.path();
    let rule = &limit.rule;
    let (prefix, ttl) = (&rule.prefix, &rule.ttl);
    let unit = value::integer(rule.unit, Span::mixed_site());
    let constant = |plain: &TokenStream| {
        let cache = (!rule.denial_cache).then(|| ours!(.denial_cache(false)));
        let shadow = rule.shadow.then(|| ours!(.shadow(true)));
        let mut counted = with_algorithm(plain, &rule.algorithm, krate);
        if let Some(lease) = rule.lease.as_ref().map(Number::to_const) {
            counted = ours!(#krate::__private::lease(#counted, #lease));
        }
        ours!(const { #counted #cache #shadow })
    };
    let counted = |count: &TokenStream| constant(&ours!(#krate::__private::rule(#prefix, #count, #ttl, #unit)));
    // Each value of the user's in a statement of its own: the next may lock what this one has locked.
    let mut values = ours!();
    let charged = match &rule.count {
        Number::Literal(..) | Number::Const(_) => counted(&rule.count.to_const()),
        Number::Other(count) => {
            let count = call_on(runtime, "count", count, None);
            values.extend(ours!(let count = #count;));
            let constant = constant(&ours!(#krate::__private::rule_without_count(#prefix, #ttl, #unit)));
            ours!(#krate::__private::with_count(#constant, count))
        }
    };
    let key = match &rule.key {
        None => ours!(#krate::__private::no_key()),
        Some(key) => {
            let missing = rule.missing_key.as_ref();
            let missing = missing.map(|word| ours!(, #krate::__private::MissingKey::#word));
            let name = if missing.is_some() { "optional_key" } else { "key" };
            let key = call_on(runtime, name, key, Some(missing.unwrap_or_default()));
            values.extend(ours!(let key = #key;));
            ours!(key)
        }
    };
    let cost = match &rule.cost {
        Number::Literal(cost, span) => value::integer(*cost, *span),
        Number::Const(cost) | Number::Other(cost) => {
            let cost = call_on(runtime, "cost", cost, None);
            values.extend(ours!(let cost = #cost;));
            ours!(cost)
        }
    };
    let charge = ours!(#krate::__private::charge(#charged, #key, #cost));
    if values.is_empty() { charge } else { ours!({ #values #charge }) }
}

fn with_algorithm(rule: &TokenStream, algorithm: &Algorithm, krate: &TokenStream) -> TokenStream {
    match algorithm {
        Algorithm::FixedWindow => rule.clone(),
        Algorithm::Aligned(align) => ours!(#rule.algorithm(#krate::Algorithm::FixedWindow { align: #align })),
        Algorithm::SlidingLog => ours!(#rule.algorithm(#krate::Algorithm::SlidingLog)),
        Algorithm::SlidingWindow { buckets } => {
            let buckets = buckets.to_const();
            ours!(#krate::__private::sliding_window(#rule, #buckets))
        }
        Algorithm::TokenBucket { burst: None, refill } => {
            ours!(#krate::__private::token_bucket_of_count(#rule, #krate::Refill::#refill))
        }
        Algorithm::TokenBucket { burst: Some(burst), refill } => {
            let burst = burst.to_const();
            ours!(#krate::__private::token_bucket(#rule, #burst, #krate::Refill::#refill))
        }
        Algorithm::LeakyBucket { queue } => {
            let queue = queue.to_const();
            ours!(#krate::__private::leaky_bucket(#rule, #queue))
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

fn parenthesize(tokens: TokenStream, at: Span) -> Group {
    let mut group = Group::new(Delimiter::Parenthesis, tokens);
    group.set_span(at);
    group
}

fn call(krate: &TokenStream, settings: &Settings) -> TokenStream {
    let waits = match &settings.on_limit {
        Some((_, OnLimit::Wait)) => ours!(.wait()),
        Some((_, OnLimit::WaitAtMost(milliseconds))) => {
            let milliseconds = value::integer(*milliseconds, Span::mixed_site());
            ours!(.wait_at_most(#milliseconds))
        }
        _ => ours!(),
    };
    let store = settings.on_store_error.as_ref();
    let store = store.map(|(_, word)| ours!(.on_store_error(#krate::OnStoreError::#word)));
    ours!(const { #krate::__private::Call::new() #waits #store })
}

/// What becomes of a call that is `refused`.
fn refusal(runtime: &Runtime, settings: &Settings, (start, end): (Span, Span)) -> TokenStream {
    let krate = runtime.path();
    let mut returned = ours!();
    if let Some((_, OnLimit::Return { word, expr })) = &settings.on_limit {
        // The user's name for the error, which the expression can see.
        let visible = Ident::new("refused", word.span());
        returned = ours! {
            if #krate::__private::over_limit(&refused) {
                let #visible = refused;
                let _ = &#visible;
                return #expr;
            }
        };
    }
    // All of the call lies at the returned type: where a type can't say that a call was refused,
    // this is where the error belongs.
    let krate = runtime.at(start);
    let path = quote_spanned!(start=> #krate::FromRefusal);
    let function = quote_spanned!(end=> ::from_refusal(refused));
    ours! {
        #returned
        return #path #function;
    }
}
