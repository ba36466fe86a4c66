//! Refusals of the limits: their status, and the keys that have the most of them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use axum::{body::to_bytes, http::StatusCode, response::Response};
use serde_json::Value;

/// The refusals of each key, by rule. They are for the page: metrics have no keys.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<&'static str, BTreeMap<String, u64>>>);

/// The keys of a rule that are counted. One more takes the place of the least.
const MOST_KEYS: usize = 100;

/// In the extensions of a response that is not of the limits.
#[derive(Clone)]
pub(crate) struct Forwarded;

impl Forwarded {
    pub(crate) fn mark<B>(mut response: Response<B>) -> Response<B> {
        response.extensions_mut().insert(Self);
        response
    }
}

impl Refusals {
    /// Counts a refusal, and gives it the status of its route.
    ///
    /// `keys` has the rules of the route, and the request's key for each.
    pub(crate) async fn finish(
        &self,
        response: Response,
        status: StatusCode,
        keys: &[(&'static str, String)],
    ) -> Response {
        let is_forwarded = response.extensions().get::<Forwarded>().is_some();
        if is_forwarded || response.status() != StatusCode::TOO_MANY_REQUESTS {
            return response;
        }
        let (mut head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
        let mut problem: Value = serde_json::from_slice(&body).unwrap_or_default(); // a HEAD request has none
        let rule = problem["violated-policies"][0].as_str();
        if rule.is_none() && !body.is_empty() {
            return Response::from_parts(head, body.into()); // the key is missing
        }
        head.status = status;
        if let Some((rule, key)) = keys.iter().find(|(prefix, _)| rule == Some(prefix)) {
            self.count(rule, key);
            problem["status"] = status.as_u16().into();
            return Response::from_parts(head, problem.to_string().into());
        }
        Response::from_parts(head, body.into())
    }

    fn count(&self, rule: &'static str, key: &str) {
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
