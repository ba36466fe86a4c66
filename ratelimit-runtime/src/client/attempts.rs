//! The attempts of one call: each waits until it may be sent, learns from its response, and may be
//! followed by another one.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};

use super::{
    announcement::Announcement,
    config::OutgoingConfig,
    upstream::{Admission, UpstreamState},
};
use crate::{
    Cause, Key, OnStoreError, RequestPerMinute,
    background::{self, FinishOnDrop},
    clock::within,
    duration::part_of,
    observe,
};

/// The longest pause before the first retry; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// The attempts of one call.
pub(super) struct Attempts {
    config: Arc<OutgoingConfig>,
    key: Key,
    /// The retries that are left.
    left: u32,
    backoff: Duration,
}

/// The response to one attempt, as far as it matters here.
pub(super) struct Response {
    said: Announcement,
    is_retryable: bool,
}

impl Response {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let is_retryable = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Self { said: Announcement::of(status, headers), is_retryable }
    }
}

impl Attempts {
    /// `may_retry`: a retry does no harm.
    pub(super) fn new(config: &Arc<OutgoingConfig>, key: Key, may_retry: bool) -> Self {
        let left = if may_retry { config.retries } else { 0 };
        Self { config: Arc::clone(config), key, left, backoff: FIRST_BACKOFF.min(config.longest_pause) }
    }

    /// Whether a copy of the request may be needed.
    pub(super) fn may_repeat(&self) -> bool {
        self.left > 0
    }

    /// The time at which an attempt that begins now stops waiting. `None`: it waits for any time.
    pub(super) fn waits_until(&self) -> Option<Duration> {
        let longest = self.config.longest_wait?;
        Some(self.config.upstream(&self.key).now().saturating_add(longest))
    }

    /// Waits until the next attempt may be sent.
    pub(super) async fn admit(&self, until: Option<Duration>) -> Result<Admission, RequestPerMinute> {
        let upstream = self.config.upstream(&self.key);
        match upstream.admit(until).await {
            Err(refused) if self.is_local(&refused) => {
                let local = self.config.local_upstream(&self.key);
                if upstream.doubt() {
                    local.doubt(); // what is left of an earlier outage
                }
                local.admit(until).await
            }
            admitted => admitted,
        }
    }

    /// Whether this process decides by itself, as the store is away.
    fn is_local(&self, refused: &RequestPerMinute) -> bool {
        let policy = self.config.limiter.engine().settings().on_store_error;
        refused.cause() == Cause::Unavailable && matches!(policy, OnStoreError::Local | OnStoreError::Allow)
    }

    /// Takes one retry from the budget. `false` if it is used up.
    async fn spends(&self, state: &UpstreamState) -> bool {
        let budget = &self.config.retry_budget;
        let spent = match state.spend(budget).await {
            Err(refused) if self.is_local(&refused) => self.config.local_upstream(&self.key).spend(budget).await,
            spent => spent,
        };
        spent.is_ok()
    }

    /// Takes in the response, which is `None` after an error. Returns whether to send the request
    /// again, and waits before that.
    pub(super) async fn repeats(&mut self, admission: Admission, response: Option<Response>, has_copy: bool) -> bool {
        let state = Arc::clone(&admission.state);
        let is_pause = response
            .as_ref()
            .is_some_and(|Response { said, .. }| said.is_refusal && state.pause_of(said) >= FIRST_BACKOFF)
            && state.are_counted();
        if let Some(Response { said, .. }) = &response {
            self.learn(admission, said.clone()).await;
        } else {
            drop(admission);
        }
        let is_retryable = response.is_none_or(|response| response.is_retryable);
        if !is_retryable || !has_copy || self.left == 0 {
            return false;
        }
        // A refusal is followed by a pause of all calls, and some of these take no time.
        if !is_pause && !self.spends(&state).await {
            return false;
        }
        self.left -= 1;
        if !is_pause {
            if state.bounded(state.sleep(part_of(self.backoff)), None).await.is_err() {
                return false; // the limiter was closed
            }
            self.backoff = (2 * self.backoff).min(LONGEST_BACKOFF).min(self.config.longest_pause);
        }
        true
    }

    /// Takes in a response. It is not held back for longer than the store has to decide a call, and a
    /// caller who leaves stops nothing: the rest is done in the background.
    async fn learn(&self, mut admission: Admission, said: Announcement) {
        let (config, key) = (Arc::clone(&self.config), self.key.clone());
        let shared = config.upstream(&key);
        if said.is_refusal {
            shared.pause_here(&said);
        }
        let deadline = config.limiter.engine().settings().deadline;
        let learning = FinishOnDrop::new(async move {
            let state = Arc::clone(&admission.state);
            let is_alone = !Arc::ptr_eq(&shared, &state);
            let learnt = state.learn(&mut admission, &said).await;
            if let Err(error) = &learnt {
                let error = error.without_key();
                observe::shielded(
                    || tracing::debug!(%error, "other processes do not know what an upstream has announced"),
                );
            }
            if !said.is_refusal || learnt.is_ok() && !is_alone {
                return;
            }
            if !is_alone {
                let _ = config.local_upstream(&key).learn(&mut admission, &said).await;
            }
            let _ = background::spawn(async move { shared.pause_later().await });
        });
        within(deadline, learning).await;
    }
}
