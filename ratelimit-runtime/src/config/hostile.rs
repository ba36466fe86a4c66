//! Hostile rules files: each is refused with the line of its fault, or gives rules that every
//! algorithm can store.

use std::time::Duration;

use super::{parse::RulesText, table::OverrideTable};
use crate::{
    Rule,
    hostile::{mutated, try_all},
    rule::call_kind::CallKind,
};

const SEEDS: &[&str] = &[
    "[rules.item]\ncount = 100\nttl = 1\nunit = \"Minutes\"\nalgorithm = \"FixedWindow\"\nalign = true\n",
    "[rules.item]\nenabled = false\nshadow = true\n\n[rules.order]\ncount = 5\n",
    "[rules.item]\ncount = 5\nalgorithm = \"TokenBucket\"\nburst = 9\nrefill = \"Interval\"\n",
    "[rules.item]\nalgorithm = \"SlidingWindow\"\nbuckets = 6\nunit = \"Hours\"\n",
    "[rules.item]\nalgorithm = \"LeakyBucket\"\nqueue = 0\n",
    "[rules.item]\nalgorithm = \"SlidingLog\"\ncount = 4503599627370496\nunit = \"Days\"\nttl = 3650\n",
    "[rules.item]\non_store_error = \"Deny\"\nban = \"10m\"\n",
    "[rules.item]\non_store_error = { Wait = { max = 5, unit = \"Seconds\" } }\n",
    "[rules.item]\ncount = 1\n[rules.item.keys]\n\"a\" = { count = 2 }\n'b(c,d)' = { enabled = false, ttl = 2, unit = \"Days\" }\n",
    "[gateway]\nlisten = \"0.0.0.0:80\"\n[rules.\"item\"]\ncount = 0x10\n",
    "rules = { item = { count = 1_000, unit = \"Milliseconds\" } }\n",
    "",
];

const WORDS: &[&str] = &[
    "\n",
    "=",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "\"",
    "'",
    "\"\"\"",
    "\\",
    "\\u0000",
    "#",
    ".",
    ",",
    "*",
    " ",
    "\t",
    "\r",
    "\0",
    "é",
    "😀",
    "0",
    "-1",
    "1.5",
    "inf",
    "nan",
    "1e9",
    "0xFFFFFFFFFFFFFFFF",
    "9223372036854775807",
    "18446744073709551616",
    "4503599627370497",
    "9999999999",
    "1979-05-27",
    "true",
    "rules",
    "item",
    "keys",
    "count",
    "ttl",
    "unit",
    "algorithm",
    "buckets = 1001",
    "burst = 0",
    "ban = \"99999999999999999999d\"",
    "queue = 4503599627370496",
    "align",
    "\"Days\"",
];

/// The rule of the code that the settings are applied to.
const RULES: &[Rule] = &[
    Rule::new("item", 100, Duration::from_secs(60)),
    Rule::new("item", 1 << 52, Duration::from_millis(1))
        .with_algorithm(crate::Algorithm::SlidingWindow { buckets: 1, weighted: true }),
    Rule::new("item", 3, Duration::from_secs(30)).with_algorithm(crate::Algorithm::Concurrent),
];

fn check_all(table: &OverrideTable) {
    let entries = table.by_prefix.values().flat_map(|entry| entry.keys.values().chain([&entry.all]));
    for version in entries {
        for rule in RULES {
            let applied = version.latest_fitting(rule, CallKind::default());
            assert_eq!(applied.and_then(|rule| rule.fault()), None, "{:?}", version.settings);
        }
    }
}

#[test]
fn no_rules_file_panics_or_gives_a_rule_that_cannot_be_stored() {
    try_all("rules files", 3_000, &mutated(SEEDS, WORDS), |text| {
        let parsed = RulesText::parse(&text, &["gateway"])
            .and_then(|parsed| OverrideTable::new(parsed, &OverrideTable::default()));
        match parsed {
            Ok(table) => {
                check_all(&table);
                true
            }
            Err(error) => {
                let message = error.to_string();
                let line = message.strip_prefix("line ").and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
                let is_elsewhere = message.starts_with("there is no table") || message.starts_with("rules.");
                let lines = 1 + text.matches('\n').count();
                assert!(is_elsewhere || line.is_some_and(|line| (1..=lines).contains(&line)), "{message}");
                false
            }
        }
    });
}
