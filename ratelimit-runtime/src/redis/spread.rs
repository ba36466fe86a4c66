//! A request whose counters lie in several slots of a cluster, so that no script can decide on all of them.
//!
//! All slots are looked at first, in one go: a refusal changes nothing. If all fits, it is charged slot by slot, in order. Where one
//! refuses after all, what the earlier ones charged is refunded, so that more is never admitted than the limits say; a concurrent
//! caller may be refused in between. If its caller leaves, the charging is finished in the background.

use std::{future::Future, time::Duration};

use futures_util::future::{join, join_all};
use tokio::{
    sync::oneshot::{self, Sender},
    time::{sleep, timeout},
};

use super::{Redis, slots::slot_of};
use crate::{
    background::{self, FinishOnDrop},
    store::{Charge, Charges, Request, StoreError},
};

/// How long a server may take for what no caller waits for any more. What it has not done by then stays charged.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the counters lie in several slots.
pub(super) fn over_slots(charges: &[Charge]) -> bool {
    let mut slots = charges.iter().map(slot);
    slots.next().is_some_and(|first| slots.any(|slot| slot != first))
}

fn slot(charge: &Charge) -> u16 {
    slot_of(charge.counter.as_bytes())
}

/// Decides requests that are spread over slots, beside other work.
pub(super) async fn decide(redis: &Redis, requests: &mut [&mut Request], beside: impl Future<Output = ()>) {
    let decided = join_all(requests.iter().map(|request| decide_one(redis, (**request).clone())));
    // Kept until all is decided: a caller who leaves before has none of it.
    let (decided, ()) = join(decided, beside).await;
    for (request, decided) in requests.iter_mut().zip(decided) {
        match decided {
            Ok(held) => held.keep(request),
            Err(error) => request.outcome = Err(error),
        }
    }
}

async fn decide_one(redis: &Redis, mut request: Request) -> Result<Held, StoreError> {
    let mut parts = split(&request);
    request.outcome = look(redis, parts.iter_mut()).await;
    if !request.consume || request.outcome != Ok(true) {
        merge(parts, &mut request);
        return Ok(Held { redis: redis.clone(), request: Some(request) });
    }
    let (caller, decided) = oneshot::channel();
    FinishOnDrop::new(charge(redis.clone(), request, parts, caller)).await;
    decided.await.map_err(|_| StoreError::unavailable("the charging has ended"))
}

/// A request that was decided. Dropped, what it charged is refunded.
struct Held {
    redis: Redis,
    request: Option<Request>,
}

impl Held {
    fn keep(mut self, into: &mut Request) {
        if let Some(request) = self.request.take() {
            *into = request;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(Request { charges, consume: true, outcome: Ok(true) }) = self.request.take() {
            let redis = self.redis.clone();
            let _ = background::spawn(async move { timeout(GRACE, redis.return_charges(&charges)).await.is_ok() });
        }
    }
}

/// What of a request lies in one slot.
struct Part {
    slot: u16,
    /// Where its charges stand in the request.
    places: Vec<usize>,
    request: Request,
}

/// In the order of the slots, so that of two callers one is ahead everywhere.
fn split(request: &Request) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (place, charge) in request.charges.iter().enumerate() {
        let slot = slot(charge);
        let at = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
            parts.push(Part { slot, places: Vec::new(), request: Request::new(Charges::default(), false) });
            parts.len() - 1
        });
        parts[at].places.push(place);
        parts[at].request.charges.push(charge.clone());
    }
    parts.sort_by_key(|part| part.slot);
    parts
}

/// What the store wrote into the parts.
fn merge(parts: Vec<Part>, request: &mut Request) {
    for Part { places, request: part, .. } in parts {
        for (place, charge) in places.into_iter().zip(part.charges.iter()) {
            request.charges[place] = charge.clone();
        }
    }
}

/// Whether all of them would fit.
async fn look(redis: &Redis, parts: impl Iterator<Item = &mut Part>) -> Result<bool, StoreError> {
    let mut requests: Vec<_> = parts.map(|part| &mut part.request).collect();
    for request in &mut requests {
        request.consume = false;
    }
    redis.decide_together(&mut requests).await;
    requests.iter().try_fold(true, |all_fit, request| Ok(all_fit & request.outcome.clone()?))
}

async fn charge(redis: Redis, mut request: Request, mut parts: Vec<Part>, mut caller: Sender<Held>) {
    request.outcome = charge_parts(&redis, &mut parts, &mut caller).await;
    merge(parts, &mut request);
    // If the caller has left, it comes back and is dropped.
    drop(caller.send(Held { redis, request: Some(request) }));
}

async fn charge_parts(redis: &Redis, parts: &mut [Part], caller: &mut Sender<Held>) -> Result<bool, StoreError> {
    for at in 0..parts.len() {
        let (charged, rest) = parts.split_at_mut(at);
        let Some((part, rest)) = rest.split_first_mut() else { break };
        let outcome = if caller.is_closed() {
            Err(StoreError::unavailable("its caller has left"))
        } else {
            charge_part(redis, part, caller).await
        };
        if outcome == Ok(true) {
            continue;
        }
        // What fails to be refunded stays charged.
        let back = charged.iter().map(|part| redis.return_charges(&part.request.charges));
        let _ = timeout(GRACE, join_all(back)).await;
        if outcome == Ok(false) {
            // For the longest wait among all of them.
            let _ = timeout(GRACE, look(redis, charged.iter_mut().chain(rest))).await;
        }
        return outcome;
    }
    Ok(true)
}

/// A caller who has left is not waited for, but an answer that is on its way is, so that it can be refunded.
async fn charge_part(redis: &Redis, part: &mut Part, caller: &mut Sender<Held>) -> Result<bool, StoreError> {
    let left = async {
        caller.closed().await;
        sleep(GRACE).await;
    };
    part.request.consume = true;
    let mut requests = [&mut part.request];
    tokio::select! {
        biased;
        () = redis.decide_together(&mut requests) => {}
        () = left => return Err(StoreError::unavailable("its caller has left")),
    }
    part.request.outcome.clone()
}
