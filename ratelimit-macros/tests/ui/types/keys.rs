//! Keys that are none.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

struct Seller {
    id: u64,
}

#[limit_request_per_time("item", 1, Days, 1, key = seller)]
async fn no_key(seller: Seller) -> R {
    drop(seller.id);
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key = (seller.id, &seller))]
async fn in_a_tuple(seller: Seller) -> R {
    drop(seller.id);
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key = weight)]
async fn float(weight: f64) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key = user)]
async fn option(user: Option<u64>) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key = user.id, on_missing_key = Deny)]
async fn never_missing(user: Seller) -> R {
    drop(user.id);
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key = user, on_missing_key = Shared)]
async fn option_of_no_key(user: Option<Seller>) -> R {
    Ok(())
}

fn main() {}
