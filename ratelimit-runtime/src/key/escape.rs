//! Percent-escapes for the parts of keys and counter names.

use smallvec::{Array, SmallVec};

/// Tells for each byte whether it is escaped.
pub(crate) type Reserved = [bool; 256];

/// A table of these bytes and of the control characters.
pub(crate) const fn reserved(bytes: &[u8]) -> Reserved {
    let mut table = [false; 256];
    let mut byte: u8 = 0;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_control();
        byte += 1;
    }
    let mut at = 0;
    while at < bytes.len() {
        table[bytes[at] as usize] = true;
        at += 1;
    }
    table
}

/// Appends `text` with `%XX` in place of each reserved byte.
pub(crate) fn escape<A: Array<Item = u8>>(text: &str, reserved: &Reserved, out: &mut SmallVec<A>) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| reserved[usize::from(*byte)]) {
        out.extend_from_slice(&rest[..at]);
        escape_byte(rest[at], out);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Appends `%XX`.
pub(crate) fn escape_byte<A: Array<Item = u8>>(byte: u8, out: &mut SmallVec<A>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}
