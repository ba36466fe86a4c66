//! What most of those say who were asked.

use std::{future::Future, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, timeout_at};

use crate::store::StoreError;

/// What was said, and by how many.
pub(super) type Votes<T> = [(T, usize)];

/// Asks all at once. Returns what was said and by how many, what most said first, and the failures.
/// Once more than half of those asked agree, nobody is waited for any longer.
///
/// `patience`: is told after each answer what was said, and how many have not answered yet. Says
/// how long these are waited for, from then on; all of them, while it says nothing. The earliest
/// end counts.
pub(super) async fn quorum<T: PartialEq, E>(
    asked: impl Iterator<Item = impl Future<Output = Result<T, E>>>,
    patience: impl Fn(&Votes<T>, usize) -> Option<Duration>,
) -> (Vec<(T, usize)>, Vec<E>) {
    let mut answers: FuturesUnordered<_> = asked.collect();
    let count = answers.len();
    let mut said: Vec<(T, usize)> = Vec::new();
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
                let at = said.iter().position(|(said, _)| *said == answer).unwrap_or_else(|| {
                    said.push((answer, 0));
                    said.len() - 1
                });
                said[at].1 += 1;
                if said[at].1 * 2 > count {
                    break;
                }
            }
            Err(error) => failed.push(error),
        }
        let end = patience(&said, answers.len()).and_then(|patience| Instant::now().checked_add(patience));
        until = until.into_iter().chain(end).min();
    }
    said.sort_by_key(|(_, votes)| usize::MAX - votes);
    (said, failed)
}

/// Whether most of those who failed are set up wrongly. One that is does not make an outage of the others a mistake.
pub(super) fn are_mostly_misconfigured<'a>(failed: impl ExactSizeIterator<Item = &'a StoreError>) -> bool {
    let count = failed.len();
    2 * failed.filter(|error| error.misconfigured).count() > count
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::future::Either;
    use tokio::time::{sleep, timeout};

    use super::*;

    fn says(answer: Result<u8, u8>) -> impl Future<Output = Result<u8, u8>> {
        ready(answer)
    }

    #[test]
    fn one_that_is_set_up_wrongly_is_not_most() {
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

    /// As long as all of them need.
    fn endless(_: &Votes<u8>, _: usize) -> Option<Duration> {
        None
    }

    #[tokio::test]
    async fn what_most_say_comes_first() {
        let (said, failed) = quorum([Ok(1), Err(9), Ok(2), Ok(2), Err(8)].map(says).into_iter(), endless).await;
        assert_eq!(said, [(2, 2), (1, 1)]);
        assert_eq!(failed, [9, 8]);
    }

    #[tokio::test]
    async fn one_that_hangs_holds_up_nobody_who_agrees() {
        let asked = [Either::Left(pending()), Either::Right(says(Ok(1))), Either::Right(says(Ok(1)))];
        assert_eq!(quorum(asked.into_iter(), endless).await.0, [(1, 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_is_waited_for_as_long_as_is_said() {
        let second = Duration::from_secs(1);
        let began = Instant::now();
        let asked = || [Either::Left(pending()), Either::Right(says(Err(9))), Either::Right(says(Ok(1)))].into_iter();
        let once_one_has_spoken = |said: &Votes<u8>, _| (!said.is_empty()).then_some(second);
        assert_eq!(quorum(asked(), once_one_has_spoken).await.0, [(1, 1)]);
        assert_eq!(began.elapsed(), second);
        let not_for_one = |_: &Votes<u8>, left| (left == 1).then_some(Duration::ZERO);
        assert_eq!(quorum(asked(), not_for_one).await.0, [(1, 1)]);
        assert_eq!(began.elapsed(), second);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_end_counts() {
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
        assert!(hung.is_err(), "more than a clock can say is without end");
    }
}
