//! Methods: every receiver, traits and their implementations, `#[async_trait]`.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use async_trait::async_trait;
use ratelimit_runtime::limit_request_per_time;

use super::{R, limits_each_key, send};

struct Client {
    id: u64,
}

impl Client {
    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn by_ref(&self) -> R {
        Ok(self.id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn by_mut(&mut self) -> R {
        self.id += 1;
        Ok(self.id - 1)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn by_value(self) -> R {
        let Self { id } = self;
        Ok(id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn by_mut_value(mut self) -> R {
        self.id += 1;
        Ok(self.id - 1)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn boxed(self: Box<Self>) -> R {
        let Self { id } = *self;
        Ok(id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn rc(self: Rc<Self>) -> R {
        Ok(self.id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn arc(self: Arc<Self>) -> R {
        Ok(self.id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn arc_by_ref(self: &Arc<Self>) -> R {
        Ok(self.id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = self.id)]
    async fn pinned(mut self: Pin<&mut Self>) -> R {
        self.id += 1;
        Ok(self.id - 1)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = Self::twice(id))]
    async fn associated(id: u64) -> R {
        Ok(Self { id }.id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = (self.id, other, T::default()))]
    async fn generic<T: Default + Into<u64> + ratelimit_runtime::RateKey>(&self, other: &str) -> R {
        assert_eq!(other, "other");
        Ok(self.id + T::default().into())
    }

    fn twice(id: u64) -> u64 {
        2 * id
    }
}

#[tokio::test]
async fn methods_with_each_kind_of_receiver_are_limited() {
    limits_each_key(async |id| send(Client { id }.by_ref()).await).await;
    limits_each_key(async |id| send(Client { id }.by_mut()).await).await;
    limits_each_key(async |id| send(Client { id }.by_value()).await).await;
    limits_each_key(async |id| send(Client { id }.by_mut_value()).await).await;
    limits_each_key(async |id| send(Box::new(Client { id }).boxed()).await).await;
    limits_each_key(async |id| Rc::new(Client { id }).rc().await).await;
    limits_each_key(async |id| send(Arc::new(Client { id }).arc()).await).await;
    limits_each_key(async |id| send(Arc::new(Client { id }).arc_by_ref()).await).await;
    limits_each_key(async |id| send(Pin::new(&mut Client { id }).pinned()).await).await;
}

#[tokio::test]
async fn an_associated_function_is_limited() {
    limits_each_key(Client::associated).await;
}

#[tokio::test]
async fn a_generic_method_is_limited() {
    limits_each_key(async |id| Client { id }.generic::<u32>("other").await).await;
}

trait Native {
    fn id(&self) -> u64;

    #[limit_request_per_time("default", 1, Hours, 1, key = self.id())]
    async fn default(&self) -> R {
        Ok(self.id())
    }

    async fn implemented(&self, by: (u64, u64)) -> R;
}

impl Native for Client {
    fn id(&self) -> u64 {
        self.id
    }

    #[limit_request_per_time("implemented", 1, Hours, 1, key = (self.id, by))]
    async fn implemented(&self, (by, _): (u64, u64)) -> R {
        Ok(self.id + by)
    }
}

#[tokio::test]
async fn a_default_method_of_a_trait_is_limited() {
    limits_each_key(async |id| Client { id }.default().await).await;
}

#[tokio::test]
async fn a_method_of_a_trait_implementation_is_limited() {
    limits_each_key(async |id| Client { id }.implemented((0, 1)).await).await;
}

#[async_trait]
trait Dynamic: Send + Sync {
    fn id(&self) -> u64;
    async fn by_ref(&self, other: &str) -> R;
    async fn by_mut(&mut self, pair: (u64, u64)) -> R;
    async fn boxed(self: Box<Self>) -> R;
    async fn associated(id: u64) -> R
    where
        Self: Sized;

    #[limit_request_per_time("default", 1, Hours, 1, key = (self.id(), other))]
    async fn default(&self, other: u64) -> R {
        Ok(self.id() + other)
    }
}

/// Each method limited, `#[async_trait]` already done with it.
struct Methods(u64);

#[async_trait]
impl Dynamic for Methods {
    fn id(&self) -> u64 {
        self.0
    }

    #[limit_request_per_time("ref", 1, Hours, 1, key = (self.0, other))]
    async fn by_ref(&self, other: &str) -> R {
        tokio::task::yield_now().await;
        assert_eq!(other, "other");
        Ok(self.0)
    }

    #[limit_request_per_time("mut", 1, Hours, 1, key = self.0)]
    async fn by_mut(&mut self, (zero, _): (u64, u64)) -> R {
        self.0 += 1;
        Ok(self.0 - 1 + zero)
    }

    #[limit_request_per_time("boxed", 1, Hours, 1, key = self.0)]
    async fn boxed(self: Box<Self>) -> R {
        Ok(self.0)
    }

    #[limit_request_per_time("associated", 1, Hours, 1, key = id)]
    async fn associated(id: u64) -> R {
        Ok(id)
    }
}

/// Above `#[async_trait]`, which has not run yet: arguments may be taken apart.
struct Above(u64);

#[limit_request_per_time("above", 1, Hours, 2, key = self.0)]
#[async_trait]
impl Dynamic for Above {
    fn id(&self) -> u64 {
        self.0
    }

    #[limit_request_per_time("ref", 1, Hours, 1, key = other)]
    async fn by_ref(&self, other: &str) -> R {
        assert_eq!(other, "other");
        Ok(self.0)
    }

    #[limit_request_per_time("mut", 1, Hours, 1, key = (zero, self.0))]
    async fn by_mut(&mut self, (zero, _): (u64, u64)) -> R {
        self.0 += 1;
        Ok(self.0 - 1 + zero)
    }

    #[limit_request_per_time("boxed", 1, Hours, 1)]
    async fn boxed(self: Box<Self>) -> R {
        Ok(self.0)
    }

    #[limit_request_per_time(skip)]
    async fn associated(id: u64) -> R {
        Ok(id)
    }
}

struct Below(u64);

#[async_trait]
#[limit_request_per_time("below", 1, Hours, 1, key = self.0)]
impl Dynamic for Below {
    fn id(&self) -> u64 {
        self.0
    }

    async fn by_ref(&self, other: &str) -> R {
        assert_eq!(other, "other");
        Ok(self.0)
    }

    async fn by_mut(&mut self, (zero, _): (u64, u64)) -> R {
        self.0 += 1;
        Ok(self.0 - 1 + zero)
    }

    async fn boxed(self: Box<Self>) -> R {
        Ok(self.0)
    }

    #[limit_request_per_time(skip)]
    async fn associated(id: u64) -> R {
        Ok(id)
    }
}

#[tokio::test]
async fn each_method_of_an_async_trait_implementation_is_limited() {
    limits_each_key(async |id| send(Methods(id).by_ref("other")).await).await;
    limits_each_key(async |id| send(Methods(id).by_mut((0, 1))).await).await;
    limits_each_key(async |id| send(Box::new(Methods(id)).boxed()).await).await;
    limits_each_key(Methods::associated).await;
}

#[tokio::test]
async fn a_default_method_of_an_async_trait_is_limited() {
    limits_each_key(async |id| send(Methods(id).default(0)).await).await;
    let dynamic = |id| -> Box<dyn Dynamic> { Box::new(Methods(id)) };
    limits_each_key(async |id| dynamic(id).default(0).await).await;
}

#[tokio::test]
async fn an_attribute_above_async_trait_limits_its_methods() {
    // One counter for "other", shared by all; and the block's own, of 2.
    let calls = async {
        Above(1).by_ref("other").await.unwrap();
        assert_eq!(super::exceeded(Above(1).by_ref("other").await).rule(), "ref");
        Above(1).by_mut((0, 1)).await.unwrap();
        assert_eq!(super::exceeded(Box::new(Above(1)).boxed().await).rule(), "above");
        Box::new(Above(2)).boxed().await.unwrap();
    };
    ratelimit_runtime::Limiter::in_memory().scope(calls).await;
    limits_each_key(async |id| send(Above(id).by_mut((0, 1))).await).await;
}

#[tokio::test]
async fn an_attribute_below_async_trait_limits_its_methods() {
    limits_each_key(async |id| send(Below(id).by_ref("other")).await).await;
    limits_each_key(async |id| send(Below(id).by_mut((0, 1))).await).await;
    limits_each_key(async |id| send(Box::new(Below(id)).boxed()).await).await;
    let dynamic = |id| -> Box<dyn Dynamic> { Box::new(Below(id)) };
    limits_each_key(async |id| dynamic(id).by_ref("other").await).await;
}

/// A skipped method runs without limit, in both orders.
#[tokio::test]
async fn a_skipped_method_of_an_async_trait_is_not_limited() {
    let calls = async {
        for _ in 0..3 {
            Above::associated(1).await.unwrap();
            Below::associated(1).await.unwrap();
        }
    };
    ratelimit_runtime::Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn an_async_trait_without_send_is_limited() {
    #[async_trait(?Send)]
    trait Local<T: Into<u64> + 'static> {
        async fn call(&self, id: T, rc: Rc<u64>) -> R;
    }
    struct Unit;
    #[async_trait(?Send)]
    impl Local<u32> for Unit {
        #[limit_request_per_time("item", 1, Hours, 1, key = (id, *rc))]
        async fn call(&self, id: u32, rc: Rc<u64>) -> R {
            Ok(u64::from(id) + *rc - 1)
        }
    }
    limits_each_key(async |id| Unit.call(u32::try_from(id).unwrap(), Rc::new(1)).await).await;
}
