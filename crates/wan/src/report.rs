//! What became of the packets, and whether the emulator is to be trusted.

use std::fmt;
use std::time::Duration;

use crate::line::{Counts, Lateness};

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct WayReport {
    /// What the line did.
    pub counts: Counts,
    /// How late packets were handed over.
    pub late: Lateness,
    /// Packets dropped because the emulator had no memory for them: figures are worth nothing then.
    pub overrun: u64,
    /// Packets the kernel dropped before the emulator read them: it was too slow.
    pub unread: u64,
    /// Packets the receiving kernel did not take.
    pub refused: u64,
    /// Frames that were no IP packets.
    pub strange: u64,
}

/// Both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Near to far.
    pub up: WayReport,
    /// Far to near.
    pub down: WayReport,
    /// How long the line has been there.
    pub time: Duration,
    /// Processor time that the emulator's thread has used.
    pub busy: Duration,
}

/// From here on lateness is told as a reason for doubt: the accuracy that is promised.
pub const LATE: Duration = Duration::from_micros(300);

impl WayReport {
    /// Packets that are gone for reasons that are the emulator's own.
    pub fn faults(&self) -> u64 {
        self.overrun + self.unread + self.refused
    }
}

impl Report {
    /// Why figures taken on this line are in doubt; `None` if they are not.
    pub fn doubt(&self) -> Option<String> {
        let ways = [&self.up, &self.down];
        let faults: u64 = ways.iter().map(|it| it.faults()).sum();
        if faults > 0 {
            return Some(format!("the emulator itself lost {faults} packets"));
        }
        let late = ways.iter().map(|it| it.late.quantile(0.99)).max().unwrap_or_default();
        (late > LATE).then(|| format!("one packet in a hundred was more than {} late", short(late / 2)))
    }
}

impl fmt::Display for WayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        write!(
            f,
            "{} of {} segments carried, {}",
            counts.carried,
            counts.offered,
            bytes(counts.carried_bytes)
        )?;
        let percent = |part: u64| 100.0 * part as f64 / counts.offered.max(1) as f64;
        let parts = [
            ("lost", counts.lost),
            ("cut", counts.cut),
            ("dropped by the queue", counts.overflowed),
            ("policed", counts.policed),
            ("held back", counts.held),
        ];
        for (what, count) in parts.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, ", {count} {what} ({:.3} %)", percent(count))?;
        }
        let faults = [
            ("without memory", self.overrun),
            ("never read", self.unread),
            ("refused", self.refused),
            ("strange", self.strange),
        ];
        for (what, count) in faults.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, ", {count} {what}")?;
        }
        let (usual, most) = (self.late.quantile(0.99), self.late.max);
        write!(f, "; queue up to {}", bytes(counts.queue_max))?;
        write!(f, "; late: 99 % below {}, worst {}", short(usual), short(most))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "up:   {}", self.up)?;
        writeln!(f, "down: {}", self.down)?;
        let share = 100.0 * self.busy.as_secs_f64() / self.time.as_secs_f64().max(1e-9);
        write!(f, "the emulator used {share:.0} % of one core for {:.1} s", self.time.as_secs_f64())?;
        match self.doubt() {
            Some(why) => write!(f, "\nDOUBT: {why}; figures taken on this line are not to be trusted"),
            None => Ok(()),
        }
    }
}

fn short(time: Duration) -> String {
    match time.as_micros() {
        0..1_000 => format!("{} us", time.as_micros()),
        1_000..1_000_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_was_lost_and_when_it_is_in_doubt() {
        let mut report = Report::default();
        let counts =
            Counts { offered: 1_000, carried: 990, carried_bytes: 1_500_000, lost: 10, ..Counts::default() };
        report.up = WayReport { counts, ..WayReport::default() };
        let told = report.to_string();
        assert!(told.contains("990 of 1000 segments carried, 1.5 MB, 10 lost (1.000 %)"), "{told}");
        assert!(!told.contains("DOUBT"));
        report.down.late.add(Duration::from_millis(5));
        assert!(report.to_string().contains("DOUBT: one packet in a hundred"), "{report}");
        report.down.unread = 3;
        assert!(report.to_string().contains("DOUBT: the emulator itself lost 3 packets"), "{report}");
    }
}
