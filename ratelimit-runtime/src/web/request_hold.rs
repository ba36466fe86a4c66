//! The holds of a request, and their settlement by its response.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, StatusCode, header::CONTENT_LENGTH, response::Parts};

use super::settle_by::{BodyMeter, ResponseCost, SettleBy};
use crate::{Permit, observe::LogThrottle};

/// The place that a request holds by [`Algorithm::Concurrent`](crate::Algorithm::Concurrent), and
/// the cost that it holds by [`Limit::settle`](super::Limit::settle), in the extensions of the
/// request.
///
/// A place is held until the body of the response ends and all clones of this are dropped. The body
/// of an upgrade (`101 Switching Protocols`, or a `CONNECT`) ends at once. A service that upgrades a
/// connection, for example to a WebSocket, must therefore keep a clone while it uses the connection.
/// If it does not, the log has a warning.
///
/// A cost is held until the response tells what was used, whatever clones there are; if the layer also
/// has a place, as long as the place. It is then charged what was used.
///
/// With `actix-web` there is nothing to keep: the messages of a WebSocket are the body of the response,
/// which ends with the connection.
///
/// ```
/// use http::{Request, Response};
/// use ratelimit_runtime::web::RequestHold;
///
/// async fn chat(mut request: Request<()>) -> Response<()> {
///     let hold = request.extensions_mut().remove::<RequestHold>();
///     tokio::spawn(async move {
///         // Uses the upgraded connection until it is closed, and then frees the place.
///         drop(hold);
///     });
///     Response::builder().status(101).body(()).unwrap()
/// }
/// ```
///
/// An `axum` handler takes it as `Option<Extension<RequestHold>>`.
#[derive(Clone)]
#[must_use = "the place is freed when all clones of this are dropped"]
pub struct RequestHold(Arc<LayerHold>);

/// The permit of one layer, and the holds of outer layers.
struct LayerHold {
    /// `None` once it is settled.
    permit: Mutex<Option<Permit>>,
    outer: Option<RequestHold>,
}

impl RequestHold {
    pub(super) fn new(permit: Permit, outer: Option<Self>) -> Self {
        Self(Arc::new(LayerHold { permit: Mutex::new(Some(permit)), outer }))
    }

    /// Settles the hold by what was used: now, unless it has a place, which is held on. `None`: with all that was
    /// held.
    pub(super) fn settle(&self, used: Option<Used>) {
        let mut permit = self.0.permit.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *permit, used) {
            (Some(permit), Some(Used::Exactly(used))) => permit.record(used),
            (Some(permit), Some(Used::AtLeast(used))) => permit.record_part(used),
            _ => {}
        }
        let settled = permit.take_if(|permit| !permit.holds_place());
        drop(permit);
        drop(settled);
    }

    /// Warns about a place that is freed before the upgraded connection ends. `own`: the clones that the layers have.
    fn check_upgrade(&self, own: usize) {
        static LOGGED: LogThrottle = LogThrottle::new();
        if Arc::strong_count(&self.0) > own {
            return; // the service keeps it
        }
        let permit = self.0.permit.lock().unwrap_or_else(PoisonError::into_inner);
        let has_place = permit.as_ref().is_some_and(Permit::holds_place);
        drop(permit);
        if has_place && LOGGED.allow() {
            tracing::warn!(
                "the place of an upgraded connection is freed at once, as the service keeps no `RequestHold`"
            );
        }
        if let Some(outer) = &self.0.outer {
            outer.check_upgrade(2); // this one, and that of its layer, which has still to see the response
        }
    }
}

impl fmt::Debug for RequestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHold").finish_non_exhaustive()
    }
}

/// The cost of a request, as far as its response tells.
#[derive(Clone, Copy)]
pub(super) enum Used {
    Exactly(u64),
    /// The body has not ended.
    AtLeast(u64),
}

/// Keeps the holds of a request until the body of its response has ended. Dropping it settles them,
/// with all that was held, at least, if the body has not ended.
pub(super) struct BodyHold {
    hold: RequestHold,
    meter: Option<BodyMeter>,
    /// The cost that the head of the response has told.
    pub(super) used_by_head: Option<u64>,
    used: u64,
    /// Bytes of the body that are still to come. `None` if their number is not known. After the last
    /// one a server may not ask for more, and drops the body.
    left: Option<u64>,
}

impl BodyHold {
    /// Settles by the head of a response, if it tells the cost, and at once if there is no body.
    /// `length`: of the body, if the server knows it.
    pub(super) fn new(
        hold: RequestHold,
        settle_by: Option<SettleBy>,
        method: &Method,
        response: &Parts,
        length: Option<u64>,
    ) -> Self {
        let status = response.status;
        let is_upgrade = status == StatusCode::SWITCHING_PROTOCOLS || *method == Method::CONNECT && status.is_success();
        let has_body = !is_upgrade && *method != Method::HEAD;
        let mut used_by_head = None;
        let meter = settle_by.and_then(|by| match by.cost_of(response, has_body) {
            ResponseCost::Known(used) => {
                hold.settle(Some(Used::Exactly(used)));
                used_by_head = Some(used);
                None
            }
            ResponseCost::Measured(meter) => Some(meter),
            ResponseCost::Unknown => {
                hold.settle(None);
                None
            }
        });
        let announced = || response.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        let mut body = Self { hold, meter, used_by_head, used: 0, left: length.or_else(announced) };
        if length == Some(0) {
            if is_upgrade {
                body.hold.check_upgrade(2); // this one, and that of the request
            }
            body.end();
        }
        body
    }

    /// Takes a part of the body in.
    pub(super) fn add(&mut self, part: &[u8]) {
        let Some(meter) = &mut self.meter else { return };
        self.used = self.used.saturating_add(meter(part));
        self.left = self.left.map(|left| left.saturating_sub(part.len() as u64));
    }

    /// The body has failed or was dropped. Before its end, more may have been used than was seen.
    pub(super) fn fail(&mut self) {
        if self.left == Some(0) {
            self.end();
        }
        if self.meter.take().is_some() {
            self.hold.settle(Some(Used::AtLeast(self.used)));
        }
    }

    /// The body has ended: its cost is known.
    pub(super) fn end(&mut self) {
        if self.meter.take().is_some() {
            self.hold.settle(Some(Used::Exactly(self.used)));
        }
    }
}

impl Drop for BodyHold {
    fn drop(&mut self) {
        self.fail();
    }
}

impl fmt::Debug for BodyHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyHold").field("used", &self.used).finish_non_exhaustive()
    }
}
