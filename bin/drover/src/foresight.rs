//! From plans, flags and what earlier runs measured to a forecast.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_engine::{
    Clock, Foreseen, ForeseenNow, ForeseenVm, Foresight, ProgressRow, Store, StoreError, SystemClock,
    VmReport, VmRow, VmState, host_limits,
};
use drover_forecast::{
    Copied, FleetVm, Forecast, Line, Progress, Quantity, Question, Rates, Seen, Spread, WINDOW_DAYS_MAX,
    daily_windows, foresee_roughly, left_of, spread_over,
};
use drover_plan::{Limits, Plan, PlannedVm};
use drover_schedule::{Budgets, HostLimits};
use drover_types::inventory::{Inventory, WriteRates};
use drover_types::{Wave, WaveWindow};

use crate::cli::WhatIfArgs;
use crate::exit::Failure;
use crate::provider::Provider;
use crate::sites;
use crate::state::state_folder;

/// The latest plans are looked at: what was measured long ago says little.
const PLANS_MAX: usize = 20;
/// The forecast of a run is corrected that often.
const CORRECT_EACH: Duration = Duration::from_secs(60);
/// Passes that are closer say more of delays than of churn.
const HOUR_S: f64 = 3600.0;

/// What earlier runs in a state folder tell of rates; what is assumed where there are none.
pub fn rates_here(args: &WhatIfArgs) -> Result<Rates, Failure> {
    let folder = state_folder(args.state.as_deref());
    if !Store::is_there(&folder) {
        return Ok(Rates::default());
    }
    Ok(seen(&Store::open_to_read(&folder)?)?.rates())
}

/// What earlier runs tell.
pub fn seen(store: &Store) -> Result<Seen, StoreError> {
    let mut seen = Seen::default();
    for plan in store.plans()?.into_iter().take(PLANS_MAX) {
        let mut copies = Copies::new();
        drover_engine::arrived_vms(store, &plan.name, |vm| {
            see_copy(&mut copies, vm);
            see_vm(&mut seen, vm);
        })?;
        seen.copied.extend(copies.into_values().filter_map(|mut copies| Copied::of(&mut copies)));
    }
    Ok(seen)
}

/// When VMs were copied from each host, how many disks each has and what was read of them.
type Copies = BTreeMap<String, Vec<(f64, f64, usize, u64)>>;

fn see_copy(hosts: &mut Copies, vm: &VmReport) {
    // A warm VM is copied in passes, which say little of a whole disk.
    if vm.warm.is_some() {
        return;
    }
    let copies = vm.phases.iter().filter(|phase| phase.phase == "copy");
    let mut times = copies.filter_map(|phase| Some((phase.started_ms as f64, phase.ended_ms? as f64)));
    // One that was copied in several goes is known by its last alone, as what it read is.
    let Some(((begin, end), host)) = times.next_back().zip(vm.source_host.clone()) else { return };
    let read = vm.sum(|disk| disk.read_bytes);
    hosts.entry(host).or_default().push((begin / 1000.0, end / 1000.0, vm.disks.len(), read));
}

/// Rates that runs of this process are foreseen by, by state folder, and when they were looked up: the plans of a daemon share them.
static RATES: Mutex<BTreeMap<PathBuf, (Instant, Rates)>> = Mutex::new(BTreeMap::new());
/// Older ones are looked up anew.
const RATES_KEPT: Duration = Duration::from_secs(10);

/// The rates of a store, as they were a moment ago. Whoever asks while they are looked up waits for that.
fn rates_of(store: &Store) -> Result<Rates, StoreError> {
    let mut known = RATES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, rates)) = known.get(store.folder()).filter(|(at, _)| at.elapsed() < RATES_KEPT) {
        return Ok(rates.clone());
    }
    let rates = seen(store)?.rates();
    known.insert(store.folder().to_path_buf(), (Instant::now(), rates.clone()));
    Ok(rates)
}

fn see_vm(seen: &mut Seen, vm: &VmReport) {
    let seconds = |names: &[&str]| {
        let of = vm.phases.iter().filter(|phase| names.contains(&phase.phase.as_str()));
        let times = of.filter_map(|phase| Some((phase.ended_ms? - phase.started_ms).max(0) as f64 / 1000.0));
        times.sum::<f64>()
    };
    seen.before_s.push(seconds(&["check", "snapshot"]));
    seen.shutdown_s.push(seconds(&["power off"]));
    seen.after_s.push(seconds(&["convert", "define", "start", "clean up"]));
    let (data, verify_s) = (vm.sum(|disk| disk.data_bytes) as f64, seconds(&["verify"]));
    if verify_s > 0.0 {
        seen.verify.push(data / verify_s);
    }
    let passes = vm.warm.iter().flat_map(|warm| warm.passes.windows(2));
    for pair in passes.filter(|_| data > 0.0) {
        if let (Some(before), Some(now)) = (pair[0].frozen_ms, pair[1].frozen_ms) {
            let hours = (now - before).max(1) as f64 / 1000.0 / HOUR_S;
            seen.churn.push(pair[1].areas_bytes as f64 / data / hours);
        }
    }
}

