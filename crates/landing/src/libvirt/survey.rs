//! What of libvirt's daemons stands in the way of a plan, told before anything is touched; and where their pools lie.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use drover_agent::host::{DEVICES, Device, HOST, device_in};
use drover_agent::opening::Announced;
use drover_engine::chain;
use drover_plan::{
    Accelerator, At, ImageFormat, Libvirt, LibvirtNetwork, LibvirtNetworkKind, NetworkTarget, PlannedDisk,
    PlannedNic, PlannedVm, Problem, Resolution,
};
use drover_qemu::QemuError;
use drover_qemu::daemon::{Daemon, Offers, Pool, PoolKind};
use drover_types::inventory::Firmware;
use drover_types::{Bytes, count};

use super::{Domains, block, far_block, lun, rbd, shared, volume_name};
use crate::lacks::{ANOTHER_BRIDGE, too_large};
use crate::there::There;

/// The host of a daemon: the one whose disks, devices and files count.
pub(super) enum Ground {
    /// This one.
    Here,
    /// Another one, by its agent, and what that serves.
    There(Arc<There>, Box<Announced>),
    /// Another one without an agent, whose storage this one has, too.
    Shared,
}

impl Domains {
    /// Gives VMs that become domains their places, and adds what stands in the way; touches nothing.
    pub fn survey(&self, resolution: &mut Resolution) {
        self.find_common_cpu(resolution);
        let place = |vm: &PlannedVm| Some((vm.daemon.clone()?, vm.site.clone()));
        let places: BTreeSet<(String, Option<String>)> = resolution.vms.iter().filter_map(place).collect();
        for (uri, site) in places {
            // One of several hosts, which was told.
            if self.away.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&uri) {
                continue;
            }
            let problems = self.survey_daemon(&uri, site.as_deref(), &mut resolution.vms);
            resolution.problems.extend(problems);
        }
    }

    fn survey_daemon(&self, uri: &str, site: Option<&str>, vms: &mut [PlannedVm]) -> Vec<Problem> {
        let daemon = (self.dial)(uri);
        let is_meant = |vm: &&mut PlannedVm| vm.daemon.as_deref() == Some(uri) && vm.site.as_deref() == site;
        let mut vms: Vec<&mut PlannedVm> = vms.iter_mut().filter(is_meant).collect();
        if let Err(error) = daemon.reach() {
            let text = format!("the daemon at {uri} does not answer: {}", error.chain());
            let advice = error
                .advice()
                .unwrap_or(format!("see whether it runs and this user may use it: virsh -c '{uri}' list"));
            return vec![Problem::error("target.uri", text).advise(advice)];
        }
        let ground = match site.map(|site| self.ground(site)).transpose() {
            Ok(ground) => ground.unwrap_or_else(|| Ground::of(uri)),
            Err(problem) => return vec![*problem],
        };
        let mut problems = Vec::new();
        let pools: BTreeSet<String> =
            vms.iter().flat_map(|vm| &vm.disks).filter_map(|disk| disk.pool.clone()).collect();
        let mut usable = BTreeMap::new();
        for name in pools {
            match usable_pool(&daemon, &name, &ground) {
                Ok(pool) => drop(usable.insert(name, pool)),
                Err(problem) => problems.push(*problem),
            }
        }
        let mut luns = BTreeMap::new();
        for vm in &mut vms {
            problems.extend(self.place(vm, &usable, &daemon, &mut luns));
            problems.extend(block_problem(vm));
        }
        let vms: Vec<&PlannedVm> = vms.into_iter().map(|vm| &*vm).collect();
        problems.extend(self.space_problems(&daemon, &vms, &usable, &ground));
        problems.extend(device_problems(&vms, &ground));
        problems.extend(unseen_problem(&vms, &ground, uri));
        problems.extend(network_problems(&daemon, &vms));
        problems.extend(twin_problems(&vms));
        problems.extend(self.offer_problems(&daemon, &vms));
        problems.extend(self.page_problems(&daemon, &vms));
        problems
    }

    /// VMs whose memory does not fit into the host's huge pages, if the plan wants them there.
    fn page_problems(&self, daemon: &Daemon, vms: &[&PlannedVm]) -> Vec<Problem> {
        let page = self.about.target.libvirt().and_then(|libvirt| libvirt.page_bytes);
        let Some(page) = page else { return Vec::new() };
        let bytes_of = |vm: &PlannedVm| vm.vm.memory_mib.saturating_mul(1 << 20);
        let uneven = vms.iter().filter(|vm| !bytes_of(vm).is_multiple_of(page)).map(|vm| {
            let why = format!(
                "its memory ({}) is no multiple of huge pages of {}",
                Bytes(bytes_of(vm)),
                Bytes(page)
            );
            of_vm(vm, "target.hugepages", &why)
                .advise("choose smaller pages, or change its memory in vSphere")
        });
        let mut problems: Vec<Problem> = uneven.collect();
        let problem = |text: String| {
            let advice = format!(
                "set more aside on that host: virsh -c '{}' allocpages --pagesize {}KiB --add --pagecount N",
                daemon.uri(),
                page / 1024
            );
            Problem::error("target.hugepages", text).advise(advice)
        };
        // What runs has its pages.
        let needed = vms.iter().filter(|vm| !self.runs(vm).unwrap_or(false)).map(|vm| bytes_of(vm));
        let needed = needed.fold(0, u64::saturating_add);
        match daemon.free_pages_bytes(page) {
            Ok(free) if free >= needed => {}
            Ok(free) => problems.push(problem(format!(
                "{} has {} free in huge pages of {}, and the VMs need {}",
                daemon.uri(),
                Bytes(free),
                Bytes(page),
                Bytes(needed)
            ))),
            Err(error) => problems.push(problem(format!(
                "{} does not tell its free huge pages: {}",
                daemon.uri(),
                error.chain()
            ))),
        }
        problems
    }

    /// The host of a daemon that has an agent of its own.
    pub(super) fn ground(&self, site: &str) -> Result<Ground, Box<Problem>> {
        let problem = |text: String, advice: Option<String>| {
            let problem = Problem::error("target.via", text);
            Box::new(advice.into_iter().fold(problem, Problem::advise))
        };
        let dialled = self.sites.there(site).and_then(|there| there.dial().map(|()| there));
        let there = dialled.map_err(|error| problem(error.to_string(), Some(error.advice().into())))?;
        let info = there.info().map_err(|refusal| {
            problem(format!("agent of {site}: {refusal}"), Some("look at the agent's log".into()))
        })?;
        if ["machine", HOST].iter().all(|taken| info.has(taken)) {
            return Ok(Ground::There(there, Box::new(info)));
        }
        let text =
            format!("the agent of {site} (drover {}) knows nothing of libvirt's volumes", info.version);
        Err(problem(text, Some("update drover there".into())))
    }

    /// Where a VM's volumes lie. `luns` has those of other disks, and whose they are.
    fn place(
        &self,
        vm: &mut PlannedVm,
        pools: &BTreeMap<String, Pool>,
        daemon: &Daemon,
        luns: &mut BTreeMap<String, String>,
    ) -> Vec<Problem> {
        let mut wrong = Vec::new();
        for disk in &mut vm.disks {
            let Some(pool) = disk.pool.as_ref().and_then(|name| pools.get(name)) else { continue };
            if pool.kind == PoolKind::Luns || disk.volume.is_some() {
                let who = format!("{} of {}", disk.disk.label, vm.vm.name);
                wrong.extend(lun::place(daemon, pool, disk, who, luns).err());
                continue;
            }
            disk.base = match &pool.kind {
                PoolKind::Rbd(pool) => rbd::base_of(pool),
                PoolKind::Files | PoolKind::Logical | PoolKind::Luns | PoolKind::Other(_) => {
                    pool.path.clone()
                }
            };
            // The agent of another host knows it by its pool.
            if let (None, Some(file)) = (&vm.site, disk.path.file_name()) {
                disk.path = disk.base.join(file);
            }
        }
        let mut problems: Vec<Problem> = wrong
            .into_iter()
            .map(|error| {
                let problem = of_vm(vm, "volumes", &chain(&error));
                error.advice.into_iter().fold(problem, Problem::advise)
            })
            .collect();
        // One without a place is looked at no further.
        if problems.is_empty() {
            match self.folder(vm) {
                Ok(folder) => vm.folder = folder,
                Err(error) => problems.push(of_vm(vm, "target", &chain(&error))),
            }
        }
        problems
    }

    fn space_problems(
        &self,
        daemon: &Daemon,
        vms: &[&PlannedVm],
        pools: &BTreeMap<String, Pool>,
        ground: &Ground,
    ) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (name, pool) in pools {
            let disks = || {
                let all = vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (*vm, disk)));
                all.filter(|(_, disk)| disk.pool.as_ref() == Some(name))
            };
            let there: u64 = disks().map(|(vm, disk)| ground.taken_by(daemon, vm, disk)).sum();
            // Volumes that are block devices take all their bytes.
            let is_thick = pool.kind == PoolKind::Logical;
            let sum = |is_meant: &dyn Fn(Option<bool>) -> bool| {
                let meant = disks().filter(|(_, disk)| is_meant(disk.disk.thin));
                meant
                    .fold(0u64, |sum, (_, disk)| sum.saturating_add(disk.disk.capacity_bytes))
                    .saturating_sub(there)
            };
            let (needed, thick) = (sum(&|_| true), sum(&|thin| is_thick || thin == Some(false)));
            let is_file = pool.kind == PoolKind::Files;
            let raw = disks().filter(|(vm, _)| is_file && vm.format == ImageFormat::Raw);
            let largest = raw.max_by_key(|(_, disk)| disk.disk.capacity_bytes);
            if let (Ground::Here | Ground::Shared, Some((vm, disk))) = (ground, largest) {
                problems.extend(too_large(&pool.path, vm, disk));
            }
            let free = pool.available_bytes;
            let text = |bytes| {
                format!("pool {name} has {} free, and the disks may take {}", Bytes(free), Bytes(bytes))
            };
            let of = |problem: Problem| problem.of_vms(disks().map(|(vm, _)| vm.vm.id.as_str()));
            if thick > free {
                let problem = Problem::error("target.pool", text(thick));
                problems.push(of(problem.advise("make room or choose another pool")));
            } else if needed > free && !self.about.target.overcommit {
                problems.push(of(Problem::error("target.pool", text(needed)).advise(
                    "make room; or, as thin disks take only what they hold, allow it with `target.overcommit: true`",
                )));
            }
        }
        problems
    }

    /// What domains need that the daemon does not offer.
    fn offer_problems(&self, daemon: &Daemon, vms: &[&PlannedVm]) -> Vec<Problem> {
        let (uri, machine) = (daemon.uri(), self.machine());
        let is_kvm = match self.is_kvm(daemon) {
            Ok(is_kvm) => is_kvm,
            Err(error) => return vec![not_offered(uri, machine, false, &error)],
        };
        let offers = match daemon.offers(is_kvm, machine) {
            Ok(offers) => offers,
            Err(error) => return vec![not_offered(uri, machine, is_kvm, &error)],
        };
        let mut problems = Vec::new();
        if !is_kvm && self.about.target.accelerator == Accelerator::Auto {
            let text = format!("{uri} offers no KVM: domains run in emulation, 10 to 50 times slower");
            problems.push(
                Problem::warning("target.accelerator", text).advise("see whether that host has /dev/kvm"),
            );
        }
        let lack = self.lack_of_cpu(daemon, &offers).unwrap_or_else(|error| {
            Some(format!("does not tell the features of its CPU: {}", error.chain()))
        });
        if let Some(lack) = lack {
            let advice = format!("see what it offers: virsh -c '{uri}' domcapabilities --machine {machine}");
            problems.push(Problem::error("target.cpu", format!("{uri} {lack}")).advise(advice));
        }
        problems.extend(vms.iter().filter_map(|vm| self.lacking(vm, uri, &offers)));
        problems
    }

    fn lacking(&self, vm: &PlannedVm, uri: &str, offers: &Offers) -> Option<Problem> {
        let (lacks, advice) = self.lack(vm, offers)?;
        Some(of_vm(vm, "target", &format!("it needs {lacks}, which {uri} does not offer")).advise(advice))
    }

    /// What a VM needs that is not offered, and what to do.
    pub(super) fn lack(&self, vm: &PlannedVm, offers: &Offers) -> Option<(&'static str, &'static str)> {
        let is_uefi = vm.vm.firmware == Some(Firmware::Uefi);
        Some(if is_uefi && !offers.uefi {
            ("UEFI firmware", "install it on that host: apt-get install ovmf")
        } else if is_uefi && vm.vm.secure_boot && !offers.secure_boot {
            ("UEFI firmware with Secure Boot", "install it on that host: apt-get install ovmf")
        } else if vm.vm.vtpm && !offers.tpm && self.about.target.libvirt().is_some_and(|libvirt| libvirt.tpm)
        {
            ("an emulated TPM", "install it on that host (apt-get install swtpm), or write `tpm: false`")
        } else if offers.cpus_max.is_some_and(|most| most < vm.vm.cpus) {
            ("so many CPUs", "give the VM fewer, or choose another machine type")
        } else {
            return None;
        })
    }
}

