//! Conversion of guests: whether one needs it, what is missing for it on this machine or at another site, and how it went.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_agent::machine::{
    CONVERT, CONVERT_FILES, CONVERT_WINDOWS, CONVERT_WINDOWS_SCSI, CONVERT_WRITE, FILES_BYTES_MAX, FILES_MAX,
    Guest, GuestFile, Machine,
};
use drover_agent::opening::Announced;
use drover_agent::{FirstBootFiles, Home};
use drover_disk::Disk;
use drover_engine::{Cause, Converted, ProviderError, TargetProvider, chain};
use drover_mover::StopSignal;
use drover_nbd_server::{Export, Listen, Server, ServerOptions};
use drover_plan::{
    At, Cards, Convert, Fate, FirstBoot, PlannedDisk, PlannedVm, Problem, Stays, TargetBus, cards, fates,
    has_known_loader, how_to_set, lacking_driver, lacking_windows_driver, names_of_slots, renamed,
    why_left_out,
};
use drover_qemu::{
    ConvertOptions, ConvertOutcome, DiskBus, GuestKind, Lack, MachineSpec, Need, NicName, Remote, SourceBus,
    SourceGuest, TrialOptions, Trials, VmFolder, WindowsVersion, windows_needs_conversion,
};
use drover_types::guest::{CardSettings, FoundSystem, Inside};
use drover_types::inventory::{DiskBus as InventoryBus, Firmware};
use drover_types::{Bytes, count, some_of};

use crate::door;
use crate::errors::qemu_error;
use crate::inspection::{inspect_disks, inspect_images};
use crate::machine::{boot_bus, boot_bus_of, spec_of};
use crate::setting::{NAMED_MAX, Setting};

/// Whether a VM is to be converted, whatever a look into it would tell.
pub fn is_due(vm: &PlannedVm, boot_bus: DiskBus) -> bool {
    match (vm.convert, need_by_id(vm, vm.found, boot_bus)) {
        (Convert::Never, _) | (Convert::Auto, Need::Advised(_) | Need::NotNeeded(_)) => false,
        (Convert::Always, _) | (Convert::Auto, Need::Needed(_)) => true,
    }
}

/// Whether a VM may need conversion to boot, which only a look into its disks tells.
pub fn may_be_due(vm: &PlannedVm, boot_bus: DiskBus) -> bool {
    let by_id = need_by_id(vm, vm.found, boot_bus);
    vm.convert == Convert::Auto && !vm.is_windows() && matches!(by_id, Need::Advised(_))
}

/// What its guest id tells, unless a look found that wrong.
fn need_by_id(vm: &PlannedVm, found: Option<FoundSystem>, boot_bus: DiskBus) -> Need {
    match found {
        Some(FoundSystem::Linux) if vm.vm.is_windows_by_id() => {
            Need::Advised("it holds a Linux, whatever its guest id says".into())
        }
        _ => drover_qemu::needs_conversion(&vm.vm.guest_id, boot_bus),
    }
}

/// A conversion that is due for what is inside a VM, where its guest id does not tell of it.
pub(super) struct DueInside<'a> {
    /// Why.
    why: String,
    /// Whether a run refuses to leave it out.
    is_needed_to_boot: bool,
    guest: GuestKind<'a>,
}

impl<'a> DueInside<'a> {
    /// What a look into the disks of a VM tells; nothing where [`Converter::check`] or [`check_at`] sees to it.
    pub(super) fn of(vm: &'a PlannedVm, boot_bus: DiskBus, inside: &Inside) -> Option<DueInside<'a>> {
        if vm.convert == Convert::Never || is_due(vm, boot_bus) {
            return None;
        }
        match judged(vm, boot_bus, false, Some(inside)) {
            Judged { need: Need::Needed(why), boots } => {
                let guest = kind_of(vm, inside.system_found());
                Some(DueInside { why, is_needed_to_boot: boots == Some(false), guest })
            }
            Judged { need: Need::Advised(_) | Need::NotNeeded(_), .. } => None,
        }
    }

    /// What a site lacks for it, by what its agent says of itself.
    pub(super) fn lack_at(&self, site: &str, info: &Announced, boot_bus: DiskBus) -> Option<Lack> {
        lack_at(site, info).or_else(|| lack_for_at(self.guest, site, info, boot_bus))
    }

    /// There is no converter, or nothing for it to put into Windows: without it a guest is moved as it is, unless it is known not to boot.
    pub(super) fn without_converter(&self, vm: &PlannedVm, lack: &Lack) -> Problem {
        match self.is_needed_to_boot {
            true => self.refused(vm, lack),
            false => {
                let text = format!("{}: is to be converted ({}), and {}", vm.vm.name, self.why, lack.what);
                of_vm(vm, Problem::warning("convert", text), &lack.advice)
            }
        }
    }

    /// Something that a run fails of.
    pub(super) fn refused(&self, vm: &PlannedVm, lack: &Lack) -> Problem {
        let text = format!("{}: needs conversion ({}): {}", vm.vm.name, self.why, lack.what);
        of_vm(vm, Problem::error("convert", text), &lack.advice)
    }
}

fn of_vm(vm: &PlannedVm, problem: Problem, advice: &str) -> Problem {
    problem.at(At { line: vm.line, column: 1 }).advise(advice)
}

/// The converter of this machine, for one plan.
pub(super) struct Converter {
    trials: Trials,
    stop: StopSignal,
    say: fn(&str),
}

impl Converter {
    pub(super) fn new(about: &Setting) -> Converter {
        Converter { trials: trials_in(about.state()), stop: about.stop.clone(), say: about.host.say }
    }

