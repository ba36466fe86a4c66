//! The error of a store that could not decide.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

/// A store could not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    pub(crate) misconfigured: bool,
    /// Whether the store surely did nothing.
    unsent: bool,
    /// Whether it does not take the user or the password.
    credentials: bool,
    reason: Reason,
    /// When what it tells of began, if it goes on.
    since: Option<Instant>,
}

/// Costs nothing to clone: an outage is told to every caller.
#[derive(Clone, Debug)]
enum Reason {
    Known(&'static str),
    Found(Arc<str>),
}

impl StoreError {
    /// The store cannot be reached, is too slow or is full. What happens is the caller's `on_store_error`.
    pub fn unavailable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(false, reason.into())
    }

    /// The store answered that it can't work like this: a wrong type, a missing right, a broken script. Returned to
    /// callers whatever their policy.
    pub fn misconfigured(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(true, reason.into())
    }

    fn new(misconfigured: bool, reason: Cow<'static, str>) -> Self {
        Self { misconfigured, unsent: false, credentials: false, reason: Reason::new(reason), since: None }
    }

    /// A server can only be asked on a runtime.
    pub(crate) fn no_runtime() -> Self {
        Self::misconfigured("Redis can only be asked from within a tokio runtime, and there is none here")
    }

    /// The store returned fewer requests than it was given.
    pub(crate) fn no_answer() -> Self {
        Self::misconfigured("the store returned a batch without the request it was given")
    }

    pub(crate) fn late(deadline: Duration) -> Self {
        Self::unavailable(format!("the store gave no answer within the deadline of {deadline:?}"))
    }

    /// The same, of something that was not sent.
    pub(crate) fn unsent(mut self) -> Self {
        self.unsent = true;
        self
    }

    /// Whether the store surely did nothing.
    pub(crate) fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// The same, about a user or a password that the store does not take.
    #[cfg(feature = "redis")]
    pub(crate) fn about_credentials(mut self) -> Self {
        self.credentials = true;
        self
    }

    /// Whether it is about a user or a password.
    #[cfg(feature = "redis")]
    pub(crate) fn is_about_credentials(&self) -> bool {
        self.credentials
    }

    /// The same as an outage: the caller's policy decides.
    #[cfg(feature = "redis")]
    pub(crate) fn into_outage(mut self) -> Self {
        self.misconfigured = false;
        self
    }

    /// The same, with whom it is about in front.
    #[cfg(feature = "redis")]
    pub(crate) fn about(mut self, whom: &impl fmt::Display) -> Self {
        self.reason = Reason::Found(format!("{whom}: {}", self.reason.words()).into());
        self
    }

    /// The same, with what to do.
    #[cfg(feature = "redis")]
    pub(crate) fn advised(mut self, advice: &str) -> Self {
        self.reason = Reason::Found(format!("{}; {advice}", self.reason.words()).into());
        self
    }

    /// The same, of an outage that began then: the message ends with how long it has lasted.
    #[cfg(feature = "redis")]
    pub(crate) fn since(mut self, began: Instant) -> Self {
        self.since = Some(began);
        self
    }

    /// When the outage began that it tells of, if it does.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.since
    }

    /// The message, without how long.
    pub(crate) fn reason(&self) -> &str {
        self.reason.words()
    }

    /// The message.
    pub(crate) fn into_words(self) -> Cow<'static, str> {
        match self {
            Self { reason: Reason::Known(words), since: None, .. } => words.into(),
            error => error.to_string().into(),
        }
    }
}

impl Reason {
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
        f.write_str(self.reason.words())?;
        match self.since {
            Some(since) => write!(f, " (for {:.1}s)", since.elapsed().as_secs_f64()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for StoreError {}
