//! Loopback ports for servers.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port below the range systems take client ports from: there, a client that calls a killed server again and again
/// can be given the very port it calls, and is then connected to itself. No two calls in a process return the same
/// one; other processes start elsewhere in the range.
pub(crate) fn free_port() -> u16 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_one_process_differ() {
        let mut ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
    }
}