    /// Refuses a VM that would be moved and then not be converted, or not boot.
    pub(super) fn check(&self, vm: &PlannedVm, boot_bus: DiskBus) -> Result<(), ProviderError> {
        if !is_due(vm, boot_bus) {
            return Ok(());
        }
        let refused = |lack: Lack| {
            let what = format!("{} needs conversion: {}", vm.vm.name, lack.what);
            ProviderError::new(Cause::Target, what).advise(lack.advice)
        };
        drover_qemu::check_conversion(kind_of(vm, vm.found), boot_bus).map_err(refused)?;
        check_first_boot(vm, &drover_qemu::can_customize)?;
        self.try_appliance(&self.stop).map_err(refused)
    }

    /// The same of a VM whose disks were looked into.
    pub(super) fn check_inside(
        &self,
        vm: &PlannedVm,
        boot_bus: DiskBus,
        inside: &Inside,
        stop: &StopSignal,
    ) -> Option<Problem> {
        let due = DueInside::of(vm, boot_bus, inside)?;
        match lack_here().or_else(|| drover_qemu::check_conversion(due.guest, boot_bus).err()) {
            Some(lack) => Some(due.without_converter(vm, &lack)),
            None => Some(due.refused(vm, &self.try_appliance(stop).err()?)),
        }
    }

    fn try_appliance(&self, stop: &StopSignal) -> Result<(), Lack> {
        try_appliance(&self.trials, &|| stop.is_set(), &|| (self.say)(TRYING))
    }
}

/// What this machine lacks for a guest that is not Windows.
pub(super) fn lack_here() -> Option<Lack> {
    let what = drover_qemu::can_convert().err()?;
    Some(Lack { what, advice: WITHOUT_CONVERTER.into() })
}

/// What a guest is to its conversion, by what was found in it, else by its guest id.
fn kind_of(vm: &PlannedVm, found: Option<FoundSystem>) -> GuestKind<'_> {
    match found {
        Some(FoundSystem::Windows { build, is_server, .. }) => {
            GuestKind::FoundWindows(WindowsVersion { build, is_server })
        }
        Some(FoundSystem::Linux) => GuestKind::Other,
        None if vm.vm.is_windows_by_id() => GuestKind::Windows { guest_id: &vm.vm.guest_id },
        None => GuestKind::Other,
    }
}

/// What this machine lacks for a Windows that was found.
fn lack_for_here(guest: GuestKind<'_>, boot_bus: DiskBus) -> Option<String> {
    drover_qemu::check_conversion(guest, boot_bus).err().map(|lack| lack.what)
}

const WITHOUT_CONVERTER: &str = "install it, or have the guest boot from its new disks before the move (see what was found inside it); \
     `convert: never` moves it as it is";

/// Trials of the converter that are remembered in a state folder.
pub fn trials_in(state: &Path) -> Trials {
    Trials::in_folder(state.join("converter"))
}

/// Whether the appliance of this machine's converter comes up; `on_begin` is called if it has to be tried.
pub fn try_appliance(
    trials: &Trials,
    is_unwanted: &dyn Fn() -> bool,
    on_begin: &dyn Fn(),
) -> Result<(), Lack> {
    trials.check(&TrialOptions { program: None, time_max: TRIAL_TIME_MAX, is_unwanted, on_begin })
}

/// Without KVM an appliance took 110 s to be built and started on a busy machine, and 20 to 40 s from then on; the rest is room.
const TRIAL_TIME_MAX: Duration = Duration::from_secs(600);
const TRYING: &str = "trying whether the appliance of virt-v2v-in-place starts (up to a few minutes without KVM; a success is remembered)";

