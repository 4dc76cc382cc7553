//! What stands in the way of a plan that goes to another site, as far as its agent can be asked before.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use drover_agent::machine::Defined;
use drover_agent::opening::{Announced, Pool};
use drover_disk::{DiskErrorKind, in_threads};
use drover_plan::{PlannedDisk, PlannedVm, Problem, Resolution, Space, space_needed};
use drover_types::Bytes;

use crate::exit::Failure;
use crate::machine::site_name;
use crate::plan_file::PlanFile;
use crate::target::There;

/// VMs asked about at a time: answers take a round trip each.
const ASKED_AT_ONCE: usize = 16;

/// What was asked of a site, and what stands in the way.
#[derive(Default)]
pub struct Found {
    pub problems: Vec<Problem>,
    pub info: Option<Announced>,
}

/// Asks a site's agent whether it can take what the plan brings; touches nothing.
pub fn ask(file: &PlanFile, resolution: &Resolution, there: Result<&There, Failure>) -> Found {
    let asked = there.and_then(|there| there.dial().map(|()| there));
    let there = match asked {
        Ok(there) => there,
        Err(failure) => return Found::just(problem("target.via", failure)),
    };
    let info = match there.info() {
        Ok(info) => info,
        Err(refusal) => {
            let text = format!("agent of {}: {refusal}", there.name());
            return Found::just(Problem::error("target.via", text).advise("look at the agent's log"));
        }
    };
    let mut problems = Vec::new();
    if !info.takes.iter().any(|it| it == "machine") {
        let text = format!(
            "the agent of {} takes disks but knows of no machines (drover {})",
            there.name(),
            info.version
        );
        problems.push(Problem::error("target.via", text).advise("update drover there"));
        return Found { problems, info: Some(info) };
    }
    problems.extend(start_problem(resolution, there, &info));
    problems.extend(pool_problems(resolution, there, &info));
    if problems.is_empty() {
        let taken = place_problems(resolution, there, &mut problems);
        problems.extend(space_problems(file, resolution, &info, &taken));
    }
    Found { problems, info: Some(info) }
}

impl Found {
    fn just(problem: Problem) -> Found {
        Found { problems: vec![problem], info: None }
    }

    /// A line about the site, for the summary.
    pub fn summary(&self, site: &str) -> String {
        let Some(info) = &self.info else { return String::new() };
        let pool = |pool: &Pool| {
            let free =
                pool.free_bytes.map_or("an unknown amount".to_string(), |bytes| Bytes(bytes).to_string());
            format!("{} ({free} free)", pool.name)
        };
        let pools: Vec<String> = info.pools.iter().map(pool).collect();
        let start =
            if info.takes.iter().any(|it| it == "start") { "starts machines" } else { "starts no machines" };
        format!("to site {site}: drover {}, {start}, pools {}\n", info.version, pools.join(", "))
    }
}

fn problem(path: &str, failure: Failure) -> Problem {
    let problem = Problem::error(path, failure.message);
    failure.advice.into_iter().fold(problem, Problem::advise)
}

fn start_problem(resolution: &Resolution, there: &There, info: &Announced) -> Option<Problem> {
    let started: Vec<&str> =
        resolution.vms.iter().filter(|vm| vm.start).map(|vm| vm.target_name.as_str()).collect();
    if started.is_empty() || info.takes.iter().any(|it| it == "start") {
        return None;
    }
    let text =
        format!("the agent of {} starts no machines, and {} are to be started", there.name(), started.len());
    Some(Problem::error("start", text).advise(
        "write `start: false` (drover then tells the command that starts each), or run the agent with --allow-start",
    ))
}

fn pool_of(folder: &Path) -> String {
    site_name(folder).split('/').next().unwrap_or_default().to_string()
}

fn pool_problems(resolution: &Resolution, there: &There, info: &Announced) -> Vec<Problem> {
    let folders = resolution.vms.iter().flat_map(|vm| {
        std::iter::once(vm.folder.as_path()).chain(vm.disks.iter().map(|disk| disk.path.as_path()))
    });
    let mut pools: Vec<String> = folders.map(pool_of).collect();
    pools.sort();
    pools.dedup();
    let known: Vec<&str> = info.pools.iter().map(|pool| pool.name.as_str()).collect();
    let missing = pools.into_iter().filter(|pool| !known.contains(&pool.as_str()));
    let advice = match known.as_slice() {
        [] => "run the agent with --pool NAME=FOLDER".to_string(),
        known => format!("it has: {}", known.join(", ")),
    };
    missing
        .map(|pool| {
            let text = format!("the agent of {} has no pool '{pool}'", there.name());
            Problem::error("target.folder", text).advise(advice.clone())
        })
        .collect()
}

