//! Sliding window: sub-windows, the oldest of which is weighted by its overlap with the last
//! period, or all of which are simply added up.
//!
//! The *sliding window counter* of the textbooks, with one sub-window or with several.

use std::{collections::VecDeque, num::NonZeroU64};

#[cfg(feature = "redis")]
use redis::Value;

use super::contract::{Ban, Evaluation, HalfLine, MemoryState, Recovery};
#[cfg(feature = "redis")]
use super::{
    contract::{LuaScript, RedisScript, UNBAN},
    wire::{PackedNumbers, pack, unpack},
};
#[cfg(feature = "redis")]
use crate::store::Charge;
use crate::{Algorithm, Rule, clock::DecisionTime, decision::Outcome, store::ChargeQuery};

/// The sub-windows of one counter, up to the one of the last charge. In 16 bytes, so that a slot of the table is half
/// of a cache line.
#[derive(Debug)]
pub(crate) enum SlidingWindow {
    /// One weighted bucket, with numbers of 32 bits.
    Two {
        /// One more than the time when none of the charges counts any more, which also tells the last sub-window.
        /// Never 0, which tells the two variants apart.
        ends: NonZeroU64,
        last: u32,
        previous: u32,
    },
    Apart(Box<StoredApart>),
}

/// Everything that is rare or has no bound.
#[derive(Debug)]
pub(crate) enum StoredApart {
    SubWindows {
        /// See [`SlidingWindow::Two`].
        expires_at_ms: u64,
        /// Charges of each sub-window that counts, the last one first.
        charges: VecDeque<u64>,
    },
    Ban(Ban),
}

/// The sub-windows that count.
#[derive(Clone, Copy)]
struct WindowLayout {
    /// The number of sub-windows before the current one.
    earlier: u64,
    size_ms: u64,
    /// The oldest one counts by its overlap with the last period, and not in full.
    is_weighted: bool,
}

impl WindowLayout {
    #[inline]
    fn of(rule: &Rule) -> Self {
        match rule.algorithm() {
            Algorithm::SlidingWindow { buckets, weighted: true } if buckets > 1 => {
                Self { earlier: buckets, size_ms: rule.period_ms() / buckets, is_weighted: true }
            }
            Algorithm::SlidingWindow { buckets, weighted: false } if buckets > 0 => {
                Self { earlier: buckets - 1, size_ms: rule.period_ms() / buckets, is_weighted: false }
            }
            _ => Self { earlier: 1, size_ms: rule.period_ms(), is_weighted: true },
        }
    }

    /// Time from the start of a sub-window until its charges no longer count.
    #[inline]
    fn counts_ms(self) -> u64 {
        (1 + self.earlier) * self.size_ms
    }

    /// Start of the last sub-window with a charge, after which all charges expire at this time.
    #[inline]
    fn start_ms(self, expires_at_ms: u64) -> u64 {
        expires_at_ms.saturating_sub(self.counts_ms())
    }

    #[inline]
    fn current(self, expires_at_ms: u64, now_ms: u64) -> CurrentWindow {
        let start_ms = self.start_ms(expires_at_ms);
        let since_ms = now_ms.saturating_sub(start_ms);
        if since_ms < self.size_ms {
            return CurrentWindow { start_ms, ahead: 0, passed_ms: since_ms };
        }
        let (ahead, passed_ms) = (since_ms / self.size_ms, since_ms % self.size_ms);
        CurrentWindow { start_ms: now_ms - passed_ms, ahead, passed_ms }
    }

    /// Charges of the oldest sub-window by their weight, when a part of the current one has passed.
    #[inline]
    fn weighted(self, charges: u64, passed_ms: u64) -> u64 {
        match charges {
            0 => 0,
            _ if !self.is_weighted => charges,
            _ => (charges * (self.size_ms - passed_ms)).div_ceil(self.size_ms),
        }
    }

    /// `charged`: charges of the sub-window that is so many places before the current one.
    fn evaluate(self, rule: &Rule, cost: u64, passed_ms: u64, charged: impl Fn(u64) -> u64) -> Evaluation {
        let used = (0..self.earlier).map(&charged).sum::<u64>() + self.weighted(charged(self.earlier), passed_ms);
        let remaining = rule.count().saturating_sub(used);
        let retry_after_ms = (cost > remaining).then(|| self.retry_after_ms(rule.count(), cost, passed_ms, &charged));
        Evaluation::new(rule, remaining, self.reset_after_ms(passed_ms, &charged), retry_after_ms)
    }

