//! Requests whose counters lie in several slots of a cluster, where no single script can decide.
//!
//! All slots are evaluated first, concurrently: a refusal charges nothing. If all counters have
//! room, they are charged slot by slot, in order. If not, the rules with a ban that refuse ban their
//! counters. If a slot refuses after all, or its node fails, earlier
//! charges are refunded, as far as that takes no longer than a second, and their holds released, within a minute.
//! A plain charge stays if it was sent and has no reply, or if its refund has none.
//! So the limits are never exceeded, but a concurrent caller may be refused in between.
//! If the caller is cancelled, a charge on its way is awaited in the background, for a second at
//! most. Then the charges of the call are refunded.

use std::{slice, time::Duration};

use futures_util::future::{join, join_all};
use tokio::sync::oneshot::{self, Sender};

use super::{nodes::Nodes, requests, slots::slot_of};
use crate::{
    backend::RefundListener,
    background::{self, FinishOnDrop},
    clock::{after, wait_until, within},
    counter::CounterId,
    store::{Charge, Charges, Request, StoreError},
};

/// Time limit of a refund, after which a plain charge stays; of a reply on its way, once its caller has left; and of
/// the look for the longest wait after a refusal.
const GRACE: Duration = Duration::from_secs(1);

/// After this time, a hold that could not be released stays until its lease ends.
const LONGEST_REFUND: Duration = Duration::from_secs(60);

/// The pause after the first attempt to refund. It doubles up to [`GRACE`].
const PAUSE: Duration = Duration::from_millis(20);

/// The servers, and the listener for refunds of calls that were not admitted.
#[derive(Clone)]
pub(super) struct Servers {
    pub(super) nodes: Nodes,
    pub(super) refunds: RefundListener,
}

/// True if the counters lie in several slots.
pub(super) fn is_multi_slot(nodes: &Nodes, charges: &[Charge]) -> bool {
    match nodes {
        Nodes::Single(_) => false,
        Nodes::Cluster(_) => {
            let mut slots = charges.iter().map(slot);
            slots.next().is_some_and(|first| slots.any(|slot| slot != first))
        }
    }
}

fn slot(charge: &Charge) -> u16 {
    slot_of(charge.counter.as_bytes())
}

/// Decides requests while `beside` runs.
pub(super) async fn decide(servers: &Servers, requests: &mut [&mut Request], beside: impl Future<Output = ()>) {
    let decided = join_all(requests.iter().map(|request| decide_one(servers, (**request).clone())));
    // Kept until all are decided: a caller cancelled before that gets all of them refunded.
    let (decided, ()) = join(decided, beside).await;
    for (request, decided) in requests.iter_mut().zip(decided) {
        match decided {
            Ok(charged) => charged.keep(request),
            Err(error) => request.outcome = Err(error),
        }
    }
}

async fn decide_one(servers: &Servers, mut request: Request) -> Result<RefundUnlessKept, StoreError> {
    let (nodes, mut parts) = (&servers.nodes, split(&request));
    request.outcome = evaluate(nodes, parts.iter_mut()).await;
    if !request.consume || request.outcome != Ok(true) {
        merge(parts, &mut request);
        // Refused all the same if a ban can't be written.
        if request.consume
            && request.outcome == Ok(false)
            && let Err(error) = requests::start_bans(nodes, &mut request.charges).await
            && error.misconfigured
        {
            return Err(error);
        }
        return Ok(RefundUnlessKept { servers: servers.clone(), request: Some(request) });
    }
    let (caller, decided) = oneshot::channel();
    FinishOnDrop::new(charge(servers.clone(), request, parts, caller)).await;
    decided.await.map_err(|_| StoreError::unavailable("the task that charges has ended"))
}

/// A decided request. Dropping it refunds its charges.
struct RefundUnlessKept {
    servers: Servers,
    request: Option<Request>,
}

impl RefundUnlessKept {
    fn keep(mut self, into: &mut Request) {
        if let Some(request) = self.request.take() {
            *into = request;
        }
    }
}

impl Drop for RefundUnlessKept {
    fn drop(&mut self) {
        if let Some(Request { charges, consume: true, outcome: Ok(true) }) = self.request.take() {
            let servers = self.servers.clone();
            let _ = background::spawn(async move { refund(&servers, &charges).await });
        }
    }
}

/// Refunds charges, for [`GRACE`] at most. That of a hold goes on in the background: no other code releases it, and its
/// denials are not cached.
async fn refund(servers: &Servers, charges: &[Charge]) {
    let (held, others): (Vec<_>, Vec<_>) = charges.iter().cloned().partition(|charge| charge.hold.is_some());
    let held = held.into_iter().map(|charge| FinishOnDrop::new(refund_one(servers.clone(), charge)));
    let others = others.into_iter().map(|charge| refund_one(servers.clone(), charge));
    within(GRACE, join(join_all(held), join_all(others))).await;
}

