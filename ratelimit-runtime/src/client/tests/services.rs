//! Calls through services that have few places, or fail.

use super::*;

/// A service that is ready for some calls at a time.
pub(super) struct Few {
    places: Arc<Semaphore>,
    waiting: Option<Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>>,
    place: Option<OwnedSemaphorePermit>,
    time: Duration,
    says: &'static str,
    sent: Arc<AtomicUsize>,
}

impl Few {
    pub(super) fn new(places: usize, time: Duration, says: &'static str) -> Self {
        let (places, sent) = (Arc::new(Semaphore::new(places)), Arc::default());
        Self { places, waiting: None, place: None, time, says, sent }
    }
}

impl Clone for Few {
    fn clone(&self) -> Self {
        let (places, sent) = (Arc::clone(&self.places), Arc::clone(&self.sent));
        Self { places, waiting: None, place: None, time: self.time, says: self.says, sent }
    }
}

impl Service<Request<()>> for Few {
    type Response = Response<()>;
    type Error = ();
    type Future = Pin<Box<dyn Future<Output = Result<Response<()>, ()>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
        if self.place.is_none() {
            let places = Arc::clone(&self.places);
            let waiting = self.waiting.get_or_insert_with(|| Box::pin(async { places.acquire_owned().await.unwrap() }));
            self.place = Some(ready!(waiting.as_mut().poll(context)));
            self.waiting = None;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let (place, time, says) = (self.place.take().unwrap(), self.time, self.says);
        self.sent.fetch_add(1, SeqCst);
        Box::pin(async move {
            sleep(time).await;
            drop(place);
            Ok(Response::builder().header("RateLimit", says).body(()).unwrap())
        })
    }
}

