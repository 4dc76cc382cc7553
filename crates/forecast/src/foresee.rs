//! The forecast: the schedule on a virtual clock, run many times with rates drawn from what is known of them.

use std::collections::BTreeMap;

use drover_schedule::simulate::{Capacities, Fleet, Outcome, Vm, WarmMove, simulate};
use drover_schedule::{Budgets, Disk, Group, HostLimits, Job, Random, Tenant, TenantLimits, Window};
use drover_types::{DayLimit, Opening, Wave, WaveWindow};
use serde::{Deserialize, Serialize};

use crate::carried::{Carried, LineBytes};
use crate::fleet::FleetVm;
use crate::limits::{Gain, Limiting, WithoutCopy, gains, limiting, without_copy};
use crate::on_order::OnOrder;
use crate::quantile::Spread;
use crate::rates::{Quantity, Rates, Unit};
use crate::windows::MissedWindow;

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// The VMs, in the order of their plans.
    pub vms: Vec<FleetVm>,
    /// Names of the plans.
    pub plans: Vec<String>,
    /// The waves of those that have some, by their numbers.
    pub waves: BTreeMap<usize, Vec<Wave>>,
    /// What is known of rates and times.
    pub rates: Rates,
    /// Budgets of the schedule.
    pub budgets: Budgets,
    /// What single plans may take of them, by their numbers.
    pub limits: BTreeMap<usize, TenantLimits>,
    /// What is different at some of the hosts, such as the disks at once that their NFC servers take.
    pub hosts: BTreeMap<String, HostLimits>,
    /// What some of the plans may send over the line, beside the rate of `rates`.
    pub lines: Vec<Line>,
    /// Sites that plans go to, by the numbers of the plans, where no plan or limit says what their lines carry.
    pub sites: BTreeMap<usize, String>,
    /// When it begins, in milliseconds since 1970.
    pub start_ms: u64,
    /// The moment that the times here have as 0, in milliseconds since 1970.
    pub zero_ms: u64,
    /// For the draws: the same seed gives the same forecast.
    pub seed: u64,
}

impl Question {
    /// The same of no VMs yet.
    pub(crate) fn clone_without_vms(&self) -> Question {
        Question {
            vms: Vec::new(),
            plans: self.plans.clone(),
            waves: BTreeMap::new(),
            rates: self.rates.clone(),
            budgets: self.budgets.clone(),
            limits: self.limits.clone(),
            hosts: self.hosts.clone(),
            lines: self.lines.clone(),
            sites: self.sites.clone(),
            ..*self
        }
    }
}

/// A limit that plans share on their way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What people call it.
    pub name: String,
    /// How much, by the time.
    pub limits: Vec<DayLimit>,
    /// Numbers of the plans.
    pub plans: Vec<usize>,
}

/// Draws of a small fleet; more do not move P10 and P90 by much.
const DRAWS_MAX: usize = 200;
/// Draws of the largest fleet.
const DRAWS_MIN: usize = 40;
/// VMs simulated in all.
const WORK: usize = 200_000;

/// What comes out. Times are in seconds from the beginning.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    /// When it begins, in milliseconds since 1970.
    pub start_ms: u64,
    /// How often it was drawn.
    pub draws: usize,
    /// Names of the plans.
    pub plans: Vec<String>,
    /// Until the last VM has arrived.
    pub makespan_s: Spread,
    /// Until the last VM of each plan has arrived, in the order of `plans`; absent if one of them never does.
    pub plan_ends_s: Vec<Option<Spread>>,
    /// What of all of them waits for `drover cutover`; absent if nothing does. The ends are the earliest then.
    pub on_order: Option<OnOrder>,
    /// The same of each plan.
    pub plans_on_order: Vec<Option<OnOrder>>,
    /// Each VM, in the order of the question.
    pub vms: Vec<VmForecast>,
    /// By wave, in the order in which they were named.
    pub waves: Vec<WaveForecast>,
    /// Bytes over each line: the link of all first, then limits that plans share and sites, then hosts, the one with most first.
    pub lines: Vec<LineBytes>,
    /// Likely bytes by host. Each is the P50 of its own draws, so they need not add up to `bytes`.
    pub hosts: BTreeMap<String, u64>,
    /// Likely bytes in all.
    pub bytes: u64,
    /// What limits, the one that does so for longest first.
    pub limiting: Vec<Limiting>,
    /// What goes on while nothing is copied, where no rate limits for long.
    pub without_copy: Vec<WithoutCopy>,
    /// What one more of each buys, the best first.
    pub gains: Vec<Gain>,
    /// VMs that no window lets in.
    pub never: Vec<String>,
    /// What it goes by.
    pub by: Vec<By>,
    /// VMs that move warm by a churn of their own, as their source measured it.
    pub churn_measured: usize,
}

