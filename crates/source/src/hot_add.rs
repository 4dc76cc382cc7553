//! Hot-add as a way to vSphere's disks: they are attached to a proxy VM, whose agent reads them and sends them over a link.
//!
//! ```text
//! record (store) ── attach (SOAP, at the proxy) ── open hot-added:SERIAL (agent in the proxy) ── read
//!                                                   close ── detach (SOAP) ── snapshot removed ── record forgotten
//! ```
//!
//! What a failed detach leaves is found again by [`HotAdd::detach`], before a snapshot is removed, by this run or the next.

mod check;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use drover_agent::sites::{OpenDisks, SiteError, ThisHost, dial_now, give_up_on_stop};
use drover_agent::{AgentDisk, AgentOptions, HOT_ADDED, Site};
use drover_disk::{Disk, DiskError, DiskOp, Features, Lane, Limits, check_span};
use drover_engine::{Attachment, Cause, OpenedSource, ProviderError, Record, chain};
use drover_http::ExtentSource;
use drover_mover::StopSignal;
use drover_plan::{
    Limits as PlanLimits, PathChoice, Plan, PlannedProxy, PlannedVm, Problem, VsphereSource, proxies,
};
use drover_types::inventory::{DiskMode, Inventory, PowerState, Vm, VmDisk};
use drover_types::{ByteSpan, Extent};
use drover_vsphere::{
    Attach, AttachError, Proxy, Session, VsphereError, VsphereErrorKind, Wanted, serial_of,
};

use crate::vsphere::provider_error;

pub use check::check_proxies;

/// How often it is looked for a slot that came free.
const SLOT_PAUSE: Duration = Duration::from_secs(1);
/// A disk of vSphere is of whole sectors.
const SECTOR: u64 = 512;

/// What all disks share that are read by proxies.
pub struct HotAdd {
    found: OnceLock<(Vec<PlannedProxy>, Vec<Problem>)>,
    /// Whether a disk that no proxy gives is an error, and not read otherwise.
    pub insists: bool,
    host: ThisHost,
    give_up_after: Duration,
    stop: OnceLock<StopSignal>,
    sites: Mutex<HashMap<String, (Arc<Site>, OpenDisks)>>,
    desks: Mutex<HashMap<String, Arc<Desk>>>,
}

/// The changes of one proxy, one after the other: vSphere does no two at a time.
#[derive(Default)]
struct Desk {
    turn: Mutex<()>,
    /// Disks that this run has attached.
    open: AtomicUsize,
}

impl Desk {
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which disk to open.
pub struct Asked<'a> {
    pub session: &'a Session,
    pub vm: &'a PlannedVm,
    pub frozen: &'a VmDisk,
    /// What tells the state of the disk from others, by whatever way it is read.
    pub identity: String,
    pub extents: Option<Arc<dyn ExtentSource>>,
    pub record: Record<'a>,
}

/// Why a proxy does not give a disk.
enum Refused {
    /// All its slots are taken.
    Full(String),
    Other(String),
    /// The run is to end.
    Stopped(ProviderError),
}

impl HotAdd {
    /// For a plan that has proxies, and wants them used.
    pub fn new(source: &VsphereSource, limits: &PlanLimits, host: &ThisHost) -> Option<HotAdd> {
        let is_wanted = matches!(source.data.path, PathChoice::Auto | PathChoice::HotAdd);
        (is_wanted && !source.data.proxies.is_empty()).then(|| HotAdd {
            found: OnceLock::new(),
            insists: source.data.path == PathChoice::HotAdd,
            host: host.clone(),
            give_up_after: limits.retry_for,
            stop: OnceLock::new(),
            sites: Mutex::default(),
            desks: Mutex::default(),
        })
    }

    /// Finds the plan's proxies in an inventory that has all VMs. Done once.
    pub fn find(&self, plan: &Plan, inventory: &Inventory) {
        self.found.get_or_init(|| proxies(plan, inventory));
    }

    /// A stop ends waiting for a link that is down.
    pub fn stop_when(&self, stop: &StopSignal) {
        // There is one for a run.
        let _ = self.stop.set(stop.clone());
    }

    pub fn proxies(&self) -> &[PlannedProxy] {
        self.found.get().map_or(&[], |(proxies, _)| proxies)
    }

