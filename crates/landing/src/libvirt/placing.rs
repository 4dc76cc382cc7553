//! Which of several hosts gets which VM: what hosts have is asked here, what becomes of it is decided in `drover_plan::placement`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use drover_disk::in_threads;
use drover_engine::{Cause, ProviderError, chain};
use drover_plan::placement::{Candidate, Guest, place};
use drover_plan::{At, Begun, Libvirt, LibvirtHost, PlannedVm, Problem, Resolution};
use drover_qemu::daemon::{Offers, Pool};

use super::Domains;
use super::survey::{Ground, usable_pool};

/// What a host said.
#[derive(Default)]
struct Asked {
    candidate: Candidate,
    /// Whether nobody reached it.
    is_away: bool,
    offers: Offers,
    /// UUIDs, in lower case, and names of its domains.
    taken: BTreeSet<String>,
}

impl Domains {
    /// Gives VMs that may go to several hosts their places: those that were begun the ones they had, whatever has become of the hosts.
    /// Touches nothing.
    pub fn place_on_hosts(&self, resolution: &mut Resolution, begun: &[Begun]) {
        let Some(libvirt) = self.about.target.libvirt() else { return };
        let earlier: BTreeMap<&str, &Begun> =
            begun.iter().map(|it| (it.planned.vm.id.as_str(), it)).collect();
        for vm in &mut resolution.vms {
            if let Some(begun) = earlier.get(vm.vm.id.as_str()) {
                take_back(vm, &begun.planned, begun.keeps_disks);
            }
        }
        if libvirt.hosts.is_empty() {
            return;
        }
        let asked = self.ask_hosts(libvirt, &resolution.vms);
        let guests: Vec<Guest> = resolution
            .vms
            .iter()
            .map(|vm| self.guest(vm, earlier.get(vm.vm.id.as_str()).copied(), libvirt, &asked))
            .collect();
        for (vm, _) in resolution.vms.iter().zip(&guests).filter(|(_, guest)| guest.kept.is_none()) {
            resolution.problems.extend(is_there_already(vm, &asked));
        }
        let hosts: Vec<Candidate> = asked.iter().map(|it| it.candidate.clone()).collect();
        for ((vm, guest), placed) in resolution.vms.iter_mut().zip(&guests).zip(place(&hosts, &guests)) {
            match placed {
                Ok(placed) if guest.kept.is_none() => {
                    if let Some(host) = libvirt.hosts.iter().find(|host| host.name == placed.host) {
                        vm.place_on(host, &placed.why, libvirt);
                    }
                }
                Ok(_) => {}
                Err(why) => {
                    let problem =
                        Problem::error("target.hosts", format!("{}: no host takes it: {why}", vm.vm.name));
                    resolution.problems.push(problem.at(At { line: vm.line, column: 1 }).advise(
                        "make room, add a host, or change `target_host`, `apart` or `memory_reserve`",
                    ));
                    continue;
                }
            }
            match self.folder(vm) {
                Ok(folder) => vm.folder = folder,
                Err(error) => resolution.problems.push(Problem::error("target", chain(&error))),
            }
        }
        self.tell_closed(libvirt, &asked, resolution);
    }

