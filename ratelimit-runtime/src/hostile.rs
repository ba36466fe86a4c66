//! Hostile inputs for tests of parsers: seeds of which parts are removed, doubled and mixed, and
//! replies that no script sends.
//!
//! An input that has failed is printed in its shortest form. Add it to the seeds, which are tried
//! each time.

use std::{cell::Cell, env, fmt::Debug};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::TestRunner,
};

/// The number of inputs of a test: `RATELIMIT_INPUTS`, or the usual one.
pub(crate) fn inputs(usual: u32) -> ProptestConfig {
    let cases = env::var("RATELIMIT_INPUTS").map_or(usual, |number| {
        number.parse().unwrap_or_else(|_| panic!("RATELIMIT_INPUTS is {number:?}; give it a number of inputs"))
    });
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Tries inputs. `is_accepted` panics about a fault. Inputs of which nearly all are accepted, or
/// nearly none, test little, and are a failure, too.
pub(crate) fn try_all<S: Strategy>(target: &str, usual: u32, inputs: &S, is_accepted: impl Fn(S::Value) -> bool)
where
    S::Value: Debug,
{
    let (accepted, refused) = (Cell::new(0_u64), Cell::new(0_u64));
    let config = self::inputs(usual);
    let result = TestRunner::new(config).run(inputs, |input| {
        let counter = if is_accepted(input) { &accepted } else { &refused };
        counter.set(counter.get() + 1);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{target}: {error}");
    }
    let (accepted, refused) = (accepted.get(), refused.get());
    println!("{target}: {accepted} inputs accepted, {refused} refused");
    assert!(accepted.min(refused) * 100 >= accepted + refused, "{target}: {accepted} accepted, {refused} refused");
}

/// Seeds, as they are and with a few parts removed, doubled, or replaced by words or parts of other
/// seeds.
pub(crate) fn mutated(seeds: &'static [&str], words: &'static [&str]) -> impl Strategy<Value = String> {
    let part = (any::<Index>(), any::<Index>(), 0..10_usize);
    let edit = (part, select(words), select(seeds), 0..4_u8);
    (select(seeds), vec(edit, 0..6)).prop_map(|(seed, edits)| {
        let mut text: Vec<char> = seed.chars().collect();
        for ((at, from, length), word, other, kind) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + length).min(text.len());
            let inserted: Vec<char> = match kind {
                0 => Vec::new(),
                1 => text[at..end].iter().chain(&text[at..end]).copied().collect(),
                2 => word.chars().collect(),
                _ => {
                    let other: Vec<char> = other.chars().collect();
                    let from = from.index(other.len() + 1);
                    other[from..(from + 2 * length).min(other.len())].to_vec()
                }
            };
            // A word is inserted; any other part takes the place of the one that it was made of.
            text.splice(if kind == 2 { at..at } else { at..end }, inserted);
        }
        text.into_iter().collect()
    })
}

/// Replies of a server, well-formed and not.
#[cfg(feature = "redis")]
pub(crate) fn replies() -> impl Strategy<Value = redis::Value> {
    use redis::Value;

    const EDGES: &[i64] = &[0, 1, -1, 2, 59_999, 60_000, 60_001, 1 << 52, 1 << 53, -(1 << 53), i64::MAX, i64::MIN];
    const FRACTIONS: &[f64] = &[0.5, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -0.0];
    #[allow(clippy::cast_precision_loss)] // as Lua has it
    let number = || {
        prop_oneof![
            8 => (0..5_000_i64).prop_map(|number| number as f64),
            4 => (0..1_i64 << 53).prop_map(|number| number as f64),
            2 => select(EDGES).prop_map(|number| number as f64),
            1 => select(FRACTIONS),
        ]
    };
    let bulk = |sign: &str, numbers: Vec<f64>| {
        let numbers = numbers.into_iter().flat_map(f64::to_le_bytes);
        Value::BulkString(sign.bytes().chain(numbers).collect())
    };
    let int = || prop_oneof![6 => -5_000..5_000_i64, 2 => any::<i64>(), 2 => select(EDGES)].prop_map(Value::Int);
    // The forms that scripts reply in, see `decide.lua`, with any numbers.
    let of_bucket = (select(&["", "-"][..]), vec(number(), 3), any::<i32>()).prop_map(|(sign, numbers, pace)| {
        let numbers = numbers.into_iter().flat_map(f64::to_le_bytes);
        Value::BulkString(sign.bytes().chain(numbers).chain(pace.to_le_bytes()).collect())
    });
    let of_windows =
        (select(&["+", "-"][..]), vec(number(), 4..12)).prop_map(move |(sign, numbers)| bulk(sign, numbers));
    let of_ban = vec(int(), 2).prop_map(|waits| Value::Array(vec![Value::Array(waits)]));
    let shaped = prop_oneof![2 => int(), 2 => of_bucket, 2 => of_windows, 2 => vec(int(), 2..5).prop_map(Value::Array), 1 => of_ban];
    let any_value = prop_oneof![
        2 => vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
        1 => any::<bool>().prop_map(Value::Boolean),
        1 => number().prop_map(Value::Double),
        1 => ".{0,8}".prop_map(Value::SimpleString),
    ];
    let leaf = prop_oneof![4 => shaped, 1 => any_value].boxed();
    prop_oneof![4 => leaf.clone(), 1 => leaf.prop_recursive(2, 16, 5, |inner| vec(inner, 0..6).prop_map(Value::Array))]
}
