//! Beside the attributes of other crates.

use axum::body::Body;
use axum::extract::Request;
use axum::handler::Handler as _;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};

use super::{R, exceeded, limits_each_key};

#[limit_request_per_time("above tokio::test", 1, Hours, 1, permit = permit)]
#[tokio::test]
async fn the_attribute_works_above_tokio_test() -> R<()> {
    assert_eq!((permit.limit(), permit.remaining()), (1, 0));
    Ok(())
}

#[test]
fn the_attribute_works_above_tokio_main() {
    #[limit_request_per_time("above tokio::main", 1, Hours, 1, key = id)]
    #[tokio::main(flavor = "current_thread")]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    assert_eq!(call(1).unwrap(), 1);
    exceeded(call(1));
    assert_eq!(call(2).unwrap(), 2);
}

#[tokio::test]
async fn the_attribute_works_above_and_below_instrument() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    #[tracing::instrument]
    async fn above(id: u64) -> R {
        Ok(id)
    }
    #[tracing::instrument(skip_all, fields(id), err, ret)]
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    async fn below(id: u64) -> R {
        Ok(id)
    }
    limits_each_key(above).await;
    limits_each_key(below).await;
}

#[derive(Debug)]
struct Refused(RequestPerMinute);

impl From<RequestPerMinute> for Refused {
    fn from(refused: RequestPerMinute) -> Self {
        Self(refused)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (StatusCode::TOO_MANY_REQUESTS, self.0.to_string()).into_response()
    }
}

#[limit_request_per_time("item", 1, Hours, 1, key = uri.path())]
#[axum::debug_handler]
async fn above_debug_handler(uri: Uri, body: String) -> Result<String, Refused> {
    Ok(format!("{uri}{body}"))
}

#[axum::debug_handler]
#[limit_request_per_time("item", 1, Hours, 1, key = uri.path())]
async fn below_debug_handler(uri: Uri, body: String) -> Result<String, Refused> {
    Ok(format!("{uri}{body}"))
}

#[tokio::test]
async fn the_attribute_works_above_and_below_debug_handler() {
    let request = |path| Request::builder().uri(path).body(Body::from("body")).unwrap();
    let calls = async {
        assert_eq!(above_debug_handler.call(request("/1"), ()).await.status(), StatusCode::OK);
        assert_eq!(above_debug_handler.call(request("/1"), ()).await.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(below_debug_handler.call(request("/1"), ()).await.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(below_debug_handler.call(request("/2"), ()).await.status(), StatusCode::OK);
        assert_eq!(below_debug_handler.call(request("/2"), ()).await.status(), StatusCode::TOO_MANY_REQUESTS);
    };
    Limiter::in_memory().scope(calls).await;
}
