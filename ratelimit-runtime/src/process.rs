//! The limiter of annotated functions: of this process, or of a scope.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
};

use once_cell::sync::Lazy;

use crate::{
    Limiter, SetupError,
    engine::{
        core::{Engine, EngineRef},
        handle::Handles,
    },
};

/// The limiter until one is installed.
static DEFAULT: Lazy<Limiter> = Lazy::new(Limiter::in_memory);

tokio::task_local! {
    static SCOPED: Limiter;
}

/// Whether there has ever been a scope. Most processes have none, and none of their calls looks for
/// one.
static HAS_SCOPES: AtomicBool = AtomicBool::new(false);

impl Limiter {
    /// Makes this the process-wide limiter: every annotated function and every layer without a limiter of its own
    /// uses it.
    ///
    /// Until a limiter is installed, limits are counted in process memory, and the log says so
    /// once.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if a limiter is already installed.
    pub fn install(self) -> Result<(), SetupError> {
        if self.0.install() {
            return Ok(());
        }
        Err(SetupError::new("a limiter is already installed in this process; install one, once, at its start"))
    }

    /// Runs a future with this limiter instead of the process-wide one, for tests.
    ///
    /// Tasks that the future spawns use the process-wide limiter again. [`Limiter::current`] passes
    /// this one on to them.
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
        HAS_SCOPES.store(true, Ordering::Relaxed);
        SCOPED.scope(self.clone(), future)
    }

    /// [`Limiter::scope`] for code that is not async: calls a function with this limiter instead of
    /// the process-wide one, for tests.
    ///
    /// Threads that it starts use the process-wide limiter again.
    ///
    /// ```
    /// use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};
    ///
    /// #[limit_request_per_time(prefix = "once", ttl = 1, unit = Days, count = 1, blocking)]
    /// fn once() -> Result<(), RequestPerMinute> {
    ///     Ok(())
    /// }
    ///
    /// for _ in 0..3 {
    ///     Limiter::in_memory().scope_blocking(once).unwrap();
    /// }
    /// ```
    pub fn scope_blocking<T>(&self, function: impl FnOnce() -> T) -> T {
        HAS_SCOPES.store(true, Ordering::Relaxed);
        SCOPED.sync_scope(self.clone(), function)
    }

    /// The limiter that annotated functions without a `limiter` use here: the one of the innermost
    /// [`Limiter::scope`], otherwise the installed one.
    ///
    /// If none is installed, it is the limiter that counts in process memory until then. The log
    /// says so once. A limiter that is installed later does not replace it here: the returned handle
    /// stays with its counters. So keep no handle from before [`Limiter::install`].
    ///
    /// ```
    /// use ratelimit_runtime::{Key, Limiter, RequestPerMinute, Rule, limit_request_per_time};
    /// use std::time::Duration;
    ///
    /// #[limit_request_per_time(prefix = "mail", ttl = 1, unit = Minutes, count = 10)]
    /// async fn send_mail() -> Result<(), RequestPerMinute> {
    ///     Ok(())
    /// }
    ///
    /// /// The counter of `send_mail`.
    /// const MAIL: Rule = Rule::new("mail", 10, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let calls = async {
    ///     send_mail().await?;
    ///     // A task that is spawned here has to be scoped, too.
    ///     let scoped = tokio::spawn(Limiter::current().scope(send_mail()));
    ///     scoped.await.unwrap()?;
    ///     Limiter::current().peek(&MAIL, Key::NONE).await
    /// };
    /// assert_eq!(Limiter::in_memory().scope(calls).await?.remaining(), 8);
    /// # Ok::<_, RequestPerMinute>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn current() -> Self {
        let process_wide = || Handles::of_process().map_or_else(|| default_limiter().clone(), Self);
        Self::scoped().unwrap_or_else(process_wide)
    }

    /// The engine of [`Limiter::current`], for one call.
    #[inline]
    pub(crate) fn current_engine() -> EngineRef {
        Self::scoped().map_or_else(|| EngineRef::Static(Self::process_wide()), |limiter| limiter.engine_ref())
    }

    /// The limiter of the innermost scope, if any.
    #[inline]
    pub(crate) fn scoped() -> Option<Self> {
        if HAS_SCOPES.load(Ordering::Relaxed) { scoped() } else { None }
    }

    #[inline]
    pub(crate) fn process_wide() -> &'static Engine {
        Handles::installed().unwrap_or_else(|| default_limiter().engine())
    }
}

#[cold]
fn scoped() -> Option<Limiter> {
    SCOPED.try_with(Limiter::clone).ok()
}

#[cold]
fn default_limiter() -> &'static Limiter {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let limiter = &*DEFAULT;
    // A log subscriber may call an annotated function, which gets here again.
    if !LOGGED.load(Ordering::Relaxed) && !LOGGED.swap(true, Ordering::Relaxed) {
        tracing::warn!("no limiter is installed, so limits are counted in process memory; see Limiter::install");
    }
    limiter
}
