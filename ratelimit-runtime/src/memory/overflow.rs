//! Fixed windows that find no room in a full store, counted together in tables of a fixed size.
//!
//! This is a *count-min sketch* (Cormode and Muthukrishnan, 2005) with *conservative update* (Estan
//! and Varghese, 2002). Each counter has a cell in every row, by its hash, and shares it with
//! others. It has made no more charges than the lowest of its cells says. So a call may be refused
//! because of others' charges, and none is admitted because of them.
//!
//! Time is cut into spans of one period. A cell has the charges of the latest span and those of the
//! span before. Both together bound what was charged in the last period. So a counter gets at most
//! its count in any period here. Before it came, it may have had as much in its own window: twice
//! the count in all, as a fixed window promises. It leaves only after two spans without a charge.

use std::{
    hint::black_box,
    sync::{OnceLock, atomic::Ordering},
};

use crate::{
    Rule,
    algorithm::{Evaluation, capabilities},
    counter::CounterId,
    store::ChargeQuery,
    sync::AtomicU64,
};

#[cfg(all(test, not(model_check)))]
mod tests;

const ROWS: usize = 4;
/// Rules with other periods find no room here.
const MAX_PERIODS: usize = 4;

/// Cells for the counters of each of some periods.
pub(super) struct Overflow {
    /// A power of two.
    cells_in_row: usize,
    tables: [OnceLock<PeriodTable>; MAX_PERIODS],
}

/// The cells of one period, row by row.
struct PeriodTable {
    period_ms: u64,
    /// The latest span of any cell. A cell that seems to be later is of long ago.
    latest: AtomicU64,
    cells: Box<[AtomicU64]>,
}

/// The charges in two spans of a period. In one word, so that threads change it together.
#[derive(Clone, Copy)]
struct OverflowCell {
    /// Number of the latest span, modulo 2^24.
    span: u64,
    before: u64,
    now: u64,
}

const SPAN_BITS: u32 = 24;
const COUNT_BITS: u32 = 20;
const SPANS: u64 = 1 << SPAN_BITS;
/// A cell is ahead of a call by at most so many spans, or else it is of long ago.
const MOST_AHEAD: u64 = SPANS / 16;
/// The largest time by which one thread's clock is behind another's, if the clock is not set back.
const LATEST_MS: u64 = 60_000;
/// The largest count that a cell can have. A counter gets no more in a period, whatever its rule says.
const LARGEST_COUNT: u64 = (1 << COUNT_BITS) - 1;

impl OverflowCell {
    fn of(word: u64) -> Self {
        Self { span: word >> (2 * COUNT_BITS), before: (word >> COUNT_BITS) & LARGEST_COUNT, now: word & LARGEST_COUNT }
    }

    fn word(self) -> u64 {
        self.span << (2 * COUNT_BITS) | self.before << COUNT_BITS | self.now
    }

    /// The cell as it is in this span. Of a cell that is ahead, all charges count as made now. `latest`: the latest
    /// span of its table.
    fn at(self, span: u64, latest: u64) -> Self {
        let at = span % SPANS;
        match span.wrapping_sub(self.span) % SPANS {
            0 => self,
            1 => Self { span: at, before: self.now, now: 0 },
            _ if self.ahead_of(span, latest) == 0 => Self { span: at, before: 0, now: 0 },
            _ => Self { span: at, before: 0, now: (self.before + self.now).min(LARGEST_COUNT) },
        }
    }

    /// Number of spans that the cell is ahead of this one. `latest`: the latest span of its table.
    fn ahead_of(self, span: u64, latest: u64) -> u64 {
        let ahead = self.span.wrapping_sub(span) % SPANS;
        if ahead <= latest.saturating_sub(span).min(MOST_AHEAD) { ahead } else { 0 }
    }
}

impl Overflow {
    /// Takes up to so many bytes for each period.
    pub(super) fn new(bytes: usize) -> Self {
        let cells_in_row = 1 << (bytes / size_of::<AtomicU64>() / ROWS).max(1).ilog2();
        Self { cells_in_row, tables: Default::default() }
    }

