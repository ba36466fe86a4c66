//! Sizes.
