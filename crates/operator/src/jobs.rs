//! The Jobs that are known, by name and by Migration.

use std::collections::{BTreeMap, BTreeSet};

use crate::decide::JobSeen;

/// A Job of a worker.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its Migration.
    pub migration: String,
    /// The version that it was seen in.
    pub version: String,
    /// What it tells.
    pub seen: JobSeen,
}

/// All of them. Ended ones are kept for their logs, so that there may be thousands.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    known: BTreeMap<String, Known>,
    of: BTreeMap<String, BTreeSet<String>>,
}

impl Jobs {
    /// Keeps a Job as it is now.
    pub fn put(&mut self, job: Known) {
        let name = job.seen.name.clone();
        self.remove(&name);
        self.of.entry(job.migration.clone()).or_default().insert(name.clone());
        self.known.insert(name, job);
    }

    /// Forgets one; gives its Migration.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        let gone = self.known.remove(name)?;
        if let Some(names) = self.of.get_mut(&gone.migration) {
            names.remove(name);
            if names.is_empty() {
                self.of.remove(&gone.migration);
            }
        }
        Some(gone.migration)
    }

    /// The one of that name.
    pub fn get(&self, name: &str) -> Option<&Known> {
        self.known.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.known.keys()
    }

    /// Those whose pods have not ended.
    pub fn running(&self) -> impl Iterator<Item = &Known> {
        self.known.values().filter(|job| !job.seen.has_ended)
    }

    /// Those of a Migration.
    pub fn of(&self, migration: &str) -> Vec<JobSeen> {
        let names = self.of.get(migration).into_iter().flatten();
        names.filter_map(|name| self.known.get(name)).map(|job| job.seen.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, migration: &str, has_ended: bool) -> Known {
        let seen = JobSeen { name: name.into(), has_ended, ..JobSeen::default() };
        Known { migration: migration.into(), version: "1".into(), seen }
    }

    #[test]
    fn jobs_are_found_by_their_migration_whatever_they_are_called() {
        let mut jobs = Jobs::default();
        [job("m-1", "m", true), job("other", "m", false), job("m-1-1", "m-1", false)]
            .into_iter()
            .for_each(|it| jobs.put(it));
        jobs.put(job("m-1", "m", false));
        let names = |jobs: &Jobs, of: &str| jobs.of(of).into_iter().map(|it| it.name).collect::<Vec<_>>();
        assert_eq!(names(&jobs, "m"), ["m-1", "other"]);
        assert!(!jobs.of("m")[0].has_ended, "as it is now");
        // One that has another label by now.
        jobs.put(job("other", "n", false));
        assert_eq!((names(&jobs, "m"), names(&jobs, "n")), (vec!["m-1".into()], vec!["other".to_string()]));
        assert_eq!(jobs.remove("m-1").as_deref(), Some("m"));
        assert!(jobs.of("m").is_empty() && jobs.get("m-1").is_none() && jobs.remove("m-1").is_none());
        assert_eq!(jobs.names().collect::<Vec<_>>(), ["m-1-1", "other"]);
    }
}
