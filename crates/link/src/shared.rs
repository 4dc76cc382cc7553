//! What the threads of a session share: the core behind one lock, and who waits for what.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use drover_log::log;

use crate::core::{ChannelId, Core, Moment, Outgoing, Pull, StripeId, Wakes};
use crate::error::LinkError;
use crate::payload::Pool;
use crate::peer::Peer;
use crate::rate::RateLimit;
use crate::rdma::RdmaState;
use crate::stripe::Stripe;

/// Notes that are kept; older ones are forgotten.
const NOTES_MAX: usize = 32;

/// What the threads of a session share.
pub struct Shared {
    inner: Mutex<Inner>,
    start: Instant,
    /// For [`crate::Session::accept`].
    pub accept: Condvar,
    /// For the keeper.
    pub keeper: Condvar,
    /// For those who wait for the end.
    pub ended: Condvar,
    pub pool: Arc<Pool>,
    pub peer: Peer,
    pub rate_limit: Option<Arc<RateLimit>>,
}

/// What is behind the lock.
pub struct Inner {
    pub core: Core,
    pub stripes: HashMap<StripeId, Stripe>,
    next_stripe: StripeId,
    waits: HashMap<ChannelId, Arc<Waits>>,
    /// Channels whose senders wait, and how many do.
    blocked: HashMap<ChannelId, usize>,
    /// Channels whose sender found no room and wants to be called.
    called: HashSet<ChannelId>,
    /// When the keeper wakes by itself.
    pub keeper_wakes: Moment,
    pub notes: VecDeque<String>,
    pub stripes_wanted: usize,
    pub goodput: u64,
    pub rdma: RdmaState,
}

/// Where those wait who use a channel.
#[derive(Default)]
pub struct Waits {
    send: Condvar,
    receive: Condvar,
    /// Called where those who wait are woken, for one who does not wait.
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Halves of the channel that are gone.
    left: AtomicUsize,
}

impl Waits {
    /// A half of the channel goes; true if the other one had gone before.
    pub fn leave(&self) -> bool {
        self.left.fetch_add(1, Ordering::Relaxed) > 0
    }

    /// Wakes all who receive.
    pub fn wake_receivers(&self) {
        self.receive.notify_all();
    }

    /// Wakes all who wait for room to send.
    pub fn wake_senders(&self) {
        self.send.notify_all();
    }

    /// From now on calls this, too. The first one stays.
    pub fn call(&self, waker: Box<dyn Fn() + Send + Sync>) {
        // A second one is a second user, which no channel has.
        let _ = self.waker.set(waker);
    }

    fn call_waker(&self) {
        if let Some(waker) = self.waker.get() {
            waker();
        }
    }
}

impl Shared {
    pub fn new(
        core: Core,
        peer: Peer,
        rate_limit: Option<Arc<RateLimit>>,
        stripes_wanted: usize,
    ) -> Arc<Shared> {
        let inner = Inner {
            core,
            stripes: HashMap::new(),
            next_stripe: 1,
            waits: HashMap::new(),
            blocked: HashMap::new(),
            called: HashSet::new(),
            keeper_wakes: Moment::ZERO,
            notes: VecDeque::new(),
            stripes_wanted,
            goodput: 0,
            rdma: RdmaState::Off("this side did not dial".into()),
        };
        let pool = Arc::new(Pool::new(inner.core.pool_bytes_max() as usize));
        Arc::new(Shared {
            inner: Mutex::new(inner),
            start: Instant::now(),
            accept: Condvar::new(),
            keeper: Condvar::new(),
            ended: Condvar::new(),
            pool,
            peer,
            rate_limit,
        })
    }

