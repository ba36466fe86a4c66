//! Settings from the text to the rule in force.

use std::{borrow::Cow, fmt::Write as _, time::Duration};

use super::{parse::RulesText, table::OverrideTable};
use crate::{Algorithm, Key, Refill, Rule, rule::call_kind::CallKind};

const MINUTE: Duration = Duration::from_secs(60);

fn wrong(text: &str) -> String {
    RulesText::parse(text, &[]).unwrap_err().to_string()
}

fn table(text: &str) -> OverrideTable {
    OverrideTable::new(RulesText::parse(text, &[]).unwrap(), &OverrideTable::default()).unwrap()
}

#[test]
fn errors_name_the_line_and_the_reason() {
    for (text, message) in [
        ("", "there is no table [rules]; write [rules.item], and its settings below it"),
        ("[rule.item]\ncount = 1", "line 1: unknown table `rule`; write a rule as [rules.item]"),
        ("[rules.item]\n\n[rule.order]", "line 3: unknown table `rule`; write a rule as [rules.item]"),
        ("counts = 1\n[rules.item]", "line 1: unknown table `counts`; write a rule as [rules.item]"),
        (
            "[rules.item]\ncount = 9223372036854775807",
            "line 2: `count` is 9223372036854775807; it must be at most 2^52, 4503599627370496",
        ),
        ("[rules.item]\n\ncount = 0", "line 3: `count` is 0; it must be at least 1"),
        ("[rules.item]\nttl = 5", "line 2: `ttl` has no unit; write unit = \"Seconds\", for example"),
        ("[rules.item]\nunit = \"Days\"\nttl = 3651", "line 3: `ttl` is 3651 Days; it must be at most 3,650 days"),
        ("[rules.item]\nban = \"50d\"", "line 2: `ban` is \"50d\"; it must be at most 49 days"),
        (
            "[rules.item]\ncount = 1\non_store_error = { Wait = { max = 50, unit = \"Days\" } }",
            "line 3: `max` is 50 Days; it must be at most 49 days",
        ),
        (
            "[rules.item]\nshadow = true\nban = \"10m\"",
            "line 1: invalid rule: a rule in shadow mode refuses nothing: leave `ban` or `shadow` out (whatever the code \
             says)",
        ),
        (
            "[rules.item]\nburst = 5",
            "line 2: `burst` is an option of TokenBucket; write algorithm = \"TokenBucket\" beside it",
        ),
        (
            "[rules.item]\nalgorithm = \"SlidingLog\"\nqueue = 5",
            "line 3: `queue` is an option of LeakyBucket; write algorithm = \"LeakyBucket\" beside it",
        ),
        (
            "[rules.item]\nalgorithm = \"LeakyBucket\"",
            "line 2: `LeakyBucket` needs a queue length; write queue = 50, for example",
        ),
        ("[rules.\"\"]\ncount = 5", "line 1: the prefix is empty; give the counter a name"),
        (
            "[rules.item]\n[rules.\"*\"]\ncount = 5",
            "line 2: `*` is no prefix, and there are no wildcards; write a table for each rule",
        ),
        (
            "[rules.item]\n[rules.item.keys]\n\"*\" = { count = 5 }",
            "line 3: `*` is no key, and there are no wildcards; write settings for all keys beside `keys`",
        ),
        (
            "[rules.item]\n[rules.item.keys]\n\"{eu}\" = { count = 5 }",
            "line 3: no call has the key `{eu}`; in a printed key, braces and control characters are escaped: `{` is `%7B`",
        ),
        ("[rules.item.keys.a.keys.b]\ncount = 5", "line 1: a key cannot have `keys` of its own"),
        (
            "[rules.item.keys.a]\non_store_error = \"Deny\"",
            "line 2: `on_store_error` applies to all keys of a rule; write it beside `keys`",
        ),
    ] {
        assert_eq!(wrong(text), message, "{text}");
    }
    for (text, begins) in [
        ("[rules.item]\ncuont = 5", "line 2: unknown field `cuont`, expected one of `enabled`, `count`"),
        ("[rules.item]\ncount = -5", "line 2: invalid value: integer `-5`"),
        ("[rules.item]\ncount = \"5\"", "line 2: invalid type: string \"5\""),
        ("[rules.item]\nunit = \"Minuts\"", "line 2: unknown variant `Minuts`, expected one of `Milliseconds`"),
        ("[rules.item]\ncount = ", "line 2: "),
        ("[rules.item]\ncount = 1\ncount = 2", "line 3: duplicate key"),
        ("[rules.item]\ncount = 99_999_999_999\nunit = \"Days\"", "line 1: invalid rule: its count is 99999999999"),
        (
            "[rules.item]\ncount = 1\nunit = \"Days\"\n[rules.item.keys.a]\ncount = 99_999_999_999",
            "line 4: invalid rule: its count is 99999999999",
        ),
        (
            "[rules.item]\ncount = 1\nunit = \"Days\"\n[rules.item.keys.a]\ncount = 2\n[rules.item.keys.b]\ncount = 99_999_999_999",
            "line 6: invalid rule: its count is 99999999999",
        ),
        (
            "[rules.item]\nalgorithm = \"SlidingWindow\"\nbuckets = 999_999_999_999",
            "line 1: invalid rule: `buckets` must be at most 1,000",
        ),
        // Whatever the rule in the code is.
        (
            "[rules.item]\nalgorithm = \"LeakyBucket\"\nqueue = 9007199254740993",
            "line 1: invalid rule: its queue is 9007199254740993",
        ),
        (
            "[rules.item]\nalgorithm = \"SlidingWindow\"\nbuckets = 1001",
            "line 1: invalid rule: `buckets` must be at most 1,000",
        ),
        (
            "[rules.item]\ncount = 9\nalgorithm = \"SlidingWindow\"\nbuckets = 1001",
            "line 1: invalid rule: `buckets` must be at most 1,000",
        ),
    ] {
        assert!(wrong(text).starts_with(begins), "{text}: {}", wrong(text));
    }
    assert_eq!(
        RulesText::parse_rules("item.count = 0").unwrap_err().to_string(),
        "line 1: `count` is 0; it must be at least 1"
    );
}

