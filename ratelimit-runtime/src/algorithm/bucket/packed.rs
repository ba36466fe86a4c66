//! The level of a bucket in 16 bytes.

use std::num::NonZeroU64;

use super::level::{BucketLevel, LARGEST_PACE};

/// Bits of a pace.
const PACE_BITS: u32 = LARGEST_PACE.count_ones();
/// Bits of a deficit, and below them of the high part of a time.
const DEFICIT_BITS: u32 = 53;
const HIGH_BITS: u32 = 64 - DEFICIT_BITS;
/// Bits of a time in milliseconds.
const TIME_BITS: u32 = 32 + HIGH_BITS;

/// The deficit comes back at the pace each millisecond, and then the bucket is full. The time is that of the last
/// write. The pace is not 0.
const AT_PACE: u64 = 0;
/// A ban. The time is its end, and in place of the deficit is the time when it was made.
const BANNED: u64 = 1 << PACE_BITS;
/// Any other level. The time is when it is full, and the deficit shares its bits with the time since the last write
/// until then.
const OTHER: u64 = 2 << PACE_BITS;
/// As [`OTHER`], with [`BucketLevel::is_mixed`].
const MIXED: u64 = 3 << PACE_BITS;

/// Bits of the time from the last write until a level is full, enough for 49 days.
const SPAN_BITS: u32 = 32;

/// A level whose times are before the year 2248.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLevel {
    /// The pace, the form, and the low 32 bits of the time. Never 0, which tells the two kinds of a
    /// [`Bucket`](super::Bucket) apart.
    pace: NonZeroU64,
    /// The high bits of the time, and the deficit.
    deficit: u64,
}

impl PackedLevel {
    /// `None` if a number is too large.
    #[inline]
    pub(super) fn of(level: &BucketLevel) -> Option<Self> {
        let BucketLevel { full_at_ms, written_ms, deficit, fastest, is_mixed, is_banned } = *level;
        if is_banned {
            return Self::new(full_at_ms, written_ms, BANNED);
        }
        let at_pace = if is_mixed { None } else { Self::at_pace(written_ms, deficit, fastest) };
        if let Some(packed) = at_pace.filter(|packed| packed.full_at_ms() == full_at_ms) {
            return Some(packed);
        }
        let span_ms = full_at_ms.checked_sub(written_ms)?;
        if span_ms >> SPAN_BITS > 0 || deficit >> (DEFICIT_BITS - SPAN_BITS) > 0 || fastest > LARGEST_PACE {
            return None;
        }
        Self::new(full_at_ms, deficit << SPAN_BITS | span_ms, fastest | if is_mixed { MIXED } else { OTHER })
    }

    /// A level whose deficit comes back at a pace each millisecond until it is full: a call that writes it need not
    /// divide. `None` if a number is too large, or if the pace is 0 or stands for several.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(super) fn at_pace(written_ms: u64, deficit: u64, pace: u64) -> Option<Self> {
        if (1..LARGEST_PACE).contains(&pace) { Self::new(written_ms, deficit, AT_PACE | pace) } else { None }
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn new(time_ms: u64, deficit: u64, form_and_pace: u64) -> Option<Self> {
        if time_ms >> TIME_BITS | deficit >> DEFICIT_BITS > 0 {
            return None;
        }
        let pace = NonZeroU64::new(time_ms << 32 | form_and_pace)?;
        Some(Self { pace, deficit: deficit << HIGH_BITS | time_ms >> 32 })
    }

    /// The deficit at a time. `None` if the level is not [at this pace](PackedLevel::at_pace), or was written later.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(super) fn deficit_at_pace(&self, pace: u64, now_ms: u64) -> Option<u64> {
        let since_ms = now_ms.checked_sub(self.time())?;
        // A larger pace has the bits of a form.
        if low_bits(self.pace.get(), 32) != AT_PACE | pace || pace > LARGEST_PACE {
            return None;
        }
        Some(self.deficit().saturating_sub(since_ms.saturating_mul(pace)))
    }

    /// Writes a level that stays at its pace. `None` if a number is too large.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(super) fn write(&mut self, now_ms: u64, deficit: u64) -> Option<()> {
        *self = Self::new(now_ms, deficit, low_bits(self.pace.get(), 32))?;
        Some(())
    }

    #[inline]
    pub(super) fn full_at_ms(&self) -> u64 {
        match self.form() {
            AT_PACE => full_at(self.time(), self.deficit(), self.pace()),
            _ => self.time(), // also of a ban
        }
    }

    pub(super) fn level(&self) -> BucketLevel {
        let (time_ms, deficit, full_at_ms, fastest) = (self.time(), self.deficit(), self.full_at_ms(), self.pace());
        let level =
            BucketLevel { full_at_ms, written_ms: time_ms, deficit, fastest, is_mixed: false, is_banned: false };
        match self.form() {
            AT_PACE => level,
            BANNED => BucketLevel { written_ms: deficit, deficit: 0, is_banned: true, ..level },
            form => BucketLevel {
                written_ms: time_ms - low_bits(deficit, SPAN_BITS),
                deficit: deficit >> SPAN_BITS,
                is_mixed: form == MIXED,
                ..level
            },
        }
    }

    #[inline]
    fn form(&self) -> u64 {
        low_bits(self.pace.get(), 32) & !LARGEST_PACE
    }

    #[inline]
    fn time(&self) -> u64 {
        self.pace.get() >> 32 | low_bits(self.deficit, HIGH_BITS) << 32
    }

    #[inline]
    fn deficit(&self) -> u64 {
        self.deficit >> HIGH_BITS
    }

    #[inline]
    fn pace(&self) -> u64 {
        self.pace.get() & LARGEST_PACE
    }
}

