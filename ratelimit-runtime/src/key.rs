//! Keys: the values that calls are limited by.

pub(crate) mod escape;

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    num,
    rc::Rc,
    sync::Arc,
};

use smallvec::SmallVec;

use self::escape::{Reserved, escape, escape_byte, reserved};

static RESERVED: Reserved = reserved(b"%{}(),");

/// A value that a call can be limited by: a user, an address, a tenant.
///
/// Implemented for integers, strings, byte strings, `bool`, `char`, IP and socket addresses,
/// `uuid::Uuid` (feature `uuid`), tuples of up to eight of them, and references and `Cow`s of them.
/// Of a socket address the port is a part of the key, which each connection of a client chooses
/// anew: to limit clients, use the IP address alone.
///
/// Two keys are equal if they print the same: `1` and `"1"` are one key. Tuples keep their nesting:
/// `("a", "b")` and `"a,b"` are two keys, and so are `("a:b", "c")` and `("a", "b:c")`.
///
/// Not implemented for `Option`: the attribute's `on_missing_key` says what a missing key means.
///
/// A type of your own becomes a key with `#[derive(RateKey)]` (feature `macros`). By hand it needs
/// one method, which writes one value or a tuple of values. For types of other crates there is
/// [`DisplayKey`].
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
    note = "for a type of your own, write `#[derive(RateKey)]`, or implement `ratelimit_runtime::RateKey`, one method",
    note = "for a type that is printed differently for each of its values, write `DisplayKey(&value)`",
    note = "for one counter without a key, leave `key` out of the attribute, or pass `Key::NONE` to a `Limiter`"
)]
pub trait RateKey {
    /// Writes this value, usually by calling `write_key` of a field or of a tuple of fields.
    fn write_key(&self, key: &mut KeyWriter<'_>);

    /// The key of this value. Some types compute it without writing.
    #[doc(hidden)]
    #[inline]
    fn rate_key(&self) -> Key {
        Key::from_writer(self)
    }
}

/// Receives the value of a key. Escapes characters that would end a part, so that keys stay
/// unambiguous.
pub struct KeyWriter<'a> {
    out: &'a mut KeyBuffer,
    /// Whether this part has been written to: further writes need a separator.
    written: bool,
}

/// Inline room for common keys; as large as a `Vec`.
type KeyText = SmallVec<[u8; 16]>;

/// The key written so far.
#[derive(Default)]
struct KeyBuffer {
    text: KeyText,
    /// The only part so far, if it is a number. Not printed yet.
    number: Option<u64>,
}

impl KeyBuffer {
    fn print_number(&mut self) {
        if let Some(number) = self.number.take() {
            self.text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        }
    }
}

impl KeyWriter<'_> {
    /// Writes one part made of bytes.
    ///
    /// A comma separates it from an earlier part. For several parts use a tuple, which also marks
    /// where they end.
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

    /// Writes a text without reserved characters.
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
        let _ = write!(EscapingWriter(&mut self.out.text), "{value}"); // writing to memory cannot fail
    }

    /// Separates the following part from an earlier one.
    #[inline]
    fn begin(&mut self) {
        if self.written {
            self.out.print_number();
            self.out.text.push(b',');
        }
        self.written = true;
    }

    pub(crate) fn write_tuple(&mut self, parts: &[&dyn RateKey]) {
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

/// Escapes the text that is formatted into it.
struct EscapingWriter<'a>(&'a mut KeyText);

impl fmt::Write for EscapingWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(text, &RESERVED, self.0);
        Ok(())
    }
}

/// The key of a call, in its printed form.
///
/// ```
/// use ratelimit_runtime::Key;
///
/// assert_eq!(Key::new(("eu", 4711)).to_string(), "(eu,4711)");
/// assert_eq!(Key::new("{a}").to_string(), "%7Ba%7D");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub(crate) Repr);

/// The form of a key, which is canonical: texts that read like a number are `Number`, other short
/// texts `Short`.
///
/// Most numbers are never printed, as only a server needs the name of a counter.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Repr {
    /// A number and 0. Uninitialised padding would make the compiler copy the value twice.
    Number([u64; 2]),
    /// Up to 16 bytes as two little-endian numbers, padded with zeros: no byte of a key is zero, as control
    /// characters are escaped. With the length in the padding behind the tag, the processor would stall when
    /// it copies the key.
    Short([u64; 2]),
    Long(Box<[u8]>),
    /// See [`Key::NONE`].
    None,
}

