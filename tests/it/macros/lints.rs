//! Generated code passes every lint of a user, without an `allow`.
#![deny(
    warnings,
    keyword_idents,
    let_underscore,
    missing_docs,
    nonstandard_style,
    refining_impl_trait,
    rust_2018_idioms,
    unused,
    closure_returning_async_block,
    redundant_lifetimes,
    single_use_lifetimes,
    trivial_casts,
    trivial_numeric_casts,
    unit_bindings,
    unreachable_pub,
    unused_braces,
    unused_lifetimes,
    unused_qualifications,
    unused_results,
    variant_size_differences,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::allow_attributes,
    clippy::items_after_statements,
    clippy::let_underscore_must_use,
    clippy::let_underscore_untyped,
    clippy::shadow_reuse,
    clippy::shadow_same,
    clippy::shadow_unrelated,
    clippy::semicolon_inside_block,
    clippy::str_to_string,
    clippy::unneeded_field_pattern
)]

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use ratelimit_runtime::{Limiter, Permit, RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R<T = u64> = Result<T, RequestPerMinute>;

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Minutes, count = 100, key = request.id)]
async fn free(request: Request) -> R<String> {
    use std::fmt::Write as _;
    let mut name = request.name;
    write!(name, "{}", request.id).unwrap();
    Ok(name)
}

struct Request {
    id: u64,
    name: String,
}

#[limit_request_per_time("item", 1, Minutes, 100)]
async fn without_key() -> R<()> {
    Ok(())
}

#[limit_request_per_time("item", 1, Minutes, count = limit, key = &*lock.lock().unwrap(), cost = rows.len())]
async fn values(limit: u32, lock: &Mutex<String>, rows: &[u64]) -> R {
    tokio::task::yield_now().await;
    Ok(rows.iter().sum())
}

#[limit_request_per_time("item", N, Hours, const { M as u64 }, key = id, on_missing_key = Shared, algorithm = SlidingLog)]
async fn const_generic<const M: usize, const N: u64>(id: Option<&str>) -> R {
    Ok(N)
}

#[limit_request_per_time("item", 1, Minutes, 100, key = id, permit = permit, limiter = &limiter, on_store_error = Deny)]
async fn permit(id: u64, limiter: Arc<Limiter>) -> R<Permit> {
    Ok(permit)
}

#[limit_request_per_time("item", 1, Minutes, 100, permit = _permit, on_limit = Wait(max = "1s"))]
async fn waits() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 100, on_limit = Return(Ok(0)))]
async fn returns() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 100, on_limit = Return(fallback(&refused).await), permit = permit)]
async fn returns_awaiting() -> R {
    Ok(permit.remaining())
}

async fn fallback(refused: &RequestPerMinute) -> R {
    tokio::task::yield_now().await;
    Ok(refused.limit())
}

#[limit_request_per_time("one", 1, Minutes, 100, key = refused)]
#[limit_request_per_time("two", 1, Minutes, count = charges, key = limiter)]
#[limit_request_per_time("three", 1, Minutes, 1, key = call, cost = const { 1 + 1 })]
async fn stacked(charges: u64, refused: u64, limiter: u64, call: u64) -> R {
    Ok(charges + refused + limiter + call)
}

#[limit_request_per_time("item", 1, Minutes, 100, key = (a, id))]
async fn taken_apart<T>((a, b): (u64, u64), Request { id, .. }: Request, of: impl Into<u64>, t: &T) -> R
where
    T: Into<u64> + Copy + Sync,
{
    Ok(a + b + id + of.into() + (*t).into())
}

#[limit_request_per_time("item", 1, Minutes, 100, key = depth)]
async fn recursive(depth: u64) -> R {
    if depth == 0 {
        return Ok(0);
    }
    Ok(Box::pin(recursive(depth - 1)).await? + 1)
}

#[limit_request_per_time("item", 1, Minutes, 100, key = id)]
fn impl_future(id: u64) -> impl Future<Output = R> + Send {
    let other = id + 1;
    async move { Ok(id + other) }
}

