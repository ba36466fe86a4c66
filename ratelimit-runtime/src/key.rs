//! Who is limited: the key of a call and the name of the counter it leads to.

use std::{borrow::Cow, fmt, net::IpAddr, num, rc::Rc, sync::Arc};

use sha2::{Digest, Sha256};
use smallvec::{Array, SmallVec};

use crate::Rule;

/// Keys and prefixes above this many printed bytes are replaced by their SHA-256.
const LONGEST_PART: usize = 200;

/// A value that can tell callers apart.
///
/// Implemented for integers, strings, byte strings, `bool`, `char`, IP addresses, `uuid::Uuid`
/// (feature `uuid`), tuples of up to eight of them, and references and `Cow`s of them. Two keys are the same when
/// they print the same: `1` and `"1"` are one key; `("a", "b")` and `"a,b"` are two, and so are
/// `("a:b", "c")` and `("a", "b:c")`.
///
/// It is not implemented for `Option`, as only you can say what a missing key means: see the
/// attribute's `on_missing_key`.
///
/// A type of your own needs one method, which writes one value or a tuple of them:
///
/// ```
/// use ratelimit_runtime::{Key, KeyWriter, RateKey};
///
/// struct SellerId(u64);
///
/// impl RateKey for SellerId {
///     fn write_key(&self, key: &mut KeyWriter<'_>) {
///         self.0.write_key(key);
///     }
/// }
///
/// assert_eq!(Key::new(SellerId(4711)), Key::new("4711"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the key of a rate limit",
    label = "not a key",
    note = "keys are integers, strings, bytes, `bool`, `char`, IP addresses, UUIDs (feature `uuid`) and tuples of these",
    note = "for an `Option`, say what a missing key means: `on_missing_key = Deny`, `Skip` or `Shared`",
    note = "for a type of your own, implement `ratelimit_runtime::RateKey`, one method"
)]
pub trait RateKey {
    /// Writes this value, usually by calling `write_key` of a field or of a tuple of fields.
    fn write_key(&self, key: &mut KeyWriter<'_>);
}

/// Takes the value of a key and keeps it unambiguous: what would end a part is escaped.
pub struct KeyWriter<'a> {
    out: &'a mut Text,
    /// Whether this part has been written to, so that a second write can be set apart.
    written: bool,
}

/// Text with room for a usual key without an allocation; as large as a `Vec`.
type Text = SmallVec<[u8; 16]>;

impl KeyWriter<'_> {
    /// Writes one part made of bytes.
    ///
    /// A second call sets its part apart with a comma. To write several parts use a tuple, which also
    /// says where they end.
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        if self.written {
            self.out.push(b',');
        }
        self.written = true;
        escape(bytes, b"%{}(),", self.out);
    }

    fn write_plain(&mut self, text: &str) {
        if self.written {
            self.out.push(b',');
        }
        self.written = true;
        self.out.extend_from_slice(text.as_bytes());
    }

    fn write_tuple(&mut self, parts: &[&dyn RateKey]) {
        if self.written {
            self.out.push(b',');
        }
        self.written = true;
        self.out.push(b'(');
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            part.write_key(&mut KeyWriter { out: self.out, written: false });
        }
        self.out.push(b')');
    }
}

impl fmt::Debug for KeyWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyWriter").field(&String::from_utf8_lossy(self.out)).finish()
    }
}

/// Appends `bytes` with `%`-escapes for the given ones, control characters and what is not UTF-8.
fn escape<A: Array<Item = u8>>(bytes: &[u8], reserved: &[u8], out: &mut SmallVec<A>) {
    for chunk in bytes.utf8_chunks() {
        for &byte in chunk.valid().as_bytes() {
            if byte.is_ascii_control() || reserved.contains(&byte) {
                escape_byte(byte, out);
            } else {
                out.push(byte);
            }
        }
        for &byte in chunk.invalid() {
            escape_byte(byte, out);
        }
    }
}

