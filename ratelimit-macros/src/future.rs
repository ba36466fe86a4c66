//! Recognizes functions that return a future, such as those that `#[async_trait]` generates.

use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser as _};
use syn::{Expr, ExprAsync, ExprBlock, ExprReturn, GenericArgument, Path, PathArguments, Stmt, Type, TypeParamBound};

use crate::names::{bind, rebind};
use crate::tokens::is_punct;

/// How a body ends.
pub(crate) enum Tail<'a> {
    /// In an async block, also as an argument of `Box::pin`, or behind a method such as `.boxed()`.
    Block(&'a mut ExprAsync),
    /// In an async block of a branch or of a variable: more than one place would need the limit.
    OneOfSeveral,
    /// In these variables.
    Variables(Vec<Variable>),
    /// In a value that is made of an async block: `Job::new(async { .. })`, `Box::pin(timeout(limit, async { .. }))`.
    /// Nothing tells here whether that is a future.
    Wrapped,
    Other,
}

/// A variable that may have the value of an async block.
#[derive(PartialEq)]
pub(crate) struct Variable {
    name: Ident,
    /// In `Box::pin(name)`, also inside of a call.
    is_pinned: bool,
    /// In `Job::new(name)`, or `Box::pin(timeout(limit, name))`.
    is_wrapped: bool,
}

impl Variable {
    fn new(name: &Ident) -> Self {
        Self { name: name.clone(), is_pinned: false, is_wrapped: false }
    }

    fn tail_of_value(&self, value: &mut Expr) -> Tail<'static> {
        let none = &mut |_: &[Stmt]| {};
        let tail = if self.is_pinned { pinned(value, none) } else { tail_of(value, none) };
        if self.is_wrapped { wrapped(tail) } else { either(Tail::Other, tail) }
    }
}

/// The async block that a body ends in.
pub(crate) fn tail_block(statements: &mut [Stmt]) -> Option<&mut ExprAsync> {
    match tail(statements, &mut |_| {}) {
        Tail::Block(block) => Some(block),
        _ => None,
    }
}

/// How `statements` end. Calls `see` with the statements in front of the end, those of each block around it.
pub(crate) fn tail<'a>(statements: &'a mut [Stmt], see: &mut dyn FnMut(&[Stmt])) -> Tail<'a> {
    let Some((last, front)) = statements.split_last_mut() else { return Tail::Other };
    see(front);
    let tail = match last {
        Stmt::Expr(expr, None) | Stmt::Expr(expr @ Expr::Return(_), _) => tail_of(expr, see),
        _ => Tail::Other,
    };
    resolve(tail, front)
}

/// Looks for the values of variables in the statements in front of them.
fn resolve<'a>(tail: Tail<'a>, front: &mut [Stmt]) -> Tail<'a> {
    let Tail::Variables(mut variables) = tail else { return tail };
    let mut found = Tail::Other;
    for statement in front.iter_mut().rev() {
        let Stmt::Local(local) = statement else { continue };
        let mut names = Vec::new();
        bind(&local.pat, &mut names);
        let bound: Vec<_> = variables.extract_if(.., |variable| names.contains(&variable.name)).collect();
        let Some(init) = &mut local.init else { continue };
        for variable in bound {
            match variable.tail_of_value(&mut init.expr) {
                Tail::Variables(further) => {
                    for variable in further {
                        if !variables.contains(&variable) {
                            variables.push(variable);
                        }
                    }
                }
                tail => found = either(found, tail),
            }
        }
    }
    either(found, if variables.is_empty() { Tail::Other } else { Tail::Variables(variables) })
}

/// True if a function that ends so returns a future.
pub(crate) fn has_block(tail: &Tail<'_>) -> bool {
    matches!(tail, Tail::Block(_) | Tail::OneOfSeveral)
}

/// Methods of a future whose result is a future with the same output.
const SAME_OUTPUT: [&str; 6] = [
    "fuse",
    // of `tracing`
    "instrument",
    "in_current_span",
    "with_subscriber",
    "with_current_subscriber",
    // of `fastrace`
    "in_span",
];

