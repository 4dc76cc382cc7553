//! What stands in the way of a plan that goes to another site, as far as its agent can be asked before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use drover_agent::host::HOST;
use drover_agent::machine::{CHECK, Defined, Told};
use drover_agent::opening::{Announced, Pool};
use drover_agent::sites::SiteError;
use drover_disk::{DiskErrorKind, in_threads};
use drover_plan::{
    Accelerator, At, NAMES_SHOWN_MAX, NetworkTarget, Plan, PlannedDisk, PlannedVm, Problem, Resolution,
    Space, Target, space_needed,
};
use drover_types::inventory::Firmware;
use drover_types::{Bytes, some_of};

use crate::lacks::bridge_lack;
use crate::machine::{pool_of, site_name};
use crate::there::There;

/// VMs asked about at a time: answers take a round trip each.
const ASKED_AT_ONCE: usize = 16;

/// What was asked of a site, and what stands in the way.
#[derive(Default)]
pub struct Found {
    /// What stands in the way.
    pub problems: Vec<Problem>,
    /// What its agent told; nothing if it did not answer.
    pub info: Option<Announced>,
}

/// Asks a site's agent whether it can take what the plan brings; touches nothing.
pub fn ask(plan: &Plan, resolution: &Resolution, there: Result<Arc<There>, SiteError>) -> Found {
    let asked = there.and_then(|there| there.dial().map(|()| there));
    let there = match &asked {
        Ok(there) => there.as_ref(),
        Err(error) => return Found::just(problem("target.via", error)),
    };
    let info = match there.info() {
        Ok(info) => info,
        Err(refusal) => {
            let text = format!("agent of {}: {refusal}", there.name());
            return Found::just(Problem::error("target.via", text).advise("look at the agent's log"));
        }
    };
    let mut problems = Vec::new();
    if !info.has("machine") {
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
    problems.extend(conversion_problems(resolution, there, &info));
    if problems.is_empty() {
        let checks = info.has(CHECK);
        if !checks {
            problems.extend(of_old_agent(&resolution.vms, &plan.target, there, &info));
        }
        let taken = place_problems(resolution, (there, checks), &mut problems);
        problems.extend(space_problems(plan, resolution, &info, &taken));
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
        let start = if info.has("start") { "starts machines" } else { "starts no machines" };
        format!("to site {site}: drover {}, {start}, pools {}\n", info.version, pools.join(", "))
    }
}

fn problem(path: &str, error: &SiteError) -> Problem {
    Problem::error(path, error.to_string()).advise(error.advice())
}

fn start_problem(resolution: &Resolution, there: &There, info: &Announced) -> Option<Problem> {
    let started: Vec<&str> =
        resolution.vms.iter().filter(|vm| vm.start).map(|vm| vm.target_name.as_str()).collect();
    if started.is_empty() || info.has("start") {
        return None;
    }
    let text =
        format!("the agent of {} starts no machines, and {} are to be started", there.name(), started.len());
    Some(Problem::error("start", text).advise(
        "write `start: false` (drover then tells the command that starts each), or run the agent with --allow-start",
    ))
}

fn conversion_problems(resolution: &Resolution, there: &There, info: &Announced) -> Vec<Problem> {
    let problem = |vm: &PlannedVm| {
        let error = there.check_conversion(vm, info).err()?;
        let problem = Problem::error("convert", error.what).at(At { line: vm.line, column: 1 });
        Some(error.advice.into_iter().fold(problem, Problem::advise))
    };
    resolution.vms.iter().filter_map(problem).collect()
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
        known => format!("it has: {}", some_of(known, NAMES_SHOWN_MAX)),
    };
    missing
        .map(|pool| {
            let text = format!("the agent of {} has no pool '{pool}'", there.name());
            Problem::error("target.folder", text).advise(advice.clone())
        })
        .collect()
}