/// The largest burst depends on the count, which only the code knows.
#[test]
fn a_burst_that_fits_some_count_is_valid() {
    let bucket = Algorithm::TokenBucket { burst: 5_000_000, refill: Refill::Interval };
    let rule = Rule::new("item", 5_000_000, Duration::from_secs(30 * 86_400)).with_algorithm(bucket);
    let text = "[rules.item]\nttl = 30\nunit = \"Days\"\nalgorithm = \"TokenBucket\"\nburst = 2_000_000\nrefill = \"Interval\"";
    assert_eq!(change(text, rule).limit(), 2_000_000);
    let one = Rule::new("item", 1, MINUTE);
    let fault = table(text).by_prefix["item"].all.settings.fault_with(&one, CallKind::default());
    assert!(fault.is_some_and(|fault| fault.starts_with("its burst is 2000000")));
}

/// Macros size a bucket by the count of the call, which may be 0.
#[test]
fn a_count_goes_over_a_bucket_without_permits() {
    let bucket = Algorithm::TokenBucket { burst: 0, refill: Refill::Greedy };
    let changed = change("[rules.item]\ncount = 500", Rule::new("item", 0, MINUTE).with_algorithm(bucket));
    assert_eq!((changed.count(), changed.limit(), changed.fault()), (500, 500, None));
    let invalid = Rule::new("item", 5, MINUTE).with_algorithm(bucket);
    assert!(change("[rules.item]\ncount = 500", invalid).fault().is_some());
}

/// The program may have its rules only in the file.
#[test]
fn a_count_without_an_algorithm_is_that_of_a_fixed_window() {
    assert_eq!(
        wrong("[rules.item]\ncount = 20_000_000_000\nunit = \"Hours\""),
        "line 1: invalid rule: its count is 20000000000; FixedWindow { align: false } over 1 h can store 9999999999 at \
         most; if the rule has another algorithm, write it beside the count"
    );
    assert_eq!(
        wrong("[rules.item]\ncount = 5\nunit = \"Minutes\"\nshadow = true\nban = \"10m\""),
        "line 1: invalid rule: a rule in shadow mode refuses nothing: leave `ban` or `shadow` out"
    );
}

