use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Write};
use std::path::Path;

use drover_engine::{
    Cause, DiskRow, ForeseenNow, PlanLimits, PlanRow, PlanState, RunRow, VmRow, VmState, WarmReport,
    WaveReport,
};
use drover_plan::Problem;
use drover_types::some_of;
use serde::{Deserialize, Serialize};

use crate::clock::local;
use crate::filter::{Extent, VmFilter, by_state, others, write_errors, write_snapshots};
use crate::follow::{Counts, PlanProgress, VmProgress, progress_table};
use crate::foreseen::{WaitsForCutover, end_text};
use crate::report::plan_state;
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, between, clean, duration};
use crate::warm::warm_text;
use crate::waves::waves_text;

/// Where a plan and its VMs stand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanStatus {
    /// The plan.
    pub plan: PlanRow,
    /// How far it is.
    pub progress: PlanProgress,
    /// Its VMs.
    pub vms: Vec<VmRow>,
    /// Their disks.
    pub disks: Vec<DiskRow>,
    /// Passes and downtimes of those that move warm, by name.
    pub warm: BTreeMap<String, WarmReport>,
    /// Its waves.
    pub waves: Vec<WaveReport>,
    /// What VMs wait for, by name.
    pub waits: BTreeMap<String, String>,
    /// What was foreseen for its latest run; absent if it was never run.
    pub foreseen: Option<EndForeseen>,
    /// What of it waits for `drover cutover`; absent where nothing does.
    pub waits_for_cutover: Option<WaitsForCutover>,
    /// Its limits, where an order changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<PlanLimits>,
    /// How the daemon's last try ended, if it failed and nothing runs the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon_error: Option<DaemonError>,
}

/// Why a daemon did not do with a plan what it was to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonError {
    /// That.
    pub error: String,
    /// What to try.
    pub advice: Option<String>,
    /// What stood in the way.
    pub problems: Vec<Problem>,
}

/// When a run is foreseen to end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EndForeseen {
    /// When it began, in milliseconds since 1970.
    pub began_ms: i64,
    /// How long it was to take, as it began.
    pub makespan_ms: Option<[u64; 3]>,
    /// After how long all that wait for `drover cutover` were to be ready for it, if some do.
    pub ready_ms: Option<[u64; 3]>,
    /// As it was said last.
    pub now: Option<ForeseenNow>,
}

impl EndForeseen {
    /// Of the latest of these runs.
    pub fn of(runs: &[RunRow]) -> Option<EndForeseen> {
        runs.last().map(|run| EndForeseen {
            began_ms: run.at_ms,
            makespan_ms: run.facts.foreseen.as_ref().map(|it| it.makespan_ms),
            ready_ms: run.facts.foreseen.as_ref().and_then(|it| it.ready_ms),
            now: run.facts.foreseen_now,
        })
    }
}

/// The plans in the store, which is that file, each with its VMs and what to do next.
pub fn plans_text(plans: &[(PlanRow, Counts)], store: &Path) -> String {
    match plans {
        [] => format!(
            "no plan was run yet with the state in {}; begin with `drover plan new`, then `drover migrate`, or name another \
             folder with --state\n",
            clean(&store.parent().unwrap_or(store).display().to_string())
        ),
        plans => plans_with(plans, is_alive),
    }
}

impl PlanStatus {
    /// For people: the plan, sums, its VMs as far as they are asked for, what went wrong, and what to do next. `at` is the
    /// option that says where the plan is.
    pub fn text(&self, extent: Extent<'_>, at: &str) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write_status(&mut text, self, extent, at);
        text
    }

    /// With these VMs alone; what is told of the plan stays.
    pub fn only(mut self, filter: &VmFilter) -> PlanStatus {
        let kept: HashSet<String> = self.listed(Extent::Of(filter)).map(|vm| vm.name.clone()).collect();
        self.vms.retain(|vm| kept.contains(&vm.name));
        let ids: HashSet<&str> = self.vms.iter().map(|vm| vm.id.as_str()).collect();
        self.disks.retain(|disk| ids.contains(disk.vm.as_str()));
        self.progress.vms.retain(|vm| kept.contains(&vm.name));
        self.warm.retain(|name, _| kept.contains(name));
        self.waits.retain(|name, _| kept.contains(name));
        self
    }

