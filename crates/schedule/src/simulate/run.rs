//! The run: events on a virtual clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use drover_types::{PassSpan, makes_trend};

use super::outcome::{Idle, Limited, Moved, Outcome};
use super::transfers::{Flow, Transfers};
use super::{Fleet, PASSES_MAX, Vm, WarmMove};
use crate::job::{JobId, Tenant};
use crate::learner::{Learner, Look};
use crate::scheduler::{Admission, Ended, Scheduler};
use crate::wait::{Resource, Wait};

/// Climbing takes a sample this often.
const SAMPLE_MS: f64 = 10_000.0;
/// Openings of waves before which nothing else happens.
const OPENINGS_MAX: u32 = 1000;
/// The last pass of a VM that waited for its wave holds what changed in this time at the least.
const PASS_MS_MIN: u64 = 60_000;
/// Spans that are told; further ones go into the last.
const SPANS_MAX: usize = 4096;

/// What happens at a time that is known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The snapshot is there: the copy begins.
    Copies,
    /// The copy is verified.
    Verified,
    /// It runs at the target.
    Runs,
    /// Its next pass is due.
    Due,
    /// It may move over.
    Asks,
}

impl Event {
    fn ends_step(self) -> bool {
        match self {
            Event::Copies | Event::Verified | Event::Runs => true,
            Event::Due | Event::Asks => false,
        }
    }
}

/// A VM under way.
#[derive(Default)]
struct Going {
    slots: usize,
    next_disk: usize,
    open: usize,
    /// Bytes of each disk in this pass.
    bytes: Vec<u64>,
    pass_began_ms: f64,
    /// Bytes in a millisecond of its fastest pass: one that brings little says nothing of how fast much is copied.
    rate: f64,
    moves_over: bool,
    waits_for_wave: bool,
    limited: BTreeMap<Resource, f64>,
    told: Moved,
}

pub(super) struct Run<'a> {
    fleet: &'a Fleet,
    scheduler: Scheduler,
    ids: Vec<JobId>,
    index: BTreeMap<JobId, usize>,
    going: Vec<Going>,
    transfers: Transfers<'a>,
    events: BinaryHeap<Reverse<(u64, u64, usize, Event)>>,
    sequence: u64,
    now: f64,
    asking: Vec<usize>,
    /// Those that ask to move over and whose wave is not open, by plan and wave.
    for_wave: BTreeMap<(Tenant, String), Vec<usize>>,
    /// Openings of waves that are still waited for.
    openings: u32,
    learner: Option<Learner>,
    spans: Vec<Limited>,
    idle: BTreeMap<Idle, u64>,
    /// Events to come that end a step of a VM.
    steps: usize,
    decisions: u64,
    disks_max: u32,
    end_ms: f64,
}

