//! Expands an attribute: joins it with those beside it, and inserts the check into a function or
//! into each method of an `impl` block.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Attribute, Ident, Meta};

use crate::args::{
    self, CallArguments, Exclusive, Given, LimitAttribute, ParsedAttribute, PermitVariable, RuleSource, SETTLED_NEEDS,
};
use crate::errors::Errors;
use crate::future::{rebound_names, unpacked_names};
use crate::generate::GeneratedCheck;
use crate::item::{AnnotatedItem, Function, ImplBlock, InsertionPoint, Member};
use crate::kind::AttributeKind;
use crate::names::find_name;

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
    // The item is emitted even with errors, so that rustc reports no missing item and editors work.
    // It comes first since editors highlight the first occurrence of a token.
    let errors = errors.into_compile_errors();
    quote!(#item #errors)
}

/// Limits the function. With errors, it only loses the joined attributes.
fn expand_function(kind: AttributeKind, own: ParsedAttribute, function: &mut Function, errors: &mut Errors) {
    let mut attrs = vec![own];
    attrs.extend(take_siblings(kind, &mut function.attrs, errors));
    let (limits, blocking) = only_limits(attrs, errors);
    check_exclusive(&limits, limits.len() > 1, errors);
    let mut call = CallArguments::default().merge_all(&limits, errors);
    call.blocking = call.blocking.or(blocking);
    let limits: Vec<_> = limits.iter().collect();
    check_counters(&limits, 0, errors);
    check_settled(&limits, &call, errors);
    check_bans(limits.iter().copied(), call.waits(), errors);
    check_permit(&call, function, errors);
    if let Some(point) = insertion_point(kind, function, &limits, &call, errors)
        && errors.is_empty()
    {
        let check = GeneratedCheck::new(&limits, &call, function);
        insert(&check, point, function);
    }
}

// Input:
//     async fn f(..) -> .. { body }
// Output:
//     async fn f(..) -> .. { check { body } }
fn insert(check: &GeneratedCheck, point: InsertionPoint, function: &mut Function) {
    function.wrap_body(point, |body| check.around(body));
}

/// Limits each async method. With errors, block and methods only lose the joined attributes.
fn expand_impl(kind: AttributeKind, own: ParsedAttribute, block: &mut ImplBlock, errors: &mut Errors) {
    let mut attrs = vec![own];
    attrs.extend(take_siblings(kind, &mut block.attrs, errors));
    let (all, _) = only_limits(attrs, errors);
    let mut call = CallArguments::default().merge_all(&all, errors);
    if let Some(Given { name, .. }) = call.blocking.take() {
        errors.add(name.span(), "the limit of an `impl` block covers its async methods: write `blocking` on a method");
    }
    check_counters(&all.iter().collect::<Vec<_>>(), 0, errors);
    let (mut any, mut skipped, mut stacked, mut waits) = (false, false, all.len() > 1, false);
    let mut checked = Vec::new();
    for member in &mut block.members {
        let Member::Function(function) = member else {
            continue;
        };
        let mut attrs = take_siblings(kind, &mut function.attrs, errors);
        let skip = attrs.iter().position(|attr| matches!(attr, ParsedAttribute::Skip(_)));
        if let Some(ParsedAttribute::Skip(word)) = skip.map(|at| attrs.swap_remove(at)) {
            skipped = true;
            if !attrs.is_empty() {
                let message = "`skip` and another rate limit on one method contradict each other: remove one";
                errors.add(word.span(), message);
            }
            continue;
        }
        if attrs.is_empty() && !function.is_async() {
            if function.may_return_future() {
                let message = format!(
                    "this method returns a value that is made of an async block, and may be a future: write #[{}(skip)], or end the method in the block or in `Box::pin` of it",
                    kind.name()
                );
                errors.add(function.name().span(), message);
            }
            continue;
        }
        any = true;
        let (own, blocking) = only_limits(attrs, errors);
        stacked |= !own.is_empty();
        check_exclusive(&own, !all.is_empty() || own.len() > 1, errors);
        let mut call = call.clone().merge_all(&own, errors);
        call.blocking = call.blocking.or(blocking);
        let limits: Vec<_> = all.iter().chain(&own).collect();
        check_counters(&limits, all.len(), errors);
        check_settled(&limits, &call, errors);
        check_bans(own.iter(), call.waits(), errors);
        waits |= call.waits();
        check_permit(&call, function, errors);
        if let Some(point) = insertion_point(kind, function, &limits, &call, errors)
            && errors.is_empty()
        {
            let check = GeneratedCheck::new(&limits, &call, function);
            checked.push((function, check, point));
        }
    }
    check_exclusive(&all, stacked, errors);
    check_bans(all.iter(), waits, errors);
    if !any {
        let message = if skipped {
            "every async function of this `impl` block is skipped: nothing is limited"
        } else {
            "no async function in this `impl` block: nothing to limit"
        };
        errors.add(block.keyword, message);
    }
    if errors.is_empty() {
        for (function, check, point) in checked {
            insert(&check, point, function);
        }
    }
}

