//! The two attributes.

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttributeKind {
    PerTime,
    Places,
}

impl AttributeKind {
    pub(crate) const ALL: [Self; 2] = [Self::PerTime, Self::Places];

    /// The name that the attribute is exported under.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PerTime => "limit_request_per_time",
            Self::Places => "limit_concurrent_requests",
        }
    }
}
