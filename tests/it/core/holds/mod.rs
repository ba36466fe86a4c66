//! Holds: places, reservations and charges by time, which end with the call.

mod annotated;
mod elapsed_time;
mod places;
mod refunded;
mod reservations;
mod settled_together;
