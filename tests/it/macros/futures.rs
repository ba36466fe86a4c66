//! Functions that return a future.

use std::pin::Pin;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use ratelimit_runtime::{Limiter, limit_request_per_time};

use super::{R, exceeded, limits_each_key, send};

#[tokio::test]
async fn a_function_that_returns_impl_future_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    fn call(id: u64) -> impl Future<Output = R> + Send {
        let next = id + 1;
        async move { Ok(next - 1) }
    }
    limits_each_key(async |id| send(call(id)).await).await;
}

#[tokio::test]
async fn a_returned_impl_future_may_borrow() {
    #[limit_request_per_time("item", 1, Hours, 1, key = *id)]
    fn call(id: &u64) -> impl Future<Output = R> + Send + '_ {
        let next = id + 1;
        async move { Ok(next - 1) }
    }
    limits_each_key(async |id| call(&id).await).await;
}

#[tokio::test]
async fn a_function_that_returns_box_pin_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    fn call(id: u64) -> Pin<Box<dyn Future<Output = R> + Send>> {
        Box::pin(async move { Ok(id) })
    }
    limits_each_key(async |id| send(call(id)).await).await;
}

#[tokio::test]
async fn a_returned_box_pin_may_be_cast() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    fn call(id: u64) -> Pin<Box<dyn Future<Output = R>>> {
        Box::pin(async move { Ok(id) }) as _
    }
    limits_each_key(call).await;
}

#[tokio::test]
async fn a_function_that_returns_a_pin_from_a_box_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    fn call(id: u64) -> Pin<Box<dyn Future<Output = R>>> {
        Pin::from(Box::new(async move { Ok(id) }))
    }
    limits_each_key(call).await;
}

#[tokio::test]
async fn a_function_that_returns_a_boxed_future_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    fn call(id: u64) -> Pin<Box<dyn Future<Output = R> + Send>> {
        async move { Ok(id) }.boxed()
    }
    limits_each_key(call).await;
}

/// Written as a function, in front of it a statement that is not in each program.
#[tokio::test]
async fn a_future_that_is_boxed_by_the_function_of_its_trait_is_limited() {
    #[limit_request_per_time("item", 1, Days, 1, key = id)]
    fn call(id: u64) -> Pin<Box<dyn Future<Output = R> + Send>> {
        #[cfg(test)]
        {
            std::hint::black_box(());
        }
        FutureExt::boxed(async move { Ok(id) })
    }
    limits_each_key(call).await;
}

#[tokio::test]
async fn a_function_that_returns_box_future_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = *id)]
    fn call(id: &u64) -> BoxFuture<'_, R> {
        async move { Ok(*id) }.boxed()
    }
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    fn local(id: u64) -> LocalBoxFuture<'static, R> {
        async move { Ok(id) }.boxed_local()
    }
    limits_each_key(async |id| send(call(&id)).await).await;
    limits_each_key(local).await;
}

#[tokio::test]
async fn the_future_may_be_returned_by_a_statement() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    #[expect(clippy::needless_return)]
    fn call(id: u64) -> BoxFuture<'static, R> {
        return Box::pin(async move { Ok(id) });
    }
    limits_each_key(call).await;
}

/// An alias of the type hides nothing: it is the body that is looked at.
#[tokio::test]
async fn the_type_of_a_returned_future_may_be_an_alias() {
    type Answer = Pin<Box<dyn Future<Output = R>>>;
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    fn call(id: u64) -> Answer {
        Box::pin(async move { Ok(id) })
    }
    limits_each_key(call).await;
}

#[tokio::test]
async fn a_trait_method_that_returns_a_future_is_limited() {
    trait Api {
        fn id(&self) -> u64;

        #[limit_request_per_time("item", 1, Hours, 1, key = self.id())]
        fn call(&self) -> impl Future<Output = R> + Send
        where
            Self: Sync,
        {
            async { Ok(self.id()) }
        }
    }
    struct Client(u64);
    impl Api for Client {
        fn id(&self) -> u64 {
            self.0
        }
    }
    limits_each_key(async |id| send(Client(id).call()).await).await;
}

/// A future that is not polled is not counted.
#[tokio::test]
async fn a_returned_future_is_counted_when_first_polled() {
    #[limit_request_per_time("async", 1, Hours, 1)]
    async fn is_async() -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("boxed", 1, Hours, 1)]
    fn boxed() -> BoxFuture<'static, R<()>> {
        Box::pin(async move { Ok(()) })
    }
    let calls = async {
        drop(is_async());
        is_async().await.unwrap();
        exceeded(is_async().await);
        drop(boxed());
        boxed().await.unwrap();
        exceeded(boxed().await);
    };
    Limiter::in_memory().scope(calls).await;
}