fn escape_byte<A: Array<Item = u8>>(byte: u8, out: &mut SmallVec<A>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

/// The key of one call, printed.
///
/// ```
/// use ratelimit_runtime::Key;
///
/// assert_eq!(Key::new(("eu", 4711)).to_string(), "(eu,4711)");
/// assert_eq!(Key::new("{a}").to_string(), "%7Ba%7D");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Text);

impl Key {
    /// The key of a value, or of a reference to one.
    #[allow(clippy::needless_pass_by_value)] // a reference to a key is a key too
    pub fn new<K: RateKey>(key: K) -> Self {
        let mut out = Text::new();
        key.write_key(&mut KeyWriter { out: &mut out, written: false });
        Self(out)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// A [`Key`] stands for the value it was made from.
impl RateKey for Key {
    fn write_key(&self, key: &mut KeyWriter<'_>) {
        if key.written {
            key.out.push(b',');
        }
        key.written = true;
        key.out.extend_from_slice(&self.0);
    }
}

macro_rules! integers {
    ($($int:ty)*) => {$(
        impl RateKey for $int {
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                key.write_plain(itoa::Buffer::new().format(*self));
            }
        }
    )*};
}
integers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

macro_rules! non_zero_integers {
    ($($int:ident)*) => {$(
        impl RateKey for num::$int {
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                self.get().write_key(key);
            }
        }
    )*};
}
non_zero_integers!(NonZeroU8 NonZeroU16 NonZeroU32 NonZeroU64 NonZeroU128 NonZeroUsize
    NonZeroI8 NonZeroI16 NonZeroI32 NonZeroI64 NonZeroI128 NonZeroIsize);

macro_rules! printed {
    ($($type:ty)*) => {$(
        impl RateKey for $type {
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                key.write_bytes(self.to_string().as_bytes());
            }
        }
    )*};
}
printed!(IpAddr std::net::Ipv4Addr std::net::Ipv6Addr fmt::Arguments<'_>);
#[cfg(feature = "uuid")]
printed!(uuid::Uuid);

macro_rules! bytes {
    ($($type:ty => $as_bytes:ident),*) => {$(
        impl RateKey for $type {
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                key.write_bytes(self.$as_bytes());
            }
        }
    )*};
}
bytes!(str => as_bytes, String => as_bytes, [u8] => as_ref, Vec<u8> => as_ref);

impl<const N: usize> RateKey for [u8; N] {
    fn write_key(&self, key: &mut KeyWriter<'_>) {
        key.write_bytes(self);
    }
}

impl RateKey for bool {
    fn write_key(&self, key: &mut KeyWriter<'_>) {
        key.write_plain(if *self { "true" } else { "false" });
    }
}

impl RateKey for char {
    fn write_key(&self, key: &mut KeyWriter<'_>) {
        key.write_bytes(self.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<K: RateKey + ?Sized> RateKey for $pointer {
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                K::write_key(self, key);
            }
        }
    )*};
}
pointers!(&K, &mut K, Box<K>, Rc<K>, Arc<K>);

impl<K: RateKey + ToOwned + ?Sized> RateKey for Cow<'_, K> {
    fn write_key(&self, key: &mut KeyWriter<'_>) {
        K::write_key(self, key);
    }
}

macro_rules! tuples {
    ($(($($part:ident)+))*) => {$(
        impl<$($part: RateKey),+> RateKey for ($($part,)+) {
            #[allow(non_snake_case)]
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                let ($($part,)+) = self;
                key.write_tuple(&[$($part),+]);
            }
        }
    )*};
}
tuples!((A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H));

/// The name of a counter, as it is the key in Redis: `item:{4711}:fixed:60000`.
///
/// Namespace (with `::` behind it), prefix, key as the hash tag, algorithm, period in milliseconds. Without a key the
/// prefix is the tag. Distinct counters have distinct names, whatever a caller puts into a key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterName(SmallVec<[u8; 56]>);

impl CounterName {
    pub(crate) fn new(namespace: &str, rule: &Rule, key: Option<&Key>) -> Self {
        let mut name = SmallVec::new();
        if !namespace.is_empty() {
            push_part(namespace, &mut name);
            name.extend_from_slice(b"::");
        }
        if let Some(Key(key)) = key {
            push_part(rule.prefix(), &mut name);
            name.extend_from_slice(b":{");
            match key.len() {
                0 => name.push(b'%'), // or the tag would be empty; no escape is a lone `%`
                1..=LONGEST_PART => name.extend_from_slice(key),
                _ => push_hex(&Sha256::digest(key), &mut name),
            }
        } else {
            name.push(b'{');
            push_part(rule.prefix(), &mut name);
        }
        name.extend_from_slice(b"}:");
        let tag = rule.counted_by().tag();
        name.extend_from_slice(tag.name.as_bytes());
        if let Some(buckets) = tag.buckets {
            name.extend_from_slice(itoa::Buffer::new().format(buckets).as_bytes());
        }
        name.push(b':');
        name.extend_from_slice(itoa::Buffer::new().format(rule.period_ms()).as_bytes());
        Self(name)
    }

    /// The name's bytes. They are UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn push_part<A: Array<Item = u8>>(part: &str, name: &mut SmallVec<A>) {
    let from = name.len();
    escape(part.as_bytes(), b"%{}:", name);
    if name.len() - from > LONGEST_PART {
        let digest = Sha256::digest(&name[from..]);
        name.truncate(from);
        push_hex(&digest, name);
    }
}

/// `%s` is no escape, so no part reads like a digest.
fn push_hex<A: Array<Item = u8>>(digest: &[u8], name: &mut SmallVec<A>) {
    name.extend_from_slice(b"%sha256-");
    for byte in digest {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        name.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

impl fmt::Display for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CounterName({self})")
    }
}