impl Ground {
    /// The host of a daemon that has no agent.
    pub(super) fn of(uri: &str) -> Ground {
        if Libvirt::is_here(uri) { Ground::Here } else { Ground::Shared }
    }

    /// Bytes that the volume of a disk takes already.
    fn taken_by(&self, daemon: &Daemon, vm: &PlannedVm, disk: &PlannedDisk) -> u64 {
        match self {
            Ground::Here | Ground::Shared if block::is_no_file(disk) => block::taken_by(daemon, vm, disk),
            Ground::Here | Ground::Shared => {
                std::fs::metadata(&disk.path).map_or(0, |meta| meta.blocks() * 512)
            }
            Ground::There(there, _) => match there.stat(disk) {
                Ok(stat) if far_block::is_ours(there, disk, vm, &stat).unwrap_or(false) => {
                    stat.allocated.unwrap_or_default()
                }
                // What stands in the way is told by `look_ahead`.
                Ok(_) | Err(_) => 0,
            },
        }
    }

    /// Whose host it is, in words.
    fn name(&self) -> String {
        match self {
            Ground::Here => "this host".to_string(),
            Ground::Shared => "that host".to_string(),
            Ground::There(there, _) => format!("the host of {}", there.name()),
        }
    }

    /// What network devices of these names are.
    fn devices(&self, names: &[String]) -> Result<Vec<Device>, String> {
        match self {
            // Nobody tells, which is told.
            Ground::Shared => Ok(names.iter().map(|_| Device::Bridge).collect()),
            Ground::Here => Ok(names.iter().map(|name| device_in(Path::new(DEVICES), name)).collect()),
            Ground::There(there, _) => there
                .host(names, &[])
                .map(|has| has.devices)
                .map_err(|refusal| format!("agent of {}: {refusal}", there.name())),
        }
    }