/// Methods of a future whose result is a future, often with another output.
const OTHER_OUTPUT: [&str; 17] = [
    "and_then",
    "catch_unwind",
    "err_into",
    "flatten",
    "inspect",
    "inspect_err",
    "inspect_ok",
    "map",
    "map_err",
    "map_into",
    "map_ok",
    "ok_into",
    "or_else",
    "shared",
    "then",
    "try_flatten",
    "unwrap_or_else",
];

fn tail_of<'a>(expr: &'a mut Expr, see: &mut dyn FnMut(&[Stmt])) -> Tail<'a> {
    match expr {
        Expr::Async(block) => Tail::Block(block),
        Expr::Path(path) => {
            path.path.get_ident().map_or(Tail::Other, |name| Tail::Variables(vec![Variable::new(name)]))
        }
        Expr::Group(group) => tail_of(&mut group.expr, see),
        Expr::Paren(paren) => tail_of(&mut paren.expr, see),
        Expr::Cast(cast) => tail_of(&mut cast.expr, see),
        Expr::Return(ExprReturn { expr: Some(returned), .. }) => tail_of(returned, see),
        // A `break` leaves it, too.
        Expr::Block(ExprBlock { label: Some(_), block, .. }) => either(Tail::Other, tail(&mut block.stmts, see)),
        Expr::Block(block) => tail(&mut block.block.stmts, see),
        Expr::Unsafe(block) => tail(&mut block.block.stmts, see),
        Expr::If(branch) => {
            let other = branch.else_branch.as_mut().map_or(Tail::Other, |(_, other)| tail_of(other, see));
            either(other, tail(&mut branch.then_branch.stmts, see))
        }
        Expr::Match(matched) => {
            matched.arms.iter_mut().fold(Tail::Other, |all, arm| either(all, tail_of(&mut arm.body, see)))
        }
        Expr::Call(call) => match (maker(&call.func), call.args.len()) {
            (Some(Maker::Pin), 1) => pinned(&mut call.args[0], see),
            (Some(Maker::Box), 1) => tail_of(&mut call.args[0], see),
            (Some(Maker::Other), _) => made_of(&mut call.args),
            _ => Tail::Other,
        },
        Expr::Tuple(tuple) => made_of(&mut tuple.elems),
        Expr::Struct(value) => made_of(value.fields.iter_mut().map(|field| &mut field.expr)),
        Expr::MethodCall(call) => {
            let is_one_of = |methods: &[&str]| methods.iter().any(|method| call.method == method);
            match () {
                () if is_one_of(&["boxed", "boxed_local"]) => pinned(&mut call.receiver, see),
                () if is_one_of(&SAME_OUTPUT) => tail_of(&mut call.receiver, see),
                () if is_one_of(&OTHER_OUTPUT) => match either(Tail::Other, tail_of(&mut call.receiver, see)) {
                    Tail::Wrapped => Tail::Other, // as likely it is a `Result`
                    tail => tail,
                },
                () => Tail::Other,
            }
        }
        _ => Tail::Other,
    }
}

/// The tail of a value that is pinned: as a rule a future or a stream.
fn pinned<'a>(value: &'a mut Expr, see: &mut dyn FnMut(&[Stmt])) -> Tail<'a> {
    let words = words_of(value.to_token_stream());
    let tail = tail_of(value, see);
    if has_block(&tail) || matches!(tail, Tail::Wrapped) {
        return tail;
    }
    if words.iter().any(|word| word == "async") {
        return Tail::Wrapped;
    }
    let mut variables = if let Tail::Variables(variables) = tail { variables } else { Vec::new() };
    for variable in &mut variables {
        variable.is_pinned = true;
    }
    for word in &words {
        if variables.iter().all(|variable| variable.name != *word) {
            variables.push(Variable { is_pinned: true, is_wrapped: true, ..Variable::new(word) });
        }
    }
    Tail::Variables(variables)
}

/// All words of an expression or a type.
pub(crate) fn words_of(tokens: TokenStream) -> Vec<Ident> {
    let mut words = Vec::new();
    find_words(tokens, &mut words);
    words
}

fn find_words(tokens: TokenStream, words: &mut Vec<Ident>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => words.push(word),
            TokenTree::Group(group) => find_words(group.stream(), words),
            _ => {}
        }
    }
}

