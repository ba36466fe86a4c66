//! The Lua side: the scripts, what they take and what their replies say.

use std::fmt::Write as _;

use redis::Value;
use smallvec::SmallVec;

use super::{Look, Taken, bucket, fixed_window, places, sliding_log, sliding_window};
use crate::{Algorithm, store::Charge};

/// What an algorithm's scripts take: numbers of 8 bytes in one argument, which are quicker to read than digits in several. Each is a whole number,
/// exact up to 2^53.
pub(crate) type Numbers = SmallVec<[u8; 48]>;

#[allow(clippy::cast_precision_loss)] // what is larger is compared with what is not
pub(super) fn pack<const N: usize>(numbers: [u64; N]) -> Numbers {
    numbers.into_iter().flat_map(|number| (number as f64).to_le_bytes()).collect()
}

/// Numbers that a script packed the same way. `None` for each that is not whole or not exact.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // it has been looked at
pub(super) fn unpack(bytes: &[u8]) -> impl Iterator<Item = Option<u64>> {
    let (numbers, rest) = bytes.as_chunks();
    let numbers = if rest.is_empty() { numbers } else { &[] };
    numbers.iter().map(|bytes| {
        let number = f64::from_le_bytes(*bytes);
        (number.fract() == 0.0 && (0.0..=(1_u64 << 53) as f64).contains(&number)).then_some(number as u64)
    })
}

/// The Lua half of an algorithm: two bodies, and the names of what they take.
///
/// A body sees `key`, `call` (which is `redis.call`) and its numbers. The one that decides also sees `charge` (`false` to look, `true` to
/// charge if the cost fits, `'always'` if it is known to fit, `'renew'`, `'settle'` and `'again'` for a hold, see [`Act`]), `time` (the reply of TIME, or nil: it asks when it needs to), `now` (the same in ms, to go by
/// instead of the key's end, or nil), `value` (what the key holds, or nil: it asks) and `charged` (the cost in digits, as the script counts it, or nil if it is 1; the holds to be renewed).
/// It sets `reply`, and whether the cost `fits`, and may `break` after that; the one that refunds returns how much it gave.
struct Half {
    decide: &'static str,
    numbers: &'static str,
    /// The first of the numbers for `n` equal charges.
    first_of_many: &'static str,
    /// Which of equal charges that were made in one go the reply is the one to.
    place: &'static str,
    /// Value of the key after a charge, for the next decision on it; nil: that one reads the key again.
    stored: &'static str,
    /// Declares `fitting`, the number of equal charges that would have fitted, from the refusal of more of them.
    fitting: &'static str,
    /// Whether `value` is of use.
    has_value: bool,
    refund: &'static str,
    refund_numbers: &'static str,
}

const FIXED_WINDOW: Half = Half {
    decide: include_str!("fixed_window.lua"),
    numbers: "room, length, align",
    first_of_many: "room - (n - 1) * its_charge",
    place: "granted", // it says what was before
    stored: "value + its_charge * n",
    fitting: "local fitting = (its_room - value) / its_charge + 1",
    has_value: true,
    refund: include_str!("fixed_window_refund.lua"),
    refund_numbers: "cost, number",
};
const SLIDING_LOG: Half = Half {
    decide: concat!("local id, lease, allow_partial, exclusive\n", include_str!("sliding_log.lua")),
    numbers: "cost, count, period, digits",
    first_of_many: "cost * n",
    place: "granted + n - 1",
    stored: "nil",
    fitting: "local fitting = (-1 - reply[1]) / its_cost",
    has_value: false,
    refund: include_str!("sliding_log_refund.lua"),
    refund_numbers: "cost, period, charged, digits",
};
const SLIDING_WINDOW: Half = Half {
    decide: include_str!("sliding_window.lua"),
    numbers: "cost, count, size, buckets",
    first_of_many: "cost * n",
    place: "granted + n - 1",
    stored: "value",
    fitting: "local fitting = (its_count - select(2, struct.unpack('<dd', reply, 2))) / its_cost",
    has_value: true,
    refund: include_str!("sliding_window_refund.lua"),
    refund_numbers: "cost, size, buckets, charged",
};
const BUCKET: Half = Half {
    decide: include_str!("bucket.lua"),
    numbers: "cost, capacity, refill, interval, longest",
    first_of_many: "cost * n",
    place: "granted + n - 1",
    stored: "reply",
    fitting: "\
local _, left, missing = struct.unpack('<ddd', reply, 2)
if its_longest > 0 and left > 0 then
  missing = math.max(missing, (left - 1) * its_refill + 1)
end
local fitting = (its_capacity - missing) / its_cost",
    has_value: true,
    refund: include_str!("bucket_refund.lua"),
    refund_numbers: "cost, unit, refill, interval, charged, spare",
};
const HELD_LOG: Half = Half {
    decide: include_str!("sliding_log.lua"),
    numbers: "cost, count, period, digits, id, lease, allow_partial, exclusive",
    ..SLIDING_LOG
};
const PLACES: Half = Half {
    decide: include_str!("places.lua"),
    numbers: "cost, count, id, lease, allow_partial",
    refund: "return 0", // they are settled
    refund_numbers: "cost",
    ..SLIDING_LOG
};
const HALVES: [Half; 6] = [FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW, BUCKET, HELD_LOG, PLACES];

