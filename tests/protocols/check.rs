//! Runs the model checker on a model.

use std::env;
use std::fmt::{Debug, Write as _};
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

fn number(name: &str, usual: u8) -> u8 {
    env::var(name)
        .map_or(usual, |number| number.parse().unwrap_or_else(|_| panic!("{name} is {number:?}; give it a number")))
}

/// The number of processes in a model: `RATELIMIT_PROCESSES`, or 2.
pub(crate) fn processes() -> usize {
    number("RATELIMIT_PROCESSES", 2).into()
}

/// The number of calls that each process makes at a store, one after another: `RATELIMIT_CALLS`, or
/// this many.
pub(crate) fn calls(usual: u8) -> u8 {
    number("RATELIMIT_CALLS", usual)
}

fn steps<M: Model>(checker: &impl Checker<M>, property: &'static str) -> Option<String>
where
    M::State: Clone + Debug + Hash + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let path = checker.discovery(property)?;
    let mut text = String::new();
    for (number, action) in path.into_actions().iter().enumerate() {
        let _ = writeln!(text, "  {}. {action:?}", number + 1);
    }
    Some(text)
}

/// Explores all states. Each `always` property holds in all of them, and each `sometimes` property
/// in one: so the bound is reached, and the model is not empty.
pub(crate) fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().spawn_bfs().join();
    for property in checker.model().properties() {
        let found = steps(&checker, property.name);
        if let Expectation::Sometimes = property.expectation {
            assert!(found.is_some(), "{name}: no state has: {}", property.name);
        } else if let Some(steps) = found {
            panic!("{name}: a state contradicts: {}\n{steps}", property.name);
        }
    }
    println!("{name}: {} states, {} steps at most", checker.unique_state_count(), checker.max_depth());
}

/// Finds a short way to a state that contradicts a property, and prints it.
pub(crate) fn breaks<M>(name: &str, model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let states = checker.unique_state_count();
    let steps =
        steps(&checker, property).unwrap_or_else(|| panic!("{name}: none of {states} states contradicts: {property}"));
    println!("{name}: after {states} states, a contradiction to: {property}\n{steps}");
}
