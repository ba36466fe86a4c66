//! The deadline for a store's reply.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

use crate::{
    clock::{after, wait_until},
    observe,
    store::{Reply, StoreError},
};

/// Awaits a reply, on any runtime, until the deadline.
pub(crate) async fn answer<T>(reply: Reply<Result<T, StoreError>>, deadline: Duration) -> Result<T, StoreError> {
    within(reply, after(deadline), deadline).await.and_then(|answer| answer)
}

/// Awaits a reply, on any runtime, until `end`. The error names the whole `deadline`. Without a runtime it ends with
/// an error.
pub(crate) async fn within<T>(reply: Reply<T>, end: Instant, deadline: Duration) -> Result<T, StoreError> {
    let mut answer = match reply {
        Reply::Ready(answer) => return Ok(answer),
        Reply::Pending(_) if Handle::try_current().is_err() => return Err(StoreError::no_runtime()),
        Reply::Pending(answer) => answer,
    };
    let span = tracing::debug_span!("ask_rate_limit_store");
    let mut timer = pin!(wait_until(end));
    let answered = poll_fn(|context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Ok(answer));
        }
        let no_runtime = StoreError::no_runtime;
        timer.as_mut().poll(context).map(|is_late| Err(if is_late { StoreError::late(deadline) } else { no_runtime() }))
    });
    observe::in_span(span, pin!(answered)).await
}