    /// Time until no charge counts.
    #[inline(always)]
    #[allow(clippy::inline_always)] // see `retry_after_ms`
    fn reset_after_ms(self, passed_ms: u64, charged: impl Fn(u64) -> u64) -> u64 {
        let windows = 1 + self.earlier; // a loop over `0..=earlier` is not unrolled
        let newest = (0..windows).find(|&back| charged(back) > 0);
        newest.map_or(0, |back| (1 + self.earlier - back) * self.size_ms - passed_ms)
    }

    /// Time until the first sub-window in which the oldest one fades enough for the cost, or leaves enough room; or
    /// until no charge counts.
    #[inline(always)]
    #[allow(clippy::inline_always)] // one bucket has no loop
    fn retry_after_ms(self, count: u64, cost: u64, passed_ms: u64, charged: impl Fn(u64) -> u64) -> u64 {
        let Self { earlier, size_ms, is_weighted } = self;
        let windows = 1 + earlier; // see `reset_after_ms`
        let mut whole: u64 = (0..earlier).map(&charged).sum();
        for ahead in 0..windows {
            let oldest = charged(earlier - ahead);
            if let Some(room) = count.checked_sub(whole.saturating_add(cost)) {
                let faded = match (oldest, room) {
                    (0, _) => 0,
                    (_, 0) => size_ms, // most refusals: a division takes long
                    _ => size_ms - (room * size_ms / oldest).min(size_ms),
                };
                if faded == 0 || is_weighted && faded < size_ms {
                    return ahead * size_ms + faded - passed_ms;
                }
            }
            whole -= if ahead < earlier { charged(earlier - ahead - 1) } else { 0 };
        }
        self.reset_after_ms(passed_ms, charged)
    }
}

/// The current sub-window, seen from the last one with a charge.
struct CurrentWindow {
    start_ms: u64,
    /// Number of sub-windows since the last one with a charge.
    ahead: u64,
    passed_ms: u64,
}

impl Default for SlidingWindow {
    fn default() -> Self {
        Self::two(0, [0; 2])
    }
}

impl SlidingWindow {
    #[inline]
    fn two(expires_at_ms: u64, [last, previous]: [u32; 2]) -> Self {
        Self::Two { ends: NonZeroU64::MIN.saturating_add(expires_at_ms), last, previous }
    }

    fn apart(expires_at_ms: u64, charges: VecDeque<u64>) -> Self {
        Self::Apart(Box::new(StoredApart::SubWindows { expires_at_ms, charges }))
    }

    /// From the charges of each sub-window, the last one first.
    fn new(layout: WindowLayout, expires_at_ms: u64, charges: VecDeque<u64>) -> Self {
        let numbers = [0, 1].map(|back| charges.get(back).map_or(Ok(0), |charged| u32::try_from(*charged)));
        match (layout, numbers) {
            (WindowLayout { earlier: 1, is_weighted: true, .. }, [Ok(last), Ok(previous)]) => {
                Self::two(expires_at_ms, [last, previous])
            }
            _ => Self::apart(expires_at_ms, charges),
        }
    }

    fn of_ban(ban: Ban) -> Self {
        Self::Apart(Box::new(StoredApart::Ban(ban)))
    }

    fn banned(&self) -> Option<Ban> {
        match self {
            Self::Apart(apart) => match &**apart {
                StoredApart::Ban(ban) => Some(*ban),
                StoredApart::SubWindows { .. } => None,
            },
            Self::Two { .. } => None,
        }
    }

    /// Charges of the sub-window that is `back` places before the last one.
    fn get(&self, back: u64) -> u64 {
        match (self, back) {
            (Self::Two { last, .. }, 0) => (*last).into(),
            (Self::Two { previous, .. }, 1) => (*previous).into(),
            (Self::Two { .. }, _) => 0,
            (Self::Apart(apart), _) => match (&**apart, usize::try_from(back)) {
                (StoredApart::SubWindows { charges, .. }, Ok(back)) => charges.get(back).copied().unwrap_or(0),
                _ => 0,
            },
        }
    }

