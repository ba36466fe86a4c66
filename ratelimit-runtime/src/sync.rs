//! Locks and atomics of the memory store, the wait queues, the denial cache, prefetched quota and the batch queue.
//!
//! They are those of the standard library, tokio and the crate `spin`. The tests in
//! `model_check.rs` use those of `shuttle` instead: its scheduler decides before each step which
//! thread continues.

use std::ops;

#[cfg(not(all(test, model_check)))]
pub(crate) use self::real::*;
#[cfg(all(test, model_check))]
pub(crate) use self::scheduled::*;

/// Padded to two cache lines to avoid false sharing: processors prefetch adjacent lines in pairs.
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
mod real {
    pub(crate) use std::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize},
    };
    use std::{sync::atomic::Ordering, thread, time::Duration};

    use smallvec::SmallVec;
    pub(crate) use spin::mutex::{SpinMutex, SpinMutexGuard};

    pub(crate) use tokio::sync::Notify;

    /// A small number of this thread, to spread threads over shards.
    #[inline]
    pub(crate) fn thread_index() -> usize {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        NUMBER.try_with(|number| *number).unwrap_or_default()
    }

    /// Locks a mutex that is held for nanoseconds by almost every call, and for a millisecond by
    /// the one call in tens of thousands that makes room.
    ///
    /// A spin lock, because unlocking is one store. A parking lock must also check for sleepers,
    /// which costs as much as locking. Waiters are therefore not woken: they retry after a
    /// back-off, at first a yield, later a sleep.
    ///
    /// The back-off also helps throughput. Two threads that alternate at every call mostly wait for
    /// the cache line. A thread that backs off for the time of some calls lets the other one make
    /// many in a row: both finish in less than half the time.
    #[inline]
    pub(crate) fn spin_lock<T>(mutex: &SpinMutex<T>) -> SpinMutexGuard<'_, T> {
        mutex.try_lock().unwrap_or_else(|| backoff(|| mutex.try_lock()))
    }

    /// Locks the mutex if it is free.
    #[inline]
    pub(crate) fn try_spin_lock<T>(mutex: &SpinMutex<T>) -> Option<SpinMutexGuard<'_, T>> {
        mutex.try_lock()
    }

    /// Locks all mutexes, or none while it waits: threads that want another one are not blocked
    /// meanwhile.
    pub(crate) fn spin_lock_all<'a, T, const N: usize>(
        mutexes: &(impl Iterator<Item = &'a SpinMutex<T>> + Clone),
    ) -> SmallVec<[SpinMutexGuard<'a, T>; N]> {
        let try_lock = || mutexes.clone().map(SpinMutex::try_lock).collect::<Option<_>>();
        try_lock().unwrap_or_else(|| backoff(try_lock))
    }

    /// Retries until `attempt` succeeds.
    #[cold]
    #[inline(never)]
    fn backoff<T>(attempt: impl Fn() -> Option<T>) -> T {
        let mut attempts = 0;
        loop {
            // The holder may need this processor, and a yield may not schedule it.
            if attempts < 100 {
                thread::yield_now();
                attempts += 1;
            } else {
                thread::sleep(Duration::from_micros(50));
            }
            if let Some(found) = attempt() {
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

    /// tokio's `Notify`, each use of which is a step of the scheduler.
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

    /// Runs a test under many interleavings of its threads, where all are too many: some with few
    /// switches between threads (*probabilistic concurrency testing*, Burckhardt and others, 2010),
    /// and random ones.
    pub(crate) fn many_orders(run: impl Fn() + Clone + Send + Sync + 'static) {
        shuttle::check_pct(run.clone(), 3_000, 3);
        shuttle::check_random(run, 3_000);
    }

    /// Runs a test under every interleaving of its threads.
    pub(crate) fn every_order(run: impl Fn() + Send + Sync + 'static) {
        shuttle::check_dfs(run, None);
    }
}
