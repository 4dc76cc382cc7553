//! Groups, and who may move over.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{Aside, Entry, State};
use super::hold::Hold;
use super::{Ended, Scheduler};
use crate::job::{Group, JobId, Tenant};
use crate::wait::Wait;

/// The groups of all tenants, and the cutovers.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    of: BTreeMap<GroupKey, BTreeMap<u32, Stage>>,
    asked: Asked,
    /// Jobs that move over.
    moving: BTreeSet<JobId>,
    /// Whether somebody else admits them, and has not yet.
    are_held: bool,
}

/// A group of a tenant, within a wave.
type GroupKey = (Tenant, Option<String>, String);

/// Jobs that ask to move over.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// Their numbers, in the order in which they asked first, and whether they do now: one that makes a pass meanwhile keeps its
    /// number.
    tickets: BTreeMap<JobId, (u64, bool)>,
    next: u64,
    /// Those that ask now, by what they wait for beside the budget: the same wave, and the same stage of the same group.
    waiting: BTreeMap<Class, BTreeMap<u64, JobId>>,
}

/// Jobs of which all or none may move over, apart from the budget.
type Class = (Tenant, Option<String>, Option<Group>);

impl Asked {
    /// Gives the number of one that asks, and whether it never did before.
    fn ask(&mut self, id: JobId, entry: &Entry) -> (u64, bool) {
        let is_new = !self.tickets.contains_key(&id);
        let (ticket, asks) = self.tickets.entry(id).or_insert((self.next, false));
        self.next += u64::from(is_new);
        if !std::mem::replace(asks, true) {
            self.waiting.entry(class_of(entry)).or_default().insert(*ticket, id);
        }
        (*ticket, is_new)
    }

    fn asks(&self, id: JobId) -> bool {
        self.tickets.get(&id).is_some_and(|(_, asks)| *asks)
    }

    /// It does not ask for now.
    fn pause(&mut self, id: JobId, entry: &Entry) {
        let Some((ticket, asks)) = self.tickets.get_mut(&id) else { return };
        if std::mem::take(asks) {
            let class = class_of(entry);
            let Some(waiting) = self.waiting.get_mut(&class) else { return };
            waiting.remove(ticket);
            if waiting.is_empty() {
                self.waiting.remove(&class);
            }
        }
    }

    fn forget(&mut self, id: JobId, entry: &Entry) {
        self.pause(id, entry);
        self.tickets.remove(&id);
    }
}

fn class_of(entry: &Entry) -> Class {
    (entry.tenant, entry.job.wave.clone(), entry.job.group.clone())
}

fn group_of(entry: &Entry) -> Option<GroupKey> {
    let group = entry.job.group.as_ref()?;
    Some((entry.tenant, entry.job.wave.clone(), group.name.clone()))
}

/// Jobs of a group that move over together.
#[derive(Clone, Debug, Default)]
struct Stage {
    /// Those that have not ended.
    left: BTreeSet<JobId>,
    /// Of these, the warm ones that do not ask to move over yet.
    not_ready: BTreeSet<JobId>,
    /// Those that ended without having arrived.
    failed: BTreeSet<JobId>,
}

impl Groups {
    pub(super) fn add(&mut self, id: JobId, entry: &Entry) {
        let Some(stages) = self.stages_of(entry) else { return };
        let stage = stages.entry(stage_of(entry)).or_default();
        stage.left.insert(id);
        if entry.job.is_warm {
            stage.not_ready.insert(id);
        }
    }

    fn stages_of(&mut self, entry: &Entry) -> Option<&mut BTreeMap<u32, Stage>> {
        Some(self.of.entry(group_of(entry)?).or_default())
    }

    /// The stages of a group before this one.
    fn before<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = (u32, &'a Stage)> {
        let stages = group_of(entry).and_then(|group| self.of.get(&group));
        stages.into_iter().flat_map(|it| it.range(..stage_of(entry))).map(|(number, stage)| (*number, stage))
    }

    /// What keeps a job from starting. A warm one is copied whatever its group does.
    pub(super) fn hold(&self, entry: &Entry) -> Option<Hold> {
        if self.before(entry).any(|(_, stage)| !stage.failed.is_empty()) {
            return Some(Hold::Ever(Ended::GroupFailed));
        }
        let is_left = !entry.job.is_warm && self.before(entry).any(|(_, stage)| !stage.left.is_empty());
        is_left.then_some(Hold::For(Aside::Stage))
    }

    /// The first earlier stage of its group that is left.
    pub(super) fn stage_left(&self, entry: &Entry) -> Option<u32> {
        self.before(entry).find(|(_, stage)| !stage.left.is_empty()).map(|(number, _)| number)
    }