    fn set(&mut self, back: u64, amount: u64) {
        match (&mut *self, u32::try_from(amount)) {
            (Self::Two { last, .. }, Ok(amount)) if back == 0 => *last = amount,
            (Self::Two { previous, .. }, Ok(amount)) => *previous = amount,
            (Self::Two { last, previous, .. }, Err(_)) => {
                let charges = VecDeque::from([(*last).into(), (*previous).into()]);
                *self = Self::apart(self.expires_at_ms(), charges);
                self.set(back, amount);
            }
            (Self::Apart(apart), _) => {
                if let StoredApart::SubWindows { charges, .. } = &mut **apart {
                    let back = usize::try_from(back).unwrap_or(usize::MAX);
                    if charges.len() <= back {
                        charges.resize(back + 1, 0);
                    }
                    charges[back] = amount;
                }
            }
        }
    }

    fn expire_at(&mut self, time_ms: u64) {
        match self {
            Self::Two { ends, .. } => *ends = NonZeroU64::MIN.saturating_add(time_ms),
            Self::Apart(apart) => {
                if let StoredApart::SubWindows { expires_at_ms, .. } = &mut **apart {
                    *expires_at_ms = time_ms;
                }
            }
        }
    }

    /// Moves on by some sub-windows.
    fn slide(&mut self, ahead: u64, layout: WindowLayout) {
        match self {
            _ if ahead == 0 => {}
            Self::Two { last, previous, .. } => (*last, *previous) = (0, if ahead == 1 { *last } else { 0 }),
            Self::Apart(apart) => {
                let StoredApart::SubWindows { charges, .. } = &mut **apart else { return };
                let (all, new) = (layout.earlier + 1, ahead.min(layout.earlier + 1));
                charges.truncate(usize::try_from(all - new).unwrap_or(usize::MAX));
                let new = usize::try_from(new).unwrap_or(usize::MAX);
                charges.reserve_exact(new);
                (0..new).for_each(|_| charges.push_front(0));
            }
        }
    }

    fn sum(&self) -> u64 {
        match self {
            Self::Two { last, previous, .. } => u64::from(*last) + u64::from(*previous),
            Self::Apart(apart) => match &**apart {
                StoredApart::SubWindows { charges, .. } => charges.iter().sum(),
                StoredApart::Ban(_) => 0,
            },
        }
    }

    fn evaluate_ms(&self, rule: &Rule, cost: u64, now_ms: u64) -> Evaluation {
        let layout = WindowLayout::of(rule);
        let CurrentWindow { ahead, passed_ms, .. } = layout.current(self.expires_at_ms(), now_ms);
        let charged = |back: u64| back.checked_sub(ahead).map_or(0, |back| self.get(back));
        layout.evaluate(rule, cost, passed_ms, charged)
    }
}

impl MemoryState for SlidingWindow {
    type Align = HalfLine;

    fn restart(&mut self, rule: &Rule, now_us: u64) {
        let (layout, millis) = (WindowLayout::of(rule), now_us / 1000);
        let start_ms = millis - millis % layout.size_ms;
        *self = Self::new(layout, start_ms + layout.counts_ms(), VecDeque::new());
    }

    /// Nearly twice the count may fit where two windows meet.
    fn recovery(_rule: &Rule) -> Recovery {
        Recovery::Lumps
    }

    #[inline]
    fn expires_at_ms(&self) -> u64 {
        match self {
            Self::Two { ends, .. } => ends.get() - 1,
            Self::Apart(apart) => match &**apart {
                StoredApart::SubWindows { expires_at_ms, .. } => *expires_at_ms,
                StoredApart::Ban(ban) => ban.until_ms,
            },
        }
    }

    /// The age of charges is unknown after the clock was set back: all of them count as made now.
    fn correct_clock(&mut self, rule: &Rule, now_us: u64) {
        let layout = WindowLayout::of(rule);
        if let Some(ban) = self.banned() {
            *self = Self::of_ban(ban.corrected(now_us / 1000));
        } else if now_us / 1000 < layout.start_ms(self.expires_at_ms()) {
            let sum = self.sum();
            self.restart(rule, now_us);
            self.set(0, sum);
        }
    }

    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation {
        if let Some(ban) = self.banned() {
            let left_ms = ban.until_ms - now_us / 1000;
            return Evaluation::banned(query.rule, left_ms, left_ms);
        }
        self.evaluate_ms(query.rule, cost, now_us / 1000)
    }

