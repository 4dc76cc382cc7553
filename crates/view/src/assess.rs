//! An assessment as text, in 80 columns, and as JSON.

use std::fmt::{self, Write};

use drover_forecast::{Assessment, Finding, Forecast, Group, Place, Sizes, Spread, VmSums, WarmInVain};
use drover_plan::Weight;
use drover_types::Bytes;
use serde_json::{Value, json};

use crate::forecast::{time, write_sums, write_why};
use crate::inventory::weight_title;
use crate::table::{Align, Table};
use crate::text::{clean, clip, count};

/// Rows of a table; the JSON has all.
const ROWS_MAX: usize = 12;
/// Columns of a name.
const NAME_COLUMNS: usize = 26;

/// What a provider has in sums, and what stands in the way.
pub fn assess_text(it: &Assessment) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_assessment(&mut text, it);
    text
}

/// The same as JSON.
pub fn assess_json(it: &Assessment) -> Value {
    json!(it)
}

fn write_assessment(text: &mut String, it: &Assessment) -> fmt::Result {
    let totals = &it.totals;
    writeln!(text, "{} {}", clean(&it.about.product), clean(&it.about.version))?;
    writeln!(
        text,
        "\n{}, {} running, {} that cannot be moved as they are",
        count(totals.vms, "VM"),
        totals.running,
        totals.blocked
    )?;
    writeln!(
        text,
        "{}, {} provisioned, {} to be read{}",
        count(totals.disks, "disk"),
        Bytes(totals.capacity_bytes),
        Bytes(totals.data_bytes),
        match totals.unknown_allocation {
            0 => String::new(),
            some => format!("\n  (allocated bytes of {} are not known: all is counted)", count(some, "VM")),
        }
    )?;
    if totals.churn_bytes_per_hour > 0 || totals.unknown_churn < totals.running {
        writeln!(
            text,
            "{} written an hour{}",
            Bytes(totals.churn_bytes_per_hour),
            match totals.unknown_churn {
                0 => String::new(),
                some =>
                    format!("\n  (of {} that may run it is not known: churn is assumed)", count(some, "VM")),
            }
        )?;
    }
    if let Some(estimate) = &it.estimate {
        writeln!(text, "\nMoving all of them cold")?;
        write_sums(text, &estimate.cold)?;
        writeln!(text, "\nMoving those that run warm, each over after its first pass")?;
        write_sums(text, &estimate.warm)?;
        write_downtime(text, &estimate.warm)?;
        write_in_vain(text, &estimate.warm_in_vain)?;
        write_why(text, &estimate.cold)?;
    }
    write!(text, "\nSizes\n{}", size_table(it))?;
    write!(text, "\nLargest VMs\n{}", vm_table(&it.largest))?;
    if !it.busiest.is_empty() {
        write!(text, "\nVMs that write most\n{}", vm_table(&it.busiest))?;
    }
    for (title, groups) in [("Guests", &it.guests), ("Firmware", &it.firmware), ("Power", &it.power)] {
        write!(text, "\n{title}\n{}", group_table(groups))?;
        write_rest(text, groups.len())?;
    }
    for (title, places) in [("Hosts", &it.hosts), ("Datastores", &it.datastores)] {
        write!(text, "\n{title}\n{}", place_table(places))?;
        write_rest(text, places.len())?;
    }
    write_findings(text, &it.findings)
}

/// The longest downtime of ten and of all.
fn write_downtime(text: &mut String, it: &Forecast) -> fmt::Result {
    let likely = it.vms.iter().filter_map(|vm| vm.downtime_s).map(|down| down.p50);
    match Spread::of(likely) {
        Some(down) => {
            writeln!(
                text,
                "  {:<12}{} for half of the VMs, {} for nine of ten",
                "down for",
                time(down.p50),
                time(down.p90)
            )
        }
        None => Ok(()),
    }
}

