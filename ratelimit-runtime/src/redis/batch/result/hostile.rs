//! Replies to equal charges that no script sends: each caller gets an error or a decision, and
//! nothing panics.

use proptest::prelude::*;

use super::*;
use crate::{
    hostile::{replies, try_all},
    redis::requests::hostile::charge,
};

#[test]
fn no_reply_to_equal_charges_panics() {
    let number = || prop_oneof![4 => (0..5_i64).prop_map(Value::Int), 1 => replies()];
    let parts = (number(), number(), replies(), replies());
    let inputs = (charge(), parts, 0..3_usize, proptest::bool::weighted(0.9));
    try_all("replies to equal charges", 10_000, &inputs, |(charge, parts, before, is_array)| {
        let (granted, at, reply, refusal) = parts;
        let reply = if is_array { Value::Array(vec![granted, at, reply, refusal]) } else { reply };
        let result = BatchResult::parse(EntryReply { reply, before: Some(before) }, Some(&charge));
        let mut has_answer = false;
        for index in 0..3 {
            let of_caller = result.of_caller(index);
            if let CallerResult::Granted(repeated, later) = of_caller
                && let Some(outcome) = repeated.taken(&charge, later)
            {
                assert!(outcome.fits() || repeated.taken.is_none(), "{outcome:?}");
            }
            let reply = of_caller.reply(Some(&charge));
            has_answer |= reply.is_ok_and(|reply| algorithm::parse_reply(&charge, true, &reply).is_some());
        }
        has_answer
    });
}
