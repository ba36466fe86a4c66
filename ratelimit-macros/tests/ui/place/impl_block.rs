//! Blocks where nothing would be limited.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

struct Client;

#[limit_request_per_time("item", 1, Days, 1)]
impl Client {
    fn sync(&self) -> R {
        Ok(())
    }
}

#[limit_request_per_time("item", 1, Days, 1)]
impl Client {
    #[limit_request_per_time(skip)]
    async fn skipped(&self) -> R {
        Ok(())
    }
}

#[limit_request_per_time("item", 1, Days, 1)]
impl Clone for Client {
    fn clone(&self) -> Self {
        Client
    }
}

#[limit_request_per_time("item", 1, Days, 1)]
impl Client {
    async fn limited(&self) -> R {
        Ok(())
    }

    #[limit_request_per_time("more", 1, Days, 1)]
    fn wrongly(&self) -> R {
        Ok(())
    }

    #[limit_request_per_time("more", 1, Days, 1, kye = self.id)]
    async fn misspelt(&self) -> R {
        Ok(())
    }
}

#[limit_request_per_time(skip)]
impl Client {
    async fn call(&self) -> R {
        Ok(())
    }
}

fn main() {
    let client = Client.clone();
    drop((client.sync(), client.skipped(), client.limited(), client.wrongly(), client.misspelt(), client.call()));
}