#[limit_request_per_time("item", 1, Minutes, 100, key = id)]
fn box_pin(id: u64) -> Pin<Box<dyn Future<Output = R> + Send>> {
    Box::pin(async move { Ok(id) })
}

#[limit_request_per_time("item", 1, Minutes, 100, key = id)]
fn boxed(id: u64) -> BoxFuture<'static, R> {
    async move { Ok(id) }.boxed()
}

#[limit_concurrent_requests("place", 3, key = id)]
async fn place(id: u64) -> R {
    tokio::task::yield_now().await;
    Ok(id)
}

#[limit_request_per_time("item", 1, Minutes, 100, on_limit = Return(Err(refused)))]
#[limit_concurrent_requests("place", count = id, permit = permit, on_limit = Return({
    drop(fallback(&refused).await);
    Ok(false)
}))]
async fn place_beside(id: u64) -> R<bool> {
    Ok(permit.is_held())
}

#[limit_request_per_time("time", 1, Minutes, 20_000, algorithm = SlidingLog, cost = Elapsed(max = "5s"))]
async fn elapsed() -> R {
    Ok(1)
}

#[limit_request_per_time("tokens", 1, Minutes, 100, algorithm = SlidingLog, cost = Settled(max = 10, |answer| tokens(answer) / 2))]
async fn settled(prompt: String) -> R<String> {
    if prompt.is_empty() {
        return Ok(prompt);
    }
    let half = prompt.get(..1).map(str::to_owned);
    without_key().await?;
    Ok(half.unwrap_or(prompt))
}

fn tokens(answer: &R<String>) -> usize {
    answer.as_ref().map_or(0, String::len)
}

#[limit_request_per_time("tokens", 1, Minutes, 100, algorithm = SlidingLog, cost = Settled(max = most, |_| 3_i32))]
async fn settled_without_a_name(most: u64) -> R<impl Iterator<Item = u64>> {
    tokio::task::yield_now().await;
    Ok(0..most)
}

#[limit_request_per_time("item", 1, Minutes, 100)]
async fn diverges() -> R {
    unimplemented!()
}

#[limit_request_per_time("item", 1, Minutes, 100)]
async fn returns_early(id: u64) -> R {
    if id == 0 {
        return Ok(1);
    }
    let half = id / 2;
    Ok(half)
}

#[limit_request_per_time("item", 1, Minutes, 100)]
#[tracing::instrument]
async fn above_instrument() -> R {
    Ok(1)
}

#[tracing::instrument(skip_all, err)]
#[limit_request_per_time("item", 1, Minutes, 100)]
async fn below_instrument() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 100)]
#[tokio::test]
async fn an_annotated_tokio_test_passes_all_lints() -> R<()> {
    Ok(())
}

#[limit_request_per_time("item", 1, Minutes, 100, key = id, on_limit = Return(refused.limit()), blocking)]
fn blocking(id: u64) -> u64 {
    id
}

#[limit_concurrent_requests("place", 3, permit = permit, on_limit = Wait)]
#[limit_request_per_time("time", 1, Minutes, 20_000, algorithm = SlidingLog, cost = Elapsed(max = "5s"), blocking)]
fn blocking_elapsed() -> R<bool> {
    Ok(permit.is_held())
}

#[limit_request_per_time("tokens", 1, Minutes, 100, algorithm = SlidingLog, blocking,
    cost = Settled(max = 10, |answer| tokens(answer) / 2))]
fn blocking_settled(prompt: String) -> R<String> {
    if prompt.is_empty() {
        return Ok(prompt);
    }
    let half = prompt.get(..1).map(str::to_owned);
    let _: bool = blocking_elapsed()?;
    Ok(half.unwrap_or(prompt))
}

struct Client {
    id: u64,
    limiter: Limiter,
}

#[limit_request_per_time("client", 1, Minutes, 100, key = self.id, limiter = &self.limiter)]
impl Client {
    const fn id(&self) -> u64 {
        self.id
    }

    #[limit_request_per_time(skip)]
    async fn skipped(&self) -> u64 {
        tokio::task::yield_now().await;
        self.id
    }

