//! The names that patterns bind, and those that an expression uses.

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::{
    Expr, Pat, PatIdent, PatParen, PatReference, PatSlice, PatTuple, PatTupleStruct, PatType, Token, Type, UnOp,
};

use crate::tokens::is_punct;

/// `R` of a closure `|outcome: &R| ..`.
pub(crate) fn parameter_type(closure: &Expr) -> Option<&Type> {
    let Expr::Closure(closure) = closure else { return None };
    let Some(Pat::Type(parameter)) = closure.inputs.first() else { return None };
    let Type::Reference(reference) = &*parameter.ty else { return None };
    Some(&*reference.elem).filter(|ty| !matches!(ty, Type::Infer(_)))
}

/// Adds the names that a `let` gives to other values than their own.
pub(crate) fn rebind(pat: &Pat, ty: Option<&Type>, init: Option<&Expr>, names: &mut Vec<Ident>) {
    match (pat, init) {
        (Pat::Type(PatType { pat, ty, .. }), _) => rebind(pat, Some(ty), init, names),
        (Pat::Reference(PatReference { pat, .. }) | Pat::Paren(PatParen { pat, .. }), _) => {
            rebind(pat, ty, init, names);
        }
        (Pat::Tuple(pat), Some(Expr::Tuple(init))) if pat.elems.len() == init.elems.len() => {
            for (at, (pat, init)) in pat.elems.iter().zip(&init.elems).enumerate() {
                let ty = if let Some(Type::Tuple(types)) = ty { types.elems.get(at) } else { None };
                rebind(pat, ty, Some(init), names);
            }
        }
        _ => {
            let mut bound = Vec::new();
            bind(pat, &mut bound);
            // A pattern such as `Id(id)` takes a part of the value. Nothing tells here which value `into` makes for
            // another type.
            let is_whole = matches!(pat, Pat::Ident(PatIdent { subpat: None, .. }))
                && !(init.is_some_and(is_into) && ty.is_some_and(|ty| !is_same_value(ty)));
            bound.retain(|name| !(is_whole && init.is_some_and(|init| is_copy_of(init, name))));
            names.extend(bound);
        }
    }
}

fn is_into(expr: &Expr) -> bool {
    match expr {
        Expr::Paren(paren) => is_into(&paren.expr),
        Expr::Group(group) => is_into(&group.expr),
        Expr::MethodCall(call) => call.method == "into",
        _ => false,
    }
}

/// True for `name`, `&name`, `*name`, `name.clone()`, `Arc::clone(&name)`, `Box::new(name)` and the like.
fn is_copy_of(expr: &Expr, name: &Ident) -> bool {
    let is_one_of = |method: &Ident, all: &[&str]| all.iter().any(|one| method == one);
    match expr {
        Expr::Path(path) => path.path.is_ident(name),
        Expr::Reference(reference) => is_copy_of(&reference.expr, name),
        Expr::Unary(unary) => matches!(unary.op, UnOp::Deref(_)) && is_copy_of(&unary.expr, name),
        Expr::Paren(paren) => is_copy_of(&paren.expr, name),
        Expr::Group(group) => is_copy_of(&group.expr, name),
        Expr::MethodCall(call) if call.args.is_empty() => {
            is_one_of(&call.method, &["clone", "into", "to_owned", "to_string", "to_vec"])
                && is_copy_of(&call.receiver, name)
        }
        Expr::Call(call) if call.args.len() == 1 => {
            let Expr::Path(function) = &*call.func else { return false };
            let mut path = function.path.segments.iter().rev().map(|segment| &segment.ident);
            let keeps = match (path.next(), path.next()) {
                (Some(last), Some(ty)) if last == "new" => is_one_of(ty, &["Arc", "Box", "Rc"]),
                (Some(last), Some(ty)) if last == "from" => is_one_of(ty, &SAME_VALUE),
                (Some(last), _) => last == "clone",
                (None, _) => false,
            };
            keeps && is_copy_of(&call.args[0], name)
        }
        _ => false,
    }
}