/// The same of a VM that is converted at a site, by what its agent says of itself.
pub(super) fn check_at(
    site: &str,
    info: &Announced,
    vm: &PlannedVm,
    boot_bus: DiskBus,
) -> Result<(), ProviderError> {
    if !is_due(vm, boot_bus) {
        return Ok(());
    }
    let lack = lack_at(site, info).or_else(|| lack_for_at(kind_of(vm, vm.found), site, info, boot_bus));
    if let Some(lack) = lack {
        let what = format!("{} needs conversion: {}", vm.vm.name, lack.what);
        return Err(ProviderError::new(Cause::Plan, what).advise(lack.advice));
    }
    check_first_boot_at(site, info, vm)
}

/// Why the host of a site does not convert a VM whose volumes are there; nothing where it does.
pub(super) fn why_not_at(site: &str, info: &Announced, vm: &PlannedVm, boot_bus: DiskBus) -> Option<String> {
    let lack = lack_at(site, info).map(|lack| lack.what);
    lack.or_else(|| check_at(site, info, vm, boot_bus).err().map(|error| chain(&error)))
}

/// Why the host of a site never converts a VM that has logical volumes there.
pub(super) const OF_VOLUMES: &str = "an agent converts images in files, and it has logical volumes";

/// Warns that VMs are converted from here, though their volumes are at a site.
pub(super) fn over_link(names: &[&str], site: &str, why: &str) -> Problem {
    let text = format!(
        "{} ({}) {} converted on this machine, over the link to {site}: {why}. A conversion reads and writes hundreds of MB of a guest in \
         small pieces, each of which waits for the link, while the guest is down",
        count(names.len(), "VM"),
        some_of(names, NAMED_MAX),
        if names.len() == 1 { "is" } else { "are" },
    );
    Problem::warning("convert", text).advise(match why {
        OF_VOLUMES => "give it a pool of files, whose agent converts it there, or see whether it needs conversion (`convert: never`)",
        _ => "have the converter where the volumes are: install virt-v2v on that host, and run its agent with --allow-start",
    })
}

/// Refuses work for the first boot that the converter of a site cannot be given.
pub(super) fn check_first_boot_at(site: &str, info: &Announced, vm: &PlannedVm) -> Result<(), ProviderError> {
    check_first_boot(vm, &|| {
        let files = || vm.first_boot.scripts.iter().chain(&vm.first_boot.guest_agent);
        let own = usize::from(!vm.first_boot.addresses.is_empty());
        let bytes: u64 = files().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum();
        if files().count() + own > FILES_MAX || bytes > FILES_BYTES_MAX {
            let most = Bytes(FILES_BYTES_MAX);
            return Err(format!(
                "an agent takes {FILES_MAX} files for it, of {most} in all, and these are {}",
                Bytes(bytes)
            ));
        }
        let has_files = files().count() + own > 0;
        match (info.has(CONVERT_WRITE), info.has(CONVERT_FILES)) {
            (false, _) => {
                Err(format!("the converter of {site} puts no files into guests (2.6 and later do)"))
            }
            (true, false) if has_files => {
                Err(format!("the agent of {site} takes no files for it (one of this version does)"))
            }
            _ => Ok(()),
        }
    })
}

/// What the agent of a site lacks for a guest that is not Windows.
pub(super) fn lack_at(site: &str, info: &Announced) -> Option<Lack> {
    let lack =
        Lack { what: format!("the agent of {site} converts no guests"), advice: FOR_CONVERSION.into() };
    (!info.has(CONVERT)).then_some(lack)
}

/// What its host lacks for a Windows beside a converter.
pub(super) fn lack_for_at(
    guest: GuestKind<'_>,
    site: &str,
    info: &Announced,
    boot_bus: DiskBus,
) -> Option<Lack> {
    let windows = if boot_bus == DiskBus::Scsi { CONVERT_WINDOWS_SCSI } else { CONVERT_WINDOWS };
    if guest == GuestKind::Other || info.has(windows) {
        return None;
    }
    let what = format!("the host of {site} lacks what a converter puts into Windows for this disk bus");
    let advice = "install virtio-win and rhsrvany there (for `disk_bus: scsi` virt-v2v 2.6, too), or choose `disk_bus: sata`";
    Some(Lack { what, advice: advice.into() })
}

const FOR_CONVERSION: &str = "install virt-v2v there and run its agent with --allow-start (an agent of before this version converts nothing); \
     or write `convert: never` for a guest that has virtio drivers, or choose `disk_bus: sata`";