    async fn by_ref(&self) -> R {
        Ok(self.id())
    }

    async fn by_mut(&mut self) -> R {
        self.id += 1;
        Ok(self.id)
    }

    #[limit_request_per_time("more", 1, Minutes, 100, key = other)]
    async fn by_value(self, other: u64) -> R {
        Ok(self.id + other)
    }

    async fn boxed(mut self: Box<Self>) -> R {
        self.id += 1;
        Ok(self.id)
    }
}

trait Native {
    fn id(&self) -> u64;

    #[limit_request_per_time("native", 1, Minutes, 100, key = self.id())]
    async fn default(&self) -> R {
        Ok(self.id())
    }

    async fn implemented(&self) -> R;
}

impl Native for Client {
    fn id(&self) -> u64 {
        self.id
    }

    #[limit_request_per_time("native", 1, Minutes, 100, key = self.id)]
    async fn implemented(&self) -> R {
        Ok(self.id)
    }
}

#[async_trait]
trait Dynamic: Send + Sync {
    async fn by_ref(&self, other: &str) -> R;
    async fn by_mut(&mut self, pair: (u64, u64)) -> R;

    #[limit_request_per_time("default", 1, Minutes, 100)]
    async fn default(&self) -> R {
        Ok(1)
    }
}

#[async_trait]
impl Dynamic for Client {
    #[limit_request_per_time("ref", 1, Minutes, 100, key = (self.id, other))]
    async fn by_ref(&self, other: &str) -> R {
        drop(other.to_owned());
        Ok(self.id)
    }

    #[limit_request_per_time("mut", 1, Minutes, 100, key = self.id)]
    async fn by_mut(&mut self, (a, b): (u64, u64)) -> R {
        self.id = a;
        Ok(self.id + b)
    }
}

#[async_trait]
trait Answers: Send + Sync {
    async fn answer(&self, prompt: String) -> R<String>;
    async fn export(&mut self, pair: (u64, u64)) -> R;
}

#[async_trait]
impl Answers for Client {
    #[limit_request_per_time("tokens", 1, Minutes, 100, algorithm = SlidingLog, cost = Settled(max = 10, tokens))]
    async fn answer(&self, prompt: String) -> R<String> {
        Ok(prompt)
    }

    #[limit_concurrent_requests("export", 3, key = self.id)]
    async fn export(&mut self, (a, b): (u64, u64)) -> R {
        self.id = a;
        Ok(self.id + b)
    }
}

struct Above(u64);

#[limit_request_per_time("above", 1, Minutes, 100, key = self.0)]
#[async_trait]
impl Dynamic for Above {
    async fn by_ref(&self, other: &str) -> R {
        drop(other.to_owned());
        Ok(self.0)
    }

    #[limit_request_per_time("mut", 1, Minutes, 100, key = a)]
    async fn by_mut(&mut self, (a, b): (u64, u64)) -> R {
        self.0 = a;
        Ok(self.0 + b)
    }
}

struct Below(u64);

#[async_trait]
#[limit_request_per_time("below", 1, Minutes, 100, key = self.0)]
impl Dynamic for Below {
    async fn by_ref(&self, other: &str) -> R {
        drop(other.to_owned());
        Ok(self.0)
    }

    async fn by_mut(&mut self, (a, b): (u64, u64)) -> R {
        self.0 = a;
        Ok(self.0 + b)
    }
}

macro_rules! of_macro {
    ($name:ident, $count:literal, $key:expr, $argument:ident, $body:block) => {
        #[limit_request_per_time("item", 1, Minutes, $count, key = $key, on_limit = Return(Err(refused)))]
        async fn $name($argument: u64) -> R $body
    };
}
of_macro!(of_macro, 100, id, id, { Ok(id) });

/// Unused code is still found.
#[expect(dead_code)]
#[limit_request_per_time("item", 1, Minutes, 100, key = id)]
async fn never_called(id: u64) -> R {
    Ok(id)
}

struct Unused;

