//! Free functions: their generics, arguments and attributes.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard};

use axum::extract::Path;
use ratelimit_runtime::{
    FromRefusal, Limiter, RateKey, RequestPerMinute, limit_concurrent_requests, limit_request_per_time,
};

use super::{R, exceeded, limits_each_key, send};

#[tokio::test]
async fn a_free_function_is_limited() {
    #[limit_request_per_time(prefix = "item", ttl = 1, unit = Hours, count = 1, key = id)]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    limits_each_key(call).await;
}

#[tokio::test]
async fn calls_without_a_key_share_one_counter() {
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    let calls = async {
        assert_eq!(call(1).await.unwrap(), 1);
        exceeded(call(2).await);
    };
    Limiter::in_memory().scope(calls).await;
}

/// The instances of a generic function share a counter.
#[tokio::test]
async fn instances_of_a_generic_function_share_a_counter() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    async fn call<T>(id: T) -> R<T>
    where
        T: RateKey + Send,
    {
        Ok(id)
    }
    limits_each_key(call).await;
    let calls = async {
        assert_eq!(call::<u8>(1).await.unwrap(), 1);
        exceeded(call::<u64>(1).await);
        exceeded(call("1").await);
        assert_eq!(call("2").await.unwrap(), "2");
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn a_const_generic_parameter_may_be_the_count() {
    #[limit_request_per_time("item", N, Hours, count = const { N }, key = (id, N), cost = const { N })]
    async fn call<const N: u64>(id: u64) -> R {
        Ok(id)
    }
    limits_each_key(call::<1>).await;
    let calls = async {
        call::<3>(1).await.unwrap();
        let refused = exceeded(call::<3>(1).await);
        assert_eq!((refused.limit(), refused.period().as_secs()), (3, 3 * 3600));
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn a_const_generic_parameter_of_another_type_may_be_the_count() {
    #[limit_request_per_time("item", 1, Hours, const { M as u64 }, key = M)]
    async fn call<const M: usize>() -> R<[u8; M]> {
        Ok([0; M])
    }
    let calls = async {
        call::<1>().await.unwrap();
        exceeded(call::<1>().await);
        for _ in 0..2 {
            call::<2>().await.unwrap();
        }
        assert_eq!(exceeded(call::<2>().await).limit(), 2);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn a_function_with_lifetimes_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    async fn call<'a, 'b: 'a>(id: &'a str, other: &'b str) -> R<(&'a str, &'b str)> {
        tokio::task::yield_now().await;
        Ok((id, other))
    }
    let calls = async {
        let id = String::from("1");
        assert_eq!(call(&id, "other").await.unwrap(), ("1", "other"));
        exceeded(call(&id, "other").await);
        call("2", "other").await.unwrap();
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn a_function_with_an_impl_trait_argument_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = &id)]
    async fn call(id: impl RateKey + Copy + Into<u64>, with: impl Fn(u64) -> u64) -> R {
        Ok(with(id.into()))
    }
    limits_each_key(async |id| call(id, |id| id).await).await;
}

#[tokio::test]
async fn arguments_may_be_destructured() {
    struct Request {
        id: u64,
        name: &'static str,
        _rest: (),
    }
    #[limit_request_per_time("item", 1, Hours, 1, key = (a, id, first))]
    async fn call((a, b): (u64, &str), Request { id, name, .. }: Request, &[first, _]: &[u64; 2]) -> R {
        assert_eq!((b, name), ("b", "name"));
        Ok((a + id + first) / 3)
    }
    limits_each_key(async |id| call((id, "b"), Request { id, name: "name", _rest: () }, &[id, 0]).await).await;
}

#[tokio::test]
async fn an_axum_extractor_may_be_destructured() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    async fn call(Path(id): Path<u64>) -> R {
        Ok(id)
    }
    limits_each_key(async |id| call(Path(id)).await).await;
}

#[tokio::test]
async fn arguments_may_be_mutable_or_ignored() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    async fn call(mut id: u64, _: u64, _unused: u64) -> R {
        id += 1;
        Ok(id - 1)
    }
    limits_each_key(async |id| call(id, 0, 0).await).await;
}

