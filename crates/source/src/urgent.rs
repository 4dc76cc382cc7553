//! Hosts of which is read while a guest is down for it: whatever else is read of them waits meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Urgent reads of which none ends well for so long hold nobody up: they hang, fail and are tried again, or are done.
const HUNG_AFTER: Duration = Duration::from_secs(30);
/// After this a lane that waits takes what it has asked for, or reads once, all the same: no server waits longer for somebody to
/// take what it sends, and nobody starves. Well below the minute after which sessions are given up.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The hosts that plans of this process read now.
static HOSTS: Mutex<BTreeMap<String, Weak<Host>>> = Mutex::new(BTreeMap::new());

/// A host, as all plans of this process read of it.
#[derive(Debug)]
pub(crate) struct Host {
    start: Instant,
    urgent: Mutex<Urgent>,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host { start: Instant::now(), urgent: Mutex::default() }
    }

    /// The one that all plans know by this name.
    pub(crate) fn named(name: &str) -> Arc<Host> {
        let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(name).and_then(Weak::upgrade) {
            return host;
        }
        hosts.retain(|_, host| host.strong_count() > 0);
        let host = Arc::new(Host::new());
        hosts.insert(name.to_string(), Arc::downgrade(&host));
        host
    }

    /// Whether a read that is not urgent, and has waited so long, waits on.
    pub(crate) fn holds_up(&self, waited: Duration) -> bool {
        let now = self.start.elapsed();
        self.urgent().holds_up(waited, now)
    }

    fn urgent(&self) -> MutexGuard<'_, Urgent> {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A disk of a host that a guest is down for, until this is dropped.
#[derive(Debug)]
pub(crate) struct Hurry(Arc<Host>);

impl Hurry {
    pub(crate) fn begin(host: Arc<Host>) -> Hurry {
        let now = host.start.elapsed();
        host.urgent().begin(now);
        Hurry(host)
    }

    /// A read of it ended well.
    pub(crate) fn gets_on(&self) {
        let now = self.0.start.elapsed();
        self.0.urgent().got_on = now;
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.urgent().disks -= 1;
    }
}

/// What is urgent at a host. Pure: the time is an argument.
#[derive(Debug, Default)]
struct Urgent {
    /// Disks that are open for it.
    disks: usize,
    /// When the last one was opened, or a read of one ended well.
    got_on: Duration,
}

impl Urgent {
    fn begin(&mut self, now: Duration) {
        (self.disks, self.got_on) = (self.disks + 1, now);
    }

    fn holds_up(&self, waited: Duration, now: Duration) -> bool {
        self.disks > 0 && now.saturating_sub(self.got_on) < HUNG_AFTER && waited < WAIT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_wait_while_urgent_reads_get_on_and_none_waits_for_ever() {
        let at = Duration::from_secs;
        let mut urgent = Urgent::default();
        assert!(!urgent.holds_up(at(0), at(1000)), "nothing is urgent");
        urgent.begin(at(1000));
        urgent.begin(at(1001));
        assert!(urgent.holds_up(at(0), at(1000)) && urgent.holds_up(at(19), at(1029)));
        assert!(!urgent.holds_up(WAIT_MAX, at(1029)), "a lane that waited long reads once");
        assert!(!urgent.holds_up(at(0), at(1001) + HUNG_AFTER), "no urgent read gets on");
        urgent.got_on = at(2000);
        assert!(urgent.holds_up(at(0), at(2000)), "they get on again");
        urgent.disks -= 2;
        assert!(!urgent.holds_up(at(0), at(2000)), "all are done");
    }

    #[test]
    fn plans_share_a_host_by_its_name_and_what_hurries_ends_with_its_disk() {
        let [one, same, other] = ["vc/host-7", "vc/host-7", "vc/host-8"].map(Host::named);
        let hurry = Hurry::begin(one);
        assert!(same.holds_up(Duration::ZERO) && !other.holds_up(Duration::ZERO));
        hurry.gets_on();
        drop(hurry);
        assert!(!same.holds_up(Duration::ZERO));
        drop(same);
        drop(Host::named("vc/host-9"));
        let hosts = HOSTS.lock().unwrap();
        assert!(!hosts.contains_key("vc/host-7"), "nobody reads it any more");
    }
}
