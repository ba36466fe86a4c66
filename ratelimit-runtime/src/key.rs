//! Who is limited: the key of a call and the name of the counter it leads to.

pub(crate) mod escape;

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    net::IpAddr,
    num,
    rc::Rc,
    sync::Arc,
};

use smallvec::SmallVec;

use self::escape::{Reserved, escape, escape_byte, reserved};

static RESERVED: Reserved = reserved(b"%{}(),");

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

    /// The key that comes of what it would write. Some can tell it without writing.
    #[doc(hidden)]
    #[inline]
    fn rate_key(&self) -> Key {
        Key::written(self)
    }
}

/// Takes the value of a key and keeps it unambiguous: what would end a part is escaped.
pub struct KeyWriter<'a> {
    out: &'a mut Output,
    /// Whether this part has been written to, so that a second write can be set apart.
    written: bool,
}

/// Text with room for a usual key without an allocation; as large as a `Vec`.
type Text = SmallVec<[u8; 16]>;

/// What has been written.
#[derive(Default)]
struct Output {
    text: Text,
    /// A number that is all of it so far, and not printed yet.
    number: Option<u64>,
}

impl Output {
    fn print_number(&mut self) {
        if let Some(number) = self.number.take() {
            self.text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        }
    }
}

impl KeyWriter<'_> {
    /// Writes one part made of bytes.
    ///
    /// A second call sets its part apart with a comma. To write several parts use a tuple, which also
    /// says where they end.
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        self.begin();
        for chunk in bytes.utf8_chunks() {
            escape(chunk.valid(), &RESERVED, &mut self.out.text);
            for &byte in chunk.invalid() {
                escape_byte(byte, &mut self.out.text);
            }
        }
    }

    #[inline]
    fn write_text(&mut self, text: &str) {
        self.begin();
        escape(text, &RESERVED, &mut self.out.text);
    }

    /// What has nothing to be escaped.
    fn write_plain(&mut self, text: &str) {
        self.begin();
        self.out.text.extend_from_slice(text.as_bytes());
    }

    #[inline]
    fn write_number(&mut self, number: u64) {
        if !self.written && self.out.text.is_empty() {
            self.written = true;
            self.out.number = Some(number);
        } else {
            self.write_plain(itoa::Buffer::new().format(number));
        }
    }

    fn write_printed(&mut self, value: &dyn fmt::Display) {
        self.begin();
        let _ = write!(Escaped(&mut self.out.text), "{value}"); // a `Vec` has room for everything
    }

    /// Sets what follows apart from what was written.
    #[inline]
    fn begin(&mut self) {
        if self.written {
            self.out.print_number();
            self.out.text.push(b',');
        }
        self.written = true;
    }

    fn write_tuple(&mut self, parts: &[&dyn RateKey]) {
        self.begin();
        self.out.text.push(b'(');
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.out.text.push(b',');
            }
            part.write_key(&mut KeyWriter { out: self.out, written: false });
        }
        self.out.text.push(b')');
    }
}

impl fmt::Debug for KeyWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyWriter").field(&String::from_utf8_lossy(&self.out.text)).finish()
    }
}

/// Escapes what is printed into it.
struct Escaped<'a>(&'a mut Text);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(text, &RESERVED, self.0);
        Ok(())
    }
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
pub struct Key(pub(crate) Repr);

/// A key has one form: what reads like a number is one, and what is short is `Short`. Most numbers are never printed, as only a server
/// needs a name for a counter.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Repr {
    /// A number and 0. Nothing is left unwritten: a compiler copies what comes next to that twice.
    Number([u64; 2]),
    /// Up to 16 bytes with zeros behind them, as two little-endian numbers.
    Short(u8, [u64; 2]),
    Long(Box<[u8]>),
}

const LONGEST_SHORT: usize = 16;

impl Repr {
    #[inline]
    const fn number(number: u64) -> Self {
        Self::Number([number, 0])
    }
}

impl Key {
    /// The key of a value, or of a reference to one.
    #[allow(clippy::needless_pass_by_value)] // a reference to a key is a key too
    #[inline]
    pub fn new<K: RateKey>(key: K) -> Self {
        key.rate_key()
    }

    #[inline(never)]
    fn written<K: RateKey + ?Sized>(key: &K) -> Self {
        let mut out = Output::default();
        key.write_key(&mut KeyWriter { out: &mut out, written: false });
        out.number.map_or_else(|| Self::printed(&out.text), |number| Self(Repr::number(number)))
    }

