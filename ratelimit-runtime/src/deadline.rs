//! The deadline for a store's reply.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use crate::store::{Reply, StoreError};

/// Awaits a reply, on any runtime, until the deadline.
pub(crate) async fn answer<T>(reply: Reply<Result<T, StoreError>>, deadline: Duration) -> Result<T, StoreError> {
    within(reply, after(deadline), deadline).await.and_then(|answer| answer)
}

/// The instant after this time, at most 100 years ahead.
pub(crate) fn after(time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + time.min(LONGEST)
}

/// Awaits a reply, on any runtime, until `end`. The error names the whole `deadline`.
///
/// A timer belongs to the runtime it was made on. If the future moves to another runtime, it gets a
/// new timer. Without a runtime it ends with an error.
pub(crate) async fn within<T>(reply: Reply<T>, end: Instant, deadline: Duration) -> Result<T, StoreError> {
    let mut answer = match reply {
        Reply::Ready(answer) => return Ok(answer),
        Reply::Pending(_) if Handle::try_current().is_err() => return Err(StoreError::no_runtime()),
        Reply::Pending(answer) => answer,
    };
    let span = tracing::debug_span!("ask_rate_limit_store");
    let mut timer_runtime = None;
    let mut timer = pin!(None);
    poll_fn(|context| {
        let _in_span = span.enter();
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Ok(answer));
        }
        let Ok(runtime) = Handle::try_current() else {
            return Poll::Ready(Err(StoreError::no_runtime()));
        };
        let runtime = Some(runtime.id());
        if runtime != timer_runtime {
            timer_runtime = runtime;
            timer.set(Some(sleep_until(end)));
        }
        let timer = timer.as_mut().as_pin_mut();
        timer.map_or(Poll::Pending, |timer| timer.poll(context)).map(|()| Err(StoreError::late(deadline)))
    })
    .await
}
