//! The lock of a worker's VM: taken before anything is touched, and looked at again for as long as the worker goes on. Without it
//! another Migration may begin beside this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_engine::{Event, Observer, Phase};
use drover_kubevirt::{Cluster, KubeError, KubeErrorKind};
use drover_mover::StopSignal;
use drover_operator::decide::reason;
use drover_operator::lock::{self, LockSeen, MOVED_ELSEWHERE, REFUSED};
use drover_operator::model::{MigrationSpec, Named};
use serde_json::{Value, json};

use super::End;
use super::turn::Turn;
use crate::exit::Exit;
use crate::operator::failure;

/// How often it looks while it works.
const LOOK: Duration = Duration::from_secs(30);
/// Without an answer for so long it is lost.
const UNSEEN_MAX: Duration = Duration::from_secs(90);
/// Between tries where no answer came.
const PAUSE: Duration = Duration::from_millis(500);
/// How often one that came and went is tried to be taken.
const TRIES: usize = 3;

/// Fields of what a worker says while it works.
const OUTAGE: &str = "worker/outage";
const REASON: &str = "worker/reason";

/// The lock of a VM.
pub struct Held {
    cluster: Arc<Cluster>,
    path: String,
    fresh: Value,
    me: Named,
    namespace: String,
    is_taken: AtomicBool,
    is_lost: AtomicBool,
}

impl Held {
    pub fn new(cluster: Arc<Cluster>, spec: &MigrationSpec, me: &Named, namespace: &str) -> Held {
        Held {
            cluster,
            path: lock::path(&lock::name(spec)),
            fresh: lock::lock(spec, me, namespace),
            me: me.clone(),
            namespace: namespace.to_string(),
            is_taken: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Makes the VM this Migration's, in all namespaces: nothing is begun or undone beside another that has it.
    pub fn take(&self) -> Result<(), End> {
        for _ in 0..TRIES {
            match self.cluster.create(&lock::path(""), &self.fresh, false) {
                // Looked at below, as one that was there.
                Ok(_) => {}
                Err(error) if error.kind == KubeErrorKind::Conflict => {}
                Err(error) => return Err(refused(error)),
            }
            match self.seen().map_err(refused)? {
                LockSeen::Mine(_) => {
                    self.is_taken.store(true, Ordering::SeqCst);
                    return Ok(());
                }
                LockSeen::Others(why) => return Err(End::new(Exit::Target, MOVED_ELSEWHERE, why)),
                // It went meanwhile.
                _ => {}
            }
        }
        Err(End::new(Exit::Target, MOVED_ELSEWHERE, "others take the VM and leave it all the time"))
    }

    fn seen(&self) -> Result<LockSeen, KubeError> {
        Ok(lock::seen(self.cluster.get(&self.path)?.as_ref(), &self.me, &self.namespace))
    }

    /// Whether it is this Migration's still; so before it was taken, too. A server without locks is one that begins: it gives no answer.
    pub fn is_kept(&self) -> Result<bool, KubeError> {
        if !self.is_taken.load(Ordering::SeqCst) {
            return Ok(true);
        }
        let is_kept = matches!(self.seen()?, LockSeen::Mine(_));
        if !is_kept {
            self.lose();
        }
        Ok(is_kept)
    }

    fn lose(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
    }

    /// How a worker that was stopped because of it ends.
    pub fn end(&self, end: End) -> End {
        match self.is_lost.load(Ordering::SeqCst) && end.exit == Exit::Interrupted {
            true => End {
                reason: reason::LOCK_LOST.into(),
                message: format!(
                    "its worker stopped, since the VmLock was removed or is another's by now: {}",
                    end.message
                ),
                ..end
            },
            false => end,
        }
    }
}

fn refused(error: KubeError) -> End {
    let is_of_locks = matches!(error.kind, KubeErrorKind::NotServed | KubeErrorKind::Denied);
    let end = End::from(failure(error));
    if is_of_locks { End { reason: REFUSED.into(), ..end } } else { end }
}

/// When a lock was looked at.
pub struct Look {
    seen: Instant,
}

impl Look {
    pub fn new() -> Look {
        Look { seen: Instant::now() }
    }

    /// Why to stop, if it is time to look and that is the answer.
    pub fn why_to_stop(&mut self, held: &Held) -> Option<String> {
        let asked = Instant::now();
        if asked.duration_since(self.seen) < LOOK {
            return None;
        }
        match held.is_kept() {
            Ok(true) => {
                self.seen = asked;
                None
            }
            Ok(false) => Some("the VmLock was removed, or is another's".into()),
            Err(error) if self.seen.elapsed() >= UNSEEN_MAX => {
                held.lose();
                Some(format!("whose the VmLock is cannot be seen: {error}"))
            }
            Err(_) => None,
        }
    }
}

/// Tells events on standard error, as a pod's log. Between phases up to the start at the target it looks at the lock: each of them waits
/// for hours in some runs, and the next one shuts a guest down, or starts it.
pub struct Steps<'a> {
    pub held: &'a Held,
    pub stop: &'a StopSignal,
    pub turn: &'a Turn,
    /// Writes that the guest goes down.
    pub goes_down: &'a (dyn Fn() -> Result<(), KubeError> + Sync),
    /// Writes a field of the status.
    pub says: &'a (dyn Fn(&str, Value) -> Result<(), KubeError> + Sync),
    /// Whether the guest is off because of drover, or may be.
    pub is_off: &'a (dyn Fn() -> bool + Sync),
}

impl Steps<'_> {
    fn look(&self) {
        let until = Instant::now() + UNSEEN_MAX;
        while !self.stop.is_set() {
            match self.held.is_kept() {
                Ok(true) => return,
                Err(_) if Instant::now() < until => std::thread::sleep(PAUSE),
                Ok(false) | Err(_) => {
                    self.held.lose();
                    crate::out::say("the VmLock was removed, is another's, or cannot be seen: stopping");
                    self.stop.stop();
                }
            }
        }
    }
}

impl Steps<'_> {
    /// Before the guest is shut down: should this worker end without a word, it is known all the same that it may be off.
    fn announce(&self) {
        let until = Instant::now() + UNSEEN_MAX;
        while !self.stop.is_set() {
            match (self.goes_down)() {
                Ok(()) => return,
                // What was refused stays so: another is meant, or leave to move over was taken back.
                Err(error) if error.kind != KubeErrorKind::Refused && Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => {
                    crate::out::say(format_args!(
                        "it cannot be told that the guest goes down: {error}: stopping"
                    ));
                    self.stop.stop();
                }
            }
        }
    }
}

impl Observer for Steps<'_> {
    fn event(&self, event: &Event) {
        if let Ok(value) = serde_json::to_value(event) {
            crate::out::event(value);
        }
        match event {
            Event::PhaseStarted { phase: Phase::PowerOff, .. } => self.announce(),
            // For people alone.
            Event::PassWaits { until_asked, .. } => {
                self.turn.asks_no_more();
                if *until_asked {
                    let _ = (self.says)(REASON, json!(reason::WAITS_FOR_CUTOVER));
                }
            }
            Event::CutoverStarted { .. } => {
                let _ = (self.says)(REASON, Value::Null);
            }
            Event::PhaseEnded { phase, .. } if *phase < Phase::Start => {
                self.look();
                // It was off before. Unsaid, this try counts as one that shut it down, should nothing more be heard of it.
                if *phase == Phase::PowerOff && !(self.is_off)() {
                    let _ = (self.says)(OUTAGE, json!(false));
                }
            }
            _ => {}
        }
    }
}
