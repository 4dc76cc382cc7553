//! Lays a plan over an inventory.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use drover_types::inventory::{DiskBus, Inventory, PowerState, ToolsState, Vm, VmDisk};
use drover_types::some_of;

use self::names::{ByName, rule_of};
pub use self::proxy::{PlannedProxy, proxies};
pub(crate) use self::select::{asked_for, fits, near_to};
use self::waves::WaveIndex;
use crate::concern::{ConcernContext, Namesakes, Weight, concerns_among, unlooked_network_driver};
use crate::model::*;
use crate::near::nearest;
use crate::problem::{At, Problem, sort};
use crate::resolution::{PlannedDisk, PlannedNic, PlannedVm, Resolution, TargetBus, TargetHost};

/// A file name may have 255 bytes; the disk's number and ending are added to it.
const NAME_BYTES_MAX: usize = 200;
/// VMs that one message names; the rest is counted.
pub const NAMES_SHOWN_MAX: usize = 5;

/// Lays a plan over an inventory; all problems at once, nothing is touched.
pub fn resolve(plan: &Plan, inventory: &Inventory) -> Resolution {
    let mut resolver = Resolver::new(plan, inventory);
    resolver.check_hosts();
    resolver.check_tags();
    resolver.check_exclusions();
    resolver.check_rules();
    let chosen = resolver.select();
    let mut vms: Vec<PlannedVm> = chosen.iter().map(|(vm, choice)| resolver.plan_vm(vm, choice)).collect();
    vms.sort_by(|a, b| a.target_name.cmp(&b.target_name));
    resolver.check_names(&vms);
    resolver.tell_unmapped();
    resolver.tell_names();
    resolver.tell_waves(&vms);
    resolver.tell_groups(&vms);
    if vms.is_empty() && !resolver.problems.iter().any(Problem::is_error) {
        resolver.problems.push(Problem::error("vms", "the plan moves no VM").advise("see its warnings"));
    }
    sort(&mut resolver.problems);
    Resolution { vms, problems: resolver.problems }
}

/// Places in the plan's list of the selections that choose a VM; exclusions are not looked at.
pub fn chosen_by(plan: &Plan, inventory: &Inventory, vm: &Vm) -> Vec<usize> {
    let resolver = Resolver::new(plan, inventory);
    let chosen = plan.vms.iter().enumerate().filter(|(_, it)| resolver.selects(&it.selector, vm));
    chosen.map(|(place, _)| place).collect()
}

struct Resolver<'a> {
    plan: &'a Plan,
    inventory: &'a Inventory,
    problems: Vec<Problem>,
    /// Networks without a rule, where that was first seen, and the VMs on them.
    unmapped: BTreeMap<&'a str, (At, Vec<&'a Vm>)>,
    by_name: ByName<'a>,
    names: OnceCell<Namesakes<'a>>,
    waves: WaveIndex<'a>,
    /// VMs that are in no wave, where the plan has waves.
    in_no_wave: Vec<(At, &'a str)>,
}

/// What the selections that chose a VM say of it.
#[derive(Default)]
struct Choice {
    overrides: Overrides,
    at: At,
    path: String,
}