/// A quantity that a forecast goes by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct By {
    /// Of what.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// Its values and where they come from.
    #[serde(flatten)]
    pub quantity: Quantity,
}

/// What is foreseen for a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmForecast {
    /// Its name.
    pub name: String,
    /// Number of its plan.
    pub plan: usize,
    /// Its wave.
    pub wave: Option<String>,
    /// The host that serves it.
    pub host: String,
    /// Bytes to be read first.
    pub bytes: u64,
    /// Whether it keeps running while it is copied.
    pub is_warm: bool,
    /// Whether it moves over only when `drover cutover` says so: it is ready for that at `cutover_s`, and `end_s` is the earliest.
    #[serde(default)]
    pub on_order: bool,
    /// When it begins; absent if it never does.
    pub begin_s: Option<Spread>,
    /// When its guest is shut down; absent where it does not run.
    pub cutover_s: Option<Spread>,
    /// When it has arrived.
    pub end_s: Option<Spread>,
    /// How long its guest is down.
    pub downtime_s: Option<Spread>,
}

/// What is foreseen for a wave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaveForecast {
    /// Its name.
    pub name: String,
    /// Number of its plan.
    pub plan: usize,
    /// Its window.
    pub window: WaveWindow,
    /// VMs.
    pub vms: usize,
    /// When its first VM begins, or moves over if it is warm; absent if none ever does.
    pub begin_s: Option<Spread>,
    /// When its last one has arrived.
    pub end_s: Option<Spread>,
    /// VMs of it that move over only when `drover cutover` says so; that is taken to come as soon as they are ready.
    pub on_order: usize,
    /// With which chance all its VMs arrive before its window closes again; absent if that never closes.
    pub fits: Option<f64>,
    /// How long its window stays open from its begin on; absent if it never begins or that never closes.
    pub open_s: Option<f64>,
    /// When its window opens if it is closed when all begins, on the clock of its zone; absent if it is open then, or never is.
    pub opens: Option<String>,
    /// The window that none of its VMs, all of them warm, is likely to be ready in; absent if there is none.
    pub missed: Option<MissedWindow>,
}

/// What one draw gave for one VM, in seconds; `f32` because there are VMs times draws of them.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    begin: f32,
    pub(crate) down: f32,
    pub(crate) end: f32,
}

/// Runs the schedule on a virtual clock as often as it takes.
pub fn foresee(question: &Question) -> Forecast {
    let draws = (WORK / question.vms.len().max(1)).clamp(DRAWS_MIN, DRAWS_MAX);
    let (start_ms, question) = (question.start_ms, from_midnight(question));
    Forecast { gains: gains(&question, likely_ms(&question)), ..drawn(&question, start_ms, draws) }
}

/// The same with fewer draws and without what more of anything buys, for whoever cannot wait.
pub fn foresee_roughly(question: &Question) -> Forecast {
    let draws = (ROUGH_WORK / question.vms.len().max(1)).clamp(ROUGH_DRAWS_MIN, DRAWS_MIN);
    drawn(&from_midnight(question), question.start_ms, draws)
}

/// Seconds until the last VM has arrived, of so many draws.
pub(crate) fn makespans(question: &Question, draws: usize) -> Vec<f64> {
    let question = &from_midnight(question);
    let mut random = Random::new(question.seed);
    let mut one = || simulate(&fleet_of(question, &mut Draw::By(&mut random))).makespan_ms as f64 / 1000.0;
    (0..draws).map(|_| one()).collect()
}

/// VMs simulated in all, and draws at the least, where nobody can wait.
const ROUGH_WORK: usize = 20_000;
const ROUGH_DRAWS_MIN: usize = 10;

