//! Requests as commands, and replies as decisions. The counters of each request are in one slot.

use redis::Value;
use smallvec::SmallVec;

use super::{
    command::Command,
    nodes::{Commands, Nodes},
    reply::{number, unexpected},
};
use crate::{
    algorithm,
    store::{Charge, Request, StoreError},
};

/// Decides requests.
pub(super) async fn decide(nodes: &Nodes, requests: &mut [&mut Request]) {
    let (mut commands, mut sent) = (Commands::new(), SmallVec::<[&mut Request; 1]>::new());
    for request in requests {
        if let Some(error) = too_many_steps(request) {
            request.outcome = Err(error);
        } else {
            commands.push(Command::decide(request));
            sent.push(request);
        }
    }
    let replies = nodes.run_all(commands).await;
    for (request, (command, reply)) in sent.into_iter().zip(replies) {
        complete(request, command, reply);
    }
}

/// Bans the counters of charges that were refused by rules with a ban, if they lie in several slots.
/// Within a slot the script bans, see `BAN_IF_OVER` in `algorithm/script.rs`.
pub(super) async fn start_bans(nodes: &Nodes, charges: &mut [Charge]) -> Result<(), StoreError> {
    let mut refused: Vec<_> = charges.iter_mut().filter(|charge| charge.starts_ban()).collect();
    let command = |charge: &&mut Charge| Command::Ban((**charge).clone(), charge.rule.ban_ms());
    let replies = nodes.run_all(refused.iter().map(command).collect()).await;
    for (charge, (_, reply)) in refused.iter_mut().zip(replies) {
        let reply = reply?;
        let (found, _) = algorithm::parse_reply(charge, false, &reply).ok_or_else(|| unexpected(&reply))?;
        found.write_to(charge, [0; 2]);
    }
    Ok(())
}

/// Refunds charges, and returns how much was refunded. An error has no effect if none was.
pub(super) async fn refund(nodes: &Nodes, charges: &[Charge]) -> Result<u64, StoreError> {
    let charges = charges.iter().filter(|charge| charge.cost > 0).cloned();
    let command = |charge: Charge| match charge.hold {
        None => Command::Refund(charge),
        Some(_) => Command::Settle(charge, 0),
    };
    let replies = nodes.run_all(charges.map(command).collect()).await.into_iter();
    let each: Vec<_> = replies.map(|(_, reply)| reply.and_then(|reply| number(&reply))).collect();
    let is_unchanged = each.iter().all(|refunded| refunded.as_ref().is_err_and(StoreError::has_no_effect));
    let refunded = each.into_iter().try_fold(0, |others, refunded| Ok(others + refunded?.unsigned_abs()));
    refunded.map_err(|error: StoreError| if is_unchanged { error } else { error.indeterminate() })
}

/// Renews holds of one counter, as many in one script as a server may be kept busy with. Returns
/// which of them still exist.
pub(super) async fn renew(nodes: &Nodes, charges: &[Charge]) -> Result<Vec<bool>, StoreError> {
    let steps = charges.iter().map(algorithm::renewal_steps).max().unwrap_or(1);
    let at_once = usize::try_from(algorithm::MAX_STEPS / steps).unwrap_or(usize::MAX);
    // The script requires this order.
    let mut order: Vec<usize> = (0..charges.len()).collect();
    order.sort_by_key(|&at| charges[at].hold.map(|hold| hold.lease));
    let command = |some: &[usize]| {
        let holds = some.iter().flat_map(|&at| algorithm::renewal_args(&charges[at])).collect();
        Command::Renew(charges[some[0]].clone(), holds)
    };
    let replies = nodes.run_all(order.chunks(at_once).map(command).collect()).await;
    let mut are_held = vec![false; charges.len()];
    for (some, (_, reply)) in order.chunks(at_once).zip(replies) {
        match reply? {
            Value::BulkString(flags) if flags.len() == some.len() => {
                some.iter().zip(flags).for_each(|(&at, flag)| are_held[at] = flag == b'1');
            }
            other => return Err(unexpected(&other)),
        }
    }
    Ok(are_held)
}

/// Error of a request whose script would block a server for too long.
pub(super) fn too_many_steps(request: &Request) -> Option<StoreError> {
    let [_, _, ..] = &*request.charges else { return None }; // one counter never takes as long
    let steps: u64 = request.charges.iter().map(algorithm::steps).sum();
    let steps = algorithm::DECISIONS_PER_TRANSACTION * steps;
    (steps > algorithm::MAX_STEPS).then(|| {
        StoreError::misconfigured(format!(
            "its {} rules are one script of up to {steps} steps, and a server may be kept busy for {} at a time; give one call \
             fewer rules, or sliding windows with fewer buckets",
            request.charges.len(),
            algorithm::MAX_STEPS,
        ))
    })
}

/// Returns the charges to a request, and sets its outcome.
pub(super) fn complete(request: &mut Request, command: Command, reply: Result<Value, StoreError>) {
    request.charges = command.into_charges();
    request.outcome = reply.and_then(|reply| parse(&mut request.charges, request.consume, &reply));
}

/// Writes a script's reply into the charges of a request. Returns true if all of them fit.
fn parse(charges: &mut [Charge], consume: bool, reply: &Value) -> Result<bool, StoreError> {
    let (replies, all_fit) = match reply {
        Value::Array(replies) if charges.len() != 1 => match replies.split_last() {
            Some((all_fit, replies)) if replies.len() == charges.len() => (replies, number(all_fit)? == 1),
            _ => return Err(unexpected(reply)),
        },
        // The reply about a single counter tells by itself whether the cost was charged.
        reply => (std::slice::from_ref(reply), true),
    };
    let mut each_fits = true;
    for (charge, reply) in charges.iter_mut().zip(replies) {
        let consumed = consume && all_fit && charge.cost > 0;
        let (look, receipt) = algorithm::parse_reply(charge, consumed, reply).ok_or_else(|| unexpected(reply))?;
        look.write_to(charge, receipt);
        if consumed && look.fits {
            charge.set_held_cost();
        }
        each_fits &= look.fits;
    }
    Ok(all_fit && each_fits)
}

#[cfg(all(test, not(model_check)))]
pub(super) mod hostile;
