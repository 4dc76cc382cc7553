//! What of libvirt's daemons stands in the way of a plan, told before anything is touched; and where their pools lie.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use drover_engine::chain;
use drover_plan::{
    Accelerator, At, Convert, LibvirtNetwork, LibvirtNetworkKind, NetworkTarget, PlannedVm, Problem,
    Resolution,
};
use drover_qemu::daemon::{Daemon, Offers, Pool, PoolKind};
use drover_qemu::{Need, QemuError};
use drover_types::Bytes;
use drover_types::inventory::Firmware;

use super::Domains;
use crate::machine::{boot_bus, machine_of};
use crate::target::host::{DEVICES, check_bridge};

impl Domains {
    /// Gives VMs that become domains their places, and adds what stands in the way; touches nothing.
    pub fn survey(&self, resolution: &mut Resolution) {
        let uris: BTreeSet<String> = resolution.vms.iter().filter_map(|vm| vm.daemon.clone()).collect();
        for uri in uris {
            let problems = self.survey_daemon(&uri, &mut resolution.vms);
            resolution.problems.extend(problems);
        }
    }

    fn survey_daemon(&self, uri: &str, vms: &mut [PlannedVm]) -> Vec<Problem> {
        let daemon = (self.dial)(uri);
        let mut vms: Vec<&mut PlannedVm> =
            vms.iter_mut().filter(|vm| vm.daemon.as_deref() == Some(uri)).collect();
        if let Err(error) = daemon.reach() {
            let text = format!("the daemon at {uri} does not answer: {}", error.chain());
            let advice = error
                .advice()
                .unwrap_or(format!("see whether it runs and this user may use it: virsh -c '{uri}' list"));
            return vec![Problem::error("target.uri", text).advise(advice)];
        }
        let mut problems = Vec::new();
        let pools: BTreeSet<String> =
            vms.iter().flat_map(|vm| &vm.disks).filter_map(|disk| disk.pool.clone()).collect();
        let mut usable = BTreeMap::new();
        for name in pools {
            match usable_pool(&daemon, &name) {
                Ok(pool) => drop(usable.insert(name, pool)),
                Err(problem) => problems.push(*problem),
            }
        }
        for vm in &mut vms {
            problems.extend(self.place(vm, &usable));
        }
        let vms: Vec<&PlannedVm> = vms.into_iter().map(|vm| &*vm).collect();
        problems.extend(self.space_problems(&vms, &usable));
        problems.extend(network_problems(&daemon, &vms));
        problems.extend(twin_problems(&vms));
        problems.extend(self.offer_problems(&daemon, &vms));
        problems.extend(vms.iter().filter_map(|vm| self.driver_problem(vm)));
        problems
    }

    /// Where a VM's volumes lie.
    fn place(&self, vm: &mut PlannedVm, pools: &BTreeMap<String, Pool>) -> Option<Problem> {
        for disk in &mut vm.disks {
            let Some(pool) = disk.pool.as_ref().and_then(|name| pools.get(name)) else { continue };
            if let Some(file) = disk.path.file_name() {
                disk.path = pool.path.join(file);
                disk.base.clone_from(&pool.path);
            }
        }
        match self.folder(vm) {
            Ok(folder) => vm.folder = folder,
            Err(error) => return Some(of_vm(vm, "target", &chain(&error))),
        }
        None
    }