impl<'a> Resolver<'a> {
    fn new(plan: &'a Plan, inventory: &'a Inventory) -> Resolver<'a> {
        Resolver {
            plan,
            inventory,
            problems: plan.warnings.clone(),
            unmapped: BTreeMap::new(),
            by_name: ByName::default(),
            names: OnceCell::new(),
            waves: WaveIndex::new(plan),
            in_no_wave: Vec::new(),
        }
    }

    fn error(&mut self, path: &str, at: At, message: impl Into<String>, advice: impl Into<String>) {
        self.problems.push(Problem::error(path, message).at(at).advise(advice));
    }

    /// An error that is of one VM alone.
    fn error_of(
        &mut self,
        vm: &Vm,
        path: &str,
        at: At,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.problems.push(Problem::error(path, message).at(at).advise(advice).of_vms([vm.id.as_str()]));
    }

    fn plan_vm(&mut self, vm: &'a Vm, choice: &Choice) -> PlannedVm {
        let plan = self.plan;
        let over = &choice.overrides;
        let excluded: Vec<i32> = self.excluded_disks(vm, choice);
        self.check_volumes(vm, choice, &excluded);
        let wave = self.wave_of(vm, choice);
        let power_off = over.power_off.unwrap_or(plan.power_off);
        let disk_bus = over.disk_bus.unwrap_or(plan.target.disk_bus);
        let nics = self.plan_nics(vm, choice);
        self.keep_names(vm, choice, &excluded);
        let mut first_boot = over.first_boot.clone().or(plan.first_boot.clone());
        let keeps_addresses = vm.is_windows_by_id() && over.keep_addresses.unwrap_or(plan.keep_addresses);
        if vm.is_windows_by_id() {
            // It gets its own from virtio-win.
            first_boot.guest_agent = None;
            if keeps_addresses {
                self.keep_addresses(vm, &nics, choice, &mut first_boot.addresses);
            }
        }
        let convert = self.conversion(vm, choice, &first_boot);
        let warm = match over.mode.unwrap_or(plan.mode) {
            Mode::Cold => None,
            Mode::Warm => Some(over.warm.or(plan.warm).or_default()),
        };
        self.check_moment(vm, choice, warm, wave.as_deref());
        let context = ConcernContext {
            power_off: Some(power_off),
            data_from: plan.source.vsphere().map(|source| source.data.from),
            convert: Some(convert),
            disk_bus: Some(disk_bus),
            given_addresses: first_boot.addresses.clone(),
            warm,
            no_chains: !plan.source.vsphere().is_some_and(|source| source.data.follows_chains()),
            excluded_disks: excluded.clone(),
        };
        let names = self.names.get_or_init(|| Namesakes::of(self.inventory));
        let found = concerns_among(vm, self.inventory, names, &context);
        for concern in found.iter().filter(|concern| concern.severity == Weight::Blocks) {
            let message = format!("{} {}", concern.subject, concern.message);
            self.error_of(vm, &choice.path, choice.at, message, concern.advice.clone());
        }
        self.check_power(vm, choice, power_off);
        let format = over.format.unwrap_or(plan.target.format);
        // A VM that names its own daemon goes to one of this machine.
        let via = plan.target.via.clone().filter(|_| over.uri.is_none());
        let site = plan.target.kubevirt().map(Kubevirt::site).or(via);
        if let (Some(site), ImageFormat::Qcow2) = (&site, format) {
            let text = format!("{} is to become qcow2, and the agent of {site} writes raw images", vm.name);
            self.error(&choice.path, choice.at, text, "use `format: raw`");
        }
        let target_name = safe_name(over.target_name.as_deref().unwrap_or(&vm.name));
        let libvirt = plan.target.libvirt();
        // Where there are several hosts, it has none before it is placed.
        let single = libvirt.filter(|libvirt| libvirt.hosts.is_empty());
        let daemon = single.map(|libvirt| over.uri.clone().unwrap_or(libvirt.uri.clone()));
        let target_host = over.target_host.clone().map(TargetHost::pinned);
        let pool = libvirt.map(|libvirt| over.pool.clone().unwrap_or(libvirt.pool.clone()));
        let base = over.target_folder.clone().unwrap_or(plan.target.folder.clone());
        let base = if base.is_absolute() { base } else { plan.target.folder.join(base) };
        let folder = base.join(&target_name);
        let checks = over.checks.clone().or(plan.checks.clone()).of(&target_name);
        let kubevirt = plan.target.kubevirt();
        let name = kubevirt.map_or(target_name.clone(), |_| kube_name(&target_name));
        let mut planned = PlannedVm {
            disks: match (&pool, kubevirt) {
                (None, Some(kubevirt)) => self.plan_claims(vm, choice, &excluded, disk_bus, &name, kubevirt),
                (None, None) => {
                    self.plan_disks(vm, choice, &excluded, disk_bus, format, &folder, &target_name, &base)
                }
                (Some(pool), _) => {
                    self.plan_volumes(vm, choice, &excluded, disk_bus, format, &target_name, pool)
                }
            },
            nics,
            route: self.route(vm, choice),
            vm: vm.clone(),
            host_name: self.inventory.host(&vm.host_id).map(|host| host.name.clone()),
            warm,
            target_name,
            site,
            daemon,
            target_host,
            folder: kubevirt
                .map_or(folder, |kubevirt| PathBuf::from("/").join(&kubevirt.namespace).join(name)),
            format,
            disk_bus,
            nic_model: over.nic_model.unwrap_or(plan.target.nic_model),
            power_off,
            shutdown_timeout: over.shutdown_timeout.unwrap_or(plan.shutdown_timeout),
            verify: over.verify.unwrap_or(plan.verify),
            start: over.start.unwrap_or(plan.start),
            autostart: over.autostart.unwrap_or(libvirt.is_some_and(|it| it.autostart)),
            convert,
            first_boot,
            keeps_addresses,
            nfc: None,
            priority: over.priority.unwrap_or(0),
            hooks: plan.hooks.clone().into_iter().chain(over.hooks.clone()).collect(),
            checks,
            wave,
            deadline_ms: over.deadline_ms,
            group: self.group_of(vm, choice),
            anti_affinity: over.anti_affinity.clone(),
            found: None,
            concerns: found,
            line: choice.at.line,
        };
        // A fleet is planned of thousands, and a list begins with room for four.
        planned.disks.shrink_to_fit();
        planned.nics.shrink_to_fit();
        planned.concerns.extend(unlooked_network_driver(&planned));
        planned.concerns.sort_by_key(|concern| concern.severity);
        planned.concerns.shrink_to_fit();
        planned
    }

    /// Work at the first boot is put into a guest by its conversion.
    fn conversion(&mut self, vm: &Vm, choice: &Choice, first_boot: &FirstBoot) -> Convert {
        let convert = choice.overrides.convert.unwrap_or(self.plan.convert);
        if first_boot.is_empty() {
            return convert;
        }
        let mut wrong = |what: String, advice: &str| {
            self.error_of(
                vm,
                &format!("{}.first_boot", choice.path),
                choice.at,
                format!("{} {what}", vm.name),
                advice,
            );
        };
        if convert == Convert::Never {
            let advice = match first_boot.addresses.is_empty() {
                true => "write `convert: auto`",
                false => "write `convert: auto`, or `keep_addresses: false` for this VM",
            };
            wrong("has work for its first boot, and is not to be converted".into(), advice);
        }
        if !vm.may_be_windows() && !first_boot.addresses.is_empty() {
            wrong(
                "is no Windows by its guest id, and only Windows is given its addresses".into(),
                "leave `addresses` out: see `drover plan check --inspect` for what becomes of those of Linux; or correct the guest OS \
                 at the source, if it is Windows",
            );
        }
        for StaticAddress { mac, .. } in &first_boot.addresses {
            if !vm.nics.iter().any(|nic| nic.mac.eq_ignore_ascii_case(mac)) {
                wrong(
                    format!("has no network card with the MAC address {mac}"),
                    "`drover inventory` shows those that it has",
                );
            }
        }
        Convert::Always
    }

    /// Adds the fixed addresses of Windows that its tools tell, for cards that the plan gives none.
    fn keep_addresses(
        &mut self,
        vm: &Vm,
        planned: &[PlannedNic],
        choice: &Choice,
        given: &mut Vec<StaticAddress>,
    ) {
        let path = format!("{}.keep_addresses", choice.path);
        let mut untold = Vec::new();
        for (nic, planned) in vm.nics.iter().zip(planned) {
            let is_given = given.iter().any(|it| it.mac.eq_ignore_ascii_case(&nic.mac));
            if is_given || planned.target == NetworkTarget::None {
                continue;
            }
            if nic.fixed.is_none() {
                untold.extend(nic.connected.then_some(nic.label.as_str()));
            }
            given.extend(StaticAddress::kept_of(nic));
        }
        if !untold.is_empty() {
            let text = format!("VMware Tools of {} tell no addresses of {}", vm.name, untold.join(", "));
            let advice = "start it, with VMware Tools running; or give `addresses`, or `keep_addresses: false`, for this VM";
            self.error_of(vm, &path, choice.at, text, advice);
        }
    }

    fn excluded_disks(&mut self, vm: &Vm, choice: &Choice) -> Vec<i32> {
        let mut excluded = Vec::new();
        for wanted in choice.overrides.exclude_disks.iter().flatten() {
            match vm.disks.iter().find(|disk| is_named(wanted, disk)) {
                Some(disk) => excluded.push(disk.key),
                None => {
                    let labels: Vec<&str> = vm.disks.iter().map(|disk| disk.label.as_str()).collect();
                    let text = format!("{} has no disk '{wanted}'", vm.name);
                    self.error(
                        &format!("{}.exclude_disks", choice.path),
                        choice.at,
                        text,
                        format!("it has: {}", labels.join(", ")),
                    );
                }
            }
        }
        excluded
    }

    /// Volumes are named for disks that the VM has, and that move.
    fn check_volumes(&mut self, vm: &Vm, choice: &Choice, excluded: &[i32]) {
        for rule in choice.overrides.volumes.iter().flatten() {
            let moved = || vm.disks.iter().filter(|disk| !excluded.contains(&disk.key));
            if moved().any(|disk| is_named(&rule.disk, disk)) {
                continue;
            }
            let labels: Vec<&str> = moved().map(|disk| disk.label.as_str()).collect();
            self.error_of(
                vm,
                &format!("{}.volumes", choice.path),
                rule.at,
                format!("{} moves no disk '{}'", vm.name, rule.disk),
                format!("it moves: {}", labels.join(", ")),
            );
        }
    }

    fn check_power(&mut self, vm: &Vm, choice: &Choice, power_off: PowerOff) {
        if vm.power != PowerState::On {
            return;
        }
        let (message, advice) = match power_off {
            PowerOff::Refuse => (
                format!("{} is running, and the plan does not allow to switch it off", vm.name),
                "shut it down, or write `power_off: shutdown`",
            ),
            PowerOff::Shutdown if vm.tools != ToolsState::Running => (
                format!("{} is running without guest tools, so it cannot be shut down cleanly", vm.name),
                "shut it down from inside, or write `power_off: force`",
            ),
            PowerOff::Shutdown | PowerOff::Force => return,
        };
        self.error_of(vm, &choice.path, choice.at, message, advice);
    }

    #[expect(clippy::too_many_arguments, reason = "what a disk's place is made of")]
    fn plan_disks(
        &self,
        vm: &Vm,
        choice: &Choice,
        excluded: &[i32],
        bus: DiskBusChoice,
        format: ImageFormat,
        folder: &std::path::Path,
        name: &str,
        base: &std::path::Path,
    ) -> Vec<PlannedDisk> {
        let kept = vm.disks.iter().enumerate().filter(|(_, disk)| !excluded.contains(&disk.key));
        let plan_disk = |(index, disk): (usize, &VmDisk)| {
            let store = self.store(vm, disk, choice);
            let (base, folder) = match store {
                Some(store) => (store.clone(), store.join(name)),
                None => (base.to_path_buf(), folder.to_path_buf()),
            };
            let path = folder.join(format!("{name}-{index}.{}", format.extension()));
            let bus = target_bus(bus, disk.bus);
            PlannedDisk { disk: disk.clone(), index, path, pool: None, volume: None, base, bus }
        };
        kept.map(plan_disk).collect()
    }

    /// Disks as volumes `/POOL/NAME-0.raw`; where pools lie only their daemon knows.
    #[expect(clippy::too_many_arguments, reason = "what a disk's place is made of")]
    fn plan_volumes(
        &self,
        vm: &Vm,
        choice: &Choice,
        excluded: &[i32],
        bus: DiskBusChoice,
        format: ImageFormat,
        name: &str,
        pool: &str,
    ) -> Vec<PlannedDisk> {
        let named = choice.overrides.volumes.iter().flatten();
        let kept = vm.disks.iter().enumerate().filter(|(_, disk)| !excluded.contains(&disk.key));
        let plan_disk = |(index, disk): (usize, &VmDisk)| {
            let ruled = self.storage_rule(vm, disk, choice).map(|to| to.to_string_lossy().into_owned());
            let pool = ruled.unwrap_or(pool.to_string());
            let base = std::path::Path::new("/").join(&pool);
            let path = base.join(format!("{name}-{index}.{}", format.extension()));
            let bus = target_bus(bus, disk.bus);
            let volume = named.clone().find(|rule| is_named(&rule.disk, disk)).map(|it| it.volume.clone());
            PlannedDisk { disk: disk.clone(), index, path, pool: Some(pool), volume, base, bus }
        };
        kept.map(plan_disk).collect()
    }

    /// Disks as claims `/NAME-0`, or files in them; a storage rule names another storage class.
    fn plan_claims(
        &self,
        vm: &Vm,
        choice: &Choice,
        excluded: &[i32],
        bus: DiskBusChoice,
        name: &str,
        kubevirt: &Kubevirt,
    ) -> Vec<PlannedDisk> {
        let kept = vm.disks.iter().enumerate().filter(|(_, disk)| !excluded.contains(&disk.key));
        let plan_disk = |(index, disk): (usize, &VmDisk)| {
            let ruled = self.storage_rule(vm, disk, choice).map(|to| to.to_string_lossy().into_owned());
            let base = PathBuf::from("/").join(format!("{name}-{index}"));
            let path = match kubevirt.volume_mode {
                VolumeMode::Block => base.clone(),
                VolumeMode::Filesystem => base.join("disk.img"),
            };
            let pool = ruled.or(kubevirt.storage_class.clone());
            PlannedDisk {
                disk: disk.clone(),
                index,
                path,
                pool,
                volume: None,
                base,
                bus: target_bus(bus, disk.bus),
            }
        };
        kept.map(plan_disk).collect()
    }

    /// The folder that a storage rule gives a disk, if one does.
    fn store(&self, vm: &Vm, disk: &VmDisk, choice: &Choice) -> Option<PathBuf> {
        self.storage_rule(vm, disk, choice).map(|folder| self.plan.target.folder.join(folder))
    }

    /// The folder or pool that a storage rule names for a disk, if one does.
    fn storage_rule(&self, vm: &Vm, disk: &VmDisk, choice: &Choice) -> Option<PathBuf> {
        let rules = choice.overrides.storage.iter().chain(&self.plan.storage);
        rule_of(rules, |rule| &rule.from, vm, &disk.datastore)?.to.clone()
    }

    fn plan_nics(&mut self, vm: &'a Vm, choice: &Choice) -> Vec<PlannedNic> {
        let mut nics = Vec::new();
        for (index, nic) in vm.nics.iter().enumerate() {
            let rules = choice.overrides.networks.iter().chain(&self.plan.networks);
            let target = match rule_of(rules, |rule| &rule.from, vm, &nic.network) {
                Some(rule) => rule.to.clone(),
                None => {
                    let (_, vms) = self.unmapped.entry(&nic.network).or_insert((choice.at, Vec::new()));
                    if vms.last().is_none_or(|last| last.id != vm.id) {
                        vms.push(vm);
                    }
                    NetworkTarget::None
                }
            };
            nics.push(PlannedNic {
                index,
                mac: nic.mac.clone(),
                network: nic.network.clone(),
                target,
                connected: nic.connected,
                model: nic.model.clone(),
            });
        }
        nics
    }

    fn tell_unmapped(&mut self) {
        for (network, (at, vms)) in std::mem::take(&mut self.unmapped) {
            let names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
            let message =
                format!("network '{network}' of {} is not mapped", some_of(&names, NAMES_SHOWN_MAX));
            let advice = format!("add to `networks`:  \"{network}\": BRIDGE (or user, or none)");
            let problem = Problem::error("networks", message).at(at).advise(advice);
            self.problems.push(problem.of_vms(vms.iter().map(|vm| vm.id.as_str())));
        }
    }

    /// Rules of the plan for networks and datastores that the inventory lacks.
    fn check_rules(&mut self) {
        let inventory = self.inventory;
        let nics = inventory.vms.iter().flat_map(|vm| &vm.nics).map(|nic| nic.network.as_str());
        let networks = inventory.networks.iter().map(|network| network.name.as_str()).chain(nics).collect();
        let disks = inventory.vms.iter().flat_map(|vm| &vm.disks).map(|disk| disk.datastore.as_str());
        let stores = inventory.datastores.iter().map(|store| store.name.as_str()).chain(disks).collect();
        for rule in &self.plan.networks {
            if !self.knows_network(&rule.from) {
                self.check_rule("networks", "network", &rule.from, rule.at, &networks);
            }
        }
        for rule in &self.plan.storage {
            if !self.knows_datastore(&rule.from) {
                self.check_rule("storage", "datastore", &rule.from, rule.at, &stores);
            }
        }
    }

    fn check_rule(&mut self, key: &str, what: &str, from: &str, at: At, known: &BTreeSet<&str>) {
        if from == "*" || known.contains(from) {
            return;
        }
        let advice = nearest(from, known.iter().copied())
            .map_or("it does no harm".to_string(), |near| format!("did you mean '{near}'?"));
        let problem = Problem::warning(format!("{key}.{from}"), format!("there is no {what} '{from}'"));
        self.problems.push(problem.at(at).advise(advice));
    }

    /// No two VMs may share a name at the target, in whatever case.
    fn check_names(&mut self, vms: &[PlannedVm]) {
        let mut names: HashMap<String, &PlannedVm> = HashMap::new();
        for vm in vms {
            let name = match self.plan.target.kubevirt() {
                Some(_) => kube_name(&vm.target_name),
                None => vm.target_name.to_lowercase(),
            };
            let twin = names.insert(name, vm);
            if let Some(twin) = twin {
                let at = At { line: vm.line, column: 1 };
                // What begins with one VM's name is said once for many.
                let text = format!(
                    "{} would be '{}' at the target, and so would '{}' (ids {} and {})",
                    vm.vm.name, vm.target_name, twin.vm.name, vm.vm.id, twin.vm.id
                );
                self.error("vms", at, text, "select one of them by `id:` and give it a `target_name`");
            }
        }
    }
}

