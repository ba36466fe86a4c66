//! The error of a store that cannot decide.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::duration::ReadableDuration;

/// The reason why a store could not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    pub(crate) misconfigured: bool,
    /// Whether the store certainly did nothing.
    has_no_effect: bool,
    #[cfg(feature = "redis")]
    doubt: Option<Doubt>,
    reason: Reason,
    /// The beginning of the outage, if it is one that continues.
    since: Option<Instant>,
}

/// A mistake that may be the server's. If the limiter was connected before, the server has changed, and not the
/// settings.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The server rejects the user or the password.
    Credentials,
    /// It does not reply as Redis does: another server may have its address.
    Protocol,
    /// A sentinel does not know the service, or a server is in protected mode: it may have lost its configuration.
    Configuration,
}

/// Cheap to clone: every caller gets it during an outage.
#[derive(Clone, Debug)]
enum Reason {
    Known(&'static str),
    Found(Arc<str>),
}

impl StoreError {
    /// The store is unreachable, too slow or full. The caller's `on_store_error` applies.
    pub fn unavailable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(false, reason.into())
    }

    /// The store rejects the request: a wrong type, a missing permission, a script error. Returned
    /// to callers under every failure policy.
    pub fn misconfigured(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(true, reason.into())
    }

    #[inline]
    fn new(misconfigured: bool, reason: Cow<'static, str>) -> Self {
        Self {
            misconfigured,
            has_no_effect: false,
            #[cfg(feature = "redis")]
            doubt: None,
            reason: Reason::new(reason),
            since: None,
        }
    }

    /// The caller is on no tokio runtime, which a store with I/O needs.
    pub(crate) fn no_runtime() -> Self {
        Self::misconfigured("Redis, or a store of your own with I/O, needs a tokio runtime, and this call is on none")
    }

    /// The store returned fewer requests than it got.
    pub(crate) fn no_answer() -> Self {
        Self::misconfigured("the store returned a batch without the request it got")
    }

    pub(crate) fn late(deadline: Duration) -> Self {
        Self::unavailable(format!("the store gave no answer within the deadline of {}", ReadableDuration(deadline)))
    }

    /// Marks the request as not sent, or as refused before it changed anything.
    pub(crate) fn with_no_effect(mut self) -> Self {
        self.has_no_effect = true;
        self
    }

    /// Marks the request as one of which a part may have run.
    #[cfg(feature = "redis")]
    pub(crate) fn indeterminate(mut self) -> Self {
        self.has_no_effect = false;
        self
    }

    /// Whether the store certainly did nothing: the request was not sent, or was refused.
    pub(crate) fn has_no_effect(&self) -> bool {
        self.has_no_effect
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_doubt(mut self, doubt: Option<Doubt>) -> Self {
        self.doubt = doubt;
        self
    }

    #[cfg(feature = "redis")]
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// Turns it into an outage, for which the caller's failure policy applies.
    #[cfg(feature = "redis")]
    pub(crate) fn into_outage(mut self) -> Self {
        self.misconfigured = false;
        self
    }

    /// Prefixes the message with the server.
    #[cfg(feature = "redis")]
    pub(crate) fn about(mut self, server: &impl fmt::Display) -> Self {
        self.reason = Reason::Found(format!("{server}: {}", self.reason.words()).into());
        self
    }

    /// Appends advice to the message.
    #[cfg(feature = "redis")]
    pub(crate) fn advised(mut self, advice: &str) -> Self {
        self.reason = Reason::Found(format!("{}; {advice}", self.reason.words()).into());
        self
    }

    /// Sets the beginning of the outage. It is not in the message: all refusals of one outage have
    /// equal messages, so that logs can group them. `Limiter::health` has the duration.
    #[cfg(feature = "redis")]
    pub(crate) fn since(mut self, began: Instant) -> Self {
        self.since = Some(began);
        self
    }

    /// The beginning of the outage, if known.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.since
    }

    /// The message.
    pub(crate) fn reason(&self) -> &str {
        self.reason.words()
    }

    /// The message, owned.
    pub(crate) fn into_words(self) -> Cow<'static, str> {
        match self.reason {
            Reason::Known(words) => words.into(),
            Reason::Found(words) => words.to_string().into(),
        }
    }
}

impl Reason {
    #[inline]
    fn new(words: Cow<'static, str>) -> Self {
        match words {
            Cow::Borrowed(words) => Self::Known(words),
            Cow::Owned(words) => Self::Found(words.into()),
        }
    }

    fn words(&self) -> &str {
        match self {
            Self::Known(words) => words,
            Self::Found(words) => words,
        }
    }
}

impl PartialEq for Reason {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl Eq for Reason {}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.words())
    }
}

impl std::error::Error for StoreError {}