    /// Refuses a pool whose folder cannot be written.
    fn check_pool(&self, pool: &Pool, daemon: &Daemon) -> Result<(), Box<Problem>> {
        let uri = daemon.uri();
        let problem =
            |text: String, advice: String| Box::new(Problem::error("target.pool", text).advise(advice));
        let (name, folder) = (&pool.name, pool.path.display());
        match self {
            Ground::Here => drover_disk::is_writable_dir(&pool.path).map_err(|error| {
                let text = format!(
                    "pool {name} of {uri} lies in {folder}, which cannot be written here: {}",
                    error.source
                );
                let advice = "run drover on the daemon's host as root, name the agent of that host by `via`, or choose another pool";
                problem(text, advice.into())
            }),
            Ground::Shared => {
                let not_here = |why: String| {
                    let text = format!(
                        "pool {name} of {uri}, a daemon on another host, lies in {folder}, and no agent writes there (`via`): {why}"
                    );
                    problem(text, shared::ADVICE.into())
                };
                drover_disk::is_writable_dir(&pool.path)
                    .map_err(|error| not_here(format!("this host cannot write there either: {}", error.source)))?;
                // What it saw last may be gone by now.
                let files = daemon.refresh(name).and_then(|()| daemon.files(pool));
                let files = files.map_err(|error| not_here(error.chain()))?;
                match files.is_empty() || files.iter().any(|file| file.exists()) {
                    true => Ok(()),
                    false => Err(not_here(format!("this host has another folder there, without any of its {}", count(files.len(), "volume")))),
                }
            }
            Ground::There(there, info) => {
                let serve = format!("run it on the daemon's host with --libvirt-pool {name}");
                let Some(served) = info.pools.iter().find(|it| it.name == *name) else {
                    let text = format!("the agent of {} has no pool {name}", there.name());
                    return Err(problem(text, serve));
                };
                let is_it = |folder: &String| Path::new(folder) == pool.path;
                if !served.folders.iter().any(is_it) {
                    let text = format!(
                        "pool {name} of {uri} lies in {folder}, and that of the agent of {} in {}",
                        there.name(),
                        served.folders.first().map_or("another folder", String::as_str)
                    );
                    return Err(problem(text, serve));
                }
                if pool.kind == PoolKind::Logical && !served.has_volumes {
                    let text = format!(
                        "pool {name} of {uri} is of the type logical, and the agent of {} (drover {}) serves no logical volumes of it",
                        there.name(),
                        info.version
                    );
                    let advice = format!("update drover there, and run its agent with --libvirt-pool {name}");
                    return Err(problem(text, advice));
                }
                match &served.unwritable {
                    None => Ok(()),
                    Some(why) => {
                        let text = format!(
                            "pool {name} of {uri} lies in {folder}, which the agent of {} cannot write: {why}",
                            there.name()
                        );
                        Err(problem(text, "run the agent as root, or choose another pool".into()))
                    }
                }
            }
        }
    }
}

