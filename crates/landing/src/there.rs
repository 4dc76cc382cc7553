//! QEMU at another site, through its agent: disks go over the link, and what is to be done with machines is ordered.

mod volume;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_agent::host::HostHas;
use drover_agent::machine::{
    Accelerator, CHECK, CONVERT, CONVERT_FALLBACK, CONVERT_WRITE, Conversion, Image, Machine, Order, Told,
    What,
};
use drover_agent::opening::{Announced, How, Stat};
use drover_agent::sites::{OpenDisks, SiteError, dial_now, give_up_on_stop};
use drover_agent::{AgentDisk, AgentOptions, Home, Refusal, Site, Target};
use drover_copy::Replay;
use drover_disk::{Disk, DiskErrorKind};
use drover_engine::{
    Cause, Converted, LinkBytes, Linked, OpenedTarget, ProviderError, Started, TargetPlace, TargetProvider,
};
use drover_mover::{Earlier, StopSignal, earlier, journal_in, look, why_not_of};
use drover_plan::{Limits, PlannedDisk, PlannedVm, Problem};
use drover_qemu::{ConvertOutcome, DiskBus, GuestKind, Lack, MachineSpec, SourceGuest, VmFolder};
use drover_types::guest::Inside;

use crate::conversion::{self, DueInside, Place};
use crate::errors::qemu_error;
use crate::inspection::inspect_disks;
use crate::machine::{boot_bus, machine_of, pool_of, site_name, spec_of};
use crate::setting::{ANOTHER_PLANS, Setting, all_removed, io_error, may_be_little, may_need};

/// How long an agent may be away before an order is given up: it may just be restarted.
const ORDER_WITHIN: Duration = Duration::from_secs(60);
const ORDER_PAUSE: Duration = Duration::from_millis(500);

/// An agent may be away at least this long before a disk is given up: lines across a country are cut for minutes.
pub const GIVE_UP_AFTER_MIN: Duration = Duration::from_secs(15 * 60);

/// Bytes of writes of one disk that are not answered: 64 MiB on a line alone, less where many disks share the memory.
const PENDING_BYTES_MIN: u64 = 8 << 20;
const PENDING_BYTES_MAX: u64 = 64 << 20;

/// Tells whose a disk is that a site alone does not know: what its journal calls it, and whether it was made just now, so that what it
/// holds is nobody's. Nothing where it is not this plan's.
pub type Knowing = dyn Fn(&PlannedDisk) -> Result<Option<(String, bool)>, ProviderError> + Send + Sync;

/// A site, for one plan.
pub struct There {
    site: Arc<Site>,
    about: Setting,
    options: AgentOptions,
    open: OpenDisks,
    number: AtomicU64,
    /// Folders of VMs whose last order is known.
    known: Mutex<HashSet<PathBuf>>,
    /// By VM, the order after which it may be started.
    ready: Mutex<HashMap<String, u64>>,
    /// Where not the agent tells disks apart.
    knowing: Option<Box<Knowing>>,
}

impl There {
    /// The site of this name, not dialled yet.
    pub fn new(name: &str, about: &Setting) -> Result<There, SiteError> {
        let site = about.host.site(name, None, about.rate_limit.clone())?;
        There::with(site, about, None)
    }

    /// A site whose disks are told apart in another way than by its agent.
    pub fn at(site: Arc<Site>, about: &Setting, knowing: Box<Knowing>) -> Result<There, SiteError> {
        There::with(site, about, Some(knowing))
    }

    fn with(site: Arc<Site>, about: &Setting, knowing: Option<Box<Knowing>>) -> Result<There, SiteError> {
        let open = OpenDisks::default();
        let stop = about.stop.clone();
        give_up_on_stop(move || stop.is_set(), &site, &open)
            .map_err(|error| SiteError::Thread { site: site.name().to_string(), why: error.to_string() })?;
        Ok(There {
            site,
            about: about.clone(),
            options: options(&about.limits),
            open,
            number: AtomicU64::new(0),
            known: Mutex::default(),
            ready: Mutex::default(),
            knowing,
        })
    }

