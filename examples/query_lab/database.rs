//! The database that users share, and what a query may do in it.

use std::{
    error::Error,
    fmt::{self, Display, Write as _},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rusqlite::{
    Connection, OpenFlags,
    functions::FunctionFlags,
    hooks::{AuthAction, Authorization},
    limits::Limit,
    types::ValueRef,
};
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

/// Largest part of a result that is returned.
const MOST_ROWS: usize = 1_000;
const MOST_BYTES: usize = 1 << 20;
/// The longest text or blob. So short that no single step of a query takes long: the time is looked at between steps.
const LONGEST_VALUE: i32 = 100_000;
/// Memory of this process that all queries together may take.
const MOST_MEMORY: u32 = 256 << 20;
/// Number of steps of a query between two looks at the time.
const STEPS: i32 = 1_000;

/// One file with the sample tables. Dropped, it is deleted.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    _folder: TempDir,
}

impl Database {
    pub(crate) fn sample() -> Result<Self, Box<dyn Error>> {
        let folder = tempfile::Builder::new().prefix("query-lab-").tempdir()?;
        let path = folder.path().join("sample.db");
        let connection = Connection::open(&path)?;
        connection.pragma_update(None, "hard_heap_limit", MOST_MEMORY)?; // of the process, not of this connection
        connection.execute_batch(include_str!("sample.sql"))?;
        Ok(Self { path, _folder: folder })
    }

    /// Runs one query to its end, or until its time is over. Blocks.
    pub(crate) fn read(&self, sql: &str, time: &Time) -> Result<Table, Fault> {
        let connection = self.open(time)?;
        let rows = Table::of(&connection, sql);
        rows.map_err(|error| if time.is_over() { Fault::Interrupted } else { error })
    }

    /// A connection for one query, so that no query leaves anything to the next. Extensions cannot
    /// be loaded: that is off by default.
    fn open(&self, time: &Time) -> Result<Connection, Fault> {
        let connection = Connection::open_with_flags(
            &self.path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.pragma_update(None, "temp_store", "MEMORY")?; // where there is a limit, and not on the disk
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST_VALUE)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100)?;
        connection.set_limit(Limit::SQLITE_LIMIT_COLUMN, 100)?;
        let until = time.clone();
        connection.progress_handler(STEPS, Some(move || until.is_over()))?;
        let until = time.clone();
        connection.create_scalar_function("sleep", 1, FunctionFlags::SQLITE_UTF8, move |context| {
            until.sleep(context.get(0)?).map_err(|over| rusqlite::Error::UserFunctionError(over.into()))
        })?;
        // What reads, and nothing else: no ATTACH, no PRAGMA, no tables of its own.
        connection.authorizer(Some(|asked: rusqlite::hooks::AuthContext<'_>| match asked.action {
            AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive | AuthAction::Function { .. } => {
                Authorization::Allow
            }
            _ => Authorization::Deny,
        }))?;
        Ok(connection)
    }
}

/// The result of a query.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
    /// There was more than is returned.
    cut: bool,
}

impl Table {
    fn of(connection: &Connection, sql: &str) -> Result<Self, Fault> {
        let mut statement = connection.prepare(sql)?;
        let columns: Vec<_> = statement.column_names().into_iter().map(str::to_owned).collect();
        if columns.is_empty() {
            return Err(Fault::Sql("there is no SELECT in it".into()));
        }
        let (mut rows, mut bytes, mut cut) = (Vec::new(), 0, false);
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let values: Vec<_> = (0..columns.len()).map(|column| row.get_ref(column)).collect::<Result<_, _>>()?;
            bytes += values.iter().map(|value| value.as_bytes().map_or(8, <[u8]>::len)).sum::<usize>();
            cut = rows.len() == MOST_ROWS || bytes > MOST_BYTES;
            if cut {
                break;
            }
            rows.push(values.into_iter().map(json).collect());
        }
        Ok(Self { columns, rows, cut })
    }
}

fn json(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => bytes
            .iter()
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
            .into(),
    }
}

/// The time that a query may run. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Time {
    until: Instant,
    is_stopped: Arc<AtomicBool>,
}

impl Time {
    /// Ends after this time, or when it is stopped.
    pub(crate) fn new(longest: Duration) -> Self {
        let now = Instant::now();
        Self { until: now.checked_add(longest).unwrap_or(now), is_stopped: Arc::default() }
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed) || Instant::now() >= self.until
    }

    /// `sleep(ms)` in SQL: a query that takes time, and no processor.
    fn sleep(&self, ms: u32) -> Result<u32, Fault> {
        /// A query that is stopped ends within this.
        const NAP: Duration = Duration::from_millis(5);
        let awake = Instant::now() + Duration::from_millis(ms.into());
        loop {
            let now = Instant::now();
            if now >= awake {
                return Ok(ms);
            }
            if self.is_over() {
                return Err(Fault::Interrupted);
            }
            thread::sleep(awake.min(self.until).duration_since(now).min(NAP));
        }
    }
}

/// Why a query found nothing.
#[derive(Debug)]
pub(crate) enum Fault {
    /// In the words of the database.
    Sql(String),
    /// Its time is over, or it was stopped.
    Interrupted,
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(match error {
            // Without the query, which who asked knows.
            rusqlite::Error::SqlInputError { msg, offset, .. } => format!("{msg}, at byte {offset} of the query"),
            error => error.to_string(),
        })
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sql(words) => f.write_str(words),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl Error for Fault {}
