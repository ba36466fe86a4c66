//! Return types of annotated functions.

use std::error::Error;

use ratelimit_runtime::{Cause, FromRefusal, Limiter, RequestPerMinute, limit_request_per_time};

/// Runs the first call and refuses the second.
async fn limits<T>(call: impl AsyncFn() -> T, is_refused: impl Fn(T) -> bool) {
    let calls = async { [is_refused(call().await), is_refused(call().await)] };
    assert_eq!(Limiter::in_memory().scope(calls).await, [false, true]);
}

struct Failed(Cause);

impl From<RequestPerMinute> for Failed {
    fn from(refused: RequestPerMinute) -> Self {
        Self(refused.cause())
    }
}

#[tokio::test]
async fn a_function_may_return_a_result() {
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn call() -> Result<(), Failed> {
        Ok(())
    }
    limits(call, |answer| answer.is_err_and(|Failed(cause)| cause == Cause::Exceeded)).await;
}

#[tokio::test]
async fn a_function_may_return_an_alias_of_result() {
    type Answer<T = ()> = Result<T, Failed>;
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn call() -> Answer {
        Ok(())
    }
    limits(call, |answer| answer.is_err()).await;
}

#[tokio::test]
async fn a_function_may_return_a_boxed_error() {
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn call() -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
    limits(call, |answer| answer.is_err_and(|error| error.downcast_ref::<RequestPerMinute>().is_some())).await;
}

#[tokio::test]
async fn a_function_may_return_a_generic_error() {
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn call<E: From<RequestPerMinute>>() -> Result<(), E> {
        Ok(())
    }
    limits(call::<Failed>, |answer| answer.is_err()).await;
}

#[derive(PartialEq)]
enum Answer {
    Page,
    SlowDown,
}

impl FromRefusal for Answer {
    fn from_refusal(_: RequestPerMinute) -> Self {
        Self::SlowDown
    }
}

#[tokio::test]
async fn a_function_may_return_a_type_made_from_a_refusal() {
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn call() -> Answer {
        Answer::Page
    }
    #[limit_request_per_time("item", 1, Hours, 1)]
    fn boxed() -> std::pin::Pin<Box<dyn Future<Output = Answer>>> {
        Box::pin(async { Answer::Page })
    }
    limits(call, |answer| answer == Answer::SlowDown).await;
    limits(boxed, |answer| answer == Answer::SlowDown).await;
}

#[tokio::test]
async fn methods_of_a_block_may_return_a_type_made_from_a_refusal() {
    struct Client;
    impl FromRefusal for Client {
        fn from_refusal(_: RequestPerMinute) -> Self {
            panic!("refused")
        }
    }
    #[limit_request_per_time("item", 1, Hours, 1)]
    impl Client {
        async fn new() -> Self {
            Client
        }
        async fn answer(&self) -> Answer {
            Answer::Page
        }
    }
    let calls = async { Client::new().await.answer().await };
    assert!(Limiter::in_memory().scope(calls).await == Answer::SlowDown);
}
