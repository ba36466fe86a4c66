//! The database that users share, and what a query may do in it.

use std::{
    error::Error,
    fmt::Write as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rusqlite::{
    Connection, ErrorCode, OpenFlags,
    functions::FunctionFlags,
    hooks::{AuthAction, Authorization},
    limits::Limit,
    types::ValueRef,
};
use serde::{Deserialize, Serialize};
use serde_json::{
    Number, Value,
    value::{RawValue, to_raw_value},
};
use tempfile::TempDir;

/// Memory of a query, in MiB.
pub(crate) const MOST_MEMORY: u32 = 64;
/// Largest part of a result that is returned.
const MOST_ROWS: usize = 1_000;
const MOST_BYTES: usize = 1 << 20;
/// The longest text or blob.
const LONGEST_VALUE: i32 = 100_000;

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
        Connection::open(&path)?.execute_batch(include_str!("sample.sql"))?;
        Ok(Self { path, _folder: folder })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A connection for one query. Extensions cannot be loaded: that is off by default.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.pragma_update(None, "hard_heap_limit", MOST_MEMORY << 20)?; // of the whole process
    connection.pragma_update(None, "temp_store", "MEMORY")?; // not on the disk
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST_VALUE)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100)?;
    connection.set_limit(Limit::SQLITE_LIMIT_COLUMN, 100)?;
    // A query that takes time, and no processor.
    connection.create_scalar_function("sleep", 1, FunctionFlags::SQLITE_UTF8, |context| {
        let wrong =
            |_| rusqlite::Error::UserFunctionError("sleep(ms) needs a whole number from 0 to 4294967295".into());
        let ms: u32 = context.get(0).map_err(wrong)?;
        thread::sleep(Duration::from_millis(ms.into()));
        Ok(ms)
    })?;
    // Only reading is allowed: no ATTACH, no PRAGMA, no tables of its own.
    connection.authorizer(Some(|asked: rusqlite::hooks::AuthContext<'_>| match asked.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive | AuthAction::Function { .. } => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }))?;
    Ok(connection)
}

/// The result of a query.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Table {
    columns: Vec<String>,
    /// An array of values each, as JSON that only the page reads.
    rows: Vec<Box<RawValue>>,
    /// There was more than is returned.
    cut: bool,
}

impl Table {
    pub(crate) fn read(connection: &Connection, sql: &str) -> Result<Self, Fault> {
        let mut statement = connection.prepare(sql)?;
        let columns: Vec<_> = statement.column_names().into_iter().map(str::to_owned).collect();
        if columns.is_empty() {
            return Err(Fault::Sql("there is no SELECT in it".into()));
        }
        if columns.iter().map(String::len).sum::<usize>() > 64 << 10 {
            return Err(Fault::Sql("the names of the columns have more than 64 KiB".into()));
        }
        let (mut rows, mut bytes, mut cut) = (Vec::new(), 0, false);
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let values: Vec<_> = (0..columns.len()).map(|column| row.get_ref(column)).collect::<Result<_, _>>()?;
            let row = to_raw_value(&values.into_iter().map(json).collect::<Vec<_>>());
            let row = row.map_err(|error| Fault::Lab(error.to_string()))?;
            bytes += row.get().len();
            cut = rows.len() == MOST_ROWS || bytes > MOST_BYTES;
            if cut {
                break;
            }
            rows.push(row);
        }
        Ok(Self { columns, rows, cut })
    }
}

/// Numbers that a page would round, and those that JSON does not have, become text.
fn json(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) if number.unsigned_abs() > 1 << 53 => number.to_string().into(),
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => Number::from_f64(number).map_or_else(|| number.to_string().into(), Value::Number),
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

/// The reason why a query has no result.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Fault {
    /// A mistake in the query, in the words of the database.
    Sql(String),
    /// The query needs more than [`MOST_MEMORY`].
    Memory,
    /// Not the query is wrong, but the lab.
    Lab(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        use ErrorCode::{CannotOpen, DatabaseCorrupt, DiskFull, NotADatabase, OutOfMemory, SystemIoFailure};
        match (error.sqlite_error_code(), error) {
            (Some(OutOfMemory), _) => Self::Memory,
            (Some(CannotOpen | DatabaseCorrupt | DiskFull | NotADatabase | SystemIoFailure), error) => {
                Self::Lab(error.to_string())
            }
            // Without the query, which the user knows.
            (_, rusqlite::Error::SqlInputError { msg, offset, .. }) => {
                Self::Sql(format!("{msg}, at byte {offset} of the query"))
            }
            (_, error) => Self::Sql(error.to_string()),
        }
    }
}
