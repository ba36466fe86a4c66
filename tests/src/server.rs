//! A `redis-server` of one test: where it listens, how it starts, and what a test may do to it.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Connection, FromRedisValue, RedisResult, Value};
use tempfile::TempDir;

use crate::clock::ServerClock;
use crate::patience::PATIENCE;
use crate::port::free_port;
use crate::process::Process;
use crate::proxy::Proxy;
use crate::tls::TlsFiles;
use crate::user::{self, User};

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
    /// Whom the URL names instead of the default user.
    user: Option<&'static User>,
    clock: Option<ServerClock>,
    tls: Option<TlsFiles>,
    cluster_port: Option<u16>,
    kind: Kind,
    args: Vec<String>,
}

/// Settings of a server; see [`RedisServer::builder`].
#[derive(Debug, Default)]
#[must_use]
pub struct RedisServerBuilder {
    listen: Listen,
    password: Option<String>,
    controlled_clock: bool,
    tls: Option<TlsFiles>,
    rsa_bits: Option<u32>,
    kind: Kind,
    args: Vec<String>,
}

#[derive(Clone, Debug, Default)]
enum Kind {
    /// Told everything on the command line.
    #[default]
    Plain,
    /// A node of a cluster, which has a second port for the others.
    ClusterNode,
    /// With a configuration file of this text, which it or its sentinels rewrite; a restart goes on from there.
    Configured(String),
    /// A sentinel, with a configuration file as above.
    Sentinel(String),
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

    /// Listens with TLS only, and has an RSA key of so many bits. Needs `openssl`.
    pub fn rsa_tls(mut self, bits: u32) -> Self {
        self.rsa_bits = Some(bits);
        self.tls()
    }

    /// Listens on a unix socket only.
    pub fn unix_socket(mut self) -> Self {
        self.listen = Listen::Unix;
        self
    }

    /// Asks clients for a password. [`RedisServer::url`] has it. No quotes and backslashes: Valkey 8.1 does not take
    /// them on its command line.
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

    /// As [`RedisServerBuilder::tls`], with certificates that other servers have too.
    pub(crate) fn shared_tls(mut self, files: Option<&TlsFiles>) -> Self {
        self.tls = files.cloned();
        self.tls()
    }

    pub(crate) fn cluster_node(mut self) -> Self {
        self.kind = Kind::ClusterNode;
        self
    }

    pub(crate) fn configured(mut self, text: &str) -> Self {
        self.kind = Kind::Configured(text.to_owned());
        self
    }