fn check_first_boot(
    vm: &PlannedVm,
    can_customize: &dyn Fn() -> Result<(), String>,
) -> Result<(), ProviderError> {
    let work = first_boot(vm, cards(vm, None).settings);
    if work.is_empty() {
        return Ok(());
    }
    let refused = |why: String, advice: &str| {
        let what = format!("{} has work for its first boot: {why}", vm.vm.name);
        ProviderError::new(Cause::Target, what).advise(advice)
    };
    work.check().map_err(|why| refused(why, "see `first_boot` in the plan"))?;
    can_customize()
        .map_err(|why| refused(why, "install virt-v2v 2.6 or later there, or leave `first_boot` out"))
}

/// Work for the first boot, as the converter wants it.
fn first_boot(vm: &PlannedVm, cards: Vec<CardSettings>) -> drover_qemu::FirstBoot {
    let FirstBoot { scripts, guest_agent, .. } = vm.first_boot.clone();
    drover_qemu::FirstBoot { scripts, package: guest_agent, cards }
}

/// What of the addresses and routes of a Windows is not as one may think.
fn told_cards(vm: &PlannedVm, cards: &Cards) -> Vec<String> {
    let name = &vm.vm.name;
    let by_dhcp = cards.by_dhcp.iter().map(|mac| {
        format!("{name}: the card {mac} asks for its address (DHCP) by now, as its registry has it, and is given none of IPv4")
    });
    let left_out =
        cards.left_out.iter().map(|it| format!("{name}: {}; {}", why_left_out(it), how_to_set(it)));
    by_dhcp.chain(left_out).chain(cards.of_several.iter().map(|it| format!("{name}: {it}"))).collect()
}

/// Where a guest is converted.
pub(super) trait Place {
    /// The bus of the disk that is booted from.
    fn boot_bus(&self) -> DiskBus;

    /// Whether its images hold a converted guest, or may hold one in part.
    fn is_converted(&self) -> Result<bool, ProviderError>;

    /// What is inside its images; absent where nobody can tell.
    fn look_inside(&self) -> Option<Inside>;

    /// What is inside them once they are converted; absent where nobody can tell.
    fn look_again(&self) -> Option<Inside> {
        self.look_inside()
    }

    /// What lacks here for the conversion of a Windows that was found.
    fn lack_for(&self, guest: GuestKind<'_>) -> Result<Option<String>, ProviderError>;

    /// Why names of interfaces cannot be kept.
    fn can_customize(&self) -> Result<(), String>;

    /// Why a boot loader cannot be put where the firmware looks for one.
    fn can_put_loader(&self) -> Result<(), String> {
        self.can_customize()
    }

    /// Converts it, once.
    fn convert(&self, guest: &SourceGuest) -> Result<ConvertOutcome, ProviderError>;
}

/// Images on this machine, or overlays on this machine of images of another host or of Ceph.
pub(super) struct OnThisMachine<'a> {
    pub spec: &'a MachineSpec,
    pub vm: &'a PlannedVm,
    pub stop: &'a StopSignal,
    /// The images, where they are not all files of this machine.
    pub served: Vec<Arc<dyn Disk>>,
}

impl Place for OnThisMachine<'_> {
    fn boot_bus(&self) -> DiskBus {
        boot_bus_of(self.spec)
    }

    fn is_converted(&self) -> Result<bool, ProviderError> {
        Ok(drover_qemu::is_converted(&self.spec.folder, &[]))
    }

    fn look_inside(&self) -> Option<Inside> {
        if !self.served.is_empty() {
            return Some(inspect_disks(&self.served, self.stop));
        }
        inspect_images(self.vm.disks.iter().map(|disk| disk.path.as_path()), self.vm.format).ok()
    }

    fn look_again(&self) -> Option<Inside> {
        // On overlays, as in a rehearsal, what is new is not in the images.
        let are_images =
            self.spec.disks.iter().zip(&self.vm.disks).all(|(disk, image)| disk.path == image.path);
        if are_images { self.look_inside() } else { None }
    }

    fn lack_for(&self, guest: GuestKind<'_>) -> Result<Option<String>, ProviderError> {
        Ok(lack_for_here(guest, self.boot_bus()))
    }

    fn can_customize(&self) -> Result<(), String> {
        drover_qemu::can_customize()
    }

    fn convert(&self, guest: &SourceGuest) -> Result<ConvertOutcome, ProviderError> {
        let is_unwanted = || self.stop.is_set();
        drover_qemu::convert(self.spec, guest, &ConvertOptions::default(), &is_unwanted).map_err(qemu_error)
    }
}

/// Images of another host, which are served to the converter on this one while it works.
pub(super) struct Served<'a> {
    /// Who opens them.
    pub target: &'a dyn TargetProvider,
    pub vm: &'a PlannedVm,
    pub machine: Machine,
    /// A folder of this machine for overlays and state.
    pub folder: PathBuf,
    /// What tells each image from others, and from a later one of its name.
    pub identities: Vec<String>,
    pub stop: &'a StopSignal,
}