/// How many scripts of each kind there are.
pub(crate) const KINDS: usize = HALVES.len();

/// Which of them a charge is counted by.
pub(crate) fn kind(charge: &Charge) -> u8 {
    match charge.rule.algorithm() {
        Algorithm::FixedWindow { .. } => 0,
        Algorithm::SlidingLog if charge.hold.is_some() => 4,
        Algorithm::SlidingLog => 1,
        Algorithm::SlidingWindow { .. } => 2,
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => 3,
        Algorithm::Concurrent => 5,
    }
}

/// The most steps that decisions sent in one go may take. A server does nothing else meanwhile, for 0.1 µs a step: 6 ms or so.
pub(crate) const MOST_STEPS: u64 = 64_000;

/// Equal charges of one counter take so many decisions; see `equal.lua`.
pub(crate) const DECISIONS_ON_EQUAL: u64 = 3;
/// Several rules take so many each: a look and a charge; see `all.lua`.
pub(crate) const DECISIONS_ON_SEVERAL: u64 = 2;

/// The most steps that one decision on a charge takes. A command of the script is eight steps; one pass of a loop, a call of a function, and 64
/// bytes of a string are one.
pub(crate) fn steps(charge: &Charge) -> u64 {
    match charge.rule.algorithm() {
        Algorithm::FixedWindow { .. } | Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => 80,
        Algorithm::SlidingWindow { buckets } => 80 + 2 * buckets,
        // Three searches by halves: for what has expired, and for what has to.
        Algorithm::SlidingLog | Algorithm::Concurrent => 100 + 30 * u64::from(charge.rule.count().max(1).ilog2()),
    }
}

/// The most steps that renewing one hold takes, among as many others as its counter may have.
pub(crate) fn renewal_steps(charge: &Charge) -> u64 {
    match charge.rule.algorithm() {
        // Each place moves within a sorted set of all of them: its two commands take longer than most.
        Algorithm::Concurrent => 60 + 100 * u64::from(charge.cost.count_ones()),
        _ => 24,
    }
}

/// What a script for one counter does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Look,
    Charge,
    /// What is held lasts longer, each of the holds that [`renewal`] describes.
    Renew,
    /// Charges what was used instead of what was held.
    Settle,
    /// The same, if it is still held: it may have been settled.
    SettleAgain,
}

fn unpacked(names: &str) -> String {
    format!("local {names} = struct.unpack('<{}', numbers)", "d".repeat(names.split(',').count()))
}

/// A script for one counter. KEYS: the counter. ARGV: the numbers, and what was or is to be charged, if that is told.
fn script(numbers: &str, body: &str) -> String {
    let numbers = unpacked(numbers);
    format!("local key, call, numbers, charged = KEYS[1], redis.call, ARGV[1], ARGV[2]\n{numbers}\n{body}")
}