    /// The key of a text, which is that text if nothing of it is to be escaped.
    #[inline(always)]
    #[allow(clippy::inline_always)] // see `private::key`
    fn of_text(text: &str) -> Self {
        let bytes = text.as_bytes();
        let Ok(length @ ..=16) = u8::try_from(bytes.len()) else { return Self::of_unusual(text) };
        let [first, second] = short(bytes);
        // What is not there is as zeros, which are not usual.
        let (bits, usual) = (8 * u32::from(length), in_all(b'a'));
        let behind = [usual.unbounded_shl(bits), usual.unbounded_shl(bits.saturating_sub(64))];
        let are_usual = are_usual(first | behind[0]) && are_usual(second | behind[1]);
        let is_number = bytes.first().is_none_or(u8::is_ascii_digit);
        if !are_usual || is_number { Self::of_unusual(text) } else { Self(Repr::Short(length, [first, second])) }
    }

    /// The same for any text: for a long one, for what may be a number, and for what may have to be escaped.
    #[inline(never)]
    fn of_unusual(text: &str) -> Self {
        let (chunks, rest) = text.as_bytes().as_chunks();
        let is_plain = |bytes: &[u8]| !bytes.iter().any(|byte| RESERVED[usize::from(*byte)]);
        let are_plain = |chunk: &[u8; 8]| are_usual(u64::from_le_bytes(*chunk)) || is_plain(chunk);
        if chunks.iter().all(are_plain) && is_plain(rest) {
            Self::printed(text.as_bytes())
        } else {
            Self::written(text)
        }
    }

    /// What is printed like this.
    fn printed(text: &[u8]) -> Self {
        Self(match (u8::try_from(text.len()), read_number(text)) {
            (_, Some(number)) => Repr::number(number),
            (Ok(length), None) if text.len() <= LONGEST_SHORT => Repr::Short(length, short(text)),
            _ => Repr::Long(text.into()),
        })
    }

    pub(crate) fn with_text<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        match &self.0 {
            Repr::Number([number, _]) => read(itoa::Buffer::new().format(*number).as_bytes()),
            Repr::Short(length, [first, second]) => {
                let text = u128::from(*second) << 64 | u128::from(*first);
                read(&text.to_le_bytes()[..usize::from(*length)])
            }
            Repr::Long(text) => read(text),
        }
    }
}

/// Up to 16 bytes with zeros behind them. Two numbers are hashed and copied faster than so many bytes.
#[inline(always)]
#[allow(clippy::inline_always)] // see `CounterId::new_inline`
fn short(text: &[u8]) -> [u64; 2] {
    // The last bytes overlap with the first ones; what they have in common is shifted out.
    let overlap = |of: usize| u32::try_from(8 * (2 * of - text.len())).unwrap_or_default();
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        return [u64::from_le_bytes(*first), u64::from_le_bytes(*last).unbounded_shr(overlap(8))];
    }
    if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        let last = u32::from_le_bytes(*last).unbounded_shr(overlap(4));
        return [u64::from(last) << 32 | u64::from(u32::from_le_bytes(*first)), 0];
    }
    [text.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)), 0]
}

const fn in_all(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Whether eight bytes are what most keys are made of, and none of it is to be escaped: digits, letters, `-./:;<=>?@[\]^_` and the backquote.
///
/// All at once: the high bit of a byte is set in `x - 0x2D..` but not in `x` if one is below `-`, and in `x + 0x05..` if one is above `z`
/// (*Bit Twiddling Hacks*, Anderson).
#[inline]
fn are_usual(bytes: u64) -> bool {
    let below = bytes.wrapping_sub(in_all(b'-')) & !bytes;
    let above = bytes.wrapping_add(in_all(0x7F - b'z')) | bytes;
    (below | above) & in_all(0x80) == 0
}

/// The number that is printed like this.
fn read_number(text: &[u8]) -> Option<u64> {
    let as_printed = match text {
        [b'0'] => true,
        [first, ..] => (b'1'..=b'9').contains(first),
        [] => false,
    };
    // The first byte is a digit, so there is no sign.
    if as_printed { str::from_utf8(text).ok()?.parse().ok() } else { None }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.write_str(&String::from_utf8_lossy(text)))
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
        if let Repr::Number([number, _]) = &self.0 {
            key.write_number(*number);
        } else {
            key.begin();
            self.with_text(|text| key.out.text.extend_from_slice(text));
        }
    }

    fn rate_key(&self) -> Key {
        self.clone()
    }
}

