//! The spreadsheet: reads its rows one by one as items, and writes a sample.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    fs::File,
    io::BufReader,
    path::Path,
    str::FromStr,
};

use calamine::{Cell, Data, DataRef, Reader as _, Xlsx, XlsxCellReader, XlsxError, open_workbook};
use rust_xlsxwriter::{Workbook, XlsxError as WriteError};
use serde::{Deserialize, Serialize};

/// An item to register: one row.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Item {
    pub(crate) seller: u64,
    pub(crate) sku: String,
    pub(crate) title: String,
    pub(crate) price: f64,
    pub(crate) stock: u32,
}

/// One row, or what is wrong with it.
#[derive(Debug)]
pub(crate) struct Row {
    /// As the spreadsheet shows it: the first one is 1.
    pub(crate) number: u32,
    pub(crate) item: Result<Item, String>,
}

/// Names the file, and the row where it matters.
#[derive(Debug)]
pub(crate) struct SheetError(String);

impl Display for SheetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SheetError {}

/// A share of the rows: the number-th of so many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    number: u64,
    of: u64,
}

impl FromStr for Part {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err("write 1/2 for the first of two parts"),
        }
    }
}

const HEADER: [&str; 5] = ["seller", "sku", "title", "price", "stock"];

pub(crate) struct Book {
    file: String,
    workbook: Xlsx<BufReader<File>>,
}

impl Book {
    pub(crate) fn open(path: &Path) -> Result<Self, SheetError> {
        let file = path.display().to_string();
        match open_workbook(path) {
            Ok(workbook) => Ok(Self { file, workbook }),
            Err(XlsxError::Io(error)) => Err(SheetError(format!("{file}: {error}"))),
            Err(error) => Err(SheetError(format!("{file}: not a readable .xlsx file: {error}"))),
        }
    }

    /// This part of the rows below the header.
    pub(crate) fn rows(&mut self, sheet: &str, part: Part) -> Result<Rows<'_>, SheetError> {
        let Self { file, workbook } = self;
        let names = workbook.sheet_names();
        if !names.iter().any(|name| name == sheet) {
            let names = names.join("`, `");
            return Err(SheetError(format!("{file}: has no sheet `{sheet}`; it has `{names}`")));
        }
        let cells = workbook
            .worksheet_cells_reader(sheet)
            .map_err(|error| SheetError(format!("{file}: `{sheet}`: {error}")))?;
        let mut rows = Rows { cells, ahead: None, columns: [0; 5], last: 0, part, seen: 0, ended: false };
        let Some((number, header)) = rows.line().map_err(|error| SheetError(format!("{file}, row 1: {error}")))? else {
            return Err(SheetError(format!("{file}: the sheet `{sheet}` is empty")));
        };
        for (name, column) in HEADER.iter().zip(&mut rows.columns) {
            let found = header.iter().find(|(_, cell)| cell.trim().eq_ignore_ascii_case(name));
            let missing = || SheetError(format!("{file}, row {number}: the header has no column `{name}`"));
            *column = *found.ok_or_else(missing)?.0;
        }
        Ok(rows)
    }
}

pub(crate) struct Rows<'a> {
    cells: XlsxCellReader<'a, BufReader<File>>,
    /// The first cell of the next row.
    ahead: Option<Cell<DataRef<'a>>>,
    /// Positions of the columns of [`HEADER`].
    columns: [u32; 5],
    /// The number of the last row.
    last: u32,
    part: Part,
    /// Number of rows, those of other parts included.
    seen: u64,
    /// True at the end of the file.
    ended: bool,
}

/// The cells of a row by column, as text.
type Line = BTreeMap<u32, String>;

impl Rows<'_> {
    /// Number of rows according to the file, which may be wrong.
    pub(crate) fn expected(&self) -> u64 {
        let dimensions = self.cells.dimensions();
        u64::from(dimensions.end.0.saturating_sub(dimensions.start.0)) / self.part.of
    }

    /// The next row that is not blank, with its number.
    fn line(&mut self) -> Result<Option<(u32, Line)>, XlsxError> {
        let mut line = Line::new();
        loop {
            let cell = match self.ahead.take() {
                None if !self.ended => self.cells.next_cell()?,
                cell => cell,
            };
            match cell {
                Some(cell) if line.is_empty() || row(&cell) == self.last => {
                    let text = Data::from(cell.get_value().clone()).to_string();
                    if !text.trim().is_empty() {
                        self.last = row(&cell);
                        line.insert(cell.get_position().1, text);
                    }
                }
                next => {
                    self.ended = next.is_none();
                    self.ahead = next;
                    return Ok((!line.is_empty()).then_some((self.last, line)));
                }
            }
        }
    }

    fn item(&self, line: &Line) -> Result<Item, String> {
        let [seller, sku, title, price, stock] =
            self.columns.map(|column| line.get(&column).map_or("", |cell| cell.trim()));
        if sku.is_empty() {
            return Err("`sku` is empty".into());
        }
        let value: f64 = number("price", price, "a price")?;
        if !value.is_finite() || value < 0.0 {
            return Err(format!("`price` is `{price}`, not a price"));
        }
        Ok(Item {
            seller: number("seller", seller, "a whole number")?,
            sku: sku.into(),
            title: title.into(),
            price: value,
            stock: number("stock", stock, "a whole number")?,
        })
    }
}

impl Iterator for Rows<'_> {
    type Item = Row;

    /// A damaged place in the file is the last row of every part.
    fn next(&mut self) -> Option<Row> {
        loop {
            match self.line() {
                Ok(line) => {
                    let (number, line) = line?;
                    self.seen += 1;
                    if self.seen % self.part.of == self.part.number % self.part.of {
                        return Some(Row { number, item: self.item(&line) });
                    }
                }
                Err(error) => {
                    self.ended = true;
                    let reason = format!("the file is damaged from here on: {error}");
                    return Some(Row { number: self.last, item: Err(reason) });
                }
            }
        }
    }
}

/// The number of the row this cell is in.
fn row(cell: &Cell<DataRef<'_>>) -> u32 {
    cell.get_position().0.saturating_add(1)
}

fn number<N: FromStr>(column: &str, cell: &str, what: &str) -> Result<N, String> {
    cell.parse().map_err(|_| match cell {
        "" => format!("`{column}` is empty"),
        _ => format!("`{column}` is `{cell}`, not {what}"),
    })
}

/// 500 rows of 25 sellers, always the same. The first seller has three times `count` of them.
pub(crate) fn write_sample(path: &Path, count: u64) -> Result<(), SheetError> {
    const ROWS: u64 = 500;
    let busy = count.saturating_mul(3).min(ROWS);
    let mut sellers: Vec<u64> = (0..ROWS).map(|row| if row < busy { 1001 } else { 1002 + row % 24 }).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut sellers);
    save(path, &sellers).map_err(|error| SheetError(format!("{}: cannot be written: {error}", path.display())))
}

fn save(path: &Path, sellers: &[u64]) -> Result<(), WriteError> {
    let mut workbook = Workbook::new();
    let sheet = workbook.add_worksheet().set_name("items")?;
    sheet.write_row(0, 0, HEADER)?;
    for (row, seller) in (1_u32..).zip(sellers) {
        sheet.write(row, 0, *seller)?;
        sheet.write(row, 1, format!("SKU-{row:04}"))?;
        sheet.write(row, 2, format!("Item {row}"))?;
        sheet.write(row, 3, f64::from(row % 90) + 9.99)?;
        sheet.write(row, 4, row % 7 + 1)?;
    }
    workbook.save(path)
}
