//! Users who send queries: fair ones now and then a short one, greedy ones expensive ones, four at once.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::{sync::mpsc, time::sleep};

use crate::{
    log::{Entry, Outcome},
    query::{Answer, Lab, ask},
};

pub(crate) struct Load {
    pub(crate) lasting: Duration,
    pub(crate) fair: u16,
    pub(crate) greedy: u16,
}

/// The results of the queries of a user.
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) is_greedy: bool,
    pub(crate) entries: Vec<Entry>,
}

impl Load {
    pub(crate) async fn run(self, lab: &Arc<Lab>) -> Result<Vec<User>, Box<dyn Error>> {
        let user = |is_greedy| {
            let kind = if is_greedy { "greedy" } else { "fair" };
            move |number| User { name: format!("{kind} {number}"), is_greedy, entries: Vec::new() }
        };
        let mut users: Vec<_> = (1..=self.fair).map(user(false)).chain((1..=self.greedy).map(user(true))).collect();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let start = Instant::now();
        for (number, user) in users.iter().enumerate() {
            for _ in 0..if user.is_greedy { 4 } else { 1 } {
                let (lab, sender) = (Arc::clone(lab), sender.clone());
                let (name, is_greedy) = (user.name.clone(), user.is_greedy);
                tokio::spawn(async move {
                    while start.elapsed() < self.lasting {
                        let (sql, pause) = next_query(is_greedy, lab.window.length());
                        let (entry, answer) = ask(&lab, &name, sql).await;
                        let pause = if let Answer::Refused(_) = answer { pause.max(REFUSED) } else { pause };
                        if sender.send((number, entry)).is_err() {
                            break;
                        }
                        sleep(pause).await;
                    }
                });
            }
        }
        drop(sender);

        let bar = ProgressBar::new(self.lasting.as_millis().try_into()?)
            .with_style(ProgressStyle::with_template("{wide_bar} {msg}")?);
        let (mut ran, mut refused) = (0, 0);
        while let Some((number, entry)) = receiver.recv().await {
            if entry.outcome == Outcome::Refused {
                refused += 1;
            } else {
                ran += 1;
            }
            bar.set_position(start.elapsed().as_millis().try_into()?);
            bar.set_message(format!("{ran} run, {refused} refused"));
            users[number].entries.push(entry);
        }
        bar.finish_and_clear();
        Ok(users)
    }
}

/// Shortest pause after a refusal.
const REFUSED: Duration = Duration::from_millis(50);

/// And how long its user does nothing after it.
fn next_query(is_greedy: bool, window: Duration) -> (String, Duration) {
    if is_greedy {
        let rows = fastrand::u32(10_000..1_000_000);
        let sql = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT sum(i * i % 7) FROM n"
        );
        (sql, Duration::ZERO)
    } else {
        let sql = "SELECT city, sum(pieces * cents) / 100.0 AS euros FROM orders JOIN items ON item = items.id
            JOIN sellers ON seller = sellers.id GROUP BY city ORDER BY euros DESC";
        (sql.into(), window.mul_f64(0.1 + 0.1 * fastrand::f64()))
    }
}