macro_rules! integers {
    ($($int:ty)*) => {$(
        impl RateKey for $int {
            #[inline]
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                match u64::try_from(*self) {
                    Ok(number) => key.write_number(number),
                    Err(_) => key.write_plain(itoa::Buffer::new().format(*self)),
                }
            }

            #[inline]
            fn rate_key(&self) -> Key {
                u64::try_from(*self).map_or_else(|_| Key::written(self), |number| Key(Repr::number(number)))
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

            #[inline]
            fn rate_key(&self) -> Key {
                self.get().rate_key()
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
                key.write_printed(self);
            }
        }
    )*};
}
printed!(IpAddr std::net::Ipv4Addr std::net::Ipv6Addr fmt::Arguments<'_>);
#[cfg(feature = "uuid")]
printed!(uuid::Uuid);

macro_rules! bytes {
    ($($type:ty),*) => {$(
        impl RateKey for $type {
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                key.write_bytes(self);
            }
        }
    )*};
}
bytes!([u8], Vec<u8>);

macro_rules! texts {
    ($($type:ty),*) => {$(
        impl RateKey for $type {
            #[inline]
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                key.write_text(self);
            }

            #[inline]
            fn rate_key(&self) -> Key {
                Key::of_text(self)
            }
        }
    )*};
}
texts!(str, String);

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
        key.write_text(self.encode_utf8(&mut [0; 4]));
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<K: RateKey + ?Sized> RateKey for $pointer {
            fn write_key(&self, key: &mut KeyWriter<'_>) {
                K::write_key(self, key);
            }

            #[inline]
            fn rate_key(&self) -> Key {
                K::rate_key(self)
            }
        }
    )*};
}
pointers!(&K, &mut K, Box<K>, Rc<K>, Arc<K>);

impl<K: RateKey + ToOwned + ?Sized> RateKey for Cow<'_, K> {
    fn write_key(&self, key: &mut KeyWriter<'_>) {
        K::write_key(self, key);
    }

    #[inline]
    fn rate_key(&self) -> Key {
        K::rate_key(self)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_text_are_one_key() {
        for number in [0, 1, 9, 10, 4711, u64::MAX] {
            assert_eq!(Key::new(number), Key::new(number.to_string()));
            assert_eq!(Key::new(number), Key::new(u128::from(number)));
            assert_eq!(Key::new(number), Key::new(Key::new(number)));
            assert_eq!(Key::new(number).to_string(), number.to_string());
            assert_eq!(Key::new((number, "a")), Key::new((number.to_string(), "a")));
        }
        assert_eq!(Key::new(-1), Key::new("-1"));
        assert_eq!(Key::new(u128::MAX), Key::new(u128::MAX.to_string()));
        assert_ne!(Key::new(1), Key::new((1,)));
        for text in ["", "00", "01", "+1", "1 ", " 1", "1.0", "1e1", "18446744073709551616", "١"] {
            assert_eq!(Key::new(text).to_string(), text);
            assert_eq!(read_number(text.as_bytes()), None, "{text}");
        }
    }

    /// A key that is written in pieces.
    struct Pieces(&'static [&'static str]);

    impl RateKey for Pieces {
        fn write_key(&self, key: &mut KeyWriter<'_>) {
            for piece in self.0 {
                match piece.parse::<u64>() {
                    Ok(number) => number.write_key(key),
                    Err(_) => piece.write_key(key),
                }
            }
        }
    }

    #[test]
    fn a_number_may_be_the_first_of_several() {
        assert_eq!(Key::new(Pieces(&["1"])), Key::new(1));
        assert_eq!(Key::new(Pieces(&["1", "2"])).to_string(), "1,2");
        assert_eq!(Key::new(Pieces(&["1", "a", "2"])).to_string(), "1,a,2");
        assert_eq!(Key::new(Pieces(&["", "2"])).to_string(), ",2");
        assert_eq!(Key::new((Pieces(&["1", "2"]), 3)).to_string(), "(1,2,3)");
    }

    #[test]
    fn the_key_of_a_text_is_what_is_written() {
        for length in [0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40] {
            for (at, letter) in (0..=length).flat_map(|at| ('\0'..'\u{100}').map(move |letter| (at, letter))) {
                let mut text = "a".repeat(length);
                text.insert(at, letter);
                assert_eq!(Key::of_text(&text), Key::written(text.as_str()), "{letter:?} at {at} of {length}");
            }
        }
        for text in ["", "0", "7", "42", "042", "1a", "12345678", "123456789", "a2345678", "18446744073709551615"] {
            assert_eq!(Key::of_text(text), Key::written(text), "{text}");
        }
    }

    #[test]
    fn a_short_text_is_two_numbers() {
        for length in 0..=LONGEST_SHORT {
            let text: Vec<u8> = (1..=16).take(length).collect();
            let mut padded = text.clone();
            padded.resize(LONGEST_SHORT, 0);
            let bytes: Vec<u8> = short(&text).into_iter().flat_map(u64::to_le_bytes).collect();
            assert_eq!(bytes, padded);
        }
    }
}
