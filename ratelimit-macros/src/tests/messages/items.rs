//! Items that cannot be limited.

use super::check;

#[test]
fn unsupported_items() {
    let expected = "expected an async function or an `impl` block";
    let sync = "this function is not async: write `async fn`, or add a word to the limit: #[limit_request_per_time(.., blocking)]";
    let below = "another attribute already made this function synchronous: write #[limit_request_per_time] above it";
    let blocks = "this function is not async, it calls `block_on`: if an attribute such as #[tokio::main] made it so, write #[limit_request_per_time] above that one";
    let declaration =
        "a declaration has no body to limit: write the attribute on the implementation, or on a default body";
    let future = "this function returns a future, but does not end in the async block to limit: end it in `async move { .. }` or `Box::pin(async move { .. })`";
    for (item, expected) in [
        ("fn f() {}", sync),
        ("fn f() -> impl Fn() { move || async move {} }", sync),
        ("fn f() -> BoxFuture<R> { #[cfg(a)] { Box::pin(async {}) } #[cfg(not(a))] { Box::pin(async {}) } }", future),
        ("fn f() -> BoxFuture<R> { #[cfg(a)] { h() } #[cfg(not(a))] { Box::pin(async {}) } }", future),
        ("fn f() -> BoxFuture<R> { #[inline] #[cfg(a)] { Box::pin(async {}) } #[cfg(not(a))] { h() } }", future),
        ("fn f() -> Alias { let b: Alias; if a { b = Box::pin(async {}); } else { b = h(); } b }", future),
        ("fn f() -> Alias { let b: A; match a { 0 => b = h(), _ => b = Box::pin(async {}), } b }", future),
        ("fn f() -> Alias { let b; if a { let c = async {}; b = Box::pin(c); } else { b = h(); } b }", future),
        ("fn f() -> Alias { let b; let c: Pin<Box<dyn Future<Output = R>>> = Box::pin(async {}); b = c; b }", future),
        ("fn f() -> Alias { let mut b = h(); if a { b = Box::pin(async {}); } b }", future),
        (
            "fn f() -> Alias { let b: A; if a { let c: A = if let Some(d) = e { Box::pin(async {}) } else { g() }; b = c; } else { b = g(); } b }",
            future,
        ),
        ("fn f() -> Alias { let b = async {}.boxed(); #[cfg(a)] { b } #[cfg(not(a))] { h() } }", future),
        ("fn f() -> BoxFuture<R> { #[cfg(a)] let b = Box::pin(async {}); #[cfg(not(a))] let b = h(); b }", future),
        (
            "impl S { async fn f() {} fn g() -> Alias { #[cfg(a)] { Box::pin(async {}) } #[cfg(not(a))] { h() } } }",
            future,
        ),
        ("fn main() {}", below),
        ("fn serve() { Builder::new().build().block_on(async {}) }", blocks),
        ("#[::core::prelude::v1::test] fn f() { block_on(async {}) }", below),
        ("async fn f();", declaration),
        ("fn f() -> impl Future<Output = R> { g() }", future),
        ("fn f() -> Pin<Box<dyn Future<Output = R> + Send>> { Box::pin(g()) }", future),
        ("fn f<'a>() -> BoxFuture<'a, R> { if a { async {}.boxed() } else { b() } }", future),
        ("pub struct S { f: fn() }", expected),
        ("pub trait T { async fn f() {} }", expected),
        ("const F: fn() = f;", expected),
        ("let x = f();", expected),
        ("", expected),
        ("impl S {}", "no async function in this `impl` block: nothing to limit"),
        (
            "impl S { fn g() {} #[limit_request_per_time(skip)] async fn f() {} }",
            "every async function of this `impl` block is skipped: nothing is limited",
        ),
        ("impl S { async fn f() {} fn g() -> BoxFuture<R> { h() } }", future),
        ("fn f() -> Alias { if a { Box::pin(async {}) } else { b() } }", future),
        ("fn f() -> Alias { if a { b() } else if c { b() } else { Box::pin(async {}) } }", future),
        ("fn f() -> Alias { match a { 1 => b(), _ => async {}.boxed() } }", future),
        ("fn f() -> Alias { 'a: { Box::pin(async {}) } }", future),
        ("fn f() -> Alias { let b = async {}; Box::pin(b) }", future),
        ("fn f() -> Alias { let b: Alias = Box::pin(async {}); { b } }", future),
        ("impl S { async fn f() {} fn g() -> Alias { if a { async {}.boxed() } else { b() } } }", future),
        ("fn f() -> Job { Job::new(async {}) }", future),
        ("fn f() -> R { let b = async {}; let b = run(b); b }", sync),
        ("fn f() -> Alias { let b = async {}; if a { Box::pin(trace(b)) } else { Box::pin(b) } }", future),
        ("fn f() -> Alias { let b = async {}; let c: Alias = Box::pin(b); c }", future),
        ("impl S { async fn f() {} fn g() -> Alias { if a { return Box::pin(async {}); } self.h() } }", future),
        ("impl S { async fn f() {} fn g() -> Alias { Box::pin(async {}.boxed().map_err(e)) } }", future),
        ("fn f() -> Alias { Box::pin((async {}.map_err(e)).boxed()) }", future),
        ("fn f() -> Alias { async {}.map_err(e).boxed() }", future),
        ("fn f() -> Alias { let b = async {}; Box::pin(b.map_err(e)) }", future),
        ("fn f() -> Alias { let b = async {}.map_err(e); Box::pin(b) }", future),
        (
            "fn f() -> Alias { if a { return Box::pin(async {}) as Pin<Box<dyn Future<Output = Result<A, E>>>>; } h() }",
            future,
        ),
        ("fn f() -> Alias { match a { 1 => return Box::pin(async {}), _ => h() } }", future),
        ("fn f() -> R { if a { return block_on(async {}); } r() }", blocks),
        ("fn f() -> R { let a = || { return async {}; }; a.run() }", sync),
        ("fn f() -> Alias { Box::pin(timeout(limit, async {})) }", future),
        ("impl S { #[limit_request_per_time(\"a\", 1, Days, 1)] fn f() {} }", sync),
        (
            "async fn f() -> R { let charges = [::x::__private::charge()]; if ::x::__private::limit_one(&charges).await {} }",
            "another rate limit is already applied to this function, under a different name or through `cfg_attr`: write every attribute as #[limit_request_per_time(..)] or #[limit_concurrent_requests(..)]",
        ),
        (
            "fn f(__arg0: (u64, u64)) -> Pin<Box<dyn Future<Output = R>>> { Box::pin(async move { let (id, b) = { let __arg0 = __arg0; __arg0 }; id }) }",
            "`id` has no value yet when the limit is checked, #[async_trait] takes the argument apart later: give the argument a name and take it apart in the body",
        ),
    ] {
        check("\"a\", 1, Days, 1, key = (self.b, id)", item, &[expected]);
    }
}