/// Whether a plan that names this means a disk: by its label, or its backing path.
fn is_named(name: &str, disk: &VmDisk) -> bool {
    disk.label == name || disk.path == name
}

fn target_bus(choice: DiskBusChoice, source: DiskBus) -> TargetBus {
    match (choice, source) {
        (DiskBusChoice::Virtio, _) => TargetBus::Virtio,
        (DiskBusChoice::Scsi, _) | (DiskBusChoice::Keep, DiskBus::Scsi) => TargetBus::Scsi,
        (DiskBusChoice::Sata, _) | (DiskBusChoice::Keep, DiskBus::Sata | DiskBus::Ide) => TargetBus::Sata,
        (DiskBusChoice::Keep, DiskBus::Nvme) => TargetBus::Nvme,
    }
}

/// A name that is safe as a file name and as a libvirt domain name: letters, digits, `-`, `_`, `.`.
/// Other characters become `-`; a name that keeps nothing of itself gets the number of its characters.
pub(crate) fn safe_name(name: &str) -> String {
    let safe: String =
        name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    let mut safe = safe.trim_matches(['-', '.']).to_string();
    while safe.len() > NAME_BYTES_MAX {
        safe.pop();
    }
    if safe.is_empty() { format!("vm-{}", name.chars().count()) } else { safe }
}

/// A name that a machine and its volumes can have in Kubernetes (RFC 1123): lower-case letters, digits and `-`, short enough to be a
/// label with a disk's number behind it. What had to be cut ends in a number made of the whole.
pub fn kube_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let lower = name.to_lowercase();
    let mut safe: String = lower.chars().map(|c| if fits(c) { c } else { '-' }).collect();
    safe = safe.trim_matches('-').to_string();
    if safe.is_empty() || safe.len() > KUBE_NAME_BYTES_MAX {
        // FNV-1a: the same in every version.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        safe.truncate(KUBE_NAME_BYTES_MAX - 9);
        let begin = safe.trim_matches('-');
        let begin = if begin.is_empty() { "vm" } else { begin };
        safe = format!("{begin}-{:08x}", hash as u32);
    }
    safe
}

/// A label has 63; a disk's number and a worker's ending are added to it.
const KUBE_NAME_BYTES_MAX: usize = 48;

mod names;
mod proxy;
mod route;
mod select;
#[cfg(test)]
mod tests;
mod waves;
