//! Hosts of which is read while a guest is down for it: whatever else is read of them waits while such reads do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// An urgent read that is waited for so long holds nobody up, nor do those that all fail for so long.
const HUNG_AFTER: Duration = Duration::from_secs(30);
/// Others are held up after an urgent read for as long as it was waited for, but no longer than this. Where urgent reads are waited
/// for less than half of the time, it is not the host that they wait for, but their target or its line.
const PAUSE_MAX: Duration = Duration::from_secs(1);
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

    /// A disk that is urgent was opened: what failed before it counts no more.
    pub(crate) fn opened(&self) {
        self.urgent().fail_since = None;
    }

    /// From now on an urgent read is waited for.
    pub(crate) fn waits(&self, since: Instant) {
        let since = self.at(since);
        self.urgent().waits.push(since);
    }

    /// The one that was waited for since then has ended.
    pub(crate) fn received(&self, since: Instant, is_well: bool) {
        let (since, now) = (self.at(since), self.start.elapsed());
        self.urgent().received(since, now, is_well);
    }

    /// Whether a read that is not urgent, and has waited so long, waits on.
    pub(crate) fn holds_up(&self, waited: Duration) -> bool {
        let now = self.start.elapsed();
        self.urgent().holds_up(waited, now)
    }

    fn at(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.start)
    }

    fn urgent(&self) -> MutexGuard<'_, Urgent> {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all plans of this process know a host by: its source, which may be reached by any address, and its id there. A single ESXi
/// has no UUID, and the id of each is "ha-host".
pub(crate) fn name_of(source_uuid: &str, endpoint: &str, host_id: &str) -> String {
    let source = if source_uuid.is_empty() { endpoint } else { source_uuid };
    format!("{source}/{host_id}")
}

/// What is urgent at a host. Pure: the time is an argument.
#[derive(Debug, Default)]
struct Urgent {
    /// Since when each read is waited for that is.
    waits: Vec<Duration>,
    /// Until when others are held up for reads that have ended.
    until: Duration,
    /// Since when all of them fail.
    fail_since: Option<Duration>,
}

impl Urgent {
    fn received(&mut self, since: Duration, now: Duration, is_well: bool) {
        if let Some(at) = self.waits.iter().position(|begun| *begun == since) {
            self.waits.swap_remove(at);
        }
        if is_well {
            self.fail_since = None;
            self.until = self.until.max(now + now.saturating_sub(since).min(PAUSE_MAX));
        } else {
            self.fail_since = self.fail_since.or(Some(since));
        }
    }

    fn holds_up(&self, waited: Duration, now: Duration) -> bool {
        let is_short = |since: Duration| now.saturating_sub(since) < HUNG_AFTER;
        let is_waited_for = self.waits.iter().any(|since| is_short(*since));
        let is_held = now < self.until || is_waited_for && self.fail_since.is_none_or(is_short);
        is_held && waited < WAIT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn others_wait_while_urgent_reads_do_and_none_waits_for_ever() {
        let mut urgent = Urgent::default();
        assert!(!urgent.holds_up(AT_ONCE, at(1000)), "nothing is urgent");
        urgent.waits = vec![at(1000), at(2000)];
        assert!(urgent.holds_up(AT_ONCE, at(1000)) && urgent.holds_up(at(19_000), at(31_999)));
        assert!(!urgent.holds_up(WAIT_MAX, at(2000)), "a lane that waited long reads once");
        assert!(!urgent.holds_up(AT_ONCE, at(32_000)), "all that is urgent hangs");
        urgent.received(at(2000), at(32_000), true);
        assert!(urgent.holds_up(AT_ONCE, at(32_999)) && !urgent.holds_up(AT_ONCE, at(33_000)));
        urgent.waits.push(at(40_000));
        assert!(urgent.holds_up(AT_ONCE, at(40_000)), "one hangs and another is waited for");
        assert_eq!(urgent.waits, [at(1000), at(40_000)]);
    }

    /// How many milliseconds of a minute others are held up by reads that are waited for so long, one every 80 ms.
    fn held_ms(waited_ms: u64) -> usize {
        let mut urgent = Urgent::default();
        let is_held = |now: &u64| -> bool {
            match now % 80 {
                0 => urgent.waits.push(at(*now)),
                after if after == waited_ms => urgent.received(at(*now - after), at(*now), true),
                _ => {}
            }
            urgent.holds_up(AT_ONCE, at(*now))
        };
        (0..60_000).filter(is_held).count()
    }

    #[test]
    fn reads_that_wait_for_their_target_rather_than_the_host_hold_nobody_up() {
        assert_eq!(held_ms(79), 60_000, "the host is all that they wait for");
        assert_eq!(held_ms(40), 60_000);
        assert_eq!(held_ms(1), 60_000 / 80 * 2, "at 100 Mbit/s to the target");
    }

    #[test]
    fn reads_that_all_fail_hold_nobody_up_after_a_while_until_one_ends_well_or_another_disk_is_opened() {
        let mut urgent = Urgent::default();
        for since in (0..40_000).step_by(10_000) {
            urgent.waits.push(at(since));
            assert_eq!(urgent.holds_up(AT_ONCE, at(since)), since < 30_000);
            urgent.received(at(since), at(since + 9000), false);
            assert!(!urgent.holds_up(AT_ONCE, at(since + 9000)), "it has failed");
        }
        urgent.waits.push(at(50_000));
        assert!(!urgent.holds_up(AT_ONCE, at(50_000)));
        urgent.received(at(50_000), at(50_001), true);
        urgent.waits.push(at(60_000));
        assert!(urgent.holds_up(AT_ONCE, at(60_000)));
        let host = Host::new();
        host.received(host.start, false);
        assert!(host.urgent().fail_since.is_some());
        host.opened();
        assert!(host.urgent().fail_since.is_none());
    }

    #[test]
    fn plans_share_a_host_by_its_name_and_it_is_forgotten_with_them() {
        let [one, same, other] = ["vc/host-7", "vc/host-7", "vc/host-8"].map(Host::named);
        let since = Instant::now();
        one.waits(since);
        assert!(same.holds_up(AT_ONCE) && !other.holds_up(AT_ONCE));
        one.received(since, false);
        assert!(!same.holds_up(AT_ONCE));
        drop((one, same));
        drop(Host::named("vc/host-9"));
        let hosts = HOSTS.lock().unwrap();
        assert!(!hosts.contains_key("vc/host-7"), "nobody reads it any more");
    }

    #[test]
    fn a_host_of_a_vcenter_is_known_by_any_address_and_a_single_one_by_its_own() {
        assert_eq!(name_of("uuid", "vc.lab:443", "host-7"), name_of("uuid", "10.0.0.1:443", "host-7"));
        assert_ne!(name_of("uuid", "vc.lab:443", "host-7"), name_of("uuid", "vc.lab:443", "host-8"));
        assert_ne!(name_of("", "esx1:443", "ha-host"), name_of("", "esx2:443", "ha-host"));
    }
}
