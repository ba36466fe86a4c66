//! Several charges of one call: before they are decided, and as the receipt of its permit.

use std::mem;

use smallvec::SmallVec;

use super::{
    attempt::{Decided, attempt_all},
    core::EngineRef,
    options::{AcquireOptions, OnLimit},
    request::{AcquireRequest, AppliedCharge, ChargeRequest, ChargeRequests},
};
use crate::{
    RequestPerMinute, Rule,
    backend::{CounterReceipt, MAX_AT_ONCE, Query},
    counter::CounterId,
    decision::PermitNumbers,
    observe,
};

/// Several charges, or holds, of one call. Two of them have one allocation, which passes from the call to its
/// permit. Dropping it frees the places that were taken.
pub(super) struct SeveralCharges {
    engine: EngineRef,
    requests: ChargeRequests,
    on_busy: OnLimit,
    /// The charge of each request, in their order. [`CounterId::NONE`] if it was not made.
    made: [MadeCharge; MAX_AT_ONCE],
    /// The counter whose numbers the permit shows.
    #[cfg_attr(not(any(feature = "axum", feature = "tower")), allow(dead_code))]
    most_restrictive: CounterId,
}

/// The counter of a charge, and what its refund needs beside its rule and its cost.
type MadeCharge = (CounterId, [u64; 2]);

impl SeveralCharges {
    /// `fill` adds the charges where they stay: a list of them would be copied.
    #[inline(never)]
    pub(super) fn new(engine: EngineRef, fill: impl FnOnce(&mut ChargeRequests), on_busy: OnLimit) -> Box<Self> {
        let place = Box::new_uninit(); // `Box::new` would copy all of it
        let (requests, made) = (ChargeRequests::new(), [(CounterId::NONE, [0; 2]); MAX_AT_ONCE]);
        let mut call = Box::write(place, Self { engine, requests, on_busy, made, most_restrictive: CounterId::NONE });
        fill(&mut call.requests);
        call
    }

    pub(super) fn engine(&self) -> &EngineRef {
        &self.engine
    }

    /// The rule under which an error is reported.
    pub(super) fn rule(&self) -> Option<&Rule> {
        let rules = || self.requests.iter().map(|request| &request.rule);
        rules().find(|rule| !rule.is_shadow()).or(rules().next())
    }

    /// Attempts the charges, and sets the numbers that the permit shows, or the refusal. Both are recorded. `None` if
    /// that is unsupported.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in one place: the numbers stay in registers
    pub(super) fn attempt(
        &mut self,
        numbers: &mut PermitNumbers,
        refused: &mut Option<RequestPerMinute>,
    ) -> Option<Decided> {
        if let OnLimit::Wait(_) = self.on_busy {
            return None; // a place that is taken is waited for
        }
        let Self { engine, requests, made, most_restrictive, .. } = self;
        let mut applied = SmallVec::<[Rule; MAX_AT_ONCE]>::new();
        let mut remaining = [0; MAX_AT_ONCE];
        let admit = |queries: &[Query<'_>]| {
            for ((made, remaining), query) in made.iter_mut().zip(&mut remaining).zip(queries) {
                *made = (query.id, query.outcome.receipt);
                *remaining = query.outcome.remaining.value();
            }
            if let Some(least) = least_room(queries) {
                *most_restrictive = least.id;
                *numbers = PermitNumbers::new(least.rule.limit(), &least.outcome);
            }
            if engine.settings().rules_may_differ() {
                applied.extend(queries.iter().map(|query| *query.rule));
            }
        };
        let requested = &requests[..];
        let decided = attempt_all(engine, requested.len(), |at| requested[at].borrowed(), true, admit, refused)?;
        // A refund is made by the rules that applied.
        for (request, rule) in requests.iter_mut().zip(&applied) {
            request.rule = *rule;
        }
        // Last, as a recorder may panic: a drop can free the places now.
        if let Decided::Admitted = decided {
            for (request, remaining) in requests.iter().zip(remaining) {
                observe::admitted(&request.rule, remaining);
            }
        }
        Some(decided)
    }

