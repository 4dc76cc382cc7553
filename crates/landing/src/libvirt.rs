//! Domains of libvirt as a target: disks are volumes of pools, and machines are domains that a daemon has. Volumes of this host are
//! written as images in a folder are, or as block devices, LUNs or images of Ceph ([`block`], [`lun`], [`rbd`]), those of another host by its agent ([`far`],
//! [`far_block`]), or where this host has its storage, too ([`shared`]). What stands in the way is found in [`survey`].

mod block;
mod cpu;
mod far;
mod far_block;
mod lun;
mod made;
mod placing;
mod probe;
mod rbd;
mod shared;
mod survey;

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_agent::Home;
use drover_agent::host::{VARIABLES, variables_in};
use drover_agent::machine::Machine;
use drover_disk::Disk;
use drover_engine::{Cause, Converted, OpenedTarget, ProviderError, Started, TargetPlace, TargetProvider};
use drover_mover::{file_tag, journal_path};
use drover_plan::{
    Accelerator, DiskCache, DiskIo, ImageFormat, Libvirt, LibvirtNetwork, LibvirtNetworkKind, NetworkTarget,
    PlannedDisk, PlannedNic, PlannedVm,
};
use drover_qemu::daemon::{CpuModel, Daemon, FoundDomain, NewVolume, Owner};
use drover_qemu::{
    Access, Cache, DiskSpec, DomainOptions, MachineFirmware, MachineSpec, NicAttach, QemuError, VmFolder,
    domain_xml,
};
use drover_types::inventory::Firmware;

use self::block::Blocks;
pub use self::rbd::CephCopy;
use crate::conversion::{self, OnThisMachine, Served};
use crate::errors::qemu_error;
use crate::here::{self, Here};
use crate::images;
use crate::machine::{boot_bus_of, machine_of, spec_of};
use crate::ours::Image;
use crate::setting::{Setting, io_error};
use crate::sites::Sites;
use crate::there::{self, There};

/// Whose converter a guest is given to.
pub enum ConvertedBy {
    /// That of this machine, where its volumes are.
    ThisMachine,
    /// That of this machine, which reads and writes volumes of a site.
    OverLink {
        /// The site.
        site: String,
        /// Why not there.
        why: String,
    },
    /// That of the host that has its volumes.
    ItsHost {
        /// Its agent.
        there: Arc<There>,
        /// The VM as that is told of it.
        machine: Box<PlannedVm>,
    },
}

/// Libvirt's daemons, for one plan.
pub struct Domains {
    here: Arc<Here>,
    sites: Arc<Sites>,
    about: Setting,
    /// Whether a daemon offers KVM, by its address.
    kvm: Mutex<HashMap<String, bool>>,
    /// Daemons of hosts that were away when VMs were placed, and why they count as that.
    away: Mutex<HashMap<String, String>>,
    /// The CPU that all hosts have, once it was found.
    common_cpu: Mutex<Option<CpuModel>>,
    /// How a daemon is reached.
    dial: fn(&str) -> Daemon,
}

impl Domains {
    pub fn new(here: Arc<Here>, sites: Arc<Sites>, about: &Setting) -> Domains {
        Domains::dialled_by(here, sites, about, Daemon::new)
    }

    /// With daemons that are reached in this way.
    pub fn dialled_by(
        here: Arc<Here>,
        sites: Arc<Sites>,
        about: &Setting,
        dial: fn(&str) -> Daemon,
    ) -> Domains {
        let (kvm, away, common_cpu) = (Mutex::default(), Mutex::default(), Mutex::default());
        Domains { here, sites, about: about.clone(), kvm, away, common_cpu, dial }
    }

    /// The site whose agent writes a VM's volumes, if they are another host's.
    fn site(&self, vm: &PlannedVm) -> Result<Option<Arc<There>>, ProviderError> {
        vm.site.as_deref().map(|site| self.sites.of(site)).transpose()
    }

    /// A VM's own folder: what drover keeps of it on this host, which is none of the daemon's.
    fn folder(&self, vm: &PlannedVm) -> Result<PathBuf, ProviderError> {
        let state = self.about.state();
        let state = std::path::absolute(state).map_err(|error| io_error("finding", state, error))?;
        Ok(state.join("libvirt").join(&self.about.plan).join(&vm.target_name))
    }

    fn daemon(&self, vm: &PlannedVm) -> Daemon {
        (self.dial)(vm.daemon.as_deref().unwrap_or_default())
    }