    /// Time since the session began.
    pub fn now(&self) -> Moment {
        self.start.elapsed()
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and wakes whom it concerns.
    pub fn with<T>(&self, change: impl FnOnce(&mut Inner, Moment) -> T) -> T {
        let mut inner = self.lock();
        let now = self.now();
        let result = change(&mut inner, now);
        self.wake(&mut inner, now);
        result
    }

    /// Wakes whom the last changes concern.
    pub fn wake(&self, inner: &mut Inner, now: Moment) {
        let wakes = inner.core.take_wakes();
        if wakes.everyone {
            self.accept.notify_all();
            self.keeper.notify_all();
            self.ended.notify_all();
            inner.waits.values().for_each(|waits| {
                waits.send.notify_all();
                waits.receive.notify_all();
                waits.call_waker();
            });
        }
        inner.wake_programs(&wakes);
        if wakes.accept {
            // There may be several channels for several who wait.
            self.accept.notify_all();
        }
        for id in inner.core.writers_to_wake(now) {
            if let Some(stripe) = inner.stripes.get(&id) {
                stripe.work.notify_one();
            }
        }
        if inner.core.due(now).is_some_and(|due| due > now && due < inner.keeper_wakes) {
            inner.keeper_wakes = now;
            self.keeper.notify_all();
        }
    }

    /// Waits until `attempt` gives something, for room to send on a channel.
    pub fn wait_to_send<T>(
        &self,
        id: ChannelId,
        waits: &Waits,
        mut attempt: impl FnMut(&mut Core) -> Result<Option<T>, LinkError>,
    ) -> Result<T, LinkError> {
        let mut inner = self.lock();
        loop {
            if let Some(result) = attempt(&mut inner.core)? {
                self.wake(&mut inner, self.now());
                return Ok(result);
            }
            *inner.blocked.entry(id).or_default() += 1;
            inner = waits.send.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.unblock(id);
        }
    }

    /// As [`Shared::wait_to_send`], without waiting: if there is no room, the channel's waker is called once
    /// there is.
    pub fn try_to_send<T>(
        &self,
        id: ChannelId,
        attempt: impl FnOnce(&mut Core) -> Result<Option<T>, LinkError>,
    ) -> Result<Option<T>, LinkError> {
        self.with(|inner, _| {
            let result = attempt(&mut inner.core)?;
            if result.is_none() {
                inner.called.insert(id);
            }
            Ok(result)
        })
    }

    /// Waits until `attempt` gives something, for what comes in on a channel.
    pub fn wait_to_receive<T>(
        &self,
        waits: &Waits,
        mut attempt: impl FnMut(&mut Core) -> Result<Option<T>, LinkError>,
    ) -> Result<T, LinkError> {
        let mut inner = self.lock();
        loop {
            match attempt(&mut inner.core) {
                Ok(Some(result)) => {
                    self.wake(&mut inner, self.now());
                    return Ok(result);
                }
                Ok(None) => inner = waits.receive.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Err(error) => {
                    // What ends it for one ends it for all who read this channel.
                    waits.receive.notify_all();
                    return Err(error);
                }
            }
        }
    }

    /// Frames for a connection; waits if there are none.
    ///
    /// While the rate limit lets nothing through, pings, their answers and acknowledgements still go: the
    /// peer must not take a slow line for a dead one. Frames of channels stay where any connection can take
    /// them.
    pub fn pull(&self, id: StripeId, bytes: usize, work: &Condvar, frames: &mut Vec<Outgoing>) -> Pull {
        let pace = self.rate_limit.as_ref().map_or(Ok(bytes), |limit| limit.ready(bytes));
        let mut inner = self.lock();
        let now = self.now();
        let pull = inner.core.pull(id, pace.unwrap_or(0), now, frames);
        // What one takes may leave more for others, and room for senders.
        self.wake(&mut inner, now);
        match (pull, pace) {
            (Pull::Idle, Err(wait)) => {
                drop(work.wait_timeout(inner, wait).unwrap_or_else(PoisonError::into_inner));
            }
            (Pull::Idle, Ok(_)) if inner.core.is_idle(id) => {
                drop(work.wait(inner).unwrap_or_else(PoisonError::into_inner));
            }
            _ => {}
        }
        pull
    }

    /// Counts bytes that are about to be sent against the rate limit.
    pub fn spend(&self, bytes: u64) {
        if let Some(limit) = &self.rate_limit {
            limit.spend(bytes);
        }
    }

    /// Adds a connection, unless the session is over.
    pub fn add_stripe(&self, stripe: Stripe) -> Option<StripeId> {
        self.with(|inner, now| {
            if inner.core.ended().is_some() {
                stripe.line.kill();
                return None;
            }
            let id = inner.next_stripe;
            inner.next_stripe += 1;
            inner.core.stripe_up(id, now);
            inner.stripes.insert(id, stripe);
            Some(id)
        })
    }

    /// Removes a connection. `why` is empty if it ended in good order.
    pub fn stripe_gone(&self, id: StripeId, why: &str) {
        self.with(|inner, now| {
            let Some(stripe) = inner.stripes.remove(&id) else { return };
            stripe.line.kill();
            stripe.work.notify_all();
            inner.core.stripe_down(id, now);
            if !why.is_empty() && inner.core.ended().is_none() {
                let text = match stripe.line.addresses() {
                    Some((local, remote)) => format!("connection {id}, {local} to {remote}: {why}"),
                    None => format!("connection {id}: {why}"),
                };
                inner.note(text);
            }
        });
        // The keeper may want another one.
        self.keeper.notify_all();
    }
}

impl Inner {
    /// Where the users of a channel wait.
    pub fn waits(&mut self, id: ChannelId) -> Arc<Waits> {
        self.waits.entry(id).or_default().clone()
    }