    fn desk(&self, proxy: &str) -> Arc<Desk> {
        let mut desks = self.desks.lock().unwrap_or_else(PoisonError::into_inner);
        desks.entry(proxy.to_string()).or_default().clone()
    }

    /// The site of a proxy, connected.
    pub fn site(&self, name: &str) -> Result<(Arc<Site>, OpenDisks), SiteError> {
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let (site, open) = match sites.get(name) {
            Some(known) => known.clone(),
            None => {
                let made = (self.host.site_for(name, self.give_up_after)?, OpenDisks::default());
                if let Some(stop) = self.stop.get() {
                    let stop = stop.clone();
                    give_up_on_stop(move || stop.is_set(), &made.0, &made.1)
                        .map_err(|error| SiteError::Thread { site: name.into(), why: error.to_string() })?;
                }
                sites.insert(name.to_string(), made.clone());
                made
            }
        };
        drop(sites);
        dial_now(&site)?;
        Ok((site, open))
    }

    /// Opens a disk as a snapshot froze it.
    ///
    /// # Errors
    /// If no proxy gives it. Nothing of it is attached then, as far as that can be told.
    pub fn open(&self, asked: &Asked<'_>) -> Result<OpenedSource, ProviderError> {
        let until = Instant::now() + self.give_up_after;
        loop {
            let (mut reasons, mut is_full) = (Vec::new(), false);
            for proxy in self.candidates(asked.vm) {
                match self.open_by(proxy, asked) {
                    Ok(opened) => return Ok(opened),
                    Err(Refused::Stopped(error)) => return Err(error),
                    Err(Refused::Full(why)) => {
                        is_full = true;
                        reasons.push(why);
                    }
                    Err(Refused::Other(why)) => reasons.push(why),
                }
            }
            let why = match reasons.is_empty() {
                true => "none of the plan's proxies is for this VM's host, in its data centre".to_string(),
                false => reasons.join("; "),
            };
            if !(self.insists && is_full && Instant::now() < until) {
                return Err(ProviderError::new(Cause::Source, format!("no proxy reads it: {why}"))
                    .advise("see `drover plan check` and docs/how-to/hot-add.md"));
            }
            asked.session.pause("wait for a free slot of a proxy", SLOT_PAUSE).map_err(provider_error)?;
        }
    }

    /// Those for the VM, the one with the fewest disks first.
    fn candidates(&self, vm: &PlannedVm) -> Vec<&PlannedProxy> {
        let mut found: Vec<&PlannedProxy> =
            self.proxies().iter().filter(|proxy| proxy.serves(&vm.vm)).collect();
        found.sort_by_key(|proxy| self.desk(&proxy.vm).open.load(SeqCst));
        found
    }