    fn listed(&self, extent: Extent<'_>) -> impl Iterator<Item = &VmRow> {
        let found: Vec<_> = self.progress.vms.iter().map(VmProgress::key).collect();
        let places: HashMap<&str, &VmRow> = self.vms.iter().map(|vm| (vm.name.as_str(), vm)).collect();
        extent.listed(&found).into_iter().filter_map(move |at| places.get(found[at].0).copied())
    }
}

/// What VMs of a running plan wait for: one line for all that wait for the same, those that the most wait for first.
fn waits_text<'a>(waits: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let mut by_text: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    waits.for_each(|(name, text)| by_text.entry(text).or_default().push(clean(name)));
    let mut lines: Vec<_> = by_text.into_iter().collect();
    lines.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let rest: usize = lines.iter().skip(WAITS_SHOWN).map(|(_, names)| names.len()).sum();
    let line = |(text, names): &(&str, Vec<_>)| {
        format!("waits for {}: {}\n", clean(text), some_of(names, WAITING_SHOWN))
    };
    let shown: String = lines.iter().take(WAITS_SHOWN).map(line).collect();
    match (shown.is_empty(), rest) {
        (true, _) => shown,
        (false, 0) => format!("\n{shown}"),
        (false, rest) => format!("\n{shown}{rest} more wait for something else\n"),
    }
}

/// Whether a guest is off at the source because of drover, in its cutover or because nobody switched it on again.
fn is_down(vm: &VmRow) -> bool {
    vm.switched_off && !vm.state.has_arrived()
}

/// Names of VMs that are down; the others are counted.
const DOWN_SHOWN: usize = 5;
/// Names of VMs that wait for the same; the others are counted.
const WAITING_SHOWN: usize = 3;
/// What VMs wait for, in so many lines.
const WAITS_SHOWN: usize = 10;

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

fn plans_with(plans: &[(PlanRow, Counts)], is_alive: impl Fn(u32) -> bool) -> String {
    let columns = [
        ("PLAN", Align::Left),
        ("STATE", Align::Left),
        ("BEGAN", Align::Left),
        ("VMS DONE", Align::Right),
        ("FAILED", Align::Right),
        ("NEXT", Align::Left),
    ];
    let mut table = Table::new(&columns).fitted();
    let mut first = None;
    for (plan, vms) in plans {
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
        let done = format!("{} of {}", vms.arrived, vms.all);
        table.row([&plan.name, state, &local(plan.started_ms), &done, &vms.failed.to_string(), next]);
    }
    let next = |(plan, next): (&PlanRow, &str)| format!("\nnext: drover {next} {}\n", clean(&plan.name));
    table.to_string() + &first.map(next).unwrap_or_default()
}

fn state_word(state: PlanState, interrupted: bool) -> &'static str {
    if interrupted { "interrupted" } else { plan_state(state) }
}