pub(super) fn all_sent(outgoing: &Outgoing, service: &Few, calls: usize) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for _ in 0..calls {
        let client = outgoing.layer(service.clone());
        all.spawn(async move { drop(client.oneshot(request()).await.unwrap()) });
    }
    all
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_the_service_keep_their_credits() {
    let outgoing = Outgoing::new(Limiter::in_memory());
    let service = Few::new(4, 10 * MS, "\"api\";r=100;t=60");
    let all = all_sent(&outgoing, &service, 200);
    sleep(50 * SECOND).await;
    assert_eq!(service.sent.load(SeqCst), 101);
    drop(all);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_window_holds_no_place_in_the_service() {
    let outgoing = Outgoing::new(Limiter::in_memory());
    let service = Few::new(1, 1500 * MS, "\"api\";r=3;t=1");
    let began = Instant::now();
    all_sent(&outgoing, &service, 6).join_all().await;
    // A probe that waits for a place is replaced after 10 seconds.
    assert!(began.elapsed() < 15 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_another_process_is_seen_when_the_service_is_ready() {
    let limiter = Limiter::in_memory();
    let [one, other] = [(); 2].map(|()| Outgoing::new(limiter.clone()).retries(0));
    let service = Few::new(1, 5 * SECOND, "\"api\";r=100;t=60");
    answered(&one, 200, "RateLimit", "\"api\";r=100;t=60").await;
    let _all = all_sent(&one, &service, 5);
    sleep(SECOND).await;
    assert_eq!(answered(&other, 429, "Retry-After", "30").await, 429);
    sleep(20 * SECOND).await;
    assert_eq!(service.sent.load(SeqCst), 1);
}

/// A service that is never ready.
#[derive(Clone)]
struct Broken;

impl Service<Request<()>> for Broken {
    type Response = Response<()>;
    type Error = ();
    type Future = future::Pending<Result<Response<()>, ()>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Err(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        pending()
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_found_the_service_broken_is_not_in_flight() {
    let limiter = Limiter::in_memory();
    let outgoing = Outgoing::new(limiter.clone()).retries(0);
    answered(&outgoing, 200, "RateLimit", "\"api\";r=100;t=60").await;
    outgoing.layer(Broken).oneshot(request()).await.unwrap_err();
    assert_eq!(counters(&limiter).in_flight().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_before_the_service_is_ready_is_not_in_flight() {
    for is_probe in [true, false] {
        let limiter = Limiter::in_memory();
        let outgoing = Outgoing::new(limiter.clone()).retries(0);
        if !is_probe {
            answered(&outgoing, 200, "RateLimit", "\"api\";r=100;t=60").await;
        }
        let service = Few::new(0, MS, "");
        timeout(SECOND, outgoing.layer(service).oneshot(request())).await.unwrap_err();
        assert_eq!(counters(&limiter).in_flight().await.unwrap(), 0, "{is_probe}");
    }
}

/// The body of its response has the only place of the service.
#[tokio::test(start_paused = true)]
async fn a_retry_does_not_wait_for_the_response_before_it() {
    let (service, outgoing) = (Holds(Few::new(1, MS, "")), Outgoing::new(Limiter::in_memory()).retries(1));
    let answer = timeout(60 * SECOND, outgoing.layer(service).oneshot(request())).await.unwrap().unwrap();
    assert_eq!(answer.status(), 503);
}

/// [`Few`], whose responses keep the place.
#[derive(Clone)]
struct Holds(Few);

impl Service<Request<()>> for Holds {
    type Response = Response<Option<OwnedSemaphorePermit>>;
    type Error = ();
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ()>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let place = self.0.place.take();
        assert_eq!(self.0.places.available_permits(), 0);
        Box::pin(async move { Ok(Response::builder().status(503).body(place).unwrap()) })
    }
}

/// Refused there, a call would lose its credit.
#[tokio::test(start_paused = true)]
async fn the_longest_wait_does_not_include_the_wait_for_the_service() {
    let outgoing = Outgoing::new(Limiter::in_memory()).longest_wait(SECOND);
    answered(&outgoing, 200, "RateLimit", "\"api\";r=100;t=60").await;
    let service = Few::new(1, 2 * SECOND, "\"api\";r=90;t=60");
    assert_eq!(all_sent(&outgoing, &service, 5).join_all().await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn closing_the_limiter_ends_the_wait_for_the_service() {
    let limiter = Limiter::in_memory();
    let client = Outgoing::new(limiter.clone()).layer(Few::new(0, MS, ""));
    let call = tokio::spawn(client.oneshot(request()));
    sleep(SECOND).await;
    limiter.close().await;
    let refused = timeout(60 * SECOND, call).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(refused, OutgoingError::Refused(_)));
}

/// Another process has opened a window meanwhile, and used it up.
#[tokio::test(start_paused = true)]
async fn a_probe_that_waits_for_the_service_is_replaced() {
    let limiter = Limiter::in_memory();
    let [one, other] = [(); 2].map(|()| Outgoing::new(limiter.clone()));
    let service = Few::new(1, MS, "\"api\";r=9;t=300");
    let place = Arc::clone(&service.places).acquire_owned().await.unwrap();
    let _call = all_sent(&one, &service, 1);
    sleep(15 * SECOND).await;
    // One call is taken off as in flight, and one is kept for the next probe in 31 seconds.
    for _ in 0..3 {
        answered(&other, 200, "RateLimit", "\"api\";r=4;t=300").await;
    }
    sleep(25 * SECOND).await;
    drop(place);
    sleep(2 * SECOND).await;
    assert_eq!(service.sent.load(SeqCst), 0);
    sleep(10 * SECOND).await;
    assert_eq!(service.sent.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_begins_again_when_the_window_ends_during_the_wait_for_the_service() {
    let outgoing = Outgoing::new(Limiter::in_memory()).longest_wait(SECOND);
    answered(&outgoing, 200, "RateLimit", "\"api\";r=100;t=1").await;
    let service = Few::new(2, 500 * MS, "\"api\";r=100;t=60");
    let places = Arc::clone(&service.places).acquire_many_owned(2).await.unwrap();
    let calls = all_sent(&outgoing, &service, 2);
    sleep(5 * SECOND).await;
    drop(places);
    // One probes, and the other waits for its response.
    assert_eq!(calls.join_all().await.len(), 2);
}

#[test]
fn a_call_that_need_not_wait_needs_no_runtime() {
    let outgoing = Outgoing::new(Limiter::in_memory());
    let client = outgoing.layer(service_fn(async |_: Request<()>| Ok::<_, ()>(Response::new(()))));
    assert_eq!(client.oneshot(request()).now_or_never().unwrap().unwrap().status(), 200);
}

/// Others wait behind it: it would get its place no sooner again.
#[tokio::test(start_paused = true)]
async fn a_probe_that_waited_long_for_the_service_is_sent_if_no_window_is_open() {
    let outgoing = Outgoing::new(Limiter::in_memory());
    let service = Few::new(1, MS, "\"api\";r=9;t=300");
    let places = Arc::clone(&service.places);
    let place = Arc::clone(&places).acquire_owned().await.unwrap();
    let _call = all_sent(&outgoing, &service, 1);
    sleep(SECOND).await;
    let mut others = JoinSet::new();
    for _ in 0..100 {
        let places = Arc::clone(&places);
        others.spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            sleep(SECOND).await;
        });
    }
    sleep(20 * SECOND).await;
    drop(place);
    sleep(SECOND).await;
    assert_eq!(service.sent.load(SeqCst), 1);
}
