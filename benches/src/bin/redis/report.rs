//! Tables for people, JSON for programs.

use std::fs;

use serde_json::{Value, json};

/// One contender's line of a table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) figures: Vec<f64>,
    /// Notes on the figures.
    pub(crate) note: Option<String>,
}

#[derive(Default)]
pub(crate) struct Report {
    tables: Vec<Value>,
}

impl Report {
    /// Adds a table whose first line is ours. Some columns come with the ratio of the first line to
    /// each of the others.
    pub(crate) fn table(&mut self, title: &str, columns: &[&str], ratios: &[usize], rows: Vec<Row>) {
        let first: Vec<f64> = rows.first().map(|row| row.figures.clone()).unwrap_or_default();
        let ratio = |at: usize, row: &Row| ratios.contains(&at).then(|| first[at] / row.figures[at]);
        let ratios = rows.iter().map(|row| (0..columns.len()).map(|at| ratio(at, row)).collect()).collect();
        self.table_with(title, columns, ratios, rows);
    }

    /// Adds a table with ratios that were found in another way: for each line one a column, or
    /// none.
    pub(crate) fn table_with(&mut self, title: &str, columns: &[&str], ratios: Vec<Vec<Option<f64>>>, rows: Vec<Row>) {
        let has_ratio = |at: usize| ratios.iter().any(|ratios| ratios[at].is_some());
        println!("\n{title}");
        print!("{:<34}", "");
        for (at, column) in columns.iter().enumerate() {
            print!("{column:>15}");
            if has_ratio(at) {
                print!("{:>9}", "ratio");
            }
        }
        println!();
        for (Row { name, figures, note }, ratios) in rows.iter().zip(&ratios) {
            print!("  {name:<32}");
            for (at, figure) in figures.iter().enumerate() {
                print!("{:>15}", format_figure(*figure));
                if let Some(ratio) = ratios[at] {
                    print!("{ratio:>9.2}");
                }
            }
            println!("{}", note.as_ref().map(|note| format!("  {note}")).unwrap_or_default());
        }
        for (Row { name, figures, note }, ratios) in rows.into_iter().zip(ratios) {
            for (at, figure) in figures.into_iter().enumerate() {
                self.tables.push(json!({
                    "of": title, "contender": name, "what": columns[at], "figure": figure, "ours_to_it": ratios[at], "note": note,
                }));
            }
        }
    }

    /// Writes the JSON to where it is wanted.
    pub(crate) fn end(self, file: Option<&str>) {
        if let Some(file) = file {
            let json = Value::Array(self.tables).to_string();
            fs::write(file, json).unwrap_or_else(|error| panic!("cannot write {file}: {error}"));
        }
    }
}

fn format_figure(figure: f64) -> String {
    match figure {
        whole if whole.fract() == 0.0 => format!("{whole}"),
        small if small < 10.0 => format!("{small:.3}"),
        large => format!("{large:.1}"),
    }
}
