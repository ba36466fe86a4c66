//! The first call on a runtime that ends, silent connections, and the rights that a connection
//! needs.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use ratelimit_harness::{Mode, Proxy, RedisServer, documented_acl};
use ratelimit_runtime::{Cause, Key, Limiter, OnStoreError};
use tokio::runtime::{Builder, Runtime};

use crate::support::{ALGORITHMS, FIXED, fresh_key, hourly, limiter_on};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Fails instead of hanging.
fn thread_ends(what: &str, work: impl FnOnce() + Send + 'static) {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        work();
        let _ = sender.send(());
    });
    done.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("{what} hangs"));
}

#[test]
fn a_first_call_on_an_ended_runtime_hangs_no_call() {
    let server = RedisServer::start();
    let limiter = runtime().block_on(limiter_on(&server));
    let late = limiter.clone();
    thread_ends("a call on a runtime that has ended", move || {
        let runtime = runtime();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _inside = handle.enter();
        let mut call = Box::pin(late.acquire(&hourly(5, FIXED), fresh_key()));
        // tokio may refuse its timer there; what must not happen is that the thread stops.
        let poll = || call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll));
    });
    thread_ends("a call on another runtime", move || {
        assert!(runtime().block_on(limiter.acquire(&hourly(5, FIXED), fresh_key())).is_ok());
    });
}

#[test]
fn a_first_call_on_an_ending_runtime_hangs_no_call() {
    let server = RedisServer::start();
    let limiter = runtime().block_on(limiter_on(&server));
    let late = limiter.clone();
    thread_ends("the end of a runtime", move || {
        let runtime = runtime();
        let (sender, started) = mpsc::channel();
        runtime.spawn(async move {
            sender.send(()).unwrap();
            thread::sleep(Duration::from_millis(300)); // until the runtime is ending
            let _ = late.acquire(&hourly(5, FIXED), fresh_key()).await;
        });
        started.recv().unwrap();
        drop(runtime);
    });
    thread_ends("a call on another runtime", move || {
        assert!(runtime().block_on(limiter.acquire(&hourly(5, FIXED), fresh_key())).is_ok());
    });
}

#[test]
fn a_call_to_redis_without_a_tokio_runtime_is_an_error() {
    let server = RedisServer::start();
    let limiter = runtime().block_on(limiter_on(&server));
    let mut call = Box::pin(limiter.acquire(&hourly(5, FIXED), fresh_key()));
    let std::task::Poll::Ready(answer) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("nothing would wake it")
    };
    let refused = answer.unwrap_err();
    assert_eq!(refused.cause(), Cause::Misconfigured);
    assert!(refused.to_string().contains("tokio runtime"), "{refused}");
}

#[tokio::test]
async fn a_silent_connection_is_replaced_by_another() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter =
        Limiter::builder(&server.url_through(&proxy)).on_store_error(OnStoreError::Deny).build().await.unwrap();
    let (rule, key) = (hourly(1000, FIXED), fresh_key());
    let works = async || limiter.acquire(&rule, key).await.is_ok();
    while !works().await {} // a busy machine may miss a deadline
    let opened = proxy.accepted();

    proxy.set(Mode::DropReplies);
    assert!(!works().await, "a silent connection answered");
    proxy.set(Mode::Pass); // for new connections: this one stays silent
    tokio::time::timeout(Duration::from_secs(30), async { while !works().await {} }).await.expect("never came back");
    assert!(proxy.accepted() > opened);
}

/// The texts of all files in a folder and in those within it.
fn texts_in(folder: &Path) -> Vec<String> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts =
        paths.flat_map(|path| if path.is_dir() { texts_in(&path) } else { vec![fs::read_to_string(path).unwrap()] });
    texts.collect()
}

/// Each command was in Redis before 6.2, or came with it.
const OF_REDIS_6_2: &str = "+hello +evalsha +eval +get +mget +set +setrange +incrby +decrby +del +pttl +pexpire +time \
                            +lrange +lindex +llen +lset +rpush +ltrim +lpop +lpush +zadd +zcard +zcount +zrange +zrem \
                            +zscore +pexpireat";

/// The rights are read from the docs of the crate.
#[tokio::test]
async fn the_documented_rights_of_a_user_are_enough() {
    let command = documented_acl();
    for script in texts_in(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../ratelimit-runtime/src/algorithm"))) {
        for used in script.split("call('").skip(1) {
            let right = format!("+{}", used.split('\'').next().unwrap().to_lowercase());
            assert!(command.split(' ').any(|granted| granted == right), "a script needs {right}");
        }
    }
    for right in command.split(' ').filter(|word| word.starts_with('+')) {
        assert!(
            OF_REDIS_6_2.split_whitespace().any(|known| known == right),
            "{right} may need a newer Redis than README.md and guide/redis.md promise"
        );
    }
    let server = RedisServer::builder().controlled_clock().start(); // charges in one tick take commands of their own
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    server.command(&words);

    let url = format!("redis://limiter:password@127.0.0.1:{}", server.port());
    let builder = Limiter::builder(&url).namespace("shop").on_store_error(OnStoreError::Deny);
    let limiter = builder.deadline(Duration::from_secs(10)).build().await.unwrap();
    for algorithm in ALGORITHMS {
        let (rule, key) = (hourly(3, algorithm), fresh_key());
        let permit = limiter.acquire_n(&rule, key, 2).await.unwrap();
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 1);
        assert_eq!(limiter.acquire_n(&rule, key, 2).await.unwrap_err().cause(), Cause::Exceeded);
        assert_eq!(permit.refund().await.unwrap(), 2);
        let permit = limiter.acquire(&rule, key).await.unwrap();
        limiter.acquire_all(&[(&rule, Key::new(key), 1), (&hourly(9, algorithm), Key::new("all"), 1)]).await.unwrap();
        assert_eq!(permit.refund().await.unwrap(), 1);
        let names = server.command(&[b"KEYS", format!("shop::*{{{key}}}*").as_bytes()]);
        let redis::Value::Array(names) = names else { panic!("{names:?}") };
        for name in &names {
            let redis::Value::BulkString(name) = name else { panic!("{name:?}") };
            server.command(&[b"PERSIST", name]);
        }
        limiter.peek(&rule, key).await.unwrap(); // heals
        limiter.reset(&rule, key).await.unwrap();
    }
}