    /// The receipts of the charges that were made.
    #[inline]
    fn receipts(&self) -> impl Iterator<Item = CounterReceipt> {
        let made = self.made.iter().filter(|(id, _)| *id != CounterId::NONE);
        self.requests
            .iter()
            .zip(made)
            .map(|(ChargeRequest { rule, cost, .. }, (id, receipt))| CounterReceipt::new(*id, rule, *cost, *receipt))
    }

    /// The most restrictive rule of the charges that were made, and its cost.
    #[cfg(any(feature = "axum", feature = "tower"))]
    pub(super) fn most_restrictive(&self) -> Option<(Rule, u64)> {
        let at = self.made.iter().position(|(id, _)| *id == self.most_restrictive)?;
        self.requests.get(at).map(|request| (request.rule, request.cost))
    }

    /// The request of the general way.
    pub(super) fn into_request(mut self: Box<Self>, options: AcquireOptions) -> AcquireRequest {
        let charges = mem::take(&mut self.requests).into_iter().map(AppliedCharge::from).collect();
        AcquireRequest::new(self.engine.clone(), charges, options, self.on_busy)
    }

    #[cfg(feature = "tower")]
    pub(super) fn has_place(&self) -> bool {
        self.receipts().any(|receipt| receipt.is_place())
    }

    /// Refunds the charges, then frees the places. Returns the amount that still counted, and that of all places.
    pub(super) async fn refund(self: Box<Self>) -> Result<u64, RequestPerMinute> {
        let mut refunded = Ok(0);
        for receipt in self.receipts() {
            let amount = match receipt {
                place if place.is_place() => Ok(place.cost),
                charge => self.engine.refund_receipt(charge.into()).await,
            };
            refunded = refunded.and_then(|others| Ok(others + amount?));
        }
        refunded
    }

    /// Refunds the charges, then frees the places.
    pub(super) fn refund_in_background(self: Box<Self>) {
        for charge in self.receipts().filter(|receipt| !receipt.is_place()) {
            self.engine.refund_receipt_in_background(charge.into());
        }
    }

    #[inline(never)] // the code of other calls stays short
    fn free_places(&self) {
        for place in self.receipts().filter(CounterReceipt::is_place) {
            self.engine.refund_receipt_in_background(place.into());
        }
    }

    /// Splits off the charge of a counter.
    #[cfg(feature = "client")]
    pub(super) fn split(mut self: Box<Self>, counter: CounterId) -> [Box<Self>; 2] {
        let (requests, all) = (mem::take(&mut self.requests), self.made);
        let mut parts = [(); 2].map(|()| Self::new(self.engine.clone(), |_| {}, self.on_busy));
        for (request, made) in requests.into_iter().zip(all) {
            let part = &mut parts[usize::from(made.0 != counter)];
            part.made[part.requests.len()] = made;
            part.requests.push(request);
            part.most_restrictive = self.most_restrictive;
        }
        parts
    }
}

/// The charge that leaves the least: the order of `most_restrictive` in `permit.rs`. Here are no shadow rules.
#[inline(always)]
#[allow(clippy::inline_always)] // in one place for each number of charges
fn least_room<'a, 'q>(queries: &'a [Query<'q>]) -> Option<&'a Query<'q>> {
    let room = |Query { rule, outcome, .. }: &Query<'_>| (rule.is_concurrent(), outcome.remaining.value());
    queries.iter().min_by(|one, other| {
        // Compared only if the rest is equal: a bucket divides for it.
        let reset_after_ms = |query: &Query<'_>| query.outcome.reset_after_ms.value();
        room(one).cmp(&room(other)).then_with(|| reset_after_ms(other).cmp(&reset_after_ms(one)))
    })
}

impl Drop for SeveralCharges {
    #[inline]
    fn drop(&mut self) {
        if self.receipts().any(|receipt| receipt.is_place()) {
            self.free_places();
        }
    }
}
