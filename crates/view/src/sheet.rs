//! Tables for spreadsheets and programs: CSV as RFC 4180 has it, a row for each VM, in cells that drive no terminal.

use std::collections::{BTreeMap, BTreeSet};

use drover_engine::{PlanReport, VmReport};
use drover_plan::{Concern, Weight};
use drover_types::calendar::moment_text;
use drover_types::inventory::{Inventory, Vm};

use crate::filter::VmFilter;
use crate::inventory::{firmware, power, yes};
use crate::report::vm_key;
use crate::summary::{Equal, vm_rate, vm_time};
use crate::text::{UNKNOWN, clean};

const REPORT: [&str; 21] = [
    "name",
    "wave",
    "state",
    "phase",
    "disks",
    "size_bytes",
    "data_bytes",
    "read_bytes",
    "written_bytes",
    "resumed_bytes",
    "rate_bytes_per_s",
    "began",
    "ended",
    "time_s",
    "downtime_s",
    "ready_s",
    "predicted_downtime_s",
    "equal",
    "root",
    "error",
    "advice",
];

/// The VMs of a report that fit. `root` has those of its disks in their order, with blanks between them.
pub fn report_csv(report: &PlanReport, filter: &VmFilter) -> String {
    let fits = |vm: &&VmReport| {
        let (name, wave, state) = vm_key(vm);
        filter.fits(name, wave, state)
    };
    written(&REPORT, report.vms.iter().filter(fits).map(report_row))
}

fn report_row(vm: &VmReport) -> [String; 21] {
    let (name, wave, state) = vm_key(vm);
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let moment = |ms: Option<i64>| ms.map(moment_text).unwrap_or_default();
    let seconds = |ms: u64| format!("{:.3}", ms as f64 / 1000.0);
    let size = vm.disks.iter().fold(0u64, |sum, disk| sum.saturating_add(disk.size));
    let forecast = vm.warm.as_ref().and_then(|warm| warm.row.forecast);
    let roots: Vec<String> = vm.disks.iter().filter_map(|disk| disk.details.root.clone()).collect();
    [
        name.into(),
        wave.unwrap_or_default().into(),
        state.into(),
        text(&vm.row.phase),
        vm.disks.len().to_string(),
        size.to_string(),
        vm.sum(|disk| disk.data_bytes).to_string(),
        vm.read_in_all().to_string(),
        vm.written_in_all().to_string(),
        vm.sum(|disk| disk.resumed_bytes).to_string(),
        vm_rate(vm).map(|rate| format!("{rate:.0}")).unwrap_or_default(),
        moment(vm.row.started_ms),
        moment(vm.row.ended_ms),
        vm_time(vm).map(|time| seconds(time.as_millis() as u64)).unwrap_or_default(),
        vm.warm
            .as_ref()
            .and_then(|warm| warm.downtime_ms)
            .or(vm.undone_downtime_ms)
            .map(seconds)
            .unwrap_or_default(),
        vm.warm.as_ref().and_then(|warm| warm.ready_ms).map(seconds).unwrap_or_default(),
        forecast.map(|it| seconds(it.forecast_ms)).unwrap_or_default(),
        Equal::of_vms([vm]).to_string().to_lowercase(),
        roots.join(" "),
        text(&vm.row.error),
        text(&vm.row.advice),
    ]
}

const INVENTORY: [&str; 19] = [
    "name",
    "id",
    "folder",
    "power",
    "host",
    "cluster",
    "datastores",
    "networks",
    "tags",
    "guest",
    "firmware",
    "cpus",
    "memory_mib",
    "disks",
    "size_bytes",
    "change_tracking",
    "blocks",
    "warnings",
    "notes",
];

