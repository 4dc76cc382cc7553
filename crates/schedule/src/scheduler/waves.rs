//! Waves: which of a tenant's jobs may move now.

use std::collections::{BTreeMap, BTreeSet};

use drover_types::{IfFailed, Opening, Wave, utc_moment};
use serde::{Deserialize, Serialize};

use super::entry::{Aside, Entry};
use super::hold::Hold;
use super::{Ended, Scheduler};
use crate::job::{JobId, Tenant};
use crate::wait::Wait;

/// The waves of all tenants.
#[derive(Clone, Debug, Default)]
pub(super) struct Waves {
    of: BTreeMap<Tenant, BTreeMap<String, State>>,
}

/// A wave.
#[derive(Clone, Debug)]
struct State {
    wave: Wave,
    /// Waves that have to be over before it, those before these among them.
    before: Vec<String>,
    /// Jobs that were added.
    all: usize,
    /// Jobs that were admitted once.
    begun: usize,
    /// Jobs that have not ended.
    left: usize,
    arrived: usize,
    failed: usize,
    /// Of these, the ones that a wave before it kept from beginning.
    stopped: usize,
    /// Those after it go on whatever failed.
    may_go_on: bool,
    /// It was over once, and held back none of those after it: they wait for it no more, also if VMs of it are tried again.
    passed: bool,
    gate: Gate,
}

/// Whether something is to be called before the jobs of a wave move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nothing is, or all of it was.
    Open,
    /// It is, once nothing else keeps them.
    ToCall,
    /// It failed.
    Shut,
}

impl State {
    /// Whether it failed, and its rule for that holds. What fails of it after it let others go on keeps none of them.
    fn holds(&self, rule: IfFailed) -> bool {
        self.failed > 0 && !self.may_go_on && !self.passed && self.wave.if_failed == rule
    }

    /// Looks whether those after it may go on. A wave that was stopped before it began was not there yet.
    fn pass(&mut self) {
        let is_over = self.left == 0 && self.all > 0 && self.stopped == 0;
        self.passed |= is_over && (self.failed == 0 || self.may_go_on);
    }
}

/// How far a wave is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveUsage {
    /// Its name.
    pub name: String,
    /// VMs that are to move.
    pub vms: usize,
    /// Of these, the ones that began.
    pub begun: usize,
    /// Of these, the ones that arrived.
    pub arrived: usize,
    /// VMs that failed, or never began and do so no more.
    pub failed: usize,
    /// What it waits for before its VMs may move; absent if they may, or all have ended.
    pub waits: Option<Wait>,
}

impl WaveUsage {
    /// Whether all its VMs have ended.
    pub fn is_over(&self) -> bool {
        self.arrived + self.failed == self.vms
    }
}

/// Where the jobs of a wave stand in the order in which they are copied.
pub(super) struct WaveOrder {
    /// By when it has to be over, for its own window and those of the waves after it; absent if these never close.
    pub(super) due_ms: Option<u64>,
    /// Waves before it.
    pub(super) depth: usize,
}

/// What keeps the jobs of a wave from moving.
enum Block {
    /// Other waves.
    For(Wait),
    /// Its window.
    Until(u64),
    /// What is called before it.
    ToCall,
    Ever(Ended),
}

impl Waves {
    fn state(&self, entry: &Entry) -> Option<&State> {
        self.of.get(&entry.tenant)?.get(entry.job.wave.as_deref()?)
    }

    fn state_mut(&mut self, entry: &Entry) -> Option<&mut State> {
        self.of.get_mut(&entry.tenant)?.get_mut(entry.job.wave.as_deref()?)
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        if let Some(state) = self.state_mut(entry) {
            state.all += 1;
            state.left += 1;
        }
    }

    /// A job was admitted for the first time.
    pub(super) fn begin(&mut self, entry: &Entry) {
        if let Some(state) = self.state_mut(entry) {
            state.begun += 1;
        }
    }

    /// It was not, after all.
    pub(super) fn give_back(&mut self, entry: &Entry) {
        if let Some(state) = self.state_mut(entry) {
            state.begun -= 1;
        }
    }

