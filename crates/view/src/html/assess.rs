//! An assessment as a page.

use std::fmt::{self, Write};

use drover_forecast::{Assessment, Group, Place, Sizes, Spread, VmSums};
use drover_types::Bytes;
use drover_types::inventory::WriteRate;

use super::forecast::write_why;
use super::{Escaped, begin_table, end_table, write_facts, write_foot, write_head, write_row};
use crate::assess::{churn_cell, examples, some_names};
use crate::forecast::time;
use crate::inventory::weight_title;
use crate::text::count;

/// What a provider has in sums, as one page without scripts.
pub fn assess_html(it: &Assessment) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, it);
    page
}

fn write_page(page: &mut String, it: &Assessment) -> fmt::Result {
    write_head(page, "assessment")?;
    let product = format!("{} {}", it.about.product, it.about.version);
    writeln!(
        page,
        "<header>\n<p class=\"eyebrow\">drover assessment</p>\n<h1>{}</h1>\n</header>",
        Escaped(&product)
    )?;
    let totals = &it.totals;
    let facts = [
        ("VMs", totals.vms.to_string()),
        ("Running", totals.running.to_string()),
        ("Cannot be moved as they are", totals.blocked.to_string()),
        ("Changes tracked", totals.tracked.to_string()),
        ("Disks", totals.disks.to_string()),
        ("Provisioned", Bytes(totals.capacity_bytes).to_string()),
        ("To be read", Bytes(totals.data_bytes).to_string()),
        ("Allocation not known", totals.unknown_allocation.to_string()),
        ("Written", churn_cell(totals.churn_bytes_per_hour)),
        ("Writes not known", totals.unknown_churn.to_string()),
    ];
    write_facts(page, &facts)?;
    if let Some(estimate) = &it.estimate {
        begin_table(page, "Moving all of them", &["Way", "#Likely", "#P10", "#P90"])?;
        for (way, forecast) in [("cold", &estimate.cold), ("warm, where they run", &estimate.warm)] {
            let Spread { p10, p50, p90 } = forecast.makespan_s;
            let cells = [p50, p10, p90].map(|seconds| ("number", time(seconds)));
            write_row(page, &[("", way.to_string())].into_iter().chain(cells).collect::<Vec<_>>())?;
        }
        end_table(page)?;
        if estimate.warm_in_vain.vms > 0 {
            let it = &estimate.warm_in_vain;
            writeln!(
                page,
                "<p>{} would be down about as long cold: {}.</p>",
                count(it.vms, "VM"),
                Escaped(&some_names(&it.examples, it.vms))
            )?;
        }
        write_why(page, &estimate.cold)?;
    }
    write_findings(page, it)?;
    write_sizes(page, it)?;
    write_vms(page, "Largest VMs", &it.largest)?;
    if !it.busiest.is_empty() {
        write_vms(page, "VMs that write most", &it.busiest)?;
    }
    write_places(page, "Hosts", &it.hosts)?;
    write_places(page, "Datastores", &it.datastores)?;
    write_groups(page, "Guests", &it.guests)?;
    write_groups(page, "Firmware", &it.firmware)?;
    write_groups(page, "Power", &it.power)?;
    write_foot(page)
}

fn write_findings(page: &mut String, it: &Assessment) -> fmt::Result {
    begin_table(page, "Before they move", &["Weight", "#VMs", "Concern", "Meaning", "Such as"])?;
    for finding in &it.findings {
        write_row(
            page,
            &[
                ("", weight_title(finding.severity).into()),
                ("number", finding.vms.to_string()),
                ("name", finding.id.clone()),
                ("text", finding.meaning.clone()),
                ("text", examples(finding)),
            ],
        )?;
    }
    end_table(page)
}

fn write_sizes(page: &mut String, it: &Assessment) -> fmt::Result {
    begin_table(page, "Sizes", &["Of", "#Number", "#P10", "#P50", "#P90", "#P99", "#Largest"])?;
    let rows = [
        ("VMs, provisioned", &it.vm_sizes),
        ("VMs, allocated", &it.allocated_sizes),
        ("Disks, provisioned", &it.disk_sizes),
    ];
    for (name, sizes) in rows {
        let Sizes { number, p10, p50, p90, p99, largest } = *sizes;
        let values = [p10, p50, p90, p99, largest].map(|bytes| ("number", Bytes(bytes).to_string()));
        let first = [("", name.to_string()), ("number", number.to_string())];
        write_row(page, &first.into_iter().chain(values).collect::<Vec<_>>())?;
    }
    end_table(page)
}

fn write_vms(page: &mut String, heading: &str, vms: &[VmSums]) -> fmt::Result {
    let busiest_hour = "#In its busiest hour";
    begin_table(
        page,
        heading,
        &["VM", "Id", "#Disks", "#Provisioned", "#To read", "#Writes an hour", busiest_hour],
    )?;
    for vm in vms {
        let churn =
            |of: fn(WriteRate) -> u64| vm.churn.map_or("-".to_string(), |churn| Bytes(of(churn)).to_string());
        write_row(
            page,
            &[
                ("name", vm.name.clone()),
                ("", vm.id.clone()),
                ("number", vm.disks.to_string()),
                ("number", Bytes(vm.capacity_bytes).to_string()),
                ("number", Bytes(vm.data_bytes).to_string()),
                ("number", churn(|it| it.bytes_per_hour)),
                ("number", churn(|it| it.busiest_hour_bytes)),
            ],
        )?;
    }
    end_table(page)
}

fn write_places(page: &mut String, heading: &str, places: &[Place]) -> fmt::Result {
    begin_table(page, heading, &["Name", "#VMs", "#Disks", "#Provisioned", "#To read", "#Writes"])?;
    for place in places {
        write_row(
            page,
            &[
                ("name", place.name.clone()),
                ("number", place.vms.to_string()),
                ("number", place.disks.to_string()),
                ("number", Bytes(place.capacity_bytes).to_string()),
                ("number", Bytes(place.data_bytes).to_string()),
                ("number", churn_cell(place.churn_bytes_per_hour)),
            ],
        )?;
    }
    end_table(page)
}

fn write_groups(page: &mut String, heading: &str, groups: &[Group]) -> fmt::Result {
    begin_table(page, heading, &["Name", "#VMs", "#To read", "#Writes"])?;
    for group in groups {
        let (vms, bytes) = (group.vms.to_string(), Bytes(group.data_bytes).to_string());
        let churn = churn_cell(group.churn_bytes_per_hour);
        let cells = [("name", group.name.clone()), ("number", vms), ("number", bytes), ("number", churn)];
        write_row(page, &cells)?;
    }
    end_table(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assess::tests::assessment;
    use crate::html::tests::texts;

    #[test]
    fn the_page_is_well_formed_and_loads_nothing() {
        let page = assess_html(&assessment());
        let text = texts(&page);
        assert!(text.contains("a-very-long-name-of-a-virtual-machine-<b>"), "{text}");
        for word in ["<script", "http://", "https://", "url(", "src=", "href="] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
