//! Errors of the borrow checker.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R<T = ()> = Result<T, RequestPerMinute>;

#[limit_request_per_time("item", 1, Days, 1, key = id)]
fn block_that_does_not_move(id: u64) -> impl Future<Output = R> {
    async { Ok(()) }
}

#[limit_request_per_time("item", 1, Days, 1, key = name.into_key())]
async fn moved_by_the_key(name: Name) -> R<Name> {
    Ok(name)
}

struct Name(u64);

impl Name {
    fn into_key(self) -> u64 {
        self.0
    }
}

fn main() {}
