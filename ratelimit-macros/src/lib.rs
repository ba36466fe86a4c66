//! The attribute macro of `ratelimit-runtime`.