/// Decides on one counter. ARGV: [`numbers`], and, if [`is_told`], [`charged`].
pub(crate) fn decide_one(kind: usize, act: Act) -> String {
    let Half { decide, numbers, .. } = &HALVES[kind];
    let charge = ["false", "true", "'renew'", "'settle'", "'again'"][act as usize];
    let body = format!(
        "local charge, time, now, value, reply, fits = {charge}, nil, nil, nil, nil, nil\nrepeat\n{decide}until true\nreturn reply"
    );
    script(numbers, &body)
}

/// Decides on several counters of one kind, each by itself; see `each.lua`.
pub(crate) fn decide_each(kind: usize) -> String {
    fill(include_str!("each.lua"), kind)
}

/// Makes as many as fit of so many equal charges of one counter; see `equal.lua`. ARGV: [`rule`], how many there are, and how many the limit has room for.
pub(crate) fn decide_equal(kind: usize) -> String {
    const SCRIPT: &str = "\
local key, call, times, most = KEYS[1], redis.call, 0 + ARGV[2], 0 + ARGV[3]
local time, now, value, reply, fits
@time
local @known, its_charge = struct.unpack('@format', ARGV[1])
@equal
return reply";
    fill(SCRIPT, kind)
}

/// Puts the parts of an algorithm into a script about [`rule`]s.
fn fill(script: &str, kind: usize) -> String {
    let Half { decide, numbers, first_of_many, place, stored, fitting, has_value, .. } = &HALVES[kind];
    let names: Vec<_> = numbers.split(", ").collect();
    let rule: Vec<_> = (1..=names.len()).map(|number| format!("rule[{number}]")).collect();
    script
        .replace("@equal\n", include_str!("equal.lua"))
        .replace(
            "@time",
            "time = call('TIME')\n\
             time[1], time[2] = 0 + time[1], 0 + time[2]\n\
             now = time[1] * 1000 + math.floor(time[2] / 1000)",
        )
        .replace("@format", &format!("<{}", "d".repeat(names.len() + 1)))
        .replace("@values", if *has_value { "call('MGET', unpack(KEYS))" } else { "values" })
        .replace("@first_of_many", first_of_many)
        .replace("@first", names[0])
        .replace("@place", place)
        .replace("@stored", stored)
        .replace("@fitting", fitting)
        .replace("@numbers", numbers)
        .replace("@known", &names.iter().map(|name| format!("its_{name}")).collect::<Vec<_>>().join(", "))
        .replace("@charge", &format!("rule[{}]", names.len() + 1))
        .replace("@rule", &rule.join(", "))
        .replace("@decide\n", decide)
}

/// Decides on several counters, all or nothing. KEYS: the counters. ARGV: 1 to charge and 0 to look, then for each counter
/// its [`kind`], [`numbers`] and [`charged`].
pub(crate) fn decide_all() -> String {
    let mut script = String::from("local kinds = {}\n");
    for (kind, Half { decide, numbers, .. }) in HALVES.iter().enumerate() {
        let numbers = unpacked(numbers);
        let _ = write!(
            script,
            "kinds[{kind}] = function(key, call, charge, time, now, numbers, charged)\n\
             local value, reply, fits\n{numbers}\nrepeat\n{decide}until true\nreturn reply, fits\nend\n"
        );
    }
    script + include_str!("all.lua")
}

/// Returns a charge. ARGV: [`refund_numbers`]. Replies with what was returned.
pub(crate) fn refund(kind: usize) -> String {
    let Half { refund, refund_numbers, .. } = &HALVES[kind];
    script(refund_numbers, refund)
}

pub(crate) fn numbers(charge: &Charge) -> Numbers {
    let (rule, cost) = (&charge.rule, charge.cost);
    match rule.algorithm() {
        Algorithm::FixedWindow { .. } => fixed_window::numbers(rule, cost),
        Algorithm::SlidingLog => match &charge.hold {
            Some(hold) => sliding_log::hold_numbers(rule, cost, hold),
            None => sliding_log::numbers(rule, cost),
        },
        Algorithm::Concurrent => places::numbers(rule, cost, charge.hold.as_ref()),
        Algorithm::SlidingWindow { .. } => sliding_window::numbers(rule, cost),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            bucket::numbers(rule, cost, charge.longest_wait_ms())
        }
    }
}