#[test]
fn methods_that_may_return_a_future() {
    let expected = "this method returns a value that is made of an async block, and may be a future: write #[limit_request_per_time(skip)], or end the method in the block or in `Box::pin` of it";
    for method in [
        "fn g() -> Job { if a { return Job::new(async {}); } self.h() }",
        "fn g() -> Job { Job::new(async {}) }",
        "fn g() -> Job { if a { Job::new(async {}) } else { b } }",
        "fn g() -> Job { let b = async {}; Job::new(b) }",
        "fn g() -> Alias { Box::pin(ID.scope(id, async {})) }",
        "fn g() -> Alias { Box::pin(timeout(limit, async {}.boxed())) }",
        "fn g() -> Alias { timeout(limit, async {}).boxed() }",
        "fn g() -> Alias { Box::into_pin(Box::new(timeout(limit, async {}))) }",
        "fn g() -> Alias { Box::pin(retry(|| async {}).on(a).map(b)) }",
        "fn g() -> Alias { Box::pin(a(b(c(async {})))) }",
        "fn g() -> Alias { let b = async {}; Box::pin(timeout(limit, b)) }",
        "fn g() -> Alias { let b = timeout(limit, async {}); Box::pin(b) }",
        "fn g() -> Alias { if a { Box::pin(b(async {})) } else { h() } }",
        "fn g() -> Answer<TcpStream> { Box::pin(timeout(limit, async {})) }",
        "fn g() -> Alias { Box::pin(retry(|| timeout(limit, async {}))) }",
        "fn g() -> Alias { Box::pin(retry(async || {})) }",
        "fn g() -> Alias { Box::pin((async {}, async {}).join()) }",
        "fn g() -> Alias { let b = (async {},); let c = join(b); Box::pin(c) }",
        "fn g() -> Job { Job::new(id, async {}) }",
        "fn g() -> Job { Job(Box::pin(async {})) }",
        "fn g() -> Alias { Box::pin(Retry::new(policy, || async {})) }",
        "fn g() -> Alias { Box::pin(Job::new(id, timeout(async {}))) }",
        "fn g() -> Alias { Box::pin(if a { b } else { timeout(async {}) }) }",
        "fn g() -> Alias { let a = self.b(); Box::pin(a.then(|c| async {})) }",
        "fn g() -> (Alias, u64) { (Box::pin(async {}), 5) }",
        "fn g() -> Job { Job { id, f: Box::pin(async {}) } }",
        "fn g() -> Alias { Ok(async {}.boxed()) }",
        "fn g() -> Timeout<impl Future<Output = R>> { timeout(limit, async {}) }",
        "fn g() -> impl TryFuture<Ok = A> { timeout(limit, async {}) }",
        "fn g() -> Alias { Box::pin(if a { timeout(limit, async {}) } else { b() }) }",
        "fn g() -> Job { let a = b(); let c = async {}; Box::pin(Job::new(a, d(c))) }",
        "fn g() -> Alias { let b: Alias; if a { b = Box::pin(timeout(limit, async {})); } else { b = h(); } b }",
        "fn g() -> Alias { let b; let c; (b, c) = (Box::pin(async {}), 1); b }",
        "fn g() -> Alias { Instrument::new(async {}) }",
    ] {
        check("\"a\", 1, Days, 1", &format!("impl S {{ async fn f() {{}} {method} }}"), &[expected]);
    }
}