impl Served<'_> {
    fn spec(&self) -> Result<MachineSpec, ProviderError> {
        // Not run here, so its firmware is nothing to be found.
        let machine = Machine { is_started: false, is_converted: false, ..self.machine.clone() };
        let images = self.vm.disks.iter().map(|disk| disk.path.clone()).collect();
        spec_of(&Home { folder: self.folder.clone(), images, machine: &machine }, None).map_err(qemu_error)
    }

    fn export(&self, index: usize) -> Result<Export, ProviderError> {
        let disk = &self.vm.disks[index];
        // What is opened is made if it is not there, and a blank disk is no copy.
        if !self.target.has_image(disk, self.vm)? {
            let what = format!("{} was copied, and is gone", self.vm.place_of(disk).display());
            let advice = "see who removed it; `drover cancel` the VM, and move it anew";
            return Err(ProviderError::new(Cause::Target, what).advise(advice));
        }
        let opened = self.target.open_disk(disk, self.vm, disk.disk.capacity_bytes)?;
        Ok(Export::new(&index.to_string(), opened.disk).writable())
    }
}

impl Place for Served<'_> {
    fn boot_bus(&self) -> DiskBus {
        boot_bus(&self.machine)
    }

    fn is_converted(&self) -> Result<bool, ProviderError> {
        Ok(drover_qemu::is_converted(&VmFolder::new(&self.folder), &self.identities))
    }

    fn look_inside(&self) -> Option<Inside> {
        let disks = self.vm.disks.iter().map(|disk| self.target.open_for_verify(disk, self.vm));
        Some(inspect_disks(&disks.collect::<Result<Vec<_>, _>>().ok()?, self.stop))
    }

    fn lack_for(&self, guest: GuestKind<'_>) -> Result<Option<String>, ProviderError> {
        Ok(lack_for_here(guest, self.boot_bus()))
    }

    fn can_customize(&self) -> Result<(), String> {
        drover_qemu::can_customize()
    }

    fn convert(&self, guest: &SourceGuest) -> Result<ConvertOutcome, ProviderError> {
        let failed = |doing: &str, error: std::io::Error| {
            ProviderError::new(Cause::Internal, format!("{doing} to convert {}", self.vm.target_name))
                .because(error)
        };
        let exports =
            (0..self.vm.disks.len()).map(|index| self.export(index)).collect::<Result<Vec<_>, _>>()?;
        std::fs::create_dir_all(&self.folder).map_err(|error| failed("making a folder", error))?;
        door::remove_stale_doors(&std::env::temp_dir());
        let door = door::open(door::CONVERSION).map_err(|error| failed("making a folder", error))?;
        let listen = Listen::Unix(door.path().join(door::SOCKET));
        let server = Server::start(exports, &listen, ServerOptions::for_disks(self.vm.disks.len()));
        let server = server.map_err(|error| failed("serving its disks", error))?;
        let remote = |(index, identity): (usize, &String)| Remote {
            uri: server.uri(&index.to_string()),
            identity: identity.clone(),
        };
        let remote = self.identities.iter().enumerate().map(remote).collect();
        let options = ConvertOptions { remote, ..ConvertOptions::default() };
        let outcome = drover_qemu::convert(&self.spec()?, guest, &options, &|| self.stop.is_set());
        let stopped = server.stop();
        let outcome = outcome.map_err(qemu_error)?;
        stopped.map_err(|error| {
            let what = format!("writing the converted {}", self.vm.target_name);
            ProviderError::new(Cause::Target, what).because(error)
        })?;
        Ok(outcome)
    }
}

