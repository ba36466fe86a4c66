//! The items that an attribute may stand on: a function, its body unparsed, or an `impl` block.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::spanned::Spanned as _;
use syn::token::Brace;
use syn::{Attribute, Block, Expr, FnArg, Ident, Result, ReturnType, Signature, Stmt, Token, Type, Visibility, braced};

use crate::entry_points::contains_check;
use crate::errors::fail;
use crate::future::{Tail, early_return, has_block, returns_early, tail, tail_block, words_of};
use crate::future_type::{FutureOutput, names_type, output_of_future};
use crate::kind::AttributeKind;
use crate::names::bind;
use crate::tokens::{block, ends, text};

pub(crate) enum AnnotatedItem {
    Function(Box<Function>),
    Impl(ImplBlock),
}

pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    vis: Visibility,
    defaultness: Option<Token![default]>,
    sig: Signature,
    /// `None` for a declaration.
    body: Option<Body>,
}

struct Body {
    brace: Brace,
    inner_attrs: Vec<Attribute>,
    tokens: TokenStream,
}

pub(crate) struct ImplBlock {
    pub(crate) attrs: Vec<Attribute>,
    /// `unsafe impl<T> Trait for Type where ..`
    head: TokenStream,
    pub(crate) keyword: Span,
    brace: Brace,
    inner_attrs: Vec<Attribute>,
    pub(crate) members: Vec<Member>,
}

pub(crate) enum Member {
    Function(Box<Function>),
    Other(TokenStream),
}

impl AnnotatedItem {
    pub(crate) fn parse(item: TokenStream) -> Result<Self> {
        let modifiers = ["pub", "default", "const", "async", "unsafe", "extern"];
        let mut tokens: Vec<TokenTree> = item.into_iter().collect();
        let keyword = tokens.iter().find_map(|token| match token {
            TokenTree::Ident(word) => {
                Some((word.to_string(), word.span())).filter(|(word, _)| !modifiers.contains(&word.as_str()))
            }
            _ => None,
        });
        match keyword {
            Some((word, _)) if word == "impl" => syn::parse2(tokens.into_iter().collect()).map(Self::Impl),
            Some((word, _)) if word == "fn" => {
                // Not parsed by syn: the body is emitted as it is.
                let mut body = None;
                if let Some(TokenTree::Group(group)) = tokens.last_mut()
                    && group.delimiter() == Delimiter::Brace
                {
                    let empty = Group::new(group.delimiter(), TokenStream::new());
                    body = Some(std::mem::replace(group, empty));
                }
                let mut function: Box<Function> = syn::parse2(tokens.into_iter().collect())?;
                if let (Some(group), Some(body)) = (body, &mut function.body) {
                    *body = Body::open(&group)?;
                }
                Ok(Self::Function(function))
            }
            other => {
                let at = other.map_or_else(Span::call_site, |(_, span)| span);
                fail(at, "expected an async function or an `impl` block")
            }
        }
    }
}

impl Parse for Function {
    fn parse(input: ParseStream) -> Result<Self> {
        Ok(Function {
            attrs: input.call(Attribute::parse_outer)?,
            vis: input.parse()?,
            defaultness: input.parse()?,
            sig: input.parse()?,
            body: match input.parse::<Option<Token![;]>>()? {
                Some(_) => None,
                None => Some(Body::open(&braces(input)?)?),
            },
        })
    }
}

/// The next group in braces, which a `macro_rules!` macro may have put into an invisible group.
fn braces(input: ParseStream) -> Result<Group> {
    match input.parse()? {
        TokenTree::Group(group) => match group.delimiter() {
            Delimiter::Brace => Ok(group),
            Delimiter::None => braces.parse2(group.stream()),
            _ => fail(group.span(), "expected a body in braces"),
        },
        other => fail(other.span(), "expected a body in braces"),
    }
}

impl Body {
    fn open(group: &Group) -> Result<Self> {
        let mut body =
            Body { brace: Brace { span: group.delim_span() }, inner_attrs: Vec::new(), tokens: group.stream() };
        let mut start = group.stream().into_iter().take(2);
        if start.all(|token| matches!(token, TokenTree::Punct(p) if "#!".contains(p.as_char()))) {
            let split = |input: ParseStream| {
                body.inner_attrs = input.call(Attribute::parse_inner)?;
                input.parse()
            };
            body.tokens = split.parse2(group.stream())?;
        }
        Ok(body)
    }
}