impl<'a> Run<'a> {
    pub(super) fn new(fleet: &'a Fleet) -> Run<'a> {
        let mut scheduler = Scheduler::new(fleet.budgets.clone());
        fleet.hosts.iter().for_each(|(host, limits)| scheduler.set_host(host, *limits));
        fleet.limits.iter().for_each(|(tenant, limits)| scheduler.set_tenant(*tenant, *limits));
        fleet.waves.iter().for_each(|(tenant, waves)| scheduler.set_waves(*tenant, waves));
        let ids = submit(&mut scheduler, fleet);
        let index = ids.iter().copied().zip(0..).collect();
        let learner = fleet.climb_from.map(|start| learner(&mut scheduler, fleet, start));
        Run {
            fleet,
            scheduler,
            going: ids.iter().map(|_| Going::default()).collect(),
            ids,
            index,
            transfers: Transfers::new(&fleet.capacities),
            events: BinaryHeap::new(),
            sequence: 0,
            now: fleet.start_ms as f64,
            asking: Vec::new(),
            for_wave: BTreeMap::new(),
            openings: OPENINGS_MAX,
            learner,
            spans: Vec::new(),
            idle: BTreeMap::new(),
            steps: 0,
            decisions: 0,
            disks_max: 0,
            end_ms: fleet.start_ms as f64,
        }
    }

    pub(super) fn finish(mut self) -> Outcome {
        let mut sample_at = self.now + SAMPLE_MS;
        loop {
            self.decide();
            let Some(mut next) = self.next_ms() else { break };
            let samples = self.learner.is_some();
            if samples && sample_at < next {
                next = sample_at;
            }
            self.note_limit(next);
            self.transfers.advance(next - self.now);
            self.now = next;
            if samples && self.now >= sample_at {
                self.sample();
                sample_at = self.now + SAMPLE_MS;
            }
            self.happen();
        }
        self.outcome()
    }

    fn now_ms(&self) -> u64 {
        self.now as u64
    }

    /// When something happens next.
    fn next_ms(&mut self) -> Option<f64> {
        let now = self.now;
        let event = self.events.peek().map(|Reverse((at, ..))| f64::from_bits(*at));
        // Years from moment 0 a byte goes by in less than the clock can tell apart: it goes on all the same.
        let done = self.transfers.until_next_ms();
        let done = done.map(|ms| if ms > 0.0 { (now + ms).max(now.next_up()) } else { now });
        let opens = self.scheduler.next_event_ms(self.now_ms()).map(|at| at as f64).filter(|at| *at > now);
        let next = [event, done, opens].into_iter().flatten().min_by(f64::total_cmp);
        let wave = self.wave_opens(next.is_none()).map(|at| at as f64);
        let next = next.into_iter().chain(wave).min_by(f64::total_cmp)?;
        let hours = done.and(self.transfers.until_hours_ms(now)).map(|ms| now + ms);
        Some(hours.map_or(next, |hours| next.min(hours)).max(now))
    }

    /// When a wave opens for which somebody may wait to move over. Those that begin in it are waited for by the scheduler.
    fn wave_opens(&mut self, nothing_else_comes: bool) -> Option<u64> {
        if self.asking.is_empty() && self.for_wave.is_empty() {
            return None;
        }
        if nothing_else_comes {
            // One that waits for what never comes is not waited for for ever.
            self.openings = self.openings.checked_sub(1)?;
        }
        self.scheduler.next_wave_ms(self.now_ms())
    }

    fn push(&mut self, after_ms: u64, vm: usize, event: Event) {
        self.sequence += 1;
        self.steps += usize::from(event.ends_step());
        let at = self.now + after_ms as f64;
        self.events.push(Reverse((at.to_bits(), self.sequence, vm, event)));
    }

    /// All that the scheduler lets in now. One that is given up may have been the last of its wave, for which others wait.
    fn decide(&mut self) {
        loop {
            let mut gave_up = self.ask();
            loop {
                self.decisions += 1;
                let Some(admission) = self.scheduler.next(self.now_ms()) else { break };
                self.admit(admission);
            }
            self.disks_max = self.disks_max.max(self.scheduler.disks_held());
            for (id, ended) in self.scheduler.take_given_up() {
                gave_up = true;
                self.going[self.index[&id]].told.given_up = Some(ended);
            }
            if !gave_up {
                break;
            }
        }
    }

    fn admit(&mut self, admission: Admission) {
        let at = self.index[&admission.job];
        let (vm, now, now_ms) = (&self.fleet.vms[at], self.now, self.now_ms());
        let going = &mut self.going[at];
        going.slots = admission.slots as usize;
        going.told.begin_ms.get_or_insert(now_ms);
        let is_last = vm.warm.is_none() || going.moves_over;
        going.bytes = match vm.warm {
            Some(warm) if going.told.passes > 0 => changed(vm, &warm, now - going.pass_began_ms),
            _ => vm.job.disks.iter().map(|disk| disk.bytes).collect(),
        };
        going.pass_began_ms = now;
        going.told.passes += 1;
        let mut before = vm.snapshot_ms;
        if is_last {
            going.told.down_ms = Some(now_ms);
            before += vm.shutdown_ms;
        }
        self.push(before, at, Event::Copies);
    }

    /// What is due now.
    fn happen(&mut self) {
        self.transfers.set_hours(self.now);
        while let Some((flow, limited)) = self.transfers.take_done() {
            self.copied(flow, limited);
        }
        while let Some(Reverse((at, _, vm, event))) = self.events.peek().copied() {
            if f64::from_bits(at) > self.now {
                break;
            }
            self.events.pop();
            self.steps -= usize::from(event.ends_step());
            match event {
                Event::Copies => self.copy(vm),
                Event::Verified => self.verified(vm),
                Event::Runs => self.runs(vm),
                Event::Due => self.due(vm),
                Event::Asks => self.asks(vm),
            }
        }
    }

    /// Its next pass is due, unless it never moves over.
    fn due(&mut self, vm: usize) {
        let (id, now_ms) = (self.ids[vm], self.now_ms());
        match self.scheduler.never_moves_over(id, now_ms) {
            Some(ended) => {
                self.scheduler.finished(id, ended, now_ms);
                self.going[vm].told.given_up = Some(ended);
            }
            None => self.scheduler.wake(id, false, now_ms),
        }
    }

    fn copy(&mut self, vm: usize) {
        let going = &mut self.going[vm];
        going.next_disk = 0;
        let disks = going.slots.min(self.fleet.vms[vm].job.disks.len());
        if disks == 0 {
            return self.all_copied(vm);
        }
        (0..disks).for_each(|_| self.copy_next(vm));
    }

    fn copy_next(&mut self, vm: usize) {
        let now_ms = self.now_ms();
        let going = &mut self.going[vm];
        let disk = going.next_disk;
        going.next_disk += 1;
        going.open += 1;
        going.told.bytes += going.bytes[disk];
        self.transfers.begin(Flow { vm, disk }, &self.fleet.vms[vm], going.bytes[disk], now_ms);
    }

    fn copied(&mut self, flow: Flow, limited: Vec<(Resource, f64)>) {
        let Flow { vm, disk } = flow;
        let going = &mut self.going[vm];
        going.open -= 1;
        for (resource, ms) in limited {
            *going.limited.entry(resource).or_default() += ms;
        }
        let (is_left, open) = (going.next_disk < going.bytes.len(), going.open);
        self.scheduler.disk_finished(self.ids[vm], disk);
        if is_left {
            self.copy_next(vm);
        } else if open == 0 {
            self.all_copied(vm);
        }
    }

    fn all_copied(&mut self, at: usize) {
        let vm = &self.fleet.vms[at];
        match vm.warm {
            Some(warm) if !self.going[at].moves_over => self.pass_ended(at, &warm),
            _ if vm.verify_ms > 0 => self.push(vm.verify_ms, at, Event::Verified),
            _ => self.verified(at),
        }
    }

    fn verified(&mut self, vm: usize) {
        self.scheduler.park(self.ids[vm], self.now as u64);
        self.push(self.fleet.vms[vm].start_ms, vm, Event::Runs);
    }

    fn runs(&mut self, vm: usize) {
        self.scheduler.finished(self.ids[vm], Ended::Arrived, self.now as u64);
        self.going[vm].told.end_ms = Some(self.now_ms());
        self.end_ms = self.end_ms.max(self.now);
    }

    fn pass_ended(&mut self, at: usize, warm: &WarmMove) {
        let now_ms = self.now_ms();
        self.scheduler.park(self.ids[at], now_ms);
        let going = &mut self.going[at];
        let took = (self.now - going.pass_began_ms).max(1.0);
        going.rate = going.rate.max(going.bytes.iter().sum::<u64>() as f64 / took);
        let pass = PassSpan { began_ms: going.pass_began_ms as i64, ended_ms: self.now as i64 };
        let only_trend_lacks = warm.cutover_ms.is_none() && !self.has_trend(at);
        let interval_ms = i64::try_from(warm.interval_ms).unwrap_or(i64::MAX);
        let next = pass.next_ms(interval_ms, only_trend_lacks) - pass.ended_ms;
        let wait = warm.cutover_ms.map(|moment| moment.saturating_sub(now_ms));
        match wait {
            Some(wait) if wait <= warm.interval_ms => self.push(wait, at, Event::Asks),
            None if self.is_ready(at, warm, took) => self.push(0, at, Event::Asks),
            _ => self.push(next.max(1) as u64, at, Event::Due),
        }
    }

    fn has_trend(&self, at: usize) -> bool {
        makes_trend((self.going[at].told.passes as usize).saturating_sub(1))
    }

    /// Whether it moves over now that its last pass took so long: its passes make a trend, and the next one is expected to fit the
    /// time that it may be down.
    fn is_ready(&self, at: usize, warm: &WarmMove, took: f64) -> bool {
        let (going, vm) = (&self.going[at], &self.fleet.vms[at]);
        if warm.downtime_ms == 0 {
            return true;
        }
        let changed = changed(vm, warm, took).iter().sum::<u64>() as f64;
        let down = changed / going.rate.max(1e-6) + (vm.shutdown_ms + vm.snapshot_ms + vm.start_ms) as f64;
        self.has_trend(at) && (down <= warm.downtime_ms as f64 || going.told.passes >= PASSES_MAX)
    }

    fn asks(&mut self, at: usize) {
        let vm = &self.fleet.vms[at];
        match &vm.job.wave {
            Some(wave) => {
                let waits = self.scheduler.wave_wait(self.ids[at], self.now as u64);
                self.going[at].waits_for_wave = matches!(waits, Ok(Some(_)));
                self.for_wave.entry((vm.tenant, wave.clone())).or_default().push(at);
            }
            None => self.asking.push(at),
        }
    }

    /// Lets those ask whose wave is open, all of one at once.
    fn ask_waves(&mut self) {
        let now_ms = self.now_ms();
        let ids = &self.ids;
        let scheduler = &self.scheduler;
        let waits = |vms: &[usize]| {
            vms.first().is_some_and(|vm| matches!(scheduler.wave_wait(ids[*vm], now_ms), Ok(Some(_))))
        };
        let (left, open): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.for_wave).into_iter().partition(|(_, vms)| waits(vms));
        self.for_wave = left;
        self.asking.extend(open.into_values().flatten());
    }

