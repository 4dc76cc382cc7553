//! How fast the disks at work are: looks of the last seconds. Pure: looks and times come from outside.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_mover::Snapshot;

use crate::event::{DiskActivity, LiveDisk};
use crate::store::ProgressRow;

/// Rates are means over so much time, as on the display of a run.
const WINDOW: Duration = Duration::from_secs(5);
/// Over less time a rate is noise.
const SPAN_MIN: Duration = Duration::from_millis(500);

/// The paces of the disks at work.
#[derive(Debug, Default)]
pub(crate) struct Paces(Vec<(LiveDisk, Pace)>);

/// When, and bytes read by then: one look before the window, and those in it.
#[derive(Debug, Default)]
struct Pace(VecDeque<(Instant, u64)>);

impl Paces {
    /// Takes in the disks at work now; gives where each stands.
    pub(crate) fn look(&mut self, live: Vec<LiveDisk>, now: Instant, at_ms: i64) -> Vec<ProgressRow> {
        let is = |one: &LiveDisk, two: &LiveDisk| Arc::ptr_eq(&one.progress, &two.progress);
        self.0.retain(|(known, _)| live.iter().any(|disk| is(disk, known)));
        let mut rows = Vec::with_capacity(live.len());
        for disk in live {
            let at = self.0.iter().position(|(known, _)| is(known, &disk)).unwrap_or_else(|| {
                self.0.push((disk.clone(), Pace(VecDeque::from([(disk.since, 0)]))));
                self.0.len() - 1
            });
            let look = disk.progress.snapshot();
            let rate = self.0[at].1.add(now, look.read);
            rows.push(row(&disk, &look, rate, at_ms));
        }
        rows
    }
}

impl Pace {
    /// Takes in a look; gives bytes per second.
    fn add(&mut self, now: Instant, read: u64) -> Option<u64> {
        self.0.push_back((now, read));
        while self.0.len() > 2 && self.0[1].0 + WINDOW <= now {
            self.0.pop_front();
        }
        let (began, first) = self.0[0];
        let time = now.saturating_duration_since(began);
        let grown = read.checked_sub(first)?;
        (time >= SPAN_MIN).then(|| (grown as f64 / time.as_secs_f64()) as u64)
    }
}

fn row(disk: &LiveDisk, look: &Snapshot, rate: Option<u64>, at_ms: i64) -> ProgressRow {
    let is_described = look.mapped > 0 || (look.size > 0 && look.done() == look.size);
    ProgressRow {
        vm: disk.vm.clone(),
        disk: disk.disk.clone(),
        activity: disk.activity,
        is_live: true,
        at_ms,
        size_bytes: look.size,
        done_bytes: look.done(),
        read_bytes: look.read,
        left_bytes: is_described.then(|| look.left_to_read()),
        rate_bytes_per_s: rate.filter(|_| disk.activity != DiskActivity::Queued),
    }
}

#[cfg(test)]
mod tests {
    use drover_mover::Progress;

    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let (start, mut pace) = (Instant::now(), Pace::default());
        let mut at = |ms, read| pace.add(start + Duration::from_millis(ms), read);
        assert_eq!(at(0, 0), None);
        assert_eq!(at(400, 400), None, "too early");
        assert_eq!(at(1000, 1000), Some(1000));
        // It stands still: after the window nothing of the fast begin is left.
        let rates: Vec<_> = (2..=8).map(|s| at(s * 1000, 1000).unwrap()).collect();
        assert!(rates.is_sorted_by(|one, two| one >= two) && rates[6] == 0, "{rates:?}");
        assert_eq!(at(9000, 10), None, "a counter that falls has no rate");
    }

    #[test]
    fn a_disk_begins_anew_when_its_transfer_does() {
        let since = Instant::now();
        let disk = |progress: &Arc<Progress>| LiveDisk {
            vm: "web01".into(),
            disk: "Hard disk 1".into(),
            activity: DiskActivity::Copy,
            progress: progress.clone(),
            since,
        };
        let (first, second) = (Arc::new(Progress::default()), Arc::new(Progress::default()));
        first.tell(3000, 4000);
        let mut paces = Paces::default();
        let rows = paces.look(vec![disk(&first)], since + Duration::from_secs(1), 5);
        assert_eq!(
            (rows[0].rate_bytes_per_s, rows[0].left_bytes, rows[0].at_ms),
            (Some(3000), Some(1000), 5)
        );
        let rows = paces.look(vec![disk(&second)], since + Duration::from_secs(2), 6);
        assert_eq!((rows[0].read_bytes, rows[0].left_bytes, paces.0.len()), (0, None, 1));
    }
}