/// Budgets as a plan has them.
pub fn budgets(limits: &Limits) -> Budgets {
    Budgets { vms_per_host: limits.vms_per_host, disks: limits.disks, ..Budgets::default() }
}

/// The budgets of a plan that shares a schedule: its own hold within those of all.
pub fn budgets_within(own: Budgets, shared: &Budgets) -> Budgets {
    let (vms_per_host, disks) = (own.vms_per_host.min(shared.vms_per_host), own.disks.min(shared.disks));
    Budgets { vms_per_host, disks, ..shared.clone() }
}

/// Adds what VMs tell of the disks at once that the NFC servers of their hosts take: of each host the least counts.
pub fn limit_hosts(
    hosts: &mut BTreeMap<String, HostLimits>,
    vms: &[PlannedVm],
    name: impl Fn(&PlannedVm) -> String,
) {
    for vm in vms {
        if vm.nfc.is_some() {
            let limits = hosts.entry(name(vm)).or_default();
            *limits = host_limits(*limits, vm);
        }
    }
}

/// What plans may send over their lines: each by its own `rate_limit`, and all that go to one site by the limit of that.
pub fn lines_of(plans: &[&Plan], state: Option<&Path>) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut sites: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, Plan { name, target, .. }) in plans.iter().copied().enumerate() {
        if !target.rate_limit.is_empty() {
            let (name, limits) = (format!("rate_limit of plan {name}"), target.rate_limit.clone());
            lines.push(Line { name, limits, plans: vec![number] });
        }
        if let Some(site) = target.via.as_deref() {
            sites.entry(site).or_default().push(number);
        }
    }
    for (site, plans) in sites {
        let limits = sites::limits_of(state, site);
        if !limits.is_empty() {
            lines.push(Line { name: format!("limit of site {site}"), limits, plans });
        }
    }
    lines
}

/// The question of VMs, changed as the flags say. `lines` are what they may send.
pub fn question(
    vms: Vec<FleetVm>,
    plans: Vec<String>,
    waves: BTreeMap<usize, Vec<Wave>>,
    budgets: Budgets,
    lines: Vec<Line>,
    args: &WhatIfArgs,
) -> Result<Question, Failure> {
    let start_ms = SystemClock.now_ms().max(0) as u64;
    let (rates, hosts, seed) = (rates_here(args)?, BTreeMap::new(), args.seed);
    let mut question = Question { vms, plans, waves, rates, budgets, hosts, lines, start_ms, seed };
    if let Some(hosts) = args.hosts {
        spread_over(&mut question.vms, hosts as usize);
    }
    if let Some(link) = args.link {
        question.rates.link = Quantity::given(link as f64);
        question.lines.clear();
    }
    if let Some(vms) = args.in_flight {
        question.budgets.vms_per_host = vms;
    }
    if let Some(churn) = args.churn {
        question.rates.churn = Quantity::given(churn);
        question.vms.iter_mut().for_each(|vm| vm.churn_bytes_per_hour = None);
    }
    if !args.window.is_empty() {
        let windows = daily_windows(&args.window, start_ms);
        question.vms.iter_mut().for_each(|vm| vm.windows.clone_from(&windows));
        question.waves.values_mut().flatten().for_each(|wave| wave.window = WaveWindow::default());
        crate::out::say(format_args!(
            "windows of {WINDOW_DAYS_MAX} days are looked at; a VM that begins in one may end after it"
        ));
    }
    Ok(question)
}

/// The name of a VM's host.
pub fn host_of(vm: &PlannedVm, inventory: &Inventory) -> String {
    let id = &vm.vm.host_id;
    inventory.host(id).map_or(id.clone(), |host| host.name.clone())
}

/// VMs of a plan; `written` tells what some of them write.
pub fn fleet(vms: &[PlannedVm], plan: usize, inventory: &Inventory, written: &WriteRates) -> Vec<FleetVm> {
    let of = |vm: &PlannedVm| FleetVm {
        churn_bytes_per_hour: written.get(&vm.vm.id).map(|rate| rate.bytes_per_hour),
        ..FleetVm::planned(vm, plan, &host_of(vm, inventory))
    };
    vms.iter().map(of).collect()
}

