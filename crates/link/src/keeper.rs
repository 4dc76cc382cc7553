//! The thread of a session that lets time pass: pings, acknowledgements that waited, connections that are
//! dead, how many there should be, and new ones.

use std::io;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use drover_log::log;

use crate::core::{Controller, Moment, PACE_EVERY, Pacer, Step};
use crate::rdma::{Healthy, RdmaState};
use crate::shared::{Inner, LOOK_EVERY, Shared};

/// Connections of a session that is over end by themselves within this time, or are ended.
const LINGER: Duration = Duration::from_secs(5);

/// Makes new connections for a session.
pub trait Dial: Send + 'static {
    /// Looks after there being `wanted` connections, of which `healthy` work. Must not wait. Gives what is to carry the session.
    fn keep(&mut self, wanted: usize, healthy: Healthy, now: Moment) -> Kept;
}

/// What is to carry a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// TCP.
    Tcp,
    /// TCP, until a connection over RDMA is there.
    Joining,
    /// RDMA: connections over TCP are to be given up.
    Rdma,
}

/// What one keeper knows.
struct Keeper {
    controller: Option<Controller>,
    dial: Option<Box<dyn Dial>>,
    looked: Moment,
    bytes: u64,
    pacer: Pacer,
    paced: Moment,
}

/// Starts the keeper of a session. It ends some time after the session does.
pub fn start(
    shared: &Arc<Shared>,
    controller: Option<Controller>,
    dial: Option<Box<dyn Dial>>,
) -> io::Result<()> {
    let shared = shared.clone();
    let keeper = Keeper {
        controller,
        dial,
        looked: Moment::ZERO,
        bytes: 0,
        pacer: Pacer::default(),
        paced: Moment::ZERO,
    };
    thread::Builder::new().name("link-keeper".into()).spawn(move || keeper.run(&shared)).map(drop)
}

impl Inner {
    fn healthy(&self) -> Healthy {
        let is_rdma = |id| self.core.is_healthy(id) && self.stripes[&id].line.is_rdma();
        let rdma = self.stripes.keys().filter(|id| is_rdma(**id)).count();
        Healthy { all: self.core.healthy(), rdma }
    }

    fn keep(&mut self, kept: Kept, healthy: Healthy, now: Moment) {
        match (kept, &self.rdma) {
            (Kept::Rdma, _) => {
                let Inner { core, stripes, .. } = self;
                let others = stripes.iter().filter(|(_, stripe)| !stripe.line.is_rdma());
                others.for_each(|(id, _)| core.retire(*id, now));
                if self.rdma != RdmaState::On {
                    log!("link", "RDMA carries a session of this host's from now on");
                }
                self.rdma = RdmaState::On;
            }
            (Kept::Joining, RdmaState::Off(_)) => self.rdma = RdmaState::Joining,
            (Kept::Tcp, RdmaState::On) if healthy.rdma == 0 => {
                self.note("the connections over RDMA are gone: TCP is used".into());
                self.rdma = RdmaState::Off("its connections are gone".into());
            }
            (Kept::Joining | Kept::Tcp, _) => {}
        }
    }
}

impl Keeper {
    fn run(mut self, shared: &Shared) {
        let mut inner = shared.lock();
        while inner.core.ended().is_none() {
            let now = shared.now();
            let wanted = self.controller.as_ref().map_or(1, Controller::wanted);
            let tick = inner.core.tick(wanted, now);
            for id in tick.kill {
                if let Some(stripe) = inner.stripes.get(&id) {
                    stripe.line.kill();
                }
            }
            if now >= self.looked + LOOK_EVERY {
                self.look(&mut inner, now);
            }
            if now >= self.paced + PACE_EVERY {
                self.pace(&inner, now);
            }
            if let (Some(dial), Some(controller)) = (&mut self.dial, &self.controller) {
                let healthy = inner.healthy();
                let kept = dial.keep(controller.wanted(), healthy, now);
                inner.keep(kept, healthy, now);
            }
            inner.keeper_wakes = tick.next.min(self.paced + PACE_EVERY);
            shared.wake(&mut inner, now);
            if inner.core.ended().is_some() {
                break;
            }
            let wait = inner.keeper_wakes.saturating_sub(shared.now()).max(Duration::from_micros(200));
            inner = shared.keeper.wait_timeout(inner, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.dial = None;
        let until = shared.now() + LINGER;
        while !inner.stripes.is_empty() && shared.now() < until {
            shared.wake(&mut inner, shared.now());
            inner = shared.keeper.wait_timeout(inner, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
        inner.stripes.values().for_each(|stripe| stripe.line.kill());
    }

    /// Holds connections back that drown their line.
    fn pace(&mut self, inner: &Inner, now: Moment) {
        self.paced = now;
        let seen: Vec<_> = inner.stripes.iter().filter_map(|(id, it)| it.line.seen(*id)).collect();
        for (id, limit) in self.pacer.step(now, &seen).into_iter().flatten() {
            if let Some(stripe) = inner.stripes.get(&id) {
                stripe.line.hold_to(limit);
            }
        }
    }

    /// Measures, some times a second.
    fn look(&mut self, inner: &mut Inner, now: Moment) {
        let counters = inner.core.counters();
        let bytes = counters.acknowledged_bytes + counters.arrived_bytes;
        let time = (now - self.looked).as_secs_f64();
        let rate = ((bytes - self.bytes) as f64 / time) as u64;
        inner.goodput = (inner.goodput + rate) / 2;
        (self.looked, self.bytes) = (now, bytes);
        let Some(controller) = &mut self.controller else { return };
        controller.step(Step {
            now,
            bytes,
            is_backlogged: inner.core.is_backlogged() || inner.core.is_peer_backlogged(),
            healthy: inner.core.healthy(),
            rtt: inner.core.rtt().unwrap_or_default(),
            is_full: self.pacer.is_full(),
        });
        inner.stripes_wanted = controller.wanted();
        inner.core.retire_down_to(controller.wanted(), now);
    }
}
