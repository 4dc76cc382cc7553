//! A run or a transfer at one moment, ready to be drawn or written.

use std::time::Duration;

use drover_mover::Snapshot;
use drover_types::{Bytes, Rate};
use serde::Serialize;

use crate::meter::Meter;
use crate::text::{UNKNOWN, estimate, percent, plain_json};

/// A disk at work.
#[derive(Clone, Debug)]
pub(crate) struct DiskNow {
    /// Absent if the transfer belongs to no VM.
    pub vm: Option<String>,
    /// Absent if there is but one transfer.
    pub disk: Option<String>,
    /// `copy`, `verify`, `queued`, or what the caller calls it.
    pub activity: String,
    pub look: Snapshot,
    pub rate: Option<f64>,
    pub left: Option<Duration>,
    pub waits_for: Option<(&'static str, f64)>,
    /// It reads a part of the disk only, so that part is the whole.
    pub reads_only: bool,
}

/// All disks together.
#[derive(Clone, Debug, Default)]
pub(crate) struct TotalNow {
    pub done: usize,
    pub not_cleaned_up: usize,
    pub running: usize,
    pub failed: usize,
    pub stopped: usize,
    pub cancelled: usize,
    pub queued: usize,
    pub read: u64,
    pub rate: Option<f64>,
    /// What the estimate is for: `copied`, `verified`; absent if nothing moves bytes.
    pub toward: Option<&'static str>,
    pub left: Option<Duration>,
}

#[derive(Serialize)]
struct ProgressLine<'a> {
    time: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vm: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<&'a str>,
    activity: &'a str,
    done_bytes: u64,
    size_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
    resumed_bytes: u64,
    rate_bytes_per_s: Option<u64>,
    eta_s: Option<u64>,
    waits_for: Option<&'static str>,
    waits_for_share: Option<f64>,
    retries: u64,
}

#[derive(Serialize)]
struct TotalLine {
    time: String,
    event: &'static str,
    vms_done: usize,
    vms_not_cleaned_up: usize,
    vms_running: usize,
    vms_failed: usize,
    vms_stopped: usize,
    vms_cancelled: usize,
    vms_queued: usize,
    read_bytes: u64,
    rate_bytes_per_s: Option<u64>,
    eta_of: Option<&'static str>,
    eta_s: Option<u64>,
}

impl DiskNow {
    /// What a meter says.
    pub(crate) fn new(vm: Option<String>, disk: Option<String>, activity: String, meter: &Meter) -> Self {
        let reads_only = activity == "verify";
        DiskNow {
            vm,
            disk,
            activity,
            look: meter.last(),
            rate: meter.rate(),
            left: meter.left(),
            waits_for: meter.waits_for(),
            reads_only,
        }
    }

    /// `web01/Hard disk 1`.
    pub(crate) fn name(&self) -> String {
        match (&self.vm, &self.disk) {
            (Some(vm), Some(disk)) => format!("{vm}/{disk}"),
            (Some(name), None) | (None, Some(name)) => name.clone(),
            (None, None) => self.activity.clone(),
        }
    }

    /// Bytes done and bytes in all. A sampled verification reads a part of the disk, and that is all.
    pub(crate) fn done(&self) -> (u64, u64) {
        if self.reads_only && self.look.mapped > 0 {
            (self.look.read, self.look.read.saturating_add(self.look.left_to_read()))
        } else {
            (self.look.done(), self.look.size)
        }
    }

    /// From 0 to 1; an empty disk is done, one whose size is not known yet is not.
    pub(crate) fn share(&self) -> f64 {
        match self.done() {
            (_, 0) if self.look.mapped == 0 => 0.0,
            (_, 0) => 1.0,
            (done, size) => done as f64 / size as f64,
        }
    }

    /// `812 MB/s`.
    pub(crate) fn rate_text(&self) -> String {
        rate_text(self.rate)
    }

    /// `source 71 %`.
    pub(crate) fn waits_text(&self) -> String {
        match self.waits_for {
            Some((stage, share)) => format!("{stage} {} %", percent(share)),
            None => UNKNOWN.into(),
        }
    }

    /// A line for a log.
    pub(crate) fn plain(&self) -> String {
        let (done, size) = self.done();
        let activity = if self.disk.is_some() { format!(": {}", self.activity) } else { String::new() };
        format!(
            "{}{activity} {} %, {} of {}, {}, ETA {}, waits for {}",
            self.name(),
            percent(self.share()),
            Bytes(done),
            Bytes(size),
            self.rate_text(),
            estimate(self.left),
            self.waits_text()
        )
    }

    /// A line for a machine.
    pub(crate) fn json(&self, time: String) -> String {
        to_line(&self.progress(time))
    }

    /// The same as a value.
    pub(crate) fn value(&self, time: String) -> serde_json::Value {
        serde_json::to_value(self.progress(time)).unwrap_or_default()
    }

    fn progress(&self, time: String) -> ProgressLine<'_> {
        let (done_bytes, size_bytes) = self.done();
        ProgressLine {
            time,
            event: "progress",
            vm: self.vm.as_deref(),
            disk: self.disk.as_deref(),
            activity: &self.activity,
            done_bytes,
            size_bytes,
            read_bytes: self.look.read,
            written_bytes: self.look.written,
            resumed_bytes: self.look.resumed,
            rate_bytes_per_s: self.rate.map(|rate| rate as u64),
            eta_s: self.left.map(whole_seconds),
            waits_for: self.waits_for.map(|(stage, _)| stage),
            waits_for_share: self.waits_for.map(|(_, share)| (share * 1000.0).round() / 1000.0),
            retries: self.look.retries,
        }
    }
}

