//! Starts a server, prints its port, its folder and its URL, and holds it until standard input ends.
//! `it/harness.rs` looks at what is left when it is killed instead.

use ratelimit_harness::RedisServer;

fn main() {
    let server = RedisServer::start();
    let setting = server.command(&[b"CONFIG", b"GET", b"dir"]);
    let (_, folder): (String, String) = redis::from_redis_value(setting).expect("a name and a value");
    println!("{} {folder} {}", server.port(), server.url());
    let _ = std::io::stdin().read_line(&mut String::new());
}
