//! The default limiter and the background thread belong to a whole process: tests in one of its own.

use std::{
    env, fs,
    future::Future,
    pin::pin,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Limiter, OnStoreError, RequestPerMinute, Rule, Store,
    config::Rules,
    limit_concurrent_requests, limit_request_per_time,
    store::{Batch, Charge, Charges, Reply, StoreError},
};
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::{Event, Metadata, Subscriber, span};

#[limit_request_per_time(prefix = "listener", ttl = 1, unit = Days, count = 1_000_000)]
async fn annotated() -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_concurrent_requests(prefix = "place", count = 1)]
#[limit_request_per_time(prefix = "blocking", ttl = 1, unit = Days, count = 1, blocking)]
fn annotated_blocking() -> Result<(), RequestPerMinute> {
    Ok(())
}

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

/// Sends what is logged somewhere, by a function that has a limit of its own.
struct Listener(mpsc::Sender<()>);

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        now(annotated()).unwrap();
        let _ = self.0.send(());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// One test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn background_threads() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "ratelimit").count()
}

#[test]
fn the_first_call_of_a_process_may_log_through_a_limited_function() {
    let _alone = alone();
    let (said, is_said) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        tracing::subscriber::with_default(Listener(said), || now(annotated())).unwrap();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(20)).expect("the first call does not hang");
    assert_eq!(is_said.iter().count(), 1, "it is said once");
}

/// All that it does it does at once.
#[test]
fn limiters_in_memory_start_no_thread() {
    let _alone = alone();
    let limiter = Limiter::in_memory();
    let places = Rule::new("place", 1, Duration::from_secs(30)).with_algorithm(Algorithm::Concurrent);
    let tokens = Rule::new("tokens", 10, Duration::from_secs(30)).with_algorithm(Algorithm::SlidingLog);
    drop(now(limiter.acquire(&places, 1)).unwrap());
    now(now(limiter.reserve(&tokens, 1, 5)).unwrap().settle(3)).unwrap();
    now(limiter.acquire(&Rule::new("item", 100, Duration::from_secs(30)).with_prefetch(10), 1)).unwrap();
    drop(limiter.acquire_blocking(&places, 1).unwrap());
    let calls = || [annotated_blocking(), annotated_blocking()].map(|answer| answer.is_ok());
    assert_eq!(limiter.scope_blocking(calls), [true, false]);
    assert_eq!(now(limiter.close()), 0);
    drop(limiter);
    assert_eq!(background_threads(), 0);
}

/// Grants everything, at once.
#[derive(Debug)]
struct Generous;

impl Store for Generous {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        for request in batch.iter_mut() {
            request.outcome = Ok(true);
            for charge in request.charges.iter_mut() {
                charge.receipt = [0, charge.cost];
            }
        }
        Reply::Ready(batch)
    }

    fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
        Reply::Ready(Ok(1))
    }

    fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn settle(&self, _: Charge, _: u64) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }
}

/// Runs it while the process may have no more file descriptors.
fn without_descriptors<T>(act: impl FnOnce() -> T) -> T {
    let usual = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(0), ..usual }).unwrap();
    let done = act();
    setrlimit(Resource::Nofile, usual).unwrap();
    done
}

/// Runs it while the process has no memory for the stack of one more thread.
fn without_threads<T>(act: impl FnOnce() -> T) -> T {
    const LESS_THAN_A_STACK: u64 = 1 << 20;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let (usual, most) = (getrlimit(Resource::As), 1024 * size + LESS_THAN_A_STACK);
    setrlimit(Resource::As, rustix::process::Rlimit { current: Some(most), ..usual }).unwrap();
    let done = act();
    setrlimit(Resource::As, usual).unwrap();
    done
}

/// In one more process: a thread gets the stack of another one that has ended.
#[test]
fn what_needs_a_background_thread_is_refused_where_none_can_be_started() {
    const TEST: &str = "what_needs_a_background_thread_is_refused_where_none_can_be_started";
    const HAS_NO_THREADS: &str = "RATELIMIT_NO_THREADS";
    if env::var_os(HAS_NO_THREADS).is_none() {
        let mut process = Command::new(env::current_exe().unwrap());
        let ended = process.args(["--exact", TEST, "--test-threads=1"]).env(HAS_NO_THREADS, "").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{ended:?}");
        return;
    }
    let places = Rule::new("place", 1, Duration::from_secs(30)).with_algorithm(Algorithm::Concurrent);
    let prefetched = Rule::new("item", 100, Duration::from_secs(30)).with_prefetch(10);
    let limiter = Limiter::builder("memory://").on_store_error(OnStoreError::Deny).over(Generous).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(background_threads(), 0, "it was not started before");
    let calls = || {
        let answers = runtime.block_on(async {
            (limiter.acquire(&places, 1).await.map(drop), limiter.acquire(&prefetched, 1).await.map(drop))
        });
        (answers, limiter.acquire_blocking(&prefetched, 1).map(drop))
    };
    for (answers, blocking) in [without_descriptors(calls), without_threads(calls)] {
        for refused in [answers.0.unwrap_err(), blocking.unwrap_err()] {
            assert_eq!(refused.cause(), Cause::Unavailable);
            assert!(refused.to_string().contains("cannot start the thread for background work: "), "{refused}");
        }
        // Permits are not taken ahead then, but one by one.
        assert_eq!(answers.1, Ok(()));
    }
}

/// A path that is relative is that of the directory at the start: a daemon may change to another one.
#[test]
fn a_file_of_rules_is_watched_after_a_change_of_directory() {
    let _alone = alone();
    let (before, folder) = (env::current_dir().unwrap(), tempfile::tempdir().unwrap());
    let path = folder.path().join("rules.toml");
    fs::write(&path, "[rules.item]\ncount = 1\n").unwrap();
    env::set_current_dir(folder.path()).unwrap();
    let rules = Rules::watch("rules.toml").unwrap();
    env::set_current_dir(before).unwrap();
    let limiter = now(Limiter::builder("memory://").rules(rules).build()).unwrap();
    let limit = || now(limiter.peek(&Rule::new("item", 7, Duration::from_secs(1)), 1)).unwrap().limit();
    assert_eq!(limit(), 1);
    fs::write(&path, "[rules.item]\ncount = 3\n").unwrap();
    let is_read = (0..200).any(|_| {
        thread::sleep(Duration::from_millis(100));
        limit() == 3
    });
    assert!(is_read, "the change was not seen: the limit is {}", limit());
}