/// The tail of a value that is made of these.
fn made_of<'a>(parts: impl IntoIterator<Item = &'a mut Expr>) -> Tail<'static> {
    parts.into_iter().fold(Tail::Other, |all, part| either(all, wrapped(tail_of(part, &mut |_| {}))))
}

/// The tail of a value that is made of one with this tail.
fn wrapped(tail: Tail<'_>) -> Tail<'static> {
    match tail {
        Tail::Variables(variables) => {
            Tail::Variables(variables.into_iter().map(|variable| Variable { is_wrapped: true, ..variable }).collect())
        }
        tail if has_block(&tail) => Tail::Wrapped,
        Tail::Wrapped => Tail::Wrapped,
        _ => Tail::Other,
    }
}

/// How two branches end together.
fn either(one: Tail<'_>, other: Tail<'_>) -> Tail<'static> {
    match (one, other) {
        (one, other) if has_block(&one) || has_block(&other) => Tail::OneOfSeveral,
        (Tail::Wrapped, _) | (_, Tail::Wrapped) => Tail::Wrapped,
        (Tail::Variables(one), Tail::Variables(other)) => Tail::Variables([one, other].into_iter().flatten().collect()),
        (Tail::Variables(names), _) | (_, Tail::Variables(names)) => Tail::Variables(names),
        _ => Tail::Other,
    }
}

/// The function of a type that takes a future.
enum Maker {
    /// `Box::pin`, `Box::into_pin`, `Pin::from` and the like.
    Pin,
    /// `Box::new`, `Box::from`.
    Box,
    /// `Job::new`, `Job::from`, `Job`, `Ok`.
    Other,
}

fn maker(function: &Expr) -> Option<Maker> {
    let Expr::Path(path) = function else { return None };
    let mut names = path.path.segments.iter().rev().map(|segment| &segment.ident);
    let (name, ty) = (names.next()?, names.next());
    let is_of = |name: &str| ty.is_some_and(|ty| ty == name);
    let makes = name == "new" || name == "from";
    match () {
        () if name == "pin" || name == "into_pin" && is_of("Box") || makes && is_of("Pin") => Some(Maker::Pin),
        () if makes && is_of("Box") => Some(Maker::Box),
        () if makes && ty.is_some() || name.to_string().starts_with(char::is_uppercase) => Some(Maker::Other),
        () => None,
    }
}

/// The first `return` of a body that comes before its async block at the end, the [`tail_block`] of `statements`.
pub(crate) fn early_return(body: &TokenStream, statements: &[Stmt]) -> Option<Span> {
    // The text is searched first: it takes one request to the compiler, the tokens one each.
    if !body.to_string().contains("return") {
        return None;
    }
    let returns = returns(body);
    (returns.len() > returns_of_tail(statements)).then(|| returns[0].0)
}

/// True if a `return` of the body has such an end.
pub(crate) fn returns_early(body: &TokenStream, so: impl Fn(&Tail<'_>) -> bool) -> bool {
    let text = body.to_string();
    let returned = if text.contains("return") && text.contains("async") { returns(body) } else { Vec::new() };
    let begin = |input: ParseStream<'_>| {
        let value: Expr = input.parse()?;
        input.parse::<TokenStream>().map(|_| value)
    };
    let parsed = returned.into_iter().filter_map(|(_, from)| begin.parse2(from).ok());
    parsed.into_iter().any(|mut value| so(&tail_of(&mut value, &mut |_| {})))
}

/// Each `return` with a value and what follows, but for those of closures, functions and async blocks inside.
fn returns(body: &TokenStream) -> Vec<(Span, TokenStream)> {
    let mut found = Vec::new();
    find_returns(body.clone(), &mut found);
    found
}

/// Number of `return`s that the tail stands behind: one in `return Box::pin(async { .. })`.
fn returns_of_tail(statements: &[Stmt]) -> usize {
    match statements.last() {
        Some(Stmt::Expr(Expr::Return(_), _)) => 1,
        Some(Stmt::Expr(Expr::Block(block), None)) => returns_of_tail(&block.block.stmts),
        Some(Stmt::Expr(Expr::Unsafe(block), None)) => returns_of_tail(&block.block.stmts),
        _ => 0,
    }
}

