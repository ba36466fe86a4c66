//! What most of those say who were asked.

use std::{future::Future, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, timeout_at};

use crate::store::StoreError;

/// Once one has said something, how long the others are waited for.
const GRACE: Duration = Duration::from_millis(500);

/// Asks all at once. Returns what was said and by how many, what most said first, and the failures. Once more than half of
/// those asked agree, nobody is waited for any longer.
pub(super) async fn majority<T: PartialEq, E>(
    asked: impl Iterator<Item = impl Future<Output = Result<T, E>>>,
) -> (Vec<(T, usize)>, Vec<E>) {
    let mut answers: FuturesUnordered<_> = asked.collect();
    let count = answers.len();
    let mut said: Vec<(T, usize)> = Vec::new();
    let mut failed = Vec::new();
    let mut until = None;
    loop {
        let answer = match until {
            None => answers.next().await,
            Some(until) => timeout_at(until, answers.next()).await.ok().flatten(),
        };
        let Some(answer) = answer else { break };
        match answer {
            Ok(answer) => {
                until = until.or_else(|| Some(Instant::now() + GRACE));
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
    }
    said.sort_by_key(|(_, votes)| usize::MAX - votes);
    (said, failed)
}

/// Whether most of those who failed are set up wrongly. One that is does not make an outage of the others a mistake.
pub(super) fn mostly_misconfigured<'a>(failed: impl ExactSizeIterator<Item = &'a StoreError>) -> bool {
    let count = failed.len();
    2 * failed.filter(|error| error.misconfigured).count() > count
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::future::Either;

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
            assert_eq!(mostly_misconfigured(failed.iter().copied()), expected, "{failed:?}");
        }
    }

    #[tokio::test]
    async fn what_most_say_comes_first() {
        let (said, failed) = majority([Ok(1), Err(9), Ok(2), Ok(2), Err(8)].map(says).into_iter()).await;
        assert_eq!(said, [(2, 2), (1, 1)]);
        assert_eq!(failed, [9, 8]);
    }

    #[tokio::test]
    async fn one_that_hangs_holds_up_nobody_who_agrees() {
        let asked = [Either::Left(pending()), Either::Right(says(Ok(1))), Either::Right(says(Ok(1)))];
        assert_eq!(majority(asked.into_iter()).await.0, [(1, 2)]);
    }

    #[tokio::test]
    async fn one_that_hangs_is_not_waited_for_without_end() {
        let asked = [Either::Left(pending()), Either::Right(says(Err(9))), Either::Right(says(Ok(1)))];
        assert_eq!(majority(asked.into_iter()).await.0, [(1, 1)]);
    }
}
