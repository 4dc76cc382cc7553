//! How far a plan is, by what its run recorded: for `drover status`, from another process than the one that runs it.

use std::collections::HashMap;
use std::time::Duration;

use drover_engine::{CountRow, DiskActivity, DiskRow, Phase, PlanRow, ProgressRow, VmRow, VmState};
use drover_plan::PlannedVm;
use drover_types::{Bytes, Rate};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::filter::ShownState;
use crate::in_place::InLines;
use crate::meter::time_for;
use crate::report::plan_state;
use crate::status::{is_alive, is_interrupted};
use crate::table::{Align, Table};
use crate::text::{UNKNOWN, clean, count, estimate, percent};

/// A run looks at its disks twice a second. What is older than this says nothing about now.
const FRESH_MS: i64 = 10_000;

/// A share of bytes, and how fast it grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Of `size_bytes`, how much needs no more work.
    pub done_bytes: u64,
    /// All of it.
    pub size_bytes: u64,
    /// The same in whole percent; 100 only when it is all.
    pub percent: u32,
    /// Bytes read per second, over the last 5 s; absent if nothing is being read.
    pub rate_bytes_per_s: Option<u64>,
    /// Seconds until it is done, at that rate.
    pub eta_s: Option<u64>,
}

/// How far a VM is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmProgress {
    /// Name at the target.
    pub name: String,
    /// Its wave, where the plan has waves.
    #[serde(default)]
    pub wave: Option<String>,
    /// State, with `interrupted` for a VM whose run is gone, and `waiting` for one that is copied and waits for its next
    /// pass or its cutover.
    pub state: String,
    /// Phase it is in or ended in.
    pub phase: Option<String>,
    /// What its disks do, and what the figures are about: `copy`, `pass`, `verify`, `manifest`, `queued`. Absent if
    /// none is at work: then they are about the copy.
    pub activity: Option<String>,
    /// The figures.
    #[serde(flatten)]
    pub pace: Pace,
}

/// How far a plan is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanProgress {
    /// Name.
    pub plan: String,
    /// State, with `interrupted` for a plan whose run is gone.
    pub state: String,
    /// The copies of all VMs.
    #[serde(flatten)]
    pub pace: Pace,
    /// What the estimate is about: `copied`, `verified`. Absent if no disk is at work.
    pub eta_of: Option<String>,
    /// VMs by state.
    pub counts: Counts,
    /// Each VM.
    pub vms: Vec<VmProgress>,
}

/// VMs of a plan by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All.
    pub all: usize,
    /// At the target.
    pub arrived: usize,
    /// In a phase.
    pub running: usize,
    /// Not begun.
    pub queued: usize,
    /// Ended with an error.
    pub failed: usize,
    /// Given up.
    #[serde(default)]
    pub cancelled: usize,
}

/// What is known of the bytes of a VM.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    done: u64,
    size: u64,
    rate: Option<u64>,
    left: u64,
}

impl PlanProgress {
    /// What the state says at a moment.
    pub fn new(
        plan: &PlanRow,
        vms: &[VmRow],
        disks: &[DiskRow],
        progress: &[ProgressRow],
        now_ms: i64,
    ) -> PlanProgress {
        PlanProgress::with(plan, vms, disks, progress, now_ms, is_interrupted(plan, is_alive))
    }

    fn with(
        plan: &PlanRow,
        vms: &[VmRow],
        disks: &[DiskRow],
        progress: &[ProgressRow],
        now_ms: i64,
        interrupted: bool,
    ) -> PlanProgress {
        let state = if interrupted { "interrupted" } else { plan_state(plan.state) };
        let is_live = |row: &ProgressRow| row.is_live && state == "running" && now_ms - row.at_ms <= FRESH_MS;
        let look = Look::new(disks, progress, &is_live);
        let mut found = PlanProgress { plan: plan.name.clone(), state: state.into(), ..Self::default() };
        let (mut copy, mut verify) = (Sums::default(), Sums::default());
        let (mut copies, mut verifies) = (false, false);
        for vm in vms {
            let of = look.vm(vm);
            found.counts.add(vm.state, 1);
            if vm.state != VmState::Skipped {
                copy.add(&of.copy);
            }
            if let Some(reads) = &of.reads {
                verify.add(reads);
            }
            copies |= matches!(of.activity, Some("copy" | "pass"));
            verifies |= matches!(of.activity, Some("verify" | "manifest"));
            found.vms.push(of.progress(vm, interrupted));
        }
        found.eta_of = [(copies, "copied"), (verifies, "verified")]
            .iter()
            .find_map(|(is_so, word)| is_so.then(|| word.to_string()));
        let at_work = if copies { copy } else { verify };
        found.pace = copy.pace();
        found.pace.rate_bytes_per_s = at_work.rate;
        found.pace.eta_s = found.eta_of.as_ref().and_then(|_| at_work.eta());
        found
    }