/// A pool that disks can be written to on the daemon's host.
pub(super) fn usable_pool(daemon: &Daemon, name: &str, ground: &Ground) -> Result<Pool, Box<Problem>> {
    let uri = daemon.uri();
    let problem = |text: String, advice: String| Box::new(Problem::error("target.pool", text).advise(advice));
    let failed = |error: QemuError| problem(error.chain(), format!("see virsh -c '{uri}' pool-info {name}"));
    let Some(pool) = daemon.pool(name).map_err(failed)? else {
        let known = daemon.pools().map_err(failed)?;
        let advice = match known.as_slice() {
            [] => "it has none: define one (`virsh pool-define-as`) and start it".to_string(),
            known => format!("it has: {}", known.join(", ")),
        };
        return Err(problem(format!("{uri} has no storage pool {name}"), advice));
    };
    match (&pool.kind, ground) {
        (PoolKind::Files, _) => {}
        (PoolKind::Logical, Ground::Here | Ground::There(..)) => {}
        (PoolKind::Logical, Ground::Shared) => {
            let text = format!(
                "pool {name} of {uri} is of the type logical, and its volumes are on another host, which has no agent"
            );
            let advice = "pair with a drover agent on that host and name it by `via`, or run drover there";
            return Err(problem(text, advice.into()));
        }
        (PoolKind::Luns, Ground::Here) => {}
        (PoolKind::Luns, Ground::There(..) | Ground::Shared) => {
            let text =
                format!("pool {name} of {uri} has LUNs, and drover writes to those of its own host alone");
            let advice = "run drover on the daemon's host, as root and without `via`, or choose a pool of another type";
            return Err(problem(text, advice.into()));
        }
        (PoolKind::Rbd(_), Ground::Here | Ground::Shared) => {}
        (PoolKind::Rbd(_), Ground::There(..)) => {
            let text = format!("pool {name} of {uri} is of the type rbd, which an agent does not write to");
            let advice = "run drover on the daemon's host and leave `via` out, or choose a pool of the type dir, fs or netfs";
            return Err(problem(text, advice.into()));
        }
        (PoolKind::Other(kind), _) => {
            let text = format!("pool {name} of {uri} is of the type {kind}, which drover does not write to");
            return Err(problem(text, other_pool(kind)));
        }
    }
    if !pool.is_active {
        let advice = format!("start it: virsh -c '{uri}' pool-start '{name}'");
        return Err(problem(format!("pool {name} of {uri} is not active"), advice));
    }
    match pool.kind {
        PoolKind::Logical if matches!(ground, Ground::There(..)) => {
            ground.check_pool(&pool, daemon).map(|()| pool)
        }
        PoolKind::Logical | PoolKind::Luns if !rustix::process::geteuid().is_root() => {
            let text =
                format!("pool {name} of {uri} has volumes that are block devices, and this is not root");
            Err(problem(text, "run drover as root, or choose a pool of the type dir, fs or netfs".into()))
        }
        PoolKind::Logical | PoolKind::Luns => Ok(pool),
        PoolKind::Rbd(ref ceph) => {
            let lacks = drover_qemu::lack_for_rbd().map_err(|error| {
                let text = format!(
                    "pool {name} of {uri} is of the type rbd, and this host cannot open its images: {}",
                    error.chain()
                );
                problem(text, error.advice().unwrap_or("see `qemu-nbd --version`".into()))
            });
            lacks?;
            if let Some(auth) = &ceph.auth {
                daemon.ceph_key(auth).map_err(|error| {
                    let text = format!(
                        "pool {name} of {uri}: the key of its user {} is not known: {}",
                        auth.user,
                        error.chain()
                    );
                    problem(text, rbd::KEY_ADVICE.into())
                })?;
            }
            Ok(pool)
        }
        PoolKind::Files | PoolKind::Other(_) => ground.check_pool(&pool, daemon).map(|()| pool),
    }
}

