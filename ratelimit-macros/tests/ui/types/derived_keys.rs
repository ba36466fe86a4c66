//! Types that no key can be derived for.

use ratelimit_runtime::{Key, RateKey, RequestPerMinute, limit_request_per_time};

#[derive(RateKey)]
union Number {
    integer: u64,
    float: f64,
}

#[derive(RateKey)]
struct Weighed {
    weight: f64,
    height: f32,
}

#[derive(RateKey)]
struct Nothing;

#[derive(RateKey)]
enum Never {}

#[derive(RateKey)]
#[rate_key(crate = ratelimit_runtime)]
struct Relative(u64);

#[derive(RateKey)]
#[rate_key]
struct Bare(u64);

#[derive(RateKey)]
#[rate_key(krate = ::ratelimit_runtime)]
struct Misspelt(u64);

#[derive(RateKey)]
#[rate_key(crate = ::ratelimit_runtime, rename = "seller")]
struct Further(u64);

#[derive(RateKey)]
#[rate_key(crate = ::ratelimit_runtime)]
#[rate_key(crate = ::ratelimit_runtime)]
struct Twice(u64);

#[derive(RateKey)]
struct Skipped {
    tenant: u64,
    #[rate_key(skip)]
    request: u64,
}

#[derive(RateKey)]
enum Renamed {
    #[rate_key(rename = "free")]
    Free,
    Paid(#[rate_key] u64),
}

struct Seller;

#[derive(RateKey)]
struct Newtype(Seller);

#[derive(RateKey)]
struct Account {
    shop: u64,
    seller: Seller,
}

#[derive(RateKey)]
enum Caller {
    User(u64),
    Seller { seller: Seller },
}

#[derive(RateKey)]
struct Scoped<T> {
    tenant: u64,
    value: T,
}

#[derive(RateKey)]
struct Optional {
    tenant: u64,
    user: Option<u64>,
}

#[limit_request_per_time("item", 1, Days, 1, key = scoped)]
async fn generic(scoped: Scoped<Seller>) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[derive(RateKey)]
fn function() {}

fn main() {
    let _ = Key::new(Scoped { tenant: 1, value: 0.5 });
}