const MAX_SHORT: usize = 16;

impl Repr {
    #[inline]
    const fn number(number: u64) -> Self {
        Self::Number([number, 0])
    }
}

impl Key {
    /// No key: the one counter of a rule that does not tell callers apart. An attribute without
    /// `key` charges it.
    ///
    /// It differs from all other keys, also from the empty text. As a part of a tuple, it reads like
    /// the empty text.
    ///
    /// ```
    /// # use ratelimit_runtime::{Key, Limiter, Rule};
    /// # use std::time::Duration;
    /// const TOTAL: Rule = Rule::new("total", 10, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// limiter.acquire(&TOTAL, Key::NONE).await?;
    /// assert_eq!(limiter.peek(&TOTAL, Key::NONE).await?.remaining(), 9);
    /// assert_eq!(limiter.peek(&TOTAL, "").await?.remaining(), 10);
    ///
    /// limiter.reset(&TOTAL, Key::NONE).await?;
    /// assert_eq!(limiter.peek(&TOTAL, Key::NONE).await?.remaining(), 10);
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    pub const NONE: Self = Self(Repr::None);

    /// The key of a value, or of a reference to one.
    #[allow(clippy::needless_pass_by_value)] // a reference to a key is a key too
    #[inline]
    pub fn new<K: RateKey>(key: K) -> Self {
        key.rate_key()
    }

    #[inline(never)]
    fn from_writer<K: RateKey + ?Sized>(key: &K) -> Self {
        let mut out = KeyBuffer::default();
        key.write_key(&mut KeyWriter { out: &mut out, written: false });
        out.number.map_or_else(|| Self::from_printed(&out.text), |number| Self(Repr::number(number)))
    }

    /// The key of a text.
    #[inline(always)]
    #[allow(clippy::inline_always)] // see `private::key`
    #[allow(clippy::cast_possible_truncation)] // split into two halves
    fn from_text(text: &str) -> Self {
        match plain_text(text.as_bytes()) {
            0 => Self::from_uncommon_text(text),
            text => Self(Repr::Short([text as u64, (text >> 64) as u64])),
        }
    }

    /// The key of any text: long, possibly a number, or with reserved characters.
    #[inline(never)]
    fn from_uncommon_text(text: &str) -> Self {
        let (chunks, rest) = text.as_bytes().as_chunks();
        let is_plain = |bytes: &[u8]| !bytes.iter().any(|byte| RESERVED[usize::from(*byte)]);
        let are_plain = |chunk: &[u8; 8]| is_plain_ascii(u64::from_le_bytes(*chunk)) || is_plain(chunk);
        if chunks.iter().all(are_plain) && is_plain(rest) {
            Self::from_printed(text.as_bytes())
        } else {
            Self::from_writer(text)
        }
    }

    /// The key with this printed form.
    fn from_printed(text: &[u8]) -> Self {
        Self(match parse_number(text) {
            Some(number) => Repr::number(number),
            None if text.len() <= MAX_SHORT => Repr::Short(short(text)),
            None => Repr::Long(text.into()),
        })
    }

    pub(crate) fn with_text<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        match &self.0 {
            Repr::Number([number, _]) => read(itoa::Buffer::new().format(*number).as_bytes()),
            Repr::Short([first, second]) => {
                let text = u128::from(*second) << 64 | u128::from(*first);
                let length = MAX_SHORT - text.leading_zeros() as usize / 8;
                read(&text.to_le_bytes()[..length])
            }
            Repr::Long(text) => read(text),
            Repr::None => read(b""),
        }
    }
}

/// A short text that needs no escapes and does not start with a digit, packed. 0 for other texts.
///
/// A number, since that is returned in registers. A key that is written in parts and then copied whole stalls
/// the processor.
#[allow(clippy::cast_possible_truncation)] // a short text
fn plain_text(text: &[u8]) -> u128 {
    if text.len() > MAX_SHORT || text.first().is_none_or(u8::is_ascii_digit) {
        return 0;
    }
    let [first, second] = short(text);
    // Missing bytes are zeros, which are not plain.
    let (bits, plain) = (8 * text.len() as u32, splat(b'a'));
    let padding = [plain.unbounded_shl(bits), plain.unbounded_shl(bits.saturating_sub(64))];
    let is_plain = is_plain_ascii(first | padding[0]) && is_plain_ascii(second | padding[1]);
    if is_plain { u128::from(second) << 64 | u128::from(first) } else { 0 }
}