/// What to do about a pool of a type that drover does not write to.
fn other_pool(kind: &str) -> String {
    let usable = "choose a pool of the type dir, fs, netfs, logical or rbd";
    match kind {
        "iscsi-direct" => format!(
            "its LUNs are no block devices of that host, which drover needs: define a pool of the type iscsi for the target, or {usable}"
        ),
        "disk" => format!(
            "its volumes are partitions, which libvirt names itself and nothing tells apart: {usable}, such as a volume group (`logical`) on that disk"
        ),
        _ => usable.to_string(),
    }
}

/// What of a VM does not fit volumes that are no files.
fn block_problem(vm: &PlannedVm) -> Option<Problem> {
    let disk = vm.disks.iter().find(|disk| far_block::is_no_file(vm, disk))?;
    let pool = disk.pool.as_deref().unwrap_or_default();
    if vm.format != ImageFormat::Raw {
        let what = if rbd::is_rbd(disk) { "images of Ceph" } else { "block devices" };
        let why = format!("volumes of pool {pool} are {what}, and those hold raw disks");
        return Some(of_vm(vm, "target.format", &why).advise("write `format: raw`, or choose another pool"));
    }
    // LUNs have the names that they have.
    let mut made = vm.disks.iter().filter(|disk| far_block::is_no_file(vm, disk) && !lun::is_lun(disk));
    made.find(|disk| !block::is_name(&volume_name(disk))).map(|disk| {
        let (pool, name) = (disk.pool.as_deref().unwrap_or_default(), volume_name(disk));
        of_vm(vm, "target", &format!("pool {pool} takes no volume of the name {name:?}"))
            .advise("give it a `target_name` of at most 100 letters, digits and `+_.-`")
    })
}