/// Refunds a charge, for [`LONGEST_REFUND`] at most. A refund that was not sent is tried again: the background
/// runtime may still have to open a connection. That of a hold also if it may have arrived, or has no answer within
/// [`GRACE`]: the server knows a hold, and releases it once.
async fn refund_one(servers: Servers, charge: Charge) {
    let is_repeatable = |error: &StoreError| error.has_no_effect() || charge.hold.is_some() && !error.misconfigured;
    let mut refund = RefundedOnDrop { refunds: servers.refunds, id: charge.counter.id(), is_pending: false };
    let refunded = async {
        let mut pause = PAUSE;
        loop {
            refund.is_pending = true;
            let mut answer = Err(StoreError::late(GRACE));
            let asked = async { answer = requests::refund(&servers.nodes, slice::from_ref(&charge)).await };
            within(GRACE, asked).await;
            refund.is_pending = answer.as_ref().is_err_and(|error| !error.has_no_effect());
            if !answer.is_err_and(|error| is_repeatable(&error)) || !wait_until(after(pause)).await {
                return;
            }
            pause = (2 * pause).min(GRACE);
        }
    };
    within(LONGEST_REFUND, refunded).await;
}

/// Tells of the refund of a counter when dropped: it was made, or is not tried any more.
struct RefundedOnDrop {
    refunds: RefundListener,
    id: CounterId,
    is_pending: bool,
}

impl Drop for RefundedOnDrop {
    fn drop(&mut self) {
        self.refunds.refunded(self.id, self.is_pending);
    }
}

/// The part of a request in one slot.
struct SlotPart {
    slot: u16,
    /// Indices of its charges in the request.
    indices: Vec<usize>,
    request: Request,
}

/// Splits a request by slot, in slot order: of two callers, the same one is ahead in every slot.
fn split(request: &Request) -> Vec<SlotPart> {
    let mut parts: Vec<SlotPart> = Vec::new();
    for (index, charge) in request.charges.iter().enumerate() {
        let slot = slot(charge);
        let at = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
            parts.push(SlotPart { slot, indices: Vec::new(), request: Request::new(Charges::default(), false) });
            parts.len() - 1
        });
        parts[at].indices.push(index);
        parts[at].request.charges.push(charge.clone());
    }
    parts.sort_by_key(|part| part.slot);
    parts
}

/// Copies the parts' charges back into the request.
fn merge(parts: Vec<SlotPart>, request: &mut Request) {
    for SlotPart { indices, request: part, .. } in parts {
        for (index, charge) in indices.into_iter().zip(part.charges.iter()) {
            request.charges[index] = charge.clone();
        }
    }
}

/// Evaluates parts without charging. Returns true if all of them fit.
async fn evaluate(nodes: &Nodes, parts: impl Iterator<Item = &mut SlotPart>) -> Result<bool, StoreError> {
    let mut requests: Vec<_> = parts.map(|part| &mut part.request).collect();
    for request in &mut requests {
        request.consume = false;
    }
    requests::decide(nodes, &mut requests).await;
    requests.iter().try_fold(true, |all_fit, request| Ok(all_fit & request.outcome.clone()?))
}

async fn charge(
    servers: Servers,
    mut request: Request,
    mut parts: Vec<SlotPart>,
    mut caller: Sender<RefundUnlessKept>,
) {
    request.outcome = charge_parts(&servers, &mut parts, &mut caller).await;
    merge(parts, &mut request);
    // If the caller has left, the request is returned and dropped, which refunds it.
    drop(caller.send(RefundUnlessKept { servers, request: Some(request) }));
}

async fn charge_parts(
    servers: &Servers,
    parts: &mut [SlotPart],
    caller: &mut Sender<RefundUnlessKept>,
) -> Result<bool, StoreError> {
    let nodes = &servers.nodes;
    for at in 0..parts.len() {
        let (charged, rest) = parts.split_at_mut(at);
        let Some((part, rest)) = rest.split_first_mut() else { break };
        let outcome = if caller.is_closed() {
            Err(StoreError::unavailable("its caller has left"))
        } else {
            charge_part(nodes, part, caller).await
        };
        if outcome == Ok(true) {
            continue;
        }
        join_all(charged.iter().map(|part| refund(servers, &part.request.charges))).await;
        if outcome == Ok(false) {
            // For the longest wait among all of them.
            within(GRACE, evaluate(nodes, charged.iter_mut().chain(rest))).await;
        }
        return outcome.map_err(|error| if at == 0 { error } else { error.indeterminate() });
    }
    Ok(true)
}

/// Charges a part. If the caller has left, waits for a reply that is on its way, so that the charge
/// can be refunded.
async fn charge_part(
    nodes: &Nodes,
    part: &mut SlotPart,
    caller: &mut Sender<RefundUnlessKept>,
) -> Result<bool, StoreError> {
    let left = async {
        caller.closed().await;
        wait_until(after(GRACE)).await
    };
    part.request.consume = true;
    let mut requests = [&mut part.request];
    tokio::select! {
        biased;
        () = requests::decide(nodes, &mut requests) => {}
        _ = left => return Err(StoreError::unavailable("its caller has left")),
    }
    part.request.outcome.clone()
}