#[test]
fn a_fault_tells_numbers_that_break_the_rule() {
    let window = Algorithm::SlidingWindow { buckets: 3, weighted: true };
    let uneven = Rule::new("item", 10, Duration::from_millis(90_500)).with_algorithm(window).fault().unwrap();
    assert!(uneven.ends_with("over 90500 ms"), "{uneven}");
    assert_eq!(Rule::new("item", 1, MINUTE).with_prefetch(0).fault().unwrap(), "`prefetch` must be at least 1");
    let places = Rule::new("item", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    let banning = table("[rules.item]\nban = \"10m\"").by_prefix["item"].all.settings.clone();
    let fault = banning.fault_with(&places, CallKind::default());
    assert_eq!(fault.as_deref(), Some("a limit of concurrent calls cannot ban; remove `ban` from the file"));
}

fn change(text: &str, rule: Rule) -> Rule {
    table(text).by_prefix["item"].all.settings.apply(&rule)
}

#[test]
fn missing_settings_stay_as_in_the_code() {
    let bucket = Algorithm::TokenBucket { burst: 7, refill: Refill::Interval };
    let rule = Rule::new("item", 5, MINUTE).with_algorithm(bucket).with_shadow(true);
    assert_eq!(change("[rules.item]", rule.with_denial_cache(false)), rule.with_denial_cache(false));
    let prefetched = Rule::new("item", 5, MINUTE).with_prefetch(3);
    assert_eq!(change("[rules.item]\ncount = 6", prefetched), Rule::new("item", 6, MINUTE).with_prefetch(3));
    let banning = Rule::new("item", 5, MINUTE).with_ban(MINUTE);
    for (text, changed) in [
        ("count = 6", Rule::new("item", 6, MINUTE).with_ban(MINUTE)),
        ("ban = \"10m\"", banning.with_ban(10 * MINUTE)),
        ("ban = \"0s\"", Rule::new("item", 5, MINUTE)),
        ("shadow = true", Rule::new("item", 5, MINUTE).with_shadow(true)),
        (
            "algorithm = \"LeakyBucket\"\nqueue = 1",
            Rule::new("item", 5, MINUTE).with_algorithm(Algorithm::LeakyBucket { queue: 1 }),
        ),
    ] {
        assert_eq!(change(&format!("[rules.item]\n{text}"), banning), changed, "{text}");
    }
    let without_prefetch = Rule::new("item", 5, MINUTE).with_algorithm(Algorithm::SlidingLog);
    assert_eq!(change("[rules.item]\nalgorithm = \"SlidingLog\"", prefetched), without_prefetch);
    for (text, changed) in [
        ("", rule),
        ("count = 6", Rule::new("item", 6, MINUTE).with_algorithm(bucket).with_shadow(true)),
        ("ttl = 2\nunit = \"Hours\"", Rule::new("item", 5, 120 * MINUTE).with_algorithm(bucket).with_shadow(true)),
        ("unit = \"Milliseconds\"", Rule::new("item", 5, MINUTE / 60_000).with_algorithm(bucket).with_shadow(true)),
        ("shadow = false", rule.with_shadow(false)),
        ("algorithm = \"SlidingLog\"", rule.with_algorithm(Algorithm::SlidingLog)),
        ("algorithm = \"FixedWindow\"\nalign = true", rule.with_algorithm(Algorithm::FixedWindow { align: true })),
        ("algorithm = \"SlidingWindow\"", rule.with_algorithm(Algorithm::SlidingWindow { buckets: 1, weighted: true })),
        (
            "algorithm = \"SlidingWindow\"\nbuckets = 6",
            rule.with_algorithm(Algorithm::SlidingWindow { buckets: 6, weighted: true }),
        ),
        (
            "algorithm = \"SlidingWindow\"\nbuckets = 6\nweighted = false",
            rule.with_algorithm(Algorithm::SlidingWindow { buckets: 6, weighted: false }),
        ),
        (
            "algorithm = \"TokenBucket\"",
            rule.with_algorithm(Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy }),
        ),
        (
            "algorithm = \"TokenBucket\"\nburst = 9\nrefill = \"Interval\"",
            rule.with_algorithm(Algorithm::TokenBucket { burst: 9, refill: Refill::Interval }),
        ),
        ("algorithm = \"LeakyBucket\"\nqueue = 0", rule.with_algorithm(Algorithm::LeakyBucket { queue: 0 })),
    ] {
        assert_eq!(change(&format!("[rules.item]\n{text}"), rule), changed, "{text}");
    }
}

