//! Identity of a counter: its name in Redis, and its id in this process.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
};

use foldhash::{SharedSeed, fast::FoldHasher};
use once_cell::sync::Lazy;
use sha2::{Digest, Sha256};
use smallvec::{Array, SmallVec};

use crate::{
    Key, Rule,
    key::{
        Repr,
        escape::{Reserved, escape, reserved},
    },
    rule::RuleId,
};

/// Keys and prefixes with more printed bytes are replaced by their SHA-256.
const MAX_PART: usize = 200;

static RESERVED: Reserved = reserved(b"%{}:");

/// The name of a counter, which is its key in Redis: `item:{4711}:fixed:60000`.
///
/// The parts are the namespace (followed by `::`), the prefix, the key as the hash tag, the
/// algorithm, and the period in milliseconds. Without a key, the prefix is the hash tag. Distinct
/// counters have distinct names, whatever the keys contain.
#[derive(Clone, Eq, PartialOrd, Ord)]
pub struct CounterName {
    text: SmallVec<[u8; 56]>,
    id: CounterId,
}

impl PartialEq for CounterName {
    /// Compares the ids first, which is fast: a call may compare thousands of names.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.text == other.text
    }
}

impl Hash for CounterName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl CounterName {
    pub(crate) fn new(namespace: &str, rule: &Rule, key: &Key) -> Self {
        let mut name = SmallVec::<[u8; 56]>::new();
        if !namespace.is_empty() {
            push_part(namespace, &mut name);
            name.extend_from_slice(b"::");
        }
        if *key == Key::NONE {
            name.push(b'{');
            push_part(rule.prefix(), &mut name);
        } else {
            push_part(rule.prefix(), &mut name);
            name.extend_from_slice(b":{");
            key.with_text(|key| match key.len() {
                0 => name.push(b'%'), // an empty hash tag is ignored; no escape is a lone `%`
                1..=MAX_PART => name.extend_from_slice(key),
                _ => push_hex(&Sha256::digest(key), &mut name),
            });
        }
        name.extend_from_slice(b"}:");
        let tag = rule.algorithm().key_tag();
        name.extend_from_slice(tag.name.as_bytes());
        if let Some(buckets) = tag.buckets {
            name.extend_from_slice(itoa::Buffer::new().format(buckets).as_bytes());
        }
        name.push(b':');
        name.extend_from_slice(itoa::Buffer::new().format(rule.identity_period_ms()).as_bytes());
        Self { text: name, id: CounterId::new(rule, key) }
    }

    /// The name as UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    pub(crate) fn id(&self) -> CounterId {
        self.id
    }
}

/// Appends an escaped part, or its digest if it is long.
fn push_part<A: Array<Item = u8>>(part: &str, name: &mut SmallVec<A>) {
    let from = name.len();
    escape(part, &RESERVED, name);
    if name.len() - from > MAX_PART {
        let digest = Sha256::digest(&name[from..]);
        name.truncate(from);
        push_hex(&digest, name);
    }
}

/// Appends a digest. `%s` is no escape, so no other part looks like it.
fn push_hex<A: Array<Item = u8>>(digest: &[u8], name: &mut SmallVec<A>) {
    name.extend_from_slice(b"%sha256-");
    for byte in digest {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        name.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

impl fmt::Display for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl fmt::Debug for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CounterName({self})")
    }
}

/// The id of a counter in this process: a keyed hash of its [`RuleId`] and its key.
///
/// Each limiter has counters of its own, so the namespace is not part of it. Two passes over the
/// same numbers, each with a 128-bit secret of its own, give 128 bits, in a fraction of the time
/// that the name takes.
///
/// Counters with equal ids would share their limit, so an attacker must not find collisions. The
/// hash is a fast one for hash tables, for which collisions can be computed from its values. But
/// ids never leave the process, are not printed, and only decide where in a table a counter lies:
/// an attacker can only try keys.
///
/// Each step of a pass multiplies two 64-bit numbers that contain secrets, and combines the halves
/// of the product. As far as is known, two chosen keys collide in one pass for about one secret in
/// 2^64, and thus in both for one in 2^127, as one bit is always 1. It is in the middle: tables use the
/// others.
///
/// The key comes first, so it goes through two steps. After one, the ids of consecutive numbers have regular
/// distances, and with some secrets most of them lie in a few places of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CounterId(pub(crate) u64, pub(crate) u64);

/// The secret of one pass.
struct Secret(u64, SharedSeed);

static SECRETS: Lazy<[Secret; 2]> = Lazy::new(|| {
    // The standard library seeds its maps from the system's randomness.
    let random = || RandomState::new().hash_one(0);
    [(); 2].map(|()| Secret(random(), SharedSeed::from_u64(random())))
});

impl CounterId {
    /// The id of no counter.
    pub(crate) const NONE: Self = Self(0, 0);

    pub(crate) fn new(rule: &Rule, key: &Key) -> Self {
        Self::new_inline(rule, key)
    }

