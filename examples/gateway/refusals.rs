//! The keys that have the most refusals.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// The refusals of each key, by rule. They are for the page: metrics have no keys.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<&'static str, BTreeMap<String, u64>>>);

/// The keys of a rule that are counted. One more takes the place of the least.
const MOST_KEYS: usize = 100;

impl Refusals {
    /// Counts a refusal.
    pub(crate) fn count(&self, rule: &'static str, key: &str) {
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = rules.entry(rule).or_default();
        if let Some(count) = keys.get_mut(key) {
            *count += 1;
            return;
        }
        // Keys that clients make up must not fill the memory. The newcomer takes over the count of the
        // least, so a key with many refusals is never lost ("space saving", Metwally 2005).
        let least = keys.iter().min_by_key(|(_, count)| **count).filter(|_| keys.len() >= MOST_KEYS);
        let least = least.map(|(key, count)| (key.clone(), *count));
        if let Some((key, _)) = &least {
            keys.remove(key);
        }
        keys.insert(key.to_owned(), 1 + least.map_or(0, |(_, count)| count));
    }

    /// The keys of a rule with the most refusals, and how many at most.
    pub(crate) fn most(&self, rule: &str) -> Vec<(String, u64)> {
        let rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys: Vec<_> =
            rules.get(rule).into_iter().flatten().map(|(key, count)| (key.clone(), *count)).collect();
        keys.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        keys.truncate(5);
        keys
    }
}