    /// Connects, so that a site that cannot be reached is told before anything is begun.
    pub fn dial(&self) -> Result<(), SiteError> {
        dial_now(&self.site)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.site.name()
    }

    /// What its agent has.
    pub fn info(&self) -> Result<Announced, Refusal> {
        self.site.info()
    }

    /// Whether there is a connection to its agent at the moment.
    pub fn is_up(&self) -> bool {
        self.site.is_up()
    }

    /// How long it may be away before a transfer gives up.
    pub fn retry_for(&self) -> Duration {
        self.about.limits.retry_for
    }

    /// Refuses to ask a site that would not answer now: whoever asks for many VMs does not wait for it.
    fn check_is_up(&self) -> Result<(), ProviderError> {
        match self.is_up() {
            true => Ok(()),
            false => {
                let what = format!("there is no connection to the agent of {} at the moment", self.name());
                Err(ProviderError::new(Cause::Connection, what))
            }
        }
    }

    /// What is at an image's place.
    pub fn stat(&self, disk: &PlannedDisk) -> Result<Stat, Refusal> {
        self.site.stat(&site_name(&disk.path))
    }

    /// What tells the image of a disk from others, and from a later one of its name.
    pub fn identity(&self, disk: &PlannedDisk) -> Result<String, ProviderError> {
        let known = self.knowing.as_ref().map(|knowing| knowing(disk)).transpose()?.flatten();
        let tag = match known {
            Some((tag, _)) => tag,
            None => self.stat(disk).map_err(|refusal| self.refused(refusal))?.tag,
        };
        Ok(tag_of(self.name(), &tag))
    }

    /// Whether this host has a journal of the image that is there.
    pub fn is_ours(&self, disk: &PlannedDisk, vm: &PlannedVm, stat: &Stat) -> bool {
        self.recorded(disk, vm, stat).is_some()
    }

    /// What its host has beside disks: of these network devices, and of firmware variables of machines with these names.
    pub fn host(&self, devices: &[String], variables_of: &[String]) -> Result<HostHas, Refusal> {
        self.site.host(devices, variables_of)
    }

    /// How a machine stands, without standing in anybody's way.
    pub fn glance(&self, vm: &PlannedVm) -> Result<Told, Refusal> {
        self.site.order(&self.order_of(vm, What::Look, 0))
    }

    /// What preparing a machine would come to, and how it stands; makes nothing.
    pub fn check(&self, vm: &PlannedVm) -> Result<Told, Refusal> {
        let order = self.order_of(vm, What::Check(self.machine(vm)), 0);
        self.site.order_while(&order, &[], &|| self.about.stop.is_set())
    }

    fn recorded(&self, disk: &PlannedDisk, vm: &PlannedVm, stat: &Stat) -> Option<Box<Replay>> {
        match self.earlier(disk, vm, stat) {
            Earlier::Half(found) => self.why_anothers(disk, vm, &found).is_none().then_some(found),
            Earlier::Nothing | Earlier::Other(_) => None,
        }
    }

    fn earlier(&self, disk: &PlannedDisk, vm: &PlannedVm, stat: &Stat) -> Earlier {
        match stat.size {
            Some(_) => earlier(&self.journal(disk, vm), &tag_of(self.name(), &stat.tag), None),
            None => Earlier::Nothing,
        }
    }

