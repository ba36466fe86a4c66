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

/// Above the bits of a time, in the place of the time at which a level [at one pace](PackedLevel::at_pace) is full.
const AT_PACE: u64 = 1 << 63;

/// A level that was written before the year 2248.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLevel {
    /// The time at which it is full, or [`AT_PACE`] and the pace: a call that writes it need not divide.
    full_at: u64,
    /// The time with [`BANNED`], and the lower part of `fastest`, unless the level is at one pace. Never 0, which
    /// tells the two kinds of a [`Bucket`](super::Bucket) apart.
    written: NonZeroU64,
    /// The deficit, and the higher part of `fastest`, with [`MIXED`], unless the level is at one pace.
    deficit: u64,
}

impl PackedLevel {
    /// `None` if a number is too large.
    #[inline]
    pub(super) fn of(level: &BucketLevel) -> Option<Self> {
        let BucketLevel { full_at_ms, written_ms, deficit, fastest, is_mixed, is_banned } = *level;
        if full_at_ms >= AT_PACE || written_ms >= BANNED || deficit >> DEFICIT_BITS > 0 || fastest >= MIXED {
            return None;
        }
        if let Some(pace) = NonZeroU64::new(fastest)
            && !is_mixed
            && !is_banned
            && full_at_ms == full_at(written_ms, deficit, pace)
        {
            return Self::at_pace(written_ms, deficit, fastest);
        }
        let time = written_ms | if is_banned { BANNED } else { 0 };
        let pace = fastest | if is_mixed { MIXED } else { 0 };
        Some(Self {
            full_at: full_at_ms,
            written: NonZeroU64::new(time << LOW_BITS | pace & ((1 << LOW_BITS) - 1))?,
            deficit: deficit << HIGH_BITS | pace >> LOW_BITS,
        })
    }

    /// A level that was written at one pace since it was full, and comes back at that pace each millisecond. `None`
    /// if a number is too large.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(super) fn at_pace(written_ms: u64, deficit: u64, pace: u64) -> Option<Self> {
        if written_ms >= BANNED || deficit >> DEFICIT_BITS > 0 {
            return None;
        }
        let written = NonZeroU64::new(written_ms << LOW_BITS)?;
        Some(Self { full_at: AT_PACE | pace, written, deficit: deficit << HIGH_BITS })
    }

    /// Whether it is [at this one pace](PackedLevel::at_pace).
    #[inline]
    pub(super) fn is_at_pace(&self, pace: u64) -> bool {
        self.full_at == AT_PACE | pace
    }

    #[inline]
    pub(super) fn full_at_ms(&self) -> u64 {
        match NonZeroU64::new(self.full_at & !AT_PACE) {
            Some(pace) if self.full_at & AT_PACE != 0 => full_at(self.time(), self.deficit(), pace),
            _ => self.full_at,
        }
    }

    pub(super) fn level(&self) -> BucketLevel {
        let low = self.written.get() & ((1 << LOW_BITS) - 1) | (self.deficit & ((1 << HIGH_BITS) - 1)) << LOW_BITS;
        let pace = if self.full_at & AT_PACE == 0 { low } else { self.full_at & !AT_PACE };
        BucketLevel {
            full_at_ms: self.full_at_ms(),
            written_ms: self.time() & !BANNED,
            deficit: self.deficit(),
            fastest: pace & !MIXED,
            is_mixed: pace & MIXED != 0,
            is_banned: self.time() & BANNED != 0,
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
}

/// The time at which a deficit has come back at a pace.
fn full_at(written_ms: u64, deficit: u64, pace: NonZeroU64) -> u64 {
    written_ms + deficit.div_ceil(pace.get())
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        /// Numbers of all sizes, some of which are too large, and some levels at one pace.
        fn levels()(
            shifts in (0..64_u32, 0..64_u32, 0..64_u32, 0..64_u32), numbers in any::<(u64, u64, u64, u64)>(),
            flags in any::<(bool, bool, bool)>()
        ) -> BucketLevel {
            let level = BucketLevel {
                full_at_ms: numbers.0 >> shifts.3,
                written_ms: (numbers.1 >> shifts.0).max(1),
                deficit: numbers.2 >> shifts.1,
                fastest: numbers.3 >> shifts.2,
                is_mixed: flags.0,
                is_banned: flags.1,
            };
            match NonZeroU64::new(level.fastest) {
                Some(pace) if flags.2 && level.written_ms < BANNED => {
                    BucketLevel { full_at_ms: full_at(level.written_ms, level.deficit, pace), ..level }
                }
                _ => level,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn a_level_is_the_same_when_it_is_unpacked(level in levels(), other in 0..=LARGEST_PACE) {
            let BucketLevel { full_at_ms, written_ms, deficit, fastest, is_mixed, is_banned } = level;
            let fits = full_at_ms < 1 << 63 && written_ms < 1 << 43 && deficit < 1 << 53 && fastest < 1 << 30;
            let packed = PackedLevel::of(&level);
            prop_assert_eq!(packed.is_some(), fits);
            if let Some(packed) = packed {
                prop_assert_eq!((packed.level(), packed.deficit()), (level, deficit));
                prop_assert_eq!(packed.full_at_ms(), full_at_ms);
                prop_assert_eq!(packed.time() > u64::from(u32::MAX) << 11, is_banned);
                let is_one_pace = fastest > 0 && !is_mixed && !is_banned;
                let is_at_pace = is_one_pace && full_at_ms == written_ms + deficit.div_ceil(fastest);
                prop_assert_eq!(packed.is_at_pace(fastest), is_at_pace);
                prop_assert_eq!(packed.is_at_pace(other), is_at_pace && other == fastest);
            }
        }

        #[test]
        fn a_level_at_its_pace_is_full_when_its_deficit_has_come_back(
            written_ms in 1..BANNED, deficit in 0..1_u64 << DEFICIT_BITS, pace in 1..=LARGEST_PACE
        ) {
            let packed = PackedLevel::at_pace(written_ms, deficit, pace).unwrap();
            let full_at_ms = packed.full_at_ms();
            prop_assert_eq!(packed.level().fastest, pace);
            let refilled = |at_ms: u64| u128::from(at_ms - written_ms) * u128::from(pace);
            prop_assert!(refilled(full_at_ms) >= deficit.into());
            prop_assert!(full_at_ms == written_ms || refilled(full_at_ms - 1) < deficit.into());
        }
    }
}
