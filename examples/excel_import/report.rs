//! The results of the rows, for people and as JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde::Serialize;

use crate::{announced::Figures, api::Stats, register::NotRegistered};

/// The results of some of the rows.
#[derive(Default)]
pub(crate) struct Tally {
    registered: u64,
    refused: u64,
    sellers: BTreeSet<u64>,
    failures: Vec<Failure>,
}

/// A row that was not registered.
#[derive(Serialize)]
struct Failure {
    row: u32,
    reason: String,
}

impl Tally {
    pub(crate) fn add(&mut self, row: u32, seller: u64, answer: Result<(), NotRegistered>) {
        self.sellers.insert(seller);
        match answer {
            Ok(()) => self.registered += 1,
            Err(error) => {
                self.refused += u64::from(matches!(error, NotRegistered::RefusedByApi));
                self.add_failure(row, error.to_string());
            }
        }
    }

    pub(crate) fn add_failure(&mut self, row: u32, reason: String) {
        self.failures.push(Failure { row, reason });
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.registered += other.registered;
        self.refused += other.refused;
        self.sellers.extend(other.sellers);
        self.failures.extend(other.failures);
    }
}

#[derive(Serialize)]
pub(crate) struct Report {
    /// Nothing for the sample.
    file: Option<String>,
    rows: u64,
    sellers: usize,
    registered: u64,
    /// Rows that were not registered.
    failed: u64,
    /// Rows of these that the API refused.
    refused: u64,
    seconds: f64,
    failures: Vec<Failure>,
    /// All the API did, other processes included; nothing if it is gone.
    api: Option<Stats>,
    /// The calls of an API that announces its limit, for each limit it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Vec<Figures>>,
}

impl Report {
    pub(crate) fn new(file: Option<String>, tally: Tally, took: Duration, api: Option<Stats>) -> Self {
        let Tally { registered, refused, sellers, mut failures } = tally;
        failures.sort_by_key(|failure| failure.row);
        let failed = failures.len() as u64;
        let (rows, sellers, seconds) = (registered + failed, sellers.len(), took.as_secs_f64());
        Self { file, rows, sellers, registered, failed, refused, seconds, failures, api, limits: None }
    }

    pub(crate) fn with_limits(self, limits: Vec<Figures>) -> Self {
        Self { limits: Some(limits), ..self }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.failed == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, rows, sellers, registered, failed, refused, seconds, failures, api, limits } = self;
        let file = file.as_deref().unwrap_or("a sample");
        writeln!(f, "read        {rows} rows of {sellers} sellers from {file}")?;
        writeln!(f, "registered  {registered} in {seconds:.1}s")?;
        writeln!(f, "failed      {failed}, {refused} of them refused by the API")?;
        let mut rows_by_reason = BTreeMap::<_, Vec<_>>::new();
        for Failure { row, reason } in failures {
            rows_by_reason.entry(reason).or_default().push(row.to_string());
        }
        for (reason, rows) in rows_by_reason {
            writeln!(f, "            {reason}; rows {}", rows.join(", "))?;
        }
        if let Some(limits) = limits {
            for Figures { limit, in_flight, accepted, refused, unaware, late, .. } in limits {
                writeln!(f, "the API     accepted {accepted} calls with a limit of {limit}, and refused {refused}:")?;
                writeln!(
                    f,
                    "            {in_flight} were in flight when it came, {unaware} of them were sent later and"
                )?;
                writeln!(f, "            before a refusal was known, and {late} after that")?;
            }
            return Ok(());
        }
        let Some(Stats { count, window_ms, accepted, refused, most_in_window, .. }) = api else {
            return writeln!(f, "the API     does not answer any more");
        };
        let window = Duration::from_millis(*window_ms);
        writeln!(f, "the API     accepted {accepted} and refused {refused} since it was started;")?;
        writeln!(f, "            at most {most_in_window} of one seller in any {window:?}, its limit is {count}")
    }
}