/// See [`returns`].
fn find_returns(tokens: TokenStream, found: &mut Vec<(Span, TokenStream)>) {
    // Words that an expression may follow.
    const BEFORE_EXPRESSION: [&str; 11] =
        ["async", "break", "else", "if", "in", "match", "move", "mut", "return", "static", "while"];
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_word = |at: usize, word: &str| matches!(tokens.get(at), Some(TokenTree::Ident(ident)) if ident == word);
    let is_sign = |at: usize, signs: &str| tokens.get(at).is_some_and(|token| is_punct(token, signs));
    let is_arrow = |at: usize, begin: &str| is_sign(at, begin) && is_sign(at + 1, ">");
    // The place behind the next block, or behind one of these signs.
    let end_from = |from: usize, signs: &str| {
        // Braces before `=` are those of a pattern.
        let is_end = |at: &usize| is_sign(*at, signs) || is_braced(&tokens[*at]) && !is_sign(*at + 1, "=");
        (from..tokens.len()).find(is_end).map_or(tokens.len(), |at| at + 1)
    };
    let (mut at, mut begins) = (0, true); // an expression may begin here
    while let Some(token) = tokens.get(at) {
        at += 1;
        begins = match token {
            TokenTree::Ident(word)
                if word == "async" && tokens.get(at + usize::from(is_word(at, "move"))).is_some_and(is_braced) =>
            {
                at = end_from(at, "");
                false
            }
            // Not the type of a function.
            TokenTree::Ident(word) if word == "fn" && matches!(tokens.get(at), Some(TokenTree::Ident(_))) => {
                at = end_from(at, ";");
                false
            }
            // `#[instrument]` names the returned type in this way.
            TokenTree::Ident(word)
                if word == "if" && is_word(at, "false") && tokens.get(at + 1).is_some_and(is_braced) =>
            {
                at += 2;
                false
            }
            TokenTree::Ident(word) => {
                // Without a value, it is one of an async block or a closure that a macro makes.
                let leaves = word == "return" && at < tokens.len() && !is_sign(at, ",;");
                found.extend(leaves.then(|| (word.span(), tokens[at..].iter().cloned().collect())));
                BEFORE_EXPRESSION.iter().any(|before| word == before)
            }
            // A closure, unless it is the first pattern of an arm of a `match`.
            TokenTree::Punct(_) if begins && is_sign(at - 1, "|") => {
                let body = (at..tokens.len()).find(|at| is_sign(*at, "|")).map_or(tokens.len(), |at| at + 1);
                // With a type, the body is a block.
                let signs = if is_arrow(body, "-") { "" } else { ",;" };
                let mut end = end_from(body, signs);
                while is_word(end, "else") {
                    end = end_from(end, ",;");
                }
                if !(at..end).any(|at| is_arrow(at, "=")) {
                    at = end;
                }
                is_sign(at - 1, ",;")
            }
            TokenTree::Punct(_) if is_sign(at - 1, "|") && is_sign(at, "|") => {
                at += 1; // `||` between two values
                true
            }
            TokenTree::Punct(punct) => !matches!(punct.as_char(), '.' | '?'),
            TokenTree::Group(group) => {
                find_returns(group.stream(), found);
                at > 1 && is_sign(at - 2, "#") // an attribute
            }
            TokenTree::Literal(_) => false,
        };
    }
}

fn is_braced(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// The output type of a future in a signature.
pub(crate) enum FutureOutput<'a> {
    Named(&'a Type),
    /// `impl Future` without an output: the token `Future`.
    Unnamed(&'a Ident),
}

impl ToTokens for FutureOutput<'_> {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            FutureOutput::Named(ty) => ty.to_tokens(tokens),
            FutureOutput::Unnamed(future) => future.to_tokens(tokens),
        }
    }
}

