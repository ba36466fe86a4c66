//! The time that the layer adds to a request: the example gateway with and without a limit on the
//! way, in memory and on Redis, in one run.
//!
//! ```sh
//! cargo build --release -p ratelimit-examples --example gateway --features gateway
//! cargo run --release -p ratelimit-benches --bin edge_latency
//! ```
//!
//! One connection, one request after another, all contenders by turns. Microseconds hold for one
//! machine and one moment, so read the differences.

use std::{
    env, fs, io,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use ratelimit_harness::RedisServer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

const TURNS: usize = 200;
const REQUESTS_A_TURN: usize = 100;

const CONFIG: &str = "
[[routes]]
path = \"/without\"
upstream = \"sample\"
limits = []

[[routes]]
path = \"/limited\"
upstream = \"sample\"
limits = [{ rule = \"item\", key = \"peer\" }]

[rules.item]
count = 1000000000
unit = \"Days\"
";

struct Gateway {
    process: Child,
    address: String,
}

impl Gateway {
    fn start(store: &str, config: &Path) -> io::Result<Self> {
        let program = env::current_exe()?.with_file_name("examples").join("gateway");
        let mut command = Command::new(&program);
        command.args(["--listen", "127.0.0.1:0", "--store", store, "--config"]).arg(config);
        let mut process =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(|error| {
                io::Error::other(format!("{}: {error}; build it first, see above", program.display()))
            })?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().ok_or_else(|| io::Error::other("no output"))?).read_line(&mut line)?;
        let address = line.split(['/', ',', ' ']).find(|word| word.starts_with("127.")).map(str::to_owned);
        Ok(Self { process, address: address.ok_or_else(|| io::Error::other(line))? })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Contender {
    name: &'static str,
    connection: TcpStream,
    request: String,
    micros: Vec<f64>,
}

impl Contender {
    async fn new(name: &'static str, gateway: &Gateway, path: &str) -> io::Result<Self> {
        let connection = TcpStream::connect(&gateway.address).await?;
        connection.set_nodelay(true)?;
        Ok(Self { name, connection, request: format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"), micros: Vec::new() })
    }

    async fn turn(&mut self) -> io::Result<()> {
        for _ in 0..REQUESTS_A_TURN {
            let begin = Instant::now();
            self.connection.write_all(self.request.as_bytes()).await?;
            let mut answer = Vec::with_capacity(1024);
            while !is_whole(&answer) {
                if self.connection.read_buf(&mut answer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            self.micros.push(begin.elapsed().as_secs_f64() * 1e6);
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }

    /// At that share of all requests.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers
    fn at(&self, share: f64) -> f64 {
        let mut sorted = self.micros.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() as f64 - 1.0) * share) as usize]
    }
}

/// The sample's answers end with a line of their own.
fn is_whole(answer: &[u8]) -> bool {
    answer.windows(4).position(|four| four == b"\r\n\r\n").is_some_and(|head| answer[head + 4..].ends_with(b"\n"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let server = RedisServer::start();
    let config = env::temp_dir().join(format!("edge_latency-{}.toml", std::process::id()));
    fs::write(&config, CONFIG)?;
    let [memory, redis] = ["memory://".to_owned(), server.url()].map(|store| Gateway::start(&store, &config));
    let (memory, redis) = (memory?, redis?);
    let mut contenders = [
        Contender::new("without a limit", &memory, "/without").await?,
        Contender::new("limited, memory", &memory, "/limited").await?,
        Contender::new("without a limit", &redis, "/without").await?,
        Contender::new("limited, Redis", &redis, "/limited").await?,
    ];
    for turn in 0..=TURNS {
        for contender in &mut contenders {
            contender.turn().await?;
            if turn == 0 {
                contender.micros.clear(); // connections are opened
            }
        }
    }
    println!("{:<18} {:>10} {:>10} {:>12} {:>12}", "microseconds", "p50", "p99", "added, p50", "added, p99");
    for pair in contenders.chunks(2) {
        let [without, limited] = pair else { continue };
        println!("{:<18} {:>10.1} {:>10.1}", without.name, without.at(0.5), without.at(0.99));
        let added = [0.5, 0.99].map(|share| limited.at(share) - without.at(share));
        let [p50, p99] = [limited.at(0.5), limited.at(0.99)];
        println!("{:<18} {p50:>10.1} {p99:>10.1} {:>12.1} {:>12.1}", limited.name, added[0], added[1]);
    }
    fs::remove_file(&config)
}
