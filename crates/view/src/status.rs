use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::path::Path;

use drover_engine::{DiskRow, PlanRow, PlanState, VmRow, VmState};

use crate::clock::local;
use crate::follow::{PlanProgress, VmProgress, progress_table};
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

/// One plan with its VMs, how far they are, what went wrong, and what to do next.
pub fn status_text(plan: &PlanRow, vms: &[VmRow], disks: &[DiskRow], progress: &PlanProgress) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_status(&mut text, plan, vms, disks, progress);
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
pub(crate) fn is_alive(pid: u32) -> bool {
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

/// Whether a process runs the plan now.
pub fn runs(plan: &PlanRow) -> bool {
    plan.state == PlanState::Running && !is_interrupted(plan, is_alive)
}

pub(crate) fn is_interrupted(plan: &PlanRow, is_alive: impl Fn(u32) -> bool) -> bool {
    plan.state == PlanState::Running && !plan.pid.is_some_and(is_alive)
}

fn plans_with(plans: &[PlanRow], is_alive: impl Fn(u32) -> bool) -> String {
    let columns =
        [("PLAN", Align::Left), ("STATE", Align::Left), ("BEGAN", Align::Left), ("NEXT", Align::Left)];
    let mut table = Table::new(&columns).fitted();
    let mut first = None;
    for plan in plans {
        let interrupted = is_interrupted(plan, &is_alive);
        let next = match plan.state {
            PlanState::Running if interrupted => "resume",
            PlanState::Running => "status --watch",
            PlanState::Incomplete => "resume",
            PlanState::Done => "report",
            PlanState::Cancelled => "",
        };
        if !next.is_empty() {
            first.get_or_insert((plan, next));
        }
        let state = state_word(plan.state, interrupted);
        table.row([&plan.name, state, &local(plan.started_ms), next]);
    }
    let next = |(plan, next): (&PlanRow, &str)| format!("\nnext: drover {next} {}\n", clean(&plan.name));
    table.to_string() + &first.map(next).unwrap_or_default()
}

fn state_word(state: PlanState, interrupted: bool) -> &'static str {
    if interrupted { "interrupted" } else { plan_state(state) }
}

fn write_status(
    text: &mut String,
    plan: &PlanRow,
    vms: &[VmRow],
    disks: &[DiskRow],
    progress: &PlanProgress,
) -> fmt::Result {
    let interrupted = progress.state == "interrupted";
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
    if progress.eta_of.is_some() {
        writeln!(text, "{}", progress.figures())?;
    }
    if !vms.is_empty() {
        write!(text, "\n{}", vm_table(vms, disks, progress))?;
    }
    vms.iter().try_for_each(|vm| write_error(text, vm))?;
    match plan.state {
        PlanState::Running if !interrupted => {
            let has_failed = vms.iter().any(|vm| vm.state == VmState::Failed);
            let retry = format!("try again with:  drover retry {name} --all-failed\n");
            writeln!(
                text,
                "\n{}follow it with:  drover status {name} --watch\nstop it with:    drover pause {name}",
                if has_failed { &retry } else { "" }
            )
        }
        PlanState::Running | PlanState::Incomplete => {
            writeln!(
                text,
                "\nresume with:     drover resume {name}\ngive it up with: drover cancel {name}, which removes what was copied"
            )
        }
        PlanState::Done => writeln!(text, "\nsee its proof:   drover report {name}"),
        PlanState::Cancelled => Ok(()),
    }
}

fn vm_table(vms: &[VmRow], disks: &[DiskRow], progress: &PlanProgress) -> Table {
    let interrupted = progress.state == "interrupted";
    let mut table = progress_table(&[("TIME", Align::Right), ("DISKS", Align::Right)]);
    let of: HashMap<&str, &VmProgress> = progress.vms.iter().map(|vm| (vm.name.as_str(), vm)).collect();
    let mut copied: HashMap<&str, (usize, usize)> = HashMap::new();
    for disk in disks {
        let (done, all) = copied.entry(&disk.vm).or_default();
        *all += 1;
        *done += usize::from(disk.root.is_some());
    }
    for vm in vms {
        let state = match vm.state {
            VmState::Running if interrupted => "interrupted",
            state => vm_state(state),
        };
        let time = vm.started_ms.zip(vm.ended_ms).map(|(began, ended)| duration(between(began, ended)));
        let [share, rate, eta] =
            of.get(vm.name.as_str()).map_or([UNKNOWN; 3].map(String::from), |vm| vm.cells());
        let copied = copied.get(vm.id.as_str()).map(|(done, all)| format!("{done} of {all}"));
        table.row([
            vm.name.clone(),
            state.into(),
            vm.phase.clone().unwrap_or_else(|| UNKNOWN.into()),
            share,
            rate,
            eta,
            time.unwrap_or_else(|| UNKNOWN.into()),
            copied.unwrap_or_else(|| UNKNOWN.into()),
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
    fn a_state_without_plans_names_its_folder() {
        let text = plans_text(&[], Path::new("/srv/state/drover.db"));
        assert!(text.contains("with the state in /srv/state;") && text.contains("--state"), "{text}");
    }

    #[test]
    fn plans_say_what_to_do_next_and_a_dead_process_is_an_interruption() {
        let plans =
            [plan("a", PlanState::Running), plan("lab", PlanState::Incomplete), plan("old", PlanState::Done)];
        assert_eq!(
            plans_with(&plans, |_| false),
            "\
PLAN  STATE        BEGAN                NEXT
a     interrupted  2026-03-01 14:05:10  resume
lab   incomplete   2026-03-01 14:05:10  resume
old   done         2026-03-01 14:05:10  report

next: drover resume a
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
        let (plan, vms) = (plan("lab", PlanState::Running), [running, failed, queued]);
        let progress = PlanProgress::new(&plan, &vms, &disks, &[], 0);
        assert_eq!(progress.state, "interrupted", "that process is not this program");
        let text = status_text(&plan, &vms, &disks, &progress);
        assert_eq!(
            text,
            "\
plan lab: interrupted (process 4711 is gone), began 2026-03-01 14:05:10

VM     STATE        PHASE   DONE  RATE  ETA        TIME   DISKS
web01  interrupted  copy    50 %    --   --          --  1 of 2
db     FAILED       copy   100 %    --   --  1 min 00 s  1 of 1
mail   queued       --        --    --   --          --      --

db: write: no space left
  try: make room
  snapshot snapshot-7 is still at the source; resume and cancel remove it

resume with:     drover resume lab
give it up with: drover cancel lab, which removes what was copied
"
        );
    }

    #[test]
    fn a_plan_says_to_which_site_it_goes() {
        let far = |id: &str| VmRow { site: Some("site-b".into()), ..vm(id, id, VmState::Done) };
        let text = |vms: &[VmRow]| {
            let plan = plan("lab", PlanState::Done);
            status_text(&plan, vms, &[], &PlanProgress::new(&plan, vms, &[], &[], 0))
        };
        let sites = text(&[far("a"), far("b")]);
        assert_eq!(sites.matches("to site site-b\n").count(), 1, "{sites}");
        assert!(!text(&[vm("a", "a", VmState::Done)]).contains("site"));
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
        let plan = plan("", PlanState::Done);
        let progress = PlanProgress::new(&plan, &[], &[], &[], 0);
        assert!(status_text(&plan, &[], &[], &progress).starts_with("plan : done"));
    }
}