/// What so many draws give, of a question with its midnight as moment 0.
fn drawn(question: &Question, start_ms: u64, draws: usize) -> Forecast {
    let mut random = Random::new(question.seed);
    let mut told: Vec<Vec<Told>> = Vec::with_capacity(draws);
    let mut makespans = Vec::with_capacity(draws);
    let mut carried = Carried::of(question);
    for _ in 0..draws {
        let outcome = simulate(&fleet_of(question, &mut Draw::By(&mut random)));
        carried.add(&outcome);
        makespans.push(outcome.makespan_ms as f64 / 1000.0);
        told.push(outcome.vms.iter().map(|vm| in_seconds(vm, question.start_ms)).collect());
    }
    let likely = fleet_of(question, &mut Draw::Likely);
    let outcome = simulate(&likely);
    let carried = carried.told();
    let limiting = limiting(&outcome, question.start_ms);
    let vms: Vec<VmForecast> = question.vms.iter().enumerate().map(|(at, vm)| of_vm(vm, at, &told)).collect();
    Forecast {
        start_ms,
        draws,
        plans: question.plans.clone(),
        makespan_s: Spread::of(makespans).unwrap_or_default(),
        plan_ends_s: plan_ends(question, &told),
        on_order: OnOrder::of(question, &(0..question.vms.len()).collect::<Vec<_>>(), &told),
        plans_on_order: members(question).iter().map(|vms| OnOrder::of(question, vms, &told)).collect(),
        waves: waves(question, &told),
        never: never(question, &outcome),
        lines: carried.lines,
        hosts: carried.hosts,
        bytes: carried.bytes,
        without_copy: without_copy(&outcome, &limiting),
        limiting,
        gains: Vec::new(),
        churn_measured: question
            .vms
            .iter()
            .filter(|vm| vm.warm.is_some() && vm.churn_bytes_per_hour.is_some())
            .count(),
        by: goes_by(question),
        vms,
    }
}

/// The quantities that hold for all, and those of single places that VMs of the question go through.
fn goes_by(question: &Question) -> Vec<By> {
    let known = known(question);
    let rate = |name: String, it: &Quantity| By { name, unit: Unit::Rate, quantity: it.clone() };
    let datastores = known.datastores.iter().map(|(name, it)| rate(format!("datastore {name}"), it));
    let pools = known.pools.iter().map(|(name, it)| rate(format!("target {name}"), it));
    let sites = known.sites.iter().map(|(name, it)| rate(line_to(name), it));
    let all =
        question.rates.named().map(|(name, unit, it)| By { name: name.into(), unit, quantity: it.clone() });
    all.into_iter().chain(datastores).chain(pools).chain(sites).collect()
}

/// What was measured of single places that VMs of a question go through, by their names in it.
#[derive(Default)]
struct Known<'a> {
    datastores: BTreeMap<&'a str, &'a Quantity>,
    pools: BTreeMap<&'a str, &'a Quantity>,
    sites: BTreeMap<&'a str, &'a Quantity>,
}

fn known(question: &Question) -> Known<'_> {
    let Question { vms, rates, sites, .. } = question;
    let mut known = Known::default();
    // Nearly always nothing is, and a fleet is drawn many times.
    if rates.datastores.is_empty() && rates.pools.is_empty() && rates.sites.is_empty() {
        return known;
    }
    for (vm, disk) in vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk))) {
        let datastore = rates.datastores.get(&Rates::datastore_key(&vm.source, &disk.datastore));
        known.datastores.extend(datastore.map(|it| (disk.datastore.as_str(), it)));
        let pool = disk.pool.as_ref().and_then(|pool| Some((pool.as_str(), rates.pools.get(pool)?)));
        known.pools.extend(pool);
    }
    known.sites = sites.values().filter_map(|site| Some((site.as_str(), rates.sites.get(site)?))).collect();
    known
}

pub(crate) fn line_to(site: &str) -> String {
    format!("line to {site}")
}

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;

/// The same question with the midnight before it as moment 0, so that the virtual clock, whose times are floating-point numbers, tells
/// moments apart in which a byte goes by.
pub(crate) fn from_midnight(question: &Question) -> Question {
    let midnight = question.start_ms - question.start_ms % DAY_MS;
    let since = |ms: u64| ms.saturating_sub(midnight);
    let (start_ms, zero_ms) = (since(question.start_ms), question.zero_ms + midnight);
    let mut question = Question { start_ms, zero_ms, ..question.clone() };
    for vm in &mut question.vms {
        vm.windows.iter_mut().for_each(|(from, to)| (*from, *to) = (since(*from), since(*to)));
        vm.warm.iter_mut().for_each(|warm| warm.cutover_ms = warm.cutover_ms.map(since));
        vm.deadline_ms = vm.deadline_ms.map(since);
    }
    question.waves.values_mut().flatten().for_each(|wave| wave.window.zero_ms = zero_ms);
    question
}

