//! Encoding of the numbers that scripts take and return.
//!
//! Each is a whole number, stored as a little-endian double of 8 bytes, and exact up to 2^53. Lua
//! reads that faster than digits.

use smallvec::SmallVec;

/// Numbers in one argument of a script.
pub(crate) type PackedNumbers = SmallVec<[u8; 48]>;

#[allow(clippy::cast_precision_loss)] // larger numbers are only compared with exact ones
pub(super) fn pack<const N: usize>(numbers: [u64; N]) -> PackedNumbers {
    let mut packed = PackedNumbers::new();
    for number in numbers {
        packed.extend_from_slice(&(number as f64).to_le_bytes()); // byte by byte takes seven times as long
    }
    packed
}

/// Parses packed numbers. `None` for each that is not whole or not exact.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)] // checked
pub(super) fn unpack(bytes: &[u8]) -> impl Iterator<Item = Option<u64>> {
    let (numbers, rest) = bytes.as_chunks();
    let numbers = if rest.is_empty() { numbers } else { &[] };
    numbers.iter().map(|bytes| {
        let number = f64::from_le_bytes(*bytes);
        (number.fract() == 0.0 && (0.0..=(1_u64 << 53) as f64).contains(&number)).then_some(number as u64)
    })
}
