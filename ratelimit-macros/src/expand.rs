//! Puts the check at the start of a function, or of each in an `impl` block.

use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Attribute, Meta};

use crate::args::{self, Alone, Attr, Limit, SETTLED_NEEDS, Settings};
use crate::errors::Errors;
use crate::future::{find_name, unpacked_names};
use crate::generate::GeneratedCheck;
use crate::item::{AnnotatedItem, Function, ImplBlock, InsertionPoint, Member};
use crate::kind::AttributeKind;

pub(crate) fn expand(kind: AttributeKind, args: TokenStream, item: TokenStream) -> TokenStream {
    let item = ungroup(item);
    let mut errors = Errors::default();
    let own = args::parse(kind, args, Span::call_site(), &mut errors);
    let mut item = match AnnotatedItem::parse(item.clone()) {
        Ok(item) => item,
        Err(error) => {
            errors.push(error);
            let errors = errors.into_compile_errors();
            return quote!(#item #errors);
        }
    };
    match &mut item {
        AnnotatedItem::Function(function) => expand_function(kind, own, function, &mut errors),
        AnnotatedItem::Impl(block) => expand_impl(kind, own, block, &mut errors),
    }
    // The item stays, so that one mistake is one error and editors keep working; it stands first,
    // as editors take their colours from the first tokens they meet again.
    let errors = errors.into_compile_errors();
    quote!(#item #errors)
}

/// Limits the function, or takes nothing from it but the attributes beside this one.
fn expand_function(kind: AttributeKind, own: Option<Attr>, function: &mut Function, errors: &mut Errors) {
    let mut attrs = vec![own];
    attrs.extend(take_siblings(kind, &mut function.attrs, errors));
    let limits = only_limits(attrs, errors);
    check_alone(&limits, limits.len() > 1, errors);
    let settings = merge(Settings::default(), &limits, errors);
    let limits: Vec<_> = limits.iter().collect();
    check_settled(&limits, &settings, errors);
    if let Some(place) = check_place(kind, function, &limits, errors)
        && errors.is_empty()
    {
        let check = GeneratedCheck::new(&limits, &settings, function);
        insert(&check, place, function);
    }
}

// Input:
//     async fn f(..) -> .. { body }
// Output:
//     async fn f(..) -> .. { check { body } }
fn insert(check: &GeneratedCheck, point: InsertionPoint, function: &mut Function) {
    function.wrap_body(point, |body| check.around(body));
}

/// Limits each async method, or takes nothing from the block but attributes, too.
fn expand_impl(kind: AttributeKind, own: Option<Attr>, block: &mut ImplBlock, errors: &mut Errors) {
    let mut attrs = vec![own];
    attrs.extend(take_siblings(kind, &mut block.attrs, errors));
    let all = only_limits(attrs, errors);
    let settings = merge(Settings::default(), &all, errors);
    let (mut any, mut skipped, mut stacked) = (false, false, all.len() > 1);
    let mut checked = Vec::new();
    for member in &mut block.members {
        let Member::Function(function) = member else {
            continue;
        };
        let mut attrs = take_siblings(kind, &mut function.attrs, errors);
        let skip = attrs.iter().position(|attr| matches!(attr, Some(Attr::Skip(_))));
        if let Some(Some(Attr::Skip(word))) = skip.map(|at| attrs.swap_remove(at)) {
            skipped = true;
            if !attrs.is_empty() {
                let message = "`skip` and another rate limit on one method contradict each other: remove one";
                errors.add(word.span(), message);
            }
            continue;
        }
        if attrs.is_empty() && !function.is_async() {
            continue;
        }
        any = true;
        let own = only_limits(attrs, errors);
        stacked |= !own.is_empty();
        check_alone(&own, !all.is_empty() || own.len() > 1, errors);
        let settings = merge(settings.clone(), &own, errors);
        let limits: Vec<_> = all.iter().chain(&own).collect();
        check_settled(&limits, &settings, errors);
        if let Some(place) = check_place(kind, function, &limits, errors)
            && errors.is_empty()
        {
            let check = GeneratedCheck::new(&limits, &settings, function);
            checked.push((function, check, place));
        }
    }
    check_alone(&all, stacked, errors);
    if !any {
        let message = if skipped {
            "every async function of this `impl` block is skipped: nothing is limited"
        } else {
            "no async function in this `impl` block: nothing to limit"
        };
        errors.add(block.keyword, message);
    }
    if errors.is_empty() {
        for (function, check, place) in checked {
            insert(&check, place, function);
        }
    }
}

/// Takes the attributes that stand beside the expanding one, to join them into one decision.
fn take_siblings(expanding: AttributeKind, attrs: &mut Vec<Attribute>, errors: &mut Errors) -> Vec<Option<Attr>> {
    let mut siblings = Vec::new();
    attrs.retain(|attr| {
        let Some(name) = attr.path().segments.last().map(|last| &last.ident) else {
            return true;
        };
        let Some(kind) = AttributeKind::ALL.into_iter().find(|kind| name == kind.name()) else {
            return true;
        };
        let mut sibling = match &attr.meta {
            Meta::Path(_) => args::parse(kind, TokenStream::new(), name.span(), errors),
            Meta::List(list) => args::parse(kind, list.tokens.clone(), name.span(), errors),
            Meta::NameValue(_) => {
                errors.add(name.span(), format!("write the arguments in parentheses: #[{}(..)]", kind.name()));
                None
            }
        };
        if let Some(Attr::Limit(limit)) = &mut sibling
            && kind != expanding
        {
            limit.joined = Some(attr.path().clone());
        }
        siblings.push(sibling);
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
                let message = "`skip` belongs on a method of an `impl` block that is limited itself";
                errors.add(word.span(), message);
            }
        }
    }
    limits
}

/// Whether there is nothing beside what can have nothing beside it.
fn check_alone(limits: &[Limit], stacked: bool, errors: &mut Errors) {
    for Alone { span, word } in limits.iter().flat_map(|limit| &limit.alone).filter(|_| stacked) {
        errors.add(*span, format!("`{word}` stands alone: a function with it has no second rate limit"));
    }
}

/// Whether somebody says what was used, where the outcome is to say it.
fn check_settled(limits: &[&Limit], settings: &Settings, errors: &mut Errors) {
    if let Some(word) = limits.iter().find_map(|limit| limit.rule.settled())
        && settings.settled.is_none()
        && errors.is_empty()
    {
        errors.add(word, SETTLED_NEEDS);
    }
}

/// Where the limits are checked, if all their values are there already.
fn check_place(
    kind: AttributeKind,
    function: &Function,
    limits: &[&Limit],
    errors: &mut Errors,
) -> Option<InsertionPoint> {
    let mut place = errors.keep(function.insertion_point(kind))?;
    let unpacked = match &mut place {
        InsertionPoint::Start => Vec::new(),
        InsertionPoint::Block(statements) => unpacked_names(statements),
    };
    for limit in limits {
        for expr in limit.rule.exprs() {
            if let Some(name) = find_name(expr.into_token_stream(), &unpacked) {
                let message = format!(
                    "`{name}` has no value yet when the limit is checked, #[async_trait] takes the argument apart later: give the argument a name and take it apart in the body"
                );
                errors.add(name.span(), message);
            }
        }
    }
    Some(place)
}

/// The settings of the whole call, each from the one attribute that gives it.
fn merge(mut merged: Settings, limits: &[Limit], errors: &mut Errors) -> Settings {
    for limit in limits {
        let given = limit.settings.clone();
        let named = given.permit.as_ref().map(|(name, _)| name.span());
        let settled = given.settled.as_ref().map(|(word, _)| word.span());
        once(&mut merged.limiter, given.limiter, WHOLE, errors);
        once(&mut merged.on_limit, given.on_limit, "all #[limit_request_per_time] of a call", errors);
        once(&mut merged.on_busy, given.on_busy, "all #[limit_concurrent_requests] of a call", errors);
        once(&mut merged.on_store_error, given.on_store_error, WHOLE, errors);
        once(&mut merged.permit, given.permit, WHOLE, errors);
        match given.settled {
            Some((word, _)) if merged.settled.is_some() => {
                let message =
                    "what was used is said once for the whole call: leave out this closure, Settled(max = ..)";
                errors.add(word.span(), message);
            }
            given => merged.settled = merged.settled.or(given),
        }
        if let (Some(at), Some(_), Some(_)) = (named.or(settled), &merged.permit, &merged.settled) {
            let message =
                "`permit` and `Settled` exclude each other: the closure settles the permit, leave `permit` out";
            errors.add(at, message);
        }
        match (&merged.krate, given.krate) {
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

const WHOLE: &str = "the whole call";

fn once<T>(slot: &mut Option<(Ident, T)>, given: Option<(Ident, T)>, whole: &str, errors: &mut Errors) {
    let Some((name, value)) = given else { return };
    if slot.is_some() {
        let message = format!("`{name}` holds for {whole}: give it on one of the stacked rate limits");
        errors.add(name.span(), message);
    } else {
        *slot = Some((name, value));
    }
}

fn text(tokens: &impl ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

/// An item without the invisible group around what came through a macro.
fn ungroup(item: TokenStream) -> TokenStream {
    let mut tokens = item.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Group(group)), None) if group.delimiter() == Delimiter::None => ungroup(group.stream()),
        _ => item,
    }
}
