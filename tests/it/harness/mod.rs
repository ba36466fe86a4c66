//! The harness itself: servers that tests start, break and stop.

mod cluster;
mod proxy;
mod sentinel;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_harness::RedisServer;
use redis::{Client, Connection, FromRedisValue, RedisResult, Value};
use rustix::process::{Pid, test_kill_process};

fn connect(url: &str) -> RedisResult<Connection> {
    Client::open(url)?.get_connection_with_timeout(Duration::from_secs(5))
}

fn ping(url: &str) -> RedisResult<String> {
    let mut connection = connect(url)?;
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    redis::cmd("PING").query(&mut connection)
}

/// One command, its words parted by spaces.
fn ask<T: FromRedisValue>(server: &RedisServer, command: &str) -> T {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    redis::from_redis_value(server.command(&words)).unwrap()
}

fn setting(server: &RedisServer, name: &str) -> String {
    ask::<(String, String)>(server, &format!("CONFIG GET {name}")).1
}

fn folder(server: &RedisServer) -> PathBuf {
    setting(server, "dir").into()
}

fn exists(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    test_kill_process(pid).is_ok()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "not within thirty seconds: {what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_answers_at_its_url_and_is_empty() {
    let server = RedisServer::start();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    assert_eq!(ping(&server.url()).unwrap(), "PONG");
    assert_eq!(ask::<i64>(&server, "DBSIZE"), 0);
    let info: String = ask(&server, "INFO server");
    assert!(info.contains(&format!("process_id:{}\r\n", server.pid())));
}

#[test]
fn two_servers_share_nothing() {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    ask::<()>(&one, "SET fruit pear");
    assert_ne!(one.port(), other.port());
    assert_eq!(ask::<Option<String>>(&other, "GET fruit"), None);
}

#[test]
fn a_dropped_server_leaves_nothing() {
    let server = RedisServer::start();
    let (pid, folder) = (server.pid(), folder(&server));
    assert!(exists(pid) && folder.exists());
    drop(server);
    assert!(!exists(pid) && !folder.exists());
}

#[test]
fn a_stopped_server_hangs_and_goes_on_later() {
    let server = RedisServer::start();
    server.stop();
    let mut connection = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    connection.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    connection.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    let error = connection.read_exact(&mut reply).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);

    server.cont();
    connection.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn a_stopped_server_ends_too() {
    let server = RedisServer::start();
    let pid = server.pid();
    server.stop();
    drop(server);
    assert!(!exists(pid));
}

#[test]
fn a_killed_server_refuses_and_comes_back_empty() {
    let mut server = RedisServer::start();
    let (pid, url) = (server.pid(), server.url());
    ask::<()>(&server, "SET fruit pear");
    server.kill();
    assert!(!exists(pid));
    assert!(ping(&url).unwrap_err().is_connection_refusal());

    server.restart();
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), pid);
    assert_eq!(ping(&url).unwrap(), "PONG");
    assert_eq!(ask::<i64>(&server, "DBSIZE"), 0);
}

#[test]
fn restart_ends_a_running_server_first() {
    let mut server = RedisServer::start();
    let pid = server.pid();
    server.restart();
    assert!(!exists(pid));
    assert_eq!(ping(&server.url()).unwrap(), "PONG");
}

#[test]
fn a_server_that_ended_by_itself_can_be_restarted() {
    let mut server = RedisServer::start();
    let pid = server.pid();
    let refused = catch_unwind(AssertUnwindSafe(|| server.command(&[b"SHUTDOWN", b"NOSAVE"])));
    assert!(refused.is_err(), "SHUTDOWN has no reply");
    server.restart();
    assert_ne!(server.pid(), pid);
}

