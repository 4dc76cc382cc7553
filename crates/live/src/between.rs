//! What lies between both sides of a move, and what that takes of a downtime beside the last pass.

use std::time::Duration;

use drover_types::Estimate;

use crate::forecast::Promise;
use crate::handover::Handover;
use crate::load::Loads;
use crate::together::Pace;

/// What a link carries of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carries {
    /// There is none.
    #[default]
    Nothing,
    /// The target's monitor; memory and disks go past it.
    Monitor,
    /// Memory and disks, too.
    All,
}

/// Who moves the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Drover, by the monitors of both QEMUs.
    #[default]
    Qemu,
    /// Both hosts' libvirt.
    Libvirt,
}

/// What lies between both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Between {
    /// What a link carries.
    pub carries: Carries,
    /// Of that link, from here to there and back.
    pub round_trip: Duration,
    /// Moves that go at once, this one among them.
    pub at_once: usize,
    /// What handing over takes.
    pub handover: Handover,
    /// How busy both hosts are.
    pub loads: Loads,
    /// Who moves the guest.
    pub by: By,
}

/// For which the guest stands still beside the last pass: 26 ms in the median of 72 moves, 46 in the worst tenth.
const OVERHEAD: Estimate = Estimate { likely: 0.03, spread: 0.02 };
/// For which it stands while two libvirt daemons hand it over, beside what QEMU takes: it stood for 100 ms at least where QEMU
/// alone takes 30, on a busy host for much longer.
const LIBVIRT: Estimate = Estimate { likely: 0.07, spread: 0.1 };
/// Of the promised downtime, kept for what QEMU does not count.
const DOWNTIME_KEPT: Duration = Duration::from_millis(60);
/// For which a link sends what it has taken from QEMU, which counts that as sent.
const LINK_QUEUE: Duration = Duration::from_millis(50);
/// By which a downtime is longer for each other guest that goes at once over a link: what it has taken of those goes first. Each
/// stood 30 to 50 ms longer in the median, and two at a time one in five by 150.
const BESIDE: Duration = Duration::from_millis(150);
/// Of a move by libvirt of two daemons on one host.
const LIBVIRT_ASIDE_S: f64 = 1.5;

impl Between {
    /// Seconds for which the guest stands still beside the last pass.
    #[must_use]
    pub fn overhead(&self, promise: &Promise) -> Estimate {
        let lag = (self.lag(promise) + self.beside() * self.others() + self.handover.takes()).as_secs_f64();
        let base = match self.by {
            By::Qemu => OVERHEAD,
            By::Libvirt => sum(OVERHEAD, LIBVIRT),
        };
        sum(sum(base, Estimate { likely: lag, spread: lag / 2.0 }), self.busy())
    }

    /// Seconds of that since the hosts are busy.
    #[must_use]
    pub fn busy(&self) -> Estimate {
        self.loads.longer_by(self.carries != Carries::Nothing)
    }

    /// What QEMU may use of a promised downtime. Of what goes over a link some is lost at its very end, and comes two round trips
    /// later; and what waits on the line is a round trip more.
    #[must_use]
    pub fn downtime_of_qemu(&self, promise: &Promise) -> Duration {
        let of_link = match self.carries {
            Carries::All => self.round_trip * 4 + LINK_QUEUE + BESIDE * self.others(),
            // A last look at the target and the order to start the guest go over it.
            Carries::Monitor => self.round_trip * 3,
            Carries::Nothing => Duration::ZERO,
        };
        let busy = Duration::try_from_secs_f64(self.busy().likely).unwrap_or_default();
        let more = of_link + self.handover.takes() + busy;
        let parts = if more.is_zero() { 2 } else { 10 };
        let left =
            promise.downtime_max.saturating_sub(DOWNTIME_KEPT + more).max(promise.downtime_max / parts);
        match self.by {
            By::Qemu => left,
            // What both daemons take is not in what QEMU counts.
            By::Libvirt => left.saturating_sub(Duration::from_secs_f64(LIBVIRT.likely).min(left / 2)),
        }
    }