fn write_status(text: &mut String, status: &PlanStatus, extent: Extent<'_>, at: &str) -> fmt::Result {
    let PlanStatus { plan, progress, vms, .. } = status;
    let interrupted = progress.state == "interrupted";
    write!(text, "plan {}: {}", clean(&plan.name), state_word(plan.state, interrupted))?;
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
    if let Some(limits) = &status.limits {
        writeln!(text, "limits changed by order: {}", limits.changes())?;
    }
    if let Some(failed) = &status.daemon_error {
        write_daemon_error(text, failed)?;
    }
    let down: Vec<_> = vms.iter().filter(|vm| is_down(vm)).map(|vm| clean(&vm.name)).collect();
    if !down.is_empty() {
        writeln!(text, "shut down by drover, and not switched on again: {}", some_of(&down, DOWN_SHOWN))?;
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
        let states: Vec<&str> = progress.vms.iter().map(|vm| vm.state.as_str()).collect();
        writeln!(text, "{}", by_state(&states))?;
    }
    // One whose process is gone ends when somebody resumes it.
    let runs = plan.state == PlanState::Running && !interrupted;
    let end = |run: EndForeseen| end_text(&status.plan.name, &run, status.waits_for_cutover.as_ref());
    if let Some(end) = status.foreseen.filter(|_| runs).and_then(end) {
        write!(text, "\n{end}")?;
    }
    text.push_str(&waves_text(&status.waves));
    let listed: Vec<&VmRow> = status.listed(extent).collect();
    let groups = extent.groups(vms.len());
    if !listed.is_empty() {
        write!(text, "\n{}", vm_table(&listed, status))?;
    }
    // Of those that failed for one cause all are counted.
    let told = if groups { vms.iter().collect() } else { listed.clone() };
    let errors = extent.errors(vms.len());
    write_errors(text, &told, errors, write_error)?;
    // One at work needs its own.
    let at_rest: Vec<&VmRow> =
        told.iter().copied().filter(|vm| !(runs && vm.state == VmState::Running)).collect();
    write_snapshots(text, &at_rest, errors)?;
    text.push_str(&warm_text(listed.iter().filter_map(|vm| {
        let is_at_work = runs && vm.state == VmState::Running;
        Some((&*vm.name, status.warm.get(&vm.name)?, is_at_work))
    })));
    // Of a run that is gone nothing waits.
    let is_told: HashSet<&str> = told.iter().filter(|_| runs).map(|vm| vm.name.as_str()).collect();
    text.push_str(&waits_text(status.waits.iter().filter(|(name, _)| is_told.contains(name.as_str()))));
    text.push_str(&others(listed.len(), vms.len()));
    write_next(text, status, runs, at)
}

fn write_daemon_error(text: &mut String, failed: &DaemonError) -> fmt::Result {
    writeln!(text, "the daemon's last try failed: {}", clean(&failed.error))?;
    failed.problems.iter().try_for_each(|it| writeln!(text, "  {}", clean(&it.to_string())))?;
    failed.advice.iter().try_for_each(|advice| writeln!(text, "  try: {}", clean(advice)))
}

/// What comes next.
fn write_next(text: &mut String, status: &PlanStatus, runs: bool, at: &str) -> fmt::Result {
    let name = clean(&status.plan.name);
    match status.plan.state {
        PlanState::Running if runs => {
            let retry = format!("try again with:  drover retry {name} --all-failed{at}\n");
            // Those whose wave is over fail again at once, and those after others that failed go on with them.
            let late = Cause::NotItsTurn.word();
            let is_late = |vm: &VmRow| vm.cause.as_deref() == Some(late.as_str());
            let mut failed = status.vms.iter().filter(|vm| vm.state == VmState::Failed).peekable();
            let in_vain = failed.peek().is_some() && failed.all(is_late);
            writeln!(
                text,
                "\n{}follow it with:  drover status {name} --watch{at}\nstop it with:    drover pause {name}{at}",
                if status.progress.counts.failed > 0 && !in_vain { &retry } else { "" }
            )
        }
        PlanState::Running | PlanState::Incomplete => {
            writeln!(
                text,
                "\nresume with:     drover resume {name}{at}\ngive it up with: drover cancel {name}{at}, which removes what was copied"
            )
        }
        PlanState::Done => writeln!(text, "\nsee its proof:   drover report {name}{at}"),
        PlanState::Cancelled => Ok(()),
    }
}

