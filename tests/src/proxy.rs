//! A proxy that simulates a bad network between a client and its server.

use std::future::pending;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc as sync_mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::port::free_port;

/// Servers behind proxies call each other from here. See
/// [`RedisClusterBuilder::proxied`](crate::RedisClusterBuilder::proxied).
pub(crate) const SERVERS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Capacity of one direction before the sender has to wait, in reads of at most [`READ`] bytes.
const HELD: usize = 256;
const READ: usize = 16 * 1024;

/// A TCP proxy on a loopback port, in front of another one. It runs on a thread of its own, whatever the test's runtime
/// is doing. Drop: its connections end.
///
/// ```
/// use ratelimit_harness::{Mode, Proxy, RedisServer};
///
/// let server = RedisServer::start();
/// let proxy = Proxy::start(server.port());
/// let url = server.url_through(&proxy); // give this to a client
/// proxy.set(Mode::Stall); // nothing arrives any more, in both directions
/// proxy.set(Mode::Pass); // what was held arrives
/// proxy.cut(); // every connection ends
/// ```
#[derive(Debug)]
#[must_use = "a proxy ends when it is dropped"]
pub struct Proxy {
    port: u16,
    accepted: Arc<AtomicUsize>,
    cut_at_next_reply: Arc<AtomicBool>,
    hold_next_request_ms: Arc<AtomicU64>,
    acts: Option<mpsc::UnboundedSender<Act>>,
    thread: Option<JoinHandle<()>>,
}

/// The treatment of bytes and of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes at once.
    Pass,
    /// Everything arrives so much later, in each direction: a reply by twice as much.
    Delay(Duration),
    /// Connections are taken and nothing passes, not even the end of a connection. It is held until the mode changes.
    Stall,
    /// Requests pass, replies are thrown away. A connection that lost one stays silent in every later mode: no network
    /// loses bytes out of the middle of a stream, and a client would take the next reply for the lost one.
    DropReplies,
    /// New connections are refused, as without a server. Open ones go on.
    Refuse,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// As when the server closes it (FIN).
    Closed,
    /// As when the server is gone (RST).
    Reset,
}

/// A request to the thread, and the channel that reports it done.
struct Act {
    what: What,
    done: sync_mpsc::Sender<()>,
}

enum What {
    Change(Mode),
    End(End),
}

/// The rules of a connection.
#[derive(Clone)]
struct Rules {
    mode: watch::Receiver<Mode>,
    end: watch::Receiver<Option<End>>,
    cut_at_next_reply: Arc<AtomicBool>,
    hold_next_request_ms: Arc<AtomicU64>,
}

impl Proxy {
    /// In front of that loopback port. Whether anybody listens there matters only once a client connects: if not, the
    /// client's connection is reset.
    pub fn start(to: u16) -> Self {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (listener, port) = listen();
        let accepted = Arc::new(AtomicUsize::new(0));
        let cut_at_next_reply = Arc::new(AtomicBool::new(false));
        let hold_next_request_ms = Arc::new(AtomicU64::new(0));
        let (acts, asked) = mpsc::unbounded_channel();
        let disturbances = (Arc::clone(&cut_at_next_reply), Arc::clone(&hold_next_request_ms));
        let serve = serve(listener, port, to, Arc::clone(&accepted), disturbances, asked);
        let thread = thread::Builder::new()
            .name(format!("proxy {port}"))
            .spawn(move || runtime.block_on(serve))
            .expect("a thread is started");
        Proxy { port, accepted, cut_at_next_reply, hold_next_request_ms, acts: Some(acts), thread: Some(thread) }
    }

    /// The loopback port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a plain server behind it. For one with TLS or a password there is
    /// [`RedisServer::url_through`](crate::RedisServer::url_through).
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on, for open connections too. It starts with [`Mode::Pass`].
    pub fn set(&self, mode: Mode) {
        self.act(What::Change(mode));
    }

    /// Closes every open connection (FIN), on both sides. What was held is lost. New ones are taken as before.
    pub fn cut(&self) {
        self.act(What::End(End::Closed));
    }

    /// Resets every open connection (RST). What was held is lost. New ones are taken as before.
    pub fn reset(&self) {
        self.act(What::End(End::Reset));
    }

    /// Closes the first connection on which a reply arrives from now on, in place of that reply. By then the server has
    /// executed the request, and the client can't know.
    pub fn cut_at_next_reply(&self) {
        self.cut_at_next_reply.store(true, Ordering::SeqCst);
    }

    /// Holds the first request that arrives from now on for so long, and all that follows on its connection. Other
    /// connections go on, so that later requests overtake it.
    pub fn hold_next_request(&self, time: Duration) {
        self.hold_next_request_ms.store(u64::try_from(time.as_millis()).expect("a short time"), Ordering::SeqCst);
    }

