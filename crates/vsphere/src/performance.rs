//! What guests write, as vSphere's performance counters tell it: nothing is switched on for it and nothing is changed.
//!
//! The counter is `virtualDisk.write.average`: KB a second of each virtual disk, whatever datastore it lies in. A vCenter
//! keeps means of five minutes for a day if its statistics level for them is high enough (2; it is 1 unless somebody raised
//! it). Hosts keep means of 20 seconds for an hour, whatever the level.
//!
//! Sources: vSphere Web Services API, `PerformanceManager`, `PerfQuerySpec`; Web Services SDK Programming Guide,
//! "Performance Data".

use std::time::{Duration, Instant};

use drover_types::inventory::{WriteRate, WriteRates};

use crate::collect::Object;
use crate::error::{VsphereError, VsphereErrorKind};
use crate::operations::vm_ref;
use crate::session::{Call, Inner, Session};
use crate::soap::{Moref, tag};
use crate::time::text_of;
use crate::xml::Element;

/// VMs of one request. A vCenter answers requests about its database for 64 at most, by default.
///
/// Source: vCenter's advanced setting `config.vpxd.stats.maxQueryMetrics`.
const PAGE_VMS_MAX: usize = 50;
/// Where it allows fewer, pages get no smaller than this: one request per VM would take an hour.
const PAGE_VMS_MIN: usize = 6;
/// All pages together. What is not known by then stays unknown.
const TIME_MAX: Duration = Duration::from_secs(5 * 60);
/// Samples of one VM that are looked at; a day kept longer than a day has more than its 288.
const SAMPLES_MAX: usize = 2_000;
/// No sample covers more.
const INTERVAL_S_MAX: u64 = 86_400;

const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 24 * HOUR_S;
const OP: &str = "read performance counters";

impl Session {
    /// What each of `vms` wrote to its disks in the last day, or in the last hour where that is all that is kept. VMs of
    /// which nothing is known are left out: those that are off, for example. If the server cannot be asked, the reason is in
    /// [`Session::warnings`]. Takes one request for 50 VMs.
    pub fn write_rates(&self, vms: &[&str]) -> WriteRates {
        let mut found = WriteRates::new();
        if let Err(error) = self.inner.write_rates(vms, &mut found) {
            let unknown = vms.len() - found.len().min(vms.len());
            let why = error.source.as_ref().map(|source| format!(": {source}")).unwrap_or_default();
            self.inner.warn(format!("what {unknown} of {} VMs write is not known: {error}{why}", vms.len()));
        }
        found
    }
}

/// The counter of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter {
    id: i32,
    /// The statistics level from which on it is kept by virtual disk.
    level: i32,
}

/// Which samples are asked for.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// Those of five minutes since this moment, in seconds since 1970.
    Since(u64),
    /// Those of 20 seconds of the last hour.
    Hour,
}

/// What is asked, and of whom.
struct Question<'a> {
    manager: &'a Moref,
    counter: Counter,
    deadline: Instant,
}

impl Inner {
    fn write_rates(&self, vms: &[&str], found: &mut WriteRates) -> Result<(), VsphereError> {
        if vms.is_empty() {
            return Ok(());
        }
        let untold = |why: &str| VsphereError::new(VsphereErrorKind::Unsupported, OP, why);
        let manager = self.content.performance.as_ref().ok_or_else(|| untold("the server keeps none"))?;
        let kept = self.read(OP, manager, &["perfCounter", "historicalInterval"])?;
        let counter = counter_of(&kept).ok_or_else(|| untold("there is no counter virtualDisk.write"))?;
        let question = Question { manager, counter, deadline: Instant::now() + TIME_MAX };
        // A host alone keeps an hour, whatever it says of a day.
        if self.content.about.is_vcenter
            && keeps_a_day(&kept, counter.level)
            && let Some(now) = self.server_time(OP)?
        {
            self.ask_pages(&question, vms, Look::Since(now.saturating_sub(DAY_S)), found)?;
        }
        let rest: Vec<&str> = vms.iter().copied().filter(|vm| !found.contains_key(*vm)).collect();
        self.ask_pages(&question, &rest, Look::Hour, found)
    }