/// Settings of a key go before those of the rule, and the environment before the file.
#[test]
fn the_most_specific_setting_applies() {
    let file =
        "[rules.item]\ncount = 1\nunit = \"Hours\"\n[rules.item.keys]\na = { count = 2 }\nb = { enabled = false }";
    let environment = "item.count = 3\nitem.keys.c.count = 4\nother.shadow = true";
    let text = RulesText::parse_rules(environment).unwrap().merged_over(RulesText::parse(file, &[]).unwrap());
    let table = OverrideTable::new(text, &OverrideTable::default()).unwrap();
    let item = &table.by_prefix["item"];
    let of_key = |key: &str| &item.keys[key.as_bytes()].settings;
    let count = |key: &str| of_key(key).apply(&Rule::new("item", 9, MINUTE)).count();
    assert_eq!(item.all.settings.count, Some(3));
    assert_eq!((count("a"), count("b"), count("c")), (2, 3, 4));
    assert_eq!(of_key("b").enabled, Some(false));
    assert_eq!(of_key("c").period, Some(60 * MINUTE));
    assert_eq!(table.by_prefix["other"].all.settings.shadow, Some(true));
}

/// File and environment are each valid.
#[test]
fn settings_that_are_invalid_only_together_are_an_error() {
    let file = RulesText::parse("[rules.item]\ncount = 9\nunit = \"Days\"", &[]).unwrap();
    let environment = RulesText::parse_rules("item.count = 99_999_999_999").unwrap();
    let wrong = OverrideTable::new(environment.merged_over(file), &OverrideTable::default()).unwrap_err().to_string();
    let begins = "rules.item: invalid rule, together with the variable RATELIMIT_RULES: its count is 99999999999";
    assert!(wrong.starts_with(begins), "{wrong}");
    let file = RulesText::parse("[rules.item.keys.vip]\nunit = \"Days\"", &[]).unwrap();
    let environment = RulesText::parse_rules("item.count = 99_999_999_999").unwrap();
    let wrong = OverrideTable::new(environment.merged_over(file), &OverrideTable::default()).unwrap_err().to_string();
    assert!(wrong.starts_with("rules.item.keys.\"vip\": invalid rule, together"), "{wrong}");
}

/// Again and again, for many more rules than are found by their id: with settings, with settings of a key, switched
/// off, and not in the file; and under several counts and kinds of call.
#[test]
fn each_rule_and_key_finds_its_own_settings() {
    let (mut text, mut rules) = (String::new(), Vec::new());
    for number in 0..200_u64 {
        let prefix: &str = Box::leak(format!("item-{number}").into_boxed_str());
        rules.push((number, Rule::new(prefix, 1_000 + number, MINUTE)));
        match number % 4 {
            0 => _ = writeln!(text, "[rules.{prefix}]\nban = \"5s\"\ncount = {}", 1 + number),
            1 => {
                _ = writeln!(text, "[rules.{prefix}]\ncount = {}\n[rules.{prefix}.keys.vip]\ncount = 9", 1 + number);
            }
            2 => _ = writeln!(text, "[rules.{prefix}]\nenabled = false"),
            _ => {}
        }
    }
    let table = table(&text);
    let kinds = [false, true].map(|waits| CallKind { waits, ..CallKind::default() });
    for _ in 0..3 {
        for (number, rule) in &rules {
            let other = Rule::new(rule.prefix(), rule.count() + 1, MINUTE);
            let calls = [*rule, other].into_iter().flat_map(|rule| ["ann", "vip"].map(|key| (rule, key)));
            for ((rule, key), kind) in calls.flat_map(|call| kinds.map(|kind| (call, kind))) {
                let applied = table.apply(&rule, &Key::new(key), kind).map(Cow::into_owned);
                let expected = match number % 4 {
                    0 if kind.waits => Some((1 + number, None)),
                    0 => Some((1 + number, Some(Duration::from_secs(5)))),
                    1 => Some((if key == "vip" { 9 } else { 1 + number }, None)),
                    2 => None,
                    _ => Some((rule.count(), None)),
                };
                assert_eq!(applied.map(|rule| (rule.count(), rule.ban())), expected, "{rule:?} {key} {kind:?}");
            }
        }
    }
}

