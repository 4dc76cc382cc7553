//! Groups, and who may move over.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{Aside, Entry, State};
use super::hold::Hold;
use super::{Ended, Scheduler};
use crate::job::{JobId, Tenant};
use crate::wait::Wait;

/// The groups of all tenants, and the cutovers.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    of: BTreeMap<(Tenant, String), BTreeMap<u32, Stage>>,
    /// Jobs that ask to move over, in the order in which they did.
    asked: Vec<JobId>,
    /// Jobs that move over.
    moving: BTreeSet<JobId>,
}

/// Jobs of a group that move over together.
#[derive(Clone, Debug, Default)]
struct Stage {
    /// Those that have not ended.
    left: BTreeSet<JobId>,
    /// Of these, the warm ones that do not ask to move over yet.
    not_ready: BTreeSet<JobId>,
    has_failed: bool,
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
        let group = entry.job.group.as_ref()?;
        Some(self.of.entry((entry.tenant, group.name.clone())).or_default())
    }

    /// The stages of a group before this one.
    fn before<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = (u32, &'a Stage)> {
        let group = entry.job.group.as_ref();
        let stages = group.and_then(|group| self.of.get(&(entry.tenant, group.name.clone())));
        stages.into_iter().flat_map(|it| it.range(..stage_of(entry))).map(|(number, stage)| (*number, stage))
    }

    /// What keeps a job from starting. A warm one is copied whatever its group does.
    pub(super) fn hold(&self, entry: &Entry) -> Option<Hold> {
        if self.before(entry).any(|(_, stage)| stage.has_failed) {
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
        let group = entry.job.group.as_ref();
        let stages = group.and_then(|group| self.of.get(&(entry.tenant, group.name.clone())));
        stages.and_then(|it| it.get(&stage_of(entry))).map_or(0, |stage| stage.not_ready.len())
    }

    /// A job is over.
    pub(super) fn end(&mut self, id: JobId, entry: &Entry, has_arrived: bool) {
        self.asked.retain(|other| *other != id);
        self.moving.remove(&id);
        let number = stage_of(entry);
        let Some(stage) = self.stages_of(entry).and_then(|stages| stages.get_mut(&number)) else { return };
        stage.left.remove(&id);
        stage.not_ready.remove(&id);
        stage.has_failed |= !has_arrived;
    }

    /// A tenant is gone.
    pub(super) fn forget(&mut self, tenant: Tenant) {
        self.of.retain(|(of, _), _| *of != tenant);
    }
}

fn stage_of(entry: &Entry) -> u32 {
    entry.job.group.as_ref().map_or(0, |group| group.stage)
}

impl Scheduler {
    /// Asks whether a job may move over now: its guest is shut down for the last pass. Asked again until it may.
    ///
    /// # Errors
    /// What it waits for. A job that never may is told so by [`Scheduler::never_moves_over`].
    pub fn ask_cutover(&mut self, id: JobId, now_ms: u64) -> Result<(), Wait> {
        if self.groups.moving.contains(&id) {
            return Ok(());
        }
        if !self.groups.asked.contains(&id) {
            self.groups.asked.push(id);
            let entry = &self.jobs[&id];
            let number = stage_of(entry);
            if let Some(stage) = self.groups.stages_of(entry).and_then(|stages| stages.get_mut(&number)) {
                stage.not_ready.remove(&id);
            }
        }
        if let Some(wait) = self.order_wait(id, now_ms) {
            return Err(wait);
        }
        let before = self.groups.asked.iter().take_while(|other| **other != id);
        let before = before.filter(|other| self.order_wait(**other, now_ms).is_none()).count();
        let (held, of) = (self.groups.moving.len() as u32, self.budgets.cutovers);
        if before as u32 >= of.saturating_sub(held) {
            return Err(Wait::Cutovers { held, of });
        }
        self.groups.asked.retain(|other| *other != id);
        self.groups.moving.insert(id);
        Ok(())
    }

    /// A job moves over no more, or asks no more to: it goes on with its passes. Its end says so, too.
    pub fn cutover_over(&mut self, id: JobId) {
        self.groups.asked.retain(|other| *other != id);
        self.groups.moving.remove(&id);
    }

    /// Why a job is never to move over: what was to be before it failed, or the window of its wave is over.
    pub fn never_moves_over(&self, id: JobId, now_ms: u64) -> Option<Ended> {
        match self.groups.hold(&self.jobs[&id]) {
            Some(Hold::Ever(ended)) => Some(ended),
            Some(Hold::For(_)) | None => self.wave_wait(id, now_ms).err(),
        }
    }

    /// What of its wave or its group keeps a job from moving over; one that never may waits for nothing else, either.
    fn order_wait(&self, id: JobId, now_ms: u64) -> Option<Wait> {
        match self.wave_wait(id, now_ms) {
            Ok(wait) => wait.or_else(|| self.group_wait(id)),
            Err(_) => Some(Wait::Window { opens_ms: u64::MAX }),
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
        if !self.groups.asked.contains(&id) || matches!(self.jobs[&id].state, State::Over(_)) {
            return None;
        }
        let full = Wait::Cutovers { held: self.groups.moving.len() as u32, of: self.budgets.cutovers };
        Some(self.order_wait(id, now_ms).unwrap_or(full))
    }
}