/// What an agent that knows no checks of machines is asked for by other means, and what it is not asked for.
fn of_old_agent(vms: &[PlannedVm], target: &Target, there: &There, info: &Announced) -> Vec<Problem> {
    let bridges: BTreeSet<&str> = bridges(vms).collect();
    let knows_devices = info.has(HOST);
    let mut problems = Vec::new();
    if knows_devices && !bridges.is_empty() {
        let names: Vec<String> = bridges.iter().map(|name| (*name).to_string()).collect();
        match there.host(&names, &[]) {
            Ok(has) => problems.extend(names.iter().zip(has.devices).filter_map(|(name, found)| {
                let lack = bridge_lack(name, found)?;
                let text = format!("host of {}: {}", there.name(), lack.what);
                Some(Problem::error("networks", text).advise(lack.advice))
            })),
            Err(refusal) => {
                let text = format!("agent of {}: {refusal}", there.name());
                problems.push(Problem::error("target.via", text).advise("look at the agent's log"));
            }
        }
    }
    let asks_for_bridges = !knows_devices && !bridges.is_empty();
    problems.extend(not_asked(vms, target, asks_for_bridges).map(|what| {
        let text = format!(
            "not asked whether the host of {} has {what}: its agent (drover {}) is too old to tell",
            there.name(),
            info.version
        );
        Problem::warning("target.via", text).advise("update drover there, or look there yourself")
    }));
    problems
}

/// Bridges that VMs are to be plugged into.
fn bridges(vms: &[PlannedVm]) -> impl Iterator<Item = &str> {
    vms.iter().flat_map(|vm| &vm.nics).filter_map(|nic| match &nic.target {
        NetworkTarget::Bridge(name) => Some(name.as_str()),
        NetworkTarget::User
        | NetworkTarget::None
        | NetworkTarget::Libvirt(_)
        | NetworkTarget::Kubevirt(_) => None,
    })
}

/// What VMs need of a host that knows no checks of machines; nothing if they need nothing that it cannot be asked for.
fn not_asked(vms: &[PlannedVm], target: &Target, bridges: bool) -> Option<String> {
    let is_started = vms.iter().any(|vm| vm.start);
    let is_uefi = vms.iter().any(|vm| vm.start && vm.vm.firmware == Some(Firmware::Uefi));
    let all = [
        (bridges, "bridges"),
        (is_uefi, "UEFI firmware"),
        (is_started, "QEMU"),
        (is_started && target.accelerator == Accelerator::Kvm, "KVM"),
    ];
    let needed: Vec<&str> = all.into_iter().filter(|(needed, _)| *needed).map(|(_, what)| what).collect();
    (!needed.is_empty()).then(|| needed.join(", "))
}

/// What was found of all VMs.
#[derive(Default)]
struct OfAll {
    problems: Vec<Problem>,
    /// What hosts lack, with what to try, and for which VMs.
    lacks: BTreeMap<(String, String), Vec<String>>,
    /// Bytes that images of this plan take already, by pool.
    taken: BTreeMap<String, u64>,
}