    /// Those that ask to move over: as many as may begin to. True if one of them never may.
    fn ask(&mut self) -> bool {
        self.ask_waves();
        let now_ms = self.now_ms();
        let mut gave_up = false;
        let mut left = Vec::new();
        let mut asking = std::mem::take(&mut self.asking).into_iter();
        let mut full = BTreeSet::new();
        for vm in asking.by_ref() {
            let (id, fleet_vm) = (self.ids[vm], &self.fleet.vms[vm]);
            if fleet_vm.job.group.is_none() && full.contains(&fleet_vm.tenant) {
                left.push(vm);
                continue;
            }
            match self.scheduler.ask_cutover(id, now_ms) {
                Ok(()) => {
                    let going = &mut self.going[vm];
                    going.moves_over = true;
                    if let Some(warm) = self.fleet.vms[vm].warm.filter(|_| going.waits_for_wave) {
                        // It was copied again and again while it waited.
                        let passed = warm.interval_ms.max(PASS_MS_MIN) as f64;
                        going.pass_began_ms = going.pass_began_ms.max(self.now - passed);
                    }
                    self.scheduler.wake(id, true, now_ms);
                }
                Err(wait) => {
                    if let Some(ended) = self.scheduler.never_moves_over(id, now_ms) {
                        self.scheduler.finished(id, ended, now_ms);
                        self.going[vm].told.given_up = Some(ended);
                        gave_up = true;
                        continue;
                    }
                    left.push(vm);
                    // Of a group others may be ready for the first time.
                    match wait {
                        _ if fleet_vm.job.group.is_some() => {}
                        Wait::Cutovers { .. } => break,
                        Wait::OwnCutovers { .. } => drop(full.insert(fleet_vm.tenant)),
                        _ => {}
                    }
                }
            }
        }
        left.extend(asking);
        self.asking = left;
        gave_up
    }