/// The VMs of an inventory, with the concerns of each by its id; several values of a cell have a semicolon between them. `drover
/// plan new --table` reads it.
pub fn inventory_csv(inventory: &Inventory, concerns: &BTreeMap<String, Vec<Concern>>) -> String {
    let row = |vm: &Vm| {
        let host = inventory.host(&vm.host_id);
        let found = concerns.get(&vm.id).map_or(&[][..], Vec::as_slice);
        let ids = |weight: Weight| {
            once_each(found.iter().filter(|it| it.severity == weight).map(|it| it.id.as_str()))
        };
        let size = vm.disks.iter().fold(0u64, |sum, disk| sum.saturating_add(disk.capacity_bytes));
        [
            vm.name.clone(),
            vm.id.clone(),
            vm.folder.clone(),
            power(vm.power).replace(UNKNOWN, ""),
            host.map_or(vm.host_id.clone(), |host| host.name.clone()),
            host.and_then(|host| host.cluster.clone()).unwrap_or_default(),
            once_each(vm.disks.iter().map(|disk| disk.datastore.as_str())),
            once_each(vm.nics.iter().map(|nic| nic.network.as_str())),
            vm.tags.join(";"),
            vm.guest_id.clone(),
            firmware(vm).replace(UNKNOWN, ""),
            vm.cpus.to_string(),
            vm.memory_mib.to_string(),
            vm.disks.len().to_string(),
            size.to_string(),
            yes(vm.change_tracking).into(),
            ids(Weight::Blocks),
            ids(Weight::Warning),
            ids(Weight::Info),
        ]
    };
    written(&INVENTORY, inventory.vms.iter().map(row))
}

fn once_each<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(";")
}

fn written<const N: usize>(titles: &[&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    // Rows are as long as the titles, and memory takes all.
    let _ = writer.write_record(titles);
    rows.for_each(|row| {
        let _ = writer.write_record(row.iter().map(|cell| clean(cell).into_owned()));
    });
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn an_inventory_is_a_table_that_a_plan_is_made_of() {
        let (mut inventory, concerns) = crate::inventory::tests::sample();
        inventory.vms[0].tags = vec!["env:prod".into(), "app:shop, old".into()];
        let text = inventory_csv(&inventory, &concerns);
        let rows: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(rows[0], INVENTORY.join(","));
        assert_eq!(
            rows[1],
            "web01,vm-1,prod/web,on,esx1,old,ds1,LAN,\"env:prod;app:shop, old\",,UEFI,4,8192,2,42949672960,yes,\
             rdm-physical,,cbt-off"
        );
        assert_eq!(rows.len(), 4);
        inventory.vms[1].name = "bare".into();
        let table = drover_plan::draft_table(&inventory_csv(&inventory, &concerns), &inventory).unwrap();
        assert_eq!(table.unused.len(), INVENTORY.len() - 2, "no column is a key of a plan by chance");
    }

    #[test]
    fn a_report_is_a_row_for_each_vm_that_fits() {
        let mut report = sample::report();
        report.vms[0].row.wave = Some("pilot, first".into());
        report.vms[0].warm = Some(sample::warm());
        report.vms[1].undone_downtime_ms = Some(9200);
        let text = report_csv(&report, &VmFilter::default());
        let root = "a1".repeat(32);
        let rows: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(rows[0], REPORT.join(","));
        assert_eq!(
            rows[1],
            format!(
                "web01,\"pilot, first\",done,copy,2,21474836480,4294967296,21474836480,4294967296,0,107374182,\
                 2026-03-01T14:05:11Z,2026-03-01T14:06:11Z,60.000,14.000,14.000,12.000,yes,{root} {root},,"
            )
        );
        assert!(rows[2].starts_with("\"<db> & \"\"co\"\"'s\",,failed,copy,1,"), "{}", rows[2]);
        assert!(rows[2].contains(",9.200,,,not checked,"), "it was down, and moved back: {}", rows[2]);
        assert!(rows[2].contains(",not checked,,") && rows[2].contains("no space left\","), "{}", rows[2]);
        assert_eq!((rows.len(), rows[3]), (4, ""));
        // One that drover does not start has no downtime, and was ready for its start.
        report.vms[0].warm.as_mut().unwrap().downtime_ms = None;
        let text = report_csv(&report, &VmFilter::default());
        assert!(text.contains(",60.000,,14.000,12.000,yes,"), "{text}");
        let failed = VmFilter { states: vec!["failed".into()], ..VmFilter::default() };
        assert_eq!(report_csv(&report, &failed).lines().count(), 2);
        report.vms[0].row.name = "a\u{1b}[31m\nb".into();
        assert!(!report_csv(&report, &VmFilter::default()).contains('\u{1b}'));
    }
}