/// Converts a guest, if the plan and the guest ask for it.
pub(super) fn convert(place: &dyn Place, vm: &PlannedVm) -> Result<Converted, ProviderError> {
    if vm.convert == Convert::Never {
        return Ok(Converted::Skipped("the plan says so".into()));
    }
    let is_converted = place.is_converted()?;
    // What is in converted ones is no more what the source had.
    let inside = if is_converted { None } else { place.look_inside() };
    let Judged { need, boots } = judged(vm, place.boot_bus(), is_converted, inside.as_ref());
    let found = inside.as_ref().and_then(Inside::system_found).or(vm.found);
    let kind = kind_of(vm, found);
    let guest_is_windows = kind != GuestKind::Other;
    // Its guest id may not have told that it is a Linux.
    let cards = match found {
        Some(FoundSystem::Linux) => Cards::default(),
        _ => cards(vm, inside.as_ref().and_then(Inside::only_windows)),
    };
    let left = told_cards(vm, &cards);
    let first_boot = first_boot(vm, cards.settings);
    // What follows is about Linux.
    let inside = inside.filter(|_| !guest_is_windows);
    let mut guest = source_guest(vm, Names::of(vm, inside.as_ref()), first_boot);
    guest.is_windows = guest_is_windows;
    guest.fallback = inside.as_ref().is_some_and(|inside| gets_loader(vm, inside));
    // A guest that needs no driver may still lose its network, or not be started: then that is what it is converted for.
    let lost = lost(&guest);
    let is_for_these = vm.convert == Convert::Auto && !matches!(need, Need::Needed(_)) && !lost.is_empty();
    let reason = match (need, vm.convert) {
        (Need::NotNeeded(why) | Need::Advised(why), Convert::Auto) if is_for_these => {
            match cured(place, &mut guest, &lost) {
                Ok(reason) => reason,
                Err(cannot) => return Ok(Converted::Skipped(format!("{why}, BUT {cannot}"))),
            }
        }
        (Need::NotNeeded(why) | Need::Advised(why), Convert::Auto) => return Ok(Converted::Skipped(why)),
        (Need::Needed(why) | Need::Advised(why) | Need::NotNeeded(why), _) => why,
    };
    // What a guest id of Windows wants was looked for before the copy; of what else was found nobody knew.
    let lack = match kind {
        GuestKind::FoundWindows(_) if !is_converted => place.lack_for(kind)?,
        GuestKind::FoundWindows(_) | GuestKind::Windows { .. } | GuestKind::Other => None,
    };
    match lack.map_or_else(|| place.convert(&guest), |lack| Ok(ConvertOutcome::NotAvailable(lack))) {
        // Its images are as they were copied, and it may well boot from them.
        Err(error)
            if is_for_these
                && !matches!(error.cause, Cause::Connection | Cause::Cancelled)
                && !place.is_converted()? =>
        {
            Ok(Converted::Skipped(format!("{reason}, BUT {}", chain(&error))))
        }
        Err(error) => Err(error),
        Ok(ConvertOutcome::Converted { log, warnings, kept }) => {
            let loader = if guest.fallback { told_loader(place.look_again().as_ref()) } else { "" };
            Ok(Converted::Done { told: told(&log, &warnings, &kept, &guest.first_boot) + loader, left })
        }
        Ok(ConvertOutcome::ConvertedBefore) => Ok(Converted::Skipped("an earlier run converted it".into())),
        Ok(ConvertOutcome::NotAvailable(why)) if vm.convert == Convert::Always || boots == Some(false) => {
            Err(ProviderError::new(Cause::Target, format!("{reason}, but {why}"))
                .advise("install it and run the same command again, or choose `convert: never`"))
        }
        Ok(ConvertOutcome::NotAvailable(why)) => Ok(Converted::Skipped(format!("{reason}, BUT {why}"))),
    }
}

/// Whether a conversion has a loader to put where the firmware looks for one: boot entries, which lead elsewhere, stay behind.
fn gets_loader(vm: &PlannedVm, inside: &Inside) -> bool {
    vm.vm.firmware == Some(Firmware::Uefi)
        && inside.efi.as_ref().is_some_and(|efi| !efi.has_fallback && has_known_loader(efi))
}

/// What a guest loses without conversion, and what of it there is to be told.
struct Lost {
    names: Option<String>,
    loader: Option<&'static str>,
}

impl Lost {
    fn is_empty(&self) -> bool {
        self.names.is_none() && self.loader.is_none()
    }
}

fn lost(guest: &SourceGuest) -> Lost {
    let names: Vec<&str> = guest.names.iter().map(|it| it.name.as_str()).collect();
    let names = (!names.is_empty())
        .then(|| format!("its network settings are for {}, a name that its card may lose", names.join(", ")));
    Lost { names, loader: guest.fallback.then_some(NO_LOADER) }
}

const NO_LOADER: &str = r"it has no \EFI\BOOT\BOOTX64.EFI, so its firmware would start nothing";

/// What a guest is converted for, of what it would lose; asks for nothing else. What it loses, and why, where none of it can be helped.
fn cured(place: &dyn Place, guest: &mut SourceGuest, lost: &Lost) -> Result<String, String> {
    let (mut cured, mut cannot) = (Vec::new(), Vec::new());
    let mut judge = |what: &str, can: Result<(), String>| match can {
        Ok(()) => cured.push(what.to_string()),
        Err(why) => cannot.push(format!("{what}, and {why}")),
    };
    if let Some(names) = &lost.names {
        judge(names, place.can_customize());
    }
    if let Some(loader) = lost.loader {
        let can = place.can_put_loader();
        guest.fallback = can.is_ok();
        judge(loader, can);
    }
    match cured.is_empty() {
        true => Err(cannot.join("; ")),
        false => Ok([cured, cannot].concat().join("; ")),
    }
}

