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

/// Waits until `end`. For a future that may move to another runtime.
///
/// A timer of tokio belongs to the runtime it was made on: it stops with it, and panics after its end. Here the
/// future gets a new timer on each runtime that polls it. `false` without a runtime, at once.
pub(crate) async fn wait_until(end: Instant) -> bool {
    let mut timer_runtime = None;
    let mut timer = pin!(None);
    poll_fn(|context| {
        let Ok(runtime) = Handle::try_current() else { return Poll::Ready(false) };
        let runtime = Some(runtime.id());
        if runtime != timer_runtime {
            timer_runtime = runtime;
            timer.set(Some(sleep_until(end)));
        }
        timer.as_mut().as_pin_mut().map_or(Poll::Pending, |timer| timer.poll(context).map(|()| true))
    })
    .await
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
    poll_fn(|context| {
        let _in_span = span.enter();
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Ok(answer));
        }
        let no_runtime = StoreError::no_runtime;
        timer.as_mut().poll(context).map(|is_late| Err(if is_late { StoreError::late(deadline) } else { no_runtime() }))
    })
    .await
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::task::{Context, Waker};

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_wait_goes_on_where_its_first_runtime_has_stopped_or_ended() {
        let new = || Builder::new_current_thread().enable_all().build().unwrap();
        for is_dropped in [false, true] {
            let (first, second) = (new(), new());
            let mut waiting = Box::pin(wait_until(after(Duration::from_millis(20))));
            let entered = first.enter();
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            drop(entered);
            let _stopped = (!is_dropped).then_some(first);
            assert!(second.block_on(waiting));
        }
    }

    #[test]
    fn there_is_no_wait_without_a_runtime() {
        let mut waiting = Box::pin(wait_until(after(Duration::from_secs(9))));
        assert_eq!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(false));
    }
}
