//! The harness of the tests and benches: real Redis servers, each private to the test that started
//! it.
//!
//! ```
//! let mut server = ratelimit_harness::RedisServer::start();
//! server.command(&[b"SET", b"fruit", b"pear"]);
//! server.stop(); // hangs, as far as its clients can tell
//! server.cont();
//! server.kill(); // crashes
//! server.restart(); // comes back empty, at the same address
//! ```
//!
//! Beside the single server there are [`RedisCluster`] and [`RedisSentinel`], whose nodes are such
//! servers. [`Proxy`] simulates a bad network, [`Browser`] opens a page, and [`history`] records
//! and checks calls.
//!
//! A server ends with the value that owns it, when the test panics, and when the test process is killed.
//! Where no server can be started the test fails and says how to get one; nothing is skipped.
//!
//! Everything here panics where it cannot go on: it runs in tests only.
#![allow(clippy::missing_panics_doc)]

mod browser;
mod clock;
mod cluster;
pub mod history;
pub mod mutants;
mod patience;
mod port;
mod process;
mod proxy;
mod sentinel;
mod server;
mod tls;
mod user;

pub use browser::Browser;
pub use clock::ServerClock;
pub use cluster::{RedisCluster, RedisClusterBuilder};
pub use proxy::{Mode, Proxy};
pub use sentinel::{RedisSentinel, RedisSentinelBuilder};
pub use server::{RedisServer, RedisServerBuilder};
pub use tls::TlsFiles;
pub use user::{documented_acl, documented_acl_of_prefix};
