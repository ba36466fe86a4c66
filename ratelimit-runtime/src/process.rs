//! Which limiter an annotated function sees.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
};

use once_cell::sync::Lazy;

use crate::{
    Limiter, SetupError,
    engine::{core::EngineRef, handle::Handles},
};

/// What the process has until a limiter is installed.
static DEFAULT: Lazy<Limiter> = Lazy::new(Limiter::in_memory);

tokio::task_local! {
    static SCOPED: Limiter;
}

impl Limiter {
    /// Makes this the limiter of every annotated function of the process that names no other.
    ///
    /// Until then they count in memory, and the log says so once.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if the process has one already.
    pub fn install(self) -> Result<(), SetupError> {
        self.0
            .install()
            .map_err(|_| SetupError::new("this process has a limiter already; install one, once, at its start"))
    }

    /// Runs a future that sees this limiter in place of the process-wide one, for tests.
    ///
    /// What the future spawns as tasks of their own sees the process-wide one again.
    ///
    /// ```
    /// use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};
    ///
    /// #[limit_request_per_time(prefix = "once", ttl = 1, unit = Days, count = 1)]
    /// async fn once() -> Result<(), RequestPerMinute> {
    ///     Ok(())
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// for _ in 0..3 {
    ///     Limiter::in_memory().scope(once()).await.unwrap();
    /// }
    /// # });
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        SCOPED.scope(self.clone(), future)
    }

    /// The limiter that holds here.
    pub(crate) fn current() -> EngineRef {
        let process_wide = |_| Handles::installed().unwrap_or_else(|| &default_limiter().0).static_ref();
        SCOPED.try_with(Self::engine_ref).unwrap_or_else(process_wide)
    }
}

fn default_limiter() -> &'static Limiter {
    static SAID: AtomicBool = AtomicBool::new(false);
    let limiter = &*DEFAULT;
    // A subscriber may call an annotated function, which comes here again.
    if !SAID.load(Ordering::Relaxed) && !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!("no limiter is installed: limits are counted in this process's memory; see Limiter::install");
    }
    limiter
}
