//! Names that the expressions of the attribute can't see.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time("item", 1, Days, 1, key = seler)]
async fn misspelt(seller: u64) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key = request.seler)]
async fn field(request: Request) -> R {
    drop(request.seller);
    Ok(())
}

struct Request {
    seller: u64,
}

#[limit_request_per_time("item", 1, Days, count = limit)]
async fn no_such_argument() -> R {
    Ok(())
}

/// The names in the generated code are not the user's.
#[limit_request_per_time("item", 1, Days, 1, key = deciding)]
async fn generated_names() -> R {
    drop(limiter);
    drop(key);
    drop(refused);
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1)]
async fn permit_without_a_name() -> R {
    drop(permit);
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key = self.id)]
async fn no_self() -> R {
    Ok(())
}

fn main() {}
