//! The body of a response of a layer.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::request_hold::BodyHold;

pin_project! {
    /// The response body of a [`RateLimitLayer`](super::RateLimitLayer): the service's, or that of a
    /// refusal.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        service: Option<B>,
        refusal: Option<Bytes>,
        hold: Option<BodyHold>,
    }
}

impl<B> LimitedBody<B> {
    pub(super) fn of_service(body: B, hold: Option<BodyHold>) -> Self {
        Self { service: Some(body), refusal: None, hold }
    }

    pub(super) fn of_refusal(body: Bytes) -> Self {
        Self { service: None, refusal: Some(body).filter(|body| !body.is_empty()), hold: None }
    }

    /// The body of the service, or the text of a refusal.
    pub(super) fn parts(&self) -> Result<&B, &[u8]> {
        self.service.as_ref().ok_or(self.refusal.as_deref().unwrap_or_default())
    }

    /// Polls the next part of the service's body, of a type `T` that data can be made into, or the
    /// text of a refusal.
    pub(super) fn poll_part<T, E>(
        self: Pin<&mut Self>,
        poll: impl FnOnce(Pin<&mut B>) -> Poll<Option<Result<T, E>>>,
        part_of: impl FnOnce(Bytes) -> T,
        data_of: impl FnOnce(&T) -> Option<&Bytes>,
        is_last: impl FnOnce(&T, &B) -> bool,
    ) -> Poll<Option<Result<T, E>>> {
        let mut body = self.project();
        let Some(mut service) = body.service.as_mut().as_pin_mut() else {
            return Poll::Ready(body.refusal.take().map(|text| Ok(part_of(text))));
        };
        let polled = poll(service.as_mut());
        if let (Some(hold), Poll::Ready(part)) = (body.hold, &polled) {
            if let Some(Ok(part)) = part
                && let Some(data) = data_of(part)
            {
                hold.add(data);
            }
            match part {
                None => hold.end(),
                // A server does not ask for more after the last part.
                Some(Ok(part)) if is_last(part, &service) => hold.end(),
                Some(Ok(_)) => {}
                Some(Err(_)) => hold.fail(),
            }
        }
        polled
    }
}

impl<B: Default> Default for LimitedBody<B> {
    fn default() -> Self {
        Self::of_service(B::default(), None)
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let is_last = |frame: &Frame<Bytes>, service: &B| frame.is_trailers() || service.is_end_stream();
        self.poll_part(|service| service.poll_frame(context), Frame::data, Frame::data_ref, is_last)
    }

    fn is_end_stream(&self) -> bool {
        self.parts().map_or_else(<[u8]>::is_empty, Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.parts().map_or_else(|refusal| SizeHint::with_exact(refusal.len() as u64), Body::size_hint)
    }
}