    /// Whether somebody works on it, or will without being asked again.
    pub fn runs(&self) -> bool {
        !matches!(
            self.state.as_str(),
            "done" | "incomplete" | "cancelled" | "interrupted" | "paused" | "refused"
        )
    }

    /// `web: running, 2 of 5 VMs arrived, 41 %, 812 MB/s, all copied in 0:45`.
    pub fn line(&self) -> String {
        let counts = &self.counts;
        let mut parts = vec![format!("{}: {}", clean(&self.plan), clean(&self.state))];
        if counts.all > 0 {
            parts.push(format!("{} of {} arrived", counts.arrived, count(counts.all, "VM")));
            parts.extend((counts.failed > 0).then(|| format!("{} failed", counts.failed)));
            parts.push(self.figures());
        }
        parts.join(", ")
    }

    /// `41 %, 812 MB/s, all copied in 0:45`.
    pub(crate) fn figures(&self) -> String {
        let mut parts = vec![format!("{} %", self.pace.percent)];
        if let Some(of) = &self.eta_of {
            parts.push(rate_text(&self.pace));
            parts.push(format!("all {of} in {}", eta_text(&self.pace)));
        }
        parts.join(", ")
    }

    /// A line for each thing that is new since `before`: a state, a phase, what the disks do; and for the plan each
    /// whole percent.
    pub fn changes(&self, before: Option<&PlanProgress>) -> Vec<String> {
        let before_of: HashMap<&str, &VmProgress> =
            before.iter().flat_map(|it| &it.vms).map(|vm| (vm.name.as_str(), vm)).collect();
        let key = |vm: &VmProgress| (vm.state.clone(), vm.phase.clone(), vm.activity.clone());
        // A VM that has not begun is no news at the beginning.
        let is_news = |vm: &&VmProgress| match before_of.get(vm.name.as_str()) {
            Some(old) => key(old) != key(vm),
            None => vm.state != "queued",
        };
        let line = |vm: &VmProgress| format!("{}/{}", clean(&self.plan), vm.line());
        let mut lines: Vec<String> = self.vms.iter().filter(is_news).map(line).collect();
        let of_plan = |it: &PlanProgress| (it.state.clone(), it.pace.percent, it.counts);
        if before.map(of_plan) != Some(of_plan(self)) {
            lines.push(self.line());
        }
        lines
    }

    /// The same with only the VMs of which something is new since `before`.
    pub fn news(&self, before: Option<&PlanProgress>) -> PlanProgress {
        let old: HashMap<&str, &VmProgress> =
            before.iter().flat_map(|it| &it.vms).map(|vm| (vm.name.as_str(), vm)).collect();
        let is_news = |vm: &&VmProgress| old.get(vm.name.as_str()) != Some(vm);
        let vms = self.vms.iter().filter(is_news).cloned().collect();
        PlanProgress { vms, ..self.clone() }
    }

    /// Those of its VMs that matter most first: at work, failed, stopped, not begun, arrived.
    fn by_weight(&self) -> Vec<&VmProgress> {
        let weight = |vm: &&VmProgress| match vm.state.as_str() {
            "running" => 0,
            "waiting" => 2,
            "queued" => 3,
            "done" | "skipped" | "cancelled" => 4,
            _ => 1,
        };
        let mut vms: Vec<&VmProgress> = self.vms.iter().collect();
        vms.sort_by_key(weight);
        vms
    }
}

impl VmProgress {
    /// Name, wave and state.
    pub fn key(&self) -> (&str, Option<&str>, &str) {
        (&self.name, self.wave.as_deref(), &self.state)
    }