#[inline]
fn low_bits(number: u64, bits: u32) -> u64 {
    number & ((1 << bits) - 1)
}

/// The time at which a deficit has come back at a pace, which is not 0.
fn full_at(written_ms: u64, deficit: u64, pace: u64) -> u64 {
    written_ms.saturating_add(deficit.div_ceil(pace.max(1)))
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::contract::Ban;

    prop_compose! {
        /// Numbers of all sizes, some of which are too large; levels at one pace, and bans.
        fn levels()(
            shifts in (0..64_u32, 0..64_u32, 0..64_u32, 0..64_u32), numbers in any::<(u64, u64, u64, u64)>(),
            is_mixed in any::<bool>(), kind in 0..4
        ) -> BucketLevel {
            let (written_ms, deficit) = ((numbers.1 >> shifts.0).max(1), numbers.2 >> shifts.1);
            let (fastest, until_ms) = (numbers.3 >> shifts.2, written_ms.saturating_add(numbers.0 >> shifts.3));
            match kind {
                0 => BucketLevel::of_ban(Ban { since_ms: written_ms, until_ms }),
                1 | 2 => {
                    let full_at_ms = full_at(written_ms, deficit, fastest);
                    BucketLevel { full_at_ms, written_ms, deficit, fastest, is_mixed: false, is_banned: false }
                }
                _ => BucketLevel { full_at_ms: until_ms, written_ms, deficit, fastest, is_mixed, is_banned: false },
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]

        #[test]
        fn a_level_is_the_same_when_it_is_unpacked(level in levels()) {
            let BucketLevel { full_at_ms, written_ms, deficit, fastest, is_mixed, is_banned } = level;
            let is_at_pace = !is_mixed && (1..LARGEST_PACE).contains(&fastest)
                && full_at_ms == full_at(written_ms, deficit, fastest);
            let fits = if is_banned {
                full_at_ms < 1 << 43
            } else if is_at_pace {
                written_ms < 1 << 43 && deficit < 1 << 53
            } else {
                full_at_ms < 1 << 43 && full_at_ms - written_ms < 1 << 32 && deficit < 1 << 21 && fastest < 1 << 30
            };
            let packed = PackedLevel::of(&level);
            prop_assert_eq!(packed.is_some(), fits);
            if let Some(packed) = packed {
                prop_assert_eq!(packed.level(), level);
                prop_assert_eq!(packed.full_at_ms(), full_at_ms);
            }
        }

        /// By one pace and by another one, before the last write and after it.
        #[test]
        fn the_deficit_comes_back_at_the_one_pace_of_a_level(
            level in levels(), other in 1..u64::MAX, bits in 0..64_u32, is_other in any::<bool>(),
            after_ms in 0..1_u64 << 50, part in 0..64_u32
        ) {
            let Some(mut packed) = PackedLevel::of(&level) else { return Ok(()) };
            // Its low half also as the pace of a rule.
            let paces = [other >> bits, low_bits(packed.pace.get(), 32), level.fastest];
            let pace = paces[if is_other { (bits % 2) as usize } else { 2 }].max(1);
            let is_at_pace = packed.form() == AT_PACE && pace == level.fastest;
            for now_ms in [level.written_ms + (after_ms >> part), level.full_at_ms, level.written_ms - 1] {
                let back = u128::from(now_ms.saturating_sub(level.written_ms)) * u128::from(pace);
                let left = u128::from(level.deficit).saturating_sub(back);
                let expected = (is_at_pace && now_ms >= level.written_ms).then_some(left);
                prop_assert_eq!(packed.deficit_at_pace(pace, now_ms).map(u128::from), expected);
            }
            let (now_ms, deficit) = (level.written_ms + 7, level.deficit >> part);
            if is_at_pace && packed.write(now_ms, deficit).is_some() {
                let expected = PackedLevel::at_pace(now_ms, deficit, pace).map(|level| level.level());
                prop_assert_eq!(Some(packed.level()), expected);
            }
        }

        #[test]
        fn a_level_at_its_pace_is_full_when_its_deficit_has_come_back(
            written_ms in 1_u64..1 << TIME_BITS, deficit in 0..1_u64 << DEFICIT_BITS, pace in 1..LARGEST_PACE
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