    /// What a move takes beside its sending. The target's monitor is waited for 3 times before its turn, and 4 times from then on;
    /// libvirt sets and tidies up after its turn has come.
    #[must_use]
    pub fn pace(&self) -> Pace {
        let round_trip_s = self.round_trip.as_secs_f64();
        let (prepares_s, aside_s) = match self.by {
            By::Qemu => (0.1 + round_trip_s * 3.0, 0.05 + round_trip_s * 4.0),
            By::Libvirt => (0.0, LIBVIRT_ASIDE_S),
        };
        Pace { prepares_s, aside_s, beside_s: self.beside().as_secs_f64() }
    }

    /// Of a downtime, what a link takes whatever its rate: the last of memory goes there, word of it comes back, the order to
    /// start goes there, and something of that may be lost and go again.
    fn lag(&self, promise: &Promise) -> Duration {
        let parts = match self.carries {
            Carries::Nothing => Duration::ZERO,
            // What waited in it has gone while disks were handed over; the order to start goes out with the word that all came.
            Carries::All if self.handover.has_disks => self.round_trip * 3 / 2,
            Carries::All => self.round_trip * 2 + LINK_QUEUE,
            // The target is asked once more, and told to start.
            Carries::Monitor => self.round_trip * 3,
        };
        // A round trip that was measured on a busy line is no reason to refuse a promise.
        parts.min(promise.downtime_max / 2)
    }

    fn beside(&self) -> Duration {
        if self.carries == Carries::All { BESIDE } else { Duration::ZERO }
    }

    fn others(&self) -> u32 {
        u32::try_from(self.at_once.saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

fn sum(one: Estimate, other: Estimate) -> Estimate {
    Estimate { likely: one.likely + other.likely, spread: one.spread + other.spread }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::HostLoad;

    const PROMISE: Promise =
        Promise { downtime_max: Duration::from_millis(500), deadline: Duration::from_secs(60) };

    fn counted_ms(between: Between) -> u128 {
        between.downtime_of_qemu(&PROMISE).as_millis()
    }

    #[test]
    fn round_trips_of_mirrored_disks_are_in_the_forecast_and_kept_back_of_what_qemu_may_use() {
        let handover =
            Handover { round_trip: Duration::from_millis(50), has_disks: true, ..Handover::default() };
        let far = Between { handover, ..Between::default() };
        let more = far.overhead(&PROMISE).likely - Between::default().overhead(&PROMISE).likely;
        assert!((more - handover.takes().as_secs_f64()).abs() < 1e-9, "{more}");
        assert_eq!((counted_ms(Between::default()), counted_ms(far)), (440, 140));
        assert_eq!(counted_ms(Between { by: By::Libvirt, ..Between::default() }), 370);
    }

    #[test]
    fn busy_hosts_are_in_the_forecast_and_qemu_stops_the_guest_later() {
        let busy = Some(HostLoad { processors: 2, load_average: 8.0, waiting: Some(1.0) });
        let loads = Loads { source: busy, target: busy };
        let over = Between {
            carries: Carries::All,
            round_trip: Duration::from_millis(20),
            loads,
            ..Between::default()
        };
        let idle = Between { loads: Loads::default(), ..over };
        let more = over.overhead(&PROMISE).likely - idle.overhead(&PROMISE).likely;
        assert!((more - over.busy().likely).abs() < 1e-9 && more > 0.03, "{more}");
        assert!(counted_ms(over) + 30 < counted_ms(idle), "{} {}", counted_ms(over), counted_ms(idle));
    }

    #[test]
    fn others_on_a_link_make_a_downtime_longer_and_elsewhere_they_do_not() {
        let three = Between { at_once: 3, ..Between::default() };
        assert_eq!(three.overhead(&PROMISE), Between::default().overhead(&PROMISE));
        let over = Between { carries: Carries::All, ..three };
        let alone = Between { at_once: 1, ..over };
        assert!((over.overhead(&PROMISE).likely - alone.overhead(&PROMISE).likely - 0.3).abs() < 1e-9);
        assert_eq!((over.pace().beside_s, three.pace().beside_s), (0.15, 0.0));
    }
}