fn vm_table(vms: &[&VmRow], status: &PlanStatus) -> Table {
    let mut table = progress_table(&[("TIME", Align::Right), ("DISKS", Align::Right)]);
    let of: HashMap<&str, &VmProgress> =
        status.progress.vms.iter().map(|vm| (vm.name.as_str(), vm)).collect();
    let mut copied: HashMap<&str, (usize, usize)> = HashMap::new();
    for disk in &status.disks {
        let (done, all) = copied.entry(&disk.vm).or_default();
        *all += 1;
        *done += usize::from(disk.root.is_some());
    }
    for vm in vms {
        let Some(progress) = of.get(vm.name.as_str()) else { continue };
        let time = vm.started_ms.zip(vm.ended_ms).map(|(began, ended)| duration(between(began, ended)));
        let [share, rate, eta] = progress.cells();
        let copied = copied.get(vm.id.as_str()).map(|(done, all)| format!("{done} of {all}"));
        table.row([
            vm.name.clone(),
            progress.state_word().into(),
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
    let Some(error) = &vm.error else { return Ok(()) };
    writeln!(text, "\n{}: {}", clean(&vm.name), clean(error))?;
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
    use drover_engine::LimitsInForce;

    use super::*;
    use crate::sample::{self, disk, plan, vm};

    fn status(plan: PlanRow, vms: &[VmRow], disks: &[DiskRow]) -> PlanStatus {
        let progress = PlanProgress::new(&plan, vms, disks, &[], 0);
        let (vms, disks) = (vms.to_vec(), disks.to_vec());
        let (warm, waits) = (BTreeMap::new(), BTreeMap::new());
        PlanStatus {
            plan,
            progress,
            vms,
            disks,
            warm,
            waves: vec![],
            waits,
            foreseen: None,
            waits_for_cutover: None,
            limits: None,
            daemon_error: None,
        }
    }

    #[test]
    fn how_the_daemons_last_try_failed_is_shown() {
        let failed = DaemonError {
            error: "the plan has errors; nothing was touched".into(),
            advice: Some("mend them".into()),
            problems: vec![Problem::error("vms[0]", "w20 is suspended")],
        };
        let daemon_error = Some(failed);
        let status = PlanStatus { daemon_error, ..status(plan("lab", PlanState::Incomplete), &[], &[]) };
        let text = status.text(Extent::Short, "");
        let expected = "\nthe daemon's last try failed: the plan has errors; nothing was touched\n  error: vms[0]: w20 is suspended\n  \
                        try: mend them\n";
        assert!(text.contains(expected), "{text}");
        let json = serde_json::json!(status);
        assert_eq!(json["daemon_error"]["problems"][0]["message"], "w20 is suspended", "{json}");
    }

    /// A plan of 3000 VMs in two waves, three of which failed for one cause; this process runs it.
    fn fleet() -> PlanStatus {
        fleet_of(std::process::id())
    }

    fn fleet_of(pid: u32) -> PlanStatus {
        let row = |at: usize| {
            let state = match at {
                0..3 => VmState::Failed,
                3..5 => VmState::Running,
                5..2000 => VmState::Done,
                _ => VmState::Queued,
            };
            let name = format!("web{at:04}");
            let error = (at < 3).then(|| format!("{name} has no way to esx1"));
            let wave = Some(if at.is_multiple_of(2) { "even" } else { "odd" }.to_string());
            VmRow { error, wave, ..vm(&format!("vm-{at}"), &name, state) }
        };
        let rows: Vec<VmRow> = (0..3000).map(row).collect();
        let mut fleet = status(
            PlanRow { pid: Some(pid), ..plan("fleet", PlanState::Running) },
            &rows,
            &[disk("vm-4", 0)],
        );
        fleet.waves = vec![sample::wave()];
        fleet.waits =
            (2000..3000).map(|at| (format!("web{at:04}"), format!("{} of 20 VMs", at % 50))).collect();
        fleet.warm = [("web0004".to_string(), sample::warm())].into();
        fleet
    }

    #[test]
    fn a_state_without_plans_names_its_folder() {
        let text = plans_text(&[], Path::new("/srv/state/drover.db"));
        assert!(text.contains("with the state in /srv/state;") && text.contains("--state"), "{text}");
    }

    #[test]
    fn plans_say_what_to_do_next_and_a_dead_process_is_an_interruption() {
        let counts = Counts { all: 5, arrived: 2, failed: 1, ..Counts::default() };
        let plans =
            [plan("a", PlanState::Running), plan("lab", PlanState::Incomplete), plan("old", PlanState::Done)]
                .map(|plan| (plan, counts));
        assert_eq!(
            plans_with(&plans, |_| false),
            "\
PLAN  STATE        BEGAN                VMS DONE  FAILED  NEXT
a     interrupted  2026-03-01 14:05:10    2 of 5       1  resume
lab   incomplete   2026-03-01 14:05:10    2 of 5       1  resume
old   done         2026-03-01 14:05:10    2 of 5       1  report

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
        let queued = VmRow {
            phase: None,
            switched_off: false,
            started_ms: None,
            ended_ms: None,
            ..vm("vm-3", "mail", VmState::Queued)
        };
        let running = VmRow { ended_ms: None, ..vm("vm-1", "web01", VmState::Running) };
        let disks = [disk("vm-1", 0), DiskRow { root: None, ..disk("vm-1", 1) }, disk("vm-2", 0)];
        let status = status(plan("lab", PlanState::Running), &[running, failed, queued], &disks);
        assert_eq!(status.progress.state, "interrupted", "that process is not this program");
        let text = status.text(Extent::Short, " --state s");
        assert_eq!(
            text,
            "\
plan lab: interrupted (process 4711 is gone), began 2026-03-01 14:05:10
shut down by drover, and not switched on again: web01, db
3 VMs: 1 interrupted, 1 queued, 1 failed

VM     STATE        PHASE   DONE  RATE  ETA        TIME   DISKS
web01  interrupted  copy    50 %    --   --          --  1 of 2
db     FAILED       copy   100 %    --   --  1 min 00 s  1 of 1
mail   queued       --        --    --   --          --      --

db: write: no space left
  try: make room
  snapshot snapshot-7 is still at the source; resume and cancel remove it

resume with:     drover resume lab --state s
give it up with: drover cancel lab --state s, which removes what was copied
"
        );
    }

    #[test]
    fn a_snapshot_of_a_vm_without_an_error_is_told_with_its_name() {
        let held = |at: usize| VmRow {
            snapshot: Some(format!("snapshot-{at}")),
            ended_ms: None,
            ..vm(&format!("vm-{at}"), &format!("web{at}"), VmState::Running)
        };
        let text = |pid: u32, vms: usize, extent: Extent<'_>| {
            let rows: Vec<VmRow> = (0..vms).map(held).collect();
            status(PlanRow { pid: Some(pid), ..plan("lab", PlanState::Running) }, &rows, &[]).text(extent, "")
        };
        let gone = u32::MAX;
        let one = |at: usize| {
            format!("\nweb{at}: snapshot snapshot-{at} is still at the source; resume and cancel remove it\n")
        };
        for extent in [Extent::Short, Extent::Whole] {
            let few = text(gone, 2, extent);
            assert!(few.contains("2 interrupted") && few.contains(&one(0)) && few.contains(&one(1)), "{few}");
        }
        let shared = "snapshots still at the source; resume and cancel remove them\n  web0, web1, web2, web3, web4 and";
        for vms in [20, 50] {
            let many = text(gone, vms, Extent::Short);
            let told = format!("\n{vms} {shared} {} more\n", vms - 5);
            assert!(many.contains(&told) && !many.contains(&one(0)), "{many}");
        }
        assert!(text(gone, 20, Extent::Whole).contains(&one(19)));
        let at_work = text(std::process::id(), 2, Extent::Short);
        assert!(at_work.contains("2 running") && !at_work.contains("still at the source"), "{at_work}");
    }

    #[test]
    fn a_plan_says_to_which_site_it_goes() {
        let far = |id: &str| VmRow { site: Some("site-b".into()), ..vm(id, id, VmState::Done) };
        let text = |vms: &[VmRow]| status(plan("lab", PlanState::Done), vms, &[]).text(Extent::Short, "");
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
    fn of_a_fleet_a_screen_is_told_and_a_filter_tells_the_rest() {
        let fleet = fleet();
        let text = fleet.text(Extent::Short, "");
        assert!(text.lines().count() < 50, "{text}");
        for part in [
            "3000 VMs: 1995 done, 2 running, 1000 queued, 3 failed\n",
            "WAVE",
            "web0000  FAILED",
            "web0004  running",
            "\n3 VMs: web0000 has no way to esx1; similar for the others\n",
            "web0004: moved over",
            "waits for 0 of 20 VMs: web2000, web2050, web2100 and 17 more\n",
            "800 more wait for something else\n",
            "\nlisted: 5 of 3000 VMs; others by --vm '*', --only STATE, --wave NAME\n",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("web0005"), "{text}");
        assert!(fleet.text(Extent::Whole, "").lines().count() > 3000);
        let filter =
            VmFilter { names: vec!["web000?".into()], waves: vec!["odd".into()], ..VmFilter::default() };
        let text = fleet.text(filter.extent(), "");
        assert!(
            text.contains("web0009") && text.contains("3000 VMs: ") && !text.contains("web0008"),
            "{text}"
        );
        assert!(text.contains("listed: 5 of 3000 VMs"), "{text}");
        let read: PlanStatus = serde_json::from_value(serde_json::json!(fleet)).unwrap();
        assert_eq!(
            read.text(Extent::Short, ""),
            fleet.text(Extent::Short, ""),
            "a daemon's is told as one's own"
        );
        let only =
            fleet.only(&VmFilter { names: vec!["web0004".into(), "web2000".into()], ..VmFilter::default() });
        assert_eq!((only.vms.len(), only.progress.vms.len(), only.disks.len()), (2, 2, 1));
        assert_eq!((only.warm.len(), only.waits.len(), only.progress.counts.all), (1, 1, 3000));
    }

    #[test]
    fn another_try_is_not_advised_where_it_cannot_be_the_turn_of_any_that_failed() {
        let mut fleet = fleet();
        let advises = |fleet: &PlanStatus| fleet.text(Extent::Short, "").contains("drover retry fleet");
        assert!(advises(&fleet));
        for vm in fleet.vms.iter_mut().filter(|vm| vm.state == VmState::Failed) {
            vm.cause = Some(Cause::NotItsTurn.word());
        }
        assert!(!advises(&fleet));
        fleet.vms[0].cause = Some(Cause::Target.word());
        assert!(advises(&fleet), "with it those that come after it go on");
    }

    #[test]
    fn of_a_run_that_is_gone_nothing_waits() {
        let text = fleet_of(u32::MAX).text(Extent::Short, "");
        assert!(text.contains("2 interrupted") && !text.contains("waits for"), "{text}");
        assert!(
            fleet().text(Extent::Short, "").contains("waits for 0 of 20 VMs"),
            "and of one that runs, it does"
        );
    }

    #[test]
    fn vms_that_wait_for_the_same_share_a_line() {
        let full = "esx3: 20 of 20 VMs at once";
        let wait = |name: &str, text: &str| (name.to_string(), text.to_string());
        let mut waits: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| wait(name, full)).to_vec();
        waits.push(wait("f", "its window to open"));
        let text =
            "\nwaits for esx3: 20 of 20 VMs at once: a, b, c and 2 more\nwaits for its window to open: f\n";
        let told = |waits: &[(String, String)]| waits_text(waits.iter().map(|(name, text)| (name, text)));
        assert_eq!((told(&waits).as_str(), told(&[]).as_str()), (text, ""));
    }

    #[test]
    fn limits_that_an_order_changed_are_told() {
        let in_force = |disks| LimitsInForce { rate_limit: Vec::new(), disks, vms_per_host: 20 };
        let mut status = status(plan("lab", PlanState::Incomplete), &[], &[]);
        assert!(!status.text(Extent::Short, "").contains("limits"));
        assert!(serde_json::json!(status)["limits"].is_null());
        status.limits = Some(PlanLimits { now: in_force(8), plan: in_force(200) });
        let text = status.text(Extent::Short, "");
        assert!(text.contains("\nlimits changed by order: disks 200 -> 8\n"), "{text}");
    }

    #[test]
    fn an_empty_plan_has_a_status() {
        let text = status(plan("", PlanState::Done), &[], &[]).text(Extent::Short, "");
        assert!(text.starts_with("plan : done"), "{text}");
    }
}