    fn sample(&mut self) {
        let Some(learner) = &mut self.learner else { return };
        let read = |resource: &Resource| self.transfers.bytes(resource);
        learner.look(&mut self.scheduler, &Look { passed_ms: SAMPLE_MS, counts: true, read: &read });
    }

    fn note_limit(&mut self, until: f64) {
        let (from_ms, to_ms) = (self.now_ms(), until as u64);
        if to_ms <= from_ms {
            return;
        }
        let by = self.transfers.limits_most();
        if by.is_none() {
            let idle = match (self.steps, self.events.is_empty()) {
                (1.., _) => Idle::Steps,
                (0, false) => Idle::Pauses,
                (0, true) => Idle::Windows,
            };
            *self.idle.entry(idle).or_default() += to_ms - from_ms;
        }
        let is_full = self.spans.len() >= SPANS_MAX;
        match self.spans.last_mut() {
            Some(last) if last.by == by || is_full => last.to_ms = to_ms,
            _ => self.spans.push(Limited { from_ms, to_ms, by }),
        }
    }

    fn outcome(self) -> Outcome {
        let told = |going: Going| {
            let mut limited_by: Vec<(Resource, u64)> =
                going.limited.into_iter().map(|(resource, ms)| (resource, ms as u64)).collect();
            limited_by.sort_by_key(|(_, ms)| Reverse(*ms));
            Moved { limited_by, ..going.told }
        };
        Outcome {
            makespan_ms: (self.end_ms - self.fleet.start_ms as f64).round() as u64,
            vms: self.going.into_iter().map(told).collect(),
            resources: self.transfers.uses(),
            limited: self.spans,
            idle: self.idle,
            found: self.learner.map(|learner| learner.found()).unwrap_or_default(),
            decisions: self.decisions,
            disks_max: self.disks_max,
        }
    }
}

