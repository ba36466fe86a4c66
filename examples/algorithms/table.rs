//! The admitted calls in numbers.

use std::fmt::Write as _;

use crate::{CANDIDATES, COUNT, Outcome, PERIOD_MS};

pub(crate) fn text(outcome: &Outcome) -> String {
    let mut text = format!(
        "Each algorithm admits {COUNT} calls a second for each client.\n\
         in each second: calls admitted, by the second in which they were let through (by LeakyBucket: in their slot)\n\
         most: calls admitted in the worst window of one second, wherever it begins; beside it what the algorithm promises\n"
    );
    if outcome.late_ms > 0 {
        let _ = writeln!(
            text,
            "Redis decided, by its clock. A call's time is up to {} ms later than the decision on it, so that window has {} ms.",
            outcome.late_ms,
            outcome.window_ms()
        );
    }
    for (traffic, by_candidate) in &outcome.rows {
        let _ = writeln!(text, "\n{}", traffic.name);
        for (number, client) in traffic.clients.iter().enumerate() {
            let who = if traffic.clients.len() > 1 { format!("the {} one", client.name) } else { String::new() };
            let _ = writeln!(
                text,
                "  {:45}{:>8}{:>10}{:>9}   {:14}{:>6}{:>10}",
                who, "offered", "admitted", "refused", "in each second", "most", "promised"
            );
            for (candidate, admitted) in CANDIDATES.iter().zip(by_candidate) {
                let (offered, admitted) = (client.calls.len(), &admitted[number]);
                let in_second = [0, 1, 2, 3].map(|second| {
                    let calls = admitted.iter().filter(|at_ms| **at_ms / PERIOD_MS == second).count();
                    format!("{calls:>4}")
                });
                let _ = writeln!(
                    text,
                    "  {:45}{offered:>8}{:>10}{:>9}  {:15}{:>6}{:>10}",
                    candidate.name,
                    admitted.len(),
                    offered - admitted.len(),
                    in_second.concat(),
                    outcome.most_in_a_period(admitted),
                    candidate.promise
                );
            }
        }
    }
    text
}
