//! The size of the future of an annotated function. It is at most that of the plain function with
//! one await in front, or of a function that only asks the limiter, whichever is larger. A permit
//! that is bound or held adds its size.

use std::future::ready;
use std::mem::size_of_val;
use std::rc::Rc;
use std::time::Duration;

use ratelimit_runtime::{
    Key, Limiter, Permit, RequestPerMinute, Rule, limit_concurrent_requests, limit_request_per_time,
};

type R<T = u64> = Result<T, RequestPerMinute>;

const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));

fn send_and_static<T: Send + 'static>(value: T) -> T {
    value
}

fn keep<T>(_: &T) {}

/// Compares functions with the same argument: the plain one, one with an await of nothing in front,
/// one that only asks the limiter and keeps the argument, and the annotated one. The await in front
/// makes a function larger where an argument lives across it.
macro_rules! compare {
    ($name:literal, $extra:expr, ($argument:ident: $type:ty = $value:expr) $body:block $(#[$limit:meta])+) => {{
        async fn plain($argument: $type) -> R $body
        async fn awaits_nothing_first($argument: $type) -> R {
            ready(()).await;
            $body
        }
        async fn ask($argument: $type) -> R {
            let asked = Limiter::unlimited().acquire(&RULE, 1);
            keep(&asked.await?);
            keep(&$argument);
            Ok(1)
        }
        $(#[$limit])+
        async fn limited($argument: $type) -> R $body
        let [plain, ask] = [size_of_val(&plain($value)), size_of_val(&ask($value))];
        let first = size_of_val(&awaits_nothing_first($value));
        let limited = size_of_val(&send_and_static(limited($value)));
        println!("{:<40} {plain:>6} {ask:>6} {limited:>6}", $name);
        assert!(limited <= first.max(ask) + $extra, "{}: {limited} bytes, plain {plain}, ask {ask}", $name);
    }};
}

#[test]
fn the_future_is_no_larger_than_its_parts() {
    println!("{:<40} {:>6} {:>6} {:>6}", "bytes", "plain", "ask", "limited");
    compare! {
        "a small body", 0, (id: u64 = 1) { Ok(id) }
        #[limit_request_per_time("item", 1, Days, 1, key = id)]
    }
    compare! {
        "a small body without a key", 0, (id: u64 = 1) { Ok(id) }
        #[limit_request_per_time("item", 1, Days, 1)]
    }
    compare! {
        "a small body that awaits", 0, (id: u64 = 1) { ready(()).await; Ok(id) }
        #[limit_request_per_time("item", 1, Days, 1, key = id)]
    }
    compare! {
        "1 KiB over an await", 0, (id: u64 = 1) {
            let array = [1_u8; 1024];
            ready(()).await;
            Ok(id + array.len() as u64)
        }
        #[limit_request_per_time("item", 1, Days, 1, key = id)]
    }
    compare! {
        "a large argument", 0, (id: [u64; 128] = [1; 128]) { Ok(id[0]) }
        #[limit_request_per_time("item", 1, Days, 1, key = id[0])]
    }
    compare! {
        "a large argument over an await", 0, (id: [u64; 128] = [1; 128]) { ready(()).await; Ok(id[0]) }
        #[limit_request_per_time("item", 1, Days, 1, key = id[0])]
    }
    compare! {
        "a large argument over a large await", 0, (id: [u64; 128] = [1; 128]) {
            let array = [1_u8; 1024];
            ready(()).await;
            Ok(id[0] + array.len() as u64)
        }
        #[limit_request_per_time("item", 1, Days, 1, key = id[0])]
    }
    compare! {
        "three rules", 0, (id: u64 = 1) { Ok(id) }
        #[limit_request_per_time("one", 1, Days, 1, key = id)]
        #[limit_request_per_time("two", 1, Days, 1, key = (id, "long enough to be on the heap"), cost = id)]
        #[limit_request_per_time("three", 1, Days, count = id)]
    }
    compare! {
        "three rules, 1 KiB over an await", 0, (id: u64 = 1) {
            let array = [1_u8; 1024];
            ready(()).await;
            Ok(id + array.len() as u64)
        }
        #[limit_request_per_time("one", 1, Days, 1, key = id)]
        #[limit_request_per_time("two", 1, Days, 1, key = id)]
        #[limit_request_per_time("three", 1, Days, 1)]
    }
    compare! {
        "waits", 0, (id: u64 = 1) { Ok(id) }
        #[limit_request_per_time("item", 1, Days, 1, key = id, on_limit = Wait(max = "1s"))]
    }
    compare! {
        "returns", 0, (id: u64 = 1) { Ok(id) }
        #[limit_request_per_time("item", 1, Days, 1, key = id, on_limit = Return(Ok(refused.limit())))]
    }
    compare! {
        "an owned key", 0, (id: String = String::new()) { Ok(id.len() as u64) }
        #[limit_request_per_time("item", 1, Days, 1, key = id)]
    }
    compare! {
        "a limiter", 0, (limiter: Limiter = Limiter::unlimited()) { keep(&limiter); Ok(1) }
        #[limit_request_per_time("item", 1, Days, 1, limiter = &limiter)]
    }
    compare! {
        "a place", size_of::<Permit>(), (id: u64 = 1) { ready(()).await; Ok(id) }
        #[limit_concurrent_requests("item", 1, key = id)]
    }
    compare! {
        "a place, 1 KiB over an await", size_of::<Permit>(), (id: u64 = 1) {
            let array = [1_u8; 1024];
            ready(()).await;
            Ok(id + array.len() as u64)
        }
        #[limit_concurrent_requests("item", 1, key = id)]
    }
    compare! {
        "the time it takes", size_of::<Permit>(), (id: u64 = 1) { ready(()).await; Ok(id) }
        #[limit_request_per_time("item", 1, Days, 1, algorithm = SlidingLog, cost = Elapsed, key = id)]
    }
    compare! {
        "a permit that is not used", size_of::<Permit>(), (id: u64 = 1) { ready(()).await; Ok(id) }
        #[limit_request_per_time("item", 1, Days, 1, key = id, permit = _permit)]
    }
}

/// The body names the permit, so there is no plain function to compare with.
#[test]
fn the_future_grows_by_a_bound_permit_only() {
    async fn ask(id: u64) -> R {
        let permit = Limiter::unlimited().acquire(&RULE, id).await?;
        ready(()).await;
        keep(&permit);
        Ok(id)
    }
    #[limit_request_per_time("item", 1, Days, 1, key = id, permit = permit)]
    async fn limited(id: u64) -> R {
        ready(()).await;
        keep(&permit);
        Ok(id)
    }
    let [ask, limited] = [size_of_val(&ask(1)), size_of_val(&send_and_static(limited(1)))];
    println!("{:<40} {:>6} {ask:>6} {limited:>6}, of them {}", "a permit", "", size_of::<Permit>());
    assert!(limited <= ask, "{limited} > {ask}");
}

/// The body is in a block of its own, which captures the arguments it uses once more.
#[test]
fn the_future_of_a_settled_body_grows_by_the_arguments_it_uses() {
    compare! {
        "settled", size_of::<Permit>() + size_of::<R>(), (id: u64 = 1) { ready(()).await; Ok(id) }
        #[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |_| 1), key = id)]
    }
    compare! {
        "settled, a large argument", size_of::<Permit>() + size_of::<R>() + 1024, (id: [u64; 128] = [1; 128]) {
            ready(()).await;
            Ok(id[0])
        }
        #[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |_| 1), key = id[0])]
    }
    compare! {
        "settled, 1 KiB over an await", size_of::<Permit>() + size_of::<R>(), (id: u64 = 1) {
            let array = [1_u8; 1024];
            ready(()).await;
            Ok(id + array.len() as u64)
        }
        #[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, |_| 1), key = id)]
    }
}

/// The size does not depend on the number of rules.
#[test]
fn the_part_of_the_future_that_asks_the_limiter_is_small() {
    let limiter = Limiter::unlimited();
    let one = size_of_val(&send_and_static(limiter.acquire(&RULE, 1)));
    let charges = [(&RULE, Key::new(1), 1), (&RULE, Key::new(2), 1), (&RULE, Key::new(3), 1)];
    assert_eq!(size_of_val(&limiter.acquire_all(&charges)), one);
    assert!(one <= 152, "{one}"); // two words of it are a share in a decision that others have a share in too
}

/// The future is `Send` if the body's is: what is not, in the body or an argument, stays possible.
#[tokio::test]
async fn the_future_of_a_body_that_is_not_send_compiles() {
    #[limit_request_per_time("item", 1, Days, 1, key = id)]
    async fn call(id: Rc<u64>) -> R {
        let other = Rc::clone(&id);
        ready(()).await;
        Ok(*other)
    }
    assert_eq!(Limiter::in_memory().scope(call(Rc::new(1))).await.unwrap(), 1);
}