    /// A job is over; true if it was the last of its wave.
    pub(super) fn end(&mut self, entry: &Entry, ended: Ended) -> bool {
        let Some(state) = self.state_mut(entry) else { return false };
        state.left -= 1;
        match ended {
            Ended::Arrived => state.arrived += 1,
            Ended::LeftOut => {
                state.all -= 1;
                state.begun -= usize::from(entry.begun.is_some());
            }
            Ended::WaveFailed => {
                state.failed += 1;
                state.stopped += 1;
            }
            Ended::Failed
            | Ended::TooLate
            | Ended::GroupFailed
            | Ended::WaveShut
            | Ended::HostFailed
            | Ended::DatastoreFailed
            | Ended::TargetFailed => state.failed += 1,
        }
        state.pass();
        state.left == 0
    }

    /// A job that failed is added again: it counts as if it had not been there.
    pub(super) fn take_back(&mut self, entry: &Entry) {
        if let Some(state) = self.state_mut(entry) {
            state.failed -= 1;
            state.stopped -= usize::from(entry.state == super::entry::State::Over(Ended::WaveFailed));
            state.all -= 1;
            state.begun -= usize::from(entry.begun.is_some());
        }
    }

    pub(super) fn forget(&mut self, tenant: Tenant) {
        self.of.remove(&tenant);
    }

    /// Where the jobs of each wave of a tenant stand.
    pub(super) fn orders(&self, tenant: Tenant, now_ms: u64) -> BTreeMap<String, WaveOrder> {
        let Some(of) = self.of.get(&tenant) else { return BTreeMap::new() };
        let order = |state: &State| WaveOrder { due_ms: closes_ms(state, now_ms), depth: state.before.len() };
        let mut orders: BTreeMap<String, WaveOrder> =
            of.iter().map(|(name, state)| (name.clone(), order(state))).collect();
        for state in of.values() {
            let closes = closes_ms(state, now_ms);
            for name in &state.before {
                if let Some(before) = orders.get_mut(name) {
                    before.due_ms = before.due_ms.into_iter().chain(closes).min();
                }
            }
        }
        orders
    }

    /// The waves that have to be over before one.
    fn before<'a>(&'a self, tenant: Tenant, state: &'a State) -> impl Iterator<Item = &'a State> {
        let waves = self.of.get(&tenant);
        state.before.iter().filter_map(move |name| waves?.get(name))
    }

    /// The wave before one that failed, after which none goes on.
    fn stopped_by<'a>(&'a self, tenant: Tenant, state: &'a State) -> Option<&'a State> {
        self.before(tenant, state).find(|it| it.holds(IfFailed::Stop))
    }

    fn block(&self, tenant: Tenant, state: &State, now_ms: u64) -> Option<Block> {
        let window = state.wave.window.at(now_ms);
        if window == Opening::Never {
            return Some(Block::Ever(Ended::TooLate));
        }
        if state.gate == Gate::Shut {
            return Some(Block::Ever(Ended::WaveShut));
        }
        let before = || self.before(tenant, state);
        if self.stopped_by(tenant, state).is_some() {
            return Some(Block::Ever(Ended::WaveFailed));
        }
        if let Some(it) = before().find(|it| it.left > 0 && !it.passed) {
            return Some(Block::For(Wait::Wave { wave: it.wave.name.clone(), left: it.left }));
        }
        if let Some(it) = before().find(|it| it.holds(IfFailed::Wait)) {
            return Some(Block::For(Wait::WaveFailed { wave: it.wave.name.clone(), failed: it.failed }));
        }
        match window {
            Opening::At(opens) => Some(Block::Until(opens)),
            Opening::Open { .. } | Opening::Never => (state.gate == Gate::ToCall).then_some(Block::ToCall),
        }
    }

    /// What keeps a job from starting. A warm one is copied at any time; its wave counts when it moves over.
    pub(super) fn hold(&self, entry: &Entry, now_ms: u64) -> Option<Hold> {
        let state = self.state(entry).filter(|_| !entry.job.is_warm)?;
        Some(match self.block(entry.tenant, state, now_ms)? {
            Block::For(_) | Block::ToCall => {
                Hold::For(Aside::Wave(state.wave.window.ends_ms().unwrap_or(u64::MAX)))
            }
            Block::Until(opens) => Hold::For(Aside::Window(opens)),
            Block::Ever(ended) => Hold::Ever(ended),
        })
    }

