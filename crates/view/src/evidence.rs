//! Who ran what, where, from where, and which VMs exactly: what a report has to name so that somebody can hold it against
//! the world later.

use drover_engine::{PlanReport, RunRow, VmReport};

use crate::clock::local;
use crate::text::clean;

/// A line for each run and each VM, those that belong to the one before indented; empty where no run told anything.
pub(crate) fn evidence(report: &PlanReport) -> Vec<String> {
    let Some(last) = report.runs.last() else { return Vec::new() };
    let vms = report.vms.iter().map(|vm| vm_line(vm, last));
    report.runs.iter().flat_map(run_lines).chain(vms).map(|line| clean(&line).into_owned()).collect()
}

fn run_lines(run: &RunRow) -> Vec<String> {
    let facts = &run.facts;
    let uuid = match facts.source_uuid.as_str() {
        "" => String::new(),
        uuid => format!(", instance UUID {uuid}"),
    };
    let lines = [
        format!("run {} by {} on {}, drover {}", local(run.at_ms), facts.user, facts.host, facts.drover),
        format!("  plan {}, BLAKE3 {}", facts.plan_file.display(), facts.plan_blake3),
        format!("  source {}, {}{uuid}", facts.source, facts.source_product),
    ];
    lines.into_iter().chain(facts.quarantine.iter().map(|it| format!("  {it}"))).collect()
}

fn vm_line(vm: &VmReport, last: &RunRow) -> String {
    let mut line = format!("{}: {} at the source", vm.row.name, vm.row.id);
    if let Some(uuid) = &vm.instance_uuid {
        line.push_str(&format!(", instance UUID {uuid}"));
    }
    if let Some(host) = &vm.source_host {
        line.push_str(&format!(", host {host}"));
    }
    match &vm.row.site {
        Some(site) => line.push_str(&format!("; to site {site} by {}", last.facts.host)),
        None => line.push_str(&format!("; to {}", last.facts.host)),
    }
    if let Some(host) = &vm.row.target_host {
        line.push_str(&format!("; placed on {}: {}", host.name, host.why));
    }
    line
}

#[cfg(test)]
mod tests {
    use drover_plan::TargetHost;
    use serde_json::json;

    use super::*;
    use crate::sample;

    #[test]
    fn runs_and_vms_are_named_so_that_they_can_be_found_again() {
        let mut report = sample::report();
        report.vms[1].row.site = Some("site-b".into());
        let host = TargetHost { name: "kvm2".into(), why: "the plan names it".into() };
        report.vms[1].row.target_host = Some(host);
        report.vms[1].row.name = "db".into();
        let failed = json!([{"kind": "datastore", "name": "ssd1", "failures": 8, "is_open": true}]);
        report.runs[0].facts.quarantine = serde_json::from_value(failed.clone()).unwrap();
        let lines = evidence(&report);
        assert_eq!(
            lines,
            [
                "run 2026-03-01 14:05:10 by ann (uid 1000) on kvm1, drover 1.2.3".to_string(),
                format!("  plan /plans/lab.yaml, BLAKE3 {}", "b2".repeat(32)),
                "  source vc1, VMware vCenter Server 8.0.2, instance UUID 42-cafe".into(),
                "  datastore ssd1: VMs failed 8 times because of it, and it was left alone".into(),
                "web01: vm-1 at the source, instance UUID 50-beef, host esx1; to kvm1".into(),
                "db: vm-2 at the source; to site site-b by kvm1; placed on kvm2: the plan names it".into(),
            ]
        );
        assert_eq!(sample::json(&report)["runs"][0]["quarantine"], failed);
        assert_eq!(evidence(&sample::empty()), Vec::<String>::new());
        // The page has it, too.
        let page = crate::report_html(&report);
        assert!(page.contains(&lines[0]) && page.contains(&lines[4]), "{page}");
    }
}
