//! The layer around a `tower` service that sends HTTP requests.

use std::{
    error::Error,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response, header::HOST, uri::Authority};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    attempts::{Attempts, Response as Answer},
    config::{Outgoing, OutgoingConfig, OutgoingRequest},
};
use crate::{Key, RequestPerMinute};

impl<S> Layer<S> for Outgoing {
    type Service = OutgoingService<S>;

    fn layer(&self, service: S) -> OutgoingService<S> {
        OutgoingService { service, outgoing: self.clone() }
    }
}

/// A client within the limits of its upstreams. Made by [`Outgoing`] as a layer.
///
/// It is always ready. Each attempt of a call waits until it may be sent, and then for a clone of the inner service
/// to be ready. It drops the clone and waits again if meanwhile the window has ended, a pause has begun, or the
/// response to another probe has opened a window. A body that can't be cloned has to be collected first.
#[derive(Clone, Debug)]
pub struct OutgoingService<S> {
    service: S,
    outgoing: Outgoing,
}

/// The error of a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum OutgoingError<E> {
    /// The call was not sent: its wait would be longer than [`Outgoing::longest_wait`], the limiter
    /// was closed, or it could not decide. A call that was sent and could not be repeated for such a
    /// reason returns what it had, unless it was waiting for the inner service. A call that is refused there, as the
    /// limiter is closed, has used one call of the window.
    Refused(RequestPerMinute),
    /// The client's own error.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for OutgoingError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => write!(f, "the call was not sent: {refused}"),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for OutgoingError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::Service(error) => error.source(),
        }
    }
}

impl<S, I, O> Service<Request<I>> for OutgoingService<S>
where
    S: Service<Request<I>, Response = Response<O>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    I: Clone + Send + 'static,
    O: Send,
{
    type Response = Response<O>;
    type Error = OutgoingError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(())) // a client that is ready could not be shared while a call waits
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        let (service, config) = (self.service.clone(), &self.outgoing.0);
        let may_retry = config.may_retry(request.method());
        let mut attempts = Attempts::new(config, key_of(config, &request), may_retry);
        Box::pin(async move {
            let mut request = request;
            let mut last: Option<Result<Response<O>, S::Error>> = None;
            loop {
                let (parts, body) = request.into_parts();
                let copy = attempts.may_repeat().then(|| Request::from_parts(parts.clone(), body.clone()));
                let mut until = attempts.waits_until();
                let (mut admission, mut ready, is_ready) = loop {
                    let admission = match attempts.admit(until).await {
                        Ok(admission) => admission,
                        Err(refused) => {
                            let refused = Err(OutgoingError::Refused(refused));
                            return last.map_or(refused, |sent| sent.map_err(OutgoingError::Service));
                        }
                    };
                    let asked = admission.state.now();
                    let (mut ready, mut has_waited) = (service.clone(), false);
                    let is_ready = poll_fn(|context| {
                        let is_ready = ready.poll_ready(context);
                        if is_ready.is_pending() {
                            has_waited = true;
                            drop(last.take()); // it may hold what the service waits for
                        }
                        is_ready
                    });
                    let is_ready = match admission.state.bounded(is_ready, None).await {
                        Ok(is_ready) => is_ready,
                        Err(refused) => return Err(OutgoingError::Refused(refused)),
                    };
                    let is_outdated = is_ready.is_ok() && has_waited && admission.is_outdated().await;
                    if is_ready.is_err() || !is_outdated && admission.is_current() {
                        break (admission, ready, is_ready);
                    }
                    // The wait for the service does not count.
                    let waited = admission.state.now().saturating_sub(asked);
                    until = until.map(|until| until.saturating_add(waited));
                    // Another call may need the place in the service that this clone has.
                    drop(ready);
                };
                drop(last.take());
                let sent = match is_ready {
                    Ok(()) => {
                        admission.is_sent = true;
                        ready.call(Request::from_parts(parts, body)).await
                    }
                    Err(error) => Err(error),
                };
                let answer = sent.as_ref().ok().map(|response| Answer::of(response.status(), response.headers()));
                if !attempts.repeats(admission, answer, copy.is_some()).await {
                    return sent.map_err(OutgoingError::Service);
                }
                match copy {
                    Some(copy) => (request, last) = (copy, Some(sent)),
                    None => return sent.map_err(OutgoingError::Service),
                }
            }
        })
    }
}

fn key_of<I>(config: &OutgoingConfig, request: &Request<I>) -> Key {
    let (uri, headers) = (request.uri(), request.headers());
    // A request in origin form has its host in a field.
    let host = || headers.get(HOST)?.to_str().ok()?.parse::<Authority>().ok();
    let authority = uri.authority().cloned().or_else(host);
    let default = match uri.scheme_str() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    };
    let port = authority.as_ref().and_then(Authority::port_u16).filter(|port| Some(*port) != default);
    let host = authority.as_ref().map_or("", Authority::host).to_ascii_lowercase();
    config.key_of(&OutgoingRequest { method: request.method(), host: &host, port, path: uri.path(), headers })
}
