//! Events for whoever watches: one ring for all clients, so that a slow one costs nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, timeout};

use crate::auth::Caller;

/// A sign of life where nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// An event for those who watch.
#[derive(Clone, Debug)]
pub struct Message {
    /// Project of its plan.
    pub project: String,
    /// Plan.
    pub plan: String,
    /// `event` for what happens in a run, `plan` for a new state of a plan, `live` for rates.
    pub event: &'static str,
    /// JSON in one line.
    pub data: String,
}

/// Where events go in. Clones share one ring.
#[derive(Clone, Debug)]
pub struct EventHub {
    ring: Sender<Arc<(u64, Message)>>,
    number: Arc<AtomicU64>,
}

impl EventHub {
    /// A hub that keeps so many events.
    pub fn new(events: usize) -> EventHub {
        EventHub { ring: Sender::new(events.max(1)), number: Arc::default() }
    }

    /// Tells all who watch; never waits.
    pub fn publish(&self, message: Message) {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        // Nobody may watch.
        let _ = self.ring.send(Arc::new((number, message)));
    }

    /// Whether somebody watches.
    pub fn is_watched(&self) -> bool {
        self.ring.receiver_count() > 0
    }

    /// How many watch.
    pub fn watchers(&self) -> usize {
        self.ring.receiver_count()
    }
}

/// A client of the stream.
struct Client {
    ring: Receiver<Arc<(u64, Message)>>,
    caller: Caller,
    plan: Option<String>,
    stopping: watch::Receiver<bool>,
    until: Instant,
    greeted: bool,
    _permit: OwnedSemaphorePermit,
}

impl Client {
    async fn next(&mut self) -> Option<String> {
        if !self.greeted {
            self.greeted = true;
            return Some("retry: 2000\nevent: hello\ndata: {}\n\n".into());
        }
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() || *self.stopping.borrow() {
                return None;
            }
            let received = tokio::select! {
                received = timeout(HEARTBEAT.min(left), self.ring.recv()) => received,
                _ = self.stopping.changed() => return None,
            };
            match received {
                Err(_) => return Some(": still here\n\n".into()),
                Ok(Ok(message)) if self.wants(&message.1) => {
                    let (number, message) = (message.0, &message.1);
                    return Some(format!(
                        "id: {number}\nevent: {}\ndata: {}\n\n",
                        message.event, message.data
                    ));
                }
                Ok(Ok(_)) => {}
                // It was too slow: what it knows is old.
                Ok(Err(RecvError::Lagged(_))) => return Some("event: reset\ndata: {}\n\n".into()),
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    fn wants(&self, message: &Message) -> bool {
        self.caller.sees(&message.project) && self.plan.as_ref().is_none_or(|plan| *plan == message.plan)
    }
}

/// The answer to who wants to watch.
pub(crate) fn watch_events(
    hub: &EventHub,
    caller: Caller,
    plan: Option<String>,
    stopping: watch::Receiver<bool>,
    time: Duration,
    permit: OwnedSemaphorePermit,
) -> Response {
    let until = Instant::now() + time;
    let client =
        Client { ring: hub.ring.subscribe(), caller, plan, stopping, until, greeted: false, _permit: permit };
    let stream = stream::unfold(client, |mut client| async move {
        let text = client.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), client))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
}