/// However often the file changes, and whether or not a call uses it in between.
#[test]
fn few_versions_are_kept() {
    let rule = Rule::new("item", 1000, MINUTE);
    let change = |count: u64, before: &OverrideTable| {
        OverrideTable::new(RulesText::parse(&format!("[rules.item]\ncount = {count}"), &[]).unwrap(), before).unwrap()
    };
    let holds = |table: &OverrideTable| {
        let newest = &table.by_prefix["item"].all;
        let fitting = newest.latest_fitting(&rule, CallKind::default());
        let fault = newest.settings.fault_with(&rule, CallKind::default());
        (fitting.map(|rule| rule.count()), fault.is_some())
    };
    let (right, wrong) = (7, 1 << 52);
    let mut table = change(right, &OverrideTable::default());
    assert_eq!(holds(&table), (Some(right), false));
    for _ in 0..5 {
        table = change(wrong, &table);
        assert_eq!(holds(&table), (Some(right), true));
        table = change(wrong, &change(wrong, &table)); // untried
        assert_eq!(holds(&table), (Some(right), true));
        assert!(table.by_prefix["item"].all.before.iter().all(|version| version.before.is_empty()));
    }
    table = change(wrong, &change(right + 1, &table));
    assert_eq!(holds(&table), (Some(right + 1), true), "untried, and yet the last one that fits");
}

/// Of two rules with one prefix, settings may fit one only. The other keeps its last ones, whatever changes.
#[test]
fn each_rule_of_a_prefix_keeps_its_last_settings() {
    let (one, other) = (Rule::new("item", 100, Duration::from_secs(1)), Rule::new("item", 1000, MINUTE));
    let change = |text: &str, before: &OverrideTable| {
        OverrideTable::new(RulesText::parse(&format!("[rules.item]\ncount = 5{text}"), &[]).unwrap(), before).unwrap()
    };
    let holds = |table: &OverrideTable, rule: &Rule| {
        table.by_prefix["item"].all.latest_fitting(rule, CallKind::default()).map(|rule| rule.count())
    };
    let mut table = change("", &OverrideTable::default());
    assert_eq!([&one, &other].map(|rule| holds(&table, rule)), [Some(5); 2]);
    for change_elsewhere in 0..12 {
        // 1,000 ms are no multiple of 3 buckets.
        let text =
            format!("\nalgorithm = \"SlidingWindow\"\nbuckets = 3\n[rules.other]\ncount = {}", 1 + change_elsewhere);
        table = change(&text, &table);
        assert_eq!([&other, &one].map(|rule| holds(&table, rule)), [Some(5); 2]);
    }
}

/// Of two rules with one counter, too: only one of them can have a ban.
#[test]
fn each_rule_of_a_counter_keeps_its_last_settings() {
    let other = Rule::new("item", 100, MINUTE);
    let one = other.with_prefetch(10);
    let change = |text: &str, before: &OverrideTable| {
        OverrideTable::new(RulesText::parse(&format!("[rules.item]\ncount = 5{text}"), &[]).unwrap(), before).unwrap()
    };
    let mut table = OverrideTable::default();
    for text in ["", "\nban = \"10m\"", "\nban = \"10m\"\n[rules.other]\ncount = 1"] {
        table = change(text, &table);
        for rule in [&other, &one] {
            let fitting = table.by_prefix["item"].all.latest_fitting(rule, CallKind::default());
            assert_eq!(fitting.map(|rule| rule.count()), Some(5), "{text}");
        }
    }
}