/// Packs up to 16 bytes, padded with zeros. Two integers are hashed and copied faster than bytes.
#[inline(always)]
#[allow(clippy::inline_always)] // see `CounterId::new_inline`
fn short(text: &[u8]) -> [u64; 2] {
    // The last bytes may overlap the first ones; the overlap is shifted out.
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

/// Eight copies of a byte.
const fn splat(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Whether all eight bytes are digits, letters, `-./:;<=>?@[\]^_` or the backquote. None of these
/// is escaped.
///
/// Tests all bytes at once (*Bit Twiddling Hacks*, Anderson). The high bit of a byte is set in `x -
/// 0x2D..` but not in `x` if it is below `-`, and in `x + 0x05..` if it is above `z`.
#[inline]
fn is_plain_ascii(bytes: u64) -> bool {
    let below = bytes.wrapping_sub(splat(b'-')) & !bytes;
    let above = bytes.wrapping_add(splat(0x7F - b'z')) | bytes;
    (below | above) & splat(0x80) == 0
}

/// The number with this printed form.
fn parse_number(text: &[u8]) -> Option<u64> {
    let as_printed = match text {
        [b'0'] => true,
        [first, ..] => (b'1'..=b'9').contains(first),
        [] => false,
    };
    // The first byte is a digit: no sign is accepted.
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

/// The key of a [`Key`] is itself.
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
                u64::try_from(*self).map_or_else(|_| Key::from_writer(self), |number| Key(Repr::number(number)))
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
printed!(IpAddr Ipv4Addr Ipv6Addr SocketAddr SocketAddrV4 SocketAddrV6 fmt::Arguments<'_>);
#[cfg(feature = "uuid")]
printed!(uuid::Uuid);

/// A key by its [`Display`](fmt::Display) form.
///
/// For types of other crates, which cannot implement [`RateKey`]. Values that print the same are
/// one key. If printing fails, the key is what was printed until then.
///
/// ```
/// use ratelimit_runtime::{DisplayKey, Key, RequestPerMinute, limit_request_per_time};
/// use std::fmt;
///
/// struct OrderId(u64);
///
/// impl fmt::Display for OrderId {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "order-{}", self.0)
///     }
/// }
///
/// #[limit_request_per_time("cancel", 1, Minutes, 5, key = DisplayKey(&order))]
/// async fn cancel(order: OrderId) -> Result<(), RequestPerMinute> {
///     Ok(())
/// }
///
/// assert_eq!(Key::new(DisplayKey(OrderId(7))), Key::new("order-7"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DisplayKey<T: ?Sized>(pub T);

impl<T: fmt::Display + ?Sized> RateKey for DisplayKey<T> {
    fn write_key(&self, key: &mut KeyWriter<'_>) {
        key.write_printed(&&self.0);
    }
}

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
                Key::from_text(self)
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

#[cfg(all(test, not(model_check)))]
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
            assert_eq!(parse_number(text.as_bytes()), None, "{text}");
        }
    }

    /// A key that writes several parts.
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
    fn the_fast_path_of_texts_equals_the_writer() {
        for length in [0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40] {
            for (at, letter) in (0..=length).flat_map(|at| ('\0'..'\u{100}').map(move |letter| (at, letter))) {
                let mut text = "a".repeat(length);
                text.insert(at, letter);
                assert_eq!(Key::from_text(&text), Key::from_writer(text.as_str()), "{letter:?} at {at} of {length}");
            }
        }
        for text in ["", "0", "7", "42", "042", "1a", "12345678", "123456789", "a2345678", "18446744073709551615"] {
            assert_eq!(Key::from_text(text), Key::from_writer(text), "{text}");
        }
    }

    #[test]
    fn a_short_text_is_two_numbers() {
        for length in 0..=MAX_SHORT {
            let text: Vec<u8> = (1..=16).take(length).collect();
            let mut padded = text.clone();
            padded.resize(MAX_SHORT, 0);
            let bytes: Vec<u8> = short(&text).into_iter().flat_map(u64::to_le_bytes).collect();
            assert_eq!(bytes, padded);
        }
    }
}