/// What became of a loader, as far as its partition was looked at again.
fn told_loader(inside: Option<&Inside>) -> &'static str {
    match inside.and_then(|inside| inside.efi.as_ref()).map(|efi| efi.has_fallback) {
        Some(true) => r"; its firmware finds \EFI\BOOT\BOOTX64.EFI now",
        Some(false) => r"; BUT there still is no \EFI\BOOT\BOOTX64.EFI, which its firmware would start",
        None => "",
    }
}

/// What is known of a guest before its conversion.
struct Judged {
    need: Need,
    /// Whether it boots without; absent where nobody knows.
    boots: Option<bool>,
}

/// Whether a guest needs conversion, by what is in its images where that tells, else by its guest id.
fn judged(vm: &PlannedVm, bus: DiskBus, is_converted: bool, inside: Option<&Inside>) -> Judged {
    if let Some(windows) = inside.and_then(Inside::only_windows) {
        let system = inside.and_then(|inside| inside.system.as_deref()).unwrap_or("a Windows");
        let need = windows_needs_conversion(&format!("it holds {system}"), bus);
        let lacks = |disk: &PlannedDisk| lacking_windows_driver(windows, disk.bus).is_some();
        let boots = match bus {
            DiskBus::Sata => Some(true),
            // It may, if Windows binds its drivers to the devices.
            _ if windows.drivers.is_some() && !vm.disks.first().is_some_and(lacks) => None,
            DiskBus::Virtio | DiskBus::Scsi => Some(false),
        };
        return Judged { need, boots };
    }
    let found = inside.and_then(Inside::system_found).or(vm.found);
    let by_id = need_by_id(vm, found, bus);
    if kind_of(vm, found) != GuestKind::Other {
        let need = match vm.vm.is_windows_by_id() {
            true => by_id,
            false => windows_needs_conversion("a look before the move found Windows in it", bus),
        };
        return Judged { need, boots: Some(bus == DiskBus::Sata) };
    }
    if is_converted {
        return Judged { need: Need::Needed("an earlier run began to convert it".into()), boots: None };
    }
    let by_id = Judged { need: by_id, boots: None };
    let Some(inside) = inside else { return by_id };
    let (Some(initramfs), Some(disk)) = (&inside.initramfs, vm.disks.first()) else { return by_id };
    let path = &initramfs.path;
    if let Some(driver) = lacking_driver(initramfs, disk.bus) {
        // virt-v2v puts in drivers of virtio only.
        let other = match driver {
            "ahci" => ", which no conversion adds: choose `disk_bus: virtio`",
            _ => "",
        };
        let need = Need::Needed(format!("its {path} has no driver {driver}{other}"));
        return Judged { need, boots: Some(false) };
    }
    let renamed = renamed(vm, inside);
    // The converter renames these two, to virtio; what it does not rename is no reason for it.
    let are_cured = disk.bus == TargetBus::Virtio
        && inside
            .by_path
            .iter()
            .any(|it| ["/dev/sd", "/dev/hd"].iter().any(|start| it.device.starts_with(start)));
    if !renamed.is_empty() && !are_cured {
        return by_id;
    }
    if !renamed.is_empty() {
        let why = format!("it finds disks by paths that change with their bus: {}", renamed.join(", "));
        return Judged { need: Need::Needed(why), boots: None };
    }
    if !inside.saw_root() {
        // On a file system that is not read: its fstab may name disks by their paths.
        return by_id;
    }
    let need = Need::NotNeeded(format!("its {path} has the driver of its disks"));
    Judged { need, boots: Some(true) }
}

/// Names of interfaces that are to be kept, as names that come of where a card is change with it.
#[derive(Default)]
struct Names {
    /// Those that the guest's settings need.
    sure: Vec<NicName>,
    /// Those that they may need, where nobody could read them.
    maybe: Vec<NicName>,
}

impl Names {
    fn of(vm: &PlannedVm, inside: Option<&Inside>) -> Names {
        let Some(inside) = inside else { return Names::default() };
        if !inside.saw_root() {
            let name = |(name, mac)| NicName { mac, name };
            return Names { maybe: names_of_slots(vm).into_iter().map(name).collect(), ..Names::default() };
        }
        let name = |fate: Fate| match fate.stays {
            Stays::IfNamed { name, mac } => Some(NicName { mac, name }),
            Stays::ByItself | Stays::No | Stays::Unset => None,
        };
        Names { sure: fates(vm, inside).into_iter().filter_map(name).collect(), ..Names::default() }
    }
}