#[limit_request_per_time("item", 1, Minutes, 100)]
impl Unused {
    #[expect(dead_code)]
    async fn never_called(&self) -> R {
        Ok(1)
    }

    #[expect(clippy::unused_async)]
    #[limit_request_per_time(skip)]
    async fn not_limited() {}
}

/// So are unused arguments and needless code of the body.
#[limit_request_per_time("item", 1, Minutes, 100)]
#[expect(unused_variables, clippy::needless_return, clippy::let_and_return)]
async fn bad_style(id: u64) -> R {
    let one = {
        let one = 1;
        one
    };
    return Ok(one);
}

/// So are imports for an attribute that is joined by the other one.
mod joined {
    use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

    #[limit_concurrent_requests("export", 3)]
    #[limit_request_per_time("item", 1, Minutes, 100)]
    pub(super) async fn per_time() -> Result<u64, RequestPerMinute> {
        Ok(1)
    }
}

/// And the other way round, on a method of a block.
mod joined_in_a_block {
    use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

    pub(super) struct Exports;

    #[limit_request_per_time("item", 1, Minutes, 100)]
    impl Exports {
        #[limit_concurrent_requests("export", 3)]
        pub(super) async fn export(&self) -> Result<u64, RequestPerMinute> {
            Ok(1)
        }
    }
}

#[tokio::test]
async fn every_shape_that_passes_all_lints_also_runs() {
    let request = || Request { id: 1, name: String::new() };
    let client = || Client { id: 1, limiter: Limiter::in_memory() };
    let calls = async {
        assert_eq!(free(request()).await?, "1");
        without_key().await?;
        assert_eq!(values(7, &Mutex::new(String::new()), &[1, 2]).await?, 3);
        assert_eq!(const_generic::<1, 2>(None).await?, 2);
        assert_eq!(permit(1, Arc::new(Limiter::in_memory())).await?.remaining(), 99);
        assert_eq!([waits().await?, returns().await?], [1, 1]);
        assert!(returns_awaiting().await? > 0);
        assert_eq!(place(1).await?, 1);
        assert!(place_beside(1).await?);
        assert_eq!(elapsed().await?, 1);
        assert_eq!(settled("prompt".into()).await?, "p");
        assert_eq!((blocking(1), blocking_elapsed()?), (1, true));
        assert_eq!([blocking_settled("prompt".into())?, blocking_settled(String::new())?], ["p", ""]);
        assert_eq!(settled_without_a_name(2).await?.count(), 2);
        assert!(stacked(1, 1, 1, 1).await.is_err());
        assert_eq!(taken_apart((1, 1), request(), 1_u32, &1_u8).await?, 5);
        assert_eq!(recursive(2).await?, 2);
        assert_eq!([impl_future(1).await?, box_pin(1).await?, boxed(1).await?], [3, 1, 1]);
        drop(diverges());
        assert_eq!([returns_early(4).await?, above_instrument().await?, below_instrument().await?], [2, 1, 1]);
        let mut one = client();
        assert_eq!([one.skipped().await, one.by_ref().await?, one.by_mut().await?], [1, 1, 2]);
        assert_eq!([one.by_value(1).await?, Box::new(client()).boxed().await?], [3, 2]);
        assert_eq!([Native::default(&client()).await?, client().implemented().await?], [1, 1]);
        let dynamics: [Box<dyn Dynamic>; 3] = [Box::new(client()), Box::new(Above(1)), Box::new(Below(1))];
        for mut dynamic in dynamics {
            assert_eq!([dynamic.by_ref("").await?, dynamic.by_mut((1, 1)).await?, dynamic.default().await?], [1, 2, 1]);
        }
        assert_eq!((client().answer("a".into()).await?, client().export((1, 2)).await?), ("a".into(), 3));
        Unused::not_limited().await;
        assert_eq!([joined::per_time().await?, joined_in_a_block::Exports.export().await?], [1, 1]);
        assert_eq!([of_macro(1).await?, bad_style(1).await?], [1, 1]);
        R::Ok(())
    };
    Limiter::in_memory().scope(calls).await.unwrap();
}