/// The count and the burst of a rule may be computed for each call.
#[test]
fn a_rule_with_changing_counts_leaves_room_for_others() {
    let other = Rule::new("item", 1000, Duration::from_secs(1));
    let bucket = |count| {
        Rule::new("item", count, MINUTE).with_algorithm(Algorithm::TokenBucket { burst: count, refill: Refill::Greedy })
    };
    let mut table = OverrideTable::default();
    for text in ["", "\nalgorithm = \"SlidingWindow\"\nbuckets = 3", "\nalgorithm = \"SlidingWindow\"\nbuckets = 30"] {
        // 1,000 ms are no multiple of 3 or 30 buckets.
        table =
            OverrideTable::new(RulesText::parse(&format!("[rules.item]\nshadow = true{text}"), &[]).unwrap(), &table)
                .unwrap();
        let all = &table.by_prefix["item"].all;
        for count in 1..=100 {
            all.latest_fitting(&bucket(count), CallKind::default());
        }
        assert!(all.latest_fitting(&other, CallKind::default()).is_some_and(|rule| rule.is_shadow()), "{text}");
    }
}

/// A rule that the file defines has ever new periods.
#[test]
fn versions_are_bounded() {
    let mut table = OverrideTable::default();
    for minutes in 1..200 {
        let text = format!("[rules.item]\ncount = 5\nttl = {minutes}\nunit = \"Minutes\"");
        table = OverrideTable::new(RulesText::parse(&text, &[]).unwrap(), &table).unwrap();
        let all = &table.by_prefix["item"].all;
        all.latest_fitting(&all.settings.to_rule("item").unwrap(), CallKind::default());
    }
    assert!(table.by_prefix["item"].all.before.len() <= 40, "{}", table.by_prefix["item"].all.before.len());
}

/// A version that fits one kind of call does not replace the last one that fits another.
#[test]
fn each_kind_of_call_keeps_its_last_settings() {
    let rule = Rule::new("item", 1000, MINUTE);
    let change = |settings: &str, before: &OverrideTable| {
        OverrideTable::new(RulesText::parse(&format!("[rules.item]\n{settings}"), &[]).unwrap(), before).unwrap()
    };
    let holds = |table: &OverrideTable, is_one_of_several| {
        let of = CallKind { is_one_of_several, ..CallKind::default() };
        table.by_prefix["item"].all.latest_fitting(&rule, of).map(|rule| rule.count())
    };
    let mut table = change("count = 7", &OverrideTable::default());
    assert_eq!((holds(&table, false), holds(&table, true)), (Some(7), Some(7)));
    for count in 8..40 {
        // A leaky bucket is not one of several rules.
        table = change(&format!("count = {count}\nalgorithm = \"LeakyBucket\"\nqueue = 5"), &table);
        assert_eq!((holds(&table, false), holds(&table, true)), (Some(count), Some(7)));
        assert!(table.by_prefix["item"].all.before.len() <= 2);
    }
    // Untried versions are kept, too.
    table = change("count = 50", &table);
    for _ in 0..3 {
        table = change("count = 4503599627370496", &table);
    }
    assert_eq!((holds(&table, false), holds(&table, true)), (Some(50), Some(50)));
}

#[test]
fn the_file_of_the_documentation_is_valid() {
    let (_, rest) = include_str!("mod.rs").split_once("//! ```toml\n").unwrap();
    let (example, _) = rest.split_once("//! ```").unwrap();
    let table = table(&example.replace("//!", ""));
    let search = &table.by_prefix["search"];
    let of_key = search.keys["4711".as_bytes()].settings.apply(&Rule::new("search", 1, MINUTE));
    assert_eq!((of_key.count(), of_key.limit()), (1000, 2000));
}