/// What of a host without an agent nobody looks at.
fn unseen_problem(vms: &[&PlannedVm], ground: &Ground, uri: &str) -> Option<Problem> {
    let is_uefi = |vm: &&&PlannedVm| vm.vm.firmware == Some(Firmware::Uefi);
    let is_device = |nic: &PlannedNic| match &nic.target {
        NetworkTarget::Bridge(_) => true,
        NetworkTarget::Libvirt(it) => it.kind != LibvirtNetworkKind::Network,
        NetworkTarget::User | NetworkTarget::None | NetworkTarget::Kubevirt(_) => false,
    };
    let devices =
        vms.iter().any(|vm| vm.nics.iter().any(is_device)).then_some("bridges and devices for NICs");
    let variables =
        vms.iter().find(is_uefi).map(|_| "firmware variables that earlier domains of these names left");
    let unseen: Vec<&str> = devices.into_iter().chain(variables).collect();
    if !matches!(ground, Ground::Shared) || unseen.is_empty() {
        return None;
    }
    let text = format!(
        "{uri} is on another host and has no agent, so nobody looks for its {}",
        unseen.join(" and ")
    );
    Some(Problem::warning("target.uri", text).advise(
        "look there (`ip link`, /var/lib/libvirt/qemu/nvram), or name a drover agent on that host by `via`",
    ))
}

