//! Hostile SQL: statements that are random, and the same for the same seed.

use std::iter::repeat_with;

use fastrand::Rng;

/// Longest SQL that the lab takes.
const LONGEST: usize = 60_000;

pub(crate) struct Statements(Rng);

impl Iterator for Statements {
    /// The purpose of a statement, and its SQL.
    type Item = (&'static str, String);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, sql) = match self.0.u8(..12) {
            0 => ("aggregate", self.aggregate()),
            1 => ("large result", self.large_result()),
            2 => ("group", self.group()),
            3 => ("nesting", self.nesting()),
            4 => ("long steps", self.long_steps()),
            5 => ("memory", self.memory()),
            6 => ("recursion", self.recursion()),
            7 => ("patterns", self.patterns()),
            8 => ("windows", self.windows()),
            9 => ("compound", self.compound()),
            10 => ("sleep", self.sleep()),
            _ => ("forbidden", self.forbidden()),
        };
        Some((kind, sql.chars().take(LONGEST).collect()))
    }
}

impl Statements {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        self.0.choice(of).unwrap()
    }

    /// Bytes of a value: mostly many, sometimes too many.
    fn size(&mut self) -> u32 {
        match self.0.u8(..10) {
            0 => self.0.u32(..10),
            1 => 1_000_000_000,
            2 => 99_999,
            _ => self.0.u32(1_000..49_000),
        }
    }

    fn text(&mut self, depth: u8) -> String {
        let size = self.size();
        if depth == 0 {
            return match self.0.u8(..8) {
                0 => format!("zeroblob({size})"),
                1 => format!("randomblob({size})"),
                2 => format!("hex(randomblob({size}))"),
                3 => format!("printf('%{size}d', 1)"),
                4 => format!("printf('%.*c', {size}, 'a')"),
                5 => format!("quote(zeroblob({size}))"),
                6 => "'aab'".into(),
                _ => format!("hex(zeroblob({size}))"),
            };
        }
        let (one, other) = (self.text(depth - 1), self.text(depth - 1));
        match self.0.u8(..9) {
            0 | 1 => format!("replace({one}, {other}, {})", self.text(0)),
            2 => format!("replace({one}, '0', 'aa')"),
            3 => format!("({one} || {other})"),
            4 => format!("trim({one}, {other})"),
            5 => format!("upper(lower({one}))"),
            6 => format!("substr({one}, {})", self.0.u32(..1_000)),
            7 => format!("(SELECT group_concat({one}) FROM {})", self.source()),
            _ => format!("json_array({one}, {other})"),
        }
    }

    fn number(&mut self, depth: u8) -> String {
        if depth == 0 {
            return self.pick(&["1", "random()", "-9223372036854775808", "1e308", "NULL", "0.1"]).into();
        }
        let text = self.text(depth - 1);
        match self.0.u8(..9) {
            0 | 1 => format!("length({text})"),
            2 | 3 => format!("instr({text}, {})", self.text(depth - 1)),
            4 => format!("({text} LIKE {})", self.pattern('%')),
            5 => format!("({text} GLOB {})", self.pattern('*')),
            6 => format!("({} + {})", self.number(depth - 1), self.number(depth - 1)),
            7 => format!("(SELECT count({text}) FROM {})", self.source()),
            _ => format!("CASE WHEN {text} THEN {} ELSE sleep(1) END", self.number(depth - 1)),
        }
    }

    /// With many wildcards: each of them is tried at each place.
    fn pattern(&mut self, any: char) -> String {
        let parts = self.0.u8(2..40);
        let part = self.pick(&["0", "a", "1_", "00"]);
        format!("'{any}{}x'", format!("{part}{any}").repeat(parts.into()))
    }

    fn source(&mut self) -> String {
        let most = self.0.u32(1..100_000);
        let counted = |most: &str| {
            format!("(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n{most}) SELECT i AS id FROM n)")
        };
        match self.0.u8(..7) {
            0 => "orders".into(),
            1 => "(SELECT a.id FROM orders a, orders b, orders c)".into(),
            2 => counted(""),
            3 => counted(&format!(" LIMIT {most}")),
            4 => format!("(SELECT id FROM orders ORDER BY {} LIMIT {most})", self.text(0)),
            5 => "(SELECT key AS id FROM json_each('[1,2,3,4,5,6,7,8,9]'))".into(),
            _ => "(SELECT o.id FROM orders o JOIN items i ON o.day > i.title OR o.id <> i.id)".into(),
        }
    }

    fn aggregate(&mut self) -> String {
        let (number, text) = (self.number(2), self.text(1));
        let function = self.pick(&["max", "min", "count", "json_group_array", "total"]);
        format!("SELECT sum({number}), {function}({text}) FROM {}", self.source())
    }

    fn large_result(&mut self) -> String {
        let columns: Vec<_> = (0..self.0.u8(1..120)).map(|_| self.text(0)).collect();
        format!("SELECT {} FROM {}", columns.join(", "), self.source())
    }

    fn group(&mut self) -> String {
        let (key, text) = (self.number(1), self.text(1));
        format!("SELECT id % 1000 + {key} AS k, group_concat({text}) FROM {} GROUP BY 1 ORDER BY 2 DESC", self.source())
    }

    fn nesting(&mut self) -> String {
        let depth = self.0.usize(10..1_500);
        let (open, close) = *self
            .0
            .choice(&[
                ("(", ")"),
                ("abs(", ")"),
                ("hex(", ")"),
                ("(SELECT ", ")"),
                ("NOT ", ""),
                ("(1 + ", ")"),
                ("replace('a', 'a', ", ")"),
            ])
            .unwrap();
        format!("SELECT {}{}{}", open.repeat(depth), self.number(1), close.repeat(depth))
    }

    fn long_steps(&mut self) -> String {
        let (one, other) = (self.text(0), self.text(0));
        let term = self.pick(&[
            "length(replace(a, b || NUMBER, 'x'))",
            "instr(a, b || NUMBER)",
            "length(trim(a, b || NUMBER))",
            "(a LIKE '%1%2%' || NUMBER || '%0%0%0%x')",
            "length(hex(substr(a, NUMBER)))",
        ]);
        let terms: Vec<_> =
            (0..self.0.u32(10..900)).map(|number| term.replace("NUMBER", &number.to_string())).collect();
        format!(
            "WITH t AS MATERIALIZED (SELECT {one} a), u AS MATERIALIZED (SELECT substr({other}, 2) b FROM sellers)
            SELECT sum({}) FROM t, u",
            terms.join(" + ")
        )
    }

    fn memory(&mut self) -> String {
        let (value, other) = (self.text(0), self.text(0));
        let (rows, ms) = (self.0.u32(1..5_000), self.0.u32(..500));
        match self.0.u8(..4) {
            0 => format!(
                "WITH m AS MATERIALIZED (SELECT {value} b FROM orders LIMIT {rows}) SELECT count(*), sleep({ms}) FROM m"
            ),
            1 => format!("SELECT DISTINCT {value} || id FROM orders LIMIT {rows}"),
            2 => format!("SELECT {value} v FROM orders ORDER BY {other}, id LIMIT {rows}"),
            _ => format!("SELECT sum(length(x)) FROM (SELECT json_group_array({value}) x FROM orders GROUP BY id)"),
        }
    }

    fn recursion(&mut self) -> String {
        let union = self.pick(&["UNION", "UNION ALL"]);
        match self.0.u8(..3) {
            0 => format!("WITH RECURSIVE n(s) AS (SELECT 'x' {union} SELECT s || s FROM n) SELECT count(*) FROM n"),
            1 => format!(
                "WITH RECURSIVE n(i) AS (SELECT 1 {union} SELECT i + 1 FROM n) SELECT i, {} FROM n",
                self.text(0)
            ),
            _ => format!(
                "WITH RECURSIVE n(i) AS (SELECT 1 {union} SELECT n.i + orders.id FROM n, orders) SELECT sum(i) FROM n"
            ),
        }
    }

    fn patterns(&mut self) -> String {
        let (text, like, glob) = (self.text(1), self.pattern('%'), self.pattern('*'));
        let source = self.source();
        format!("SELECT count(*) FROM {source} WHERE {text} LIKE {like} OR hex(zeroblob(40000)) GLOB {glob}")
    }

    fn windows(&mut self) -> String {
        let text = self.text(0);
        format!("SELECT group_concat({text}) OVER (ORDER BY id ROWS 1000 PRECEDING) FROM {} LIMIT 2000", self.source())
    }

    fn compound(&mut self) -> String {
        let operator = self.pick(&[" UNION ", " UNION ALL ", " EXCEPT ", " INTERSECT "]);
        let number = self.0.usize(2..600);
        let parts: Vec<_> = repeat_with(|| format!("SELECT {}", self.text(0))).take(number).collect();
        parts.join(operator)
    }

    fn sleep(&mut self) -> String {
        let ms = self.pick(&["1", "100000", "4294967295", "-1", "NULL", "'a'", "1e9", "id"]);
        format!("SELECT sleep({ms}), {} FROM {}", self.number(1), self.source())
    }

    fn forbidden(&mut self) -> String {
        let (kind, sql) = (self.0.u8(..12), self.aggregate());
        match kind {
            0 => "ATTACH 'other.db' AS other".into(),
            1 => "PRAGMA hard_heap_limit = 0".into(),
            2 => "SELECT * FROM pragma_database_list".into(),
            3 => "VACUUM INTO 'copy.db'".into(),
            4 => "CREATE TEMP TABLE mine AS SELECT zeroblob(90000) FROM orders".into(),
            5 => "SELECT load_extension('/lib/x86_64-linux-gnu/libc.so.6')".into(),
            6 => "SELECT readfile('/etc/passwd'), writefile('mine', 'x')".into(),
            7 => format!("{sql}; {sql}"),
            8 => "UPDATE orders SET pieces = 0 RETURNING *".into(),
            9 => format!("EXPLAIN {sql}"),
            // Broken off anywhere.
            _ => sql.chars().take(self.0.usize(..sql.len())).collect(),
        }
    }
}