#[test]
fn a_unix_socket_is_the_only_address() {
    let mut server = RedisServer::builder().unix_socket().start();
    assert!(server.url().starts_with("redis+unix:///"));
    assert_eq!(ping(&server.url()).unwrap(), "PONG");
    assert_eq!(setting(&server, "port"), "0");

    let url = server.url();
    server.kill();
    assert!(ping(&url).unwrap_err().is_connection_refusal());
    server.restart();
    assert_eq!(ping(&url).unwrap(), "PONG");
}

#[test]
fn a_password_is_asked_for_and_in_the_url() {
    let password = "p@ss/w:rd %?&=+ö";
    for builder in [RedisServer::builder(), RedisServer::builder().unix_socket()] {
        let server = builder.password(password).start();
        assert_eq!(ping(&server.url()).unwrap(), "PONG");
        assert_eq!(ask::<i64>(&server, "DBSIZE"), 0);
    }
    let server = RedisServer::builder().password(password).start();
    let error = ping(&format!("redis://127.0.0.1:{}/", server.port())).unwrap_err();
    assert_eq!(error.code(), Some("NOAUTH"));
}

#[test]
fn settings_reach_the_server_and_survive_a_restart() {
    let mut server = RedisServer::builder().arg("--maxmemory", "1mb").arg("--appendonly", "yes").start();
    for _ in 0..2 {
        assert_eq!(setting(&server, "maxmemory"), "1048576");
        assert_eq!(setting(&server, "appendonly"), "yes");
        server.restart();
    }
}

#[test]
#[should_panic(expected = "INCRBY fruit pear: ")]
fn command_panics_with_the_command() {
    ask::<Value>(&RedisServer::start(), "INCRBY fruit pear");
}

#[test]
#[should_panic(expected = "value is not an integer or out of range")]
fn command_panics_with_the_servers_words() {
    ask::<Value>(&RedisServer::start(), "INCRBY fruit pear");
}

#[test]
#[should_panic(expected = "no-such-setting")]
fn a_server_that_cannot_start_shows_its_log() {
    let _ = RedisServer::builder().arg("--no-such-setting", "1").start();
}

#[test]
fn a_panic_ends_the_server() {
    let mut left = None;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let server = RedisServer::start();
        left = Some((server.pid(), folder(&server)));
        panic!("as a failing test does");
    }));
    assert!(panicked.is_err());
    let (pid, folder) = left.unwrap();
    assert!(!exists(pid) && !folder.exists());
}

/// `hold_server`, with its server's port, folder and URL.
fn hold_server(command: &mut Command) -> (Child, u16, PathBuf, String) {
    let mut owner = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[port, folder, url] = words.as_slice() else { panic!("hold_server printed {line:?}") };
    (owner, port.parse().unwrap(), folder.into(), url.to_owned())
}

#[test]
fn a_killed_owner_takes_its_server_along() {
    let (mut owner, port, folder, _) = hold_server(&mut Command::new(env!("CARGO_BIN_EXE_hold_server")));
    assert_eq!(ping(&format!("redis://127.0.0.1:{port}/")).unwrap(), "PONG");
    assert!(folder.exists());
    owner.kill().unwrap();
    owner.wait().unwrap();
    // By its port: the process itself may stay listed until the system collects it.
    eventually("the server is gone", || TcpStream::connect(("127.0.0.1", port)).is_err());
    eventually("its folder is gone", || !folder.exists());
}

/// `hold_server` where no server can be started.
fn fail_to_start(binary: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hold_server")).env("REDIS_SERVER", binary).output().unwrap()
}