#[tokio::test]
async fn arguments_and_functions_may_have_raw_names() {
    #[limit_request_per_time("item", 1, Hours, 1, key = r#type)]
    async fn r#loop(r#type: u64) -> R {
        Ok(r#type)
    }
    limits_each_key(r#loop).await;
}

/// A key is borrowed, and so are its parts: the body still owns the argument.
#[tokio::test]
async fn a_key_is_borrowed_from_the_arguments() {
    struct Request {
        name: String,
        owner: (String, u64),
    }
    #[limit_request_per_time("str", 1, Hours, 1, key = name)]
    async fn of_str(name: &str) -> R<String> {
        Ok(name.to_owned())
    }
    #[limit_request_per_time("string", 1, Hours, 1, key = name)]
    async fn of_string(name: &String) -> R<String> {
        Ok(name.clone())
    }
    #[limit_request_per_time("owned", 1, Hours, 1, key = name)]
    async fn owned(name: String) -> R<String> {
        drop(async move { drop(name) });
        Ok("1".into())
    }
    #[limit_request_per_time("field", 1, Hours, 1, key = (request.name, (request.owner.0, request.owner.1)))]
    async fn field(request: &mut Request) -> R<String> {
        request.owner.1 += 1;
        Ok(request.name.clone())
    }
    #[limit_request_per_time("parts", 1, Hours, 1, key = (request.name, request.owner))]
    async fn owned_parts(request: Request) -> R<String> {
        drop(request.owner);
        Ok(request.name)
    }
    #[limit_request_per_time("borrowed", 1, Hours, 1, key = &(request.name, request.owner))]
    async fn borrowed_parts(request: Request) -> R<String> {
        drop(request.owner);
        Ok(request.name)
    }
    #[limit_request_per_time("parentheses", 1, Hours, 1, key = (("v1", ((request.name, request.owner)))))]
    async fn parts_in_parentheses(request: Request) -> R<String> {
        drop(request.owner);
        Ok(request.name)
    }
    #[limit_request_per_time("part", 1, Hours, 1, key = request.name)]
    async fn owned_field(request: Request) -> R<String> {
        Ok(request.name)
    }
    #[limit_request_per_time("slice", 1, Hours, 1, key = name[..1])]
    async fn slice(name: &str) -> R<String> {
        Ok(name[..1].to_owned())
    }
    #[limit_request_per_time("dereferenced", 1, Hours, 1, key = *name)]
    async fn dereferenced(name: &str) -> R<String> {
        Ok(name.to_owned())
    }
    async fn twice(mut call: impl AsyncFnMut(String) -> R<String>) {
        assert_eq!(call("1".into()).await.unwrap(), "1");
        exceeded(call("1".into()).await);
        call("2".into()).await.unwrap();
    }
    let request = |name| Request { name, owner: ("owner".into(), 7) };
    let calls = async {
        twice(async |name| of_str(&name).await).await;
        twice(async |name| of_string(&name).await).await;
        twice(owned).await;
        twice(async |name| field(&mut request(name)).await).await;
        twice(async |name| owned_parts(request(name)).await).await;
        twice(async |name| borrowed_parts(request(name)).await).await;
        twice(async |name| parts_in_parentheses(request(name)).await).await;
        twice(async |name| owned_field(request(name)).await).await;
        twice(async |name| dereferenced(&name).await).await;
        twice(async |name| slice(&(name + "more")).await).await;
    };
    Limiter::in_memory().scope(calls).await;
}

/// A lock that the key needs is released before the limiter is asked: the future may move between threads, and the body
/// may lock again.
#[tokio::test]
async fn a_lock_in_the_key_is_released_before_the_limiter_is_asked() {
    #[limit_request_per_time("item", 1, Hours, 1, key = *id.lock().unwrap())]
    async fn call(id: &Mutex<u64>) -> R {
        let id = *id.try_lock().unwrap();
        tokio::task::yield_now().await;
        Ok(id)
    }
    limits_each_key(async |id| send(call(&Mutex::new(id))).await).await;
}

/// Each value locks what the one before it has locked.
#[tokio::test]
async fn each_value_may_take_the_same_lock() {
    struct State {
        limiter: Limiter,
        seven: Mutex<u64>,
    }
    impl State {
        fn seven(&self) -> MutexGuard<'_, u64> {
            self.seven.try_lock().expect("it is released")
        }
    }
    #[limit_request_per_time("item", 1, Hours, *state.seven(), cost = *state.seven(), key = (*state.seven(), id))]
    #[limit_request_per_time("other", 1, Hours, 9, key = *state.seven(), limiter = &state.limiter)]
    async fn call(state: &State, id: u64) -> R {
        let seven = *state.seven();
        tokio::task::yield_now().await;
        Ok(id + seven - 7)
    }
    let state = State { limiter: Limiter::in_memory(), seven: Mutex::new(7) };
    assert_eq!(send(call(&state, 1)).await.unwrap(), 1);
    assert_eq!(exceeded(send(call(&state, 1)).await).limit(), 7);
    assert_eq!(send(call(&state, 2)).await.unwrap(), 2);
}