    /// `web01: running, copy 50 %, 812 MB/s, ETA 0:12`.
    fn line(&self) -> String {
        let mut parts = vec![format!("{}: {}", clean(&self.name), clean(self.state_word()))];
        match (&self.activity, &self.phase) {
            (Some(activity), _) => parts.push(format!("{activity} {} %", self.pace.percent)),
            (None, Some(phase)) if self.state == "running" => parts.push(phase.clone()),
            _ => {}
        }
        if self.pace.rate_bytes_per_s.is_some() {
            parts.push(rate_text(&self.pace));
            parts.push(format!("ETA {}", eta_text(&self.pace)));
        }
        parts.join(", ")
    }

    /// State for people, who are to see what is bad.
    pub(crate) fn state_word(&self) -> &str {
        match self.state.as_str() {
            "failed" => "FAILED",
            "not_cleaned_up" => "NOT CLEANED UP",
            state => state,
        }
    }

    /// Percent, rate and estimate as cells of a table.
    pub(crate) fn cells(&self) -> [String; 3] {
        let has_begun = self.pace.done_bytes > 0 || self.activity.is_some() || self.state == "done";
        let share = if has_begun { format!("{} %", self.pace.percent) } else { UNKNOWN.into() };
        [share, rate_text(&self.pace), eta_text(&self.pace)]
    }
}

fn rate_text(pace: &Pace) -> String {
    pace.rate_bytes_per_s.map_or(UNKNOWN.into(), |rate| Rate(rate as f64).to_string())
}

fn eta_text(pace: &Pace) -> String {
    estimate(pace.eta_s.map(Duration::from_secs))
}

impl Counts {
    /// Of a plan, of what was counted of all.
    pub fn of(plan: &str, rows: &[CountRow]) -> Counts {
        let mut counts = Counts::default();
        for row in rows.iter().filter(|row| row.plan == plan) {
            // The store has no other words.
            if let Ok(state) = serde_json::from_value(json!(row.state)) {
                counts.add(state, row.count as usize);
            }
        }
        counts
    }

    fn add(&mut self, state: VmState, vms: usize) {
        self.all += vms;
        match state {
            VmState::Done | VmState::NotCleanedUp => self.arrived += vms,
            VmState::Running => self.running += vms,
            VmState::Queued => self.queued += vms,
            VmState::Failed => self.failed += vms,
            VmState::Cancelled => self.cancelled += vms,
            VmState::Stopped | VmState::Skipped => {}
        }
    }
}

impl Sums {
    fn add(&mut self, other: &Sums) {
        self.done = self.done.saturating_add(other.done);
        self.size = self.size.saturating_add(other.size);
        self.left = self.left.saturating_add(other.left);
        self.rate = match (self.rate, other.rate) {
            (Some(one), Some(two)) => Some(one.saturating_add(two)),
            (one, two) => one.or(two),
        };
    }

    fn eta(&self) -> Option<u64> {
        let left = time_for(self.left, self.rate.map(|rate| rate as f64))?;
        Some(left.as_secs() + u64::from(left.subsec_nanos() > 0))
    }

    fn pace(&self) -> Pace {
        let share = if self.size == 0 { 0.0 } else { self.done as f64 / self.size as f64 };
        Pace {
            done_bytes: self.done,
            size_bytes: self.size,
            percent: percent(share),
            rate_bytes_per_s: self.rate,
            eta_s: self.rate.and_then(|_| self.eta()),
        }
    }
}

/// What the state has of all disks, by VM.
struct Look<'a> {
    disks: HashMap<&'a str, Vec<&'a DiskRow>>,
    rows: HashMap<&'a str, Vec<(&'a ProgressRow, bool)>>,
    /// Of bytes that were settled so far, the share that was read. What was not begun is taken to be like it.
    data_share: f64,
}

/// What is known of a VM.
struct OfVm {
    activity: Option<&'static str>,
    copy: Sums,
    /// Of what is read and not written: a pass, a verification.
    reads: Option<Sums>,
    /// It is copied, and no pass is under way.
    waits: bool,
}