    /// Whether the process can get the memory of one table.
    pub(super) fn is_possible(&self) -> bool {
        black_box(Vec::<AtomicU64>::new()).try_reserve_exact(ROWS * self.cells_in_row).is_ok()
    }

    /// Charges a counter that has no room elsewhere, if the cost fits. `None` if it cannot be counted here.
    ///
    /// The caller has locked the counter: two calls of it at once could both find the last permit.
    pub(super) fn charge(
        &self,
        id: CounterId,
        query: &ChargeQuery<'_>,
        has_room: bool,
        now_ms: u64,
    ) -> Option<Evaluation> {
        let table = if self.can_count(id, query, has_room, now_ms) { self.table(query.rule)? } else { return None };
        let cells = self.cells_of(table, id);
        let (counted, made_ms) = table.read(cells, now_ms);
        let found = table.evaluate(query.rule, query.cost, counted, made_ms, now_ms);
        if !found.fits {
            return Some(found);
        }
        let charged = OverflowCell { now: counted.now + query.cost, ..counted };
        table.raise(cells, charged, made_ms / table.period_ms);
        let left = table.evaluate(query.rule, 0, charged, made_ms, now_ms).decision;
        Some(Evaluation { decision: left, ..found })
    }

    /// Whether a charge can be counted here. Nothing is refunded here: of several charges, these are made last.
    /// `has_room`: the store has room for one more counter.
    pub(super) fn can_count(&self, id: CounterId, query: &ChargeQuery<'_>, has_room: bool, now_ms: u64) -> bool {
        let period_ms = query.rule.period_ms();
        let has_table = || {
            let of_period =
                |table: &OnceLock<PeriodTable>| table.get().is_none_or(|table| table.period_ms == period_ms);
            self.tables.iter().any(of_period)
        };
        // A rule with a ban is counted here only if the store has room: then the key is kept out of the store just by
        // the charges here, which may be its own.
        let is_allowed = || query.rule.ban_ms() == 0 || has_room && self.evaluate(id, query, now_ms).is_some();
        is_countable(query) && query.cost <= LARGEST_COUNT && has_table() && is_allowed()
    }

    /// Evaluates a counter that may have charges here. `None` if it has none.
    pub(super) fn evaluate(&self, id: CounterId, query: &ChargeQuery<'_>, now_ms: u64) -> Option<Evaluation> {
        let is_its = |table: &&PeriodTable| table.period_ms == query.rule.period_ms();
        let table = self.tables.iter().map_while(OnceLock::get).find(is_its).filter(|_| is_countable(query))?;
        let (counted, made_ms) = table.read(self.cells_of(table, id), now_ms);
        (counted.now + counted.before > 0).then(|| table.evaluate(query.rule, query.least(), counted, made_ms, now_ms))
    }

    /// Takes a table for a rule's period. `false` if all are taken for others.
    pub(super) fn take_table(&self, rule: &Rule) -> bool {
        self.table(rule).is_some()
    }

    /// The table of a rule's period, which may be new.
    fn table(&self, rule: &Rule) -> Option<&PeriodTable> {
        let period_ms = rule.period_ms();
        let new = || {
            let cells = (0..ROWS * self.cells_in_row).map(|_| AtomicU64::new(0)).collect();
            PeriodTable { period_ms, latest: AtomicU64::new(0), cells }
        };
        self.tables.iter().map(|table| table.get_or_init(new)).find(|table| table.period_ms == period_ms)
    }

    /// One cell of each row. The steps between them depend on the counter, so that two counters share
    /// all of their cells only if they share them by chance.
    fn cells_of<'a>(&self, table: &'a PeriodTable, id: CounterId) -> [&'a AtomicU64; ROWS] {
        #[allow(clippy::cast_possible_truncation)] // only the low bits are used
        let (first, step) = (id.0 as usize, (id.0 >> 32) as usize);
        [0, 1, 2, 3].map(|row: usize| {
            let at = first.wrapping_add(row.wrapping_mul(step)) % self.cells_in_row;
            &table.cells[row * self.cells_in_row + at]
        })
    }
}

