//! The calls that are sent.

/// Calls of one client or more.
pub(crate) struct Traffic {
    pub(crate) name: &'static str,
    pub(crate) clients: Vec<Client>,
}

/// Callers and the times of their calls: milliseconds from the start, which is a full second.
pub(crate) struct Client {
    pub(crate) name: &'static str,
    pub(crate) calls: Vec<u64>,
}

const SECONDS: u64 = 3;

pub(crate) fn all() -> [Traffic; 4] {
    let with_burst = [every_second(4), (1500..1600).step_by(5).collect()].concat();
    let across_border = (990..1000).chain((1000..2000).step_by(50)).collect();
    [
        one("Steady: 15 calls a second", every_second(15)),
        one("Burst: 4 calls a second, and 20 more within 0.1 s", with_burst),
        one("Burst at the border: 10 calls just before a full second, 20 in the second after it", across_border),
        Traffic {
            name: "Two clients: one makes 20 calls a second, the other 4",
            clients: vec![
                Client { name: "greedy", calls: every_second(20) },
                Client { name: "modest", calls: every_second(4) },
            ],
        },
    ]
}

fn one(name: &'static str, mut calls: Vec<u64>) -> Traffic {
    calls.sort_unstable();
    Traffic { name, clients: vec![Client { name: "client", calls }] }
}

/// `per_second` calls a second, evenly spread.
fn every_second(calls: u64) -> Vec<u64> {
    (0..calls * SECONDS).map(|number| number * 1000 / calls).collect()
}
