//! The level of a bucket in 24 bytes.

use std::num::NonZeroU64;

use super::level::{BucketLevel, LARGEST_PACE};

const DEFICIT_BITS: u32 = 53;
/// Bits of a time in milliseconds.
const TIME_BITS: u32 = 43;
/// Above the bits of a time.
const BANNED: u64 = 1 << TIME_BITS;

/// Bits in the word of the time, and in that of the deficit, for the pace and [`MIXED`].
const LOW_BITS: u32 = 64 - TIME_BITS - 1;
const HIGH_BITS: u32 = 64 - DEFICIT_BITS;
/// Above the bits of a pace.
const MIXED: u64 = LARGEST_PACE + 1;
const _: () = assert!(MIXED == 1 << (LOW_BITS + HIGH_BITS - 1));

/// A level that was written before the year 2248.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLevel {
    /// 0 if it follows from the other numbers: a call that writes the level need not divide. See
    /// [`PackedLevel::full_at_ms`].
    full_at_ms: u64,
    /// The time with [`BANNED`], and the lower part of `fastest`. Never 0, which tells the two kinds of a
    /// [`Bucket`](super::Bucket) apart.
    written: NonZeroU64,
    /// The deficit, and the higher part of `fastest`, with [`MIXED`].
    deficit: u64,
}

impl PackedLevel {
    /// `None` if a number is too large.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(super) fn of(level: &BucketLevel) -> Option<Self> {
        let BucketLevel { full_at_ms, written_ms, deficit, fastest, is_mixed, is_banned } = *level;
        if written_ms >= BANNED || deficit >> DEFICIT_BITS > 0 || fastest >= MIXED {
            return None;
        }
        let time = written_ms | if is_banned { BANNED } else { 0 };
        let pace = fastest | if is_mixed { MIXED } else { 0 };
        Some(Self {
            full_at_ms,
            written: NonZeroU64::new(time << LOW_BITS | pace & ((1 << LOW_BITS) - 1))?,
            deficit: deficit << HIGH_BITS | pace >> LOW_BITS,
        })
    }

    #[inline]
    pub(super) fn level(&self) -> BucketLevel {
        BucketLevel {
            full_at_ms: self.full_at_ms(),
            written_ms: self.time() & !BANNED,
            deficit: self.deficit(),
            fastest: self.pace() & !MIXED,
            is_mixed: self.pace() & MIXED != 0,
            is_banned: self.time() & BANNED != 0,
        }
    }

    /// The level after a write by a rule of one pace, which is the only pace of the level. It is full when its
    /// deficit has come back. `None` if a number is too large, see [`PackedLevel::of`].
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(super) fn at_pace(now_ms: u64, deficit: u64, pace: u64) -> Option<Self> {
        let level = BucketLevel { full_at_ms: 0, deficit, fastest: pace, ..BucketLevel::full(now_ms) };
        Self::of(&level)
    }

    #[inline]
    pub(super) fn full_at_ms(&self) -> u64 {
        match NonZeroU64::new(self.pace()) {
            Some(pace) if self.full_at_ms == 0 => self.time() + self.deficit().div_ceil(pace.get()),
            _ => self.full_at_ms,
        }
    }

    /// The time of the last write. Of a ban, it is later than now.
    #[inline]
    pub(super) fn time(&self) -> u64 {
        self.written.get() >> LOW_BITS
    }

    #[inline]
    pub(super) fn deficit(&self) -> u64 {
        self.deficit >> HIGH_BITS
    }

    /// `fastest`, with [`MIXED`].
    fn pace(&self) -> u64 {
        self.written.get() & ((1 << LOW_BITS) - 1) | (self.deficit & ((1 << HIGH_BITS) - 1)) << LOW_BITS
    }

    /// Whether the level is not mixed, and has this pace. Only for one that can be stored.
    #[inline]
    pub(super) fn has_pace(&self, pace: u64) -> bool {
        let low = (self.written.get() ^ pace) << (64 - LOW_BITS);
        let high = (self.deficit ^ pace >> LOW_BITS) << (64 - HIGH_BITS);
        low | high == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        /// Numbers of all sizes, some of which are too large.
        fn levels()(
            shifts in (0..64_u32, 0..64_u32, 0..64_u32), numbers in any::<(u64, u64, u64, u64)>(), flags in any::<(bool, bool)>()
        ) -> BucketLevel {
            BucketLevel {
                full_at_ms: numbers.0.max(1),
                written_ms: (numbers.1 >> shifts.0).max(1),
                deficit: numbers.2 >> shifts.1,
                fastest: numbers.3 >> shifts.2,
                is_mixed: flags.0,
                is_banned: flags.1,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn a_level_is_the_same_when_it_is_unpacked(level in levels(), other in 0..=LARGEST_PACE) {
            let fits = level.written_ms < 1 << 43 && level.deficit < 1 << 53 && level.fastest < 1 << 30;
            let packed = PackedLevel::of(&level);
            prop_assert_eq!(packed.is_some(), fits);
            if let Some(packed) = packed {
                prop_assert_eq!((packed.level(), packed.deficit()), (level, level.deficit));
                prop_assert_eq!(packed.time() > u64::from(u32::MAX) << 11, level.is_banned);
                prop_assert_eq!(packed.has_pace(level.fastest), !level.is_mixed);
                prop_assert_eq!(packed.has_pace(other), !level.is_mixed && other == level.fastest);
                for bit in 0..30 {
                    prop_assert!(!packed.has_pace(level.fastest ^ 1 << bit));
                    // Differs by the same bits in both words.
                    prop_assert!(!packed.has_pace(level.fastest ^ (1 << 9 | 1 << 20)));
                }
            }
        }

        #[test]
        fn a_level_at_its_pace_is_full_when_its_deficit_has_come_back(
            written_ms in 1..1_u64 << 43, deficit in 0..1_u64 << 53, pace in 1..LARGEST_PACE
        ) {
            let full_at_ms = PackedLevel::at_pace(written_ms, deficit, pace).unwrap().full_at_ms();
            let refilled = |at_ms: u64| u128::from(at_ms - written_ms) * u128::from(pace);
            prop_assert!(refilled(full_at_ms) >= deficit.into());
            prop_assert!(full_at_ms == written_ms || refilled(full_at_ms - 1) < deficit.into());
        }
    }
}
