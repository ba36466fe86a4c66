//! The runtime of the process for work that no caller awaits.
//!
//! It settles and renews holds, prefetches quota, refunds and cleans up, and calls that are not async
//! wait on it. A caller's runtime may stall or end at any moment, so no other caller may depend on it.
//! The exception is a queue: callers wait until those ahead of them, whose turn has come, have asked.
//!
//! It is one thread with a tokio runtime, started when it is first needed. A connection belongs to
//! the runtime that opened it, so background work has connections of its own.
//!
//! Futures here must not block the thread. A panic ends its own task only.

use std::{
    cell::Cell,
    future::{Future, pending},
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    process,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
    thread,
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};

use crate::{error::StoreError, observe::LogThrottle};

/// The thread's name in `top -H` and debuggers. Linux keeps 15 bytes.
const THREAD: &str = "ratelimit";

static BACKGROUND: Background = Background::new();

thread_local! {
    /// This thread polls the futures of this runtime: it is the background thread, or in [`block_on`].
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

struct Background(Mutex<Option<Started>>);

struct Started {
    /// Process id: a forked process has none of its parent's threads.
    process: u32,
    runtime: Handle,
}

impl Background {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The runtime. Started if this process has none.
    fn runtime(&self, process: u32, start: impl FnOnce() -> io::Result<Handle>) -> io::Result<Handle> {
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Started { runtime, .. }) = started.as_ref().filter(|started| started.process == process) {
            return Ok(runtime.clone());
        }
        let runtime = start()?;
        *started = Some(Started { process, runtime: runtime.clone() });
        Ok(runtime)
    }
}

/// Starts the thread, which ends with the process.
fn start() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (handle, runtime) = (runtime.handle().clone(), ThreadRuntime(Some(runtime)));
    thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
        IS_HERE.set(true);
        if let Some(runtime) = &runtime.0 {
            runtime.block_on(pending::<()>());
        }
    })?;
    Ok(handle)
}

/// The runtime of the thread. If there is no thread for it, it is dropped by the caller, and a plain runtime would
/// panic in a task of another one.
struct ThreadRuntime(Option<Runtime>);

impl Drop for ThreadRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The runtime for background work.
///
/// Fails if the system has no thread or no file descriptor for it.
pub(crate) fn runtime() -> Result<Handle, StoreError> {
    BACKGROUND.runtime(process::id(), start).map_err(|error| {
        static LOGGED: LogThrottle = LogThrottle::new();
        if LOGGED.allow() {
            tracing::error!(%error, "cannot start the thread for background work of rate limits");
        }
        StoreError::unavailable(format!("cannot start the thread for background work: {error}")).with_no_effect()
    })
}

/// Runs a future to its end, independent of the caller and its runtime.
pub(crate) fn spawn<F>(future: F) -> Result<JoinHandle<F::Output>, StoreError>
where
    F: Future<Output: Send> + Send + 'static,
{
    Ok(runtime()?.spawn(future))
}

/// Begins work in a task of its own, as a store may panic, and awaits it.
pub(crate) fn in_own_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> impl Future<Output = Result<T, StoreError>> {
    let task = tokio::spawn(work);
    async move { task.await.unwrap_or_else(|_| Err(StoreError::unavailable("the store panicked"))) }
}

/// Runs a future to its end on this thread. Its connections and timers are those of the background
/// runtime, whose thread drives them.
///
/// Fails like [`runtime`], with a future that was not polled.
///
/// # Panics
///
/// On a thread that runs async tasks.
#[track_caller]
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, StoreError> {
    let runtime = runtime()?;
    let mut is_polled = false;
    let future = async {
        is_polled = true;
        IS_HERE.set(true);
        let _guard = LeaveOnDrop;
        future.await
    };
    let output = catch_unwind(AssertUnwindSafe(|| runtime.block_on(future)));
    match output {
        Ok(output) => Ok(output),
        Err(panic) => {
            assert!(is_polled, "{CANNOT_BLOCK}"); // tokio's panic does not say what to do
            resume_unwind(panic)
        }
    }
}

const CANNOT_BLOCK: &str = "Cannot block the current thread from within a runtime: a blocking rate limit has to wait \
    here, and the thread runs async tasks. Call it inside `tokio::task::spawn_blocking`, or use an async function.";

/// The end of [`block_on`] on this thread.
struct LeaveOnDrop;

impl Drop for LeaveOnDrop {
    fn drop(&mut self) {
        IS_HERE.set(false);
    }
}

/// A future that its caller awaits. If it is dropped before its end, it is finished in the
/// background.
pub(crate) struct FinishOnDrop<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> FinishOnDrop<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for FinishOnDrop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Taken: if it panics, it is not polled again.
        let Some(mut future) = self.0.take() else { panic!("a future polled after it was done") };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(future);
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for FinishOnDrop<F> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take() {
            let _ = spawn(future);
        }
    }
}

/// Whether this thread polls the futures of this runtime.
#[cfg(feature = "redis")]
#[inline]
pub(crate) fn is_here() -> bool {
    IS_HERE.get()
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Waker,
    };
    use std::{panic::catch_unwind, time::Duration};

    use super::*;

    #[test]
    fn a_process_has_one_runtime_and_a_forked_process_starts_its_own() {
        let background = Background::new();
        let ids = [7, 7, 8, 8].map(|process| background.runtime(process, start).unwrap().id());
        assert_eq!([ids[0] == ids[1], ids[1] == ids[2], ids[2] == ids[3]], [true, false, true]);
    }

    #[test]
    fn the_runtime_is_started_again_after_an_error() {
        let background = Background::new();
        let failed = background.runtime(7, || Err(io::Error::from(io::ErrorKind::WouldBlock)));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(background.runtime(7, start).is_ok());
    }

    #[test]
    fn a_future_that_panics_is_not_polled_again() {
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let mut panics = FinishOnDrop::new(poll_fn(move |_| -> Poll<()> {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("its own")
        }));
        let poll = AssertUnwindSafe(|| Pin::new(&mut panics).poll(&mut Context::from_waker(Waker::noop())));
        catch_unwind(poll).unwrap_err();
        drop(panics);
        assert_eq!(Arc::strong_count(&polls), 1);
        assert_eq!(polls.load(Ordering::Relaxed), 1);
    }

    /// The runtime of the caller need not be driven.
    #[tokio::test]
    async fn a_task_that_panics_ends_alone() {
        let panics = spawn(async { panic!("its own") }).unwrap();
        assert!(panics.await.unwrap_err().is_panic());
        let name = spawn(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            thread::current().name().map(str::to_owned)
        });
        assert_eq!(name.unwrap().await.unwrap().as_deref(), Some(THREAD));
        assert!(catch_unwind(runtime).unwrap().is_ok());
    }
}