/// One of the holds that a script renews.
pub(crate) fn renewal(charge: &Charge) -> Numbers {
    let (id, lease_ms) = charge.hold.map_or((0, 0), |hold| (hold.id, hold.lease_ms()));
    pack([id, lease_ms, charge.cost])
}

/// The cost, as the script counts it.
pub(crate) fn charged(charge: &Charge) -> u64 {
    match charge.rule.algorithm() {
        Algorithm::FixedWindow { .. } => charge.cost * fixed_window::WINDOWS,
        _ => charge.cost,
    }
}

/// A charge's rule for `each.lua`.
#[allow(clippy::cast_precision_loss)] // see `pack`
pub(crate) fn rule(charge: &Charge) -> Numbers {
    let mut numbers = numbers(charge);
    numbers.extend((charged(charge) as f64).to_le_bytes());
    numbers
}

/// The reply to one of several equal charges that were made in one go, by the reply to another. `later`: how many of them lie between the two.
pub(crate) fn reply_to_another(charge: &Charge, reply: &Value, later: i64) -> Option<Value> {
    let (rule, more) = (&charge.rule, later.checked_mul(i64::try_from(charge.cost).ok()?)?);
    match rule.algorithm() {
        Algorithm::FixedWindow { .. } => fixed_window::reply_to_another(rule, reply, more),
        Algorithm::SlidingLog => sliding_log::reply_to_another(rule, reply, more),
        Algorithm::Concurrent => None, // they are held, and decided one by one
        Algorithm::SlidingWindow { .. } => sliding_window::reply_to_another(reply, more),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => bucket::reply_to_another(rule, reply, more),
    }
}

/// What was taken by one of several equal charges, where [`taken_by_another`] says from that what was by the others.
pub(crate) fn taken_by_all(charge: &Charge, reply: &Value) -> Option<Taken> {
    // Many ask for it at once, and so no reply is made for each.
    let is_window = matches!(charge.rule.algorithm(), Algorithm::FixedWindow { .. });
    let (look, receipt) = if is_window { read(charge, true, reply)? } else { return None };
    look.fits.then(|| Taken::new(look, receipt))
}

/// What was taken by one that follows so much `later`.
#[inline]
pub(crate) fn taken_by_another(charge: &Charge, taken: &Taken, later: i64) -> Option<Taken> {
    let less = later.checked_mul(i64::try_from(charge.cost).ok()?)?;
    let remaining = taken.remaining.checked_add_signed(less.checked_neg()?)?;
    (remaining <= charge.rule.limit()).then_some(Taken { remaining, ..*taken })
}

/// Whether a script for one counter is told what [`charged`] says: if it can't know that otherwise.
pub(crate) fn is_told(charge: &Charge) -> bool {
    matches!(charge.rule.algorithm(), Algorithm::FixedWindow { .. }) && charge.cost != 1
}

pub(crate) fn refund_numbers(charge: &Charge) -> Numbers {
    let (rule, receipt, cost) = (&charge.rule, charge.receipt, charge.cost);
    match rule.algorithm() {
        Algorithm::FixedWindow { .. } => fixed_window::refund_numbers(receipt, cost),
        Algorithm::SlidingLog => sliding_log::refund_numbers(rule, receipt, cost),
        Algorithm::Concurrent => pack([cost]),
        Algorithm::SlidingWindow { .. } => sliding_window::refund_numbers(rule, receipt, cost),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => bucket::refund_numbers(rule, receipt, cost),
    }
}

/// What a reply says of the counter, after the charge if it was `charged`, and the receipt of that. Nothing if it is no reply of the script.
pub(crate) fn read(charge: &Charge, charged: bool, reply: &Value) -> Option<(Look, [u64; 2])> {
    let (rule, cost) = (&charge.rule, charge.cost);
    match rule.algorithm() {
        Algorithm::FixedWindow { .. } => fixed_window::read(rule, cost, charged, reply),
        Algorithm::SlidingLog => sliding_log::read(rule, reply),
        Algorithm::Concurrent => places::read(rule, reply),
        Algorithm::SlidingWindow { .. } => sliding_window::read(rule, cost, charged, reply),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            bucket::read(rule, cost, charge.longest_wait_ms(), charged, reply)
        }
    }
}