fn is_same_value(ty: &Type) -> bool {
    match ty {
        Type::Group(group) => is_same_value(&group.elem),
        Type::Paren(paren) => is_same_value(&paren.elem),
        Type::Reference(reference) => is_same_value(&reference.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(|last| SAME_VALUE.iter().any(|ty| last.ident == ty)),
        _ => matches!(ty, Type::Infer(_)),
    }
}

/// Types whose `from` keeps the value.
const SAME_VALUE: [&str; 21] = [
    "Arc", "Box", "Cow", "IpAddr", "PathBuf", "Rc", "String", "Vec", "i8", "i16", "i32", "i64", "i128", "isize", "str",
    "u8", "u16", "u32", "u64", "u128", "usize",
];

/// Adds the names that a pattern binds.
pub(crate) fn bind(pat: &Pat, names: &mut Vec<Ident>) {
    match pat {
        Pat::Ident(pat) => {
            names.push(pat.ident.clone());
            if let Some((_, pat)) = &pat.subpat {
                bind(pat, names);
            }
        }
        Pat::Reference(PatReference { pat, .. })
        | Pat::Paren(PatParen { pat, .. })
        | Pat::Type(PatType { pat, .. }) => bind(pat, names),
        Pat::Tuple(PatTuple { elems, .. })
        | Pat::TupleStruct(PatTupleStruct { elems, .. })
        | Pat::Slice(PatSlice { elems, .. }) => elems.iter().for_each(|pat| bind(pat, names)),
        Pat::Struct(pat) => pat.fields.iter().for_each(|field| bind(&field.pat, names)),
        // Each case binds the same names.
        Pat::Or(pat) => pat.cases.first().into_iter().for_each(|pat| bind(pat, names)),
        _ => {}
    }
}

/// The first of `names` whose values `tokens` use, also as `{name}` in a string of a macro. Not those of fields,
/// methods and paths, nor those that a closure or a `let` inside binds.
pub(crate) fn find_name(tokens: TokenStream, names: &[Ident]) -> Option<Ident> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_sign = |at: usize, signs: &str| tokens.get(at).is_some_and(|token| is_punct(token, signs));
    let is_word = |at: usize, word: &str| matches!(tokens.get(at), Some(TokenTree::Ident(ident)) if ident == word);
    let mut names = names.to_vec();
    // Inside of a closure: the names outside of it. Behind a `let`: the names that count until its end.
    let (mut outside, mut bound) = (None, Vec::new());
    let (mut at, mut after_dot, mut parameters_end) = (0, false, None);
    while let Some(token) = tokens.get(at) {
        let (before, two_before) = (at.wrapping_sub(1), at.wrapping_sub(2));
        // A `|` behind a value is an operator.
        let begins_value = at == 0
            || parameters_end == Some(before)
            || matches!(tokens.get(before), Some(TokenTree::Punct(_))) && !is_sign(before, "|?>")
            || is_sign(before, ">") && is_sign(two_before, "=")
            || ["async", "move", "return"].iter().any(|word| is_word(before, word));
        let found = match token {
            TokenTree::Group(group) => {
                let formatted = if is_sign(before, "!") { find_formatted(group.stream(), &names) } else { None };
                formatted.or_else(|| find_name(group.stream(), &names))
            }
            TokenTree::Punct(_) if is_sign(at, "|") && begins_value => {
                let end = (at + 1..tokens.len()).find(|at| is_sign(*at, "|")).unwrap_or(at);
                let parameters = parameter_names(tokens.get(at + 1..end).unwrap_or_default().iter().cloned().collect());
                outside.get_or_insert_with(|| names.clone());
                names.retain(|name| !parameters.contains(name));
                (at, parameters_end) = (end, Some(end));
                None
            }
            TokenTree::Punct(_) if is_sign(at, ",;") => {
                names = outside.take().unwrap_or(names);
                if is_sign(at, ";") {
                    names.retain(|name| !bound.contains(name));
                }
                None
            }
            TokenTree::Ident(ident) if names.iter().any(|name| name.unraw() == ident.unraw()) => {
                let is_bound = is_word(before, "let") || is_word(before, "mut") && is_word(two_before, "let");
                bound.extend(is_bound.then(|| ident.clone()));
                let in_path = is_sign(at + 1, ":") || is_sign(before, ":") && is_sign(two_before, ":");
                let is_macro = is_sign(at + 1, "!") && matches!(tokens.get(at + 2), Some(TokenTree::Group(_)));
                (!after_dot && !is_bound && !in_path && !is_macro).then(|| ident.clone())
            }
            _ => None,
        };
        if found.is_some() {
            return found;
        }
        after_dot = is_sign(at, ".") && !after_dot; // the second dot of `..` stands in front of a value
        at += 1;
    }
    None
}

/// The names that the parameters of a closure bind.
fn parameter_names(parameters: TokenStream) -> Vec<Ident> {
    let names = |input: ParseStream<'_>| {
        let mut names = Vec::new();
        while !input.is_empty() {
            bind(&Pat::parse_single(input)?, &mut names);
            if input.parse::<Option<Token![:]>>()?.is_some() {
                input.parse::<Type>()?;
            }
            input.parse::<Option<Token![,]>>()?;
        }
        Ok(names)
    };
    names.parse2(parameters).unwrap_or_default()
}

/// The first of `names` in the format string of a macro's arguments.
fn find_formatted(arguments: TokenStream, names: &[Ident]) -> Option<Ident> {
    arguments.into_iter().find_map(|token| {
        let TokenTree::Literal(literal) = token else { return None };
        let text = literal.to_string();
        let mut names = names.iter().map(|name| name.unraw().to_string());
        names.find(|name| is_formatted(&text, name)).map(|name| Ident::new(&name, literal.span()))
    })
}

/// True for `"{name}"`, `"{name:?}"`, `"{:name$}"` and `"{:0name$}"`.
fn is_formatted(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let (before, behind) = (text[..at].trim_end(), text[at + name.len()..].trim_start());
        let braces = before.len() - before.trim_end_matches('{').len(); // `{{` is a brace
        let is_width = |before: &str| before.ends_with(['0', ':', '.', '<', '^', '>', '+', '-', '#']);
        braces % 2 == 1 && behind.starts_with([':', '}'])
            || behind.starts_with('$') && is_width(before) && !before.trim_end_matches('0').ends_with(is_word)
    })
}
