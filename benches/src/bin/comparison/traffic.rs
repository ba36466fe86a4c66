//! A process of the comparison: calls that begin at fixed times, whatever has become of those before.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use ratelimit_harness::ServerClock;
use rustix::time::{ClockId, clock_gettime};
use tokio::{task::JoinSet, time};

use crate::peers::{Answer, Client, Peer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Steady,
    /// One call, which opens a window if there are any, and a burst around the window's end.
    Bursts,
}

impl Shape {
    /// True if calls are made at that time.
    fn is_busy(self, at: Duration) -> bool {
        let at = at.as_millis() % 2500;
        self == Self::Steady || at < 2 || (900..1200).contains(&at)
    }
}

/// The traffic of one process.
#[derive(Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) shape: Shape,
    /// Calls a second that the limiter admits.
    pub(crate) count: u64,
    /// Calls a second that are made.
    pub(crate) rate: u64,
    pub(crate) seconds: u64,
}

/// One call, in microseconds of the machine's monotonic clock.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct Call {
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) is_admitted: bool,
    pub(crate) is_failed: bool,
}

impl Call {
    pub(crate) fn took(self) -> Duration {
        Duration::from_micros(self.ended - self.began)
    }
}

/// A process that makes calls.
pub(crate) struct Caller {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Caller {
    /// Starts a process, and waits until its limiter is connected. Its wall clock may be another.
    pub(crate) fn start(peer: Peer, url: &str, traffic: Traffic, clock: Option<&ServerClock>) -> Self {
        let Traffic { shape, count, rate, seconds } = traffic;
        let at = Peer::ALL.iter().position(|other| *other == peer).expect("one of all");
        let mut command = Command::new(env::current_exe().expect("the path of this program"));
        command
            .args(["calls", &at.to_string(), url, &format!("{shape:?}")])
            .args([count, rate, seconds].map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(clock) = clock {
            clock.attach(&mut command);
        }
        let mut process = command.spawn().expect("a process");
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "a process of {peer:?} does not connect");
        Self { process, output }
    }

    pub(crate) fn begin(&mut self) {
        self.process.stdin.take().expect("a pipe").write_all(b"go\n").expect("a running process");
    }

    /// Waits for its end.
    pub(crate) fn calls(mut self) -> Vec<Call> {
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("text");
        self.process.wait().expect("a process that ends");
        serde_json::from_str(&text).expect("calls")
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process that [`Caller::start`] starts.
pub(crate) async fn make_calls(peer: &str, url: &str, shape: &str, numbers: [&str; 3]) {
    let shape = if shape == "Bursts" { Shape::Bursts } else { Shape::Steady };
    let peer = Peer::ALL[peer.parse::<usize>().expect("a number")];
    let [count, rate, seconds] = numbers.map(|number| number.parse::<u64>().expect("a number"));
    let client = Client::connect(peer, url, count, Duration::from_secs(1)).await.expect("a connection");
    // The first call of each costs more, such as for a script that the server has to learn.
    client.ask("first").await;
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new()).expect("a line");

    let mut calls = JoinSet::new();
    let tick = Duration::from_secs(1) / u32::try_from(rate).expect("fits");
    let mut ticks = time::interval(tick);
    for number in 0..u32::try_from(rate * seconds).expect("fits") {
        ticks.tick().await;
        if !shape.is_busy(tick * number) {
            continue;
        }
        let client = client.clone();
        calls.spawn(async move {
            let began = monotonic();
            let answer = client.ask("hot").await;
            let ended = monotonic();
            Call { began, ended, is_admitted: answer == Answer::Admitted, is_failed: answer == Answer::Failed }
        });
    }
    println!("{}", serde_json::to_string(&calls.join_all().await).expect("JSON"));
}

/// Microseconds of a clock that all processes of a machine share, and that nobody sets.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1000).expect("after the start of the machine")
}

/// The most calls that were certainly admitted within some second: they began and ended in it.
pub(crate) fn most_in_a_second(calls: &[Call]) -> usize {
    let admitted: Vec<&Call> = calls.iter().filter(|call| call.is_admitted).collect();
    let within = |start: u64| admitted.iter().filter(move |call| call.began >= start && call.ended < start + 1_000_000);
    admitted.iter().map(|first| within(first.began).count()).max().unwrap_or(0)
}