impl Parse for ImplBlock {
    fn parse(input: ParseStream) -> Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let mut head = TokenStream::new();
        let mut keyword = input.span();
        // The last braces are the block's. A const argument such as `For<{ N }>` has braces, too.
        while !(input.peek(Brace) && is_last(input)) {
            let token: TokenTree = input.parse()?;
            if matches!(&token, TokenTree::Ident(word) if word == "impl") {
                keyword = token.span();
            }
            head.extend([token]);
        }
        let content;
        let brace = braced!(content in input);
        let inner_attrs = content.call(Attribute::parse_inner)?;
        let mut members = Vec::new();
        while !content.is_empty() {
            members.push(content.parse()?);
        }
        Ok(ImplBlock { attrs, head, keyword, brace, inner_attrs, members })
    }
}

fn is_last(input: ParseStream) -> bool {
    let fork = input.fork();
    fork.parse::<TokenTree>().is_ok() && fork.is_empty()
}

impl Parse for Member {
    fn parse(input: ParseStream) -> Result<Self> {
        use syn::parse::discouraged::Speculative as _;
        let fork = input.fork();
        match fork.parse() {
            Ok(function) => {
                input.advance_to(&fork);
                Ok(Member::Function(Box::new(function)))
            }
            Err(_) => Ok(Member::Other(input.parse::<syn::ImplItem>()?.into_token_stream())),
        }
    }
}

/// The point in a body where the check is inserted.
pub(crate) enum InsertionPoint {
    /// The start of an `async fn`, or of one with `blocking`.
    Start,
    /// The start of the async block that these statements end in.
    Block(Vec<Stmt>),
}

impl Function {
    /// Returns true for an `async fn` and for a function that returns a future.
    pub(crate) fn is_async(&self) -> bool {
        self.sig.asyncness.is_some() || self.output_of_future().is_some() || self.returns(has_block)
    }

    /// Returns true if the function returns `Job::new(async { .. })`, or `Box::pin(timeout(limit, async { .. }))`.
    pub(crate) fn may_return_future(&self) -> bool {
        let (ReturnType::Type(_, ty), Some(body)) = (&self.sig.output, &self.body) else { return false };
        // Streams and services are made of async blocks, too.
        let is_other = names_type(ty, &["Body", "Filter", "Service", "Stream"]);
        let names_future = || words_of(ty.to_token_stream()).iter().any(|word| word.to_string().ends_with("Future"));
        let has_async = || words_of(body.tokens.clone()).iter().any(|word| word == "async");
        !is_other && (self.returns(|tail| matches!(tail, Tail::Wrapped)) || names_future() && has_async())
    }

    /// Whether the end of the body, or a `return` before it, is so.
    fn returns(&self, so: fn(&Tail<'_>) -> bool) -> bool {
        self.statements().is_some_and(|mut statements| so(&tail(&mut statements, &mut |_| {})))
            || self.body.as_ref().is_some_and(|body| returns_early(&body.tokens, so))
    }

    pub(crate) fn name(&self) -> &Ident {
        &self.sig.ident
    }

    /// `blocking`: the word of that name, if it is given.
    pub(crate) fn insertion_point(&self, kind: AttributeKind, blocking: Option<&Ident>) -> Result<InsertionPoint> {
        let Some(body) = &self.body else {
            let message =
                "a declaration has no body to limit: write the attribute on the implementation, or on a default body";
            return fail(self.sig.ident.span(), message);
        };
        if let Some(constness) = &self.sig.constness {
            let message = "a `const fn` can't ask a limiter: leave `const` out";
            return fail(constness.span(), message);
        }
        if contains_check(&body.tokens) {
            let message = "another rate limit is already applied to this function, under a different name or through `cfg_attr`: write every attribute as #[limit_request_per_time(..)] or #[limit_concurrent_requests(..)]";
            return fail(Span::call_site(), message);
        }
        if let Some(word) = blocking {
            let message = match self.is_async() {
                false => return Ok(InsertionPoint::Start),
                true if self.sig.asyncness.is_some() => {
                    "`blocking` is for a function that is not async: leave it out, or write `fn`"
                }
                true => {
                    "`blocking` is for a function that does its work itself, and this one returns a future: leave it out"
                }
            };
            return fail(word.span(), message);
        }
        if self.sig.asyncness.is_some() {
            return Ok(InsertionPoint::Start);
        }
        if let Some(block) = self.ends_in_block() {
            if let Some(returned) = early_return(&body.tokens, &block) {
                let message = "this `return` is before the limit, which is in the async block at the end: return from inside that block";
                return fail(returned, message);
            }
            return Ok(InsertionPoint::Block(block));
        }
        if self.is_async() || self.may_return_future() {
            let message = "this function returns a future, but does not end in the async block to limit: end it in `async move { .. }` or `Box::pin(async move { .. })`";
            return fail(self.sig.ident.span(), message);
        }
        let is_made_sync = self.sig.ident == "main"
            || self.attrs.iter().any(|attr| {
                attr.path().segments.last().is_some_and(|last| last.ident == "test" || last.ident == "main")
            });
        let name = kind.name();
        let message = if is_made_sync {
            format!("another attribute already made this function synchronous: write #[{name}] above it")
        } else if text(&body.tokens).contains("block_on") {
            format!(
                "this function is not async, it calls `block_on`: if an attribute such as #[tokio::main] made it so, write #[{name}] above that one"
            )
        } else {
            format!("this function is not async: write `async fn`, or add a word to the limit: #[{name}(.., blocking)]")
        };
        fail(self.sig.fn_token.span(), message)
    }

    /// The statements of a body that ends in an async block.
    fn ends_in_block(&self) -> Option<Vec<Stmt>> {
        let mut statements = self.statements()?;
        tail_block(&mut statements).is_some().then_some(statements)
    }

    fn statements(&self) -> Option<Vec<Stmt>> {
        if matches!(self.sig.output, ReturnType::Default) {
            return None;
        }
        Block::parse_within.parse2(self.body.as_ref()?.tokens.clone()).ok()
    }

    fn output_of_future(&self) -> Option<FutureOutput<'_>> {
        match &self.sig.output {
            ReturnType::Type(_, ty) => output_of_future(ty),
            ReturnType::Default => None,
        }
    }

