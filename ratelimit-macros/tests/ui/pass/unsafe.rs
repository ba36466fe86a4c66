//! Unsafe functions and blocks, which the crate of the other tests may not have.
#![deny(warnings, unsafe_op_in_unsafe_fn)]

use ratelimit_runtime::{Limiter, RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<u64, RequestPerMinute>;

/// # Safety
///
/// `id` points to a number.
#[limit_request_per_time("item", 1, Days, 1, key = id as usize)]
async unsafe fn free(id: *const u64) -> R {
    // SAFETY: as promised.
    Ok(unsafe { *id })
}

/// # Safety
///
/// `id` points to a number.
#[limit_concurrent_requests("place", 1, key = id as usize)]
#[limit_request_per_time("tokens", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |_| 9))]
async unsafe fn settled(id: *const u64) -> R {
    // SAFETY: as promised.
    Ok(unsafe { *id })
}

struct Client(u64);

unsafe trait Api {
    async fn call(&self) -> R;
    async unsafe fn dangerous(&self) -> R;
}

#[limit_request_per_time("block", 1, Days, 1, key = self.0)]
unsafe impl Api for Client {
    async fn call(&self) -> R {
        Ok(self.0)
    }

    async unsafe fn dangerous(&self) -> R {
        Ok(self.0)
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let calls = async {
        let id = 7;
        // SAFETY: it is a number.
        unsafe {
            assert_eq!(free(&id).await, Ok(7));
            assert!(free(&id).await.is_err());
            assert_eq!(settled(&id).await, Ok(7));
            assert!(settled(&id).await.is_err());
            assert_eq!(Client(1).dangerous().await, Ok(1));
        }
        assert!(Client(1).call().await.is_err());
        assert_eq!(Client(2).call().await, Ok(2));
    };
    runtime.block_on(Limiter::in_memory().scope(calls));
}