    fn space_problems(&self, vms: &[&PlannedVm], pools: &BTreeMap<String, Pool>) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (name, pool) in pools {
            let disks =
                || vms.iter().flat_map(|vm| &vm.disks).filter(|disk| disk.pool.as_ref() == Some(name));
            let there: u64 = disks()
                .filter_map(|disk| std::fs::metadata(&disk.path).ok())
                .map(|meta| meta.blocks() * 512)
                .sum();
            let sum = |is_meant: &dyn Fn(Option<bool>) -> bool| {
                let meant = disks().filter(|disk| is_meant(disk.disk.thin));
                meant
                    .fold(0u64, |sum, disk| sum.saturating_add(disk.disk.capacity_bytes))
                    .saturating_sub(there)
            };
            let (needed, thick) = (sum(&|_| true), sum(&|thin| thin == Some(false)));
            let free = pool.available_bytes;
            let text = |bytes| {
                format!("pool {name} has {} free, and the disks may take {}", Bytes(free), Bytes(bytes))
            };
            if thick > free {
                problems.push(
                    Problem::error("target.pool", text(thick)).advise("make room or choose another pool"),
                );
            } else if needed > free && !self.about.target.overcommit {
                problems.push(Problem::error("target.pool", text(needed)).advise(
                    "make room; or, as thin disks take only what they hold, allow it with `target.overcommit: true`",
                ));
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
        let cpu = self.about.target.libvirt().and_then(|libvirt| libvirt.cpu.as_deref());
        if let Some(cpu) = cpu.filter(|cpu| !offers.cpus.iter().any(|it| it == cpu)) {
            let text = format!("{uri} does not offer the CPU {cpu}");
            let advice = format!("see what it offers: virsh -c '{uri}' domcapabilities --machine {machine}");
            problems.push(Problem::error("target.cpu", text).advise(advice));
        }
        problems.extend(vms.iter().filter_map(|vm| self.lacking(vm, uri, &offers)));
        problems
    }

    fn lacking(&self, vm: &PlannedVm, uri: &str, offers: &Offers) -> Option<Problem> {
        let is_uefi = vm.vm.firmware == Some(Firmware::Uefi);
        let (lacks, advice) = if is_uefi && !offers.uefi {
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
        };
        Some(of_vm(vm, "target", &format!("it needs {lacks}, which {uri} does not offer")).advise(advice))
    }

    /// A guest that has to be converted, and what is not there for that.
    fn driver_problem(&self, vm: &PlannedVm) -> Option<Problem> {
        let machine = machine_of(vm, &self.about.target, &self.about.origin);
        let need = drover_qemu::needs_conversion(&vm.vm.guest_id, boot_bus(&machine));
        let is_needed = matches!(need, Need::Needed(_)) && vm.convert != Convert::Never;
        let is_windows = vm.vm.guest_id.to_ascii_lowercase().starts_with("win");
        let drivers = std::env::var_os("VIRTIO_WIN").unwrap_or("/usr/share/virtio-win".into());
        let (lacks, advice) = match drover_qemu::can_convert() {
            _ if !is_needed => return None,
            // `look_ahead` refuses it.
            Err(_) if vm.convert == Convert::Always => return None,
            Err(why) => (
                why,
                "install it, choose `disk_bus: sata`, or write `convert: never` for a guest that has virtio drivers",
            ),
            Ok(()) if is_windows && !Path::new(&drivers).exists() => (
                "it is Windows, and virtio-win, which has its drivers, is not installed".to_string(),
                "install virtio-win, or say where it is in the variable VIRTIO_WIN",
            ),
            Ok(()) => return None,
        };
        let problem = match vm.convert {
            Convert::Always => of_vm(vm, "convert", &lacks),
            Convert::Auto | Convert::Never => {
                let text = format!("{} needs conversion to boot: {lacks}", vm.vm.name);
                Problem::warning("convert", text).at(At { line: vm.line, column: 1 })
            }
        };
        Some(problem.advise(advice))
    }
}

/// A pool that disks can be written to on this host.
fn usable_pool(daemon: &Daemon, name: &str) -> Result<Pool, Box<Problem>> {
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
    match &pool.kind {
        PoolKind::Files => {}
        PoolKind::Logical | PoolKind::Other(_) => {
            let kind = if let PoolKind::Other(kind) = &pool.kind { kind } else { "logical" };
            let text = format!("pool {name} of {uri} is of the type {kind}, which drover does not write to");
            return Err(problem(text, "choose a pool of the type dir, fs or netfs".into()));
        }
    }
    if !pool.is_active {
        let advice = format!("start it: virsh -c '{uri}' pool-start '{name}'");
        return Err(problem(format!("pool {name} of {uri} is not active"), advice));
    }
    if let Err(error) = drover_disk::is_writable_dir(&pool.path) {
        let text = format!(
            "pool {name} of {uri} lies in {}, which cannot be written here: {}",
            pool.path.display(),
            error.source
        );
        return Err(problem(text, "run drover on the daemon's host as root, or choose another pool".into()));
    }
    Ok(pool)
}

fn network_problems(daemon: &Daemon, vms: &[&PlannedVm]) -> Vec<Problem> {
    let uri = daemon.uri();
    let wanted: BTreeSet<&str> = vms
        .iter()
        .flat_map(|vm| &vm.nics)
        .filter_map(|nic| match &nic.target {
            NetworkTarget::Libvirt(LibvirtNetwork { kind: LibvirtNetworkKind::Network, name, .. }) => {
                Some(name.as_str())
            }
            _ => None,
        })
        .collect();
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
    let mut problems = Vec::new();
    for (name, is_bridge) in devices {
        let folder = Path::new(DEVICES);
        if !folder.join(name).exists() {
            let text = format!("this host has no bridge or device {name}");
            problems
                .push(Problem::error("networks", text).advise("see `ip link`, and the plan's `networks`"));
        } else if is_bridge && let Err(error) = check_bridge(folder, name) {
            let advice = error.advice.clone().unwrap_or_default();
            problems.push(Problem::error("networks", chain(&error)).advise(advice));
        }
    }
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
