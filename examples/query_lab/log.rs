//! The result of each query, as lines of JSON.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

use serde::Serialize;

/// The result of a query. Times are microseconds since 1970, by a clock that all processes of a
/// machine share.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) user: String,
    pub(crate) process: u32,
    /// Time at which the limits admitted it, or refused it.
    pub(crate) start_us: u64,
    pub(crate) end_us: u64,
    /// Time that the user had left at the start, and so the longest time it might run.
    pub(crate) given_us: u64,
    pub(crate) charged_ms: u64,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// It ran to its end.
    Rows,
    /// The query was wrong.
    Fault,
    /// It needed more memory than a query has.
    Memory,
    /// The lab could not run it.
    LabFault,
    /// All that its user had left was used up.
    Interrupted,
    /// The client went away.
    Cancelled,
    /// This process stood still for longer than the lease, and another query of the user may have run meanwhile.
    PlaceLost,
    /// It did not run.
    Refused,
}

/// A file that several processes may write to.
#[derive(Debug, Default)]
pub(crate) struct Log(Option<File>);

impl Log {
    pub(crate) fn append_to(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Some).map(Self)
    }

    /// In one write, so that lines stay whole.
    pub(crate) fn write(&self, entry: &Entry) {
        let Some(mut file) = self.0.as_ref() else { return };
        let line = serde_json::to_string(entry).map_err(io::Error::from);
        if let Err(error) = line.and_then(|line| file.write_all((line + "\n").as_bytes())) {
            eprintln!("query_lab: the log can't be written: {error}");
        }
    }
}