    /// A moment on the clock of the window of a job's wave.
    pub(super) fn moment(&self, entry: &Entry, ms: u64) -> String {
        self.state(entry).map_or_else(|| utc_moment(ms), |state| state.wave.window.moment(ms))
    }

    /// What the wave of a job waits for.
    pub(super) fn wait(&self, entry: &Entry, now_ms: u64) -> Option<Result<Wait, Ended>> {
        let state = self.state(entry)?;
        self.block(entry.tenant, state, now_ms).map(|block| told(state, block))
    }
}

/// When a wave's window closes that is open or opens next.
fn closes_ms(state: &State, now_ms: u64) -> Option<u64> {
    let window = &state.wave.window;
    let opening = match window.at(now_ms) {
        Opening::At(opens) => window.at(opens),
        opening => opening,
    };
    match opening {
        Opening::Open { until_ms } => until_ms,
        Opening::At(_) | Opening::Never => None,
    }
}

fn told(state: &State, block: Block) -> Result<Wait, Ended> {
    match block {
        Block::ToCall => Ok(Wait::WaveHooks { wave: state.wave.name.clone() }),
        Block::For(wait) => Ok(wait),
        Block::Until(opens_ms) => Ok(Wait::Window { opens_ms, opens: state.wave.window.moment(opens_ms) }),
        Block::Ever(ended) => Err(ended),
    }
}

impl Scheduler {
    /// Sets the waves of a tenant, before its jobs are added. A job that names none of them is held back by none.
    pub fn set_waves(&mut self, tenant: Tenant, waves: &[Wave]) {
        let state = |wave: &Wave| State {
            before: before(wave, waves),
            wave: wave.clone(),
            all: 0,
            begun: 0,
            left: 0,
            arrived: 0,
            failed: 0,
            stopped: 0,
            may_go_on: wave.if_failed == IfFailed::GoOn,
            passed: false,
            gate: Gate::Open,
        };
        let of = waves.iter().map(|wave| (wave.name.clone(), state(wave))).collect();
        self.waves.of.insert(tenant, of);
    }

    /// Lets the waves after one go on, whatever of it failed or will; false if that was so already, or there is no such wave.
    pub fn proceed(&mut self, tenant: Tenant, wave: &str, now_ms: u64) -> bool {
        let state = self.waves.of.get_mut(&tenant).and_then(|waves| waves.get_mut(wave));
        let is_new = state.is_some_and(|state| {
            let is_new = !std::mem::replace(&mut state.may_go_on, true);
            state.pass();
            is_new
        });
        if is_new {
            self.release_waves(now_ms);
        }
        is_new
    }

    /// Something is to be called before the jobs of a wave move, or to be called again: before they are added, so that none begins. It is called when
    /// [`Scheduler::waves_to_call`] names the wave, and [`Scheduler::called`] tells what came of it.
    pub fn call_before(&mut self, tenant: Tenant, wave: &str) {
        if let Some(state) = self.waves.of.get_mut(&tenant).and_then(|waves| waves.get_mut(wave)) {
            state.gate = Gate::ToCall;
        }
    }

    /// Waves of a tenant whose jobs wait for nothing but what is called before them.
    pub fn waves_to_call(&self, tenant: Tenant, now_ms: u64) -> Vec<String> {
        let states = self.waves.of.get(&tenant).into_iter().flat_map(BTreeMap::values);
        let waits = |state: &&State| {
            state.left > 0 && matches!(self.waves.block(tenant, state, now_ms), Some(Block::ToCall))
        };
        states.filter(waits).map(|state| state.wave.name.clone()).collect()
    }

    /// What was to be called before a wave was: its jobs may move, or, if it failed, those that did not begin never do.
    pub fn called(&mut self, tenant: Tenant, wave: &str, went_well: bool, now_ms: u64) {
        if let Some(state) = self.waves.of.get_mut(&tenant).and_then(|waves| waves.get_mut(wave)) {
            state.gate = if went_well { Gate::Open } else { Gate::Shut };
            self.release_waves(now_ms);
        }
    }