#[test]
fn a_missing_server_fails_with_the_way_to_get_one() {
    let output = fail_to_start(Path::new("/nowhere/redis-server"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for part in [
        "cannot run `/nowhere/redis-server`: No such file or directory",
        "`apt-get install redis-server`",
        "`dnf install redis`",
        "`brew install redis`",
        "REDIS_SERVER=valkey-server",
    ] {
        assert!(message.contains(part), "{part} is missing in: {message}");
    }
}

#[test]
fn the_environment_names_another_server() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("other-server");
    let used = folder.path().join("used");
    fs::write(&script, format!("#!/bin/sh\ntouch '{}'\nexec redis-server \"$@\"\n", used.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let (mut owner, ..) = hold_server(Command::new(env!("CARGO_BIN_EXE_hold_server")).env("REDIS_SERVER", &script));
    assert!(used.exists());
    owner.kill().unwrap();
    owner.wait().unwrap();
}

#[test]
fn the_environment_names_a_user_with_few_rights() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hold_server"));
    let (mut owner, .., url) = hold_server(command.env("RATELIMIT_TEST_USER", "limited"));
    let mut connection = connect(&url).unwrap();
    let reply: String = redis::cmd("EVAL").arg("return 'pear'").arg(0).query(&mut connection).unwrap();
    assert_eq!(reply, "pear");
    let error = redis::cmd("KEYS").arg("*").exec(&mut connection).unwrap_err();
    assert_eq!(error.code(), Some("NOPERM"), "{error}");
    owner.kill().unwrap();
    owner.wait().unwrap();

    let output = command.env("RATELIMIT_TEST_USER", "unlimited").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("RATELIMIT_TEST_USER is `unlimited`; there is only `limited`"), "{message}");
}

mod controlled_clock {
    use super::*;

    fn start() -> RedisServer {
        RedisServer::builder().controlled_clock().start()
    }

    /// The reply to `TIME`, in microseconds.
    fn time(server: &RedisServer) -> u64 {
        let (seconds, micros): (u64, u64) = ask(server, "TIME");
        seconds * 1_000_000 + micros
    }

    #[test]
    fn a_controlled_clock_stands_still_until_moved() {
        let server = start();
        let clock = server.clock();
        let before = clock.now_micros();
        assert_eq!(time(&server), before);
        sleep(Duration::from_millis(20));
        assert_eq!(time(&server), before);

        clock.advance(Duration::from_micros(1_500_001));
        assert_eq!(clock.now_micros(), before + 1_500_001);
        assert_eq!(time(&server), before + 1_500_001);

        clock.set_micros(1_000_000_000_000_007);
        assert_eq!(time(&server), 1_000_000_000_000_007);
    }

    #[test]
    fn a_controlled_clock_shows_a_script_the_same_time() {
        let server = start();
        for _ in 0..3 {
            server.clock().advance(Duration::from_micros(999_999));
            let reply = server.command(&[b"EVAL", b"return redis.call('TIME')", b"0"]);
            let (seconds, micros): (u64, u64) = redis::from_redis_value(reply).unwrap();
            assert_eq!(seconds * 1_000_000 + micros, server.clock().now_micros());
        }
    }

    /// Redis 7.0 keeps a key through `PTTL` 0.
    #[test]
    fn a_controlled_clock_expires_a_key_one_millisecond_after_its_last() {
        let server = start();
        ask::<()>(&server, "SET fruit pear PX 1000");
        sleep(Duration::from_millis(20));
        assert_eq!(ask::<i64>(&server, "PTTL fruit"), 1000);

        server.clock().advance(Duration::from_millis(999));
        assert_eq!(ask::<i64>(&server, "PTTL fruit"), 1);
        server.clock().advance(Duration::from_millis(1));
        assert_eq!(ask::<i64>(&server, "PTTL fruit"), 0);
        assert_eq!(ask::<Option<String>>(&server, "GET fruit").as_deref(), Some("pear"));
        server.clock().advance(Duration::from_micros(999));
        assert_eq!(ask::<Option<String>>(&server, "GET fruit").as_deref(), Some("pear"));
        server.clock().advance(Duration::from_micros(1));
        assert_eq!(ask::<Option<String>>(&server, "GET fruit"), None);
    }

    /// A script sees the same edge as a plain command.
    #[test]
    fn a_controlled_clock_expires_a_key_for_a_script_alike() {
        let server = start();
        let exists = || ask::<Option<String>>(&server, "EVAL return(redis.call('GET','fruit')) 0");
        ask::<Value>(&server, "EVAL redis.call('SET','fruit','pear','PX','1000') 0");
        server.clock().advance(Duration::from_secs(1));
        assert_eq!(exists().as_deref(), Some("pear"));
        server.clock().advance(Duration::from_millis(1));
        assert_eq!(exists(), None);
    }

    #[test]
    fn a_controlled_clock_expires_keys_that_are_never_read() {
        let server = start();
        ask::<()>(&server, "SET fruit pear PX 50");
        sleep(Duration::from_millis(300));
        assert_eq!(ask::<i64>(&server, "DBSIZE"), 1);
        server.clock().advance(Duration::from_millis(51));
        eventually("the key is expired", || ask::<i64>(&server, "DBSIZE") == 0);
    }

    #[test]
    fn a_controlled_clock_outlasts_a_restart() {
        let mut server = start();
        server.clock().advance(Duration::from_secs(3));
        server.restart();
        assert_eq!(time(&server), server.clock().now_micros());
    }

    #[test]
    fn a_controlled_clock_belongs_to_one_server() {
        let (one, other) = (start(), start());
        let before = other.clock().now_micros();
        one.clock().advance(Duration::from_secs(1));
        assert_eq!(time(&other), before);
    }

    #[test]
    #[should_panic(expected = "was not built with .controlled_clock()")]
    fn a_controlled_clock_is_there_on_request_only() {
        RedisServer::start().clock();
    }
}

mod tls {
    use super::*;

    #[test]
    fn tls_is_the_only_address_of_a_server() {
        let server = RedisServer::builder().tls().start();
        assert_eq!(server.url(), format!("rediss://localhost:{}/", server.port()));
        assert_eq!(setting(&server, "port"), "0");
        assert!(ping(&format!("redis://127.0.0.1:{}/", server.port())).is_err());
    }

    #[test]
    fn tls_is_there_on_request_only() {
        assert!(RedisServer::start().tls().is_none());
    }

    #[cfg(feature = "rustls")]
    pub(super) mod over_rustls {
        use super::*;
        use ratelimit_harness::TlsFiles;
        use redis::{ClientTlsConfig, TlsCertificates};

        pub(crate) fn ping(url: &str, ca: Option<&TlsFiles>, client: Option<&TlsFiles>) -> RedisResult<String> {
            let _ = rustls::crypto::ring::default_provider().install_default();
            let certificates = TlsCertificates {
                root_cert: ca.map(|files| fs::read(&files.ca_pem).unwrap()),
                client_tls: client.map(|files| ClientTlsConfig {
                    client_cert: fs::read(&files.client_cert_pem).unwrap(),
                    client_key: fs::read(&files.client_key_pem).unwrap(),
                }),
            };
            let mut connection =
                Client::build_with_tls(url, certificates)?.get_connection_with_timeout(Duration::from_secs(5))?;
            redis::cmd("PING").query(&mut connection)
        }

        #[test]
        fn the_authority_of_a_server_is_the_one_to_trust() {
            let mut server = RedisServer::builder().tls().password("pear").start();
            let files = server.tls();
            assert_eq!(ping(&server.url(), files, None).unwrap(), "PONG");
            assert_eq!(ping(&server.url().replace("localhost", "127.0.0.1"), files, None).unwrap(), "PONG");
            assert!(ping(&server.url(), None, None).is_err());

            server.restart();
            assert_eq!(ping(&server.url(), server.tls(), None).unwrap(), "PONG");
        }

        #[test]
        fn a_server_can_demand_a_client_certificate() {
            let server = RedisServer::builder().tls().arg("--tls-auth-clients", "yes").start();
            let (files, stranger) = (server.tls(), RedisServer::builder().tls().start());
            assert_eq!(ping(&server.url(), files, files).unwrap(), "PONG");
            assert!(ping(&server.url(), files, None).is_err());
            assert!(ping(&server.url(), files, stranger.tls()).is_err());
        }
    }
}