    fn why_anothers(&self, disk: &PlannedDisk, vm: &PlannedVm, found: &Replay) -> Option<&'static str> {
        why_not_of(&found.header, &vm.owner_of(&self.about.plan, disk))
    }

    fn machine(&self, vm: &PlannedVm) -> Machine {
        let machine = machine_of(vm, &self.about.target, &self.about.origin);
        Machine { is_converted: conversion::is_due(vm, boot_bus(&machine)), ..machine }
    }

    fn order_of(&self, vm: &PlannedVm, what: What, number: u64) -> Order {
        let owner = format!("plan {} vm {} {}", self.about.plan, vm.vm.id, vm.vm.instance_uuid);
        Order { folder: site_name(&vm.folder), owner, number, what }
    }

    /// A number higher than those of all orders before, also those of earlier processes, whose clock may have been ahead.
    fn next_number(&self, vm: &PlannedVm) -> u64 {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(&vm.folder)
            && let Ok(told) = self.site.order(&self.order_of(vm, What::Look, 0))
        {
            self.number.fetch_max(told.number, SeqCst);
            known.insert(vm.folder.clone());
        }
        drop(known);
        let now = drover_mover::new_epoch(0);
        let before = self.number.fetch_update(SeqCst, SeqCst, |last| Some(now.max(last + 1)));
        now.max(before.unwrap_or_default() + 1)
    }

    /// Orders something that may be ordered twice; waits for an agent that is away.
    fn insist(&self, vm: &PlannedVm, what: &What) -> Result<Told, ProviderError> {
        self.insist_by(vm, what, &|order| self.site.order(order)).map_err(|refusal| self.refused(refusal))
    }

    fn insist_by(
        &self,
        vm: &PlannedVm,
        what: &What,
        give: &dyn Fn(&Order) -> Result<Told, Refusal>,
    ) -> Result<Told, Refusal> {
        let mut until = Instant::now() + ORDER_WITHIN;
        loop {
            let order = self.order_of(vm, what.clone(), self.next_number(vm));
            let began = Instant::now();
            let result = give(&order);
            if began.elapsed() >= ORDER_WITHIN {
                // The agent was at it: what counts is how long it is away now.
                until = Instant::now() + ORDER_WITHIN;
            }
            match result {
                Err(refusal) if refusal.kind == DiskErrorKind::Transient && self.may_wait(until) => {
                    std::thread::sleep(ORDER_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Refuses a VM that would have to be converted there and cannot be.
    pub fn check_conversion(&self, vm: &PlannedVm, info: &Announced) -> Result<(), ProviderError> {
        conversion::check_at(self.name(), info, vm, boot_bus(&self.machine(vm)))
    }

    /// What stands in the way of converting a VM there that was looked into.
    pub fn check_inside(&self, vm: &PlannedVm, inside: &Inside, stop: &StopSignal) -> Option<Problem> {
        let machine = self.machine(vm);
        let boot_bus = boot_bus(&machine);
        let due = DueInside::of(vm, boot_bus, inside)?;
        let asked = self.info().and_then(|info| match due.lack_at(self.name(), &info, boot_bus) {
            Some(lack) => Ok(Some(due.without_converter(vm, &lack))),
            // One that is too old for a check tells no more.
            None if !info.has(CHECK) => Ok(None),
            None => {
                let lack = self.lack_for_conversion(vm, machine, stop)?;
                Ok(lack.map(|lack| due.refused(vm, &lack)))
            }
        });
        asked.unwrap_or_else(|refusal| {
            let what = format!("agent of {}: {refusal}", self.name());
            Some(due.refused(vm, &Lack { what, advice: "look at the agent's log".into() }))
        })
    }

    /// What its host lacks for a machine that is converted, and not for one that is not.
    fn lack_for_conversion(
        &self,
        vm: &PlannedVm,
        machine: Machine,
        stop: &StopSignal,
    ) -> Result<Option<Lack>, Refusal> {
        let lacks = |is_converted| {
            let what = What::Check(Machine { is_converted, ..machine.clone() });
            let order = self.order_of(vm, what, 0);
            self.site.order_while(&order, &[], &|| stop.is_set()).map(|told| told.lacks)
        };
        let others = lacks(false)?;
        let lack = lacks(true)?.into_iter().find(|lack| !others.contains(lack));
        Ok(lack.map(|lack| Lack {
            what: format!("host of {}: {}", self.name(), lack.what),
            advice: lack.advice,
        }))
    }

    /// What the host lacks to convert a VM whose volumes are there.
    pub fn lack_for_volumes(&self, vm: &PlannedVm) -> Result<Option<Lack>, Refusal> {
        match self.info()?.has(CHECK) {
            true => self.lack_for_conversion(vm, self.bare_machine(vm), &self.about.stop),
            false => Ok(None),
        }
    }

    /// Whether images hold a guest that was converted there, or may hold one in part.
    pub fn has_converted(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.insist(vm, &What::Look).map(|told| told.converted)
    }

    /// Converts the guest of a VM that somebody else defines, in a folder that is made for it when it comes to that.
    pub fn convert_volumes(&self, vm: &PlannedVm) -> Result<Converted, ProviderError> {
        conversion::convert(
            &AtSite { there: self, vm, machine: self.bare_machine(vm), makes_folder: true },
            vm,
        )
    }

    /// A machine that has what a converter wants to know, and nothing that its host could lack.
    fn bare_machine(&self, vm: &PlannedVm) -> Machine {
        let machine = Machine { nics: Vec::new(), accelerator: Accelerator::Auto, ..self.machine(vm) };
        Machine { is_started: false, is_converted: true, ..machine }
    }

    /// What it lacks to convert a VM of which only a look into its disks tells whether it is to be.
    pub fn lack_if_due(&self, vm: &PlannedVm) -> Result<Option<Lack>, Refusal> {
        match conversion::may_be_due(vm, boot_bus(&self.machine(vm))) {
            true => self.info().map(|info| conversion::lack_at(self.name(), &info)),
            false => Ok(None),
        }
    }

    fn may_wait(&self, until: Instant) -> bool {
        Instant::now() < until && !self.about.stop.is_set()
    }

    /// A refusal, as the engine is told of it.
    pub fn refused(&self, refusal: Refusal) -> ProviderError {
        let (cause, advice) = match refusal.kind {
            DiskErrorKind::Transient => (
                Cause::Connection,
                "see whether the agent runs there and the line is up, then `drover resume`",
            ),
            DiskErrorKind::OutOfSpace => (Cause::TargetFull, "make room at the site, then `drover resume`"),
            _ => (Cause::Target, "look at the agent's host, then `drover resume`"),
        };
        ProviderError::new(cause, format!("agent of {}: {refusal}", self.name())).advise(advice)
    }

    fn failed(&self, error: &drover_disk::DiskError) -> ProviderError {
        let kind = error.kind;
        self.refused(Refusal::new(kind, drover_engine::chain(error)))
    }

    fn ready(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a target is opened, and the highest epoch that is known of it.
    fn how(&self, disk: &PlannedDisk, vm: &PlannedVm, size: u64) -> Result<(How, u64), ProviderError> {
        let mut stat = self.stat(disk).map_err(|refusal| self.refused(refusal))?;
        let mut is_fresh = false;
        if let Some(knowing) = &self.knowing {
            let Some((tag, fresh)) = knowing(disk)? else {
                let what = format!("{} is not this plan's", vm.place_of(disk).display());
                return Err(ProviderError::new(Cause::Target, what).advise(ANOTHER_PLANS));
            };
            (stat.tag, is_fresh) = (tag, fresh);
            // A volume may be larger than its disk.
            stat.size = stat.size.map(|there| if there > size { size } else { there });
        }
        let found = match self.earlier(disk, vm, &stat) {
            Earlier::Half(found) => Some(found),
            Earlier::Nothing | Earlier::Other(_) => None,
        };
        if let Some(why) = found.as_ref().and_then(|found| self.why_anothers(disk, vm, found)) {
            let what = format!("{} may not be overwritten: {why}", vm.place_of(disk).display());
            return Err(ProviderError::new(Cause::Target, what).advise(ANOTHER_PLANS));
        }
        match (found, stat.size) {
            (Some(found), Some(there)) if there == size => Ok((How::Resume, found.epoch)),
            (Some(found), _) => Ok((How::Force, found.epoch.max(stat.epoch))),
            (None, _) if stat.holds_nothing => Ok((How::New, stat.epoch)),
            (None, _) if is_fresh => Ok((How::Force, stat.epoch)),
            (None, there) => {
                let place = vm.place_of(disk);
                let bytes = there.unwrap_or_default();
                let what =
                    format!("{} already holds {bytes} bytes that this plan did not write", place.display());
                Err(ProviderError::new(Cause::Target, what)
                    .advise("choose another folder or target_name, or remove it at the site"))
            }
        }
    }

    /// Whether somebody put something else into the same file, as far as some blocks tell.
    fn holds_another(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        found: &Replay,
    ) -> Result<bool, ProviderError> {
        let image = self.open_for_verify(disk, vm)?;
        let held = look(image.as_ref(), &found.leaves).map_err(|error| self.failed(&error))?;
        Ok(held.is_another())
    }

    fn keep(&self, disk: AgentDisk) -> Arc<AgentDisk> {
        self.open.keep(disk)
    }

    fn open_target(&self, disk: &PlannedDisk, target: &Target) -> Result<Arc<AgentDisk>, ProviderError> {
        let opened = AgentDisk::open_target(&self.site, &site_name(&disk.path), target, self.options.clone());
        Ok(self.keep(opened.map_err(|error| self.failed(&error))?))
    }

    /// Opens the images of a VM to be read, if they are what this plan wrote; they are given up if the site is away for so long.
    pub fn open_copy(
        &self,
        vm: &PlannedVm,
        away_max: Duration,
    ) -> Result<Vec<Arc<AgentDisk>>, ProviderError> {
        let options = AgentOptions { give_up_after: away_max, ..self.options.clone() };
        let open = |disk: &PlannedDisk| {
            let stat = self.stat(disk).map_err(|refusal| self.refused(refusal))?;
            if !self.is_ours(disk, vm, &stat) {
                let what = format!("{} is not what this plan wrote there", vm.place_of(disk).display());
                return Err(ProviderError::new(Cause::Target, what).advise("see who put it there"));
            }
            let opened = AgentDisk::open_source(&self.site, &site_name(&disk.path), options.clone());
            Ok(self.keep(opened.map_err(|error| self.failed(&error))?))
        };
        vm.disks.iter().map(open).collect()
    }

    /// The machine of a VM as QEMU on this host builds it, for a rehearsal.
    pub fn rehearsed(&self, vm: &PlannedVm) -> Result<MachineSpec, ProviderError> {
        let machine = Machine { is_started: true, ..self.machine(vm) };
        let images = vm.disks.iter().map(|disk| disk.path.clone()).collect();
        let folder = self.rehearsal_folder(vm)?;
        spec_of(&Home { folder, images, machine: &machine }, None).map_err(qemu_error)
    }

    /// Where overlays of a rehearsal lie on this host.
    fn rehearsal_folder(&self, vm: &PlannedVm) -> Result<PathBuf, ProviderError> {
        let state = self.about.state();
        let state = std::path::absolute(state).map_err(|error| io_error("finding", state, error))?;
        Ok(state.join("rehearsals").join(&self.about.plan).join(&vm.target_name))
    }

    /// Removes what a rehearsal left that was cut off.
    fn forget_rehearsal(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let folder = self.rehearsal_folder(vm)?;
        drover_qemu::forget_rehearsal(&VmFolder::new(&folder)).map_err(qemu_error)?;
        // A plan's folder that holds those of other VMs stays.
        folder.ancestors().take(2).for_each(|folder| drop(std::fs::remove_dir(folder)));
        Ok(())
    }

    /// Makes the folders of a VM's journals on this host.
    pub fn make_room_for_journals(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let journals = vm.disks.iter().map(|disk| self.journal(disk, vm));
        for folder in journals.filter_map(|path| path.parent().map(Path::to_path_buf)) {
            std::fs::create_dir_all(&folder).map_err(|error| {
                ProviderError::new(Cause::Internal, format!("making {}", folder.display())).because(error)
            })?;
        }
        Ok(())
    }

    /// Has the images removed that this plan wrote, and `more` that it is known to have made; each only if it is still the same.
    pub fn clear(&self, vm: &PlannedVm, more: Vec<Image>) -> Result<(), ProviderError> {
        let (mut images, mut others) = (more, HashSet::new());
        for disk in &vm.disks {
            let stat = match self.stat(disk) {
                Err(refusal) if refusal.kind == DiskErrorKind::Gone => continue,
                stat => stat.map_err(|refusal| self.refused(refusal))?,
            };
            // Only what this plan made: an image without a journal is somebody else's, or another plan's.
            let Earlier::Half(found) = self.earlier(disk, vm, &stat) else { continue };
            if self.why_anothers(disk, vm, &found).is_some() {
                others.insert(&disk.path);
                continue;
            }
            if !self.holds_another(disk, vm, &found)? {
                images.push(Image { disk: site_name(&disk.path), tag: stat.tag });
            }
        }
        self.insist(vm, &What::Clear { images })?;
        let mut left = Vec::new();
        for disk in vm.disks.iter().filter(|disk| !others.contains(&disk.path)) {
            let journal = self.journal(disk, vm);
            // The agent removed what still was this plan's own when it looked.
            if journal.exists() && self.has_image(disk, vm)? {
                let place = vm.place_of(disk);
                left.push(format!("{} stays: it is not what this plan wrote there", place.display()));
                continue;
            }
            match std::fs::remove_file(&journal) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let what = format!("removing {}", journal.display());
                    return Err(ProviderError::new(Cause::Internal, what).because(error));
                }
                _ => {}
            }
        }
        all_removed(&left)
    }
}

/// Where the journal of a disk's copy to a site lies: where that of `drover copy` to the same place does.
pub fn journal(state: &Path, site: &str, disk: &PlannedDisk) -> PathBuf {
    journal_of_place(state, site, &site_name(&disk.path))
}

/// Where the journal of a copy to a disk of a site lies: on the side that copies, by the name of the target.
pub fn journal_of_place(state: &Path, site: &str, disk: &str) -> PathBuf {
    journal_in(state, &format!("agent {site} {disk}"))
}

/// What a journal calls a disk that the site's agent has this tag for.
pub fn tag_of(site: &str, there: &str) -> String {
    format!("agent {site} {there}")
}

fn options(limits: &Limits) -> AgentOptions {
    let share = limits.memory / u64::from(limits.disks.max(1));
    AgentOptions {
        pending_bytes_max: share.clamp(PENDING_BYTES_MIN, PENDING_BYTES_MAX),
        give_up_after: limits.retry_for.max(GIVE_UP_AFTER_MIN),
        ..AgentOptions::default()
    }
}

/// What goes over the link for a disk.
struct OfDisk(Arc<AgentDisk>);

impl Linked for OfDisk {
    fn bytes(&self) -> LinkBytes {
        let way = self.0.sent();
        let (sent, sent_packed, had, reopened) = (way.sent, way.sent_packed, way.had, way.reopened);
        LinkBytes { sent, sent_packed, had, reopened, zero: 0 }
    }
}

/// Images at a site, of a machine in a folder there.
struct AtSite<'a> {
    there: &'a There,
    vm: &'a PlannedVm,
    machine: Machine,
    /// Whether nobody made its folder before.
    makes_folder: bool,
}

impl Place for AtSite<'_> {
    fn boot_bus(&self) -> DiskBus {
        boot_bus(&self.machine)
    }

    fn is_converted(&self) -> Result<bool, ProviderError> {
        self.there.has_converted(self.vm)
    }

    fn look_inside(&self) -> Option<Inside> {
        let disks = self.vm.disks.iter().map(|disk| self.there.open_for_verify(disk, self.vm));
        let disks = disks.collect::<Result<Vec<_>, _>>().ok()?;
        Some(inspect_disks(&disks, &self.there.about.stop))
    }

    fn lack_for(&self, guest: GuestKind<'_>) -> Result<Option<String>, ProviderError> {
        let (there, boot_bus) = (&self.there, self.boot_bus());
        let info = there.info().map_err(|refusal| there.refused(refusal))?;
        let lack = conversion::lack_for_at(guest, there.name(), &info, boot_bus);
        Ok(lack.filter(|_| info.has(CONVERT)).map(|lack| lack.what))
    }

    fn can_customize(&self) -> Result<(), String> {
        let info = self.there.info().map_err(|refusal| refusal.to_string())?;
        match info.has(CONVERT_WRITE) {
            true => Ok(()),
            false => Err(format!("the agent of {} has no converter that could keep it", self.there.name())),
        }
    }

    fn can_put_loader(&self) -> Result<(), String> {
        let info = self.there.info().map_err(|refusal| refusal.to_string())?;
        match info.has(CONVERT_FALLBACK) {
            true => Ok(()),
            false => {
                Err(format!("the agent of {} has no converter that could put it there", self.there.name()))
            }
        }
    }

    fn convert(&self, guest: &SourceGuest) -> Result<ConvertOutcome, ProviderError> {
        let stop = &self.there.about.stop;
        // An agent of before may have taken the place of the one that was asked, and would leave out what it does not know.
        let info = self.there.info().map_err(|refusal| self.there.refused(refusal))?;
        conversion::check_first_boot_at(self.there.name(), &info, self.vm)?;
        if self.makes_folder {
            self.there.insist(self.vm, &What::Prepare(self.machine.clone()))?;
        }
        let (mut guest, files) = conversion::for_peer(guest, self.vm)?;
        guest.fallback &= info.has(CONVERT_FALLBACK);
        let what = What::Convert { machine: self.machine.clone(), guest };
        let give = |order: &Order| self.there.site.order_while(order, &files, &|| stop.is_set());
        let told = match self.there.insist_by(self.vm, &what, &give) {
            Err(_) if stop.is_set() => {
                let what = format!("conversion of {} at {}: stopped", self.vm.target_name, self.there.name());
                return Err(ProviderError::new(Cause::Cancelled, what));
            }
            Err(refusal) if refusal.kind == DiskErrorKind::Unsupported => {
                return Ok(ConvertOutcome::NotAvailable(format!(
                    "the agent of {}: {refusal}",
                    self.there.name()
                )));
            }
            told => told.map_err(|refusal| self.there.refused(refusal))?,
        };
        let Conversion { before, log, warnings, kept } = told.conversion.unwrap_or_default();
        Ok(match before {
            true => ConvertOutcome::ConvertedBefore,
            false => ConvertOutcome::Converted {
                log: format!("{}:{log}", self.there.name()).into(),
                warnings,
                kept,
            },
        })
    }
}

impl TargetProvider for There {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.forget_rehearsal(vm)?;
        let machine = self.machine(vm);
        if conversion::is_due(vm, boot_bus(&machine)) {
            let info = self.info().map_err(|refusal| self.refused(refusal))?;
            self.check_conversion(vm, &info)?;
        }
        self.make_room_for_journals(vm)?;
        self.insist(vm, &What::Prepare(machine)).map(drop)
    }

    fn places(&self, vm: &PlannedVm, is_left: bool) -> Result<Vec<TargetPlace>, ProviderError> {
        self.check_is_up()?;
        let mut places = BTreeMap::<String, TargetPlace>::new();
        for (number, disk) in vm.disks.iter().enumerate() {
            let pool = pool_of(&disk.path);
            let taken = match is_left {
                true => self.stat(disk).ok().and_then(|stat| stat.allocated).unwrap_or_default(),
                false => 0,
            };
            let place = places.entry(pool.clone()).or_insert_with(|| TargetPlace {
                key: format!("site-{}-{pool}", self.name()),
                label: format!("pool {pool} of {}", self.name()),
                at: PathBuf::from(pool),
                needs: BTreeMap::new(),
                overcommits: true,
            });
            place.needs.insert(number, may_need(disk, taken, self.about.target.overcommit));
            place.overcommits &= may_be_little(disk, self.about.target.overcommit);
        }
        Ok(places.into_values().collect())
    }

    fn free_bytes(&self, _: &PlannedVm, place: &TargetPlace) -> Result<Option<u64>, ProviderError> {
        self.check_is_up()?;
        let info = self.info().map_err(|refusal| self.refused(refusal))?;
        let pool = info.pools.iter().find(|pool| Path::new(&pool.name) == place.at);
        Ok(pool.and_then(|pool| pool.free_bytes))
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        let (how, before) = self.how(disk, vm, size)?;
        let target = Target { size, how, epoch: drover_mover::new_epoch(before), volume: None };
        let opened = self.open_target(disk, &target)?;
        let told = opened.opened();
        let known = self.knowing.as_ref().map(|knowing| knowing(disk)).transpose()?.flatten();
        let (tag, is_fresh) = known.unwrap_or_else(|| (told.tag.clone(), false));
        // One with a journal is gone on with, whoever made it.
        let is_fresh = is_fresh && how != How::Resume;
        Ok(OpenedTarget {
            tag: tag_of(self.name(), &tag),
            is_new: told.is_new || is_fresh,
            zeroed: told.zeroed,
            link: Some(Arc::new(OfDisk(opened.clone()))),
            disk: opened,
        })
    }

    fn journal(&self, disk: &PlannedDisk, _: &PlannedVm) -> PathBuf {
        journal(self.about.state(), self.name(), disk)
    }

    fn has_image(&self, disk: &PlannedDisk, _: &PlannedVm) -> Result<bool, ProviderError> {
        match self.stat(disk) {
            Ok(stat) => Ok(stat.size.is_some()),
            // Not even its folder.
            Err(refusal) if refusal.kind == DiskErrorKind::Gone => Ok(false),
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    fn open_for_verify(&self, disk: &PlannedDisk, _: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError> {
        let opened = AgentDisk::open_source(&self.site, &site_name(&disk.path), self.options.clone());
        Ok(self.keep(opened.map_err(|error| self.failed(&error))?))
    }

    fn convert(&self, vm: &PlannedVm) -> Result<Converted, ProviderError> {
        conversion::convert(&AtSite { there: self, vm, machine: self.machine(vm), makes_folder: false }, vm)
    }

    fn forget_conversion(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        // An agent of before guests were converted there tells of none, and knows no such order.
        match self.insist(vm, &What::Look)?.converted {
            true => self.insist(vm, &What::ForgetConversion).map(drop),
            false => Ok(()),
        }
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        let told = self.insist(vm, &What::Define(self.machine(vm)))?;
        let start = match told.start_with.filter(|_| !vm.start) {
            Some(command) => format!("; not started: on its host, {command} starts it"),
            None => String::new(),
        };
        Ok(format!("defined at {}: {}{start}", self.name(), told.words))
    }

    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.insist(vm, &What::Undefine).map(drop)
    }

    fn make_ready(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let number = self.next_number(vm);
        let order = self.order_of(vm, What::Ready, number);
        self.site.order(&order).map_err(|refusal| self.refused(refusal))?;
        self.ready().insert(vm.vm.id.clone(), number);
        Ok(())
    }

    fn start(&self, vm: &PlannedVm) -> Result<Started, ProviderError> {
        let after = self.ready().remove(&vm.vm.id).unwrap_or_default();
        let what = What::Start { machine: self.machine(vm), after };
        let order = self.order_of(vm, what, self.next_number(vm));
        let asked = Instant::now();
        match self.site.order(&order) {
            Ok(told) => Ok(Started {
                line: format!("started at {}: {}", self.name(), told.words),
                watched: Duration::from_millis(told.watched_ms).min(asked.elapsed()),
            }),
            // No answer came, which tells nothing. After this look, though, it starts no more.
            Err(refusal) if refusal.kind == DiskErrorKind::Transient => match self.is_running(vm)? {
                true => {
                    Ok(Started::now(format!("started at {}; the answer was lost with the link", self.name())))
                }
                false => Err(self.refused(refusal)),
            },
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let told = self.insist(vm, &What::Look).map_err(|error| {
            let what = format!("whether {} runs at {} cannot be told", vm.target_name, self.name());
            let advice = "when the link is up again: `drover resume`, or `drover cancel`";
            ProviderError::new(error.cause, what).because(error).advise(advice)
        })?;
        Ok(told.runs)
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.insist(vm, &What::Stop).map(drop)
    }

    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.forget_rehearsal(vm)?;
        self.clear(vm, Vec::new())
    }
}
