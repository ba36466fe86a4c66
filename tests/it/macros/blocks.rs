//! `impl` blocks: every async method is limited.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use ratelimit_runtime::{Limiter, RateKey, limit_request_per_time};

use super::{R, exceeded, limits_each_key};

struct Client {
    id: u64,
    limiter: Limiter,
}

#[limit_request_per_time("client", 1, Hours, 1, key = self.id)]
impl Client {
    #![allow(clippy::unused_self)]

    const ID: u64 = 7;

    fn new(id: u64) -> Self {
        Self { id, limiter: Limiter::in_memory() }
    }

    /// One.
    async fn one(&self) -> R {
        Ok(self.id)
    }

    pub(crate) async fn other(&mut self) -> R {
        self.id += 1;
        Ok(self.id - 1)
    }

    async fn by_value(self: Arc<Self>) -> R {
        Ok(self.id)
    }

    fn a_future(&self) -> Pin<Box<dyn Future<Output = R> + '_>> {
        Box::pin(async { Ok(self.id) })
    }

    #[limit_request_per_time("more", 1, Days, 2, key = (self.id, other))]
    async fn more(&self, other: u64) -> R {
        Ok(self.id + other)
    }

    #[limit_request_per_time(skip)]
    async fn skipped() -> R {
        tokio::task::yield_now().await;
        Ok(Self::ID)
    }

    fn sync(&self) -> u64 {
        self.id
    }
}

#[tokio::test]
async fn an_attribute_on_an_impl_block_limits_each_method() {
    limits_each_key(async |id| Client::new(id).one().await).await;
    limits_each_key(async |id| Client::new(id).other().await).await;
    limits_each_key(async |id| Arc::new(Client::new(id)).by_value().await).await;
    limits_each_key(async |id| Client::new(id).a_future().await).await;
}

/// The block's rule is the same for all of its methods.
#[tokio::test]
async fn the_methods_of_an_impl_block_share_a_counter() {
    let calls = async {
        Client::new(1).one().await.unwrap();
        exceeded(Client::new(1).other().await);
        exceeded(Client::new(1).a_future().await);
        assert_eq!(Client::new(1).sync(), 1);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn a_skipped_method_of_an_impl_block_is_not_limited() {
    let calls = async {
        for _ in 0..3 {
            assert_eq!(Client::skipped().await.unwrap(), Client::ID);
        }
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn a_method_of_an_impl_block_adds_its_own_attribute() {
    struct Twice(u64);
    #[limit_request_per_time("twice", 1, Hours, 2, key = self.0)]
    impl Twice {
        #[limit_request_per_time("once", 1, Hours, 1, key = other)]
        async fn call(&self, other: u64) -> R {
            Ok(other)
        }
    }
    limits_each_key(async |id| Client::new(id).more(0).await).await;
    let calls = async {
        Twice(1).call(1).await.unwrap();
        assert_eq!(exceeded(Twice(1).call(1).await).rule(), "once");
        Twice(1).call(2).await.unwrap();
        assert_eq!(exceeded(Twice(1).call(3).await).rule(), "twice");
        Twice(2).call(3).await.unwrap();
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn stacked_attributes_on_an_impl_block_share_their_settings() {
    struct Stacked(Client);
    #[limit_request_per_time("narrow", 1, Hours, 1, key = self.0.id, limiter = &self.0.limiter)]
    #[limit_request_per_time("wide", 1, Days, 2, key = self.0.id, on_limit = Return(Ok(99)))]
    impl Stacked {
        async fn call(&self) -> R {
            Ok(self.0.id)
        }

        #[limit_request_per_time("own", 1, Days, 9, permit = permit)]
        async fn remaining(&self) -> R {
            Ok(permit.remaining())
        }
    }
    let stacked = Stacked(Client::new(1));
    assert_eq!(stacked.remaining().await.unwrap(), 0);
    assert_eq!(stacked.call().await.unwrap(), 99);
    let other = Stacked(Client { id: 2, limiter: stacked.0.limiter.clone() });
    assert_eq!(other.call().await.unwrap(), 2);
}

#[tokio::test]
async fn an_impl_block_of_a_trait_is_limited() {
    trait Api {
        type Id;
        async fn call(&self) -> R;
        async fn default(&self) -> R {
            Ok(1)
        }
    }
    struct Local(u64);
    #[limit_request_per_time("item", 1, Hours, 1, key = self.0)]
    impl Api for Local {
        type Id = u64;
        async fn call(&self) -> R<Self::Id> {
            Ok(self.0)
        }
    }
    limits_each_key(async |id| Local(id).call().await).await;
    // What the block does not hold, it does not limit.
    for _ in 0..2 {
        assert_eq!(Limiter::in_memory().scope(Local(1).default()).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_generic_impl_block_is_limited() {
    struct Of<T, const N: usize>([T; N]);
    #[limit_request_per_time("item", 1, Hours, const { N as u64 }, key = (&self.0[0], other))]
    impl<T, const N: usize> Of<T, { N }>
    where
        T: RateKey + Copy + Debug,
    {
        async fn call<U: RateKey + Debug>(&self, other: U) -> R<T> {
            let _ = other;
            Ok(self.0[0])
        }
    }
    limits_each_key(async |id| Of([id]).call("other").await).await;
    let calls = async {
        for _ in 0..2 {
            Of(["a", "b"]).call(1).await.unwrap();
        }
        exceeded(Of(["a", "b"]).call("1").await);
        Of(["a", "b"]).call(2).await.unwrap();
    };
    Limiter::in_memory().scope(calls).await;
}