    /// Jobs of its stage that are not ready to move over.
    fn not_ready(&self, entry: &Entry) -> usize {
        let stages = group_of(entry).and_then(|group| self.of.get(&group));
        stages.and_then(|it| it.get(&stage_of(entry))).map_or(0, |stage| stage.not_ready.len())
    }

    /// A job is over.
    pub(super) fn end(&mut self, id: JobId, entry: &Entry, has_arrived: bool) {
        self.asked.forget(id, entry);
        self.moving.remove(&id);
        let number = stage_of(entry);
        let Some(stage) = self.stages_of(entry).and_then(|stages| stages.get_mut(&number)) else { return };
        stage.left.remove(&id);
        stage.not_ready.remove(&id);
        if !has_arrived {
            stage.failed.insert(id);
        }
    }

    /// A job that failed is added again: it counts as if it had not been there.
    pub(super) fn take_back(&mut self, id: JobId, entry: &Entry) {
        let number = stage_of(entry);
        if let Some(stage) = self.stages_of(entry).and_then(|stages| stages.get_mut(&number)) {
            stage.failed.remove(&id);
        }
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: Tenant) {
        self.of.retain(|(of, _, _), _| *of != tenant);
    }
}

fn stage_of(entry: &Entry) -> u32 {
    entry.job.group.as_ref().map_or(0, |group| group.stage)
}

impl Scheduler {
    /// Lets a job move over, if it may now: its guest is shut down for the last pass. Asked again until it may.
    ///
    /// # Errors
    /// What it waits for. A job that never may is told so by [`Scheduler::never_moves_over`].
    pub fn ask_cutover(&mut self, id: JobId, now_ms: u64) -> Result<(), Wait> {
        self.may_move_over(id, now_ms)?;
        // It keeps its number, should it give its place back.
        self.groups.asked.pause(id, &self.jobs[&id]);
        self.groups.moving.insert(id);
        Ok(())
    }

    /// Asks whether a job may move over now, and takes nothing yet: it stands among those that ask from now on. One whose guest
    /// is down already may at once, whatever the budget is.
    ///
    /// # Errors
    /// What it waits for.
    pub fn may_move_over(&mut self, id: JobId, now_ms: u64) -> Result<(), Wait> {
        if self.groups.moving.contains(&id) {
            return Ok(());
        }
        let entry = self.jobs.get(&id).expect("a job that asks is known");
        let (ticket, is_new) = self.groups.asked.ask(id, entry);
        if is_new {
            let number = stage_of(entry);
            if let Some(stage) = self.groups.stages_of(entry).and_then(|stages| stages.get_mut(&number)) {
                stage.not_ready.remove(&id);
            }
        }
        if entry.job.goes_on {
            return Ok(());
        }
        if let Some(wait) = self.order_wait(id, now_ms) {
            return Err(wait);
        }
        match self.no_room(entry.tenant, ticket, now_ms) {
            Some(wait) => Err(wait),
            None => Ok(()),
        }
    }

    /// What keeps a job back that its wave and its group let move over: those that move over, and those that may and asked before.
    fn no_room(&self, own: Tenant, ticket: u64, now_ms: u64) -> Option<Wait> {
        let mut room = (self.cutovers_max() as usize).saturating_sub(self.groups.moving.len());
        let mut rooms = BTreeMap::from([(own, self.own_room(own))]);
        for ((tenant, ..), waiting) in &self.groups.asked.waiting {
            let Some((first, id)) = waiting.first_key_value() else { continue };
            if room == 0 || *first >= ticket || self.order_wait(*id, now_ms).is_some() {
                continue;
            }
            // Of each tenant no more go first than it has room for.
            let of_tenant = rooms.entry(*tenant).or_insert_with(|| self.own_room(*tenant));
            let ahead = waiting.range(..ticket).take(room.min(*of_tenant)).count();
            (*of_tenant, room) = (*of_tenant - ahead, room - ahead);
        }
        match room {
            0 => Some(self.cutovers_full()),
            _ => (rooms[&own] == 0).then(|| self.own_cutovers_full(own)),
        }
    }

    /// How many more of a tenant may move over, as far as its own limit tells.
    fn own_room(&self, tenant: Tenant) -> usize {
        self.cutovers_of(tenant).saturating_sub(self.moving_of(tenant)) as usize
    }

    fn moving_of(&self, tenant: Tenant) -> u32 {
        self.groups.moving.iter().filter(|id| self.jobs[id].tenant == tenant).count() as u32
    }

    fn cutovers_full(&self) -> Wait {
        Wait::Cutovers { held: self.groups.moving.len() as u32, of: self.cutovers_max() }
    }

