//! The locks and atomics of the memory store, of the lines of waiting callers and of what is known of counters.
//!
//! They are the ones everybody knows (and one of the crate `spin`), but for the tests in `model_check.rs`. Those run under a scheduler that decides
//! before each step of theirs which thread goes on.

use std::ops;

#[cfg(not(all(test, model_check)))]
pub(crate) use self::known::*;
#[cfg(all(test, model_check))]
pub(crate) use self::scheduled::*;

/// Something on cache lines of its own (processors take two at once), so that who changes it slows nobody down who is at its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

impl<T> ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(not(all(test, model_check)))]
mod known {
    pub(crate) use std::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    };
    use std::{sync::atomic::Ordering, thread, time::Duration};

    use smallvec::SmallVec;
    pub(crate) use spin::mutex::{SpinMutex, SpinMutexGuard};

    pub(crate) use tokio::sync::Notify;

    /// A number of this thread, for those who keep threads apart.
    #[inline]
    pub(crate) fn thread_index() -> usize {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        NUMBER.try_with(|number| *number).unwrap_or_default()
    }

    /// Locks what is held for some nanoseconds at almost every call; for a millisecond at the one in ten thousands that makes room among many.
    ///
    /// Two threads that take turns at every call mostly wait for the cache line to come over from the other. Whoever finds it locked
    /// steps back for as long as some calls take, so that a thread makes many in a row: both get through in less than half the time.
    ///
    /// To let go of such a lock is to write one byte, where another has to ask whether somebody sleeps: that takes as long as to lock it. So
    /// nobody is woken, and who finds it locked for long looks again from time to time.
    #[inline]
    pub(crate) fn spin_lock<T>(mutex: &SpinMutex<T>) -> SpinMutexGuard<'_, T> {
        mutex.try_lock().unwrap_or_else(|| backoff(|| mutex.try_lock()))
    }

    #[inline]
    pub(crate) fn try_spin_lock<T>(mutex: &SpinMutex<T>) -> Option<SpinMutexGuard<'_, T>> {
        mutex.try_lock()
    }

    /// Locks all of them. Who waits for one holds none: all who want that would wait too.
    pub(crate) fn spin_lock_all<'a, T, const N: usize>(
        mutexes: &(impl Iterator<Item = &'a SpinMutex<T>> + Clone),
    ) -> SmallVec<[SpinMutexGuard<'a, T>; N]> {
        let try_lock = || mutexes.clone().map(SpinMutex::try_lock).collect::<Option<_>>();
        try_lock().unwrap_or_else(|| backoff(try_lock))
    }

    #[cold]
    #[inline(never)]
    fn backoff<T>(look: impl Fn() -> Option<T>) -> T {
        let mut looks = 0;
        loop {
            // Whoever holds it may need this processor, and may be no thread that others make room for.
            if looks < 100 {
                thread::yield_now();
                looks += 1;
            } else {
                thread::sleep(Duration::from_micros(50));
            }
            if let Some(found) = look() {
                return found;
            }
        }
    }
}

#[cfg(all(test, model_check))]
mod scheduled {
    pub(crate) use shuttle::sync::{
        Mutex, Mutex as SpinMutex, MutexGuard, MutexGuard as SpinMutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    };
    use std::sync::PoisonError;

    use shuttle::thread::{current, yield_now};
    use smallvec::SmallVec;

    pub(crate) fn thread_index() -> usize {
        usize::from(current().id())
    }

    pub(crate) fn spin_lock<T>(mutex: &SpinMutex<T>) -> SpinMutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_spin_lock<T>(mutex: &SpinMutex<T>) -> Option<SpinMutexGuard<'_, T>> {
        mutex.try_lock().ok()
    }

    pub(crate) fn spin_lock_all<'a, T, const N: usize>(
        mutexes: &(impl Iterator<Item = &'a SpinMutex<T>> + Clone),
    ) -> SmallVec<[SpinMutexGuard<'a, T>; N]> {
        mutexes.clone().map(spin_lock).collect()
    }

    /// tokio's, each use of it a step.
    pub(crate) struct Notify(tokio::sync::Notify);

    impl Notify {
        pub(crate) fn new() -> Self {
            Self(tokio::sync::Notify::new())
        }

        pub(crate) fn notify_one(&self) {
            yield_now();
            self.0.notify_one();
        }

        pub(crate) async fn notified(&self) {
            yield_now();
            self.0.notified().await;
        }
    }

    /// Runs a test under many of the orders in which the steps of its threads can follow one another, where all are too many: such as
    /// have few switches between threads (*probabilistic concurrency testing*, Burckhardt and others, 2010), and random ones.
    #[cfg(feature = "redis")]
    pub(crate) fn many_orders(run: impl Fn() + Clone + Send + Sync + 'static) {
        shuttle::check_pct(run.clone(), 3_000, 3);
        shuttle::check_random(run, 3_000);
    }

    /// Runs a test under every order in which the steps of its threads can follow one another.
    pub(crate) fn every_order(run: impl Fn() + Send + Sync + 'static) {
        shuttle::check_dfs(run, None);
    }
}
