//! After `#[async_trait]`, the parts of an argument are not there yet when the limit is checked.

use async_trait::async_trait;
use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<u64, RequestPerMinute>;

#[async_trait]
trait Api {
    async fn tuple(&self, pair: (u64, u64)) -> R;
    async fn structure(&self, request: Request) -> R;
}

struct Request {
    id: u64,
    rows: Vec<u64>,
}

struct Client;

#[async_trait]
impl Api for Client {
    #[limit_request_per_time("item", 1, Days, 1, key = a)]
    async fn tuple(&self, (a, _): (u64, u64)) -> R {
        Ok(a)
    }

    #[limit_request_per_time("item", 1, Days, 1, key = (id, 1), cost = rows.len())]
    async fn structure(&self, Request { id, rows }: Request) -> R {
        Ok(id + rows.len() as u64)
    }
}

struct Below;

#[async_trait]
#[limit_request_per_time("item", 1, Days, 1)]
impl Api for Below {
    #[limit_request_per_time("item", 1, Days, 1, key = a)]
    async fn tuple(&self, (a, _): (u64, u64)) -> R {
        Ok(a)
    }

    async fn structure(&self, Request { id, rows }: Request) -> R {
        Ok(id + rows.len() as u64)
    }
}

fn main() {}
