use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;

use drover_engine::{DiskRow, PlanRow, PlanState, VmRow, VmState};

use crate::clock::local;
use crate::report::plan_state;
use crate::summary::vm_state;
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, between, clean, duration};

/// The plans in the store, which is that file, each with what to do next.
pub fn plans_text(plans: &[PlanRow], store: &Path) -> String {
    match plans {
        [] => format!(
            "no plan was run yet with the state in {}; begin with `drover plan new`, then `drover migrate`, or name another \
             folder with --state\n",
            clean(&store.parent().unwrap_or(store).display().to_string())
        ),
        plans => plans_with(plans, is_alive),
    }
}

/// One plan with its VMs, what went wrong, and what to do next.
pub fn status_text(plan: &PlanRow, vms: &[VmRow], disks: &[DiskRow]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_status(&mut text, plan, vms, disks, is_interrupted(plan, is_alive));
    text
}

/// What the VMs of a running plan wait for: names, and what for. One line for all that wait for the same.
pub fn waits_text(waits: &[(String, String)]) -> String {
    let mut by_text: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    waits.iter().for_each(|(name, text)| by_text.entry(text).or_default().push(name));
    let line = |(text, names): (&str, Vec<&str>)| {
        let shown = names.iter().take(WAITING_SHOWN).map(|name| clean(name).to_string());
        let more = names.len().saturating_sub(WAITING_SHOWN);
        let more = (more > 0).then(|| format!("{more} more"));
        let names: Vec<String> = shown.chain(more).collect();
        format!("waits for {}: {}\n", clean(text), names.join(", "))
    };
    let lines: String = by_text.into_iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Names of VMs that wait for the same; the others are counted.
const WAITING_SHOWN: usize = 3;

/// Whether a process still runs this program. Its number may have gone to another program since.
fn is_alive(pid: u32) -> bool {
    let program = |link: &str| {
        let path = std::fs::read_link(link).ok()?;
        // The kernel adds " (deleted)" when the file was replaced by an update.
        Some(path.file_name()?.to_string_lossy().trim_end_matches(" (deleted)").to_string())
    };
    let folder = format!("/proc/{pid}");
    let ours = program("/proc/self/exe");
    match program(&format!("{folder}/exe")) {
        // Another user's process does not tell what it runs.
        None => std::path::Path::new(&folder).exists(),
        theirs => ours.is_none() || theirs == ours,
    }
}

fn is_interrupted(plan: &PlanRow, is_alive: impl Fn(u32) -> bool) -> bool {
    plan.state == PlanState::Running && !plan.pid.is_some_and(is_alive)
}

fn plans_with(plans: &[PlanRow], is_alive: impl Fn(u32) -> bool) -> String {
    let columns =
        [("PLAN", Align::Left), ("STATE", Align::Left), ("BEGAN", Align::Left), ("ENDED", Align::Left)];
    let mut table = Table::new(&[columns.as_slice(), &[("NEXT", Align::Left)]].concat());
    for plan in plans {
        let interrupted = is_interrupted(plan, &is_alive);
        let next = match plan.state {
            PlanState::Running if interrupted => format!("drover resume {}", plan.name),
            PlanState::Running => format!("drover status {}", plan.name),
            PlanState::Incomplete => format!("drover resume {}", plan.name),
            PlanState::Done => format!("drover report {}", plan.name),
            PlanState::Cancelled => String::new(),
        };
        table.row([
            plan.name.clone(),
            state_word(plan.state, interrupted).into(),
            local(plan.started_ms),
            plan.ended_ms.map_or(UNKNOWN.into(), local),
            next,
        ]);
    }
    table.to_string()
}

fn state_word(state: PlanState, interrupted: bool) -> &'static str {
    if interrupted { "interrupted" } else { plan_state(state) }
}

fn write_status(
    text: &mut String,
    plan: &PlanRow,
    vms: &[VmRow],
    disks: &[DiskRow],
    interrupted: bool,
) -> fmt::Result {
    let name = clean(&plan.name);
    write!(text, "plan {name}: {}", state_word(plan.state, interrupted))?;
    match plan.pid.filter(|_| plan.state == PlanState::Running) {
        Some(pid) if interrupted => write!(text, " (process {pid} is gone)")?,
        Some(pid) => write!(text, " (process {pid})")?,
        None => {}
    }
    write!(text, ", began {}", local(plan.started_ms))?;
    match plan.ended_ms {
        Some(ended) => writeln!(text, ", ended {}", local(ended))?,
        None => writeln!(text)?,
    }
    let mut sites: Vec<&str> = vms.iter().filter_map(|vm| vm.site.as_deref()).collect();
    sites.dedup();
    for site in sites {
        writeln!(text, "to site {}", clean(site))?;
    }
    if !vms.is_empty() {
        write!(text, "\n{}", vm_table(vms, disks, interrupted))?;
    }
    vms.iter().try_for_each(|vm| write_error(text, vm))?;
    match plan.state {
        PlanState::Running if !interrupted => writeln!(text, "\nstop it with:    drover cancel {name}"),
        PlanState::Running | PlanState::Incomplete => {
            writeln!(text, "\nresume with:     drover resume {name}\nundo with:       drover cancel {name}")
        }
        PlanState::Done => writeln!(text, "\nsee its proof:   drover report {name}"),
        PlanState::Cancelled => Ok(()),
    }
}

