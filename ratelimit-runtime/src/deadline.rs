//! The one place that awaits a reply of the store for at most so long.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::store::{Reply, StoreError};

/// Awaits an answer, on any runtime, for at most so long.
pub(crate) async fn answer<T>(reply: Reply<Result<T, StoreError>>, deadline: Duration) -> Result<T, StoreError> {
    within(reply, deadline, deadline).await.and_then(|answer| answer)
}

/// Awaits a reply, on any runtime, for what is left of a deadline.
///
/// A timer belongs to the runtime it was made on. If that has ended and the reply is awaited on another one, it gets
/// another timer; on none, an error.
pub(crate) async fn within<T>(reply: Reply<T>, left: Duration, deadline: Duration) -> Result<T, StoreError> {
    let mut answer = match reply {
        Reply::Ready(answer) => return Ok(answer),
        Reply::Pending(answer) => answer,
    };
    let (began, mut made_on) = (Instant::now(), None);
    let mut timer = pin!(None);
    poll_fn(|context| {
        let Ok(runtime) = Handle::try_current() else {
            return Poll::Ready(Err(StoreError::no_runtime()));
        };
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Ok(answer));
        }
        let runtime = Some(runtime.id());
        if runtime != made_on {
            made_on = runtime;
            timer.set(Some(sleep(left.saturating_sub(began.elapsed()))));
        }
        let timer = timer.as_mut().as_pin_mut();
        timer.map_or(Poll::Pending, |timer| timer.poll(context)).map(|()| Err(StoreError::late(deadline)))
    })
    .await
}