impl TotalNow {
    /// A line for people: `2 done  3 running  1 failed  41.2 GiB read  1.35 GB/s  copied in 0:45`.
    pub(crate) fn plain(&self) -> String {
        let mut parts = vec![format!("{} done", self.done), format!("{} running", self.running)];
        if self.not_cleaned_up > 0 {
            parts.push(format!("{} not cleaned up", self.not_cleaned_up));
        }
        if self.queued > 0 {
            parts.push(format!("{} queued", self.queued));
        }
        if self.stopped > 0 {
            parts.push(format!("{} stopped", self.stopped));
        }
        if self.cancelled > 0 {
            parts.push(format!("{} given up", self.cancelled));
        }
        parts.push(format!("{} failed", self.failed));
        parts.push(format!("{} read", Bytes(self.read)));
        if let Some(toward) = self.toward {
            parts.push(rate_text(self.rate));
            parts.push(format!("all {toward} in {}", estimate(self.left)));
        }
        parts.join("  ")
    }

    /// A line for a machine.
    pub(crate) fn json(&self, time: String) -> String {
        to_line(&TotalLine {
            time,
            event: "total",
            vms_done: self.done,
            vms_not_cleaned_up: self.not_cleaned_up,
            vms_running: self.running,
            vms_failed: self.failed,
            vms_stopped: self.stopped,
            vms_cancelled: self.cancelled,
            vms_queued: self.queued,
            read_bytes: self.read,
            rate_bytes_per_s: self.rate.map(|rate| rate as u64),
            eta_of: self.toward,
            eta_s: self.left.map(whole_seconds),
        })
    }
}

/// `812 MB/s`, or unknown.
pub(crate) fn rate_text(rate: Option<f64>) -> String {
    rate.map_or(UNKNOWN.into(), |rate| Rate(rate).to_string())
}

/// A value on one line; a value that cannot be written leaves a line that says so.
pub(crate) fn to_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|error| {
        serde_json::json!({ "event": "unwritable", "error": error.to_string() }).to_string()
    });
    plain_json(&text)
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn copying(vm: &str, disk: &str, share: f64) -> DiskNow {
        let size = 20 << 30;
        let done = (size as f64 * share) as u64;
        DiskNow {
            vm: Some(vm.into()),
            disk: Some(disk.into()),
            activity: "copy".into(),
            look: Snapshot {
                size,
                mapped: size,
                to_read: size,
                read: done,
                settled: done,
                written: done,
                ..Snapshot::default()
            },
            rate: Some(812e6),
            left: Some(Duration::from_secs(12)),
            waits_for: Some(("source", 0.714)),
            reads_only: false,
        }
    }

    #[test]
    fn a_disk_at_work_reads_as_a_log_line() {
        assert_eq!(
            copying("web01", "Hard disk 1", 0.5).plain(),
            "web01/Hard disk 1: copy 50 %, 10 GiB of 20 GiB, 812 MB/s, ETA 0:12, waits for source 71 %"
        );
        let nothing = DiskNow::new(None, None, "read".into(), &Meter::since(std::time::Instant::now()));
        assert_eq!(nothing.plain(), "read 0 %, 0 B of 0 B, --, ETA --, waits for --");
    }

    #[test]
    fn a_disk_at_work_reads_as_json() {
        let text = copying("web01", "Hard disk 1", 0.5).json("2026-03-01T14:05:10.250Z".into());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(
            text.starts_with(r#"{"time":"2026-03-01T14:05:10.250Z","event":"progress","vm":"web01""#),
            "{text}"
        );
        assert_eq!(value["done_bytes"], 10u64 << 30);
        assert_eq!(value["rate_bytes_per_s"], 812_000_000);
        assert_eq!(value["eta_s"], 12);
        assert_eq!(value["waits_for"], "source");
        assert_eq!(value["waits_for_share"], 0.714);
    }

    #[test]
    fn what_is_unknown_is_null_in_json() {
        let nothing = DiskNow::new(None, None, "copy".into(), &Meter::since(std::time::Instant::now()));
        let value: serde_json::Value = serde_json::from_str(&nothing.json(String::new())).unwrap();
        assert!(value["eta_s"].is_null() && value["rate_bytes_per_s"].is_null() && value.get("vm").is_none());
    }

    #[test]
    fn a_sampled_verification_ends_at_its_sample() {
        let look = Snapshot { size: 1000, mapped: 1000, to_read: 100, read: 100, ..Snapshot::default() };
        let disk = DiskNow { look, reads_only: true, ..copying("web01", "Hard disk 1", 0.0) };
        assert_eq!((disk.done(), disk.share()), ((100, 100), 1.0));
    }

    #[test]
    fn the_total_is_one_line() {
        let total = TotalNow {
            done: 2,
            not_cleaned_up: 0,
            running: 3,
            failed: 1,
            stopped: 0,
            cancelled: 0,
            queued: 0,
            read: 5 << 30,
            rate: Some(1.35e9),
            toward: Some("copied"),
            left: Some(Duration::from_secs(45)),
        };
        assert_eq!(total.plain(), "2 done  3 running  1 failed  5 GiB read  1.35 GB/s  all copied in 0:45");
        let given_up = TotalNow { cancelled: 4, ..TotalNow::default() };
        assert_eq!(given_up.plain(), "0 done  0 running  4 given up  0 failed  0 B read");
        let line: serde_json::Value = serde_json::from_str(&given_up.json(String::new())).unwrap();
        assert_eq!((line["vms_cancelled"].as_u64(), line["vms_stopped"].as_u64()), (Some(4), Some(0)));
        assert_eq!(TotalNow::default().plain(), "0 done  0 running  0 failed  0 B read");
    }
}