/// `T` of `impl Future<Output = T>`, `Pin<Box<dyn Future<Output = T>>>` or `BoxFuture<T>`.
pub(crate) fn output_of_future(ty: &Type) -> Option<FutureOutput<'_>> {
    let bounds = match ty {
        Type::Group(group) => return output_of_future(&group.elem),
        Type::Paren(paren) => return output_of_future(&paren.elem),
        Type::ImplTrait(ty) => &ty.bounds,
        Type::TraitObject(ty) => &ty.bounds,
        Type::Path(path) => {
            if let Some(ty) = boxed_type(&path.path) {
                return output_of_future(ty);
            }
            let last = path.path.segments.last()?;
            let is_future = last.ident == "BoxFuture" || last.ident == "LocalBoxFuture";
            return types_in(&path.path).next_back().filter(|_| is_future).map(FutureOutput::Named);
        }
        _ => return None,
    };
    bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => {
            let last = bound.path.segments.last()?;
            match &last.arguments {
                _ if last.ident != "Future" => None,
                PathArguments::AngleBracketed(arguments) => arguments.args.iter().find_map(|argument| match argument {
                    GenericArgument::AssocType(output) => Some(FutureOutput::Named(&output.ty)),
                    _ => None,
                }),
                _ => Some(FutureOutput::Unnamed(&last.ident)),
            }
        }
        _ => None,
    })
}

/// True if the name of a type, or of the trait that it implements, ends in one of these words. In `Pin<Box<..>>` and
/// the like, that of the value inside.
pub(crate) fn names_type(ty: &Type, words: &[&str]) -> bool {
    const HOLDERS: [&str; 6] = ["Box", "Option", "Pin", "Response", "Result", "Sse"];
    let is_named = |path: &Path| {
        let name = path.segments.last().map(|last| last.ident.to_string());
        name.is_some_and(|name| words.iter().any(|word| name.ends_with(word)))
    };
    let bounds = match ty {
        Type::Group(group) => return names_type(&group.elem, words),
        Type::Paren(paren) => return names_type(&paren.elem, words),
        Type::ImplTrait(ty) => &ty.bounds,
        Type::TraitObject(ty) => &ty.bounds,
        Type::Path(path) => {
            let last = path.path.segments.last();
            let is_holder = last.is_some_and(|last| HOLDERS.iter().any(|holder| last.ident == holder));
            return is_named(&path.path) || is_holder && types_in(&path.path).any(|ty| names_type(ty, words));
        }
        _ => return false,
    };
    bounds.iter().any(|bound| matches!(bound, TypeParamBound::Trait(bound) if is_named(&bound.path)))
}

/// `T` of `Pin<T>` and `Box<T>`.
fn boxed_type(path: &Path) -> Option<&Type> {
    let last = path.segments.last()?;
    types_in(path).next_back().filter(|_| last.ident == "Pin" || last.ident == "Box")
}

/// The types in `Result<A, B>`.
fn types_in(path: &Path) -> impl DoubleEndedIterator<Item = &Type> {
    let arguments = path.segments.last().and_then(|last| match &last.arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    });
    arguments.into_iter().flatten().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

/// The names that `#[async_trait]` binds inside its block, where it destructures an argument.
// Input:
//     Box::pin(async move { let (a, b) = { let __arg1 = __arg1; __arg1 }; .. })
// Output:
//     a, b
pub(crate) fn unpacked_names(statements: &mut [Stmt]) -> Vec<Ident> {
    let Some(future) = tail_block(statements) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    for statement in &future.block.stmts {
        if let Stmt::Local(local) = statement
            && let Some(init) = &local.init
            && let Expr::Block(block) = &*init.expr
            && let Some(Stmt::Expr(Expr::Path(path), None)) = block.block.stmts.last()
            && path.path.get_ident().is_some_and(|ident| ident.to_string().starts_with("__arg"))
        {
            bind(&local.pat, &mut names);
        }
    }
    names
}

/// The names that statements in front of the final async block give to other values than their own.
// Input:
//     let id = next(); let name = name.clone(); async move { .. }
// Output:
//     id
pub(crate) fn rebound_names(statements: &mut [Stmt]) -> Vec<Ident> {
    let mut names = Vec::new();
    tail(statements, &mut |front| {
        for statement in front {
            if let Stmt::Local(local) = statement {
                rebind(&local.pat, None, local.init.as_ref().map(|init| &*init.expr), &mut names);
            }
        }
    });
    names
}