/// VMs that a warm move does not help.
fn write_in_vain(text: &mut String, it: &WarmInVain) -> fmt::Result {
    match it.vms {
        0 => Ok(()),
        some => {
            let words = "which would be down about as long cold:";
            writeln!(text, "  {:<12}{}, {words}", "no gain for", count(some, "VM"))?;
            writeln!(text, "              {}", clip(&clean(&some_names(&it.examples, it.vms)), 66))
        }
    }
}

/// A share of an hour's bytes in a table; a dash where nothing is known.
pub(crate) fn churn_cell(bytes: u64) -> String {
    if bytes == 0 { "-".into() } else { format!("{}/h", Bytes(bytes)) }
}

fn write_rest(text: &mut String, rows: usize) -> fmt::Result {
    match rows.saturating_sub(ROWS_MAX) {
        0 => Ok(()),
        more => writeln!(text, "  ... and {more} more (--json has all)"),
    }
}

fn size_table(it: &Assessment) -> Table {
    let columns = ["P10", "P50", "P90", "P99", "LARGEST"].map(|name| (name, Align::Right));
    let mut table = Table::new(&[[("OF", Align::Left)].as_slice(), &columns].concat()).indented(2);
    let rows = [
        ("VMs, provisioned", &it.vm_sizes),
        ("VMs, allocated", &it.allocated_sizes),
        ("disks, provisioned", &it.disk_sizes),
    ];
    for (name, sizes) in rows.into_iter().filter(|(_, sizes)| sizes.number > 0) {
        let Sizes { p10, p50, p90, p99, largest, .. } = *sizes;
        let values = [p10, p50, p90, p99, largest].map(|bytes| Bytes(bytes).to_string());
        table.row([name.to_string()].into_iter().chain(values));
    }
    table
}

fn vm_table(vms: &[VmSums]) -> Table {
    let mut table = Table::new(&[
        ("VM", Align::Left),
        ("DISKS", Align::Right),
        ("PROVISIONED", Align::Right),
        ("TO READ", Align::Right),
        ("WRITES", Align::Right),
    ])
    .indented(2);
    for vm in vms {
        table.row([
            clip(&vm.name, NAME_COLUMNS).into_owned(),
            vm.disks.to_string(),
            Bytes(vm.capacity_bytes).to_string(),
            Bytes(vm.data_bytes).to_string(),
            vm.churn.map_or("-".into(), |churn| format!("{}/h", Bytes(churn.bytes_per_hour))),
        ]);
    }
    table
}

fn group_table(groups: &[Group]) -> Table {
    let right = ["VMS", "TO READ", "WRITES"].map(|name| (name, Align::Right));
    let columns = [[("NAME", Align::Left)].as_slice(), &right].concat();
    let mut table = Table::new(&columns).indented(2);
    for group in groups.iter().take(ROWS_MAX) {
        table.row([
            clip(&group.name, NAME_COLUMNS).into_owned(),
            group.vms.to_string(),
            Bytes(group.data_bytes).to_string(),
            churn_cell(group.churn_bytes_per_hour),
        ]);
    }
    table
}

fn place_table(places: &[Place]) -> Table {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("VMS", Align::Right),
        ("DISKS", Align::Right),
        ("PROVISIONED", Align::Right),
        ("TO READ", Align::Right),
        ("WRITES", Align::Right),
    ])
    .indented(2);
    for place in places.iter().take(ROWS_MAX) {
        table.row([
            clip(&place.name, NAME_COLUMNS).into_owned(),
            place.vms.to_string(),
            place.disks.to_string(),
            Bytes(place.capacity_bytes).to_string(),
            Bytes(place.data_bytes).to_string(),
            churn_cell(place.churn_bytes_per_hour),
        ]);
    }
    table
}

