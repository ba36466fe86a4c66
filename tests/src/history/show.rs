//! Accusations, for a person to read.

use std::fmt::{self, Write as _};

use super::{Action, Answer, Call, Limit};

/// Lines of a history that are printed.
const LINES: usize = 120;

/// An answer that no correct limiter gives, and the calls that show it.
#[derive(Clone, Debug)]
pub struct Accusation {
    /// The rule that is broken, in a few words.
    pub broken: &'static str,
    /// The counter and the numbers.
    pub message: String,
    /// The calls of the counter that show it, by the time of their invocation.
    pub calls: Vec<Call>,
    /// The accused call.
    pub accused: Option<(u32, u64)>,
    pub(super) limits: Vec<Limit>,
}

impl fmt::Display for Accusation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.broken, self.message)?;
        let start = self.calls.iter().map(|call| call.invoked).min().unwrap_or(0);
        writeln!(f, "   {:>11} {:>11}  {:<10} call and answer (times in ms)", "invoked", "answered", "process")?;
        let accused = self.calls.iter().position(|call| Some((call.process, call.id)) == self.accused);
        // The first ones, and those around the accused one.
        let around = accused.unwrap_or(self.calls.len().saturating_sub(1));
        let is_shown = |at: usize| self.calls.len() <= LINES || at < LINES / 4 || at.abs_diff(around) < LINES / 3;
        let mut left_out = 0;
        for (at, call) in self.calls.iter().enumerate() {
            if !is_shown(at) {
                left_out += 1;
                continue;
            }
            skipped(f, &mut left_out)?;
            let mark = if accused == Some(at) { "=>" } else { "  " };
            let (invoked, answered) = (ms(call.invoked - start), ms(call.answered.saturating_sub(start)));
            writeln!(f, "{mark} {invoked:>11} {answered:>11}  {:<10} {}", name(call), self.line(call))?;
        }
        skipped(f, &mut left_out)
    }
}

fn skipped(f: &mut fmt::Formatter<'_>, left_out: &mut usize) -> fmt::Result {
    if *left_out > 0 {
        writeln!(f, "   ... {left_out} more calls ...")?;
    }
    *left_out = 0;
    Ok(())
}

fn name(call: &Call) -> String {
    format!("{}#{}", call.process, call.id)
}

#[allow(clippy::cast_precision_loss)]
fn ms(micros: u64) -> String {
    format!("{:.3}", micros as f64 / 1000.0)
}

impl Accusation {
    fn line(&self, call: &Call) -> String {
        let mut line = String::new();
        let wait = |within: Option<u64>| within.map_or(String::new(), |us| format!(", waits up to {} ms", us / 1000));
        let _ = match call.action {
            Action::Acquire { cost, within } => write!(line, "acquire {cost}{}", wait(within)),
            Action::Hold { cost, within, .. } => write!(line, "hold {cost}{}", wait(within)),
            Action::Settle { of, used, is_held } => {
                write!(line, "settle #{of} as {used}{}", if is_held { "" } else { ", hold was lost" })
            }
            Action::Refund { of } => write!(line, "refund #{of}"),
            Action::Peek => write!(line, "peek"),
            Action::Reset => write!(line, "reset"),
            Action::Advance { by } => write!(line, "the clock moves by {} ms", ms(by)),
        };
        let _ = match &call.answer {
            Answer::Admitted { remaining: Some(remaining), reset_after_ms } => {
                write!(line, ": admitted, {remaining} remain, all in {reset_after_ms} ms")
            }
            Answer::Admitted { .. } => write!(line, ": admitted"),
            Answer::Refused { remaining, retry_after_ms } => {
                let retry = retry_after_ms.map_or("unknown".to_owned(), |ms| format!("{ms} ms"));
                write!(line, ": refused, {remaining} remain, retry in {retry}")
            }
            Answer::NeverFits => write!(line, ": never fits"),
            Answer::Unknown => write!(line, ": no answer"),
            Answer::Wrong(message) => write!(line, ": {message}"),
            Answer::Done(back) => write!(line, ": done, {back}"),
            Answer::Seen { remaining, reset_after_ms } => {
                write!(line, ": {remaining} remain, all in {reset_after_ms} ms")
            }
        };
        let _ = write!(line, "{}", if call.degraded { " (degraded)" } else { "" });
        if let Some(limit) = self.limits.get(call.limit)
            && self.calls.iter().any(|other| other.limit != call.limit)
        {
            let _ = write!(line, " [limit {}]", limit.limit);
        }
        line
    }
}