impl<'a> Look<'a> {
    fn new(
        disks: &'a [DiskRow],
        progress: &'a [ProgressRow],
        is_live: &dyn Fn(&ProgressRow) -> bool,
    ) -> Look<'a> {
        let mut look = Look { disks: HashMap::new(), rows: HashMap::new(), data_share: 1.0 };
        let (mut read, mut settled) = (0f64, 0f64);
        for disk in disks {
            look.disks.entry(&disk.vm).or_default().push(disk);
            if let (Some(bytes), Some(_)) = (disk.read_bytes, &disk.root) {
                read += bytes as f64;
                settled += disk.size as f64;
            }
        }
        for row in progress {
            let live = is_live(row);
            look.rows.entry(&row.vm).or_default().push((row, live));
            if live && row.activity == DiskActivity::Copy {
                read += row.read_bytes as f64;
                settled += row.done_bytes as f64;
            }
        }
        if settled > 0.0 {
            look.data_share = (read / settled).min(1.0);
        }
        look
    }

    fn vm(&self, vm: &VmRow) -> OfVm {
        let rows = self.rows.get(vm.name.as_str()).map_or(&[][..], Vec::as_slice);
        let known = self.disks.get(vm.id.as_str()).map_or(&[][..], Vec::as_slice);
        let live = || rows.iter().filter(|(_, live)| *live).map(|(row, _)| *row);
        let is_copied = |label: &str| known.iter().any(|disk| disk.label == label && disk.root.is_some());
        let is_pass = |row: &ProgressRow| row.activity == DiskActivity::Copy && is_copied(&row.disk);
        let is_at = |activity| live().any(|row| row.activity == activity);
        let activity = if live().any(is_pass) {
            Some("pass")
        } else if is_at(DiskActivity::Copy) {
            Some("copy")
        } else if is_at(DiskActivity::Verify) {
            Some("verify")
        } else if is_at(DiskActivity::Prove) {
            Some("manifest")
        } else {
            is_at(DiskActivity::Queued).then_some("queued")
        };
        let mut copy = Sums::default();
        for (label, size) in disks_of(vm, known) {
            let row = rows.iter().find(|(row, _)| row.disk == label && row.activity == DiskActivity::Copy);
            copy.add(&self.copied(size, vm.state.has_arrived() || is_copied(&label), row.copied()));
        }
        let reads = live().filter(|row| match activity {
            Some("pass") => is_pass(row),
            Some("verify") => row.activity == DiskActivity::Verify,
            Some("manifest") => row.activity == DiskActivity::Prove,
            _ => false,
        });
        let reads = reads.map(read_of).reduce(|mut sum, row| {
            sum.add(&row);
            sum
        });
        if let (Some("pass"), Some(reads)) = (activity, &reads) {
            // Its bytes are on top of a copy that is complete.
            (copy.rate, copy.left) = (reads.rate, copy.left.saturating_add(reads.left));
        }
        let between = vm.phase.as_deref() == Some(Phase::Passes.name()) && activity.is_none();
        let waits = between && !known.is_empty() && known.iter().all(|disk| disk.root.is_some());
        OfVm { activity, copy, reads, waits }
    }

    /// How far the copy of a disk is.
    fn copied(&self, size: u64, is_complete: bool, row: Option<(&ProgressRow, bool)>) -> Sums {
        if is_complete {
            return Sums { done: size, size, ..Sums::default() };
        }
        let guess = |bytes: u64| (bytes as f64 * self.data_share) as u64;
        match row {
            Some((row, live)) => {
                let done = row.done_bytes.min(size);
                let left = row.left_bytes.filter(|_| live).unwrap_or_else(|| guess(size - done));
                let rate = row.rate_bytes_per_s.filter(|_| live);
                Sums { done, size, rate, left }
            }
            None => Sums { done: 0, size, rate: None, left: guess(size) },
        }
    }
}

impl OfVm {
    fn progress(&self, vm: &VmRow, interrupted: bool) -> VmProgress {
        let state = match vm.state {
            VmState::Running if interrupted => ShownState::Interrupted,
            VmState::Running if self.waits => ShownState::Waiting,
            state => ShownState::Of(state),
        };
        let sums = self.reads.as_ref().unwrap_or(&self.copy);
        VmProgress {
            name: vm.name.clone(),
            wave: vm.wave.clone(),
            state: state.word().into(),
            phase: vm.phase.clone(),
            activity: self.activity.map(str::to_string),
            pace: sums.pace(),
        }
    }
}

fn read_of(row: &ProgressRow) -> Sums {
    let left = row.left_bytes.unwrap_or(row.size_bytes);
    Sums { done: row.read_bytes, size: row.read_bytes.saturating_add(left), rate: row.rate_bytes_per_s, left }
}

