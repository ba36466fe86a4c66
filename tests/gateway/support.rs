//! The gateway as a process, servers behind it, and a client that sends single bytes.

use std::{
    env,
    fmt::Write as _,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use reqwest::{Client, Response};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A gateway with a configuration of its own. Dropped, it ends.
pub(crate) struct Gateway {
    process: Child,
    pub(crate) url: String,
    /// The lines that name its addresses.
    pub(crate) said: String,
    pub(crate) config: PathBuf,
    folder: TempDir,
}

/// The gateway of this file, before it is started.
pub(crate) fn command(config: &Path, args: &[&str]) -> Command {
    let test = env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples/gateway");
    assert!(program.exists(), "{} is not built: run the tests with tests/run", program.display());
    let mut command = Command::new(program);
    command.arg("--config").arg(config).args(args).env("NO_COLOR", "1");
    command
}

impl Gateway {
    pub(crate) fn start(config: &str, args: &[&str]) -> Self {
        Self::start_with(config, args, |_| {})
    }

    fn start_with(config: &str, args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        fs::write(&path, config).unwrap();
        let mut command = command(&path, args);
        // So long that a machine which is busy elsewhere does not make it count alone.
        command.args(["--deadline-ms", "10000"]).env("TMPDIR", folder.path());
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.stdout(Stdio::piped()).stderr(File::create(folder.path().join("log")).unwrap());
        change(&mut command);
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split([' ', ',', ';']).find(|word| word.starts_with("http://"));
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        let url = url.unwrap_or_else(|| panic!("{line}{log}")).to_owned();
        Self { process, url, said: line, config: path, folder }
    }

    /// One route for each path, all to the sample upstream.
    pub(crate) fn with(store: &str, routes: &[(&str, &str)], rules: &[(&str, &str)]) -> Self {
        let mut config = String::new();
        for (path, more) in routes {
            writeln!(config, "[[routes]]\npath = \"{path}\"\nupstream = \"sample\"\n{more}").unwrap();
        }
        for (prefix, settings) in rules {
            writeln!(config, "[rules.{prefix}]\n{settings}").unwrap();
        }
        Self::start(&config, &["--store", store])
    }

    /// One route for all paths, without a limit that is ever reached.
    pub(crate) fn before(upstream: &str, args: &[&str]) -> Self {
        Self::before_with(upstream, args, |_| {})
    }

    pub(crate) fn before_with(upstream: &str, args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let config = format!(
            "[[routes]]\npath = \"/\"\nupstream = \"{upstream}\"\nlimits = [{{ rule = \"all\" }}]\n\
             [rules.all]\ncount = 1000000\nunit = \"Days\"\n"
        );
        Self::start_with(&config, args, change)
    }

    pub(crate) fn write(&self, change: impl Fn(&str) -> String) {
        fs::write(&self.config, change(&fs::read_to_string(&self.config).unwrap())).unwrap();
    }

    pub(crate) async fn get(&self, client: &Client, path: &str) -> Response {
        client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    /// Ends it as a service manager does. Its status, and the files that it leaves.
    pub(crate) fn stop(&mut self) -> (ExitStatus, Vec<String>) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let status = self.process.wait().unwrap();
        let files = fs::read_dir(self.folder.path()).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort_unstable();
        (status, files)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.url.trim_start_matches("http://").parse().unwrap()
    }

    /// The response to these bytes, until the connection ends or is silent.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(bytes).unwrap();
        let (mut all, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = stream.read(&mut part) {
            all.extend_from_slice(&part[..read]);
            stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    /// The status of the only response to these bytes.
    pub(crate) fn raw_status(&self, bytes: &[u8]) -> u16 {
        let answer = self.raw(bytes);
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        answer[9..12].parse().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One connection at a time, and none shared with another client.
pub(crate) fn client() -> Client {
    Client::builder().no_proxy().pool_max_idle_per_host(1).build().unwrap()
}

pub(crate) fn number(response: &Response, field: &str) -> u64 {
    response.headers()[field].to_str().unwrap().parse().unwrap()
}

/// Waits until something is true.
pub(crate) async fn eventually(expected: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_true().await {
        assert!(Instant::now() < deadline, "{expected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A server that keeps all requests as they came, and answers each with its first line.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Requests,
}

/// Head and body of requests.
pub(crate) type Requests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

impl Upstream {
    pub(crate) fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    pub(crate) fn on(listener: TcpListener) -> Self {
        let upstream = Self { address: listener.local_addr().unwrap(), requests: Requests::default() };
        let requests = Arc::clone(&upstream.requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let requests = Arc::clone(&requests);
                thread::spawn(move || answer(stream, &requests));
            }
        });
        upstream
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|(head, _)| head.clone()).collect()
    }
}

/// Reads requests as a strict server would. One that could be read in two ways is a failure.
pub(crate) fn answer(mut stream: impl Read + Write, requests: &Requests) {
    let mut buffer = Vec::new();
    loop {
        let Some(end) = read_until(&mut stream, &mut buffer, |bytes| find(bytes, b"\r\n\r\n")) else { return };
        let head = String::from_utf8(buffer.drain(..end + 4).collect()).unwrap();
        let fields: Vec<_> = head.lines().skip(1).filter_map(|line| line.split_once(": ")).collect();
        let all = |name: &str| {
            let values = fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
            values.map(|(_, value)| *value).collect::<Vec<_>>()
        };
        let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
        assert!(lengths.len() + codings.len() <= 1 && !head.replace("\r\n", "").contains(['\r', '\n']), "{head:?}");
        let body_end = match (lengths.first(), codings.first()) {
            (Some(length), _) => {
                let length = length.parse().unwrap();
                read_until(&mut stream, &mut buffer, |bytes| (bytes.len() >= length).then_some(length))
            }
            (None, Some(_)) => {
                let is_end = |bytes: &[u8]| bytes.starts_with(b"0\r\n\r\n").then_some(0);
                read_until(&mut stream, &mut buffer, |bytes| {
                    is_end(bytes).or_else(|| find(bytes, b"\r\n0\r\n\r\n").map(|at| at + 2)).map(|at| at + 5)
                })
            }
            (None, None) => Some(0),
        };
        let Some(body_end) = body_end else { return };
        let line = format!("{}\n", head.lines().next().unwrap());
        requests.lock().unwrap().push((head, buffer.drain(..body_end).collect()));
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{line}", line.len());
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn read_until(
    stream: &mut impl Read,
    buffer: &mut Vec<u8>,
    is_found: impl Fn(&[u8]) -> Option<usize>,
) -> Option<usize> {
    let mut part = [0; 4096];
    loop {
        if let Some(found) = is_found(buffer) {
            return Some(found);
        }
        let Ok(read @ 1..) = stream.read(&mut part) else { return None };
        buffer.extend_from_slice(&part[..read]);
    }
}
