//! Reads a file again and again, and takes in what has changed.

use std::{
    env, fs, io,
    path::{self, Path, PathBuf},
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use super::{
    current::Current,
    file::{Table, Text},
};
use crate::SetupError;

const EVERY: Duration = Duration::from_millis(200);

/// How often in a row a change has to be read before it is taken in, so that a file which is half written is not.
const READS: u32 = 4;
/// The same for a file whose last line has no end: it may be the half of a line.
const READS_WITHOUT_END: u32 = 11;

const VARIABLE: &str = "RATELIMIT_RULES";

pub(super) fn start(path: &Path, own_tables: &[&str]) -> Result<Arc<Current>, SetupError> {
    let wrong = |error: &dyn std::fmt::Display| SetupError::new(format!("{}: {error}", path.display()));
    // The program may change its working directory.
    let absolute = path::absolute(path).map_err(|error| wrong(&error))?;
    let text = fs::read_to_string(&absolute).map_err(|error| wrong(&error))?;
    let own_tables: Vec<_> = own_tables.iter().map(|&name| name.to_owned()).collect();
    let source = Source { path: absolute, from_environment: environment()?, own_tables };
    let rules = Current::new(source.read(&text, &Table::default()).map_err(|error| wrong(&error))?);
    let watcher = Watcher { source, rules: Arc::downgrade(&rules), taken: Ok(text.clone()), seen: Ok(text), reads: 1 };
    let thread = thread::Builder::new().name("ratelimit-rules".into());
    thread.spawn(|| watcher.run()).map_err(|error| wrong(&error))?;
    Ok(rules)
}

/// The text of the variable.
fn environment() -> Result<Option<String>, SetupError> {
    let Some(text) = env::var_os(VARIABLE) else { return Ok(None) };
    let wrong = |error: &dyn std::fmt::Display| SetupError::new(format!("the variable {VARIABLE}: {error}"));
    let text = text.into_string().map_err(|_| wrong(&"it is not UTF-8"))?;
    Text::parse_rules(&text).map_err(|error| wrong(&error))?;
    Ok(Some(text))
}

/// Where settings come from.
struct Source {
    path: PathBuf,
    from_environment: Option<String>,
    own_tables: Vec<String>,
}

impl Source {
    fn read(&self, text: &str, before: &Table) -> Result<Table, SetupError> {
        let own_tables: Vec<_> = self.own_tables.iter().map(String::as_str).collect();
        let text = Text::parse(text, &own_tables)?;
        let text = match &self.from_environment {
            Some(over) => Text::parse_rules(over)?.over(text),
            None => text,
        };
        text.complete(before)
    }
}

struct Watcher {
    source: Source,
    rules: Weak<Current>,
    /// What was last taken in, or found to be wrong.
    taken: Result<String, io::ErrorKind>,
    /// What was last read, and how often in a row.
    seen: Result<String, io::ErrorKind>,
    reads: u32,
}

impl Watcher {
    /// Until the last handle of the rules is dropped.
    fn run(mut self) {
        loop {
            thread::sleep(EVERY);
            let Some(rules) = self.rules.upgrade() else { return };
            let now = fs::read_to_string(&self.source.path).map_err(|error| error.kind());
            self.reads = if now == self.seen { self.reads.saturating_add(1) } else { 1 };
            self.seen = now;
            if self.reads >= needed(&self.seen) && self.seen != self.taken {
                self.take(&rules);
                self.taken.clone_from(&self.seen);
            }
        }
    }

    fn take(&self, rules: &Current) {
        let file = self.source.path.display();
        let text = match &self.seen {
            Ok(text) => text,
            Err(reason) => {
                return tracing::error!(%file, %reason, "the rules stay as they were: their file can't be read");
            }
        };
        match self.source.read(text, &rules.table.load()) {
            Ok(new) => {
                rules.replace(new);
                tracing::info!(%file, "the rules have changed");
            }
            Err(reason) => tracing::error!(%file, %reason, "the rules stay as they were: their file is wrong"),
        }
    }
}

fn needed(seen: &Result<String, io::ErrorKind>) -> u32 {
    match seen {
        Ok(text) if !text.ends_with('\n') => READS_WITHOUT_END,
        _ => READS,
    }
}
