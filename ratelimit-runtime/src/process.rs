//! The limiter of annotated functions: of this process, or of a scope.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
};

use once_cell::sync::Lazy;

use crate::{
    Limiter, SetupError,
    engine::{core::EngineRef, handle::Handles},
};

/// The limiter until one is installed.
static DEFAULT: Lazy<Limiter> = Lazy::new(Limiter::in_memory);

tokio::task_local! {
    static SCOPED: Limiter;
}

impl Limiter {
    /// Makes this the process-wide limiter: every annotated function without a `limiter` uses it.
    ///
    /// Until a limiter is installed, limits are counted in process memory, and the log says so
    /// once.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if a limiter is already installed.
    pub fn install(self) -> Result<(), SetupError> {
        self.0.install().map_err(|_| {
            SetupError::new("a limiter is already installed in this process; install one, once, at its start")
        })
    }

    /// Runs a future with this limiter instead of the process-wide one, for tests.
    ///
    /// Tasks that the future spawns use the process-wide limiter again.
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

    /// The limiter of annotated code here: of the innermost scope, or the process-wide one.
    pub(crate) fn current() -> EngineRef {
        let process_wide = |_| Handles::installed().unwrap_or_else(|| &default_limiter().0).static_ref();
        SCOPED.try_with(Self::engine_ref).unwrap_or_else(process_wide)
    }
}

fn default_limiter() -> &'static Limiter {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let limiter = &*DEFAULT;
    // A log subscriber may call an annotated function, which gets here again.
    if !LOGGED.load(Ordering::Relaxed) && !LOGGED.swap(true, Ordering::Relaxed) {
        tracing::warn!("no limiter is installed, so limits are counted in process memory; see Limiter::install");
    }
    limiter
}