    fn ban(&mut self, rule: &Rule, ban: Ban) {
        let layout = WindowLayout::of(rule);
        // A charge that was refunded may have left empty sub-windows in front.
        let back =
            if self.banned().is_some() { Some(0) } else { (0..=layout.earlier).find(|back| self.get(*back) > 0) };
        let counts_until_ms = back.map_or(0, |back| self.expires_at_ms().saturating_sub(back * layout.size_ms));
        *self = Self::of_ban(ban.lasting_until(counts_until_ms));
    }

    fn unban(&mut self, _now_us: u64) {
        if self.banned().is_some() {
            *self = Self::default();
        }
    }

    /// The receipt is the start of the sub-window.
    fn commit(&mut self, query: &ChargeQuery<'_>, amount: u64, now_us: u64) -> [u64; 2] {
        let layout = WindowLayout::of(query.rule);
        let CurrentWindow { start_ms, ahead, .. } = layout.current(self.expires_at_ms(), now_us / 1000);
        self.slide(ahead, layout);
        self.set(0, self.get(0) + amount);
        self.expire_at(start_ms + layout.counts_ms());
        [start_ms, 0]
    }

    /// For one weighted bucket, if the clock was not set back, and all numbers stay below 2^32.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn charge_at_once(&mut self, rule: &Rule, cost: u64, now: DecisionTime) -> Option<Outcome> {
        // `restart` gives only one weighted bucket two of them, and what was not restarted has expired.
        let Self::Two { ends, last: its_last, previous: its_previous } = self else { return None };
        let (layout, now_ms) = (WindowLayout { earlier: 1, size_ms: rule.period_ms(), is_weighted: true }, now.ms);
        let expires_at_ms = ends.get() - 1;
        if expires_at_ms <= now_ms || now_ms < layout.start_ms(expires_at_ms) {
            return None;
        }
        let CurrentWindow { start_ms, ahead, passed_ms } = layout.current(expires_at_ms, now_ms);
        let (last, previous) = if ahead == 0 { (*its_last, *its_previous) } else { (0, *its_last) };
        let used = u64::from(last) + layout.weighted(previous.into(), passed_ms);
        let remaining = rule.count().saturating_sub(used);
        if cost > remaining {
            let charged = |back| if back == 0 { last } else { previous }.into();
            return Some(Outcome::denied(remaining, layout.retry_after_ms(rule.count(), cost, passed_ms, charged)));
        }
        let last = last.checked_add(u32::try_from(cost).ok()?)?;
        let expires_at_ms = start_ms + layout.counts_ms();
        if ahead > 0 {
            (*ends, *its_previous) = (NonZeroU64::MIN.saturating_add(expires_at_ms), previous);
        }
        *its_last = last;
        Some(Outcome::admitted(remaining - cost, expires_at_ms - now_ms, [start_ms, 0]))
    }

    /// Returns the weight that the charge still had.
    fn refund(&mut self, rule: &Rule, cost: u64, [charged_at_ms, _]: [u64; 2], now_us: u64) -> u64 {
        if self.banned().is_some() {
            return 0;
        }
        let layout = WindowLayout::of(rule);
        let CurrentWindow { start_ms, ahead, passed_ms } = layout.current(self.expires_at_ms(), now_us / 1000);
        let Some(since_ms) = start_ms.checked_sub(charged_at_ms) else { return 0 };
        // Places before the current sub-window, and before the last one with a charge.
        let place = since_ms / layout.size_ms;
        let (Some(back), true) = (place.checked_sub(ahead), place <= layout.earlier) else { return 0 };
        let weight = |charged| if place < layout.earlier { charged } else { layout.weighted(charged, passed_ms) };
        let charged = self.get(back);
        let left = charged - cost.min(charged);
        self.set(back, left);
        if self.sum() == 0 {
            self.expire_at(0);
        }
        weight(charged) - weight(left)
    }
}