/// Milliseconds that it takes if everything is as is likely.
pub(crate) fn likely_ms(question: &Question) -> u64 {
    simulate(&fleet_of(question, &mut Draw::Likely)).makespan_ms
}

/// Which values quantities have.
enum Draw<'a> {
    /// Those in the middle.
    Likely,
    /// Drawn ones.
    By(&'a mut Random),
}

impl Draw<'_> {
    fn of(&mut self, quantity: &Quantity) -> f64 {
        match self {
            Draw::Likely => quantity.spread.p50,
            Draw::By(random) => {
                // Box and Muller: normal out of even.
                let radius = (-2.0 * (1.0 - random.part()).ln()).sqrt();
                quantity.at(radius * (std::f64::consts::TAU * random.part()).cos())
            }
        }
    }

    fn rate(&mut self, quantity: &Quantity) -> u64 {
        (self.of(quantity) as u64).max(1)
    }

    fn millis(&mut self, quantity: &Quantity) -> u64 {
        (self.of(quantity) * 1000.0) as u64
    }
}

/// Rates are drawn once for all: what is not known of a datacentre is the same for each of its hosts. Times are drawn for each VM.
fn fleet_of(question: &Question, draw: &mut Draw<'_>) -> Fleet {
    let rates = &question.rates;
    let link = draw.rate(&rates.link);
    let mut capacities = Capacities {
        stream: Some(draw.rate(&rates.stream)),
        host: Some(draw.rate(&rates.host)),
        datastore: Some(draw.rate(&rates.datastore)),
        pool: Some(draw.rate(&rates.pool)),
        lines: question.lines.iter().map(|line| (line.name.clone(), line.limits.clone())).collect(),
        zero_ms: question.zero_ms,
        ..Capacities::default()
    };
    let verify = draw.of(&rates.verify).max(1.0);
    let known = known(question);
    let mut drawn = |it: &BTreeMap<&str, &Quantity>| -> BTreeMap<String, u64> {
        it.iter().map(|(name, it)| (name.to_string(), draw.rate(it))).collect()
    };
    (capacities.datastores, capacities.pools) = (drawn(&known.datastores), drawn(&known.pools));
    let sites = drawn(&known.sites);
    // What is assumed of lines is not less than one of them carried.
    let link = sites.values().copied().fold(link, u64::max);
    capacities.link = vec![DayLimit::always(link)];
    capacities.lines.extend(sites.iter().map(|(site, rate)| (line_to(site), vec![DayLimit::always(*rate)])));
    let vm = |vm: &FleetVm| {
        let lines = question.lines.iter().filter(|line| line.plans.contains(&vm.plan));
        let site = question.sites.get(&vm.plan).filter(|site| sites.contains_key(*site));
        let lines = lines.map(|line| line.name.clone()).chain(site.map(|site| line_to(site))).collect();
        Vm { lines, ..vm_of(vm, rates, verify, capacities.stream, draw) }
    };
    let vms = question.vms.iter().map(vm).collect();
    Fleet {
        vms,
        waves: question.waves.iter().map(|(plan, it)| (Tenant(*plan as u64), it.clone())).collect(),
        capacities,
        limits: question.limits.iter().map(|(plan, it)| (Tenant(*plan as u64), *it)).collect(),
        budgets: question.budgets.clone(),
        hosts: question.hosts.clone(),
        start_ms: question.start_ms,
        ..Fleet::default()
    }
}

/// Where the target is not known, all goes to one.
const TARGET: &str = "target";