    fn own_cutovers_full(&self, tenant: Tenant) -> Wait {
        Wait::OwnCutovers { held: self.moving_of(tenant), of: self.cutovers_of(tenant) }
    }

    /// Lets no job move over whose guest is not down, until that is taken back: somebody else admits cutovers.
    pub fn hold_cutovers(&mut self, held: bool) {
        self.groups.are_held = held;
    }

    /// The same, unless a job asks to move over now, or moves over. Whether they are held by that.
    pub fn hold_unless_asked(&mut self) -> bool {
        let is_unasked = !self.asks_cutover();
        self.groups.are_held |= is_unasked;
        is_unasked
    }

    /// Whether somebody else is to let jobs move over, and has not.
    pub fn are_cutovers_held(&self) -> bool {
        self.groups.are_held
    }

    /// Whether a job asks to move over now, or moves over.
    pub fn asks_cutover(&self) -> bool {
        !self.groups.asked.waiting.is_empty() || !self.groups.moving.is_empty()
    }

    /// Jobs that may move over at once.
    fn cutovers_max(&self) -> u32 {
        if self.groups.are_held { 0 } else { self.budgets.cutovers }
    }

    /// A job that asks to move over makes another pass first, or waits for its slots: it keeps its place among those that ask, and
    /// nobody back.
    pub fn pause_cutover(&mut self, id: JobId) {
        if let Some(entry) = self.jobs.get(&id) {
            self.groups.asked.pause(id, entry);
        }
    }

    /// A job that was let move over makes another pass first: another may in its place, and it keeps its own among those that ask.
    pub fn give_back_cutover(&mut self, id: JobId) {
        if self.groups.moving.remove(&id) {
            self.holds.look_at(id);
        }
    }

    /// A job moves over no more, or asks no more to: it goes on with its passes. Its end says so, too.
    pub fn cutover_over(&mut self, id: JobId) {
        if let Some(entry) = self.jobs.get(&id) {
            self.groups.asked.forget(id, entry);
        }
        if self.groups.moving.remove(&id) {
            self.holds.look_at(id);
        }
    }

    /// Whether the guest of a job that has begun is down, or may be.
    pub(super) fn is_down(&self, id: JobId) -> bool {
        !self.jobs[&id].job.is_warm || self.groups.moving.contains(&id)
    }

    /// Whether its wave or its group keeps a job from moving over, as it does not one whose guest is down.
    pub fn is_kept_by_order(&self, id: JobId, now_ms: u64) -> bool {
        let entry = self.jobs.get(&id).filter(|entry| !entry.job.goes_on);
        entry.is_some() && self.order_wait(id, now_ms).is_some()
    }

    /// Why a job is never to move over: what was to be before it failed, or the window of its wave is over.
    pub fn never_moves_over(&self, id: JobId, now_ms: u64) -> Option<Ended> {
        let entry = self.jobs.get(&id).filter(|entry| !entry.job.goes_on)?;
        match self.groups.hold(entry) {
            Some(Hold::Ever(ended)) => Some(ended),
            Some(Hold::For(_)) | None => self.wave_wait(id, now_ms).err(),
        }
    }

    /// What of its wave or its group keeps a job from moving over; one that never may waits for nothing else, either.
    fn order_wait(&self, id: JobId, now_ms: u64) -> Option<Wait> {
        match self.wave_wait(id, now_ms) {
            Ok(wait) => wait.or_else(|| self.group_wait(id)),
            Err(_) => Some(Wait::Window { opens_ms: u64::MAX, opens: String::new() }),
        }
    }

    fn group_wait(&self, id: JobId) -> Option<Wait> {
        let entry = &self.jobs[&id];
        let group = entry.job.group.as_ref()?.name.clone();
        if let Some(stage) = self.groups.stage_left(entry) {
            return Some(Wait::Stage { group, stage });
        }
        let left = self.groups.not_ready(entry);
        (left > 0).then_some(Wait::Together { group, left })
    }

    /// What a job that asked to move over waits for.
    pub(super) fn cutover_wait(&self, id: JobId, now_ms: u64) -> Option<Wait> {
        if !self.groups.asked.asks(id) || matches!(self.jobs[&id].state, State::Over(_)) {
            return None;
        }
        let (tenant, most) = (self.jobs[&id].tenant, self.cutovers_max());
        let is_own = self.groups.moving.len() < most as usize && self.own_room(tenant) == 0;
        let full = if is_own { self.own_cutovers_full(tenant) } else { self.cutovers_full() };
        Some(self.order_wait(id, now_ms).unwrap_or(full))
    }
}
