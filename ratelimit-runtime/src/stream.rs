//! Streams whose items are limited (feature `stream`).

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::Stream;
use pin_project_lite::pin_project;

use crate::{
    Key, Limiter, RateKey, RequestPerMinute, Rule,
    engine::{
        acquire::Acquire,
        options::{AcquireOptions, OnLimit},
        request::RequestKey,
    },
};

pin_project! {
    /// A stream whose items wait until a rule admits them. Made by [`Limiter::limit_stream`].
    #[must_use = "a stream does nothing unless it is polled"]
    pub struct LimitedStream<S: Stream> {
        #[pin]
        stream: S,
        limiter: Limiter,
        rule: Rule,
        key: Key,
        // An item that is not admitted yet, and the call that waits for it.
        item: Option<S::Item>,
        call: Option<Acquire>,
    }
}

impl Limiter {
    /// The items of a stream, each as soon as the rule admits it. An item costs 1.
    ///
    /// An item is taken from the stream first, and then waits its turn like a call with
    /// `on_limit = Wait`. So the end of the stream charges nothing, and at most one item is taken
    /// ahead. Several streams and calls may share the counter.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::time::Duration;
    /// use futures_util::{StreamExt as _, stream};
    ///
    /// const ROWS: Rule = Rule::new("rows", 100, Duration::from_secs(1));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let limiter = Limiter::in_memory();
    /// let mut rows = limiter.limit_stream(&ROWS, "import", stream::iter(["one", "two"]));
    /// while let Some(row) = rows.next().await {
    ///     println!("{}", row?); // at most 100 a second
    /// }
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// The stream has a [`RequestPerMinute`] in place of an item that cannot be admitted. The item is
    /// kept, and the next poll asks for it again.
    ///
    /// - [`Cause::Unavailable`](crate::Cause::Unavailable). While the store is known to be away, each poll returns it
    ///   at once, so pause.
    /// - [`Cause::Misconfigured`](crate::Cause::Misconfigured) and [`Cause::NeverFits`](crate::Cause::NeverFits),
    ///   which no later poll changes, unless the rules file does. A rule with
    ///   [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) is misconfigured here.
    /// - [`Cause::Exceeded`](crate::Cause::Exceeded) after [`Limiter::close`], or if
    ///   [`Builder::max_waiting`](crate::Builder::max_waiting) callers wait. Each poll returns it at once, so stop,
    ///   or pause for its `retry_after`.
    ///
    /// # Cancellation
    ///
    /// A stream that is dropped leaves its queue. An item that waits is dropped with it.
    ///
    /// To drop the future of `next` cancels nothing: the stream keeps its position in the wait queue. While it is not
    /// polled, it blocks the callers behind it, as [`Limiter::acquire_within`] says. Drop the stream, or poll it.
    ///
    /// # Panics
    ///
    /// Polling it panics as [`Limiter::acquire_within`] does.
    pub fn limit_stream<S: Stream, K: RateKey>(&self, rule: &Rule, key: K, stream: S) -> LimitedStream<S> {
        LimitedStream { stream, limiter: self.clone(), rule: *rule, key: Key::new(key), item: None, call: None }
    }
}

impl<S: Stream> Stream for LimitedStream<S> {
    type Item = Result<S::Item, RequestPerMinute>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if this.item.is_none() {
            *this.item = ready!(this.stream.poll_next(context));
            if this.item.is_none() {
                return Poll::Ready(None);
            }
        }
        let call = this.call.get_or_insert_with(|| {
            let key = if this.rule.is_concurrent() {
                RequestKey::Invalid("an item of a stream holds no place; limit streams by a rule per time")
            } else {
                RequestKey::Some(this.key.clone())
            };
            let options = AcquireOptions::new(OnLimit::Wait(None), None);
            Acquire::single(this.limiter.engine_ref(), this.rule, key, 1, options)
        });
        let admitted = ready!(Pin::new(call).poll(context));
        *this.call = None;
        Poll::Ready(match admitted {
            Ok(_) => this.item.take().map(Ok),
            Err(refused) => Some(Err(refused)),
        })
    }

    /// The lower bound of the stream's own. A refusal is an element more.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let (least, _) = self.stream.size_hint();
        (least.saturating_add(usize::from(self.item.is_some())), None)
    }
}

impl<S: Stream + fmt::Debug> fmt::Debug for LimitedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedStream").field("stream", &self.stream).field("rule", &self.rule).finish_non_exhaustive()
    }
}