fn vm_of(vm: &FleetVm, rates: &Rates, verify: f64, stream: Option<u64>, draw: &mut Draw<'_>) -> Vm {
    let disk = |disk: &crate::FleetDisk| Disk {
        bytes: disk.data_bytes,
        datastore: disk.datastore.clone(),
        pool: Some(disk.pool.clone().unwrap_or_else(|| TARGET.into())),
    };
    let data = vm.data_bytes();
    // Bytes a second; what was measured of this VM goes before a share that holds for all.
    let churn = match vm.churn_bytes_per_hour {
        Some(bytes) => Quantity::measured([bytes as f64]).map_or(0.0, |it| draw.of(&it)),
        None => draw.of(&rates.churn) * data as f64,
    } / 3600.0;
    let warm = vm.warm.map(|wish| WarmMove {
        churn: churn as u64,
        interval_ms: wish.interval_ms,
        cutover_ms: wish.cutover_ms,
        downtime_ms: wish.downtime_ms,
    });
    // What a last pass brings is read back; as much as changes while everything is copied once.
    let first_pass_s = data as f64 / stream.map_or(1.0, |rate| rate as f64);
    let proven = match vm.warm {
        Some(_) => (churn * first_pass_s).min(data as f64),
        None => vm.verified_bytes as f64,
    };
    Vm {
        tenant: Tenant(vm.plan as u64),
        job: Job {
            name: vm.name.clone(),
            host: vm.host.clone(),
            disks: vm.disks.iter().map(disk).collect(),
            priority: vm.priority,
            wave: vm.wave.clone(),
            deadline_ms: vm.deadline_ms,
            group: vm.group.clone().map(|(name, stage)| Group { name, stage }),
            anti_affinity: vm.anti_affinity.as_ref().map(|word| format!("{}/{word}", vm.plan)),
            windows: vm
                .windows
                .iter()
                .map(|(from_ms, to_ms)| Window { from_ms: *from_ms, to_ms: *to_ms })
                .collect(),
            is_warm: warm.is_some(),
            goes_on: vm.goes_on,
            ..Job::default()
        },
        shutdown_ms: if vm.runs { draw.millis(&rates.shutdown_s) } else { 0 },
        snapshot_ms: draw.millis(&rates.snapshot_s),
        verify_ms: (proven / verify * 1000.0) as u64,
        start_ms: draw.millis(&rates.start_s),
        warm,
        lines: Vec::new(),
    }
}

fn in_seconds(moved: &drover_schedule::simulate::Moved, start_ms: u64) -> Told {
    let since =
        |at: Option<u64>| at.map_or(f32::NAN, |at| (at.saturating_sub(start_ms) as f64 / 1000.0) as f32);
    Told { begin: since(moved.begin_ms), down: since(moved.down_ms), end: since(moved.end_ms) }
}

fn of_vm(vm: &FleetVm, at: usize, told: &[Vec<Told>]) -> VmForecast {
    let spread = |of: fn(&Told) -> f32| Spread::of(told.iter().map(|draw| f64::from(of(&draw[at]))));
    let cutover_s = spread(|it| it.down).filter(|_| vm.runs);
    VmForecast {
        name: vm.name.clone(),
        plan: vm.plan,
        wave: vm.wave.clone(),
        host: vm.host.clone(),
        bytes: vm.data_bytes(),
        is_warm: vm.warm.is_some(),
        on_order: vm.is_on_order(),
        begin_s: spread(|it| it.begin),
        downtime_s: spread(|it| it.end - it.down).filter(|_| vm.runs),
        cutover_s,
        end_s: spread(|it| it.end),
    }
}

/// The VMs of each plan.
fn members(question: &Question) -> Vec<Vec<usize>> {
    let mut members = vec![Vec::new(); question.plans.len()];
    for (at, vm) in question.vms.iter().enumerate() {
        members.get_mut(vm.plan).into_iter().for_each(|vms: &mut Vec<usize>| vms.push(at));
    }
    members
}

fn plan_ends(question: &Question, told: &[Vec<Told>]) -> Vec<Option<Spread>> {
    let of_plan = |vms: Vec<usize>| {
        if vms.is_empty() {
            return Some(Spread::default());
        }
        Spread::of(told.iter().map(|draw| span_of(question, &vms, draw).1))
    };
    members(question).into_iter().map(of_plan).collect()
}

