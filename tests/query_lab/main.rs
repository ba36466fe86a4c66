//! The query lab, run as a user runs it: real SQL over HTTP, in one process and in two, and its page in a real browser.
//!
//! It has to be built: `cargo test --workspace --all-features` does.

mod answers;
mod budget;
mod hostile;
mod lab;
mod page;
mod statements;

const FOR_EVER: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n";

/// A single step of it takes seconds: `replace` of 98 kB by nearly as much, hundreds of times for each row.
fn long_steps() -> String {
    let terms: Vec<_> = (1..=900).map(|number| format!("length(replace(a, b || {number}, 'x'))")).collect();
    format!(
        "WITH t AS MATERIALIZED (SELECT hex(zeroblob(49000)) a),
        u AS MATERIALIZED (SELECT substr(hex(zeroblob(49000)), 1, 49000) || '1' b FROM sellers)
        SELECT sum({}) FROM t, u",
        terms.join(" + ")
    )
}
