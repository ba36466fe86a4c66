//! Protocols between processes and a store, each as a small model of which a model checker tries
//! every order of steps: delayed and lost messages, retries and crashes included.
//!
//! A model says what its protocol does, in few words, and names the files that do it. Its property
//! is the documented bound. Each model also runs with one step done wrong, which the checker has to
//! find. Where the docs allow more than the bound, a short way there is printed.

mod bans;
mod check;
mod costs;
mod outage;
mod places;
mod prefetch;
mod queue;
