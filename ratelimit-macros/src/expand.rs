//! Puts the check at the start of a function, or of each in an `impl` block.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{Attribute, Error, Meta};

use crate::args::{self, Algorithm, Attr, Limit, OnLimit, Settings};
use crate::errors::Errors;
use crate::function::{self, Function, Impl, Item, Member};
use crate::value::{self, Number};

const NAME: &str = "limit_request_per_time";

/// Tokens of ours: the user's code can't see the names among them, nor they its.
macro_rules! ours {
    ($($tokens:tt)*) => { quote::quote_spanned!(Span::mixed_site()=> $($tokens)*) };
}

pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let item = ungroup(item);
    let mut errors = Errors::default();
    let own = args::parse(args, Span::call_site(), &mut errors);
    let mut item = match syn::parse2(item.clone()) {
        Ok(item) => item,
        Err(error) => {
            errors.push(error);
            let errors = errors.into_compile_errors();
            return quote!(#item #errors);
        }
    };
    let limited = match &mut item {
        Item::Function(function) => expand_function(own, function, &mut errors).into_token_stream(),
        Item::Impl(block) => expand_impl(own, block, &mut errors).into_token_stream(),
    };
    if errors.is_empty() {
        return limited;
    }
    // The item stays, so that one mistake is one error and editors keep working; it stands first,
    // as editors take their colours from the first tokens they meet again.
    let errors = errors.into_compile_errors();
    quote!(#item #errors)
}

/// Both leave the item as it was, without the attributes beside this one, and return it limited.
fn expand_function(own: Option<Attr>, function: &mut Function, errors: &mut Errors) -> Function {
    let mut attrs = vec![own];
    attrs.extend(take_siblings(&mut function.attrs, errors));
    let limits = only_limits(attrs, errors);
    check_available(&limits, limits.len() > 1, errors);
    let settings = merge(Settings::default(), &limits, errors);
    let mut limited = function.clone();
    limit(
        &mut limited,
        &limits.iter().collect::<Vec<_>>(),
        &settings,
        errors,
    );
    limited
}

fn expand_impl(own: Option<Attr>, block: &mut Impl, errors: &mut Errors) -> Impl {
    let mut attrs = vec![own];
    attrs.extend(take_siblings(&mut block.attrs, errors));
    let all = only_limits(attrs, errors);
    check_available(&all, all.len() > 1, errors);
    let settings = merge(Settings::default(), &all, errors);
    let mut limited = block.clone();
    let (mut any, mut skipped) = (false, false);
    for (member, limited) in block.members.iter_mut().zip(&mut limited.members) {
        let (Member::Function(function), Member::Function(limited)) = (member, limited) else {
            continue;
        };
        let mut attrs = take_siblings(&mut function.attrs, errors);
        limited.attrs.clone_from(&function.attrs);
        if let Some(at) = attrs
            .iter()
            .position(|attr| matches!(attr, Some(Attr::Skip(_))))
            && let Some(Attr::Skip(word)) = attrs.swap_remove(at)
        {
            skipped = true;
            if !attrs.is_empty() {
                let message =
                    "`skip` and another rate limit on one method contradict each other: remove one";
                errors.add(word.span(), message);
            }
            continue;
        }
        if attrs.is_empty() && !function.is_async() {
            continue;
        }
        any = true;
        let own = only_limits(attrs, errors);
        check_available(&own, !all.is_empty() || own.len() > 1, errors);
        let settings = merge(settings.clone(), &own, errors);
        limit(
            limited,
            &all.iter().chain(&own).collect::<Vec<_>>(),
            &settings,
            errors,
        );
    }
    if !any {
        let message = if skipped {
            "every async function of this `impl` block is skipped: nothing is limited"
        } else {
            "no async function in this `impl` block: nothing to limit"
        };
        errors.add(block.keyword, message);
    }
    limited
}

/// Takes the attributes that stand beside the expanding one, to join them into one decision.
fn take_siblings(attrs: &mut Vec<Attribute>, errors: &mut Errors) -> Vec<Option<Attr>> {
    let mut siblings = Vec::new();
    attrs.retain(|attr| {
        let Some(name) = attr.path().segments.last().map(|last| &last.ident) else {
            return true;
        };
        if name == "limit_concurrent_requests" {
            let message = "`limit_concurrent_requests` is not available yet, leave it out";
            errors.add(name.span(), message);
        } else if name == NAME {
            siblings.push(match &attr.meta {
                Meta::Path(_) => args::parse(TokenStream::new(), name.span(), errors),
                Meta::List(list) => args::parse(list.tokens.clone(), name.span(), errors),
                Meta::NameValue(_) => {
                    let message =
                        "write the arguments in parentheses: #[limit_request_per_time(..)]";
                    errors.add(name.span(), message);
                    None
                }
            });
        } else {
            return true;
        }
        false
    });
    siblings
}

fn only_limits(attrs: Vec<Option<Attr>>, errors: &mut Errors) -> Vec<Limit> {
    let mut limits = Vec::new();
    for attr in attrs.into_iter().flatten() {
        match attr {
            Attr::Limit(limit) => limits.push(*limit),
            Attr::Skip(word) => {
                let message =
                    "`skip` belongs on a method of an `impl` block that is limited itself";
                errors.add(word.span(), message);
            }
        }
    }
    limits
}

fn check_available(limits: &[Limit], stacked: bool, errors: &mut Errors) {
    for later in limits.iter().flat_map(|limit| &limit.later) {
        errors.push(match later.alone {
            Some(word) if stacked => Error::new(
                later.span,
                format!("`{word}` stands alone: a function with it has no second rate limit"),
            ),
            _ => Error::new(later.span, &later.message),
        });
    }
}

fn limit(function: &mut Function, limits: &[&Limit], settings: &Settings, errors: &mut Errors) {
    let Some(mut place) = errors.keep(function.place()) else {
        return;
    };
    let unpacked = place.unpacked_names();
    for limit in limits {
        let rule = &limit.rule;
        let mut exprs: Vec<_> = rule.key.iter().collect();
        for number in [&rule.count, &rule.cost] {
            if let Number::Const(expr) | Number::Other(expr) = number {
                exprs.push(expr);
            }
        }
        for expr in exprs {
            if let Some(name) = function::find_name(expr.into_token_stream(), &unpacked) {
                let message = format!(
                    "`{name}` has no value yet when the limit is checked, #[async_trait] takes the argument apart later: give the argument a name and take it apart in the body"
                );
                errors.add(name.span(), message);
            }
        }
    }
    if errors.is_empty() {
        function.insert(&prologue(limits, settings, function.returned()), place);
    }
}

/// The settings of the whole call, each from the one attribute that gives it.
fn merge(mut merged: Settings, limits: &[Limit], errors: &mut Errors) -> Settings {
    for limit in limits {
        let Settings {
            limiter,
            on_limit,
            on_store_error,
            permit,
            krate,
        } = limit.settings.clone();
        once(&mut merged.limiter, limiter, errors);
        once(&mut merged.on_limit, on_limit, errors);
        once(&mut merged.on_store_error, on_store_error, errors);
        once(&mut merged.permit, permit, errors);
        match (&merged.krate, krate) {
            (None, krate) => merged.krate = krate,
            (Some((_, first)), Some((name, path))) if text(first) != text(&path) => {
                let message = "`crate` differs between the rate limits of one function: they share one runtime";
                errors.add(name.span(), message);
            }
            _ => {}
        }
    }
    merged
}

fn once<T>(slot: &mut Option<(Ident, T)>, given: Option<(Ident, T)>, errors: &mut Errors) {
    let Some((name, value)) = given else { return };
    if slot.is_some() {
        let message =
            format!("`{name}` holds for the whole call: give it on one of the stacked rate limits");
        errors.add(name.span(), message);
    } else {
        *slot = Some((name, value));
    }
}

fn text(tokens: &impl ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

// Output:
//     let charges = [charge(const { &rule("item", 100, 1, 60_000) }, key(&(seller_id)), 1)];
//     if let Err(refused) = limit_request_per_time(None, const { &Call::new() }, &charges).await {
//         return FromRefusal::from_refusal(refused);
//     }
//
// The charges are a statement of their own: what a key expression borrows, say a guard, is gone
// before the await, and the future stays `Send`.
fn prologue(limits: &[&Limit], settings: &Settings, returned: (Span, Span)) -> TokenStream {
    let krate = settings
        .krate
        .as_ref()
        .map(|(_, path)| path.to_token_stream());
    let krate = &krate.unwrap_or_else(|| ours!(::ratelimit_runtime));
    let mut lets = TokenStream::new();
    let mut limiter = ours!(::core::option::Option::None);
    if let Some((_, expr)) = &settings.limiter {
        lets.extend(ours!(let limiter: &#krate::Limiter = #expr;));
        limiter = ours!(::core::option::Option::Some(limiter));
    }
    let mut charges = TokenStream::new();
    for (i, limit) in limits.iter().enumerate() {
        let name = match i {
            0 => Ident::new("rule", Span::mixed_site()),
            _ => format_ident!("rule_{i}", span = Span::mixed_site()),
        };
        let charge = charge(limit, krate, &name, &mut lets);
        charges.extend(ours!(#charge,));
    }
    let call = call(krate, settings);
    let decision = ours! {
        #krate::__private::limit_request_per_time(#limiter, #call, &charges).await
    };
    let refusal = refusal(krate, settings, returned);
    let check = match &settings.permit {
        None => ours! {
            if let ::core::result::Result::Err(refused) = #decision {
                #refusal
            }
        },
        Some((_, permit)) => ours! {
            let #permit = match #decision {
                ::core::result::Result::Ok(permit) => permit,
                ::core::result::Result::Err(refused) => {
                    #refusal
                }
            };
        },
    };
    ours! {
        #lets
        let charges = [#charges];
        #check
    }
}

/// `charge(rule, key, cost)`
fn charge(limit: &Limit, krate: &TokenStream, name: &Ident, lets: &mut TokenStream) -> TokenStream {
    let rule = &limit.rule;
    let (prefix, ttl) = (&rule.prefix, &rule.ttl);
    let unit = value::integer(rule.unit, Span::mixed_site());
    let algorithm = match rule.algorithm {
        Algorithm::FixedWindow => TokenStream::new(),
        Algorithm::Aligned(align) => {
            ours!(.algorithm(#krate::Algorithm::FixedWindow { align: #align }))
        }
        Algorithm::SlidingLog => ours!(.algorithm(#krate::Algorithm::SlidingLog)),
    };
    let constant = |count: &TokenStream| ours!(const { &#krate::__private::rule(#prefix, #count, #ttl, #unit) #algorithm });
    let charged = match &rule.count {
        Number::Literal(count, span) => constant(&value::integer(*count, *span)),
        Number::Const(count) => constant(&count.to_token_stream()),
        Number::Other(count) => {
            let constant = constant(&ours!(1));
            let count = call_on(&ours!(#krate::__private::amount_count), count, None);
            lets.extend(ours!(let #name = #krate::__private::with_count(#constant, #count);));
            ours!(&#name)
        }
    };
    let key = match (&rule.key, &rule.missing_key) {
        (None, _) => ours!(#krate::__private::no_key()),
        (Some(key), None) => call_on(
            &ours!(#krate::__private::key),
            key,
            Some(TokenStream::new()),
        ),
        (Some(key), Some(missing)) => {
            let missing = Ident::new(&missing.to_string(), Span::mixed_site());
            let missing = ours!(, #krate::__private::MissingKey::#missing);
            call_on(&ours!(#krate::__private::optional_key), key, Some(missing))
        }
    };
    let cost = match &rule.cost {
        Number::Literal(cost, span) => value::integer(*cost, *span),
        Number::Const(cost) | Number::Other(cost) => {
            call_on(&ours!(#krate::__private::cost), cost, None)
        }
    };
    ours!(#krate::__private::charge(#charged, #key, #cost))
}

/// `path(expr)`, or with more arguments `path(&(expr), more)`, drawn at the expression by errors.
fn call_on(path: &TokenStream, expr: &syn::Expr, more: Option<TokenStream>) -> TokenStream {
    let (start, end) = function::ends(expr);
    let path = locate(path.clone(), start);
    let argument = match more {
        None => expr.to_token_stream(),
        Some(more) => {
            let borrow = locate(ours!(&), start);
            let expr = parenthesize(expr.to_token_stream(), end);
            ours!(#borrow #expr #more)
        }
    };
    let arguments = parenthesize(argument, end);
    ours!(#path #arguments)
}

fn parenthesize(tokens: TokenStream, at: Span) -> Group {
    let mut group = Group::new(Delimiter::Parenthesis, tokens);
    group.set_span(at.resolved_at(Span::mixed_site()));
    group
}

fn call(krate: &TokenStream, settings: &Settings) -> TokenStream {
    let waits = match &settings.on_limit {
        Some((_, OnLimit::Wait)) => ours!(.wait()),
        Some((_, OnLimit::WaitAtMost(milliseconds))) => {
            let milliseconds = value::integer(*milliseconds, Span::mixed_site());
            ours!(.wait_at_most(#milliseconds))
        }
        _ => TokenStream::new(),
    };
    let store = settings.on_store_error.as_ref().map(|(_, word)| {
        let word = Ident::new(&word.to_string(), Span::mixed_site());
        ours!(.on_store_error(#krate::OnStoreError::#word))
    });
    ours!(const { &#krate::__private::Call::new() #waits #store })
}

/// What becomes of a call that is `refused`.
fn refusal(krate: &TokenStream, settings: &Settings, (start, end): (Span, Span)) -> TokenStream {
    let returned = match &settings.on_limit {
        Some((_, OnLimit::Return { word, expr })) => {
            // The user's name for the error, which the expression can see.
            let visible = Ident::new("refused", word.span());
            ours! {
                if #krate::__private::over_limit(&refused) {
                    let #visible = refused;
                    let _ = &#visible;
                    return #expr;
                }
            }
        }
        _ => TokenStream::new(),
    };
    // All of the call lies at the returned type: where a type can't say that a call was refused,
    // this is where the error belongs.
    let path = locate(ours!(#krate::FromRefusal), start);
    let function = locate(ours!(::from_refusal(refused)), end);
    ours! {
        #returned
        return #path #function;
    }
}

/// Moves tokens to where an error should be drawn; they still resolve where they were written.
fn locate(tokens: TokenStream, at: Span) -> TokenStream {
    let move_token = |mut token: TokenTree| {
        if let TokenTree::Group(group) = &token {
            let mut moved = Group::new(group.delimiter(), locate(group.stream(), at));
            moved.set_span(group.span());
            token = moved.into();
        }
        token.set_span(at.resolved_at(token.span()));
        token
    };
    tokens.into_iter().map(move_token).collect()
}

/// An item without the invisible group around what came through a macro.
fn ungroup(item: TokenStream) -> TokenStream {
    let mut tokens = item.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Group(group)), None) if group.delimiter() == Delimiter::None => {
            ungroup(group.stream())
        }
        _ => item,
    }
}
