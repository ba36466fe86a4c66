//! The time that the users of a load used, in numbers.

use std::fmt::Write as _;

use crate::{
    load::User,
    log::{Entry, Outcome},
    query::Lab,
};

pub(crate) fn text(users: &[User], lab: &Lab) -> String {
    let mut text = format!(
        "{:12}{:>6}{:>13}{:>9}{:>12}{:>26}{:>10}\n",
        "user", "run", "interrupted", "refused", "time used", "most used in any window", "budget"
    );
    for User { name, entries, .. } in users {
        let count = |outcome| entries.iter().filter(|entry| entry.outcome == outcome).count();
        let (refused, interrupted) = (count(Outcome::Refused), count(Outcome::Interrupted));
        let ran = entries.len() - refused;
        let used: u64 = entries.iter().map(|entry| entry.end_us - entry.start_us).sum();
        let most = used_in_window(entries, lab).into_iter().map(|(_, used)| used).max().unwrap_or_default();
        let ms = |us: u64| format!("{} ms", us.div_ceil(1_000));
        let _ = writeln!(
            text,
            "{name:12}{ran:>6}{interrupted:>13}{refused:>9}{:>12}{:>26}{:>10}",
            ms(used),
            ms(most),
            ms(lab.budget_ms * 1_000)
        );
    }
    text
}

/// Time that queries ran in the window before each moment, in microseconds: the corners of the line
/// in the chart.
pub(crate) fn used_in_window(entries: &[Entry], lab: &Lab) -> Vec<(u64, u64)> {
    let window = lab.window as u64 * 1_000;
    let mut moments: Vec<_> = entries
        .iter()
        .filter(|entry| entry.start_us < entry.end_us)
        .flat_map(|entry| [entry.start_us, entry.end_us].map(|at| [at, at + window]))
        .flatten()
        .collect();
    moments.sort_unstable();
    let used_before = |moment: u64| {
        let used_by = |entry: &Entry| moment.min(entry.end_us).saturating_sub(entry.start_us.max(moment - window));
        entries.iter().map(used_by).sum()
    };
    moments.into_iter().map(|moment| (moment, used_before(moment))).collect()
}