    fn ask_pages(
        &self,
        question: &Question<'_>,
        mut vms: &[&str],
        look: Look,
        found: &mut WriteRates,
    ) -> Result<(), VsphereError> {
        let work = self.begin();
        let mut page = PAGE_VMS_MAX;
        while !vms.is_empty() {
            work.check(OP)?;
            if Instant::now() >= question.deadline {
                let why = format!("it took longer than {} min", TIME_MAX.as_secs() / 60);
                return Err(VsphereError::new(VsphereErrorKind::Timeout, OP, why));
            }
            let (some, later) = vms.split_at(page.min(vms.len()));
            let arguments: String = some.iter().map(|vm| query_spec(vm, question.counter.id, look)).collect();
            let this = question.manager;
            let call = Call { op: OP, method: "QueryPerf", this, arguments: &arguments, is_read: true };
            match self.call(&call) {
                Ok(answer) => {
                    found.extend(answer.all("returnval").filter_map(rate_of));
                    vms = later;
                }
                Err(error) if error.is_fault("InvalidArgument") && page > PAGE_VMS_MIN => {
                    page = (page / 2).max(PAGE_VMS_MIN);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn counter_of(kept: &Object) -> Option<Counter> {
    let is_it = |it: &&Element| {
        it.text_at("groupInfo/key") == Some("virtualDisk")
            && it.text_at("nameInfo/key") == Some("write")
            && it.text_at("rollupType") == Some("average")
    };
    let it = kept.get("perfCounter")?.all("PerfCounterInfo").find(is_it)?;
    let level = |name| it.number_at(name).unwrap_or(0);
    Some(Counter { id: it.number_at("key")?, level: level("level").max(level("perDeviceLevel")) })
}

/// Whether means of five minutes are kept for a counter of that level.
fn keeps_a_day(kept: &Object, level: i32) -> bool {
    let keeps = |it: &Element| {
        it.number_at("samplingPeriod") == Some(300)
            && it.flag_at("enabled")
            && it.number_at::<i32>("level").is_some_and(|kept| kept >= level)
    };
    kept.get("historicalInterval").is_some_and(|list| list.all("PerfInterval").any(keeps))
}

fn query_spec(vm: &str, counter: i32, look: Look) -> String {
    let (span, interval) = match look {
        Look::Since(seconds) => (tag("startTime", &text_of(seconds)), "300"),
        Look::Hour => (tag("maxSample", "180"), "20"),
    };
    format!(
        "<querySpec>{}{span}<metricId>{}{}</metricId>{}{}</querySpec>",
        vm_ref(vm).tag("entity"),
        tag("counterId", &counter.to_string()),
        tag("instance", "*"),
        tag("intervalId", interval),
        tag("format", "csv"),
    )
}

/// What a `PerfEntityMetricCSV` tells of its VM; nothing if it has no sample.
fn rate_of(told: &Element) -> Option<(String, WriteRate)> {
    let vm = Moref::of(told.child("entity")?).id;
    let times = told.text_at("sampleInfoCSV")?;
    // Interval, moment, interval, moment ...
    let intervals: Vec<u64> = (times.split(',').step_by(2).take(SAMPLES_MAX))
        .map(|interval| interval.trim().parse().unwrap_or(0).min(INTERVAL_S_MAX))
        .collect();
    // A server may add the sum of all disks, without an instance.
    let of_disks = told.all("value").any(|it| it.text_at("id/instance").is_some());
    let mut sums: Vec<Option<u64>> = vec![None; intervals.len()];
    for disk in told.all("value").filter(|it| it.text_at("id/instance").is_some() == of_disks) {
        for (sum, value) in sums.iter_mut().zip(disk.text_at("value").unwrap_or_default().split(',')) {
            // Below 0 there was no sample.
            if let Ok(kb) = value.trim().parse::<u64>() {
                *sum = Some(sum.unwrap_or(0).saturating_add(kb));
            }
        }
    }
    let samples = intervals.into_iter().zip(sums).filter_map(|(seconds, kb)| Some((seconds, kb?)));
    Some((vm, of_samples(samples)?))
}

/// Of samples in order: seconds, and KB a second in them.
fn of_samples(samples: impl Iterator<Item = (u64, u64)>) -> Option<WriteRate> {
    let mut all = Sum::default();
    let mut hour = Sum::default();
    let mut busiest = 0;
    for (seconds, kb_per_s) in samples {
        let bytes = kb_per_s.saturating_mul(1024).saturating_mul(seconds);
        all.add(seconds, bytes);
        hour.add(seconds, bytes);
        if hour.seconds >= HOUR_S {
            busiest = busiest.max(std::mem::take(&mut hour).per_hour());
        }
    }
    let bytes_per_hour = all.per_hour();
    (all.seconds > 0).then(|| WriteRate {
        bytes_per_hour,
        busiest_hour_bytes: busiest.max(bytes_per_hour),
        seconds: all.seconds,
    })
}

#[derive(Clone, Copy, Default)]
struct Sum {
    seconds: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, seconds: u64, bytes: u64) {
        self.seconds = self.seconds.saturating_add(seconds);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn per_hour(self) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(HOUR_S) / u128::from(self.seconds.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::object_of;
    use crate::xml;

    fn told(values: &[(&str, &str)], times: &str) -> Element {
        let series: String = (values.iter())
            .map(|(disk, kb)| {
                format!("<value><id><counterId>174</counterId><instance>{disk}</instance></id><value>{kb}</value></value>")
            })
            .collect();
        let text = format!(
            "<returnval><entity type=\"VirtualMachine\">vm-1</entity><sampleInfoCSV>{times}</sampleInfoCSV>{series}</returnval>"
        );
        xml::parse(&text).unwrap()
    }

    #[test]
    fn disks_are_added_up_and_the_servers_own_sum_is_not_added_to_them() {
        let times = "20,2026-11-28T10:00:20Z,20,2026-11-28T10:00:40Z,40,2026-11-28T10:01:20Z";
        let rate = |values: &[(&str, &str)]| rate_of(&told(values, times)).map(|(_, rate)| rate);
        // 3 KB/s for 20 s, 4 for 20, 1 for 40: 180 KB in 80 s.
        let wanted =
            WriteRate { bytes_per_hour: 180 * 1024 * 45, busiest_hour_bytes: 180 * 1024 * 45, seconds: 80 };
        let disks = [("scsi0:0", "1,4,0"), ("scsi0:1", "2,0,1")];
        assert_eq!(rate(&disks), Some(wanted));
        assert_eq!(rate(&[&disks[..], &[("", "3,4,1")]].concat()), Some(wanted));
        assert_eq!(rate(&[("", "3,4,1")]), Some(wanted));
    }

    #[test]
    fn what_has_no_samples_is_not_taken_for_idle() {
        let times = "20,2026-11-28T10:00:20Z,20,2026-11-28T10:00:40Z";
        assert_eq!(rate_of(&told(&[], times)), None);
        assert_eq!(rate_of(&told(&[("scsi0:0", "-1,-1")], times)), None);
        assert_eq!(rate_of(&told(&[("scsi0:0", "0,0")], "")), None);
        let (vm, idle) = rate_of(&told(&[("scsi0:0", "0,-1")], times)).unwrap();
        assert_eq!((vm.as_str(), idle), ("vm-1", WriteRate { seconds: 20, ..WriteRate::default() }));
    }

    #[test]
    fn numbers_that_make_no_sense_are_taken_without_harm() {
        let much = u64::MAX.to_string();
        let (_, rate) = rate_of(&told(&[("a", &much), ("b", &much)], &format!("{much},x,{much},x"))).unwrap();
        assert_eq!((rate.seconds, rate.bytes_per_hour), (INTERVAL_S_MAX, u64::MAX / 24));
        assert_eq!(rate_of(&told(&[("a", "1e9,x")], "x,x,-5,x")), None);
        let long = "1,".repeat(SAMPLES_MAX * 4);
        assert_eq!(rate_of(&told(&[("a", &long)], &long)).unwrap().1.seconds, SAMPLES_MAX as u64);
    }

    #[test]
    fn the_busiest_hour_is_one_of_the_day() {
        let day = (0..288).map(|at| (300, if at / 12 == 5 { 100 } else { 1 }));
        let rate = of_samples(day).unwrap();
        assert_eq!(rate.seconds, DAY_S);
        assert_eq!(rate.busiest_hour_bytes, 100 * 1024 * HOUR_S);
        assert_eq!(rate.bytes_per_hour, 123 * 1024 * HOUR_S / 24);
    }

    #[test]
    fn a_day_is_asked_for_where_the_level_of_the_counter_is_kept() {
        let kept = |enabled: bool, level: &str| {
            let text = format!(
                "<o><obj type=\"PerformanceManager\">p</obj><propSet><name>historicalInterval</name><val><PerfInterval>\
                 <samplingPeriod>300</samplingPeriod>{level}<enabled>{enabled}</enabled></PerfInterval></val></propSet>\
                 <propSet><name>perfCounter</name><val><PerfCounterInfo><key>131</key><nameInfo><key>write</key></nameInfo>\
                 <groupInfo><key>disk</key></groupInfo><rollupType>average</rollupType></PerfCounterInfo><PerfCounterInfo>\
                 <key>174</key><nameInfo><key>write</key></nameInfo><groupInfo><key>virtualDisk</key></groupInfo>\
                 <rollupType>average</rollupType><level>2</level><perDeviceLevel>3</perDeviceLevel></PerfCounterInfo></val>\
                 </propSet></o>"
            );
            object_of(xml::parse(&text).unwrap())
        };
        let counter = counter_of(&kept(true, "")).unwrap();
        assert_eq!(counter, Counter { id: 174, level: 3 });
        assert!(keeps_a_day(&kept(true, "<level>3</level>"), counter.level));
        assert!(!keeps_a_day(&kept(true, "<level>2</level>"), counter.level));
        assert!(!keeps_a_day(&kept(false, "<level>4</level>"), counter.level));
        assert!(!keeps_a_day(&kept(true, ""), counter.level));
    }
}
