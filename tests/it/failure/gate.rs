//! A proxy that can hold back the requests of single connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;

use crate::support::MS;

/// A proxy that can hold back the requests of single connections, which are numbered in the order
/// in which they were opened.
pub(super) struct Gate {
    port: u16,
    shared: Arc<GateState>,
}

#[derive(Default)]
struct GateState {
    accepted: AtomicUsize,
    /// One bit for each connection.
    held: AtomicUsize,
    delay_ms: AtomicU32,
}

impl Gate {
    pub(super) fn start(to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (port, shared) = (listener.local_addr().unwrap().port(), Arc::<GateState>::default());
        let state = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to))) else { return };
                let at = state.accepted.fetch_add(1, Ordering::SeqCst);
                let (replies_from, replies_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pass_on(replies_from, replies_to, || ()));
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    pass_on(client, server, || {
                        thread::sleep(MS * state.delay_ms.load(Ordering::SeqCst));
                        while state.held.load(Ordering::SeqCst) & (1 << at) != 0 {
                            thread::sleep(MS);
                        }
                    });
                });
            }
        });
        Self { port, shared }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(super) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    pub(super) fn hold(&self, connection: usize) {
        self.shared.held.fetch_or(1 << connection, Ordering::SeqCst);
    }

    /// Delays each request.
    pub(super) fn delay_ms(&self, delay: u32) {
        self.shared.delay_ms.store(delay, Ordering::SeqCst);
    }

    pub(super) fn release(&self) {
        self.shared.held.store(0, Ordering::SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, may_go: impl Fn()) {
    let mut bytes = [0; 16 * 1024];
    to.set_nodelay(true).unwrap();
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        may_go();
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    may_go();
    let _ = to.shutdown(Shutdown::Write);
}
