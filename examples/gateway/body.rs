//! Bodies that may not pause for long.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::BoxError;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::{
    sync::Notify,
    time::{Sleep, sleep},
};

/// A body that fails with [`Paused`] if its next part takes too long.
pub(crate) struct TimedBody<B> {
    body: B,
    longest_pause: Duration,
    pause: Option<Pin<Box<Sleep>>>,
    progress: Progress,
}

/// Notified of each part of the body of a request.
#[derive(Clone, Default)]
pub(crate) struct Progress(pub(crate) Arc<Notify>);

/// The sender of a body has paused for too long.
#[derive(Debug)]
pub(crate) struct Paused;

impl<B> TimedBody<B> {
    pub(crate) fn new(body: B, longest_pause: Duration) -> Self {
        Self { body, longest_pause, pause: None, progress: Progress::default() }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for TimedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.pause = None;
            self.progress.0.notify_one();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let longest_pause = self.longest_pause;
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(longest_pause)));
        pause.as_mut().poll(context).map(|()| Some(Err(Paused.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body paused for too long")
    }
}

impl Error for Paused {}
