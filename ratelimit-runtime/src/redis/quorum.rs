//! Queries to several servers, decided by majority.

use std::{future::Future, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, timeout_at};

use crate::error::{Doubt, StoreError};

/// Answers, each with the number of servers that gave it.
pub(super) type Votes<T> = [(T, usize)];

/// Awaits all queries concurrently. Returns the answers, the most frequent first, and the failures.
///
/// Ends early once more than half of the servers agree. `patience` gets the answers so far and the
/// number of pending queries after each answer, and returns how long those are awaited from then
/// on; `None` is without end. The earliest end counts.
pub(super) async fn quorum<T: PartialEq, E>(
    queries: impl Iterator<Item = impl Future<Output = Result<T, E>>>,
    patience: impl Fn(&Votes<T>, usize) -> Option<Duration>,
) -> (Vec<(T, usize)>, Vec<E>) {
    let mut answers: FuturesUnordered<_> = queries.collect();
    let count = answers.len();
    let mut votes: Vec<(T, usize)> = Vec::new();
    let mut failed = Vec::new();
    let mut until: Option<Instant> = None;
    loop {
        let answer = match until {
            None => answers.next().await,
            Some(until) => timeout_at(until, answers.next()).await.ok().flatten(),
        };
        let Some(answer) = answer else { break };
        match answer {
            Ok(answer) => {
                let at = votes.iter().position(|(other, _)| *other == answer).unwrap_or_else(|| {
                    votes.push((answer, 0));
                    votes.len() - 1
                });
                votes[at].1 += 1;
                if votes[at].1 * 2 > count {
                    break;
                }
            }
            Err(error) => failed.push(error),
        }
        let end = patience(&votes, answers.len()).and_then(|patience| Instant::now().checked_add(patience));
        until = until.into_iter().chain(end).min();
    }
    votes.sort_by_key(|(_, count)| usize::MAX - count);
    (votes, failed)
}

/// True if most failures are misconfigurations. A single misconfigured server does not turn the
/// outage of the others into one.
pub(super) fn are_mostly_misconfigured<'a>(failed: impl ExactSizeIterator<Item = &'a StoreError>) -> bool {
    let count = failed.len();
    2 * failed.filter(|error| error.misconfigured).count() > count
}

/// A doubt about failed servers, unless most of them report a mistake without one. Rejected credentials are logged, so
/// most of the failed servers have to reject them.
pub(super) fn common_doubt<'a>(failed: impl ExactSizeIterator<Item = &'a StoreError> + Clone) -> Option<Doubt> {
    let are_most = |is: fn(&StoreError) -> bool| 2 * failed.clone().filter(|error| is(error)).count() > failed.len();
    if are_most(|error| error.misconfigured && error.doubt().is_none()) {
        return None;
    }
    if are_most(|error| error.doubt() == Some(Doubt::Credentials)) {
        return Some(Doubt::Credentials);
    }
    let doubts: Vec<_> = failed.filter_map(StoreError::doubt).collect();
    let other = doubts.iter().copied().find(|doubt| *doubt != Doubt::Credentials);
    other.or((!doubts.is_empty()).then_some(Doubt::Configuration))
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::future::{pending, ready};

    use futures_util::future::Either;
    use tokio::time::{sleep, timeout};

    use super::*;

    fn says(answer: Result<u8, u8>) -> impl Future<Output = Result<u8, u8>> {
        ready(answer)
    }

    #[test]
    fn most_failures_decide_about_misconfiguration() {
        let (away, wrong) = (StoreError::unavailable("away"), StoreError::misconfigured("wrong"));
        for (failed, expected) in [
            (&[&wrong][..], true),
            (&[&wrong, &wrong, &away], true),
            (&[&wrong, &away], false),
            (&[&away, &wrong, &away], false),
            (&[], false),
        ] {
            assert_eq!(are_mostly_misconfigured(failed.iter().copied()), expected, "{failed:?}");
        }
    }

    #[test]
    fn one_doubt_does_not_excuse_the_mistakes_of_others() {
        let fault = |doubt| StoreError::misconfigured("wrong").with_doubt(doubt);
        let [none, known, rejected] = [None, Some(Doubt::Configuration), Some(Doubt::Credentials)].map(fault);
        let away = StoreError::unavailable("away");
        for (failed, expected) in [
            ([&known, &known, &known], Some(Doubt::Configuration)),
            ([&known, &away, &known], Some(Doubt::Configuration)),
            ([&known, &rejected, &rejected], Some(Doubt::Credentials)),
            ([&known, &none, &away], Some(Doubt::Configuration)),
            ([&rejected, &none, &away], Some(Doubt::Configuration)),
            ([&none, &none, &known], None),
            ([&none, &none, &none], None),
        ] {
            assert_eq!(common_doubt(failed.into_iter()), expected, "{failed:?}");
        }
    }

    /// Awaits all of them.
    fn endless(_: &Votes<u8>, _: usize) -> Option<Duration> {
        None
    }

    #[tokio::test]
    async fn the_most_frequent_answer_comes_first() {
        let (votes, failed) = quorum([Ok(1), Err(9), Ok(2), Ok(2), Err(8)].map(says).into_iter(), endless).await;
        assert_eq!(votes, [(2, 2), (1, 1)]);
        assert_eq!(failed, [9, 8]);
    }

    #[tokio::test]
    async fn a_majority_does_not_wait_for_a_server_that_hangs() {
        let asked = [Either::Left(pending()), Either::Right(says(Ok(1))), Either::Right(says(Ok(1)))];
        assert_eq!(quorum(asked.into_iter(), endless).await.0, [(1, 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_is_awaited_for_the_patience() {
        let second = Duration::from_secs(1);
        let began = Instant::now();
        let asked = || [Either::Left(pending()), Either::Right(says(Err(9))), Either::Right(says(Ok(1)))].into_iter();
        let after_an_answer = |votes: &Votes<u8>, _| (!votes.is_empty()).then_some(second);
        assert_eq!(quorum(asked(), after_an_answer).await.0, [(1, 1)]);
        assert_eq!(began.elapsed(), second);
        let not_for_the_last = |_: &Votes<u8>, left| (left == 1).then_some(Duration::ZERO);
        assert_eq!(quorum(asked(), not_for_the_last).await.0, [(1, 1)]);
        assert_eq!(began.elapsed(), second);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_end_of_patience_counts() {
        let began = Instant::now();
        let later = async {
            sleep(Duration::from_secs(1)).await;
            Ok::<u8, u8>(1)
        };
        let asked =
            [Either::Left(Either::Left(pending())), Either::Left(Either::Right(later)), Either::Right(says(Ok(2)))];
        let patience = |_: &Votes<u8>, left| Some(Duration::from_secs(if left == 2 { 3 } else { 30 }));
        assert_eq!(quorum(asked.into_iter(), patience).await.0, [(2, 1), (1, 1)]);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        let asked = [Either::Left(pending()), Either::Right(says(Ok(1)))];
        let hung = timeout(Duration::from_secs(60), quorum(asked.into_iter(), |_, _| Some(Duration::MAX))).await;
        assert!(hung.is_err(), "a patience beyond the clock's range is without end");
    }
}
