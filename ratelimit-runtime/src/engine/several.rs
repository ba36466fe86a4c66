//! Several charges of one call: before they are decided, and as the receipt of its permit.

use std::mem;

use smallvec::SmallVec;

use super::{
    attempt::{attempt_all, record_admitted},
    core::EngineRef,
    options::{AcquireOptions, OnLimit},
    request::{AcquireRequest, AppliedCharge, ChargeRequests},
};
#[cfg(feature = "client")]
use crate::counter::CounterId;
use crate::{
    RequestPerMinute, Rule,
    backend::{CounterReceipt, Query},
    decision::Outcome,
};

/// Several charges, or holds, of one call. Two of them have one allocation, which passes from the call to its
/// permit. Dropping it frees the places that were taken.
pub(super) struct SeveralCharges {
    engine: EngineRef,
    requests: ChargeRequests,
    on_busy: OnLimit,
    /// The receipts of the charges that were made.
    receipts: SmallVec<[CounterReceipt; 2]>,
    /// The most restrictive rule of the charges that were made, and its cost.
    #[cfg_attr(not(any(feature = "axum", feature = "tower")), allow(dead_code))]
    pub(super) most_restrictive: Option<(Rule, u64)>,
}

impl SeveralCharges {
    /// `fill` adds the charges where they stay: a list of them would be copied.
    #[inline(never)]
    pub(super) fn new(engine: EngineRef, fill: impl FnOnce(&mut ChargeRequests), on_busy: OnLimit) -> Box<Self> {
        let place = Box::new_uninit(); // `Box::new` would copy all of it
        let (requests, receipts) = (ChargeRequests::new(), SmallVec::new());
        let mut call = Box::write(place, Self { engine, requests, on_busy, receipts, most_restrictive: None });
        fill(&mut call.requests);
        call
    }

    pub(super) fn engine(&self) -> &EngineRef {
        &self.engine
    }

    /// The rule under which an error is reported.
    pub(super) fn rule(&self) -> Option<&Rule> {
        self.requests.first().map(|request| &request.rule)
    }

    /// Attempts the charges. If they are made, it keeps their receipts, and returns the limit
    /// and the outcome of the most restrictive one. `None` if that is unsupported.
    #[inline]
    pub(super) fn attempt(&mut self) -> Option<Result<(u64, Outcome), RequestPerMinute>> {
        if let OnLimit::Wait(_) = self.on_busy {
            return None; // a place that is taken is waited for
        }
        let Self { engine, requests, receipts, most_restrictive, .. } = self;
        let admit = |queries: &[Query<'_>]| {
            // The order of `most_restrictive` in `permit.rs`. Here are no shadow rules.
            let room = |Query { rule, outcome, .. }: &&Query<'_>| {
                (rule.is_concurrent(), outcome.remaining.value(), u64::MAX - outcome.reset_after_ms.value())
            };
            let least = queries.iter().min_by_key(room)?;
            *most_restrictive = Some((*least.rule, least.cost));
            for query in queries {
                receipts.push(CounterReceipt::new(query.id, query.rule, query.cost, query.outcome.receipt));
            }
            record_admitted(queries);
            Some((least.rule.limit(), least.outcome))
        };
        attempt_all(engine, requests.len(), |at| requests[at].borrowed(), true, admit)?.transpose()
    }

    /// The request of the general way.
    pub(super) fn into_request(mut self: Box<Self>, options: AcquireOptions) -> AcquireRequest {
        let charges = mem::take(&mut self.requests).into_iter().map(AppliedCharge::from).collect();
        AcquireRequest::new(self.engine.clone(), charges, options, self.on_busy)
    }

    #[cfg(feature = "tower")]
    pub(super) fn has_place(&self) -> bool {
        self.receipts.iter().any(CounterReceipt::is_place)
    }

    /// Refunds the charges, then frees the places. Returns the amount that still counted, and that of all places.
    pub(super) async fn refund(self: Box<Self>) -> Result<u64, RequestPerMinute> {
        let mut refunded = Ok(0);
        for receipt in &self.receipts {
            let amount = match receipt {
                place if place.is_place() => Ok(place.cost),
                charge => self.engine.refund_receipt((*charge).into()).await,
            };
            refunded = refunded.and_then(|others| Ok(others + amount?));
        }
        refunded
    }

    /// Refunds the charges, then frees the places.
    pub(super) fn refund_in_background(self: Box<Self>) {
        for charge in self.receipts.iter().filter(|receipt| !receipt.is_place()) {
            self.engine.refund_receipt_in_background((*charge).into());
        }
    }

    /// Splits off the charge of a counter.
    #[cfg(feature = "client")]
    pub(super) fn split(mut self: Box<Self>, counter: CounterId) -> (Box<Self>, Box<Self>) {
        let (its, rest) = mem::take(&mut self.receipts).into_iter().partition(|receipt| receipt.id == counter);
        let Self { engine, on_busy, most_restrictive, .. } = &*self;
        let of = |receipts| {
            let (engine, requests) = (engine.clone(), ChargeRequests::new());
            Box::new(Self { engine, requests, on_busy: *on_busy, receipts, most_restrictive: *most_restrictive })
        };
        (of(its), of(rest))
    }
}

impl Drop for SeveralCharges {
    fn drop(&mut self) {
        for place in self.receipts.iter().filter(|receipt| receipt.is_place()) {
            self.engine.refund_receipt_in_background((*place).into());
        }
    }
}