impl PeriodTable {
    /// The lowest numbers of the cells, all in one span, and a time in that span.
    ///
    /// Threads read the clock at different times, so a cell may be a span ahead of this call. Then the
    /// call is made in that span: its charge counts for longer. Only a clock that was set back by more
    /// takes cells back.
    fn read(&self, cells: [&AtomicU64; ROWS], now_ms: u64) -> (OverflowCell, u64) {
        let span = now_ms / self.period_ms;
        let late = (LATEST_MS / self.period_ms).max(1);
        let found = cells.map(|cell| OverflowCell::of(cell.load(Ordering::Acquire)));
        let latest = self.latest.load(Ordering::Acquire); // after the cells, see `raise`
        let ahead = found.iter().map(|cell| cell.ahead_of(span, latest));
        let ahead = ahead.filter(|ahead| *ahead <= late).max().unwrap_or(0);
        let span = span + ahead;
        let mut lowest = OverflowCell { span: span % SPANS, before: LARGEST_COUNT, now: LARGEST_COUNT };
        for (cell, word) in cells.into_iter().zip(found) {
            let found = word.at(span, latest);
            if word.ahead_of(span, latest) > 0 {
                // Else its charges would count until the clock has caught up.
                let _ = cell.compare_exchange(word.word(), found.word(), Ordering::AcqRel, Ordering::Relaxed);
            }
            lowest.before = lowest.before.min(found.before);
            lowest.now = lowest.now.min(found.now);
        }
        (lowest, now_ms + ahead * self.period_ms)
    }

    /// `made_ms`: the time in the span of the cells, see [`PeriodTable::read`].
    fn evaluate(&self, rule: &Rule, cost: u64, counted: OverflowCell, made_ms: u64, now_ms: u64) -> Evaluation {
        let OverflowCell { before, now, .. } = counted;
        let count = rule.count().min(LARGEST_COUNT);
        let remaining = count.saturating_sub(before + now);
        // The charges of this span count until the end of the next one.
        let to_end_ms = made_ms - made_ms % self.period_ms + self.period_ms - now_ms;
        let until = |charges: u64| if charges == 0 { to_end_ms } else { to_end_ms + self.period_ms };
        let reset_after_ms = if before + now == 0 { 0 } else { until(now) };
        let retry_after_ms = until(now.saturating_add(cost).saturating_sub(count));
        Evaluation::new(rule, remaining, reset_after_ms, (cost > remaining).then_some(retry_after_ms))
    }

    /// Raises the cells to what a counter has charged in a span.
    fn raise(&self, cells: [&AtomicU64; ROWS], charged: OverflowCell, span: u64) {
        // Before the cells: another thread that reads one of them also knows that it is not of long ago.
        if self.latest.load(Ordering::Acquire) < span {
            self.latest.fetch_max(span, Ordering::AcqRel); // rarely: all threads read what lies beside it
        }
        for cell in cells {
            let raised = |word| {
                let (cell, latest) = (OverflowCell::of(word), self.latest.load(Ordering::Acquire));
                let raised = match cell.ahead_of(span, latest) {
                    0 => {
                        let cell = cell.at(span, latest);
                        OverflowCell { now: cell.now.max(charged.now), ..cell }
                    }
                    // Another thread has moved it on since it was read: the charge is of the span before.
                    1 => OverflowCell { before: cell.before.max(charged.now), ..cell },
                    _ => cell,
                };
                Some(raised.word())
            };
            let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised);
        }
    }
}

fn is_countable(query: &ChargeQuery<'_>) -> bool {
    // Only of fixed windows: all charges of a window end together.
    let is_window = capabilities(query.rule.algorithm()).has_prefetch;
    is_window && query.hold.is_none()
}