    fn open_by(&self, proxy: &PlannedProxy, asked: &Asked<'_>) -> Result<OpenedSource, Refused> {
        let name = &proxy.name;
        let refused = |why: String| Refused::Other(format!("{name}: {why}"));
        let failed = |error: VsphereError| match error.kind {
            VsphereErrorKind::Stopped => Refused::Stopped(provider_error(error)),
            _ => refused(chain(&error)),
        };
        let file = &asked.frozen.path;
        let desk = self.desk(&proxy.vm);
        let turn = desk.turn();
        let mut dialled = None;
        // Under the one look that is had before anything is changed.
        let admit = |now: &Proxy| {
            if let Some(why) = unfit(now, asked.frozen) {
                return Err(refused(why));
            }
            dialled = Some(self.site(&proxy.site).map_err(|error| refused(error.to_string()))?);
            let attachment = Attachment { proxy: proxy.vm.clone(), file: file.clone() };
            (asked.record)(&attachment).map_err(Refused::Stopped)
        };
        let capacity_bytes = asked.frozen.capacity_bytes;
        let wanted = Wanted { file, uuid: &asked.frozen.uuid, capacity_bytes };
        let attached = asked.session.attach(&proxy.vm, &wanted, admit);
        drop(turn);
        let disk = match attached {
            Ok(Attach::Done(disk)) => *disk,
            Ok(Attach::Full) => {
                return Err(Refused::Full(format!("{name}: its SCSI controllers have no free slot")));
            }
            Ok(Attach::Twin(twin)) => {
                return Err(refused(format!("it has {twin} attached, which has the same UUID")));
            }
            Err(AttachError::Refused(refused)) => return Err(refused),
            Err(AttachError::Vsphere(error)) => return Err(failed(error)),
        };
        desk.open.fetch_add(1, SeqCst);
        let slot = (disk.address.0, disk.address.1);
        // From here on it is detached, whatever happens.
        let held = Attached { session: asked.session.clone(), proxy: proxy.vm.clone(), disk, desk };
        let serial = serial_of(&held.disk.uuid);
        if serial != serial_of(&asked.frozen.uuid) {
            return Err(refused(format!("{file} is another disk there, with UUID {}", held.disk.uuid)));
        }
        let Some((site, open)) = dialled else { return Err(refused("it was not admitted".into())) };
        let options = AgentOptions { give_up_after: self.give_up_after, ..AgentOptions::default() };
        let inner = AgentDisk::open_source(&site, &format!("{HOT_ADDED}{serial}"), options)
            .map_err(|error| refused(chain(&error)))?;
        let (size, wanted) = (inner.size(), asked.frozen.capacity_bytes);
        if size != wanted && size != wanted.next_multiple_of(SECTOR) {
            return Err(refused(format!("the disk with serial {serial} has {size} bytes, and not {wanted}")));
        }
        let mut notes = vec![format!(
            "read by proxy {name} (site {}), attached there as SCSI {}:{}, independent and nonpersistent",
            proxy.site, slot.0, slot.1
        )];
        notes.extend(inner.opened().notes.iter().cloned());
        let disk = HotAddedDisk {
            name: inner.name().to_string(),
            identity: asked.identity.clone(),
            extents: asked.extents.clone(),
            inner: open.keep(inner),
            _held: held,
        };
        Ok(OpenedSource { disk: Arc::new(disk), notes, late: None })
    }

    /// Detaches whatever is attached of a VM's disks: to the plan's proxies, or to those that were recorded. Gives a line about
    /// each.
    pub fn detach(
        &self,
        session: &Session,
        vm: &Vm,
        recorded: &[Attachment],
    ) -> Result<Vec<String>, ProviderError> {
        detach(session, self.proxies(), vm, recorded, &|proxy| self.desk(proxy))
    }
}

impl fmt::Display for HotAdd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.proxies().iter().map(|proxy| proxy.name.as_str()).collect();
        write!(f, "read by proxies to which they are attached ({})", names.join(", "))
    }
}

/// As [`HotAdd::detach`], for a plan whose disks are not read by proxies any more.
pub fn detach_recorded(
    session: &Session,
    vm: &Vm,
    recorded: &[Attachment],
) -> Result<Vec<String>, ProviderError> {
    detach(session, &[], vm, recorded, &|_| Arc::default())
}

fn detach(
    session: &Session,
    proxies: &[PlannedProxy],
    vm: &Vm,
    recorded: &[Attachment],
    desk: &dyn Fn(&str) -> Arc<Desk>,
) -> Result<Vec<String>, ProviderError> {
    let of_plan = proxies.iter().filter(|proxy| proxy.is_near(vm)).map(|proxy| proxy.vm.as_str());
    let ids: BTreeSet<&str> = of_plan.chain(recorded.iter().map(|it| it.proxy.as_str())).collect();
    let mut lines = Vec::new();
    for id in ids {
        // What is recorded may be on its way still, after a stop. Until that has ended nobody can say that it is not there.
        let is_on_its_way = recorded.iter().any(|it| it.proxy == id);
        let settled = if is_on_its_way { session.wait_for_changes(id) } else { Ok(()) };
        let now = match settled.and_then(|()| session.proxy(id)) {
            Err(error) if error.is_gone() => continue,
            now => now.map_err(provider_error)?,
        };
        let is_recorded = |disk: &VmDisk| recorded.iter().any(|it| it.proxy == id && it.file == disk.path);
        for disk in
            now.disks.iter().filter(|disk| is_hot_added(disk) && (is_recorded(disk) || is_of(disk, vm)))
        {
            let desk = desk(id);
            let _turn = desk.turn();
            session.detach(id, disk).map_err(|error| {
                let error = provider_error(error);
                let advice = format!(
                    "detach {} from {} yourself (never delete its files), then `drover clean` or the same command again",
                    disk.path, now.name
                );
                ProviderError { advice: Some(advice), ..error }
            })?;
            lines.push(format!("{} was still attached to {} and is detached", disk.path, now.name));
        }
    }
    Ok(lines)
}