#[cfg(feature = "redis")]
impl RedisScript for SlidingWindow {
    const SCRIPTS: &'static [LuaScript] = &[LuaScript {
        decide: include_str!("decide.lua"),
        args: "cost, count, size, earlier, weighted",
        first_of_many: "cost * n",
        place: "granted + n - 1",
        stored: "value",
        fitting: "local fitting = (its_count - select(2, struct.unpack('<dd', reply, 2))) / its_cost",
        has_value: true,
        ban: include_str!("ban.lua"),
        unban: UNBAN,
        refund: include_str!("refund.lua"),
        refund_args: "cost, size, earlier, weighted, charged",
    }];

    fn args(charge: &Charge) -> PackedNumbers {
        let WindowLayout { earlier, size_ms, is_weighted } = WindowLayout::of(&charge.rule);
        pack([charge.cost, charge.rule.count(), size_ms, earlier, is_weighted.into()])
    }

    fn refund_args(charge: &Charge) -> PackedNumbers {
        let WindowLayout { earlier, size_ms, is_weighted } = WindowLayout::of(&charge.rule);
        let [charged, _] = charge.receipt;
        pack([charge.cost, size_ms, earlier, is_weighted.into(), charged])
    }

    fn steps(rule: &Rule) -> u64 {
        80 + 2 * WindowLayout::of(rule).earlier
    }

    fn parse_reply(charge: &Charge, charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])> {
        let (rule, cost) = (&charge.rule, charge.cost);
        let bytes = match reply {
            Value::Nil => return Some((Evaluation::fresh(rule, cost), [0; 2])),
            Value::BulkString(bytes) => bytes,
            _ => return None,
        };
        if let Some([left_ms, current, used]) = parse_charged(bytes) {
            return Some((Evaluation::new(rule, rule.count().saturating_sub(used), left_ms, None), [current, 0]));
        }
        let (sign, numbers) = bytes.split_first()?;
        let mut numbers = unpack(numbers);
        let [left_ms, _used, current, _sum] = [numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??];
        let counts = numbers.collect::<Option<VecDeque<_>>>()?;
        let layout @ WindowLayout { earlier, size_ms, .. } = WindowLayout::of(rule);
        let expires_at_ms = current.checked_add(1 + earlier)?.checked_mul(size_ms)?;
        let now_ms = expires_at_ms.checked_sub(left_ms)?;
        counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?.checked_mul(size_ms)?;
        let sub_windows = Self::new(layout, expires_at_ms, counts);
        let cost = if charged && *sign == b'+' { 0 } else { cost };
        Some((sub_windows.evaluate_ms(rule, cost, now_ms), [current, 0]))
    }

    fn shift_reply(_rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
        let Value::BulkString(bytes) = reply else { return None };
        let [left_ms, current, used] = parse_charged(bytes)?;
        Some(Value::BulkString(pack([left_ms, current, used.checked_add_signed(more)?]).to_vec()))
    }
}

