//! Recognizes functions that return a future, such as those that `#[async_trait]` generates.

use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Expr, ExprAsync, ExprBlock, ExprReturn, Stmt};

use crate::assigned::{begin_of, values_of};
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
#[derive(Clone, PartialEq)]
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

    /// The tail of the values that it gets in these statements. `seen`: the variables that were looked up.
    fn tail_of_later_values(&self, statements: &TokenStream, seen: &mut Vec<Self>) -> Tail<'static> {
        seen.push(self.clone());
        values_of(&self.name, statements).into_iter().fold(Tail::Other, |all, value| {
            let tail = match begin_of(value.clone()) {
                Some(mut value) => self.tail_of_value(&mut value),
                None if words_of(value).iter().any(|word| word == "async") => Tail::Wrapped,
                None => Tail::Other,
            };
            let mut of_others = Tail::Other;
            if let Tail::Variables(others) = &tail {
                for other in others {
                    if !seen.contains(other) {
                        of_others = either(of_others, other.tail_of_later_values(statements, seen));
                    }
                }
            }
            either(all, either(tail, of_others))
        })
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
    let is_one_of_several = is_conditional(last);
    let tail = match last {
        Stmt::Expr(expr, None) | Stmt::Expr(expr @ Expr::Return(_), _) => tail_of(expr, see),
        _ => Tail::Other,
    };
    if !is_one_of_several {
        return resolve(tail, front);
    }
    // rustc applies `cfg` after this macro, and may remove the statement that has the limit.
    let others = front.iter_mut().filter(|statement| is_conditional(*statement));
    let all = others.fold(either(Tail::Other, tail), |all, other| match other {
        Stmt::Expr(expr, None) => either(all, tail_of(expr, see)),
        _ => all,
    });
    resolve(all, front)
}

/// Whether a statement has the attribute `cfg`.
fn is_conditional(statement: &impl ToTokens) -> bool {
    let mut tokens = statement.to_token_stream().into_iter();
    while tokens.next().is_some_and(|token| is_punct(&token, "#")) {
        let Some(TokenTree::Group(attribute)) = tokens.next() else { return false };
        if matches!(attribute.stream().into_iter().next(), Some(TokenTree::Ident(name)) if name == "cfg") {
            return true;
        }
    }
    false
}

/// Looks for the values of variables in the statements in front of them.
fn resolve<'a>(tail: Tail<'a>, front: &mut [Stmt]) -> Tail<'a> {
    let Tail::Variables(mut variables) = tail else { return tail };
    let mut found = Tail::Other;
    let mut conditional = Vec::new();
    for at in (0..front.len()).rev() {
        let (before, after) = front.split_at_mut(at + 1);
        let Stmt::Local(local) = &mut before[at] else { continue };
        let mut names = Vec::new();
        bind(&local.pat, &mut names);
        let is_bound = |variable: &Variable| names.contains(&variable.name);
        let mut bound: Vec<_>;
        if local.attrs.iter().any(|attribute| attribute.path().is_ident("cfg")) {
            // rustc may remove this `let`, so an earlier one of the name counts, too.
            bound = variables.iter().filter(|variable| is_bound(variable)).cloned().collect();
            conditional.extend(names);
        } else {
            bound = variables.extract_if(.., |variable| is_bound(variable)).collect();
            // But not in front of two of them: one is left.
            bound.retain(|variable| conditional.iter().filter(|name| **name == variable.name).count() < 2);
        }
        let later = (local.init.is_none() || words_of(local.pat.to_token_stream()).iter().any(|word| word == "mut"))
            .then(|| after.iter().map(ToTokens::to_token_stream).collect::<TokenStream>())
            .filter(|later| !bound.is_empty() && later.to_string().contains("async"));
        for variable in bound {
            let first = local.init.as_mut().map_or(Tail::Other, |init| variable.tail_of_value(&mut init.expr));
            let later = later.as_ref().map(|later| variable.tail_of_later_values(later, &mut Vec::new()));
            match either(first, later.unwrap_or(Tail::Other)) {
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

/// Methods of a future that pin it.
const BOXES: [&str; 2] = ["boxed", "boxed_local"];

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
        Expr::Call(call) => {
            if let Some(method) = method_of_future(&call.func) {
                let receiver = call.args.first_mut();
                return receiver.map_or(Tail::Other, |receiver| tail_of_method(&method, receiver, see));
            }
            match (maker(&call.func), call.args.len()) {
                (Some(Maker::Pin), 1) => pinned(&mut call.args[0], see),
                (Some(Maker::Box), 1) => tail_of(&mut call.args[0], see),
                (Some(Maker::Other), _) => made_of(&mut call.args),
                _ => Tail::Other,
            }
        }
        Expr::Tuple(tuple) => made_of(&mut tuple.elems),
        Expr::Struct(value) => made_of(value.fields.iter_mut().map(|field| &mut field.expr)),
        Expr::MethodCall(call) => tail_of_method(&call.method, &mut call.receiver, see),
        _ => Tail::Other,
    }
}

/// The tail of a method of this value.
fn tail_of_method<'a>(method: &Ident, value: &'a mut Expr, see: &mut dyn FnMut(&[Stmt])) -> Tail<'a> {
    let is_one_of = |methods: &[&str]| methods.iter().any(|name| method == name);
    match () {
        () if is_one_of(&BOXES) => pinned(value, see),
        () if is_one_of(&SAME_OUTPUT) => tail_of(value, see),
        () if is_one_of(&OTHER_OUTPUT) => match either(Tail::Other, tail_of(value, see)) {
            Tail::Wrapped => Tail::Other, // as likely it is a `Result`
            tail => tail,
        },
        () => Tail::Other,
    }
}

/// The method in `FutureExt::boxed`, `futures::TryFutureExt::map_ok` or `Instrument::instrument`.
fn method_of_future(function: &Expr) -> Option<Ident> {
    let Expr::Path(path) = function else { return None };
    let mut names = path.path.segments.iter().rev().map(|segment| &segment.ident);
    let (method, of) = (names.next()?, names.next()?);
    let is_of_future = of == "Instrument" || of == "WithSubscriber" || of.to_string().ends_with("FutureExt");
    let mut methods = BOXES.iter().chain(&SAME_OUTPUT).chain(&OTHER_OUTPUT);
    (is_of_future && methods.any(|name| method == name)).then(|| method.clone())
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
    let parsed = returned.into_iter().filter_map(|(_, from)| begin_of(from));
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
