//! A refusal as an `axum` response.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};

use super::problem;
use crate::{FromRefusal, RequestPerMinute};

/// The response to a refused request, see [`web`](crate::web). Annotated handlers return it. Outer
/// layers find the refusal in the extensions of the response.
///
/// ```
/// use axum::response::{IntoResponse, Response};
/// use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};
///
/// #[limit_request_per_time(prefix = "greet", ttl = 1, unit = Minutes, count = 1, permit = permit)]
/// async fn greet() -> Result<impl IntoResponse, RequestPerMinute> {
///     Ok((permit.headers("greet"), "hello"))
/// }
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(Limiter::in_memory().scope(async {
/// let response: Response = greet().await.into_response();
/// assert_eq!(response.status(), 200);
/// assert_eq!(response.headers()["RateLimit"], "\"greet\";r=0;t=60");
///
/// let response: Response = greet().await.into_response();
/// assert_eq!(response.status(), 429);
/// assert_eq!(response.headers()["Retry-After"], "60");
/// # }));
/// ```
impl IntoResponse for RequestPerMinute {
    fn into_response(self) -> Response {
        problem::whole_response(self).map(Body::from)
    }
}

/// An annotated handler may return a `Response`.
///
/// ```
/// use axum::response::{IntoResponse, Response};
/// use ratelimit_runtime::{Limiter, limit_request_per_time};
///
/// #[limit_request_per_time(prefix = "greet", ttl = 1, unit = Minutes, count = 1)]
/// async fn greet() -> Response {
///     "hello".into_response()
/// }
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(Limiter::in_memory().scope(async {
/// assert_eq!(greet().await.status(), 200);
/// assert_eq!(greet().await.status(), 429);
/// # }));
/// ```
#[diagnostic::do_not_recommend]
impl FromRefusal for Response {
    fn from_refusal(refused: RequestPerMinute) -> Self {
        refused.into_response()
    }
}

/// An annotated handler may return a `Result<_, Response>`, and `?` turns a refusal into a response.
impl From<RequestPerMinute> for Response {
    fn from(refused: RequestPerMinute) -> Self {
        refused.into_response()
    }
}
