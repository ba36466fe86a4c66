//! The level of a bucket, and its arithmetic.

use crate::{
    Algorithm, Refill, Rule,
    algorithm::contract::{Ban, Evaluation},
};

/// The largest pace that is stored. It stands for all above.
pub(super) const LARGEST_PACE: u64 = (1 << 30) - 1;

/// The level of a bucket, as of the last write.
///
/// A ban is a bucket that is full at its end, and was written when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketLevel {
    pub(super) full_at_ms: u64,
    pub(super) written_ms: u64,
    /// In units.
    pub(super) deficit: u64,
    /// The highest [`BucketParams::pace`] of the rules that have written the bucket since it was full, or of a queue,
    /// that of the last one. It may be 0 in a full bucket, and is 0 for a queue on Redis.
    pub(super) fastest: u64,
    /// Whether the paces of these rules differ. Then `full_at_ms` is not before each charge has come back by its
    /// own rule: otherwise a charge by a slow rule could be refunded after a fast one has refilled it.
    pub(super) is_mixed: bool,
    pub(super) is_banned: bool,
}

/// Parameters that a rule gives a bucket.
pub(super) struct BucketParams {
    /// Units of a token.
    pub(super) unit: u64,
    /// Milliseconds between two refills.
    pub(super) interval_ms: u64,
    /// Units of a refill.
    pub(super) refill: u64,
    /// In units.
    pub(super) capacity: u64,
    /// Callers wait for slots.
    pub(super) is_queue: bool,
}

impl BucketParams {
    #[inline]
    pub(super) fn of(rule: &Rule) -> Self {
        let (unit, interval_ms) = match rule.algorithm() {
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => (1, rule.period_ms()),
            _ => (rule.period_ms(), 1),
        };
        let is_queue = matches!(rule.algorithm(), Algorithm::LeakyBucket { .. });
        Self { unit, interval_ms, refill: rule.count(), capacity: rule.limit() * unit, is_queue }
    }

    /// The units of a refill, as far as a bucket stores them.
    pub(super) fn pace(&self) -> u64 {
        self.refill.min(LARGEST_PACE)
    }

    /// Number of refills until `units` are back; `u64::MAX` if the count is 0.
    #[allow(clippy::cast_possible_truncation)] // the deficit of a queue comes back before its end
    pub(super) fn refills(&self, units: u128) -> u64 {
        match (u64::try_from(units), self.refill) {
            (Ok(0), _) => 0,
            (_, 0) => u64::MAX,
            (Ok(units), refill) => units.div_ceil(refill),
            (Err(_), refill) => units.div_ceil(refill.into()) as u64,
        }
    }
}

impl BucketLevel {
    pub(super) fn full(now_ms: u64) -> Self {
        Self { full_at_ms: now_ms, written_ms: now_ms, deficit: 0, fastest: 0, is_mixed: false, is_banned: false }
    }

    pub(super) fn of_ban(ban: Ban) -> Self {
        Self { full_at_ms: ban.until_ms, is_banned: true, ..Self::full(ban.since_ms) }
    }

    /// Whether the paces differ if a rule writes the bucket.
    pub(super) fn mixes(&self, params: &BucketParams) -> bool {
        !params.is_queue && self.fastest > 0 && (self.is_mixed || self.fastest != params.pace())
    }

    /// Whether all rules that have written the bucket since it was full certainly have the count of this one, or it is
    /// a queue.
    pub(super) fn has_one_count(&self, params: &BucketParams) -> bool {
        !self.mixes(params) && params.pace() < LARGEST_PACE
    }

    /// Number of refills between a time and when the bucket is full.
    pub(super) fn refills_to_come(&self, params: &BucketParams, from_ms: u64) -> u64 {
        self.full_at_ms.saturating_sub(from_ms).div_ceil(params.interval_ms)
    }

    /// The deficit at a time. For a queue whose count was raised it may exceed the capacity, and
    /// the largest number that can be stored.
    pub(super) fn deficit_at(&self, params: &BucketParams, now_ms: u64) -> u128 {
        if now_ms >= self.full_at_ms {
            return 0;
        }
        let refills = self.refills_to_come(params, self.written_ms) - self.refills_to_come(params, now_ms);
        let deficit = self.deficit.saturating_sub(refills.saturating_mul(params.refill));
        if params.is_queue {
            // Slots that have been given stay, even if the count was raised since.
            u128::from(deficit).max(u128::from(self.full_at_ms - now_ms - 1) * u128::from(params.refill) + 1)
        } else {
            deficit.into()
        }
    }

    pub(super) fn evaluate_ms(&self, rule: &Rule, cost: u64, now_ms: u64, longest_wait_ms: u64) -> Evaluation {
        let params = BucketParams::of(rule);
        let deficit = self.deficit_at(&params, now_ms);
        let to_come = self.refills_to_come(&params, now_ms);
        let left_ms = self.full_at_ms - now_ms.min(self.full_at_ms);
        // Time until a number of refills have come, at most until the bucket is full: any count
        // fits then.
        let until = |refills: u64| {
            let later = refills.saturating_sub(to_come).saturating_mul(params.interval_ms);
            let sooner = to_come.saturating_sub(refills).saturating_mul(params.interval_ms);
            left_ms.saturating_add(later).saturating_sub(sooner).min(left_ms)
        };
        let remaining = params.capacity.saturating_sub(storable(deficit)) / params.unit;
        let reset_after_ms = if deficit == 0 { 0 } else { until(params.refills(deficit)) };
        let wait_ms = if params.is_queue && cost > 0 { params.refills(deficit) } else { 0 };
        let too_much = (deficit + u128::from(cost) * u128::from(params.unit)).saturating_sub(params.capacity.into());
        let too_late = wait_ms.saturating_sub(longest_wait_ms);
        let retry_after_ms =
            (cost > 0 && (too_much > 0 || too_late > 0)).then(|| until(params.refills(too_much).max(too_late)));
        Evaluation { wait_ms, ..Evaluation::new(rule, remaining, reset_after_ms, retry_after_ms) }
    }

    /// Receipt of the last charge: its time, or for a queue, where its end was then.
    pub(super) fn receipt(&self, params: &BucketParams) -> [u64; 2] {
        if params.is_queue { self.queue_end(params) } else { [self.written_ms, 0] }
    }

    /// End of the last slot: a millisecond, and the units before it.
    pub(super) fn queue_end(&self, params: &BucketParams) -> [u64; 2] {
        let ceiling = (self.full_at_ms - self.written_ms).wrapping_mul(params.refill);
        // Wraps only if the count was lowered since the last charge. No receipt has that value.
        [self.full_at_ms, ceiling.wrapping_sub(self.deficit)]
    }

    pub(super) fn write(&mut self, params: &BucketParams, now_ms: u64, deficit: u64) {
        let to_come = self.refills_to_come(params, now_ms);
        let refills = params.refills(deficit.into());
        let later = self.full_at_ms.saturating_add(refills.saturating_mul(params.interval_ms));
        let full_at_ms = later.saturating_sub(to_come * params.interval_ms);
        self.is_mixed = self.mixes(params);
        self.full_at_ms = if self.is_mixed { full_at_ms.max(self.full_at_ms) } else { full_at_ms };
        self.fastest = if params.is_queue { params.pace() } else { self.fastest.max(params.pace()) };
        self.written_ms = now_ms;
        self.deficit = deficit;
    }
}

/// Limits a deficit to numbers that can be stored. Larger ones are only compared.
pub(super) fn storable(deficit: u128) -> u64 {
    u64::try_from(deficit).unwrap_or(u64::MAX)
}
