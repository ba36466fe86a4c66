//! A `redis-server` of one test: where it listens, how it starts, and what a test may do to it.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Connection, RedisResult, Value};
use tempfile::TempDir;

use crate::clock::ServerClock;
use crate::process::Process;
use crate::tls::TlsFiles;

/// How long a server may take to start, or to answer [`RedisServer::command`].
const PATIENCE: Duration = Duration::from_secs(20);

const PORT_ATTEMPTS: u32 = 20;

/// A running Redis server with nothing in it. Drop: killed, waited for, its folder removed.
#[derive(Debug)]
#[must_use = "a server ends when it is dropped"]
pub struct RedisServer {
    // Dropped in this order: the process before its folder.
    process: Option<Process>,
    folder: TempDir,
    address: Address,
    password: Option<String>,
    clock: Option<ServerClock>,
    tls: Option<TlsFiles>,
    args: Vec<String>,
}

/// What a server is asked to be; see [`RedisServer::builder`].
#[derive(Debug, Default)]
#[must_use]
pub struct RedisServerBuilder {
    listen: Listen,
    password: Option<String>,
    controlled_clock: bool,
    args: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Listen {
    #[default]
    Tcp,
    Tls,
    Unix,
}

#[derive(Clone, Copy, Debug)]
enum Address {
    Tcp(u16),
    Tls(u16),
    /// The socket every server has in its folder, see [`RedisServer::socket`].
    Unix,
}

/// Another process took the port first.
struct PortTaken;

impl RedisServerBuilder {
    /// Listens with TLS only, see [`RedisServer::tls`].
    pub fn tls(mut self) -> Self {
        self.listen = Listen::Tls;
        self
    }

    /// Listens on a unix socket only.
    pub fn unix_socket(mut self) -> Self {
        self.listen = Listen::Unix;
        self
    }

    /// Asks clients for a password. [`RedisServer::url`] has it.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Any setting of `redis.conf`, as on the command line: `.arg("--maxmemory", "1mb")`. Wins over the harness' own.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Puts the server's wall clock in the hands of the test, see [`RedisServer::clock`]. Linux only; needs `cc`.
    pub fn controlled_clock(mut self) -> Self {
        self.controlled_clock = true;
        self
    }

    /// Starts the server, and waits until it answers.
    pub fn start(self) -> RedisServer {
        self.start_on(free_port)
    }

    fn start_on(self, mut next_port: impl FnMut() -> u16) -> RedisServer {
        let folder = tempfile::Builder::new().prefix("ratelimit-redis-").tempdir().expect("a temporary folder");
        let mut server = RedisServer {
            process: None,
            address: Address::Unix,
            password: self.password,
            clock: self.controlled_clock.then(|| ServerClock::create(folder.path())),
            tls: matches!(self.listen, Listen::Tls).then(|| TlsFiles::create(folder.path())),
            args: self.args,
            folder,
        };
        for _ in 0..PORT_ATTEMPTS {
            server.address = match self.listen {
                Listen::Tcp => Address::Tcp(next_port()),
                Listen::Tls => Address::Tls(next_port()),
                Listen::Unix => Address::Unix,
            };
            if let Ok(()) = server.launch() {
                return server;
            }
        }
        panic!("{PORT_ATTEMPTS} ports in a row were taken");
    }
}

impl RedisServer {
    /// A server on a free loopback port, without password, without persistence.
    ///
    /// Runs `redis-server`, or the binary that the environment variable `REDIS_SERVER` names. A script may stand there
    /// if it ends in `exec`: signals go to the process that was started.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server that is not the plain one.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Where it listens, as the redis crate takes it: `redis://127.0.0.1:20000/`, `rediss://localhost:20000/` or
    /// `redis+unix:///path/of/socket`, with the password if it has one.
    pub fn url(&self) -> String {
        let password =
            self.password.as_ref().map_or(String::new(), |password| format!(":{}@", percent_encoded(password, "")));
        match self.address {
            Address::Tcp(port) => format!("redis://{password}127.0.0.1:{port}/"),
            Address::Tls(port) => format!("rediss://{password}localhost:{port}/"),
            Address::Unix => self.socket_url(),
        }
    }

    /// The loopback port it listens on.
    pub fn port(&self) -> u16 {
        match self.address {
            Address::Tcp(port) | Address::Tls(port) => port,
            Address::Unix => panic!("this server listens on a unix socket only"),
        }
    }

    /// The server's own process id.
    pub fn pid(&self) -> u32 {
        self.running().id()
    }