    fn blocks<'a>(&'a self, vm: &'a PlannedVm, daemon: &'a Daemon) -> Blocks<'a> {
        Blocks { plan: &self.about.plan, daemon, vm }
    }

    fn owner(&self, vm: &PlannedVm) -> Owner {
        Owner { plan: self.about.plan.clone(), vm: vm.vm.id.clone(), instance: vm.vm.instance_uuid.clone() }
    }

    /// The domain that this plan defined of a VM, and another that has the VM's name or UUID.
    fn found(&self, vm: &PlannedVm) -> Result<(Option<FoundDomain>, Option<FoundDomain>), ProviderError> {
        self.check_there(vm)?;
        let uuid = Some(vm.vm.uuid.as_str()).filter(|uuid| !uuid.is_empty());
        let found = self.daemon(vm).domains_of(&vm.target_name, uuid);
        let found = found.map_err(|error| of_host(vm, unreachable(error)))?;
        let owner = self.owner(vm);
        let (ours, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|domain| domain.owner.as_ref() == Some(&owner));
        Ok((ours.into_iter().next(), others.into_iter().next()))
    }

    fn ours(&self, vm: &PlannedVm) -> Result<Option<FoundDomain>, ProviderError> {
        self.found(vm).map(|(ours, _)| ours)
    }

    /// The domain that this plan defined, if it did; refused if another has the VM's name or UUID.
    fn ours_alone(&self, vm: &PlannedVm) -> Result<Option<FoundDomain>, ProviderError> {
        match self.found(vm)? {
            (_, Some(other)) => Err(taken(vm, &other)),
            (ours, None) => Ok(ours),
        }
    }

    /// Refuses what is at a disk's place if it is not this plan's: that it holds nothing proves nothing.
    fn check_volume(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<(), ProviderError> {
        if let Some(there) = self.site(vm)? {
            return far::check_volume(&there, disk, vm);
        }
        if block::is_no_file(disk) {
            return self.blocks(vm, &self.daemon(vm)).check(disk);
        }
        match self.here.check_ours(disk, vm)? {
            Some(Image::Ours | Image::Unnamed | Image::Others(_) | Image::Plans(_)) => Ok(()),
            Some(Image::Missing | Image::Blank) | None if !disk.path.exists() => Ok(()),
            Some(Image::Missing | Image::Blank) | None if made::is_ours(vm, disk)? => Ok(()),
            Some(Image::Missing | Image::Blank) | None => {
                Err(not_made(&disk.path, &format!("virsh vol-delete {}", disk.path.display())))
            }
        }
    }

    fn runs(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let (ours, other) = self.found(vm)?;
        // Also one that lost drover's mark: somebody may have given the domain another definition since.
        Ok([ours, other].into_iter().flatten().any(|domain| domain.runs))
    }

    /// All that can refuse a VM later, looked at while it still runs. Touches nothing.
    pub fn look_ahead(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        if self.ours_alone(vm)?.is_none() && vm.vm.firmware == Some(Firmware::Uefi) {
            self.no_variables_left(vm)?;
        }
        vm.disks.iter().try_for_each(|disk| self.check_volume(disk, vm))?;
        let spec = self.spec(vm, None)?;
        spec.check().map_err(qemu_error)?;
        let boot_bus = boot_bus_of(&spec);
        match self.converted_by(vm)? {
            ConvertedBy::ThisMachine | ConvertedBy::OverLink { .. } => {
                self.here.converter.check(vm, boot_bus)
            }
            ConvertedBy::ItsHost { there, machine } if conversion::is_due(vm, boot_bus) => {
                let lack = there.lack_for_volumes(&machine).map_err(|refusal| there.refused(refusal))?;
                lack.map_or(Ok(()), |lack| {
                    let what = format!("{} needs conversion: {}", vm.vm.name, lack.what);
                    Err(ProviderError::new(Cause::Target, what).advise(lack.advice))
                })
            }
            ConvertedBy::ItsHost { .. } => Ok(()),
        }
    }

    /// Who converts the guest of a VM, as far as no conversion of it was begun.
    pub fn converted_by(&self, vm: &PlannedVm) -> Result<ConvertedBy, ProviderError> {
        let Some(there) = self.site(vm)? else { return Ok(ConvertedBy::ThisMachine) };
        if vm.disks.iter().any(|disk| far_block::is_volume(vm, disk)) {
            let (site, why) = (there.name().to_string(), conversion::OF_VOLUMES.to_string());
            return Ok(ConvertedBy::OverLink { site, why });
        }
        let Some(machine) = far::as_machine(vm) else { return Ok(ConvertedBy::ThisMachine) };
        let info = there.info().map_err(|refusal| there.refused(refusal))?;
        Ok(match conversion::why_not_at(there.name(), &info, vm, self.here.boot_bus(vm)) {
            Some(why) => ConvertedBy::OverLink { site: there.name().to_string(), why },
            None => ConvertedBy::ItsHost { there, machine: Box::new(machine) },
        })
    }

    /// Refuses firmware variables that an earlier domain of this name left: libvirt would start the new one with them.
    fn no_variables_left(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        // Daemons of users keep theirs elsewhere, each in a folder of its own.
        if !Libvirt::is_of_system(vm.daemon.as_deref().unwrap_or_default()) {
            return Ok(());
        }
        let found = match self.site(vm)? {
            Some(there) => far::variables_of(&there, &vm.target_name)?,
            // Nobody tells.
            None if shared::is_shared(vm) => None,
            None => {
                variables_in(Path::new(VARIABLES), &vm.target_name).map(|file| file.display().to_string())
            }
        };
        found.map_or(Ok(()), |file| Err(variables_left(&vm.target_name, &file)))
    }

    /// Whether a daemon runs this plan's domains on KVM.
    fn is_kvm(&self, daemon: &Daemon) -> Result<bool, QemuError> {
        match self.about.target.accelerator {
            Accelerator::Kvm => return Ok(true),
            Accelerator::Tcg => return Ok(false),
            Accelerator::Auto => {}
        }
        let known = |domains: &Domains| -> Option<bool> {
            domains.kvm.lock().unwrap_or_else(PoisonError::into_inner).get(daemon.uri()).copied()
        };
        if let Some(is_kvm) = known(self) {
            return Ok(is_kvm);
        }
        let is_kvm = match daemon.offers(true, self.machine()) {
            Ok(_) => true,
            // It offers the same without KVM, so that is what it lacks, unless the question was lost on its way.
            Err(error) => {
                daemon.offers(false, self.machine()).map_err(|_| error)?;
                daemon.offers(true, self.machine()).is_ok()
            }
        };
        // Not held while daemons are asked: one that hangs would hold up the others.
        self.kvm.lock().unwrap_or_else(PoisonError::into_inner).insert(daemon.uri().to_string(), is_kvm);
        Ok(is_kvm)
    }

    fn machine(&self) -> &str {
        self.about.target.libvirt().and_then(|libvirt| libvirt.machine.as_deref()).unwrap_or("q35")
    }

    fn spec(&self, vm: &PlannedVm, uuid: Option<String>) -> Result<MachineSpec, ProviderError> {
        let mut machine = machine_of(vm, &self.about.target, &self.about.origin);
        // Which firmware it gets is the daemon's to choose.
        machine.is_started = false;
        let images = vm.disks.iter().map(|disk| far::at_daemon(vm, disk)).collect();
        let home = Home { folder: vm.folder.clone(), images, machine: &machine };
        let mut spec = spec_of(&home, None).map_err(qemu_error)?;
        if let MachineFirmware::Uefi { files, .. } = &mut spec.firmware {
            *files = None;
        }
        spec.uuid = uuid.or(spec.uuid);
        spec.accelerator = match self.is_kvm(&self.daemon(vm)).map_err(unreachable)? {
            true => drover_qemu::Accelerator::Kvm,
            false => drover_qemu::Accelerator::Tcg,
        };
        if vm.site.is_some() {
            spec.cache = far::cache_of(vm);
        }
        self.put_in_ceph(&mut spec, vm)?;
        set_serials(&mut spec, vm);
        for (nic, planned) in spec.nics.iter_mut().zip(&vm.nics) {
            (nic.attach, nic.is_up) = (attach(planned), planned.connected);
        }
        if let Some(cache) = self.about.target.libvirt().and_then(|libvirt| libvirt.cache) {
            spec.cache = match cache {
                DiskCache::None => Cache::Direct,
                DiskCache::Writeback => Cache::Buffered,
            };
        }
        Ok(spec)
    }

    /// Tells of disks that are images of Ceph how they are reached.
    fn put_in_ceph(&self, spec: &mut MachineSpec, vm: &PlannedVm) -> Result<(), ProviderError> {
        let daemon = self.daemon(vm);
        for (disk, planned) in
            spec.disks.iter_mut().zip(&vm.disks).filter(|(_, planned)| rbd::is_rbd(planned))
        {
            disk.rbd = Some(rbd::pool_of(&daemon, vm, planned)?);
        }
        // Ceph's own cache keeps what was not flushed yet, as a page cache would.
        if !spec.disks.is_empty() && spec.disks.iter().all(|disk| disk.rbd.is_some()) {
            spec.cache = Cache::Buffered;
        }
        Ok(())
    }

    /// The machine of a VM as QEMU on this host builds it without libvirt, for a rehearsal.
    pub fn rehearsed(&self, vm: &PlannedVm) -> Result<MachineSpec, ProviderError> {
        vm.disks.iter().try_for_each(|disk| self.check_volume(disk, vm))?;
        // It does start: no daemon chooses its firmware.
        let machine = Machine { is_started: true, ..machine_of(vm, &self.about.target, &self.about.origin) };
        let images = vm.disks.iter().map(|disk| disk.path.clone()).collect();
        let home = Home { folder: vm.folder.clone(), images, machine: &machine };
        let mut spec = spec_of(&home, None).map_err(qemu_error)?;
        self.put_in_ceph(&mut spec, vm)?;
        set_serials(&mut spec, vm);
        Ok(spec)
    }

    /// Serves the images of a VM for a rehearsal, if any of them are in Ceph.
    pub fn served(&self, vm: &PlannedVm) -> Result<Option<CephCopy>, ProviderError> {
        self.blocks(vm, &self.daemon(vm)).served(&self.here)
    }

    fn options(&self, vm: &PlannedVm) -> Result<DomainOptions, ProviderError> {
        let usual = DomainOptions {
            owner: Some(self.owner(vm)),
            machine: self.machine().into(),
            ..DomainOptions::default()
        };
        let Some(libvirt) = self.about.target.libvirt() else { return Ok(usual) };
        Ok(DomainOptions {
            cpu: libvirt.cpu.clone(),
            model: self.common_cpu(vm)?,
            cpu_features: libvirt.cpu_features.clone(),
            page_bytes: libvirt.page_bytes,
            node_cpus: libvirt.numa_cpus,
            io: libvirt.io.map(|io| match io {
                DiskIo::Native => "native",
                DiskIo::Threads => "threads",
                DiskIo::IoUring => "io_uring",
            }),
            discard: libvirt.discard,
            tpm: libvirt.tpm && vm.vm.vtpm,
            ..usual
        })
    }

    /// Whether libvirt makes the volume of a disk: not where the plan wants of qcow2 what it cannot give.
    fn is_made_by_libvirt(&self, vm: &PlannedVm) -> bool {
        vm.format == ImageFormat::Raw
            || images::planned(&self.about.target.qcow2) == drover_qcow2::Qcow2Options::default()
    }

    /// What tells the images of a VM from others, where that is not known by their files: at another host, and of block devices, whose
    /// nodes are made anew at each boot, and of images of Ceph.
    fn identities(&self, vm: &PlannedVm) -> Result<Option<Vec<String>>, ProviderError> {
        if let Some(there) = self.site(vm)? {
            return vm.disks.iter().map(|disk| there.identity(disk)).collect::<Result<_, _>>().map(Some);
        }
        if !vm.disks.iter().any(block::is_no_file) {
            return Ok(None);
        }
        let daemon = self.daemon(vm);
        let identity = |disk: &PlannedDisk| match block::is_no_file(disk) {
            true => self.blocks(vm, &daemon).identity(disk),
            false => file_tag(&disk.path).map_err(|error| io_error("looking at", &disk.path, error)),
        };
        vm.disks.iter().map(identity).collect::<Result<_, _>>().map(Some)
    }

    /// Has the daemon see what drover wrote.
    fn refresh(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let mut pools: Vec<&str> = vm.disks.iter().filter_map(|disk| disk.pool.as_deref()).collect();
        pools.sort_unstable();
        pools.dedup();
        let daemon = self.daemon(vm);
        pools.into_iter().try_for_each(|pool| daemon.refresh(pool)).map_err(qemu_error)
    }

    /// Waits until a start that an earlier drover asked for has come to its end.
    fn wait_for_start(vm: &PlannedVm) -> Result<(), ProviderError> {
        let path = start_lock(vm);
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(|error| io_error("opening", &path, error))?,
        };
        let until = Instant::now() + START_TIME_MAX;
        loop {
            match file.try_lock_shared() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => {
                    let what =
                        format!("a start of {} that was asked for before is still under way", vm.target_name);
                    return Err(ProviderError::new(Cause::Target, what)
                        .advise("look at the daemon (`virsh list --all`), then the same command again"));
                }
                Err(TryLockError::Error(error)) => return Err(io_error("locking", &path, error)),
            }
        }
    }
}

