//! Counts of what happened, by two words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// By row and column.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<BTreeMap<(&'static str, &'static str), u64>>);

impl Counts {
    pub(crate) fn add(&self, row: &'static str, column: &'static str) {
        self.add_many(row, column, 1);
    }

    pub(crate) fn add_many(&self, row: &'static str, column: &'static str, count: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry((row, column)).or_default() += count;
    }

    /// The sum of all rows, or of one column of them.
    pub(crate) fn sum(&self, column: Option<&str>) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().filter(|((_, of), _)| column.is_none_or(|column| column == *of)).map(|(_, count)| count).sum()
    }

    /// A line for each row, where few rows have the same columns.
    pub(crate) fn print_lines(&self) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = "";
        for ((row, column), count) in counts.iter() {
            if *row == last {
                print!(", {column} {count}");
            } else {
                print!("\n{row}: {column} {count}");
                last = row;
            }
        }
        println!();
    }

    pub(crate) fn print(&self, title: &str) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: BTreeSet<_> = counts.keys().map(|(row, _)| *row).collect();
        let columns: BTreeSet<_> = counts.keys().map(|(_, column)| *column).collect();
        print!("\n{title:<18}");
        for column in &columns {
            print!("{column:>14}");
        }
        println!();
        for row in rows {
            print!("{row:<18}");
            for column in &columns {
                print!("{:>14}", counts.get(&(row, *column)).copied().unwrap_or(0));
            }
            println!();
        }
    }
}