    /// The names that the arguments bind.
    pub(crate) fn argument_names(&self) -> Vec<Ident> {
        let mut names = Vec::new();
        for input in &self.sig.inputs {
            if let FnArg::Typed(argument) = input {
                bind(&argument.pat, &mut names);
            }
        }
        names
    }

    /// Spans of the first and last token of the returned type. Errors about it belong there.
    pub(crate) fn output_ends(&self) -> (Span, Span) {
        match (self.output_of_future(), &self.sig.output) {
            (Some(output), _) if self.sig.asyncness.is_none() => ends(output),
            (_, ReturnType::Type(_, ty)) => ends(ty),
            (_, ReturnType::Default) => ends(&self.sig.ident),
        }
    }

    /// Type of the value that a call ends with. `None` if the signature does not name it.
    pub(crate) fn output(&self) -> Option<&Type> {
        match (self.output_of_future(), &self.sig.output) {
            (Some(FutureOutput::Named(ty)), _) if self.sig.asyncness.is_none() => Some(ty),
            (_, ReturnType::Type(_, ty)) if self.sig.asyncness.is_some() || !self.is_async() => Some(ty),
            _ => None,
        }
    }

    /// Replaces the body, or the async block that it ends in, by what `wrap` makes of it.
    pub(crate) fn wrap_body(&mut self, point: InsertionPoint, wrap: impl FnOnce(&Group) -> TokenStream) {
        let Some(body) = &mut self.body else { return };
        match point {
            InsertionPoint::Start => {
                let block = block(body.brace, std::mem::take(&mut body.tokens));
                body.tokens = wrap(&block);
            }
            InsertionPoint::Block(mut statements) => {
                if let Some(future) = tail_block(&mut statements) {
                    let inner = &future.block.stmts;
                    let block = block(future.block.brace_token, quote!(#(#inner)*));
                    let limited = Expr::Verbatim(wrap(&block));
                    future.block.stmts = vec![Stmt::Expr(limited, None)];
                }
                body.tokens = quote!(#(#statements)*);
            }
        }
    }
}

impl ToTokens for AnnotatedItem {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Self::Function(function) => function.to_tokens(tokens),
            Self::Impl(block) => block.to_tokens(tokens),
        }
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Function { attrs, vis, defaultness, sig, body } = self;
        tokens.extend(quote!(#(#attrs)* #vis #defaultness #sig));
        match body {
            None => tokens.extend(quote!(;)),
            Some(Body { brace, inner_attrs, tokens: body }) => {
                brace.surround(tokens, |tokens| {
                    tokens.extend(quote!(#(#inner_attrs)* #body));
                });
            }
        }
    }
}

impl ToTokens for ImplBlock {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let ImplBlock { attrs, head, brace, inner_attrs, members, .. } = self;
        tokens.extend(quote!(#(#attrs)* #head));
        brace.surround(tokens, |tokens| {
            tokens.extend(quote!(#(#inner_attrs)* #(#members)*));
        });
    }
}

impl ToTokens for Member {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Member::Function(function) => function.to_tokens(tokens),
            Member::Other(other) => other.to_tokens(tokens),
        }
    }
}