/// Names that are taken, and what the host lacks. Gives what images of this plan take already, by pool.
fn place_problems(
    resolution: &Resolution,
    (there, checks): (&There, bool),
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, u64> {
    let found = Mutex::new(OfAll::default());
    let next = AtomicUsize::new(0);
    in_threads(ASKED_AT_ONCE.min(resolution.vms.len()), |_| {
        while let Some(vm) = resolution.vms.get(next.fetch_add(1, SeqCst)) {
            let told = if checks { there.check(vm) } else { there.glance(vm) };
            let disks: Vec<_> =
                vm.disks.iter().map(|disk| (pool_of(&disk.path), of_disk(vm, disk, there))).collect();
            let mut found = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            found.add_machine(vm, told.map_err(|refusal| refusal.to_string()), there.name());
            for (pool, disk) in disks {
                match disk {
                    Ok(bytes) => *found.taken.entry(pool).or_default() += bytes,
                    Err(problem) => found.problems.push(*problem),
                }
            }
        }
    });
    let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut told = found.problems;
    told.sort_by(|a, b| a.message.cmp(&b.message));
    problems.extend(told);
    problems.extend(found.lacks.into_iter().map(|(lack, vms)| lack_problem(there.name(), lack, vms)));
    found.taken
}

impl OfAll {
    fn add_machine(&mut self, vm: &PlannedVm, told: Result<Told, String>, site: &str) {
        let failed = |why: String| Problem::error("vms", format!("{}: {why}", vm.target_name));
        match told {
            Ok(told) if told.defined == Defined::Others => {
                let why =
                    format!("{site}/{} holds a machine that this plan did not make", site_name(&vm.folder));
                let problem =
                    failed(why).advise("give it another `target_name` or folder, or remove that one");
                self.problems.push(problem);
            }
            Ok(told) => {
                for lack in told.lacks {
                    self.lacks.entry((lack.what, lack.advice)).or_default().push(vm.target_name.clone());
                }
            }
            Err(why) => self.problems.push(failed(why)),
        }
    }
}

/// One problem for all VMs that meet it.
fn lack_problem(site: &str, (what, advice): (String, String), mut vms: Vec<String>) -> Problem {
    vms.sort();
    let more = vms.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    vms.truncate(NAMED_MAX);
    let text = format!("host of {site}: {what} (for {}{more})", vms.join(", "));
    Problem::error("target.via", text).advise(advice)
}

/// VMs that are named of those that meet one obstacle.
const NAMED_MAX: usize = 3;

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
    plan: &Plan,
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
        let problem = space_problem(&name, free, space, there, plan.target.overcommit)?;
        let goes_there = |vm: &&PlannedVm| vm.disks.iter().any(|disk| pool_of(&disk.base) == name);
        Some(problem.of_vms(resolution.vms.iter().filter(goes_there).map(|vm| vm.vm.id.as_str())))
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
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_plan::Plan;
    use drover_types::inventory::{Vm, VmDisk};
    use serde_json::json;

    use super::*;

    fn planned(start: bool, firmware: Option<Firmware>, bridge: Option<&str>) -> PlannedVm {
        let disk = json!({"disk": VmDisk::default(), "index": 0, "path": "/a", "base": "/", "bus": "virtio"});
        let target = bridge.map_or(json!("user"), |name| json!({"bridge": name}));
        let nic = json!({"index": 0, "network": "n", "connected": true, "mac": "00:50:56:aa:00:01", "model": "virtio", "target": target});
        serde_json::from_value(json!({
            "vm": Vm { firmware, ..Vm::default() }, "target_name": "a", "folder": "/a", "format": "raw",
            "disk_bus": "virtio", "disks": [disk], "nics": [nic], "power_off": "refuse",
            "shutdown_timeout": {"secs": 1, "nanos": 0}, "verify": "full", "start": start, "convert": "never",
            "route": "provider", "priority": 0, "concerns": [], "line": 1,
        }))
        .unwrap()
    }

    #[test]
    fn of_an_agent_that_is_too_old_it_is_told_what_was_not_asked() {
        let target = |accelerator: &str| {
            let text = format!(
                "version: 1\nname: a\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\ntarget: \
                 {{type: qemu, via: b, folder: vms, accelerator: {accelerator}}}\nvms: [{{name: a}}]\n"
            );
            Plan::parse(&text).unwrap().target
        };
        let told =
            |vm: PlannedVm, accelerator: &str, bridges| not_asked(&[vm], &target(accelerator), bridges);
        assert_eq!(told(planned(false, Some(Firmware::Uefi), None), "kvm", false), None, "it needs nothing");
        let started = || planned(true, Some(Firmware::Uefi), Some("br0"));
        assert_eq!(told(started(), "kvm", true).unwrap(), "bridges, UEFI firmware, QEMU, KVM");
        assert_eq!(told(planned(true, None, None), "auto", false).unwrap(), "QEMU");
        assert_eq!(bridges(&[started(), planned(true, None, None)]).collect::<Vec<_>>(), ["br0"]);
    }

    #[test]
    fn one_lack_of_many_machines_is_one_problem() {
        let lack = ("there is no bridge br0".to_string(), "make it".to_string());
        let told = |vms: &[&str]| {
            lack_problem("b", lack.clone(), vms.iter().map(ToString::to_string).collect()).message
        };
        assert_eq!(told(&["b", "a"]), "host of b: there is no bridge br0 (for a, b)");
        assert_eq!(
            told(&["d", "c", "b", "a", "e"]),
            "host of b: there is no bridge br0 (for a, b, c and 2 more)"
        );
    }

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