/// Names that are taken. Gives what images of this plan take already, by pool.
fn place_problems(
    resolution: &Resolution,
    there: &There,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, u64> {
    let found = Mutex::new((Vec::new(), BTreeMap::<String, u64>::new()));
    let next = AtomicUsize::new(0);
    in_threads(ASKED_AT_ONCE.min(resolution.vms.len()), |_| {
        while let Some(vm) = resolution.vms.get(next.fetch_add(1, SeqCst)) {
            let (told, taken) = of_vm(vm, there);
            let mut found = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            found.0.extend(told);
            for (pool, bytes) in taken {
                *found.1.entry(pool).or_default() += bytes;
            }
        }
    });
    let (mut told, taken) = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    told.sort_by(|a, b| a.message.cmp(&b.message));
    problems.extend(told);
    taken
}

fn of_vm(vm: &PlannedVm, there: &There) -> (Vec<Problem>, Vec<(String, u64)>) {
    let (mut problems, mut taken) = (Vec::new(), Vec::new());
    let failed = |why: String| Problem::error("vms", format!("{}: {why}", vm.target_name));
    match there.glance(vm) {
        Ok(told) if told.defined == Defined::Others => {
            let folder = site_name(&vm.folder);
            let why = format!("{}/{folder} holds a machine that this plan did not make", there.name());
            problems.push(failed(why).advise("give it another `target_name` or folder, or remove that one"));
        }
        Ok(_) => {}
        Err(refusal) => problems.push(failed(refusal.to_string())),
    }
    for disk in &vm.disks {
        match of_disk(vm, disk, there) {
            Ok(bytes) => taken.push((pool_of(&disk.path), bytes)),
            Err(problem) => problems.push(*problem),
        }
    }
    (problems, taken)
}

/// What an image of this plan takes already.
fn of_disk(vm: &PlannedVm, disk: &PlannedDisk, there: &There) -> Result<u64, Box<Problem>> {
    let failed = |why: String| Problem::error("vms", format!("{}: {why}", vm.target_name));
    match there.stat(disk) {
        // Not even its folder is there.
        Err(refusal) if refusal.kind == DiskErrorKind::Gone => Ok(0),
        Err(refusal) => Err(Box::new(failed(refusal.to_string()))),
        Ok(stat) if stat.holds_nothing || stat.size.is_none() => Ok(0),
        Ok(stat) if there.is_ours(disk, vm, &stat) => Ok(stat.allocated.unwrap_or_default()),
        Ok(stat) => {
            let place = vm.place_of(disk);
            let bytes = Bytes(stat.size.unwrap_or_default());
            let why = format!("{} already holds {bytes} that this plan did not write", place.display());
            Err(Box::new(
                failed(why).advise("give it another `target_name` or folder, or remove it at the site"),
            ))
        }
    }
}

/// Whether pools have room for all disks. Pools that share a file system are judged one by one.
fn space_problems(
    file: &PlanFile,
    resolution: &Resolution,
    info: &Announced,
    taken: &BTreeMap<String, u64>,
) -> Vec<Problem> {
    let mut pools = BTreeMap::<String, Space>::new();
    for (folder, space) in space_needed(resolution) {
        let pool = pools.entry(pool_of(&folder)).or_default();
        pool.capacity_bytes = pool.capacity_bytes.saturating_add(space.capacity_bytes);
        pool.thick_bytes = pool.thick_bytes.saturating_add(space.thick_bytes);
    }
    let judge = |(name, space): (String, Space)| {
        let there = taken.get(&name).copied().unwrap_or_default();
        let free = info.pools.iter().find(|pool| pool.name == name)?.free_bytes;
        space_problem(&name, free, space, there, file.plan.target.overcommit)
    };
    pools.into_iter().filter_map(judge).collect()
}

fn space_problem(
    pool: &str,
    free: Option<u64>,
    space: Space,
    there: u64,
    overcommit: bool,
) -> Option<Problem> {
    let Some(free) = free else {
        let text = format!("free space of pool {pool} is not known");
        return Some(
            Problem::warning("target.folder", text).advise("look at the site whether there is room"),
        );
    };
    let (needed, thick) =
        (space.capacity_bytes.saturating_sub(there), space.thick_bytes.saturating_sub(there));
    let text =
        |bytes| format!("pool {pool} has {} free, and the disks may take {}", Bytes(free), Bytes(bytes));
    if thick > free {
        return Some(Problem::error("target.folder", text(thick)).advise("make room or choose another pool"));
    }
    (needed > free && !overcommit).then(|| {
        Problem::error("target.folder", text(needed)).advise(
            "make room; or, as thin disks take only what they hold, allow it with `target.overcommit: true`",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_judged_by_what_is_still_to_come() {
        let space = |capacity_bytes, thick_bytes| Space { capacity_bytes, thick_bytes };
        let judge = |free, space, there, overcommit| {
            space_problem("vms", free, space, there, overcommit).map(|problem| problem.is_error())
        };
        assert_eq!(judge(Some(10), space(10, 10), 0, false), None);
        assert_eq!(judge(Some(10), space(11, 0), 0, false), Some(true));
        assert_eq!(judge(Some(10), space(11, 0), 0, true), None, "thin disks may fit");
        assert_eq!(judge(Some(10), space(11, 11), 0, true), Some(true), "thick ones do not");
        assert_eq!(judge(Some(10), space(15, 15), 5, false), None, "what was copied before is there");
        assert_eq!(judge(None, space(1, 1), 0, false), Some(false), "a warning");
    }
}
