//! Options of a call: whether it waits, and its failure policy.

use std::time::Duration;

use crate::OnStoreError;

/// Options of a call. [`OnLimit`] and [`OnStoreError`] are stored as their parts, because each
/// future of a call carries them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AcquireOptions {
    pub(super) waits: bool,
    /// A refusal of the call bans nothing.
    pub(super) spares: bool,
    policy: Option<PolicyKind>,
    /// In milliseconds, for [`PolicyKind::Wait`].
    longest_outage: u32,
    /// In nanoseconds; [`u64::MAX`] if it is not limited.
    longest_wait: u64,
}

/// [`OnStoreError`] without its numbers. So wide that the options have no padding, and are written at once.
#[derive(Clone, Copy, Debug)]
#[repr(u16)]
enum PolicyKind {
    Local,
    Allow,
    Deny,
    Wait,
}

impl AcquireOptions {
    /// Bans nothing if the call is refused.
    pub(crate) const fn sparing(self) -> Self {
        Self { spares: true, ..self }
    }

    pub(crate) const fn new(on_limit: OnLimit, on_store_error: Option<OnStoreError>) -> Self {
        let reject = Self { waits: false, spares: false, policy: None, longest_outage: 0, longest_wait: 0 };
        reject.with_on_limit(on_limit).with_policy(on_store_error)
    }

    #[allow(clippy::cast_possible_truncation)] // 584 years at most
    pub(crate) const fn with_on_limit(self, on_limit: OnLimit) -> Self {
        const LONGEST: u128 = u64::MAX as u128 - 1;
        let (waits, longest_wait) = match on_limit {
            OnLimit::Reject => (false, 0),
            OnLimit::Wait(None) => (true, u64::MAX),
            OnLimit::Wait(Some(longest)) if longest.as_nanos() > LONGEST => (true, LONGEST as u64),
            OnLimit::Wait(Some(longest)) => (true, longest.as_nanos() as u64),
        };
        Self { waits, longest_wait, ..self }
    }

    #[allow(clippy::cast_possible_truncation)] // compared first
    pub(crate) const fn with_policy(mut self, on_store_error: Option<OnStoreError>) -> Self {
        self.policy = match on_store_error {
            None => None,
            Some(OnStoreError::Local) => Some(PolicyKind::Local),
            Some(OnStoreError::Allow) => Some(PolicyKind::Allow),
            Some(OnStoreError::Deny) => Some(PolicyKind::Deny),
            Some(OnStoreError::Wait { max }) => {
                let ms = max.as_millis();
                self.longest_outage = if ms > u32::MAX as u128 { u32::MAX } else { ms as u32 };
                Some(PolicyKind::Wait)
            }
        };
        self
    }

    pub(crate) const fn on_store_error(self) -> Option<OnStoreError> {
        Some(match self.policy {
            None => return None,
            Some(PolicyKind::Local) => OnStoreError::Local,
            Some(PolicyKind::Allow) => OnStoreError::Allow,
            Some(PolicyKind::Deny) => OnStoreError::Deny,
            Some(PolicyKind::Wait) => OnStoreError::Wait { max: Duration::from_millis(self.longest_outage as u64) },
        })
    }

    pub(crate) const fn on_limit(self) -> OnLimit {
        match self.longest_wait {
            _ if !self.waits => OnLimit::Reject,
            u64::MAX => OnLimit::Wait(None),
            longest => OnLimit::Wait(Some(Duration::from_nanos(longest))),
        }
    }
}

/// The choice of a caller who is over the limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum OnLimit {
    #[default]
    Reject,
    /// Waits, up to this time if it is given.
    Wait(Option<Duration>),
}