#[test]
fn an_argument_with_another_value_at_the_limit() {
    for (before, is_other) in [
        ("let id = next();", true),
        ("let id = id / 100;", true),
        ("let (id, rest) = split(id);", true),
        ("let (id, name) = (next(), name.clone());", true),
        ("let id = Thing::new(id);", true),
        ("let id = !id;", true),
        ("let (id, _) = id;", true),
        ("let &id = id;", false),
        ("let id = u64::from(id);", false),
        ("let Id(id) = id;", true),
        ("let (Left(id) | Right(id)) = side(id);", true),
        ("let id = Shard::from(id);", true),
        ("let id = id;", false),
        ("let id = *id;", false),
        ("let id = (id);", false),
        ("let id = Arc::new(id);", false),
        ("let (id, name) = (id.clone(), name.clone());", false),
        ("let id = id.clone();", false),
        ("let id = Arc::clone(&id);", false),
        ("let id: String = id.to_owned();", false),
        ("let id: String = id.into();", false),
        ("let id: std::sync::Arc<str> = id.into();", false),
        ("let id: Shard = id.into();", true),
        ("let id: Shard = (id.into());", true),
        ("let (id, n): (Shard, u8) = (id.into(), 1);", true),
        ("let (id, n): (String, u8) = (id.into(), 1);", false),
        ("let id: (&str) = id.into();", false),
        ("let id: _ = id.into();", false),
        ("let id = id.into();", false),
        ("let rest = id + 1;", false),
        ("let other = id; other.save();", false),
    ] {
        let item =
            format!("fn f(id: u64) -> impl Future<Output = R> {{ {before} async move {{ let id = 1; g(id) }} }}");
        let expected = [
            "`id` is not the argument where the limit is checked, in the async block: a `let` in front of it has the same name. Give that variable another name",
        ];
        check("\"a\", 1, Days, 1, key = id", &item, if is_other { &expected } else { &[] });
        check("\"a\", 1, Days, 1, key = self.id", &item, &[]);
        if is_other {
            for key in [
                "name[..id]",
                "name[..=id]",
                "name[..(id != x) as usize]",
                "format!(\"{id}\")",
                "format!(\"{{ {id:?}\")",
                "format!(\"{:1$}{:id$}\", 1)",
                "format!(\"{x:0id$}\")",
            ] {
                check(&format!("\"a\", 1, Days, 1, key = {key}"), &item, &expected);
            }
            for key in [
                "name.id",
                "id!(x)",
                "id![x]",
                "name[..a.id]",
                "format!(\"{ids}{grid} id\")",
                "format!(\"{:grid$}\", 1)",
                "format!(\"{{id}}{x}\")",
                "x.replace(\"{id}\", y)",
            ] {
                check(&format!("\"a\", 1, Days, 1, key = {key}"), &item, &[]);
            }
            for argument in [
                "limiter = id.limiter()",
                "on_limit = Return(Ok(id))",
                "on_limit = Return(Page { id: id })",
                "on_limit = Return(Page { rest, id })",
                "on_limit = Return(a | id | 5)",
                "on_limit = Return(a.b(|id| id.c, id))",
                "on_limit = Return({ let id = id.trim(); id })",
                "on_limit = Return(if a || id > 5 { 1 } else { 2 })",
                "cost = Settled(max = 1, |done| done.rows + id)",
                "cost = Settled(max = 1, |done| id(&mut id))",
            ] {
                check(&format!("\"a\", 1, Days, 1, {argument}"), &item, &expected);
            }
            for argument in [
                "limiter = a.id",
                "limiter = id::limiter()",
                "limiter = &crate::id",
                "on_limit = Return(a.id)",
                "on_limit = Return(Page { id: 0, rest: rest.map(|(id, _)| id) })",
                "on_limit = Return({ let mut id = 5; id += 1; id })",
                "cost = Settled(max = 1, |id| id.rows)",
                "on_limit = Return(Page { id: 0, map: |id| id })",
                "on_limit = Return(a.map(&|id| id.b).map(|a| |id| id))",
                "cost = Settled(max = 1, move |a: &A| { let id = a.id; id })",
                "cost = Settled(max = 1, |id: &Rows| id.rows)",
            ] {
                check(&format!("\"a\", 1, Days, 1, {argument}"), &item, &[]);
            }
            let within = format!("fn f(id: u64) -> BoxFuture<R> {{ Box::pin({{ {before} async move {{ g(id) }} }}) }}");
            check("\"a\", 1, Days, 1, key = id", &within, &expected);
        }
    }
}