/// VMs of the inventory that have a disk of this VM attached.
pub fn holders(session: &Session, vm: &Vm) -> Result<Vec<String>, VsphereError> {
    let has = |other: &Vm| other.disks.iter().any(|disk| is_of(disk, vm));
    let others = session.inventory()?.vms;
    Ok(others.into_iter().filter(|other| other.id != vm.id && has(other)).map(|other| other.name).collect())
}

fn is_hot_added(disk: &VmDisk) -> bool {
    disk.mode == DiskMode::IndependentNonpersistent
}

/// All files of a disk's chain have its UUID, and lie in its folder. A clone or a replica may have the UUID, too: its files lie
/// elsewhere, and are somebody else's.
fn is_of(disk: &VmDisk, vm: &Vm) -> bool {
    let is_it = |own: &VmDisk| own.uuid == disk.uuid && folder_of(&own.path) == folder_of(&disk.path);
    !disk.uuid.is_empty() && vm.disks.iter().any(is_it)
}

/// `[ds1] a` of `[ds1] a/a-000001.vmdk`.
fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(folder, _)| folder)
}

/// Why a proxy cannot read a disk as it is now.
fn unfit(proxy: &Proxy, disk: &VmDisk) -> Option<String> {
    if proxy.power != PowerState::On {
        return Some("it does not run".into());
    }
    if !proxy.shows_uuids {
        return Some("its guest does not see the UUIDs of its disks: set disk.EnableUUID to TRUE".into());
    }
    if !proxy.datastores.contains(&disk.datastore) {
        return Some(format!("its host does not see datastore {}", disk.datastore));
    }
    if disk.uuid.is_empty() || disk.rdm.is_some() {
        return Some("a disk without a UUID of its own, or a raw mapping, is not attached".into());
    }
    None
}

/// A disk that is attached to a proxy, until this is dropped.
struct Attached {
    session: Session,
    proxy: String,
    disk: VmDisk,
    desk: Arc<Desk>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        {
            let _turn = self.desk.turn();
            // What stays is recorded: it is found, told and detached before the snapshot goes, or that is the error.
            let _ = self.session.detach(&self.proxy, &self.disk);
        }
        self.desk.open.fetch_sub(1, SeqCst);
    }
}

/// A disk that a proxy reads. Closed at its agent before it is detached: the order of the fields.
struct HotAddedDisk {
    name: String,
    identity: String,
    extents: Option<Arc<dyn ExtentSource>>,
    inner: Arc<AgentDisk>,
    _held: Attached,
}

impl Disk for HotAddedDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn features(&self) -> Features {
        Features { extents: self.extents.is_some(), ..self.inner.features() }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        check_span(DiskOp::Extents, span, self)?;
        let told = self.extents.as_ref().and_then(|source| source.extents(span));
        told.map_or_else(|| self.inner.extents(span), Ok)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        self.inner.open_lane()
    }

    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn withdraw(&self) -> bool {
        self.inner.withdraw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_known_by_its_uuid_whatever_file_of_its_chain_is_attached() {
        let disk =
            |uuid: &str, path: &str| VmDisk { uuid: uuid.into(), path: path.into(), ..VmDisk::default() };
        let vm = Vm { disks: vec![disk("6000C29a-1", "[ds1] a/a-000001.vmdk")], ..Vm::default() };
        assert!(is_of(&disk("6000C29a-1", "[ds1] a/a.vmdk"), &vm));
        assert!(!is_of(&disk("6000C29a-2", "[ds1] a/a-000001.vmdk"), &vm));
        assert!(!is_of(&disk("6000C29a-1", "[ds1] twin/a.vmdk"), &vm), "a clone with its UUID");
        assert!(!is_of(&disk("6000C29a-1", "[ds2] a/a.vmdk"), &vm), "a replica on another datastore");
        assert!(!is_of(&disk("", "[ds1] a/a.vmdk"), &Vm { disks: vec![disk("", "x")], ..Vm::default() }));
    }
}