fn told(log: &Path, warnings: &[String], kept: &[String], first_boot: &drover_qemu::FirstBoot) -> String {
    let mut text = log.display().to_string();
    let files: Vec<String> =
        first_boot.package.iter().chain(&first_boot.scripts).map(|it| it.display().to_string()).collect();
    if !files.is_empty() {
        text += &format!("; for its first boot: {}", files.join(", "));
    }
    for CardSettings { mac, addresses, routes, .. } in &first_boot.cards {
        let mut all: Vec<String> = addresses.iter().map(|(ip, bits)| format!("{ip}/{bits}")).collect();
        all.extend(match routes.len() {
            0 => None,
            1 => Some("1 route".to_string()),
            many => Some(format!("{many} routes")),
        });
        text += &format!("; {mac} gets at its first boot: {}", all.join(", "));
    }
    if !kept.is_empty() {
        text += &format!("; interfaces that keep their names: {}", kept.join(", "));
    }
    if !warnings.is_empty() {
        text += &format!("; it warned: {}", warnings.join("; "));
    }
    text
}

/// The guest as the converter has to know it.
fn source_guest(vm: &PlannedVm, names: Names, first_boot: drover_qemu::FirstBoot) -> SourceGuest {
    let buses = vm.disks.iter().map(|disk| source_bus(disk.disk.bus)).collect();
    let Names { sure: names, maybe: names_maybe } = names;
    SourceGuest { is_windows: vm.is_windows(), buses, names, names_maybe, fallback: false, first_boot }
}

fn source_bus(bus: InventoryBus) -> SourceBus {
    match bus {
        InventoryBus::Scsi => SourceBus::Scsi,
        InventoryBus::Sata => SourceBus::Sata,
        InventoryBus::Ide => SourceBus::Ide,
        InventoryBus::Nvme => SourceBus::Nvme,
    }
}

/// The same, told to an agent; and the bytes of the files that it tells of.
pub(super) fn for_peer(guest: &SourceGuest, vm: &PlannedVm) -> Result<(Guest, Vec<Vec<u8>>), ProviderError> {
    let named = |names: &[NicName]| names.iter().map(|it| (it.mac.clone(), it.name.clone())).collect();
    let (mut scripts, mut files) = read_files(&vm.first_boot.scripts)?;
    if let Some(script) = guest.first_boot.cards_script() {
        scripts.insert(0, GuestFile { name: "addresses.bat".into(), bytes: script.len() as u64 });
        files.insert(0, script.into_bytes());
    }
    let (package, package_bytes) = read_files(vm.first_boot.guest_agent.as_slice())?;
    files.extend(package_bytes);
    let guest = Guest {
        is_windows: guest.is_windows,
        buses: vm.disks.iter().map(|disk| disk.disk.bus).collect(),
        names: named(&guest.names),
        names_maybe: named(&guest.names_maybe),
        fallback: guest.fallback,
        scripts,
        package: package.into_iter().next(),
        ..Guest::default()
    };
    Ok((guest, files))
}

fn read_files(paths: &[PathBuf]) -> Result<(Vec<GuestFile>, Vec<Vec<u8>>), ProviderError> {
    let read = |path: &PathBuf| {
        let bytes = std::fs::read(path).map_err(|error| {
            let what = format!("reading {}, which is for the first boot", path.display());
            ProviderError::new(Cause::Target, what).because(error)
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((GuestFile { name, bytes: bytes.len() as u64 }, bytes))
    };
    paths.iter().map(read).collect()
}

/// What a peer tells of its guest.
pub fn of_peer(guest: &Guest, files: &FirstBootFiles) -> Result<SourceGuest, String> {
    let named = |names: &[(String, String)]| -> Result<Vec<NicName>, String> {
        let nic = |(mac, name): &(String, String)| NicName { mac: mac.clone(), name: name.clone() };
        let nics: Vec<NicName> = names.iter().map(nic).collect();
        match nics.iter().find(|nic| !nic.is_sane()) {
            Some(odd) => {
                Err(format!("{:?} is no name of an interface, or {:?} no MAC address", odd.name, odd.mac))
            }
            None => Ok(nics),
        }
    };
    let FirstBootFiles { scripts, package } = files.clone();
    let first_boot = drover_qemu::FirstBoot { scripts, package, cards: Vec::new() };
    first_boot.check()?;
    Ok(SourceGuest {
        is_windows: guest.is_windows,
        buses: guest.buses.iter().copied().map(source_bus).collect(),
        names: named(&guest.names)?,
        names_maybe: named(&guest.names_maybe)?,
        fallback: guest.fallback,
        first_boot,
    })
}

#[cfg(test)]
pub(crate) mod tests;