/// Removes the rate limits beside the expanding one. They are joined into one decision.
fn take_siblings(expanding: AttributeKind, attrs: &mut Vec<Attribute>, errors: &mut Errors) -> Vec<ParsedAttribute> {
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
                ParsedAttribute::Invalid(None)
            }
        };
        if let ParsedAttribute::Limit(limit) = &mut sibling
            && kind != expanding
        {
            limit.joined = Some(attr.path().clone());
        }
        siblings.push(sibling);
        false
    });
    siblings
}

/// The limits, and the word `blocking` of an attribute with errors.
fn only_limits(attrs: Vec<ParsedAttribute>, errors: &mut Errors) -> (Vec<LimitAttribute>, Option<Given<Ident>>) {
    let (mut limits, mut blocking) = (Vec::new(), None);
    for attr in attrs {
        match attr {
            ParsedAttribute::Invalid(word) => blocking = blocking.or(word),
            ParsedAttribute::Limit(limit) => limits.push(*limit),
            ParsedAttribute::Skip(word) => {
                let message = "`skip` belongs on a method of an `impl` block that is limited itself";
                errors.add(word.span(), message);
            }
        }
    }
    (limits, blocking)
}

/// Reports words that allow no second limit, if there is one.
fn check_exclusive(limits: &[LimitAttribute], stacked: bool, errors: &mut Errors) {
    for Exclusive { span, word } in limits.iter().flat_map(|limit| &limit.exclusive).filter(|_| stacked) {
        errors.add(*span, format!("`{word}` stands alone: a function with it has no second rate limit"));
    }
}

/// Reports bans of a call that waits for its limit.
fn check_bans<'a>(limits: impl Iterator<Item = &'a LimitAttribute>, waits: bool, errors: &mut Errors) {
    for at in limits.filter(|_| waits).filter_map(|limit| limit.ban) {
        errors.add(at, "`ban` refuses, and `on_limit = Wait` waits: remove one of them");
    }
}

/// Reports limits whose counter is that of an earlier limit of the function. The first `checked`
/// limits were compared with each other before.
fn check_counters(limits: &[&LimitAttribute], checked: usize, errors: &mut Errors) {
    if limits.len() < 2 || limits.iter().any(|limit| !limit.exclusive.is_empty()) {
        return;
    }
    let counters: Vec<_> = limits.iter().map(|limit| limit.rule.counter()).collect();
    for (at, limit) in limits.iter().enumerate().skip(checked) {
        if counters[..at].contains(&counters[at]) {
            let (named, fix) = match &limit.rule.source {
                RuleSource::Constant(rule) => (rule.to_token_stream(), "rule"),
                RuleSource::Arguments(fields) => (fields.prefix.clone(), "prefix"),
            };
            let message = format!(
                "a limit above has the same counter, which each call would charge twice: give this one another `{fix}`"
            );
            errors.push(syn::Error::new_spanned(named, message));
        }
    }
}

/// Reports `Settled` without a closure in any attribute of the call, and without a permit.
fn check_settled(limits: &[&LimitAttribute], call: &CallArguments, errors: &mut Errors) {
    if let Some(word) = limits.iter().find_map(|limit| limit.rule.settled())
        && call.settled.is_none()
        && call.permit.is_none()
        && errors.is_empty()
    {
        errors.add(word, SETTLED_NEEDS);
    }
}

/// Reports a permit with the name of an argument, which the body could not use.
fn check_permit(call: &CallArguments, function: &Function, errors: &mut Errors) {
    if let Some(Given { value: PermitVariable { name: permit, .. }, .. }) = &call.permit
        && function.argument_names().contains(permit)
    {
        let message = format!("`permit = {permit}` hides the argument `{permit}` from the body: choose another name");
        errors.add(permit.span(), message);
    }
}

/// The point of the check. Reports names in the limits that have no value there.
fn insertion_point(
    kind: AttributeKind,
    function: &Function,
    limits: &[&LimitAttribute],
    call: &CallArguments,
    errors: &mut Errors,
) -> Option<InsertionPoint> {
    let blocking = call.blocking.as_ref().map(|blocking| &blocking.name);
    let mut point = errors.keep(function.insertion_point(kind, blocking))?;
    let (unpacked, mut rebound) = match &mut point {
        InsertionPoint::Start => Default::default(),
        InsertionPoint::Block(statements) => (unpacked_names(statements), rebound_names(statements)),
    };
    let arguments = function.argument_names();
    rebound.retain(|name| arguments.contains(name));
    for expr in limits.iter().flat_map(|limit| limit.rule.exprs()).chain(call.exprs()) {
        if let Some(name) = find_name(expr.into_token_stream(), &unpacked) {
            let message = format!(
                "`{name}` has no value yet when the limit is checked, #[async_trait] takes the argument apart later: give the argument a name and take it apart in the body"
            );
            errors.add(name.span(), message);
        }
        if let Some(name) = find_name(expr.into_token_stream(), &rebound) {
            let message = format!(
                "`{name}` is not the argument where the limit is checked, in the async block: a `let` in front of it has the same name. Give that variable another name"
            );
            errors.add(name.span(), message);
        }
    }
    Some(point)
}

/// Removes the invisible group around an item that a macro passes on.
fn ungroup(item: TokenStream) -> TokenStream {
    let mut tokens = item.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Group(group)), None) if group.delimiter() == Delimiter::None => ungroup(group.stream()),
        _ => item,
    }
}