/// What the VMs of a plan write that move warm, by the counters of their source, unless the flags tell a churn. Why it is not
/// known is said.
pub fn written(provider: &Provider, vms: &[PlannedVm], args: &WhatIfArgs) -> WriteRates {
    if args.churn.is_some() {
        return WriteRates::new();
    }
    let told = provider.warnings().len();
    let written = provider.write_rates(vms.iter().filter(|vm| vm.warm.is_some()).map(|vm| &vm.vm));
    let warnings = provider.warnings();
    warnings.iter().skip(told).for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
    written
}

/// Foresees a run that begins, beside it: what is foreseen is kept with the run, and compared with what comes. `names` are those of
/// hosts, and `shared` the budgets of a schedule that it shares with other plans.
pub fn begin(
    store: &Store,
    plan: &Plan,
    vms: &[PlannedVm],
    names: &BTreeMap<String, String>,
    shared: Option<&Budgets>,
) -> Foresight {
    let host = |vm: &PlannedVm| names.get(&vm.vm.host_id).unwrap_or(&vm.vm.host_id).clone();
    let mut hosts = BTreeMap::new();
    limit_hosts(&mut hosts, vms, host);
    let own = budgets(&plan.limits);
    let ids: Vec<String> = vms.iter().map(|vm| vm.vm.id.clone()).collect();
    let folder = store.folder().to_path_buf();
    let question = Question {
        vms: vms.iter().map(|vm| FleetVm::planned(vm, 0, &host(vm))).collect(),
        plans: vec![plan.name.clone()],
        waves: [(0, plan.waves())].into(),
        rates: Rates::default(),
        budgets: shared.map_or(own.clone(), |shared| budgets_within(own.clone(), shared)),
        hosts,
        lines: lines_of(&[plan], Some(&folder)),
        start_ms: SystemClock.now_ms().max(0) as u64,
        seed: 1,
    };
    let disks = vms.iter().map(|vm| vm.disks.iter().map(|disk| disk.disk.label.clone()).collect()).collect();
    let run = Begun {
        folder: folder.clone(),
        plan: plan.name.clone(),
        ids: ids.clone(),
        disks,
        question: question.clone(),
    };
    // Before the run changes it: of a run that is resumed, only what is left is foreseen.
    let begun = run.progress_in(store).unwrap_or_default();
    let first = move || {
        // Without rates of its own a run is foreseen by what is assumed; a store that cannot be read shows itself elsewhere.
        let rates = Store::open_to_read(&folder).and_then(|store| rates_of(&store)).unwrap_or_default();
        let left = left_of(&question, &begun, question.start_ms);
        let mut has_ended = begun.iter().map(|it| *it == Progress::Ended).chain(std::iter::repeat(false));
        let ids = ids.into_iter().filter(|_| has_ended.next() == Some(false)).collect();
        foreseen(&Question { rates, ..left }, ids)
    };
    Foresight::correcting(first, CORRECT_EACH, move || run.foreseen_now().ok())
}

/// A run that goes on, whose forecast is corrected.
struct Begun {
    folder: PathBuf,
    plan: String,
    /// Its VMs by their ids, and the labels of their disks, in the order of the question.
    ids: Vec<String>,
    disks: Vec<Vec<String>>,
    question: Question,
}

impl Begun {
    /// What is left, by the rates of this run and those before it.
    fn foreseen_now(&self) -> Result<ForeseenNow, StoreError> {
        let store = Store::open_to_read(&self.folder)?;
        let at_ms = SystemClock.now_ms();
        let left = left_of(&self.question, &self.progress_in(&store)?, at_ms.max(0) as u64);
        let forecast = foresee_roughly(&Question { rates: rates_of(&store)?, ..left });
        let Spread { p10, p50, p90 } = forecast.makespan_s;
        let end_ms = [p10, p50, p90].map(|seconds| at_ms.saturating_add((seconds * 1000.0) as i64));
        Ok(ForeseenNow { at_ms, end_ms })
    }

    fn progress_in(&self, store: &Store) -> Result<Vec<Progress>, StoreError> {
        Ok(self.progress(&store.vms_in_short(&self.plan)?, &store.progress(&self.plan)?))
    }