/// The disks that a VM is to have at the target, by label and size: as it was planned, else those that were begun.
fn disks_of(vm: &VmRow, known: &[&DiskRow]) -> Vec<(String, u64)> {
    match serde_json::from_str::<PlannedVm>(&vm.planned) {
        Ok(planned) => {
            planned.disks.into_iter().map(|disk| (disk.disk.label, disk.disk.capacity_bytes)).collect()
        }
        Err(_) => known.iter().map(|disk| (disk.label.clone(), disk.size)).collect(),
    }
}

/// Plans as they are shown in place, each with those of its VMs that fit.
#[derive(Clone, Debug, Default)]
pub struct Followed(pub Vec<PlanProgress>);

impl InLines for Followed {
    fn lines(&self, _: bool) -> Vec<String> {
        self.0.iter().flat_map(of_plan).collect()
    }
}

/// A table of VMs, their progress and more.
pub(crate) fn progress_table(more: &[(&str, Align)]) -> Table {
    use Align::{Left, Right};
    let progress =
        [("VM", Left), ("STATE", Left), ("PHASE", Left), ("DONE", Right), ("RATE", Right), ("ETA", Right)];
    Table::new(&[&progress[..], more].concat()).fitted()
}

fn of_plan(plan: &PlanProgress) -> Vec<String> {
    let mut table = progress_table(&[("SIZE", Align::Right)]).indented(2);
    for vm in plan.by_weight() {
        let [share, rate, eta] = vm.cells();
        let phase = vm.activity.as_ref().or(vm.phase.as_ref()).cloned().unwrap_or_else(|| UNKNOWN.into());
        let size = Bytes(vm.pace.size_bytes).to_string();
        table.row([vm.name.clone(), vm.state_word().into(), phase, share, rate, eta, size]);
    }
    let table = if table.is_empty() { String::new() } else { table.to_string() };
    std::iter::once(plan.line()).chain(table.lines().map(str::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use drover_engine::PlanState;

    use super::*;
    use crate::sample::{plan, vm};

    const GIB: u64 = 1 << 30;

    fn disk(vm: &str, number: usize, root: Option<&str>) -> DiskRow {
        DiskRow {
            vm: vm.into(),
            number,
            label: format!("Hard disk {}", number + 1),
            size: 10 * GIB,
            read_bytes: root.map(|_| 5 * GIB),
            root: root.map(str::to_string),
            ..DiskRow::default()
        }
    }

    fn row(vm: &str, disk: usize, activity: DiskActivity, read: u64, left: u64) -> ProgressRow {
        ProgressRow {
            vm: vm.into(),
            disk: format!("Hard disk {}", disk + 1),
            activity,
            is_live: true,
            at_ms: 1_000_000,
            size_bytes: 10 * GIB,
            done_bytes: 2 * read,
            read_bytes: read,
            left_bytes: Some(left),
            rate_bytes_per_s: Some(GIB / 2),
        }
    }

    fn look(progress: &[ProgressRow], now_ms: i64, interrupted: bool) -> PlanProgress {
        let vms = [
            vm("vm-1", "web01", VmState::Running),
            vm("vm-2", "web02", VmState::Queued),
            vm("vm-3", "db", VmState::Done),
        ];
        let disks = [
            disk("vm-1", 0, Some("r")),
            disk("vm-1", 1, None),
            disk("vm-2", 0, None),
            disk("vm-3", 0, Some("r")),
        ];
        PlanProgress::with(&plan("lab", PlanState::Running), &vms, &disks, progress, now_ms, interrupted)
    }

    #[test]
    fn a_copy_has_its_percent_rate_and_estimate_by_vm_and_in_sum() {
        let copying = row("web01", 1, DiskActivity::Copy, GIB, 4 * GIB);
        let found = look(&[copying], 1_000_400, false);
        let web01 = &found.vms[0];
        assert_eq!(web01.activity.as_deref(), Some("copy"));
        assert_eq!(
            web01.pace,
            Pace {
                done_bytes: 12 * GIB,
                size_bytes: 20 * GIB,
                percent: 60,
                rate_bytes_per_s: Some(GIB / 2),
                eta_s: Some(8)
            }
        );
        // Of what was settled half was read, so half of the disk that was not begun is taken to be data.
        assert_eq!((found.pace.percent, found.pace.eta_s), (55, Some(18)));
        assert_eq!(found.eta_of.as_deref(), Some("copied"));
        assert_eq!(found.line(), "lab: running, 1 of 3 VMs arrived, 55 %, 537 MB/s, all copied in 0:18");
        assert!(found.runs());
    }

    #[test]
    fn what_is_old_or_of_a_run_that_is_gone_has_no_rate() {
        let copying = row("web01", 1, DiskActivity::Copy, GIB, 4 * GIB);
        for (found, state) in [
            (look(std::slice::from_ref(&copying), 1_020_000, false), "running"),
            (look(std::slice::from_ref(&copying), 1_000_400, true), "interrupted"),
        ] {
            assert_eq!(
                (found.state.as_str(), found.vms[0].pace.percent),
                (state, 60),
                "how far it came stays"
            );
            assert_eq!(
                (found.pace.rate_bytes_per_s, found.pace.eta_s, found.eta_of.as_deref()),
                (None, None, None)
            );
        }
        assert!(!look(&[], 0, true).runs());
    }

    #[test]
    fn a_verification_and_a_pass_count_what_they_read() {
        let verify = look(&[row("web01", 0, DiskActivity::Verify, GIB, 3 * GIB)], 1_000_000, false);
        assert_eq!((verify.vms[0].pace.percent, verify.vms[0].pace.eta_s), (25, Some(6)));
        assert_eq!((verify.eta_of.as_deref(), verify.pace.eta_s), (Some("verified"), Some(6)));
        // The first disk is copied already.
        let pass = look(&[row("web01", 0, DiskActivity::Copy, GIB, GIB)], 1_000_000, false);
        assert_eq!((pass.vms[0].activity.as_deref(), pass.vms[0].pace.percent), (Some("pass"), 50));
        assert_eq!(pass.pace.percent, 50, "what was copied stays copied");
    }

    #[test]
    fn a_line_is_told_for_what_is_new_and_for_nothing_else() {
        let copying = |read| row("web01", 1, DiskActivity::Copy, read, 4 * GIB);
        let first = look(&[copying(GIB)], 1_000_000, false);
        let lines = first.changes(None);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[0], "lab/web01: running, copy 60 %, 537 MB/s, ETA 0:08");
        assert_eq!(first.changes(Some(&first)), Vec::<String>::new());
        let later = look(&[copying(2 * GIB)], 1_000_000, false);
        assert_eq!(later.changes(Some(&first)).len(), 1, "a percent is news of the plan alone");
        assert_eq!(later.news(Some(&first)).vms.iter().map(|vm| &vm.name).collect::<Vec<_>>(), ["web01"]);
        let verify = look(&[row("web01", 0, DiskActivity::Verify, GIB, GIB)], 1_000_000, false);
        assert!(verify.changes(Some(&later))[0].starts_with("lab/web01: running, verify 50 %"));
    }

    #[test]
    fn a_page_has_what_is_at_work_first_and_fits() {
        let found = look(&[row("web01", 1, DiskActivity::Copy, GIB, 4 * GIB)], 1_000_000, false);
        let lines = Followed(vec![found]).lines(true);
        assert_eq!(
            lines[1..],
            [
                "  VM     STATE    PHASE   DONE      RATE   ETA    SIZE",
                "  web01  running  copy    60 %  537 MB/s  0:08  20 GiB",
                "  web02  queued   copy      --        --    --  10 GiB",
                "  db     done     copy   100 %        --    --  10 GiB",
            ]
        );
        assert!(lines.iter().all(|line| line.len() <= 80));
    }

    #[test]
    fn vms_that_are_given_up_are_counted() {
        let row = |plan: &str, state: VmState, count| CountRow {
            plan: plan.into(),
            state: state.word().into(),
            phase: None,
            count,
        };
        let rows = [
            row("web", VmState::Cancelled, 2),
            row("web", VmState::Stopped, 1),
            row("other", VmState::Cancelled, 4),
        ];
        let expected = Counts { all: 3, cancelled: 2, ..Counts::default() };
        assert_eq!(Counts::of("web", &rows), expected);
    }

    #[test]
    fn a_state_that_waits_for_nobody_has_ended() {
        let of = |state: &str| PlanProgress { state: state.into(), ..PlanProgress::default() }.runs();
        assert!(["queued", "checking", "running", "pausing", "cancelling"].map(of).iter().all(|it| *it));
        assert!(
            !["done", "incomplete", "cancelled", "interrupted", "paused", "refused"].map(of).contains(&true)
        );
    }
}