fn waves(question: &Question, told: &[Vec<Told>]) -> Vec<WaveForecast> {
    let mut names: Vec<(usize, &str)> = Vec::new();
    let mut members: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
    for (at, vm) in question.vms.iter().enumerate() {
        let Some(wave) = vm.wave.as_deref() else { continue };
        let of_wave = members.entry((vm.plan, wave)).or_insert_with(|| {
            names.push((vm.plan, wave));
            Vec::new()
        });
        of_wave.push(at);
    }
    // As the plan has them; those of VMs that no plan knows come last.
    let place = |(plan, name): &(usize, &str)| {
        let waves = question.waves.get(plan);
        (*plan, waves.and_then(|waves| waves.iter().position(|it| it.name == *name)).unwrap_or(usize::MAX))
    };
    names.sort_by_key(place);
    let forecast = |(plan, name): &(usize, &str)| {
        let vms = members.get(&(*plan, *name)).map(Vec::as_slice).unwrap_or_default();
        let wave = question.waves.get(plan).and_then(|waves| waves.iter().find(|it| it.name == *name));
        let window = wave.map(|it| it.window.clone()).unwrap_or_default();
        let spans: Vec<(f64, f64)> = told.iter().map(|draw| span_of(question, vms, draw)).collect();
        let begin_s = Spread::of(spans.iter().map(|(begin, _)| *begin));
        let all_warm = vms.iter().all(|at| question.vms[*at].warm.is_some());
        WaveForecast {
            name: name.to_string(),
            plan: *plan,
            vms: vms.len(),
            begin_s,
            end_s: Spread::of(spans.iter().map(|(_, end)| *end)),
            on_order: vms.iter().filter(|at| question.vms[**at].is_on_order()).count(),
            fits: chance_to_fit(&window, question.start_ms, &spans),
            open_s: Spread::of(
                spans.iter().filter_map(|(begin, _)| open_from(&window, question.start_ms, *begin)),
            )
            .map(|it| it.p50),
            opens: window.opens(question.start_ms),
            missed: wave
                .filter(|_| all_warm)
                .and_then(|wave| MissedWindow::of(wave, question.start_ms, begin_s)),
            window,
        }
    };
    names.iter().map(forecast).collect()
}

/// When a wave begins and when it is over, in seconds; not a number where that never is.
fn span_of(question: &Question, vms: &[usize], draw: &[Told]) -> (f64, f64) {
    let begins = |at: &usize| if question.vms[*at].warm.is_some() { draw[*at].down } else { draw[*at].begin };
    let begin = vms.iter().map(begins).fold(f32::NAN, f32::min);
    let is_over = vms.iter().all(|at| !draw[*at].end.is_nan());
    let end = vms.iter().map(|at| draw[*at].end).fold(f32::NAN, f32::max);
    (f64::from(begin), if is_over { f64::from(end) } else { f64::NAN })
}

/// Times of a draw are this exact, in milliseconds: what begins as its window opens is inside.
const EXACT_MS: u64 = 500;

/// How long a window stays open from a begin on.
fn open_from(window: &WaveWindow, start_ms: u64, begin_s: f64) -> Option<f64> {
    let from_ms = start_ms + (begin_s * 1000.0) as u64;
    match window.at(from_ms + EXACT_MS) {
        Opening::Open { until_ms } if !begin_s.is_nan() => {
            Some(until_ms?.saturating_sub(from_ms) as f64 / 1000.0)
        }
        Opening::Open { .. } | Opening::At(_) | Opening::Never => None,
    }
}

/// In how many draws a wave is over before the window in which it begins closes.
fn chance_to_fit(window: &WaveWindow, start_ms: u64, spans: &[(f64, f64)]) -> Option<f64> {
    if window.until_ms.is_none() && window.freezes.is_empty() && window.windows.is_always() {
        return None;
    }
    let ms = |seconds: f64| start_ms + (seconds * 1000.0) as u64;
    let fits = |(begin, end): &&(f64, f64)| {
        let opens = if begin.is_nan() { Opening::Never } else { window.at(ms(*begin) + EXACT_MS) };
        match opens {
            Opening::Open { until_ms } => !end.is_nan() && until_ms.is_none_or(|until| ms(*end) <= until),
            Opening::At(_) | Opening::Never => false,
        }
    };
    Some(spans.iter().filter(fits).count() as f64 / spans.len().max(1) as f64)
}

fn never(question: &Question, outcome: &Outcome) -> Vec<String> {
    let vms = question.vms.iter().zip(&outcome.vms);
    vms.filter(|(_, moved)| moved.end_ms.is_none()).map(|(vm, _)| vm.name.clone()).collect()
}

#[cfg(test)]
pub(crate) mod tests;