    /// How far each VM is. What failed before the run began is tried again by it.
    fn progress(&self, rows: &[VmRow], disks: &[ProgressRow]) -> Vec<Progress> {
        let began_ms = i64::try_from(self.question.start_ms).unwrap_or(i64::MAX);
        let rows: HashMap<&str, &VmRow> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        let known: HashMap<(&str, &str), &ProgressRow> =
            disks.iter().map(|it| ((it.vm.as_str(), it.disk.as_str()), it)).collect();
        let of = |((id, labels), vm): ((&String, &Vec<String>), &FleetVm)| {
            let Some(row) = rows.get(id.as_str()) else { return Progress::Waits };
            if row.state.has_arrived() || row.ended_ms.is_some_and(|ended_ms| ended_ms >= began_ms) {
                return Progress::Ended;
            }
            // One that was stopped goes on where it was.
            let goes_on = matches!(row.state, VmState::Running | VmState::Stopped);
            match row.phase.as_deref().filter(|_| goes_on) {
                None => Progress::Waits,
                Some("verify") => Progress::Verifies,
                Some("convert" | "define" | "start" | "clean up") => Progress::Copied,
                Some(_) => {
                    let done = |(at, label): (usize, &String)| {
                        let data = vm.disks.get(at).map_or(0, |disk| disk.data_bytes);
                        let known = known.get(&(row.name.as_str(), label.as_str()));
                        known.map_or(0, |disk| data - disk.left_of(data))
                    };
                    Progress::Copies(labels.iter().enumerate().map(done).collect())
                }
            }
        };
        self.ids.iter().zip(&self.disks).zip(&self.question.vms).map(of).collect()
    }
}

