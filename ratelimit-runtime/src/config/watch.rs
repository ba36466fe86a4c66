//! Polls a file and applies its changes.

use std::{
    env, fs,
    path::{self, Path, PathBuf},
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use super::{current::Current, parse::RulesText, table::VARIABLE};
use crate::{SetupError, observe};

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Equal reads in a row before a change is applied, so that a half-written file is not.
const READS: u32 = 4;
/// Equal reads in a row for a file without a final newline, whose last line may be incomplete.
const READS_WITHOUT_NEWLINE: u32 = 11;

pub(super) fn start(path: &Path, own_tables: &[&str]) -> Result<Arc<Current>, SetupError> {
    let wrong = |error: &dyn std::fmt::Display| SetupError::new(format!("{}: {error}", path.display()));
    // The program may change its working directory.
    let absolute = path::absolute(path).map_err(|error| wrong(&error))?;
    let text = fs::read_to_string(&absolute).map_err(|error| wrong(&error))?;
    let rules = Current::new(&text, own_tables, environment()?).map_err(|error| wrong(&error))?;
    let watcher = Watcher {
        path: absolute,
        rules: Arc::downgrade(&rules),
        processed: text.clone(),
        is_rejected: false,
        reported: None,
        last_read: Ok(text),
        reads: 1,
    };
    let thread = thread::Builder::new().name("ratelimit-rules".into());
    thread.spawn(|| watcher.run()).map_err(|error| wrong(&error))?;
    Ok(rules)
}

/// The text of the environment variable.
fn environment() -> Result<Option<String>, SetupError> {
    let Some(text) = env::var_os(VARIABLE) else { return Ok(None) };
    let wrong = |error: &dyn std::fmt::Display| SetupError::new(format!("the variable {VARIABLE}: {error}"));
    let text = text.into_string().map_err(|_| wrong(&"it is not UTF-8"))?;
    RulesText::parse_rules(&text).map_err(|error| wrong(&error))?;
    Ok(Some(text))
}

struct Watcher {
    path: PathBuf,
    rules: Weak<Current>,
    /// The text that was last applied or rejected.
    processed: String,
    is_rejected: bool,
    /// The error of reading that the log has, until the file can be read again.
    reported: Option<String>,
    /// The last read, and the number of equal reads in a row.
    last_read: Result<String, String>,
    reads: u32,
}

impl Watcher {
    /// Runs until the last handle of the rules is dropped.
    fn run(mut self) {
        loop {
            thread::sleep(POLL_INTERVAL);
            let Some(rules) = self.rules.upgrade() else { return };
            let now = fs::read_to_string(&self.path).map_err(|error| error.to_string());
            self.reads = if now == self.last_read { self.reads.saturating_add(1) } else { 1 };
            self.last_read = now;
            if self.reads < required_reads(&self.last_read) {
                continue;
            }
            // A log subscriber may panic. Later changes are applied all the same.
            observe::shielded(|| self.take_in(&rules));
            self.reported = self.last_read.as_ref().err().cloned();
            if let Ok(text) = &self.last_read {
                self.processed.clone_from(text);
            }
        }
    }

    /// Takes in what was read, if it is news. After an error, the log tells that the file can be read again; of one
    /// that was rejected, once more why.
    fn take_in(&mut self, rules: &Current) {
        let (file, is_back) = (self.path.display(), self.reported.is_some());
        match &self.last_read {
            Ok(text) if *text != self.processed || is_back && self.is_rejected => {
                let replaced = rules.replace(text);
                self.is_rejected = replaced.is_err();
                match replaced {
                    Ok(()) => tracing::info!(%file, "the rules have changed"),
                    Err(reason) => {
                        tracing::error!(%file, %reason, "the file of the rules is invalid; the rules stay as they were");
                    }
                }
            }
            Ok(_) if is_back => tracing::info!(%file, "the file of the rules can be read again, unchanged"),
            Err(reason) if self.reported.as_ref() != Some(reason) => {
                tracing::error!(%file, %reason, "cannot read the file of the rules; the rules stay as they were");
            }
            _ => {}
        }
    }
}

fn required_reads(read: &Result<String, String>) -> u32 {
    match read {
        Ok(text) if !text.ends_with('\n') => READS_WITHOUT_NEWLINE,
        _ => READS,
    }
}
