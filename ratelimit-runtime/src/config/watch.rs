//! Reads a file again and again, and takes in what has changed.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;

use super::{Rules, file::Table};
use crate::SetupError;

/// A change is taken in when it was read twice, so that a file which is half written is not.
const EVERY: Duration = Duration::from_millis(200);

const VARIABLE: &str = "RATELIMIT_RULES";

pub(super) fn start(path: &Path) -> Result<Rules, SetupError> {
    let wrong = |error: &dyn std::fmt::Display| SetupError::new(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let from_environment = environment()?;
    let rules = Rules::new(read(&text, from_environment.as_deref()).map_err(|error| wrong(&error))?);
    let watcher = Watcher {
        path: path.to_owned(),
        from_environment,
        table: Arc::downgrade(&rules.0),
        taken: Ok(text.clone()),
        seen: Ok(text),
    };
    let thread = thread::Builder::new().name("ratelimit-rules".into());
    thread.spawn(|| watcher.run()).map_err(|error| wrong(&error))?;
    Ok(rules)
}

/// The text of the variable.
fn environment() -> Result<Option<String>, SetupError> {
    let Some(text) = env::var_os(VARIABLE) else { return Ok(None) };
    let wrong = |error: &dyn std::fmt::Display| SetupError::new(format!("the variable {VARIABLE}: {error}"));
    let text = text.into_string().map_err(|_| wrong(&"it is not UTF-8"))?;
    Table::parse_rules(&text).map_err(|error| wrong(&error))?;
    Ok(Some(text))
}

fn read(text: &str, from_environment: Option<&str>) -> Result<Table, SetupError> {
    let table = Table::parse(text)?;
    let table = match from_environment {
        Some(text) => Table::parse_rules(text)?.over(table),
        None => table,
    };
    Ok(table.complete())
}

struct Watcher {
    path: PathBuf,
    from_environment: Option<String>,
    table: Weak<ArcSwap<Table>>,
    /// What was last taken in, or found to be wrong.
    taken: Result<String, io::ErrorKind>,
    /// What was last read.
    seen: Result<String, io::ErrorKind>,
}

impl Watcher {
    /// Until nobody has the rules any more.
    fn run(mut self) {
        loop {
            thread::sleep(EVERY);
            let Some(table) = self.table.upgrade() else { return };
            let now = fs::read_to_string(&self.path).map_err(|error| error.kind());
            if now == self.seen && now != self.taken {
                self.take(&table, &now);
                self.taken.clone_from(&now);
            }
            self.seen = now;
        }
    }

    fn take(&self, table: &ArcSwap<Table>, now: &Result<String, io::ErrorKind>) {
        let file = self.path.display();
        let text = match now {
            Ok(text) => text,
            Err(reason) => {
                return tracing::error!(%file, %reason, "the rules stay as they were: their file can't be read");
            }
        };
        match read(text, self.from_environment.as_deref()) {
            Ok(new) => {
                table.store(Arc::new(new));
                tracing::info!(%file, "the rules have changed");
            }
            Err(reason) => tracing::error!(%file, %reason, "the rules stay as they were: their file is wrong"),
        }
    }
}