/// Parses the reply to a charge: ms until it no longer counts, its sub-window, and the use.
#[cfg(feature = "redis")]
fn parse_charged(reply: &[u8]) -> Option<[u64; 3]> {
    let mut numbers = unpack(reply);
    let three = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(three)
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::time::Duration;

    use super::{
        super::contract::{ban, charge},
        *,
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// Calls at each third sub-window push and drop most of them.
    #[test]
    fn the_sub_windows_take_no_more_numbers_than_count() {
        for (buckets, weighted) in [(4, true), (4, false), (100, true), (1_000, false)] {
            let rule = Rule::new("item", 10, SECOND).with_algorithm(Algorithm::SlidingWindow { buckets, weighted });
            let layout = WindowLayout::of(&rule);
            let mut window = SlidingWindow::default();
            for step in (0..5_000).step_by(3) {
                charge(&mut window, &ChargeQuery::of(&rule, 1), step * layout.size_ms * 1000);
                let SlidingWindow::Apart(apart) = &window else { panic!("it has several buckets") };
                let StoredApart::SubWindows { charges, .. } = &**apart else { panic!("it is not banned") };
                assert!(charges.capacity() as u64 <= (layout.earlier + 1).max(4), "{} {rule:?}", charges.capacity());
            }
        }
    }

    #[test]
    fn a_refunded_charge_makes_no_ban_longer() {
        for (buckets, weighted) in [(1, true), (4, true), (4, false)] {
            let rule = Rule::new("item", 10, SECOND).with_algorithm(Algorithm::SlidingWindow { buckets, weighted });
            let ends_at = |refunds: bool| {
                let mut window = SlidingWindow::default();
                charge(&mut window, &ChargeQuery::of(&rule, 1), 60_000_000);
                if refunds {
                    let receipt = charge(&mut window, &ChargeQuery::of(&rule, 1), 60_600_000).receipt;
                    assert_eq!(window.refund(&rule, 1, receipt, 60_600_000), 1);
                }
                ban(&mut window, &rule, 1, 60_600_000);
                window.expires_at_ms()
            };
            assert_eq!(ends_at(true), ends_at(false), "{rule:?}");
        }
    }

    /// They are stored apart, and are not charged at once.
    #[test]
    fn numbers_of_more_than_32_bits_count_in_full() {
        const COUNT: u64 = 1 << 40;
        let rule = Rule::new("item", COUNT, SECOND);
        let rule = rule.with_algorithm(Algorithm::SlidingWindow { buckets: 1, weighted: true });
        let mut window = SlidingWindow::default();
        let at = |time_ms| DecisionTime { us: time_ms * 1000, ms: time_ms };
        let charge = |window: &mut SlidingWindow, cost, time_ms: u64| {
            let outcome = charge(window, &ChargeQuery::of(&rule, cost), time_ms * 1000);
            (outcome.remaining.value(), outcome.receipt)
        };
        assert_eq!(charge(&mut window, (1 << 32) - 2, 60_000).0, COUNT - (1 << 32) + 2);
        assert!(window.charge_at_once(&rule, 1, at(60_000)).is_some_and(|outcome| outcome.fits()));
        assert_eq!(window.charge_at_once(&rule, 1, at(60_000)), None);
        assert_eq!(charge(&mut window, 1, 60_000).0, COUNT - (1 << 32));
        let (remaining, receipt) = charge(&mut window, 3 << 32, 60_999);
        assert_eq!(remaining, COUNT - (4 << 32));
        assert_eq!(window.refund(&rule, 2 << 32, receipt, 61_500_000), 1 << 32, "half of it still counts");
        assert_eq!(charge(&mut window, 1, 61_500).0, COUNT - (1 << 32) - 1);
        assert_eq!(charge(&mut window, 1, 63_000).0, COUNT - 1, "all of it has expired");
        assert!(window.charge_at_once(&rule, 1, at(63_000)).is_some());
    }

    #[test]
    fn of_two_bans_the_later_end_holds() {
        for (buckets, weighted) in [(1, true), (4, false)] {
            let rule = Rule::new("item", 10, SECOND).with_algorithm(Algorithm::SlidingWindow { buckets, weighted });
            let mut window = SlidingWindow::default();
            ban(&mut window, &rule, 9_000, 60_000_000);
            ban(&mut window, &rule, 1_000, 61_000_000);
            assert_eq!(window.expires_at_ms(), 69_000, "{rule:?}");
            ban(&mut window, &rule, 9_000, 61_000_000);
            assert_eq!(window.expires_at_ms(), 70_000, "{rule:?}");
        }
    }

    /// The later charge moves the others on. At its time, those of the oldest bucket count in full.
    #[test]
    fn the_oldest_bucket_still_counts_after_a_later_charge() {
        for (buckets, weighted, later_ms) in [(1, true, 1000), (2, true, 1000), (2, false, 500), (4, false, 750)] {
            let rule = Rule::new("item", 10, Duration::from_secs(1));
            let rule = rule.with_algorithm(Algorithm::SlidingWindow { buckets, weighted });
            let mut window = SlidingWindow::default();
            let mut left_after =
                |cost, at_ms: u64| charge(&mut window, &ChargeQuery::of(&rule, cost), at_ms * 1000).remaining.value();
            assert_eq!([left_after(9, 60_000), left_after(1, 60_000 + later_ms)], [1, 0], "{rule:?}");
        }
    }
}