/// A lock that the limiter needs is taken after those of the values.
#[tokio::test]
async fn the_limiter_and_the_values_may_take_the_same_lock() {
    struct State {
        limiter: Limiter,
        id: u64,
    }
    fn open(state: &Mutex<State>) -> MutexGuard<'_, State> {
        state.try_lock().expect("it is released")
    }
    #[limit_request_per_time("item", 1, Hours, 2, key = open(state).id, limiter = &open(state).limiter)]
    async fn one(state: &Mutex<State>) -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Hours, 2, key = open(state).id, limiter = &open(state).limiter)]
    #[limit_request_per_time("other", 1, Hours, 9, key = open(state).id, cost = open(state).id)]
    async fn two(state: &Mutex<State>) -> R<()> {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Hours, 2, key = open(state).id, limiter = &open(state).limiter)]
    #[limit_concurrent_requests("place", 1, key = open(state).id)]
    async fn held(state: &Mutex<State>) -> R<()> {
        Ok(())
    }
    let state = Mutex::new(State { limiter: Limiter::in_memory(), id: 7 });
    send(one(&state)).await.unwrap();
    send(two(&state)).await.unwrap();
    exceeded(send(two(&state)).await);
    exceeded(send(one(&state)).await);
    open(&state).id = 8;
    send(held(&state)).await.unwrap();
}

/// Each call of a function that calls itself counts.
#[tokio::test]
async fn each_call_of_a_recursive_function_counts() {
    #[limit_request_per_time("item", 1, Hours, 3)]
    async fn call(depth: u64) -> R {
        if depth == 0 {
            return Ok(0);
        }
        Ok(Box::pin(call(depth - 1)).await? + 1)
    }
    let limiter = Limiter::in_memory();
    exceeded(limiter.scope(call(3)).await);
    let limiter = Limiter::in_memory();
    assert_eq!(limiter.scope(call(2)).await.unwrap(), 2);
    exceeded(limiter.scope(call(0)).await);
}

#[tokio::test]
async fn the_key_may_be_a_block_expression() {
    const KEYS: [u64; 3] = [0, 1, 2];
    #[limit_request_per_time("item", 1, Hours, 1, key = { let [_, rest @ ..] = &KEYS; rest[usize::from(id == 2)] })]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    limits_each_key(call).await;
}

#[tokio::test]
async fn must_use_of_a_function_is_kept() {
    #[derive(Debug)]
    struct Answer;
    impl FromRefusal for Answer {
        fn from_refusal(_: RequestPerMinute) -> Self {
            panic!("refused")
        }
    }
    #[limit_request_per_time("above", 1, Hours, 1)]
    #[must_use = "or else"]
    async fn above() -> Answer {
        Answer
    }
    #[must_use = "or else"]
    #[limit_request_per_time("below", 1, Hours, 1)]
    async fn below() -> Answer {
        Answer
    }
    let calls = async {
        #[expect(unused_must_use)]
        {
            above().await;
        }
        #[expect(unused_must_use)]
        {
            below().await;
        }
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn other_attributes_of_a_function_are_kept() {
    /// Documentation of the function.
    #[inline]
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    #[cfg(test)]
    #[deprecated = "it is old"]
    /// And more.
    async fn call(id: u64) -> R {
        #![expect(unused_variables)]
        let unused = 1;
        Ok(id)
    }
    #[expect(deprecated)]
    limits_each_key(async |id| call(id).await).await;
}

#[tokio::test]
async fn an_attribute_may_be_switched_by_cfg() {
    mod functions {
        use super::super::R;
        use super::limit_request_per_time;

        #[limit_request_per_time("item", 1, Hours, 1, key = id)]
        #[cfg(not(test))]
        pub(super) async fn call(id: Missing) -> R {}

        #[cfg(not(test))]
        #[limit_request_per_time("item", 1, Hours, 1, key = id)]
        pub(super) async fn call(id: Missing) -> R {}

        #[cfg_attr(test, limit_request_per_time("item", 1, Hours, 1, key = id))]
        #[cfg_attr(not(test), missing)]
        pub(super) async fn call(
            id: u64,
            #[cfg(not(test))] other: Missing,
            #[cfg(test)] _more: u64,
            #[allow(unused)] more: u64,
        ) -> R {
            Ok(id)
        }
    }
    limits_each_key(async |id| functions::call(id, 1, 2).await).await;
}

#[tokio::test]
async fn a_function_inside_a_function_body_is_limited() {
    let limits = {
        #[limit_request_per_time("item", 1, Hours, 1, key = id)]
        async fn call(id: u64) -> R {
            Ok(id)
        }
        limits_each_key(call)
    };
    limits.await;
}

#[tokio::test]
async fn a_function_that_returns_impl_trait_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    async fn call(id: u64) -> R<impl Iterator<Item = u64>> {
        Ok(std::iter::once(id))
    }
    limits_each_key(async |id| call(id).await.map(|mut one| one.next().unwrap())).await;
}

#[tokio::test]
async fn a_function_that_never_returns_is_limited() {
    #[limit_request_per_time("item", 1, Hours, 1)]
    async fn call<T: Display>() -> R<T> {
        std::future::pending().await
    }
    let calls = async {
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(1), call::<u64>());
        waiting.await.unwrap_err();
        exceeded(call::<String>().await);
    };
    Limiter::in_memory().scope(calls).await;
}