impl TargetProvider for Domains {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        // A rehearsal that was cut off with its guard may still hold the images.
        drover_qemu::forget_rehearsal(&VmFolder::new(&vm.folder)).map_err(qemu_error)?;
        self.check_there(vm)?;
        // Before a folder is made: one that is refused leaves none.
        self.look_ahead(vm)?;
        std::fs::create_dir_all(&vm.folder).map_err(|error| io_error("making", &vm.folder, error))?;
        if let Some(there) = self.site(vm)? {
            there.make_room_for_journals(vm)?;
            // A conversion that an earlier run left there keeps its volumes until somebody comes.
            far::as_machine(vm).map_or(Ok(false), |machine| there.has_converted(&machine))?;
        }
        probe::try_pools(&self.daemon(vm), vm).inspect_err(|_| {
            // One that holds something stays.
            let _ = std::fs::remove_dir(&vm.folder);
        })
    }

    fn places(&self, vm: &PlannedVm, is_left: bool) -> Result<Vec<TargetPlace>, ProviderError> {
        let mut places = match self.site(vm)? {
            Some(there) => there.places(vm, is_left)?,
            None => self.here.places(vm, is_left)?,
        };
        for place in &mut places {
            place.needs.retain(|number, _| !far_block::is_no_file(vm, &vm.disks[*number]));
        }
        // libvirt refuses a block device that has no room before a byte of it is written; what Ceph has is its own affair.
        places.retain(|place| !place.needs.is_empty());
        Ok(places)
    }

    fn free_bytes(&self, vm: &PlannedVm, place: &TargetPlace) -> Result<Option<u64>, ProviderError> {
        match self.site(vm)? {
            Some(there) => there.free_bytes(vm, place),
            None => self.here.free_bytes(vm, place),
        }
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        if let Some(there) = self.site(vm)? {
            return far::open_disk(&there, &self.daemon(vm), disk, vm, size);
        }
        if block::is_no_file(disk) {
            return self.blocks(vm, &self.daemon(vm)).open_disk(disk, size);
        }
        let pool = disk.pool.as_deref().unwrap_or_default();
        let by_libvirt = self.is_made_by_libvirt(vm);
        let is_there = disk.path.exists();
        self.check_volume(disk, vm)?;
        if by_libvirt && !is_there {
            make_volume(&self.daemon(vm), disk, vm.format, size)?;
            shared::see(&self.daemon(vm), disk, size)?;
            made::remember(vm, disk)?;
        }
        let opened = self.here.open_disk(disk, vm, size)?;
        if !by_libvirt {
            if !is_there {
                made::remember(vm, disk)?;
            }
            self.daemon(vm).refresh(pool).map_err(qemu_error)?;
        }
        if shared::is_shared(vm) && (is_there || !by_libvirt) {
            shared::is_seen_there(&self.daemon(vm), disk)?;
        }
        // Again, now that it is locked.
        self.check_volume(disk, vm)?;
        Ok(opened)
    }

    fn journal(&self, disk: &PlannedDisk, vm: &PlannedVm) -> PathBuf {
        match &vm.site {
            Some(site) => there::journal(self.about.state(), site, disk),
            None if block::is_no_file(disk) => self.blocks(vm, &self.daemon(vm)).journal(disk),
            None => self.here.journal(disk, vm),
        }
    }

    fn has_image(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<bool, ProviderError> {
        match self.site(vm)? {
            Some(there) => there.has_image(disk, vm),
            None if block::is_no_file(disk) => self.blocks(vm, &self.daemon(vm)).has_image(disk),
            None => self.here.has_image(disk, vm),
        }
    }

    fn open_for_verify(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError> {
        match self.site(vm)? {
            Some(there) => there.open_for_verify(disk, vm),
            None if rbd::is_rbd(disk) => {
                Ok(Arc::new(rbd::open(&self.daemon(vm), vm, disk, Access::Read, None)?))
            }
            None => {
                if lun::is_lun(disk) {
                    lun::check_same(&self.blocks(vm, &self.daemon(vm)), disk)?;
                }
                self.here.open_for_verify(disk, vm)
            }
        }
    }

    fn convert(&self, vm: &PlannedVm) -> Result<Converted, ProviderError> {
        let identities = self.identities(vm)?;
        if let Some(there) = self.site(vm)?
            && let Some(machine) = far::as_machine(vm)
            && !drover_qemu::is_converted(
                &VmFolder::new(&vm.folder),
                identities.as_deref().unwrap_or_default(),
            )
        {
            // One that either of them began goes on there, whoever would be asked by now.
            if there.has_converted(&machine)? || matches!(self.converted_by(vm)?, ConvertedBy::ItsHost { .. })
            {
                return there.convert_volumes(&machine);
            }
        }
        if let Some(identities) = identities {
            let machine = machine_of(vm, &self.about.target, &self.about.origin);
            let (folder, stop) = (vm.folder.clone(), &self.about.stop);
            let served = Served { target: self, vm, machine, folder, identities, stop };
            return conversion::convert(&served, vm);
        }
        let (spec, stop) = (self.spec(vm, None)?, &self.about.stop);
        conversion::convert(&OnThisMachine { spec: &spec, vm, stop, served: Vec::new() }, vm)
    }

    fn forget_conversion(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        drover_qemu::forget_conversion(&VmFolder::new(&vm.folder)).map_err(qemu_error)?;
        match (self.site(vm)?, far::as_machine(vm)) {
            (Some(there), Some(machine)) => there.forget_conversion(&machine),
            _ => Ok(()),
        }
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        let uuid = self.ours_alone(vm)?.map(|domain| domain.uuid);
        let spec = self.spec(vm, uuid)?;
        spec.check().map_err(qemu_error)?;
        // So that libvirt lists the volumes; the domain names their files.
        let _ = self.refresh(vm);
        let daemon = self.daemon(vm);
        let mut luns = vm.disks.iter().filter(|disk| lun::is_lun(disk));
        luns.try_for_each(|disk| lun::check_same(&self.blocks(vm, &daemon), disk))?;
        daemon.define(&domain_xml(&spec, &self.options(vm)?)).map_err(qemu_error)?;
        let Some(domain) = self.ours(vm)? else {
            let what = format!("{} was defined at {}, and is not there", vm.target_name, daemon.uri());
            return Err(
                ProviderError::new(Cause::Target, what).advise("see who undefined it, then `drover resume`")
            );
        };
        let start = if vm.start {
            String::new()
        } else {
            format!("; not started: `virsh start {}` starts it", vm.target_name)
        };
        Ok(format!("defined at {}: domain {}, valid by libvirt's schema{start}", daemon.uri(), domain.name))
    }

    fn settle(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        match self.ours(vm)? {
            Some(domain) if vm.autostart => {
                self.daemon(vm).set_autostart(&domain.uuid, true).map_err(qemu_error)
            }
            _ => Ok(()),
        }
    }

    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        Domains::wait_for_start(vm)?;
        match self.ours(vm)? {
            Some(domain) if domain.runs => {
                let what = format!("domain {} runs and is not undefined", domain.name);
                Err(ProviderError::new(Cause::Target, what)
                    .advise("shut it down, then the same command again"))
            }
            Some(domain) => self.daemon(vm).undefine(&domain.uuid).map_err(qemu_error),
            None => Ok(()),
        }
    }

    fn start(&self, vm: &PlannedVm) -> Result<Started, ProviderError> {
        let daemon = self.daemon(vm);
        let Some(domain) = self.ours(vm)? else {
            let what = format!("domain {} is not at {}", vm.target_name, daemon.uri());
            return Err(
                ProviderError::new(Cause::Target, what).advise("see who undefined it, then `drover resume`")
            );
        };
        let path = start_lock(vm);
        let locked = File::options().create(true).truncate(false).write(true).open(&path).and_then(|file| {
            file.lock()?;
            Ok(file)
        });
        let held = locked.map_err(|error| io_error("locking", &path, error))?;
        // Also where it seems to run: a start that an earlier run asked for may be under way still, and fail.
        let started = daemon.start(&domain.uuid, held);
        let until = Instant::now() + START_TIME_MAX;
        while started.is_err()
            && Instant::now() < until
            && daemon.is_starting(&domain.uuid).map_err(qemu_error)?
        {
            std::thread::sleep(LOOK);
        }
        // Looked at also after a failure: the answer of a daemon may be lost where the domain came up.
        match self.ours(vm)? {
            Some(domain) if domain.runs => {
                let is_kvm = self.is_kvm(&daemon).map_err(qemu_error)?;
                let how = if is_kvm { "" } else { ", without KVM, and slowly" };
                let watched =
                    daemon.watch(&domain, is_kvm, &|| self.about.stop.is_set()).map_err(qemu_error)?;
                Ok(Started { line: format!("domain {} at {}{how}", domain.name, daemon.uri()), watched })
            }
            _ => {
                started.map_err(qemu_error)?;
                let what = format!("domain {} started and did not go on running", domain.name);
                Err(ProviderError::new(Cause::Target, what)
                    .advise("see its log (/var/log/libvirt/qemu on the daemon's host)"))
            }
        }
    }

    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        Domains::wait_for_start(vm)?;
        self.runs(vm)
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        Domains::wait_for_start(vm)?;
        let daemon = self.daemon(vm);
        let Some(domain) = self.ours(vm)?.filter(|domain| domain.runs) else { return Ok(()) };
        // A guest that cannot be asked goes the harder way.
        let asked = daemon.shut_down(&domain.uuid);
        let until = Instant::now() + here::STOP_TIME;
        while asked.is_ok() && Instant::now() < until {
            std::thread::sleep(LOOK);
            if !self.runs(vm)? {
                return Ok(());
            }
        }
        match daemon.destroy(&domain.uuid) {
            Err(error) if self.runs(vm)? => Err(qemu_error(error)),
            _ => Ok(()),
        }
    }

    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        drover_qemu::forget_rehearsal(&VmFolder::new(&vm.folder)).map_err(qemu_error)?;
        here::remove(&start_lock(vm))?;
        if let Some(there) = self.site(vm)? {
            // That at its host goes with the volumes.
            drover_qemu::forget_conversion(&VmFolder::new(&vm.folder)).map_err(qemu_error)?;
            let removed = far::remove_images(&there, &self.daemon(vm), vm);
            let _ = self.refresh(vm);
            return removed;
        }
        probe::forget(&self.daemon(vm), vm)?;
        self.blocks(vm, &self.daemon(vm)).remove()?;
        // Of a run that died before their journals began.
        let is_file = |disk: &&PlannedDisk| !block::is_no_file(disk) && !journal_path(&disk.path).exists();
        for disk in vm.disks.iter().filter(is_file) {
            let is_ours =
                || Ok::<_, ProviderError>(made::is_ours(vm, disk)? && self.here.holds_nothing(disk, vm)?);
            here::remove_locked(&disk.path, is_ours)?;
        }
        // The record of a LUN stays with it.
        let mut others = vm.disks.iter().filter(|disk| !lun::is_lun(disk));
        others.try_for_each(|disk| made::forget_disk(vm, disk))?;
        let removed = self.here.remove_images(vm);
        // What libvirt lists is its own affair; what could not be removed is not.
        let _ = self.refresh(vm);
        removed
    }

    fn give_back(&self, vm: &PlannedVm) -> Result<Vec<String>, ProviderError> {
        lun::give_back(vm)
    }

    fn forget(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        made::forget(vm)?;
        vm.disks.iter().try_for_each(|disk| here::remove(&rbd::lock_path(vm, disk)))?;
        // One that names an image of Ceph would be taken for that of a later image of its name.
        drover_qemu::forget_conversion(&VmFolder::new(&vm.folder)).map_err(qemu_error)
    }
}

