//! The guide.

#[cfg(doc)]
use crate::*;

#[doc = include_str!("guide/redis.md")]
pub mod redis {}

#[doc = include_str!("guide/failures.md")]
pub mod failures {}

#[doc = include_str!("guide/operations.md")]
pub mod operations {}

#[doc = include_str!("guide/testing.md")]
pub mod testing {}

#[doc = include_str!("guide/promises.md")]
pub mod promises {}

#[doc = include_str!("guide/how_it_works.md")]
pub mod how_it_works {}
