//! Places at targets that fail: those that are full, cannot be written to, or do not answer.

use super::ends::RETRIES_MAX;
use super::entry::Entry;
use super::{Ended, Scheduler};
use crate::breaker::{Breaker, Permit};
use crate::job::{Job, JobId};
use crate::wait::Wait;

/// A pool, a folder or a storage class that disks go to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    /// What people call it.
    pub(super) label: String,
    pub(super) breaker: Breaker,
    /// What its last failure was.
    last: Option<TargetFailure>,
}

/// A failure of a place at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetFailure {
    /// Why, in words.
    pub why: String,
    /// Whether it has no room. One such failure is enough to leave it alone: what others begin there fails for the same reason.
    pub is_full: bool,
}

/// What became of a job whose target failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Works,
    LeftAlone,
    GivenUp,
}

impl Scheduler {
    /// The places of a job's disks, each once.
    pub(super) fn targets_of(&mut self, job: &Job) -> Vec<usize> {
        let mut targets: Vec<usize> =
            job.disks.iter().filter_map(|disk| disk.pool.as_deref()).map(|pool| self.target(pool)).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    fn target(&mut self, name: &str) -> usize {
        if let Some(target) = self.target_of.get(name) {
            return *target;
        }
        let breaker = self.breaker(name);
        let (name, label) = (name.to_string(), name.to_string());
        self.target_of.insert(name.clone(), self.targets.len());
        self.targets.push(Target { name, label, breaker, last: None });
        self.targets.len() - 1
    }

    /// What people call a place at the target, if not by its name.
    pub fn set_target_label(&mut self, target: &str, label: &str) {
        let target = self.target(target);
        self.targets[target].label = label.to_string();
    }

    /// Lets a place be tried again that was given up: somebody orders it anew, and may have made room.
    pub fn try_target_again(&mut self, target: &str) {
        if let Some(target) = self.target_of.get(target) {
            self.targets[*target].breaker.try_again();
        }
    }

    /// A running job failed because of places that its disks go to: of these, or of all its places if none is named. Gives whether it
    /// is tried again; it is over if the places have not failed others in a row, so it may be the VM, or it was tried often enough,
    /// or one of them is given up or full: then its guest went down in vain, and is not to do so again. It keeps what it holds until all is undone: then comes [`Scheduler::retry`], or its end.
    ///
    /// # Panics
    /// If it does not run.
    pub fn target_failed(&mut self, id: JobId, at: &[&str], failure: &TargetFailure, now_ms: u64) -> bool {
        assert!(self.is_running(id), "job {} failed because of its target but does not run", id.0);
        let standings = self.targets_failed(id, at, failure, now_ms);
        let retries = self.jobs[&id].retries;
        !failure.is_full
            && retries < RETRIES_MAX
            && standings.contains(&Standing::LeftAlone)
            && !standings.contains(&Standing::GivenUp)
    }

    /// The same of a job that found these places full and does not run: it holds nothing until it knows whether there is room for it, or
    /// is copied already. Nothing if it is over: it was given up with one of them.
    ///
    /// # Panics
    /// If it runs, or the places are not full.
    pub fn target_full_late(&mut self, id: JobId, at: &[&str], failure: &TargetFailure, now_ms: u64) {
        assert!(
            failure.is_full && !self.is_running(id),
            "job {} runs, or did not find its target full",
            id.0
        );
        if !self.is_over(id) {
            self.targets_failed(id, at, failure, now_ms);
        }
    }

    fn targets_failed(
        &mut self,
        id: JobId,
        at: &[&str],
        failure: &TargetFailure,
        now_ms: u64,
    ) -> Vec<Standing> {
        let named: Vec<usize> = at.iter().filter_map(|name| self.target_of.get(*name)).copied().collect();
        let entry = self.jobs.get_mut(&id).expect("a job that failed is known");
        let failed: Vec<usize> = if named.is_empty() { entry.targets.clone() } else { named };
        entry.failed = failed.first().map(|at| self.targets[*at].label.clone()).unwrap_or_default();
        let standings =
            failed.iter().map(|target| self.one_target_failed(id, *target, failure, now_ms)).collect();
        self.check_invariants();
        standings
    }

    fn one_target_failed(
        &mut self,
        id: JobId,
        target: usize,
        failure: &TargetFailure,
        now_ms: u64,
    ) -> Standing {
        let runs = self.is_running(id);
        let it = &mut self.targets[target];
        it.last = Some(failure.clone());
        match failure.is_full {
            true if runs => it.breaker.failed_for_certain(id, now_ms),
            true => it.breaker.failed_late(id, now_ms),
            false => it.breaker.failed(id, now_ms),
        }
        if it.breaker.is_given_up() {
            self.give_up_all(Ended::TargetFailed, now_ms, |entry| entry.targets.contains(&target));
            return Standing::GivenUp;
        }
        match self.targets[target].breaker.is_open() {
            true => Standing::LeftAlone,
            false => Standing::Works,
        }
    }

    /// Whether a place of a job is left alone, and it is not the job with which that is tried.
    pub fn is_target_held(&self, id: JobId) -> bool {
        let Some(entry) = self.jobs.get(&id) else { return false };
        entry.targets.iter().any(|target| {
            let breaker = &self.targets[*target].breaker;
            breaker.is_open() && !breaker.is_tried_by(id)
        })
    }

    /// Whether a place of a job had no room when it failed last, and no VM was served there since.
    pub fn was_target_full(&self, id: JobId) -> bool {
        let Some(entry) = self.jobs.get(&id) else { return false };
        let is_full = |target: &usize| {
            let it = &self.targets[*target];
            it.breaker.is_open() && it.last.as_ref().is_some_and(|last| last.is_full)
        };
        entry.targets.iter().any(is_full)
    }

    /// The place of a job that was given up, by what people call it, and what its last failure was.
    pub fn failed_target(&self, id: JobId) -> Option<(&str, Option<&TargetFailure>)> {
        let target = self.target_given_up(self.jobs.get(&id)?)?;
        let it = &self.targets[target];
        Some((it.label.as_str(), it.last.as_ref()))
    }

    pub(super) fn target_given_up(&self, entry: &Entry) -> Option<usize> {
        entry.targets.iter().copied().find(|target| self.targets[*target].breaker.is_given_up())
    }

    /// A place of a job that is left alone now, and until when. A guest that is down waits for no try of another: if it fails there, it gets
    /// up at its source.
    pub(super) fn target_left_alone_of(&self, entry: &Entry, now_ms: u64) -> Option<(usize, u64)> {
        if entry.job.goes_on {
            return None;
        }
        entry.targets.iter().find_map(|target| match self.targets[*target].breaker.permit(now_ms) {
            Permit::Not(until_ms) => Some((*target, until_ms)),
            Permit::Yes | Permit::One | Permit::Never => None,
        })
    }

    /// Places at targets that failed and are left alone, or are being tried, by their names.
    pub fn targets_left_alone(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().filter(|it| it.breaker.is_open()).map(|it| it.name.as_str())
    }

    /// What is told of a job that waits for a place.
    pub(super) fn target_wait(&self, target: usize, until_ms: u64) -> Wait {
        let it = &self.targets[target];
        let why = it.last.as_ref().map(|last| last.why.clone()).unwrap_or_default();
        Wait::Target { target: it.label.clone(), why, until_ms }
    }
}