/// Submits each tenant's VMs, in the order of the fleet; gives the ids in that order.
fn submit(scheduler: &mut Scheduler, fleet: &Fleet) -> Vec<JobId> {
    let mut of: BTreeMap<Tenant, Vec<usize>> = BTreeMap::new();
    fleet.vms.iter().enumerate().for_each(|(at, vm)| of.entry(vm.tenant).or_default().push(at));
    let mut ids = vec![JobId(0); fleet.vms.len()];
    for (tenant, vms) in of {
        let jobs = vms.iter().map(|at| job_of(&fleet.vms[*at])).collect();
        let added = scheduler.add(tenant, jobs, fleet.start_ms);
        vms.into_iter().zip(added).for_each(|(at, id)| ids[at] = id);
    }
    ids
}

fn job_of(vm: &Vm) -> crate::job::Job {
    let fixed_ms = vm.shutdown_ms + vm.snapshot_ms + vm.verify_ms + vm.start_ms;
    crate::job::Job { fixed_ms, is_warm: vm.warm.is_some(), ..vm.job.clone() }
}

/// Begins to judge all hosts with so many disks, and all datastores.
fn learner(scheduler: &mut Scheduler, fleet: &Fleet, start: u32) -> Learner {
    let mut learner = Learner::default();
    for usage in scheduler.usage() {
        let max = usage.disks_max.min(fleet.budgets.disks);
        learner.begin_host(&usage.host, start, max);
        let limits = scheduler.host_limits(&usage.host);
        let learned = Some(start.clamp(1, max.max(1)));
        scheduler.set_host(&usage.host, crate::HostLimits { learned, ..limits });
    }
    let disks = fleet.vms.iter().flat_map(|vm| &vm.job.disks);
    disks.for_each(|disk| learner.begin_datastore(&disk.datastore));
    learner
}

/// Bytes of each disk that changed within so many milliseconds; no disk changes more than it holds.
fn changed(vm: &Vm, warm: &WarmMove, ms: f64) -> Vec<u64> {
    let all = vm.job.bytes().max(1) as f64;
    let part = (warm.churn as f64 * ms / 1000.0 / all).min(1.0);
    vm.job.disks.iter().map(|disk| (disk.bytes as f64 * part) as u64).collect()
}