fn write_findings(text: &mut String, findings: &[Finding]) -> fmt::Result {
    for weight in [Weight::Blocks, Weight::Warning, Weight::Info] {
        let mut of_weight = findings.iter().filter(|it| it.severity == weight).peekable();
        if of_weight.peek().is_some() {
            writeln!(text, "\n{}", weight_title(weight))?;
        }
        for it in of_weight {
            writeln!(text, "{:>8} {}", count(it.vms, "VM"), it.id)?;
            writeln!(text, "         {}", clip(&it.meaning, 71))?;
            writeln!(text, "         {}", clip(&clean(&examples(it)), 71))?;
        }
    }
    Ok(())
}

/// `web01, web02, web03 and 4 more`.
pub(crate) fn examples(it: &Finding) -> String {
    some_names(&it.examples, it.vms)
}

/// The same of any names that stand for so many.
pub(crate) fn some_names(names: &[String], all: usize) -> String {
    let more = match all.saturating_sub(names.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.join(", ") + &more
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use drover_plan::{ConcernContext, concerns};
    use drover_types::inventory::{About, Host, Inventory, Vm, VmDisk, WriteRate, WriteRates};

    use super::*;

    /// An inventory of names that are long, hostile, or both.
    pub(crate) fn assessment() -> Assessment {
        let disk = |key| VmDisk {
            key,
            label: "Hard disk 1".into(),
            capacity_bytes: 1_234_567_890_123,
            datastore: "datastore-of-the-second-building-".repeat(3),
            ..VmDisk::default()
        };
        let vm = |number: usize| Vm {
            id: format!("vm-{number}"),
            name: format!("a-very-long-name-of-a-virtual-machine-<b>\u{1b}[31m{number}"),
            guest_id: format!("guest{}_64Guest", number % 14),
            host_id: format!("host-{}", number % 20),
            allocated_bytes: (!number.is_multiple_of(3)).then_some(987_654_321_987),
            disks: (0..3).map(|key| disk(2000 + key)).collect(),
            ..Vm::default()
        };
        let host = |number: usize| Host {
            id: format!("host-{number}"),
            name: format!("esxi-{number:03}.second-building.long-domain.example.org"),
            ..Host::default()
        };
        let about =
            About { product: "VMware vCenter Server".into(), version: "8.0.2".into(), ..About::default() };
        let (hosts, vms) = ((0..20).map(host).collect(), (0..100).map(vm).collect());
        let inventory = Inventory { about, hosts, vms, ..Inventory::default() };
        let judged: BTreeMap<_, _> = (inventory.vms.iter())
            .map(|vm| (vm.id.clone(), concerns(vm, &inventory, &ConcernContext::default())))
            .collect();
        // Of every second one it is known.
        let rate = |number: usize| WriteRate {
            bytes_per_hour: number as u64 * 23_456_789_012,
            busiest_hour_bytes: number as u64 * 123_456_789_012,
            seconds: 86_400,
        };
        let written: WriteRates =
            (0..100).step_by(2).map(|number| (format!("vm-{number}"), rate(number))).collect();
        drover_forecast::assess(&inventory, &judged, &written)
    }

    #[test]
    fn the_text_fits_80_columns_whatever_things_are_called() {
        let text = assess_text(&assessment());
        for line in text.lines() {
            assert!(crate::text::width(line) <= 80, "{line}");
            assert!(!line.contains('\u{1b}'));
        }
        assert!(text.contains("100 VMs, 0 running, 100 that cannot be moved"), "{text}");
        assert!(text.contains("  ... and 8 more (--json has all)"), "{text}");
        assert!(text.contains("100 VMs power-unknown"), "{text}");
        assert!(text.contains(" written an hour\n  (of 50 VMs that may run it is not known"), "{text}");
        assert!(text.contains("\nVMs that write most\n"), "{text}");
    }

    #[test]
    fn the_json_has_every_host() {
        let value = assess_json(&assessment());
        assert_eq!(value["hosts"].as_array().unwrap().len(), 20);
        assert_eq!(value["totals"]["vms"], 100);
        let churn = |at: usize| &value["vms"][at]["churn"];
        assert_eq!((churn(2)["bytes_per_hour"].as_u64(), churn(3)), (Some(2 * 23_456_789_012), &Value::Null));
    }
}