/// Which way the data of VMs takes, a line for each daemon and pool; of files that this host alone has nothing is said.
pub fn told_ways(vms: &[PlannedVm]) -> String {
    let way = |vm: &PlannedVm, disk: &PlannedDisk| {
        let (uri, pool) = (vm.daemon.as_deref()?, disk.pool.as_deref()?);
        let way = match &vm.site {
            Some(site) => format!("written by the agent of {site}, over its link"),
            None if rbd::is_rbd(disk) => {
                format!("written through qemu-nbd from this host, as {}", disk.base.display())
            }
            None if lun::is_lun(disk) => format!(
                "{} of {} is written to the LUN {} ({})",
                disk.disk.label,
                vm.vm.name,
                volume_name(disk),
                disk.path.display()
            ),
            None if shared::is_shared(vm) => format!(
                "written from this host, without an agent, as a share of both hosts in {}; the first volume has to prove that",
                disk.base.display()
            ),
            None => return None,
        };
        Some(format!("pool {pool} of {uri}: {way}\n"))
    };
    let all = vms.iter().flat_map(|vm| vm.disks.iter().filter_map(move |disk| way(vm, disk)));
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Disks say what they are called at the source.
fn set_serials(spec: &mut MachineSpec, vm: &PlannedVm) {
    for (disk, planned) in spec.disks.iter_mut().zip(&vm.disks) {
        disk.serial = DiskSpec::serial_of(&planned.disk.uuid, disk.bus);
    }
}

/// Has the daemon make the volume of a disk; it refuses a name that is taken.
fn make_volume(
    daemon: &Daemon,
    disk: &PlannedDisk,
    format: ImageFormat,
    size: u64,
) -> Result<(), ProviderError> {
    let pool = disk.pool.as_deref().unwrap_or_default();
    let format = match format {
        ImageFormat::Raw => drover_qemu::ImageFormat::Raw,
        ImageFormat::Qcow2 => drover_qemu::ImageFormat::Qcow2,
    };
    // Sizes of images are whole sectors.
    let volume = NewVolume {
        name: volume_name(disk),
        bytes: size.next_multiple_of(512),
        format,
        is_thick: block::is_group(&disk.base),
    };
    // A refresh drops what libvirt remembers of a file that is gone.
    daemon.refresh(pool).and_then(|()| daemon.make_volume(pool, &volume)).map_err(qemu_error)
}

fn volume_name(disk: &PlannedDisk) -> String {
    if let Some(named) = &disk.volume {
        return named.name.clone();
    }
    disk.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn variables_left(name: &str, file: &str) -> ProviderError {
    let what = format!("firmware variables of an earlier domain {name} are left in {file}");
    ProviderError::new(Cause::Target, what)
        .advise("remove the file if nobody needs it, or give the VM another `target_name`")
}

/// What a NIC is attached to at libvirt.
fn attach(nic: &PlannedNic) -> NicAttach {
    match &nic.target {
        NetworkTarget::Bridge(name) => NicAttach::Bridge(name.clone()),
        NetworkTarget::User => NicAttach::User,
        NetworkTarget::None | NetworkTarget::Kubevirt(_) => NicAttach::None,
        NetworkTarget::Libvirt(LibvirtNetwork { kind, name, vlans, portgroup }) => match kind {
            LibvirtNetworkKind::Network => {
                NicAttach::Network { name: name.clone(), portgroup: portgroup.clone(), vlans: vlans.clone() }
            }
            LibvirtNetworkKind::Ovs => NicAttach::Ovs { bridge: name.clone(), vlans: vlans.clone() },
            LibvirtNetworkKind::Direct => NicAttach::Direct(name.clone()),
        },
    }
}

fn taken(vm: &PlannedVm, other: &FoundDomain) -> ProviderError {
    let by = match (&other.owner, other.name == vm.target_name) {
        (Some(owner), _) => format!("plan {} made it of VM {}", owner.plan, owner.vm),
        (None, true) => "drover did not define it".to_string(),
        (None, false) => "drover did not define it, and it has the VM's UUID".to_string(),
    };
    let what = format!("a domain {} ({}) is there already: {by}", other.name, other.uuid);
    ProviderError::new(Cause::Target, what)
        .advise("choose another target_name; if that domain may go, `virsh undefine` it (one with the same UUID must go)")
}

fn not_made(place: &Path, removal: &str) -> ProviderError {
    let place = place.display();
    let what =
        format!("{place} is there already and holds nothing, but drover has no record that it made it");
    ProviderError::new(Cause::Target, what).advise(format!(
        "if it may go (`{removal}`), the same command again makes it anew; else choose another pool or target_name"
    ))
}

fn unreachable(error: QemuError) -> ProviderError {
    let known = qemu_error(error);
    match known.advice {
        Some(_) => known,
        None => known.advise("see whether the daemon runs and this user may use it (`virsh -c URI list`), then `drover resume`"),
    }
}

/// An error with the name of the host, where the target has several.
fn of_host(vm: &PlannedVm, error: ProviderError) -> ProviderError {
    let Some(host) = &vm.target_host else { return error };
    let (cause, advice) = (error.cause, error.advice.clone());
    let named = ProviderError::new(cause, format!("host {}", host.name)).because(error);
    advice.into_iter().fold(named, ProviderError::advise)
}

/// Held by the child that starts a domain for as long as it lives.
fn start_lock(vm: &PlannedVm) -> PathBuf {
    Path::new(&vm.folder).join("start.lock")
}

const LOOK: Duration = Duration::from_millis(100);
/// Longer than any child that asks a daemon lives.
const START_TIME_MAX: Duration = Duration::from_secs(150);
