//! What the attribute may stand on: a function, its body left unparsed, or an `impl` block of them.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::spanned::Spanned as _;
use syn::token::Brace;
use syn::{Attribute, Block, Expr, Result, ReturnType, Signature, Stmt, Token, Type, Visibility, braced};

use crate::args::Kind;
use crate::errors::fail;
use crate::future::{Output, contains_own_call, output_of_future, tail};
use crate::prologue::Check;

pub(crate) enum Item {
    Function(Box<Function>),
    Impl(Impl),
}

pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    vis: Visibility,
    defaultness: Option<Token![default]>,
    sig: Signature,
    /// None of a declaration.
    body: Option<Body>,
}

struct Body {
    brace: Brace,
    inner_attrs: Vec<Attribute>,
    tokens: TokenStream,
}

pub(crate) struct Impl {
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

impl Item {
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
            Some((word, _)) if word == "impl" => syn::parse2(tokens.into_iter().collect()).map(Item::Impl),
            Some((word, _)) if word == "fn" => {
                // Kept from syn, which would take the body to pieces only to put it together again.
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
                Ok(Item::Function(function))
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

/// The braces that come next, perhaps in the invisible group of a macro.
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

impl Parse for Impl {
    fn parse(input: ParseStream) -> Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let mut head = TokenStream::new();
        let mut keyword = input.span();
        // A const argument such as `For<{ N }>` has braces too; those of the block come last.
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
        Ok(Impl { attrs, head, keyword, brace, inner_attrs, members })
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

/// Where the limit is checked.
pub(crate) enum Place {
    /// At the start of an `async fn`.
    Start,
    /// At the start of the async block that these statements end in.
    Block(Vec<Stmt>),
}

impl Function {
    /// Whether this is async, or returns a future instead.
    pub(crate) fn is_async(&self) -> bool {
        self.sig.asyncness.is_some() || self.output_of_future().is_some() || self.ends_in_block().is_some()
    }

    pub(crate) fn place(&self, kind: Kind) -> Result<Place> {
        let Some(body) = &self.body else {
            let message =
                "a declaration has no body to limit: write the attribute on the implementation, or on a default body";
            return fail(self.sig.ident.span(), message);
        };
        if let Some(constness) = &self.sig.constness {
            let message = "a `const fn` can't wait for a limiter: make it an `async fn`";
            return fail(constness.span(), message);
        }
        if contains_own_call(&body.tokens) {
            let message = "another rate limit is already applied to this function, under a different name or through `cfg_attr`: write every attribute as #[limit_request_per_time(..)] or #[limit_concurrent_requests(..)]";
            return fail(Span::call_site(), message);
        }
        if self.sig.asyncness.is_some() {
            return Ok(Place::Start);
        }
        if let Some(block) = self.ends_in_block() {
            return Ok(Place::Block(block));
        }
        if self.output_of_future().is_some() {
            let message = "this function returns a future, but does not end in the async block to limit: end it in `async move { .. }` or `Box::pin(async move { .. })`";
            return fail(self.sig.ident.span(), message);
        }
        let made_sync = self.sig.ident == "main"
            || self.attrs.iter().any(|attr| {
                attr.path().segments.last().is_some_and(|last| last.ident == "test" || last.ident == "main")
            });
        let at = self.sig.fn_token.span();
        if made_sync {
            let name = kind.name();
            return fail(
                at,
                format!("another attribute already made this function synchronous: write #[{name}] above it"),
            );
        }
        fail(at, "only an async function can be limited: write `async fn`")
    }

    fn ends_in_block(&self) -> Option<Vec<Stmt>> {
        if matches!(self.sig.output, ReturnType::Default) {
            return None;
        }
        let tokens = self.body.as_ref()?.tokens.clone();
        let mut statements = Block::parse_within.parse2(tokens).ok()?;
        tail(&mut statements).is_some().then_some(statements)
    }

    fn output_of_future(&self) -> Option<Output<'_>> {
        match &self.sig.output {
            ReturnType::Type(_, ty) => output_of_future(ty),
            ReturnType::Default => None,
        }
    }

    /// What an error about the returned type is drawn at: its first and last token.
    pub(crate) fn returned(&self) -> (Span, Span) {
        match (self.output_of_future(), &self.sig.output) {
            (Some(output), _) if self.sig.asyncness.is_none() => ends(output),
            (_, ReturnType::Type(_, ty)) => ends(ty),
            (_, ReturnType::Default) => ends(&self.sig.ident),
        }
    }

    /// What a call ends with, if the function says that.
    pub(crate) fn output(&self) -> Option<&Type> {
        match (self.output_of_future(), &self.sig.output) {
            (Some(Output::Is(ty)), _) if self.sig.asyncness.is_none() => Some(ty),
            (_, ReturnType::Type(_, ty)) if self.sig.asyncness.is_some() => Some(ty),
            _ => None,
        }
    }

    // Input:
    //     async fn f(..) -> .. { body }
    // Output:
    //     async fn f(..) -> .. { prologue { body } }
    pub(crate) fn insert(&mut self, check: &Check, place: Place) {
        let Some(body) = &mut self.body else { return };
        match place {
            Place::Start => {
                let block = block(body.brace, std::mem::take(&mut body.tokens));
                body.tokens = check.around(&block);
            }
            Place::Block(mut statements) => {
                if let Some(future) = tail(&mut statements) {
                    let inner = &future.block.stmts;
                    let block = block(future.block.brace_token, quote!(#(#inner)*));
                    let limited = Expr::Verbatim(check.around(&block));
                    future.block.stmts = vec![Stmt::Expr(limited, None)];
                }
                body.tokens = quote!(#(#statements)*);
            }
        }
    }
}

/// Braces where the user's are, for errors about the body, but ours, or rustc would call them unused.
fn block(brace: Brace, tokens: TokenStream) -> Group {
    let mut group = Group::new(Delimiter::Brace, tokens);
    group.set_span(brace.span.join().resolved_at(Span::mixed_site()));
    group
}

/// Where tokens of ours are put for an error to be drawn at the user's: their first and last.
pub(crate) fn ends(tokens: impl ToTokens) -> (Span, Span) {
    let mut spans = tokens.to_token_stream().into_iter().map(|token| token.span());
    let first = spans.next().unwrap_or_else(Span::call_site);
    let last = spans.last().unwrap_or(first);
    let ours = Span::mixed_site();
    (first.resolved_at(ours), last.resolved_at(ours))
}

impl ToTokens for Item {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Item::Function(function) => function.to_tokens(tokens),
            Item::Impl(block) => block.to_tokens(tokens),
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

impl ToTokens for Impl {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Impl { attrs, head, brace, inner_attrs, members, .. } = self;
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