#[test]
fn blocking() {
    let declaration =
        "a declaration has no body to limit: write the attribute on the implementation, or on a default body";
    let returns = "`blocking` is for a function that does its work itself, and this one returns a future: leave it out";
    for (item, expected) in [
        ("async fn f() {}", "`blocking` is for a function that is not async: leave it out, or write `fn`"),
        ("fn f() -> impl Future<Output = R> { g() }", returns),
        ("fn f() -> Alias { Box::pin(async move {}) }", returns),
        ("fn f() -> Alias { if a { Box::pin(async {}) } else { b() } }", returns),
        ("fn f() -> Alias { let b = async {}; Box::pin(b) }", returns),
        ("const fn f() {}", "a `const fn` can't ask a limiter: leave `const` out"),
        ("fn f();", declaration),
        (
            "impl S { async fn f() {} fn g() {} }",
            "the limit of an `impl` block covers its async methods: write `blocking` on a method",
        ),
    ] {
        check("\"a\", 1, Days, 1, blocking", item, &[expected]);
    }
    for item in
        ["fn f() {}", "fn main() {}", "#[test] fn f() { block_on(async {}) }", "unsafe extern \"C\" fn f() -> R {}"]
    {
        check("\"a\", 1, Days, 1, blocking", item, &[]);
    }
    check("\"a\", 1, Days, 1", "#[limit_concurrent_requests(\"b\", 1, blocking)] fn f() {}", &[]);
    check("\"a\", 1, Days, 1", "impl S { #[limit_concurrent_requests(\"b\", 1, blocking)] fn f() {} }", &[]);
    for item in [
        "fn f() -> impl Future<Output = R> { async move {}.instrument(span()) }",
        "fn f() -> impl Future<Output = R> { return { let a = 1; { async move { a } } }; }",
        "fn f() -> BoxFuture<R> { Box::pin(async move {}.in_current_span().with_subscriber(s)) }",
        "impl S { async fn f() {} #[limit_request_per_time(skip)] fn g() -> Job { Job::new(async {}) } }",
        "fn f() -> BoxFuture<R> { let a = b.map_or_else(|| 0, |c| { if c > 9 { return 9; } c }); Box::pin(async move {}) }",
        "fn f() -> BoxFuture<R> { Box::into_pin(Box::new(unsafe { async move {} })) }",
        "fn f() -> BoxFuture<R> { unsafe { return Box::pin(async move {}); } }",
        "impl S { async fn f() {} fn g() -> R { async {}.block_on() } }",
        "impl S { async fn f() {} fn g() -> BoxStream<R> { Box::pin(async {}.flatten_stream()) } }",
        "impl S { async fn f() {} fn g() -> Pin<Box<dyn Stream<Item = R>>> { iter(a).then(|b| async {}).boxed() } }",
        "fn f() -> BoxFuture<R> { #[cfg(a)] { log(); } Box::pin(async move {}) }",
        "fn f() -> Alias { FutureExt::boxed(async move {}) }",
        "fn f() -> Alias { Box::pin(WithSubscriber::with_current_subscriber(async move {})) }",
        "impl S { async fn f() {} fn g(&mut self) -> usize { let n; n = self.n(); self.jobs[n] = Box::pin(async {}); n } }",
        "impl S { async fn f() {} fn g(&mut self) -> Id { let n; n = self.n(); *self.job(n) = Box::pin(async {}); n } }",
        "impl S { async fn f() {} fn g() -> Task { let b = async {}; #[cfg(a)] let b = c(b); #[cfg(not(a))] let b = d(b); b } }",
        "impl S { async fn f() {} fn g() -> u64 { let mut n = 0; if a { n = 1; } spawn(async {}); n } }",
        "fn f() -> Alias { MyFutureExt::pin(async move {}) }",
        "impl S { async fn f() {} fn g() -> u64 { let n; if a { n = 1 } else { n = 2 } spawn(async {}); n } }",
        "impl S { async fn f() {} fn g() -> Task { let n; if a { n = spawn(async {}); } else { n = h(); } n } }",
        "impl S { async fn f() {} fn g() -> R { tokio::spawn(async {}) } }",
        "impl S { async fn f() {} fn g() -> Worker { let a = tokio::spawn(async {}); Worker::new(a) } }",
        "impl S { async fn f() {} fn g() -> Worker { Worker { a: tokio::spawn(async {}) } } }",
        "impl S { async fn f() {} fn g() -> A { let a = self.runtime.block_on(async {}); A::new(a) } }",
        "impl S { async fn f() {} fn g() -> BoxService<A> { service_fn(|a| async {}).boxed() } }",
        "impl S { async fn f() {} fn g() -> Box<dyn Stream<Item = A>> { Box::pin(once(async {})) } }",
        "impl S { async fn f() {} fn g() -> Result<BoxStream<A>, E> { Ok(self.b().then(|a| async {}).boxed()) } }",
        "impl S { async fn f() {} fn g() -> Sse<BoxStream<A>> { Sse::new(once(async {}).boxed()) } }",
        "impl S { async fn f() {} fn g() -> Option<FuturesContract> { self.async_cache.get() } }",
        "impl S { async fn f() {} fn g() -> Alias { let a = b(); Box::pin(timeout(limit, a)) } }",
        "impl S { async fn f() {} #[limit_request_per_time(skip)] fn g() -> Alias { Box::pin(h(async {})) } }",
        "impl S { async fn f() {} fn g() -> Box<R> { Box::new(async {}.now_or_never()) } }",
        "impl S { async fn f() {} fn g() -> Result<H, E> { Job::new(async {}).map_err(e) } }",
    ] {
        check("\"a\", 1, Days, 1", item, &[]);
    }
}