/// Bridges and devices that a host does not have.
fn device_problems(vms: &[&PlannedVm], ground: &Ground) -> Vec<Problem> {
    // Each device with whether it has to be a bridge of the kernel; those of Open vSwitch need not be.
    let devices: BTreeSet<(&str, bool)> = vms
        .iter()
        .flat_map(|vm| &vm.nics)
        .filter_map(|nic| match &nic.target {
            NetworkTarget::Bridge(name) => Some((name.as_str(), true)),
            NetworkTarget::Libvirt(LibvirtNetwork { kind, name, .. }) => match kind {
                LibvirtNetworkKind::Direct | LibvirtNetworkKind::Ovs => Some((name.as_str(), false)),
                LibvirtNetworkKind::Network => None,
            },
            NetworkTarget::User | NetworkTarget::None | NetworkTarget::Kubevirt(_) => None,
        })
        .collect();
    let names: Vec<String> = devices.iter().map(|(name, _)| (*name).to_string()).collect();
    let found = match ground.devices(&names) {
        Ok(found) => found,
        Err(why) => return vec![Problem::error("networks", why).advise("look at the agent's log")],
    };
    let host = ground.name();
    let judge = |((name, is_bridge), found): ((&str, bool), Device)| match found {
        Device::Missing => {
            let text = format!("{host} has no bridge or device {name}");
            Some(Problem::error("networks", text).advise("see `ip link` there, and the plan's `networks`"))
        }
        Device::Other if is_bridge => {
            let text = format!("network device {name} of {host} is no bridge");
            Some(Problem::error("networks", text).advise(ANOTHER_BRIDGE))
        }
        Device::Other | Device::Bridge => None,
    };
    devices.into_iter().zip(found).filter_map(judge).collect()
}

/// Networks that a daemon does not have.
fn network_problems(daemon: &Daemon, vms: &[&PlannedVm]) -> Vec<Problem> {
    let uri = daemon.uri();
    let nics = vms.iter().flat_map(|vm| &vm.nics);
    let wanted: BTreeSet<&str> = nics
        .filter_map(|nic| match &nic.target {
            NetworkTarget::Libvirt(LibvirtNetwork { kind: LibvirtNetworkKind::Network, name, .. }) => {
                Some(name.as_str())
            }
            _ => None,
        })
        .collect();
    let mut problems = Vec::new();
    if wanted.is_empty() {
        return problems;
    }
    let known = match daemon.networks() {
        Ok(known) => known,
        Err(error) => {
            let text = format!("{uri} does not tell its networks: {}", error.chain());
            problems.push(
                Problem::error("networks", text)
                    .advise("install libvirt's network driver there, or name bridges"),
            );
            return problems;
        }
    };
    for name in wanted {
        problems.extend(match known.iter().find(|(known, _)| known == name) {
            Some((_, true)) => None,
            Some((_, false)) => {
                let advice = format!("start it: virsh -c '{uri}' net-start '{name}'");
                Some(
                    Problem::error("networks", format!("network {name} of {uri} is not active"))
                        .advise(advice),
                )
            }
            None => {
                let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
                let advice = if names.is_empty() {
                    "it has none".into()
                } else {
                    format!("it has: {}", names.join(", "))
                };
                Some(Problem::error("networks", format!("{uri} has no network {name}")).advise(advice))
            }
        });
    }
    problems
}

