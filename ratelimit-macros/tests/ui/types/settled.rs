//! Impossible settled costs, and bodies that they do not fit.

use std::fmt::Display;

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R<T = u64> = Result<T, RequestPerMinute>;

struct Answer {
    tokens: u64,
    text: String,
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |outcome| 1.5))]
async fn no_integer() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, Answer::size))]
async fn no_such_function() -> R<Answer> {
    Ok(Answer { tokens: 5, text: String::new() })
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |outcome| outcome.tokens))]
async fn of_a_result() -> R<Answer> {
    Ok(Answer { tokens: 5, text: String::new() })
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |a, b| 5))]
async fn two_arguments() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = most, |_| 5))]
async fn no_maximum(most: String) -> R<String> {
    Ok(most)
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |_| prompt.len()))]
async fn taken_by_the_body(prompt: String) -> R<String> {
    Ok(prompt)
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |_| 5))]
async fn wrong_body() -> R {
    if true {
        return Ok("five");
    }
    Ok(Answer { tokens: 5, text: String::new() }.text)
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |_| 5))]
async fn wrong_error() -> R<impl Display> {
    std::str::from_utf8(&[1])?;
    Ok(1)
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |_| 5))]
async fn says_no_refusal() -> u64 {
    1
}

fn main() {}
