//! Names that are misspelt, unknown, missing, set twice, or without a value.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R<T = ()> = Result<T, RequestPerMinute>;

#[limit_request_per_time("item", 1, Days, 1, kye = id)]
async fn misspelt(id: u64) -> R<u64> {
    Ok(id)
}

#[limit_request_per_time("item", 1, Days, 1, colour = Red)]
async fn unknown() -> R {
    Ok(())
}

#[limit_request_per_time]
async fn missing() -> R {
    Ok(())
}

#[limit_request_per_time("item", ttl = 5, Days, 1)]
async fn unnamed_after_named() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, id)]
async fn too_many_unnamed(id: u64) -> R<u64> {
    Ok(id)
}

#[limit_request_per_time("item", Days, 1)]
async fn one_left_out() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key, permit =)]
async fn without_value(key: u64) -> R<u64> {
    Ok(key)
}

#[limit_request_per_time("item", 1, Days, 1, ttl = 2)]
async fn twice() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1 key = id)]
async fn no_comma(id: u64) -> R<u64> {
    Ok(id)
}

fn main() {}