/// VMs of one plan with one UUID, as copies made by hand have: a daemon takes each UUID once.
fn twin_problems(vms: &[&PlannedVm]) -> Vec<Problem> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let mut problems = Vec::new();
    for vm in vms.iter().filter(|vm| !vm.vm.uuid.is_empty()) {
        if let Some(twin) = seen.insert(vm.vm.uuid.to_ascii_lowercase(), &vm.vm.name) {
            let why =
                format!("it has the same UUID as {twin} ({}), and a daemon takes each once", vm.vm.uuid);
            problems.push(of_vm(vm, "target", &why).advise(
                "give one of the two a new uuid.bios in vSphere while it is off, or move them to different daemons",
            ));
        }
    }
    problems
}

fn not_offered(uri: &str, machine: &str, is_kvm: bool, error: &QemuError) -> Problem {
    let (what, path) = if is_kvm { ("KVM", "target.accelerator") } else { ("emulation", "target.machine") };
    let text = format!("{uri} does not offer machines {machine} with {what}: {}", error.chain());
    Problem::error(path, text)
        .advise("see /dev/kvm on that host and `qemu-system-x86_64 -machine help`, or change the plan")
}

fn of_vm(vm: &PlannedVm, path: &str, why: &str) -> Problem {
    Problem::error(path, format!("{}: {why}", vm.vm.name)).at(At { line: vm.line, column: 1 })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_qemu::Virsh;

    use super::*;

    /// A daemon whose one pool is of this type, in this folder.
    fn daemon(folder: &Path, kind: &str, is_active: bool) -> Daemon {
        let pool = format!(
            "<pool type='{kind}'><name>images</name><available unit='bytes'>7</available><target><path>{}</path></target></pool>",
            folder.display()
        );
        let active = if is_active { "echo images" } else { ":" };
        let script = format!(
            "case \" $* \" in\n*' --all '*) echo images ;;\n*pool-list*) {active} ;;\n*) echo \"{pool}\" ;;\nesac"
        );
        let program = folder.join("virsh");
        drover_lab::put_script(&program, &script).unwrap();
        Daemon::of(Virsh::new("qemu:///system").by(program.display().to_string()))
    }

    #[test]
    fn volumes_are_files_of_a_folder_whoever_keeps_that() {
        let folder = tempfile::tempdir().unwrap();
        let usable = |kind: &str, is_active: bool| {
            usable_pool(&daemon(folder.path(), kind, is_active), "images", &Ground::Here)
        };
        for kind in ["dir", "fs", "netfs"] {
            let pool = usable(kind, true).unwrap();
            assert_eq!((pool.path.as_path(), pool.available_bytes), (folder.path(), 7), "{kind}");
            assert!(usable(kind, false).unwrap_err().message.contains("is not active"), "{kind}");
        }
        for kind in ["iscsi", "scsi", "mpath"] {
            let there = usable_pool(&daemon(folder.path(), kind, true), "images", &Ground::Shared);
            assert!(there.unwrap_err().message.contains("those of its own host alone"), "{kind}");
        }
        for kind in ["iscsi-direct", "disk", "zfs", "gluster"] {
            let refused = usable(kind, true).unwrap_err().message;
            assert!(
                refused.contains(&format!("is of the type {kind}, which drover does not write to")),
                "{refused}"
            );
        }
    }
}