fn vm_table(vms: &[VmRow], disks: &[DiskRow], interrupted: bool) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("VM", Left),
        ("STATE", Left),
        ("PHASE", Left),
        ("BEGAN", Left),
        ("ENDED", Left),
        ("TIME", Right),
        ("DISKS COPIED", Right),
    ]);
    for vm in vms {
        let own = || disks.iter().filter(|disk| disk.vm == vm.id);
        let copied = format!("{} of {}", own().filter(|disk| disk.root.is_some()).count(), own().count());
        let state = match vm.state {
            VmState::Running if interrupted => "interrupted",
            state => vm_state(state),
        };
        let time = vm.started_ms.zip(vm.ended_ms).map(|(began, ended)| duration(between(began, ended)));
        table.row([
            vm.name.clone(),
            state.into(),
            vm.phase.clone().unwrap_or_else(|| UNKNOWN.into()),
            vm.started_ms.map_or(UNKNOWN.into(), local),
            vm.ended_ms.map_or(UNKNOWN.into(), local),
            time.unwrap_or_else(|| UNKNOWN.into()),
            if own().next().is_none() { UNKNOWN.into() } else { copied },
        ]);
    }
    table
}

fn write_error(text: &mut String, vm: &VmRow) -> fmt::Result {
    if let Some(error) = &vm.error {
        writeln!(text, "\n{}: {}", clean(&vm.name), clean(error))?;
    }
    if let Some(advice) = &vm.advice {
        writeln!(text, "  try: {}", clean(advice))?;
    }
    if let Some(snapshot) = &vm.snapshot {
        writeln!(text, "  snapshot {} is still at the source; resume and cancel remove it", clean(snapshot))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{disk, plan, vm};

    #[test]
    fn plans_say_what_to_do_next_and_a_dead_process_is_an_interruption() {
        let plans =
            [plan("a", PlanState::Running), plan("lab", PlanState::Incomplete), plan("old", PlanState::Done)];
        assert_eq!(
            plans_with(&plans, |_| false),
            "\
PLAN  STATE        BEGAN                ENDED                NEXT
a     interrupted  2026-03-01 14:05:10  --                   drover resume a
lab   incomplete   2026-03-01 14:05:10  2026-03-01 14:06:22  drover resume lab
old   done         2026-03-01 14:05:10  2026-03-01 14:06:22  drover report old
"
        );
        assert!(plans_with(&plans[..1], |pid| pid == 4711).contains("running"));
        let none = plans_text(&[], Path::new("/var/lib/drover/drover.db"));
        assert!(none.contains("state in /var/lib/drover;") && none.contains("drover plan new"), "{none}");
    }

    #[test]
    fn a_plan_says_where_its_vms_are_and_how_to_go_on() {
        let failed = VmRow {
            error: Some("write: no space left".into()),
            advice: Some("make room".into()),
            snapshot: Some("snapshot-7".into()),
            ..vm("vm-2", "db", VmState::Failed)
        };
        let queued =
            VmRow { phase: None, started_ms: None, ended_ms: None, ..vm("vm-3", "mail", VmState::Queued) };
        let running = VmRow { ended_ms: None, ..vm("vm-1", "web01", VmState::Running) };
        let disks = [disk("vm-1", 0), DiskRow { root: None, ..disk("vm-1", 1) }, disk("vm-2", 0)];
        let mut text = String::new();
        write_status(&mut text, &plan("lab", PlanState::Running), &[running, failed, queued], &disks, true)
            .unwrap();
        assert_eq!(
            text,
            "\
plan lab: interrupted (process 4711 is gone), began 2026-03-01 14:05:10

VM     STATE        PHASE  BEGAN                ENDED                      TIME  DISKS COPIED
web01  interrupted  copy   2026-03-01 14:05:11  --                           --        1 of 2
db     FAILED       copy   2026-03-01 14:05:11  2026-03-01 14:06:11  1 min 00 s        1 of 1
mail   queued       --     --                   --                           --            --

db: write: no space left
  try: make room
  snapshot snapshot-7 is still at the source; resume and cancel remove it

resume with:     drover resume lab
undo with:       drover cancel lab
"
        );
    }

    #[test]
    fn a_plan_says_to_which_site_it_goes() {
        let far = |id: &str| VmRow { site: Some("site-b".into()), ..vm(id, id, VmState::Done) };
        let text = status_text(&plan("lab", PlanState::Done), &[far("a"), far("b")], &[]);
        assert_eq!(text.matches("to site site-b\n").count(), 1, "{text}");
        assert!(
            !status_text(&plan("lab", PlanState::Done), &[vm("a", "a", VmState::Done)], &[]).contains("site")
        );
    }

    #[test]
    fn a_process_is_alive_only_if_it_runs_this_program() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let alive = is_alive(other.id());
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!alive);
    }

    #[test]
    fn vms_that_wait_for_the_same_share_a_line() {
        let wait = |name: &str, text: &str| (name.to_string(), text.to_string());
        let full = "esx3: 20 of 20 VMs at once";
        let mut waits: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| wait(name, full)).to_vec();
        waits.push(wait("f", "its window to open"));
        let text =
            "\nwaits for esx3: 20 of 20 VMs at once: a, b, c, 2 more\nwaits for its window to open: f\n";
        assert_eq!((waits_text(&waits).as_str(), waits_text(&[]).as_str()), (text, ""));
    }

    #[test]
    fn an_empty_plan_has_a_status() {
        assert!(status_text(&plan("", PlanState::Done), &[], &[]).starts_with("plan : done"));
    }
}