    /// The certificates of a server built with [`RedisServerBuilder::tls`].
    pub fn tls(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// The clock of a server built with [`RedisServerBuilder::controlled_clock`].
    pub fn clock(&self) -> &ServerClock {
        self.clock.as_ref().expect("the server was not built with .controlled_clock()")
    }

    /// Halts it (SIGSTOP): its port still takes connections, and nothing answers. Returns once it has halted.
    pub fn stop(&self) {
        self.running().stop();
    }

    /// Lets a halted server go on (SIGCONT).
    pub fn cont(&self) {
        self.running().cont();
    }

    /// Ends it at once (SIGKILL) and waits for that. What it held is lost.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again at the same address and with the same settings, empty; kills it first if it runs.
    pub fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + PATIENCE;
        while let Err(PortTaken) = self.launch() {
            assert!(Instant::now() < deadline, "port {} stays taken", self.port());
            sleep(Duration::from_millis(50));
        }
    }

    /// Sends one command and returns the reply; panics with the server's words if it is an error.
    ///
    /// Goes over a fresh connection to a unix socket of the server's, whatever it is that [`RedisServer::url`] names.
    pub fn command(&self, args: &[&[u8]]) -> Value {
        let mut command = Cmd::new();
        for arg in args {
            command.arg(arg);
        }
        self.connect_socket().and_then(|mut connection| command.query(&mut connection)).unwrap_or_else(|error| {
            let command: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
            panic!("{}: {error}", command.join(" "))
        })
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("the server was killed")
    }

    /// Returns once it answers PING.
    fn launch(&mut self) -> Result<(), PortTaken> {
        let log = self.folder.path().join("log");
        let mut process = self.spawn(&log);
        let started = Instant::now();
        while self.ping().is_err() {
            if let Some(status) = process.status() {
                let log = read_lossy(&log);
                if log.contains("Address already in use") {
                    return Err(PortTaken);
                }
                panic!("the Redis server ended at its start, {status}:\n{log}");
            }
            assert!(started.elapsed() < PATIENCE, "the Redis server does not answer PING:\n{}", read_lossy(&log));
            sleep(Duration::from_millis(2));
        }
        self.process = Some(process);
        Ok(())
    }

    fn spawn(&self, log: &Path) -> Process {
        let log = File::create(log).expect("the server's log is created");
        let binary = env::var_os("REDIS_SERVER").unwrap_or_else(|| OsString::from("redis-server"));
        let mut command = Command::new(&binary);
        self.configure(&mut command)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a second handle of the log"))
            .stdout(log);
        Process::spawn(&mut command, self.folder.path()).unwrap_or_else(|error| {
            panic!(
                "cannot run `{}`: {error}. These tests run against a real Redis server. Install one (`apt-get install \
                 redis-server`, `dnf install redis` or `brew install redis`), or name another binary in the \
                 environment variable REDIS_SERVER, as in REDIS_SERVER=valkey-server.",
                binary.display()
            )
        })
    }

    fn configure<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let (port, tls_port) = match self.address {
            Address::Tcp(port) => (port, 0),
            Address::Tls(port) => (0, port),
            Address::Unix => (0, 0),
        };
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .arg("--unixsocket")
            .arg(self.socket())
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(self.folder.path());
        if let Some(tls) = &self.tls {
            command.args(["--tls-port", &tls_port.to_string()]);
            for (name, value) in tls.server_args() {
                command.arg(name).arg(value);
            }
        }
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        if let Some(clock) = &self.clock {
            clock.attach(command);
        }
        command.args(&self.args)
    }

    /// Every server has one, so that the harness can speak to it whatever its clients must speak.
    /// It is bound after the ports: a server that answers there has its port.
    fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    fn socket_url(&self) -> String {
        let path = percent_encoded(self.socket().to_str().expect("a UTF-8 path"), "/");
        let password =
            self.password.as_ref().map_or(String::new(), |password| format!("?pass={}", percent_encoded(password, "")));
        format!("redis+unix://{path}{password}")
    }

    fn connect_socket(&self) -> RedisResult<Connection> {
        let connection = Client::open(self.socket_url())?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    fn ping(&self) -> RedisResult<()> {
        redis::cmd("PING").exec(&mut self.connect_socket()?)
    }
}

/// A port below the range systems take client ports from: there, a client that calls a killed server again and again
/// can be given the very port it calls, and is then connected to itself. No two calls in a process return the same
/// one; other processes start elsewhere in the range.
fn free_port() -> u16 {
    const FIRST: u32 = 15_000;
    const COUNT: u32 = 17_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + next % COUNT).expect("a port below 65,536");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} to {}", FIRST + COUNT - 1);
}

/// For a part of a URL; `kept` beside the characters that mean nothing there.
fn percent_encoded(text: &str, kept: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.as_bytes().contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between the look at a port and the server's start another process may take it.
    #[test]
    fn start_takes_another_port_when_its_first_is_taken() {
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = other.local_addr().unwrap().port();
        let mut ports = [taken, free_port()].into_iter();
        let server = RedisServer::builder().start_on(|| ports.next().unwrap());
        assert_ne!(server.port(), taken);
        assert_eq!(ports.next(), None);
    }

    #[test]
    fn ports_of_one_process_differ() {
        let mut ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
    }
}