    pub(crate) fn sentinel(mut self, text: &str) -> Self {
        self.kind = Kind::Sentinel(text.to_owned());
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
            // A sentinel knows none of the rights, and where a test gives a password it is about that password.
            user: user::chosen().filter(|_| !matches!(self.kind, Kind::Sentinel(_)) && self.password.is_none()),
            password: self.password,
            clock: self.controlled_clock.then(|| ServerClock::create(folder.path())),
            tls: matches!(self.listen, Listen::Tls)
                .then(|| self.tls.unwrap_or_else(|| TlsFiles::create(folder.path(), self.rsa_bits))),
            cluster_port: None,
            kind: self.kind,
            args: self.args,
            folder,
        };
        if let Kind::Configured(text) | Kind::Sentinel(text) = &server.kind {
            let user =
                server.user.map_or(String::new(), |user| format!("user {} {}\n", user.name, user.rules.join(" ")));
            fs::write(server.config_file(), format!("{text}{user}")).expect("the server's configuration is written");
        }
        for _ in 0..PORT_ATTEMPTS {
            server.address = match self.listen {
                Listen::Tcp => Address::Tcp(next_port()),
                Listen::Tls => Address::Tls(next_port()),
                Listen::Unix => Address::Unix,
            };
            if let Kind::ClusterNode = server.kind {
                server.cluster_port = Some(next_port());
            }
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

    /// The URL of the server, for the redis crate: `redis://127.0.0.1:20000/`,
    /// `rediss://localhost:20000/` or `redis+unix:///path/of/socket`, with the password if it has
    /// one.
    pub fn url(&self) -> String {
        match self.address {
            Address::Tcp(port) | Address::Tls(port) => self.url_at(port),
            Address::Unix => match self.user {
                Some(user) => self.socket_url(&format!("?user={}&pass={}", user.name, user.password)),
                None => self.default_socket_url(),
            },
        }
    }

    /// The URL through a proxy.
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.port())
    }

    fn url_at(&self, port: u16) -> String {
        let credentials = self.credentials();
        match self.address {
            Address::Tls(_) => format!("rediss://{credentials}localhost:{port}/"),
            _ => format!("redis://{credentials}127.0.0.1:{port}/"),
        }
    }

    /// In front of the host in a URL: `:password@`, `user:password@`, or nothing.
    pub(crate) fn credentials(&self) -> String {
        if let Some(user) = self.user {
            return format!("{}:{}@", user.name, user.password);
        }
        self.password.as_ref().map_or(String::new(), |password| format!(":{}@", percent_encoded(password, "")))
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
        self.try_command(args).unwrap_or_else(|error| {
            let command: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
            panic!("{}: {error}", command.join(" "))
        })
    }

    fn try_command<T: FromRedisValue>(&self, args: &[&[u8]]) -> RedisResult<T> {
        let mut command = Cmd::new();
        for arg in args {
            command.arg(arg);
        }
        command.query(&mut self.connect_socket()?)
    }

    /// One command, its words parted by spaces. The error names it.
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &str) -> Result<T, String> {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        self.try_command(&words).map_err(|error| format!("the server at port {}, {command}: {error}", self.port()))
    }

    /// Neither killed nor halted.
    pub(crate) fn is_up(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.is_stopped())
    }

    /// Checks that it has all keys of that primary and gets every write from now on. Its own word
    /// is not enough: a primary sends nothing until it has heard from the replica, up to a second
    /// later.
    pub(crate) fn follows(&self, primary: &RedisServer) -> Result<(), String> {
        let own: String = self.ask("INFO replication")?;
        let others: String = primary.ask("INFO replication")?;
        let history = |info: &str| info.lines().find(|line| line.starts_with("master_replid:")).map(str::to_owned);
        let up = own.contains("master_link_status:up\r\n") && history(&own) == history(&others);
        let online = others.contains(&format!(",port={},state=online,", self.port()));
        if up && online {
            return Ok(());
        }
        let (replica, primary) = (self.port(), primary.port());
        Err(format!("the server at port {replica} does not follow the one at port {primary} yet: {own}{others}"))
    }

    pub(crate) fn cluster_port(&self) -> u16 {
        self.cluster_port.expect("a node of a cluster")
    }

    /// Changes a setting now, and for every restart.
    pub(crate) fn configure(&mut self, name: &str, value: &str) {
        self.command(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]);
        self.args.extend([format!("--{name}"), value.to_owned()]);
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
        if let Kind::Sentinel(_) = self.kind {
            // What it looks at, and tells, every ten and every two seconds otherwise. Not kept over a restart.
            self.command(&[b"SENTINEL", b"DEBUG", b"INFO-PERIOD", b"500", b"PUBLISH-PERIOD", b"200"]);
        }
        Ok(())
    }

    fn spawn(&self, log: &Path) -> Process {
        let log = File::create(log).expect("the server's log is created");
        let binary = env::var_os("REDIS_SERVER").unwrap_or_else(|| OsString::from("redis-server"));
        let mut command = Command::new(&binary);
        self.arguments(&mut command)
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

    fn arguments<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let (port, tls_port) = match self.address {
            Address::Tcp(port) => (port, 0),
            Address::Tls(port) => (0, port),
            Address::Unix => (0, 0),
        };
        if let Kind::Configured(_) | Kind::Sentinel(_) = self.kind {
            command.arg(self.config_file());
        }
        if let Kind::Sentinel(_) = self.kind {
            command.arg("--sentinel");
        }
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
        if let (Some(user), Kind::Plain | Kind::ClusterNode) = (self.user, &self.kind) {
            command.args(["--user", &user.name]).args(&user.rules);
        }
        if let Some(port) = self.cluster_port {
            command.args(["--cluster-enabled", "yes", "--cluster-port", &port.to_string()]);
        }
        if let Some(clock) = &self.clock {
            clock.attach(command);
        }
        command.args(&self.args)
    }

    fn config_file(&self) -> PathBuf {
        self.folder.path().join("redis.conf")
    }

    /// Every server has one, so that the harness can speak to it whatever its clients must speak.
    /// It is bound after the ports: a server that answers there has its port.
    fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    fn socket_url(&self, query: &str) -> String {
        format!("redis+unix://{}{query}", percent_encoded(self.socket().to_str().expect("a UTF-8 path"), "/"))
    }

    /// The URL of the user with all rights.
    fn default_socket_url(&self) -> String {
        let password =
            self.password.as_ref().map_or(String::new(), |password| format!("?pass={}", percent_encoded(password, "")));
        self.socket_url(&password)
    }

    fn connect_socket(&self) -> RedisResult<Connection> {
        let connection = Client::open(self.default_socket_url())?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    fn ping(&self) -> RedisResult<()> {
        redis::cmd("PING").exec(&mut self.connect_socket()?)
    }
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
    use std::net::{Ipv4Addr, TcpListener};

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
}