    /// Number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Returns once it is done.
    fn act(&self, what: What) {
        let (done, is_done) = sync_mpsc::channel();
        let acts = self.acts.as_ref().expect("taken in drop only");
        acts.send(Act { what, done }).ok().and_then(|()| is_done.recv().ok()).expect("the proxy's thread goes on");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acts = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen() -> (std::net::TcpListener, u16) {
    loop {
        let port = free_port();
        // Between the look at a port and this another process may take it.
        if let Ok(listener) = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            listener.set_nonblocking(true).expect("a socket that does not block");
            return (listener, port);
        }
    }
}

/// A socket that has the port and does not listen: connections are refused, and no other socket gets the port.
///
/// A process that another test starts has a copy of the listener between `fork` and `exec`, and listens until then.
async fn hold(port: u16) -> TcpSocket {
    loop {
        let socket = TcpSocket::new_v4().expect("a socket");
        // The port may be bound beside its open connections, and from then on by no other socket.
        socket.set_reuseaddr(true).expect("an option of the socket");
        match socket.bind((Ipv4Addr::LOCALHOST, port).into()) {
            Ok(()) => {
                socket.set_reuseaddr(false).expect("an option of the socket");
                return socket;
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("cannot bind a port that was just left: {error}"),
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    port: u16,
    to: u16,
    accepted: Arc<AtomicUsize>,
    (cut_at_next_reply, hold_next_request_ms): (Arc<AtomicBool>, Arc<AtomicU64>),
    mut acts: mpsc::UnboundedReceiver<Act>,
) {
    let mut listener = Some(TcpListener::from_std(listener).expect("a listening socket"));
    let mut closed = None;
    let (mode, mode_seen) = watch::channel(Mode::Pass);
    let (mut end, mut end_seen) = watch::channel(None);
    let mut clients = JoinSet::new();

    // Nothing ever happens to these.
    let (_pass, passing) = watch::channel(Mode::Pass);
    let (_endless, going_on) = watch::channel(None);
    let undisturbed =
        Rules { mode: passing, end: going_on, cut_at_next_reply: Arc::default(), hold_next_request_ms: Arc::default() };
    let mut servers = JoinSet::new();

    loop {
        tokio::select! {
            (stream, from) = accept(listener.as_ref()) => {
                if from == SERVERS {
                    servers.spawn(carry(stream, to, undisturbed.clone()));
                } else {
                    accepted.fetch_add(1, Ordering::SeqCst);
                    let (mode, end) = (mode_seen.clone(), end_seen.clone());
                    let (cut_at_next_reply, hold_next_request_ms) = (cut_at_next_reply.clone(), hold_next_request_ms.clone());
                    clients.spawn(carry(stream, to, Rules { mode, end, cut_at_next_reply, hold_next_request_ms }));
                }
            }
            act = acts.recv() => {
                let Some(Act { what, done }) = act else { return };
                match what {
                    What::Change(new) => {
                        if new == Mode::Refuse {
                            listener = None;
                            if closed.is_none() {
                                closed = Some(hold(port).await);
                            }
                        } else if let Some(closed) = closed.take() {
                            closed.set_reuseaddr(true).expect("an option of the socket");
                            listener = Some(closed.listen(1024).expect("the port was held"));
                        }
                        mode.send_replace(new);
                    }
                    What::End(how) => {
                        end.send_replace(Some(how));
                        while clients.join_next().await.is_some() {}
                        (end, end_seen) = watch::channel(None);
                    }
                }
                let _ = done.send(());
            }
            Some(_) = clients.join_next() => {}
            Some(_) = servers.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> (TcpStream, IpAddr) {
    loop {
        match listener {
            None => pending().await,
            // What fails is one connection, which its client has given up.
            Some(listener) => {
                if let Ok((stream, from)) = listener.accept().await {
                    return (stream, from.ip());
                }
            }
        }
    }
}

/// One connection, until both sides have ended it or the proxy does.
async fn carry(mut client: TcpStream, to: u16, rules: Rules) {
    let mut end = rules.end.clone();
    let ended = tokio::select! {
        ended = join(&mut client, to, &rules) => ended.err(),
        how = end.wait_for(Option::is_some) => how.map_or(Some(End::Closed), |how| *how),
    };
    if let Some(End::Reset) = ended {
        let _ = client.set_zero_linger();
    }
}

/// Ends with an error if that is to be the client's end too.
async fn join(client: &mut TcpStream, to: u16, rules: &Rules) -> Result<(), End> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await.map_err(|_| End::Reset)?;
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_sends, client_gets) = client.split();
    let (server_sends, server_gets) = server.split();
    let requests = pass_on(client_sends, server_gets, rules, false);
    let replies = pass_on(server_sends, client_gets, rules, true);
    tokio::try_join!(requests, replies).map(drop)
}

/// One direction, until its sender ends it. Bytes are taken as they come, so that a delay is one for all of them.
async fn pass_on(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, rules: &Rules, replies: bool) -> Result<(), End> {
    let (held, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(HELD);
    let read = async move {
        let mut bytes = vec![0; READ];
        while let Ok(length @ 1..) = from.read(&mut bytes).await {
            if held.send((Instant::now(), bytes[..length].to_vec())).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    let write = async move {
        let mut mode = rules.mode.clone();
        let mut silent = false;
        while let Some((arrived, bytes)) = due.recv().await {
            let mode = released(&mut mode, arrived).await;
            if !replies {
                sleep(Duration::from_millis(rules.hold_next_request_ms.swap(0, Ordering::SeqCst))).await;
            }
            if replies && rules.cut_at_next_reply.swap(false, Ordering::SeqCst) {
                return Err(End::Closed);
            }
            silent |= replies && mode == Mode::DropReplies;
            if !silent && to.write_all(&bytes).await.is_err() {
                break;
            }
        }
        // The end of a connection is held as bytes are.
        released(&mut mode, Instant::now()).await;
        let _ = to.shutdown().await;
        Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

/// Returns the mode that lets bytes through, once there is one.
async fn released(mode: &mut watch::Receiver<Mode>, arrived: Instant) -> Mode {
    loop {
        let now = *mode.borrow_and_update();
        let due = async {
            match now {
                Mode::Stall => pending().await,
                Mode::Delay(by) => sleep_until(arrived + by).await,
                Mode::Pass | Mode::DropReplies | Mode::Refuse => {}
            }
        };
        tokio::select! {
            biased;
            () = due => return now,
            changed = mode.changed() => if changed.is_err() { pending().await },
        }
    }
}