    /// [`CounterId::new`], inlined for the fast path.
    ///
    /// Two interleaved passes take little longer than one, while arguments of a call that is not
    /// inlined go through memory.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub(crate) fn new_inline(rule: &Rule, key: &Key) -> Self {
        let (kind, [key, more]) = match key {
            Key(Repr::None) => (2, [0; 2]),
            // One branch for most keys.
            Key(repr @ (Repr::Number(inline) | Repr::Short(inline))) => {
                (u64::from(matches!(repr, Repr::Short(_))), *inline)
            }
            Key(Repr::Long(text)) => return Self::long(rule, text),
        };
        Self::hashed(&[], [key, more], rule, kind)
    }

    #[cold]
    #[inline(never)]
    fn long(rule: &Rule, text: &[u8]) -> Self {
        Self::hashed(text, [text.len() as u64, 0], rule, 3)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // see `CounterId::new_inline`
    fn hashed(text: &[u8], key: [u64; 2], rule: &Rule, kind: u64) -> Self {
        let RuleId(first, second) = rule.id();
        // `kind` uses 2 bits. No two rules have ids that differ in these bits only.
        let rule = [first, second ^ kind];
        let [left, right] = &*SECRETS;
        Self(left.hash(text, key, rule), right.hash(text, key, rule) | 1 << 40) // never `NONE`
    }
}

impl Secret {
    #[inline(always)]
    #[allow(clippy::inline_always)] // see `CounterId::new_inline`
    fn hash(&self, text: &[u8], key: [u64; 2], rule: [u64; 2]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.0, &self.1);
        if !text.is_empty() {
            hasher.write(text);
        }
        for number in [key[0], key[1], rule[0], rule[1]] {
            hasher.write_u64(number);
        }
        hasher.finish()
    }
}

impl Hash for CounterId {
    /// One half is enough to find it in a table; the other half has selected the table.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.1);
    }
}

/// Hasher for counter ids, which are hashes themselves.
#[derive(Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a counter id is hashed as a number");
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{collections::HashMap, time::Duration};

    use foldhash::quality::FixedState;

    use super::*;
    use crate::{Algorithm, Refill};

    #[test]
    fn an_invalid_rule_never_has_the_id_of_a_valid_one() {
        let second = Duration::from_secs(1);
        let right = CounterId::new(&Rule::new("item", 1, second), &Key::NONE);
        for period in [Duration::ZERO, second + Duration::from_nanos(1), Duration::from_secs(1 << 40), Duration::MAX] {
            assert_ne!(CounterId::new(&Rule::new("item", 1, period), &Key::NONE), right, "{period:?}");
        }
        assert_ne!(CounterId::new(&Rule::new("", 1, second), &Key::NONE), right);
    }

    /// Each process has another secret.
    #[test]
    fn consecutive_numbers_are_spread_as_random_ids_are() {
        for seed in 0..2_000_u64 {
            let number = |number| FixedState::default().hash_one((seed, number));
            let secret = Secret(number(1), SharedSeed::from_u64(number(2)));
            let rule = [number(3), number(4)];
            let mut places = [0; 32];
            for key in 0..1_000 {
                places[(secret.hash(&[], [key, 0], rule) >> 59) as usize] += 1;
            }
            let most = places.into_iter().max().unwrap();
            assert!(most < 80, "{most} of 1,000 ids are in one of 32 places, with secret {seed}");
        }
    }

    #[test]
    fn counters_have_equal_ids_if_and_only_if_they_have_equal_names() {
        let long = "a".repeat(MAX_PART + 1);
        let (longer, other) = (format!("{long}a"), format!("{}b", &long[1..]));
        let texts =
            ["", "a", "b", "aa", "ab", "0", "1", "01", "item", "itema", "(a,1)", "\0", "a\0", "a-key-of-16-byte"];
        let texts: Vec<&str> = texts.into_iter().chain(["a-key-of-17-bytes", &long, &longer, &other]).collect();
        let mut keys: Vec<Key> = texts.iter().map(|text| Key::new(*text)).collect();
        keys.extend([Key::NONE, Key::new(0), Key::new(1), Key::new(u64::MAX), Key::new(("a", 1))]);
        let second = Duration::from_secs(1);
        let algorithms = [
            Algorithm::FixedWindow { align: false },
            Algorithm::FixedWindow { align: true },
            Algorithm::SlidingLog,
            Algorithm::SlidingWindow { buckets: 1, weighted: true },
            Algorithm::SlidingWindow { buckets: 2, weighted: true },
            Algorithm::SlidingWindow { buckets: 1, weighted: false },
            Algorithm::SlidingWindow { buckets: 2, weighted: false },
            Algorithm::TokenBucket { burst: 1, refill: Refill::Greedy },
            Algorithm::TokenBucket { burst: 2, refill: Refill::Greedy },
            Algorithm::TokenBucket { burst: 1, refill: Refill::Interval },
            Algorithm::LeakyBucket { queue: 1 },
            Algorithm::LeakyBucket { queue: 2 },
        ];
        let mut by_name = HashMap::new();
        let mut by_id = HashMap::new();
        for prefix in ["item", "itema", "i", "a-prefix-above-16-bytes", "a-prefix-above-17-bytes"] {
            for (algorithm, period) in algorithms.into_iter().flat_map(|one| [(one, second), (one, 2 * second)]) {
                for key in &keys {
                    let rule = Rule::new(prefix, 1, period).with_algorithm(algorithm);
                    let name = CounterName::new("", &rule, key);
                    let id = name.id();
                    assert_eq!(id, CounterId::new(&rule, key));
                    assert_eq!(*by_name.entry(name.to_string()).or_insert(id), id, "{name}");
                    assert_eq!(*by_id.entry(id).or_insert_with(|| name.clone()), name);
                }
            }
        }
        assert_eq!(by_name.len(), by_id.len());
        assert!(by_name.len() > 1000, "{}", by_name.len());
    }
}
