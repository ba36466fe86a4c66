//! Replies of a store: awaited one by one, or from many callers at once.

use std::{panic, sync::Barrier, thread};

use tokio::{runtime::Handle, task::JoinSet};

use crate::{
    Store,
    store::{Batch, Reply},
};

/// Awaits a reply.
pub(super) async fn answer<T>(reply: Reply<T>) -> T {
    match reply {
        Reply::Ready(answer) => answer,
        Reply::Pending(answer) => answer.await,
    }
}

/// Sends batches from several threads at once. Awaits each reply that is not ready in a task of its
/// own.
pub(super) async fn decide_concurrently(store: &dyn Store, batches: Vec<Batch>) -> Vec<Batch> {
    const THREADS: usize = 8;
    let runtime = Handle::try_current().ok();
    let parts: Vec<_> = batches.chunks(batches.len().div_ceil(THREADS)).collect();
    let start = Barrier::new(parts.len());
    let replies: Vec<Reply<Batch>> = thread::scope(|scope| {
        let ask = |part: &[Batch]| {
            let _context = runtime.as_ref().map(Handle::enter);
            start.wait();
            part.iter().map(|batch| store.decide(batch.clone())).collect::<Vec<_>>()
        };
        let threads: Vec<_> = parts.iter().map(|part| scope.spawn(move || ask(part))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        joined.flatten().collect()
    });
    let (mut answers, mut tasks) = (Vec::new(), JoinSet::new());
    for reply in replies {
        match (reply, &runtime) {
            (Reply::Pending(answer), Some(_)) => drop(tasks.spawn(answer)),
            (reply, _) => answers.push(answer(reply).await),
        }
    }
    answers.extend(tasks.join_all().await);
    answers
}