    /// Waves of a tenant that were over once and held back none of those after them: these wait for them no more.
    pub fn passed(&self, tenant: Tenant) -> impl Iterator<Item = &str> {
        let states = self.waves.of.get(&tenant).into_iter().flat_map(BTreeMap::values);
        states.filter(|state| state.passed).map(|state| state.wave.name.as_str())
    }

    /// Counts a wave among [`Scheduler::passed`], as an earlier schedule found it.
    pub fn let_pass(&mut self, tenant: Tenant, wave: &str) {
        if let Some(state) = self.waves.of.get_mut(&tenant).and_then(|waves| waves.get_mut(wave)) {
            state.passed = true;
        }
    }

    /// By when each wave of a tenant has to be over, for its own window and those of the waves after it, where these close.
    pub fn waves_due(&self, tenant: Tenant, now_ms: u64) -> BTreeMap<String, u64> {
        let orders = self.waves.orders(tenant, now_ms).into_iter();
        orders.filter_map(|(wave, order)| Some((wave, order.due_ms?))).collect()
    }

    /// How far the waves of a tenant are, in the order of their names.
    pub fn waves(&self, tenant: Tenant, now_ms: u64) -> Vec<WaveUsage> {
        let usage = |state: &State| WaveUsage {
            name: state.wave.name.clone(),
            vms: state.all,
            begun: state.begun,
            arrived: state.arrived,
            failed: state.failed,
            waits: (state.left > 0)
                .then(|| self.waves.block(tenant, state, now_ms))
                .flatten()
                .and_then(|block| told(state, block).ok()),
        };
        self.waves.of.get(&tenant).into_iter().flat_map(BTreeMap::values).map(usage).collect()
    }

    /// What keeps a job from moving over for the sake of its wave; nothing if its guest is down already.
    ///
    /// # Errors
    /// If it never may: the window of its wave is over, or a wave before it failed after which none goes on.
    pub fn wave_wait(&self, id: JobId, now_ms: u64) -> Result<Option<Wait>, Ended> {
        let entry = self.jobs.get(&id).filter(|entry| !entry.job.goes_on);
        entry.and_then(|entry| self.waves.wait(entry, now_ms)).transpose()
    }

    /// The wave before a job's own that failed, after which none goes on.
    pub fn stopped_by(&self, id: JobId) -> Option<&str> {
        let entry = self.jobs.get(&id)?;
        let by = self.waves.stopped_by(entry.tenant, self.waves.state(entry)?)?;
        Some(&by.wave.name)
    }

    /// Whether a parked job would move over if its wave let it: [`Scheduler::wait_of`] tells then what that waits for.
    pub fn await_wave(&mut self, id: JobId, yes: bool) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.awaits_wave = yes;
        }
    }

    /// When the window of a wave with jobs left opens next.
    pub fn next_wave_ms(&self, now_ms: u64) -> Option<u64> {
        let left = self.waves.of.values().flat_map(BTreeMap::values).filter(|state| state.left > 0);
        left.filter_map(|state| match state.wave.window.at(now_ms) {
            Opening::At(opens) => Some(opens),
            Opening::Open { .. } | Opening::Never => None,
        })
        .min()
    }

    /// Looks again at those that wait for waves.
    pub(super) fn release_waves(&mut self, now_ms: u64) {
        for (until, id) in self.holds.waves() {
            // One that is given up here may have let others of the list go.
            if self.holds.is_at(until, id) {
                self.take_back(id, Aside::Wave(until));
                self.wait_again(id, now_ms);
            }
        }
    }
}

/// The names of all waves that have to be over before one, however many are between.
fn before(wave: &Wave, waves: &[Wave]) -> Vec<String> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    let mut left: Vec<&str> = wave.after.iter().map(String::as_str).collect();
    while let Some(name) = left.pop() {
        if name != wave.name && found.insert(name) {
            let it = waves.iter().find(|it| it.name == name);
            left.extend(it.into_iter().flat_map(|it| &it.after).map(String::as_str));
        }
    }
    found.into_iter().map(String::from).collect()
}
