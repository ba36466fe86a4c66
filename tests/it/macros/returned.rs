//! Return types of annotated functions.

use std::error::Error;

use axum::Json;
use axum::http::StatusCode;
use axum::response::Response;
use ratelimit_runtime::{
    Cause, FromRefusal, Limiter, RequestPerMinute, limit_concurrent_requests, limit_request_per_time,
};

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

/// With `on_limit = Return(..)` the returned type needs nothing.
#[tokio::test]
async fn a_function_with_a_value_to_return_may_return_any_type() {
    #[limit_request_per_time("option", 1, Hours, 1, on_limit = Return(None))]
    async fn option() -> Option<u64> {
        Some(1)
    }
    #[limit_request_per_time("list", 1, Hours, 1, on_limit = Return(vec![refused.rule()]), permit = permit)]
    async fn list() -> Vec<&'static str> {
        assert_eq!(permit.remaining(), 0);
        Vec::new()
    }
    #[limit_request_per_time("status", 1, Hours, 1, on_limit = Return(StatusCode::TOO_MANY_REQUESTS))]
    async fn status() -> StatusCode {
        StatusCode::OK
    }
    #[limit_concurrent_requests("places", places, on_limit = Return(Json(None)))]
    async fn json(places: u64) -> Json<Option<u64>> {
        Json(Some(1))
    }
    #[limit_request_per_time("boxed", 1, Hours, 1, on_limit = Return(false))]
    fn boxed() -> std::pin::Pin<Box<dyn Future<Output = bool>>> {
        Box::pin(async { true })
    }
    #[limit_request_per_time("settled", 1, Hours, 1, algorithm = SlidingLog, cost = Settled(max = 1, |_| 1),
        on_limit = Return(0))]
    async fn settled() -> u64 {
        1
    }
    #[limit_request_per_time("several", 1, Hours, 1, on_limit = Return("time"))]
    #[limit_concurrent_requests("place", places, on_limit = Return("place"))]
    async fn several(places: u64) -> &'static str {
        "body"
    }
    limits(option, |answer| answer.is_none()).await;
    limits(list, |answer| answer == ["list"]).await;
    limits(status, |answer| answer == 429).await;
    limits(boxed, |answer| !answer).await;
    limits(settled, |answer| answer == 0).await;
    limits(async || several(1).await, |answer| answer == "time").await;
    let calls = async { (several(0).await, json(0).await.0) };
    assert_eq!(Limiter::in_memory().scope(calls).await, ("place", None));
}

#[tokio::test]
async fn a_function_with_a_value_to_return_may_return_nothing() {
    #[limit_request_per_time("item", 1, Hours, 1, on_limit = Return(()))]
    async fn call(calls: &std::cell::Cell<u64>) {
        calls.set(calls.get() + 1);
    }
    let count = std::cell::Cell::new(0);
    let calls = async {
        for _ in 0..3 {
            call(&count).await;
        }
    };
    Limiter::in_memory().scope(calls).await;
    assert_eq!(count.get(), 1);
}

#[tokio::test]
async fn a_function_may_return_a_response() {
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn response() -> Response {
        Response::default()
    }
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn result() -> Result<Json<u64>, Response> {
        Ok(Json(1))
    }
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn error_response() -> axum::response::Result<Json<u64>> {
        Ok(Json(1))
    }
    let is_refusal = |response: Response| response.status() == 429 && response.headers().contains_key("retry-after");
    limits(response, is_refusal).await;
    limits(result, |answer| answer.is_err_and(is_refusal)).await;
    limits(error_response, |answer| answer.is_err()).await;
}