fn foreseen(question: &Question, ids: Vec<String>) -> Foreseen {
    let forecast: Forecast = foresee_roughly(question);
    let millis = |it: Spread| [it.p10, it.p50, it.p90].map(|seconds| (seconds * 1000.0) as u64);
    let of_vm = |(id, it): (String, drover_forecast::VmForecast)| {
        let foreseen = ForeseenVm { end_ms: it.end_s.map(millis)?, downtime_ms: it.downtime_s.map(millis) };
        Some((id, foreseen))
    };
    Foreseen {
        makespan_ms: millis(forecast.makespan_s),
        vms: ids.into_iter().zip(forecast.vms).filter_map(of_vm).collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_agent::trust::{Fingerprint, Folder, Peer, Peers};
    use drover_engine::DiskActivity;
    use drover_forecast::FleetDisk;
    use drover_plan::nfc::NfcShare;
    use drover_types::{DayLimit, inventory};

    use super::*;

    #[test]
    fn plans_to_one_site_share_its_limit_and_have_their_own_unless_a_flag_tells_another() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::open(state.path()).unwrap();
        let limits = vec![DayLimit { from: 480, to: 1080, bytes_per_second: 25_000_000 }];
        let peer = Peer::new("site-b", Fingerprint([1; 32]), vec!["b:1".to_string()], 0);
        Peers::new(folder).add(Peer { limits: limits.clone(), ..peer }).unwrap().unwrap();
        let plan = |name: &str, target: &str| {
            let source = "source: {type: vsphere, endpoint: vc, user: u, password_env: P}";
            let text = format!(
                "version: 1\nname: {name}\n{source}\ntarget: {{type: qemu, folder: vms{target}}}\nvms: [{{glob: '*'}}]\n"
            );
            Plan::parse(&text).unwrap()
        };
        let plans = [
            plan("one", ", via: site-b, rate_limit: [100m]"),
            plan("two", ", via: site-b"),
            plan("three", ""),
            plan("four", ", via: site-c"),
        ];
        let asked = |link| {
            let args = WhatIfArgs { link, state: Some(state.path().into()), ..WhatIfArgs::default() };
            let lines = lines_of(&plans.iter().collect::<Vec<_>>(), Some(state.path()));
            question(Vec::new(), Vec::new(), BTreeMap::new(), Budgets::default(), lines, &args).unwrap()
        };
        let lines = asked(None).lines;
        let of: Vec<(&str, &[usize])> =
            lines.iter().map(|line| (line.name.as_str(), line.plans.as_slice())).collect();
        assert_eq!(of, [("rate_limit of plan one", &[0][..]), ("limit of site site-b", &[0, 1][..])]);
        assert_eq!(lines[1].limits, limits);
        assert_eq!(asked(Some(1)).lines, []);
    }

    #[test]
    fn of_what_vms_tell_of_their_host_the_least_counts_and_a_plan_keeps_to_what_all_share() {
        let of_host =
            |id: &str| inventory::Vm { id: id.into(), host_id: "host-1".into(), ..Default::default() };
        let disk = inventory::VmDisk { capacity_bytes: 1 << 30, ..Default::default() };
        let vms = ["a", "b", "c"].map(|id| inventory::Vm {
            name: id.into(),
            power: inventory::PowerState::Off,
            disks: vec![disk.clone()],
            ..of_host(id)
        });
        let inventory = Inventory { vms: vms.to_vec(), ..Inventory::default() };
        let source = "source: {type: vsphere, endpoint: vc, user: u, password_env: P}";
        let text = format!(
            "version: 1\nname: p\n{source}\ntarget: {{type: qemu, folder: vms}}\nvms: [{{glob: '*'}}]\n"
        );
        let mut vms = drover_plan::resolve(&Plan::parse(&text).unwrap(), &inventory).vms;
        let share = |disks_at_once| NfcShare { aio: None, disk_bytes: 1, disks_at_once, request_bytes: 1 };
        (vms[0].nfc, vms[1].nfc) = (Some(share(9)), Some(share(4)));
        let mut hosts = BTreeMap::new();
        limit_hosts(&mut hosts, &vms, |vm| host_of(vm, &inventory));
        assert_eq!(
            hosts,
            [("host-1".to_string(), HostLimits { disks: Some(4), ..HostLimits::default() })].into()
        );
        limit_hosts(&mut hosts, &vms[..1], |_| "host-1".into());
        assert_eq!(hosts["host-1"].disks, Some(4), "another plan says more");
        let limits = |vms_per_host, disks| Budgets { vms_per_host, disks, ..Budgets::default() };
        let shared = Budgets { cutovers: 3, ..limits(5, 300) };
        assert_eq!(budgets_within(limits(20, 200), &shared), Budgets { cutovers: 3, ..limits(5, 200) });
    }

    #[test]
    fn how_far_a_run_is_follows_from_what_it_keeps() {
        let row = |id: &str, state, phase: Option<&str>, ended_ms| VmRow {
            id: id.into(),
            name: format!("{id} there"),
            trace_id: String::new(),
            site: None,
            target_host: None,
            state,
            phase: phase.map(str::to_string),
            planned: String::new(),
            snapshot: None,
            switched_off: false,
            touched: false,
            started: None,
            error: None,
            cause: None,
            advice: None,
            started_ms: None,
            ended_ms,
        };
        let rows = [
            row("copies", VmState::Running, Some("copy"), None),
            row("reads back", VmState::Running, Some("verify"), None),
            row("starts", VmState::Running, Some("start"), None),
            row("arrived", VmState::Done, Some("clean up"), Some(1_500)),
            row("tried again", VmState::Failed, Some("copy"), Some(500)),
            row("waits", VmState::Queued, None, None),
            row("arrived before", VmState::Done, Some("clean up"), Some(500)),
            row("stopped", VmState::Stopped, Some("copy"), Some(500)),
        ];
        let disk = |label: &str, done_bytes, left_bytes| ProgressRow {
            vm: "copies there".into(),
            disk: label.into(),
            activity: DiskActivity::Copy,
            is_live: true,
            at_ms: 0,
            size_bytes: 100,
            done_bytes,
            read_bytes: 0,
            left_bytes,
            rate_bytes_per_s: None,
        };
        let ids: Vec<String> = rows.iter().map(|row| row.id.clone()).chain(["unknown".into()]).collect();
        let of_vm = FleetVm {
            disks: vec![FleetDisk { data_bytes: 100, ..FleetDisk::default() }; 3],
            ..FleetVm::default()
        };
        let question = Question {
            vms: vec![of_vm; ids.len()],
            plans: Vec::new(),
            waves: BTreeMap::new(),
            rates: Rates::default(),
            budgets: Budgets::default(),
            hosts: BTreeMap::new(),
            lines: Vec::new(),
            start_ms: 1_000,
            seed: 1,
        };
        let disks = vec![vec!["a".to_string(), "b".to_string(), "c".to_string()]; ids.len()];
        let run = Begun { folder: PathBuf::new(), plan: String::new(), ids, disks, question };
        let stopped = ProgressRow { vm: "stopped there".into(), ..disk("b", 30, None) };
        let progress = run.progress(&rows, &[disk("a", 70, None), disk("b", 10, Some(40)), stopped]);
        let copies = Progress::Copies(vec![70, 60, 0]);
        let (waits, ended) = (Progress::Waits, Progress::Ended);
        assert_eq!(
            progress,
            [
                copies,
                Progress::Verifies,
                Progress::Copied,
                ended.clone(),
                waits.clone(),
                waits.clone(),
                ended,
                Progress::Copies(vec![0, 30, 0]),
                waits
            ]
        );
    }
}
