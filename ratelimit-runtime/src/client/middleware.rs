//! The middleware of `reqwest`.

use async_trait::async_trait;
use http::Extensions;
use reqwest_middleware::{
    Error, Middleware, Next, Result,
    reqwest::{Request, Response},
};

use super::{
    attempts::{Attempts, Response as Answer},
    config::{Outgoing, OutgoingRequest},
};

/// A refusal by the limiter is [`Error::Middleware`] with a
/// [`RequestPerMinute`](crate::RequestPerMinute): the call was not sent. A call that was sent and
/// could not be repeated because of a refusal returns what it had. A streamed body can't be sent
/// again.
///
/// ```
/// use ratelimit_runtime::{Limiter, client::Outgoing};
/// use reqwest_middleware::{ClientBuilder, reqwest};
///
/// let client = ClientBuilder::new(reqwest::Client::new()).with(Outgoing::new(Limiter::in_memory())).build();
/// ```
///
/// To tell a refusal from other errors:
///
/// ```
/// use ratelimit_runtime::RequestPerMinute;
/// use reqwest_middleware::Error;
///
/// fn refusal(error: &Error) -> Option<&RequestPerMinute> {
///     match error {
///         Error::Middleware(error) => error.downcast_ref(),
///         Error::Reqwest(_) => None,
///     }
/// }
/// ```
#[async_trait]
impl Middleware for Outgoing {
    async fn handle(&self, request: Request, extensions: &mut Extensions, next: Next<'_>) -> Result<Response> {
        let key = {
            let (url, method, headers) = (request.url(), request.method(), request.headers());
            let (host, path) = (url.host_str().unwrap_or_default(), url.path());
            self.0.key_of(&OutgoingRequest { method, host, port: url.port(), path, headers })
        };
        let mut attempts = Attempts::new(&self.0, key, self.0.may_retry(request.method()));
        let (mut request, mut last) = (request, None);
        loop {
            let copy = if attempts.may_repeat() { request.try_clone() } else { None };
            let mut admission = match attempts.admit(attempts.waits_until()).await {
                Ok(admission) => admission,
                Err(refused) => return last.unwrap_or_else(|| Err(Error::middleware(refused))),
            };
            drop(last.take());
            admission.is_sent = true;
            let sent = next.clone().run(request, extensions).await;
            let answer = sent.as_ref().ok().map(|response| Answer::of(response.status(), response.headers()));
            if !attempts.repeats(admission, answer, copy.is_some()).await {
                return sent;
            }
            match copy {
                Some(copy) => (request, last) = (copy, Some(sent)),
                None => return sent,
            }
        }
    }
}
