//! Stand-ins for servers that fail in a way that a real one cannot be made to.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// A server that answers everything but one command, as long as the test runs.
pub(super) struct HalfServer {
    pub(super) url: String,
    /// Number of accepted connections.
    accepted: Arc<AtomicU64>,
    /// Number of times the command was received.
    unanswered: Arc<AtomicU64>,
}

impl HalfServer {
    pub(super) fn silent_on(command: &'static str) -> Self {
        Self::start(command, |_| {})
    }

    pub(super) fn closing_on(command: &'static str) -> Self {
        Self::start(command, |connection| drop(connection.shutdown(Shutdown::Both)))
    }

    fn start(command: &'static str, act: fn(&TcpStream)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://127.0.0.1:{}/?protocol=resp2", listener.local_addr().unwrap().port());
        let (accepted, unanswered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let server = Self { url, accepted: Arc::clone(&accepted), unanswered: Arc::clone(&unanswered) };
        let serve = move |mut connection: TcpStream, unanswered: &AtomicU64| {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = connection.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]);
                if text.contains(&format!("\n{command}\r")) {
                    unanswered.fetch_add(1, Ordering::SeqCst);
                    act(&connection);
                } else {
                    let commands = text.lines().filter(|line| line.starts_with('*')).count();
                    let _ = connection.write_all("+OK\r\n".repeat(commands).as_bytes());
                }
            }
        };
        thread::spawn(move || {
            for connection in listener.incoming() {
                accepted.fetch_add(1, Ordering::SeqCst);
                let unanswered = Arc::clone(&unanswered);
                thread::spawn(move || serve(connection.unwrap(), &unanswered));
            }
        });
        server
    }

    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    pub(super) fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::SeqCst)
    }
}

/// A proxy whose server is lost: it answers each script with this error.
pub(super) fn failing_with(words: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}/?protocol=resp2", listener.local_addr().unwrap().port());
    let serve = move |mut connection: TcpStream| {
        let mut bytes = [0; 16 * 1024];
        while let Ok(length @ 1..) = connection.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..length]);
            for name in text.split('*').filter_map(|command| command.lines().nth(2)) {
                let reply = if name.starts_with("EVAL") { format!("-{words}\r\n") } else { "+OK\r\n".to_owned() };
                let _ = connection.write_all(reply.as_bytes());
            }
        }
    };
    thread::spawn(move || {
        for connection in listener.incoming() {
            thread::spawn(move || serve(connection.unwrap()));
        }
    });
    url
}
