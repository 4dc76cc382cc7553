//! Sessions, as programs use them.

use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::core::Order;
use crate::error::LinkError;
use crate::peer::Peer;
use crate::rdma::RdmaState;
use crate::shared::Shared;
use crate::stats::{SessionState, SessionStats, StripeStats};

/// How long [`Session::close`] waits for what was sent to arrive.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// One side of a session: many connections that carry one set of channels. Cheap to clone.
///
/// A session outlives its connections: calls wait while there is none. It is closed when the last clone
/// and channel are gone; what was sent before still goes out in the background, as long as the process
/// lives.
#[derive(Clone)]
pub struct Session {
    handle: Arc<Handle>,
}

/// A session as somebody knows it who does not keep it open.
#[derive(Clone)]
pub struct WeakSession {
    handle: Weak<Handle>,
}

impl WeakSession {
    /// The session, if somebody else has it still.
    pub fn upgrade(&self) -> Option<Session> {
        self.handle.upgrade().map(|handle| Session { handle })
    }
}

/// What clones and channels hold.
pub struct Handle {
    pub shared: Arc<Shared>,
}

/// Somebody waits for the last byte of all that a session has under way, until this is dropped. See [`Session::hurry`].
#[must_use]
pub struct Hurry(Session);

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.shared().with(|inner, _| inner.core.take_time());
    }
}

/// A channel that the peer opened.
#[derive(Debug)]
pub struct Incoming {
    /// The channel.
    pub channel: Channel,
    /// How what is sent on it arrives.
    pub order: Order,
    /// What the peer said it is for.
    pub opening: Vec<u8>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.with(|inner, _| inner.core.close());
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session with {}", self.peer().name)
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Session {
        Session { handle: Arc::new(Handle { shared }) }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Opens a channel; the peer gets `opening` from [`Session::accept`].
    ///
    /// # Errors
    /// `Misuse` if the opening is longer than [`crate::OPENING_BYTES_MAX`] or [`crate::CHANNELS_MAX`] are
    /// open; `Closed`, `Lost`, `Protocol` when the session is over.
    pub fn open(&self, order: Order, opening: &[u8]) -> Result<Channel, LinkError> {
        self.shared().with(|inner, _| {
            let id = inner.core.open(order, opening)?;
            let waits = inner.waits(id);
            Ok(Channel::new(id, order, self.handle.clone(), waits))
        })
    }

    /// Waits for the next channel that the peer opens.
    ///
    /// # Errors
    /// `Closed`, `Lost`, `Protocol` when the session is over.
    pub fn accept(&self) -> Result<Incoming, LinkError> {
        let shared = self.shared();
        let mut inner = shared.lock();
        loop {
            if let Some((id, order, opening)) = inner.core.accept()? {
                let waits = inner.waits(id);
                let channel = Channel::new(id, order, self.handle.clone(), waits);
                return Ok(Incoming { channel, order, opening });
            }
            inner = shared.accept.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// From now on time counts more than the line: what was sent goes once more over another connection after a moment, and
    /// what takes longer than usual again, before what is new. For moments in which somebody waits for all that is under way.
    pub fn hurry(&self) -> Hurry {
        self.shared().with(|inner, _| inner.core.hurry());
        Hurry(self.clone())
    }

    /// The same without keeping it open.
    pub fn downgrade(&self) -> WeakSession {
        WeakSession { handle: Arc::downgrade(&self.handle) }
    }

    /// Whether both are clones of one.
    pub fn is_same(&self, other: &Session) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Who is on the other side.
    pub fn peer(&self) -> &Peer {
        &self.shared().peer
    }

    /// Closes the session: waits a few seconds for what was sent to arrive, then tells the peer. All other
    /// calls, of both sides, fail with `Closed`; what arrived before can still be received.
    pub fn close(&self) {
        let shared = self.shared();
        let until = Instant::now() + CLOSE_WITHIN;
        shared.with(|inner, _| inner.core.close());
        let mut inner = shared.lock();
        while inner.core.ended().is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            inner = shared.ended.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(inner);
        let error = LinkError::new(crate::LinkErrorKind::Closed, "the session was closed");
        shared.with(|inner, _| inner.core.end(error));
    }

    /// Ends the session at once, and tells the peer why. All calls of both sides fail with `Closed`.
    pub fn end(&self, why: &str) {
        let error = LinkError::new(crate::LinkErrorKind::Closed, why);
        self.shared().with(|inner, _| inner.core.end(error));
    }

    /// Ends the session here at once, and tells the peer nothing, as if this process had been killed.
    pub fn abandon(&self) {
        let shared = self.shared();
        shared.with(|inner, _| {
            let text = "the session was abandoned";
            inner.core.end_told(LinkError::new(crate::LinkErrorKind::Closed, text));
            inner.stripes.values().for_each(|stripe| stripe.line.kill());
        });
    }

    /// Ends it when nothing more is wanted of it: what waits to be sent still goes where there is a connection, and where there is
    /// none nobody waits for one.
    pub fn leave(&self) {
        match self.stats().state {
            SessionState::Up => self.close(),
            SessionState::Reconnecting(_) | SessionState::Ended(_) => self.abandon(),
        }
    }

    /// Bytes a second that this side may send, if it keeps to a limit.
    pub fn rate_limit(&self) -> Option<u64> {
        self.shared().rate_limit.as_ref()?.least_bytes_per_second()
    }

    /// The same without what others leave of it, that keep to the same limits.
    pub fn rate_limit_whole(&self) -> Option<u64> {
        self.shared().rate_limit.as_ref()?.least_whole()
    }

    /// What the session and its connections do.
    pub fn stats(&self) -> SessionStats {
        let shared = self.shared();
        let inner = shared.lock();
        let now = shared.now();
        let state = match (inner.core.ended(), inner.core.none_since()) {
            (Some(why), _) => SessionState::Ended(why.clone()),
            (None, Some(since)) => SessionState::Reconnecting(now.saturating_sub(since)),
            (None, None) => SessionState::Up,
        };
        let (held_bytes, unread_bytes) = inner.core.memory();
        let mut stats = SessionStats {
            state,
            age: now,
            stripes: Vec::new(),
            rdma: inner.rdma.clone(),
            stripes_wanted: inner.stripes_wanted,
            acknowledged_bytes: 0,
            arrived_bytes: 0,
            goodput: inner.goodput,
            repeated_frames: 0,
            overdue_frames: 0,
            double_frames: 0,
            channels: inner.core.channels(),
            held_bytes,
            unread_bytes,
            notes: inner.notes.iter().cloned().collect(),
        };
        stats.count(inner.core.counters());
        for (id, stripe) in &inner.stripes {
            let Some(view) = inner.core.stripe(*id) else { continue };
            let addresses = stripe.line.addresses();
            let mut one = StripeStats {
                local: addresses.map(|(local, _)| local),
                remote: addresses.map(|(_, remote)| remote),
                congestion: String::new(),
                rtt: view.rtt,
                rtt_min: None,
                line_bytes_sent: 0,
                line_bytes_again: 0,
                busy: [Duration::ZERO; 3],
                sent_bytes: view.sent_bytes,
                received_bytes: view.received_bytes,
                is_suspect: view.is_suspect,
            };
            stripe.line.fill(&mut one);
            stats.stripes.push(one);
            if stripe.line.is_rdma() {
                stats.rdma = RdmaState::On;
            }
        }
        stats
    }
}
