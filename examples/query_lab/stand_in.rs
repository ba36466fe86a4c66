//! In the place of the attributes, until they are there. It keeps one query a user at a time, in this process only.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Waker},
    time::{Duration, Instant},
};

use ratelimit_runtime::{Algorithm, Limiter, RequestPerMinute, Rule};
use tokio::sync::{Mutex as Place, OwnedMutexGuard};

use crate::query::Lab;

static PLACES: Mutex<Option<HashMap<String, Arc<Place<()>>>>> = Mutex::new(None);

fn place(user: &str) -> Arc<Place<()>> {
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(places.get_or_insert_default().entry(user.to_owned()).or_default())
}

pub(crate) fn is_running(user: &str) -> bool {
    place(user).try_lock().is_err()
}

pub(crate) struct Permit {
    start: Instant,
    given: Duration,
    rule: Rule,
    user: String,
    limiter: Limiter,
    _place: OwnedMutexGuard<()>,
}

pub(crate) async fn acquire<const WINDOW_MS: u64>(lab: &Lab, user: &str) -> Result<Permit, RequestPerMinute> {
    let rule =
        Rule::new("query-time", lab.budget_ms, Duration::from_millis(WINDOW_MS)).algorithm(Algorithm::SlidingLog);
    let _place = place(user).lock_owned().await;
    let left = lab.limiter.peek(&rule, user).await?.remaining();
    if left == 0 {
        lab.limiter.acquire(&rule, user).await?;
    }
    let (user, limiter) = (user.to_owned(), lab.limiter.clone());
    Ok(Permit { start: Instant::now(), given: Duration::from_millis(left), rule, user, limiter, _place })
}

impl Permit {
    pub(crate) fn remaining_time(&self) -> Duration {
        self.given.saturating_sub(self.start.elapsed())
    }

    pub(crate) fn is_held(&self) -> bool {
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let used = u64::try_from(self.start.elapsed().as_micros().div_ceil(1000)).unwrap();
        let cost = used.min(u64::try_from(self.given.as_millis()).unwrap());
        let charge = std::pin::pin!(self.limiter.acquire_n(&self.rule, self.user.as_str(), cost));
        assert!(charge.poll(&mut Context::from_waker(Waker::noop())).is_ready(), "memory only");
    }
}