    /// Nobody uses a channel any more.
    pub fn forget_waits(&mut self, id: ChannelId) {
        self.waits.remove(&id);
        self.called.remove(&id);
    }

    pub fn note(&mut self, text: String) {
        log!("link", "{text}");
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(text);
    }

    fn unblock(&mut self, id: ChannelId) {
        if let Some(count) = self.blocked.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.blocked.remove(&id);
            }
        }
    }

    fn wake_programs(&mut self, wakes: &Wakes) {
        for id in &wakes.receivers {
            if let Some(waits) = self.waits.get(id) {
                waits.receive.notify_one();
                waits.call_waker();
            }
        }
        if !self.blocked.is_empty() {
            let all = wakes.all_senders.then_some(self.blocked.keys()).into_iter().flatten();
            for id in wakes.senders.iter().chain(all) {
                if self.blocked.contains_key(id)
                    && self.core.is_worth_waking(*id)
                    && let Some(waits) = self.waits.get(id)
                {
                    waits.send.notify_all();
                }
            }
        }
        self.call_senders(wakes);
    }

    /// Calls those who found no room and do not wait for it. A peer that reads no more is told to them, too.
    fn call_senders(&mut self, wakes: &Wakes) {
        let Inner { core, waits, called, .. } = self;
        if wakes.all_senders {
            called.retain(|id| {
                let is_worth_it = core.is_worth_waking(*id);
                waits.get(id).filter(|_| is_worth_it).into_iter().for_each(|waits| waits.call_waker());
                !is_worth_it
            });
        }
        for id in &wakes.senders {
            if core.is_worth_waking(*id)
                && (called.remove(id) || core.is_given_up(*id))
                && let Some(waits) = waits.get(id)
            {
                waits.call_waker();
            }
        }
    }
}

/// How long those wait who look at something from time to time.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use crate::core::Order;
    use crate::session::Session;

    #[test]
    fn a_channel_whose_halves_go_at_once_leaves_nothing_behind() {
        let (one, two) = Session::pair();
        let together = Barrier::new(2);
        thread::scope(|scope| {
            let (halves, received) = std::sync::mpsc::channel();
            let together = &together;
            scope.spawn(move || {
                for half in received {
                    together.wait();
                    drop(half);
                }
            });
            for _ in 0..5000 {
                let (sender, receiver) = one.open(Order::Stream, b"").unwrap().split();
                halves.send(receiver).unwrap();
                together.wait();
                drop(sender);
                drop(two.accept().unwrap());
            }
        });
        for session in [&one, &two] {
            assert_eq!(session.shared().lock().waits.len(), 0);
        }
    }
}