    /// Tells of hosts that get no VM, and remembers those that nobody reached.
    fn tell_closed(&self, libvirt: &Libvirt, asked: &[Asked], resolution: &mut Resolution) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        for it in asked {
            let Some(why) = &it.candidate.closed else { continue };
            let name = &it.candidate.name;
            let is_its = |vm: &&PlannedVm| vm.target_host.as_ref().is_some_and(|host| host.name == *name);
            let its: Vec<&str> =
                resolution.vms.iter().filter(is_its).map(|vm| vm.target_name.as_str()).collect();
            let consequence = match its.as_slice() {
                [] => "no VM is placed on it".to_string(),
                its => format!("{} will fail, others go on", its.join(", ")),
            };
            let problem = Problem::warning("target.hosts", format!("host {name}: {why}; {consequence}"));
            resolution.problems.push(problem.advise("see whether it is up, and `virsh -c URI list`"));
            if it.is_away {
                let uri = libvirt.hosts.iter().find(|host| host.name == *name).map(|host| host.uri.clone());
                away.extend(uri.map(|uri| (uri, format!("host {name}: {why}"))));
            }
        }
    }

    /// Refuses a VM whose host was away when the run began: where its volumes would lie is not known.
    pub(super) fn check_there(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        match self.is_away(vm) {
            None => Ok(()),
            Some(why) => Err(ProviderError::new(Cause::Connection, why)
                .advise("when it is back: `drover resume`, which places nothing anew, or `drover cancel`")),
        }
    }

    /// Why the host of a VM was away when the run began.
    pub fn is_away(&self, vm: &PlannedVm) -> Option<String> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.get(vm.daemon.as_ref()?).cloned()
    }

    fn ask_hosts(&self, libvirt: &Libvirt, vms: &[PlannedVm]) -> Vec<Asked> {
        let asked: Vec<Mutex<Asked>> = libvirt.hosts.iter().map(|_| Mutex::default()).collect();
        let next = AtomicUsize::new(0);
        in_threads(HOSTS_AT_ONCE.min(asked.len()), |_| {
            loop {
                let at = next.fetch_add(1, Ordering::SeqCst);
                let (Some(host), Some(slot)) = (libvirt.hosts.get(at), asked.get(at)) else { return };
                let told = self.ask_host(host, libvirt, vms);
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = told;
            }
        });
        asked.into_iter().map(|it| it.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    fn ask_host(&self, host: &LibvirtHost, libvirt: &Libvirt, vms: &[PlannedVm]) -> Asked {
        let closed = |why: String, is_away: bool| Asked {
            candidate: Candidate { name: host.name.clone(), closed: Some(why), ..Candidate::default() },
            is_away,
            ..Asked::default()
        };
        let daemon = (self.dial)(&host.uri);
        if let Err(error) = daemon.reach() {
            return closed(format!("its daemon at {} does not answer: {}", host.uri, error.chain()), true);
        }
        let ground = match host.via.as_deref().map(|site| self.ground(site)).transpose() {
            Ok(ground) => ground.unwrap_or_else(|| Ground::of(&host.uri)),
            Err(problem) => return closed(problem.message, true),
        };
        let offers = self.is_kvm(&daemon).and_then(|is_kvm| daemon.offers(is_kvm, self.machine()));
        let offers = match offers {
            Ok(offers) => offers,
            Err(error) => return closed(format!("machines {}: {}", self.machine(), error.chain()), false),
        };
        match self.lack_of_cpu(&daemon, &offers) {
            Ok(None) => {}
            Ok(Some(lack)) => return closed(format!("it {lack}"), false),
            Err(error) => return closed(error.chain(), false),
        }
        let memory = match libvirt.page_bytes {
            Some(page) => daemon.free_pages_bytes(page),
            None => daemon.free_memory_bytes().map(|free| free.saturating_sub(libvirt.memory_reserve_bytes)),
        };
        let asked = memory.and_then(|free| Ok((free, daemon.domains()?)));
        let (memory, domains) = match asked {
            Ok(asked) => asked,
            Err(error) => return closed(error.chain(), false),
        };
        let disks = vms.iter().flat_map(|vm| &vm.disks);
        let names: BTreeSet<String> = disks.filter_map(|disk| host.pool_of(disk, libvirt)).collect();
        let pools: Vec<Pool> =
            names.iter().filter_map(|name| usable_pool(&daemon, name, &ground).ok()).collect();
        let shared =
            pools.iter().filter_map(|pool| Some((pool.name.clone(), pool.source.clone()?))).collect();
        let pools = pools.into_iter().map(|pool| (pool.name, pool.available_bytes)).collect();
        let taken = domains.into_iter().flat_map(|(uuid, name)| [uuid.to_lowercase(), name]).collect();
        let candidate = Candidate {
            name: host.name.clone(),
            closed: None,
            memory_bytes: memory,
            has_huge_pages: libvirt.page_bytes.is_some(),
            pools,
            shared,
        };
        Asked { candidate, is_away: false, offers, taken }
    }

    fn guest(&self, vm: &PlannedVm, begun: Option<&Begun>, libvirt: &Libvirt, asked: &[Asked]) -> Guest {
        let name = vm.target_host.as_ref().map(|host| host.name.clone());
        let is_kept = begun.is_some() && vm.daemon.is_some();
        // What has arrived takes nothing more.
        let is_there = begun.is_some_and(|begun| begun.has_arrived);
        let mut space = BTreeMap::new();
        for host in libvirt.hosts.iter().filter(|_| !is_there) {
            let mut pools: BTreeMap<String, u64> = BTreeMap::new();
            for disk in &vm.disks {
                // Thin disks may take next to nothing.
                let counts = !self.about.target.overcommit || disk.disk.thin == Some(false);
                let bytes = if counts { disk.disk.capacity_bytes } else { 0 };
                if let Some(pool) = host.pool_of(disk, libvirt) {
                    let sum = pools.entry(pool).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            }
            space.insert(host.name.clone(), pools);
        }
        let mut unfit = BTreeMap::new();
        for (it, host) in asked.iter().zip(&libvirt.hosts).filter(|(it, _)| it.candidate.closed.is_none()) {
            if it.taken.contains(&vm.target_name) {
                unfit.insert(host.name.clone(), "a domain of that name is there already".to_string());
            } else if let Some((lacks, _)) = self.lack(vm, &it.offers) {
                unfit.insert(host.name.clone(), format!("it does not offer {lacks}"));
            }
        }
        Guest {
            name: vm.target_name.clone(),
            memory_bytes: if is_there { 0 } else { vm.vm.memory_mib.saturating_mul(1 << 20) },
            space,
            pinned: name.clone().filter(|_| !is_kept),
            // One that was begun before there were several hosts is on none of them by name.
            kept: is_kept.then(|| name.unwrap_or_default()),
            unfit,
            apart: libvirt.groups_of(&vm.target_name).cloned().collect(),
        }
    }
}

/// A VM whose UUID a domain of some host has: it may be the same guest, and would run twice.
fn is_there_already(vm: &PlannedVm, asked: &[Asked]) -> Option<Problem> {
    let uuid = Some(vm.vm.uuid.to_lowercase()).filter(|uuid| !uuid.is_empty())?;
    let host = &asked.iter().find(|it| it.taken.contains(&uuid))?.candidate.name;
    let text = format!("{}: host {host} has a domain with its UUID ({uuid}) already", vm.vm.name);
    let problem = Problem::error("target.hosts", text).at(At { line: vm.line, column: 1 });
    Some(problem.advise("see whether it is the same guest; if that domain may go, `virsh undefine` it there"))
}

/// Gives a VM that was begun the place that it had then, whatever the plan says by now: its host, and where the volumes of its disks lie. As long
/// as nothing was copied, the plan may name another LUN.
fn take_back(vm: &mut PlannedVm, then: &PlannedVm, keeps_disks: bool) {
    if then.daemon.is_none() {
        return;
    }
    vm.target_host.clone_from(&then.target_host);
    vm.daemon.clone_from(&then.daemon);
    vm.site.clone_from(&then.site);
    for disk in &mut vm.disks {
        if let Some(then) = then.disks.iter().find(|it| it.disk.key == disk.disk.key) {
            if !keeps_disks && (disk.volume.is_some() || then.volume.is_some()) {
                continue;
            }
            let now = disk.volume.take();
            disk.volume.clone_from(&then.volume);
            // What it may overwrite is said by the plan of now.
            if let (Some(volume), Some(now)) = (&mut disk.volume, now)
                && now.name == volume.name
            {
                volume.overwrite = now.overwrite;
            }
            disk.pool.clone_from(&then.pool);
            disk.path.clone_from(&then.path);
            disk.base.clone_from(&then.base);
        }
    }
}

/// Hosts asked at a time: one that is down takes its time to be found so.
const HOSTS_AT_ONCE: usize = 16;
