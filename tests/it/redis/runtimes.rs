//! Many tokio runtimes in one process: no connection is lost with the one that opened it.

use std::process::Command;
use std::thread;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::Limiter;
use tokio::runtime::{Builder, Runtime};

use crate::support::{FIXED, LOG, admitted, fresh_key, hourly, limiter_on};

fn runtime(number: u64) -> Runtime {
    let mut builder =
        if number.is_multiple_of(2) { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn an_installed_limiter_works_on_fifty_runtimes() {
    let server = RedisServer::start();
    let output = Command::new(env!("CARGO_BIN_EXE_runtimes")).arg(server.url()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "3\n".repeat(50));
}

#[test]
fn a_limiter_works_on_fifty_runtimes() {
    let server = RedisServer::start();
    let limiter = runtime(0).block_on(limiter_on(&server));
    for number in 0..50 {
        let rule = hourly(3, if number % 4 < 2 { FIXED } else { LOG });
        assert_eq!(runtime(number).block_on(admitted(&limiter, &rule, number, 5)), 3, "runtime {number}");
    }
    let connected: String = redis::from_redis_value(server.command(&[b"CLIENT", b"LIST"])).unwrap();
    assert!(connected.lines().count() < 10, "connections of runtimes that have ended:\n{connected}");
}

/// Several at once, from threads of their own, on one limiter.
#[test]
fn runtimes_on_several_threads_share_a_limiter() {
    let server = RedisServer::start();
    let limiter = runtime(0).block_on(limiter_on(&server));
    let (rule, key) = (hourly(100, LOG), fresh_key());
    let admitted_by = |number| {
        let limiter: Limiter = limiter.clone();
        thread::spawn(move || runtime(number).block_on(admitted(&limiter, &rule, key, 60)))
    };
    let threads: Vec<_> = (0..4).map(admitted_by).collect();
    assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>(), 100);
}

/// The memory store belongs to no runtime.
#[test]
fn the_memory_store_outlives_runtimes() {
    let limiter = Limiter::in_memory();
    let (rule, key) = (hourly(50, FIXED), fresh_key());
    let admitted: u64 = (0..20).map(|number| runtime(number).block_on(admitted(&limiter, &rule, key, 4))).sum();
    assert_eq!(admitted, 50);
}
