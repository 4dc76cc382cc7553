//! vSphere as the engine's source.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_engine::{
    AskedDisk, Attachment, Cause, ChangeTracking, Frozen, OpenedSource, PowerWatch, ProviderError,
    SourceProvider, Urgency, chain,
};
use drover_plan::{Begun, HostRoute, PlannedVm, Problem, Route as PlanRoute};
use drover_types::inventory::{About, Vm, VmDisk};
use drover_vsphere::{
    FrozenDisk, OpenDisk, OpenedDisk, PowerMark, Route, Session, VsphereError, VsphereErrorKind, Whereabouts,
};

use crate::hot_add::{self, HotAdd};
use crate::inventories::{self, Asker, Read};
use crate::login::{self, LoginError};
use crate::nfc::{self, Asked, NfcWay};
use crate::reads::Reads;
use crate::urgent::{Host, name_of};
use crate::vddk::{Frozen as FrozenFile, VddkWay, Way};

/// A vSphere session, for a plan whose paths are relative to `folder`.
pub struct VsphereSource {
    /// The session.
    pub session: Session,
    pub(crate) folder: PathBuf,
    /// Folder of drover's state.
    pub(crate) state: PathBuf,
    /// By which protocol disks are read.
    pub way: Way,
    /// Proxies that read disks, where there are any; `way` is for what they do not give.
    pub(crate) hot_add: Option<HotAdd>,
    /// What holds its reads back, where anything does.
    pub(crate) reads: Option<Reads>,
}

impl SourceProvider for VsphereSource {
    fn vm(&self, id: &str) -> Result<Vm, ProviderError> {
        self.session.vm(id).map_err(provider_error)
    }

    fn ask_shutdown(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.session.ask_shutdown(&vm.id).map_err(provider_error)
    }

    fn wait_until_off(&self, vm: &Vm, timeout: Duration) -> Result<(), ProviderError> {
        self.session.wait_until_off(&vm.id, timeout).map_err(provider_error)
    }

    fn power_off(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.session.power_off(&vm.id).map_err(provider_error)
    }

    fn power_on(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.session.power_on(&vm.id).map_err(provider_error)
    }

    fn create_snapshot(&self, vm: &Vm, name: &str, description: &str) -> Result<Frozen, ProviderError> {
        // The VM is off: there is nothing to quiesce.
        self.freeze(vm, name, description, false)
    }

    fn remove_snapshot(&self, vm: &Vm, snapshot: &str) -> Result<(), ProviderError> {
        let mut unblock = || self.unblock(vm);
        let blocked = match self.session.remove_blocked_snapshot(snapshot, &mut unblock) {
            Err(error) if error.is_fault("FileLocked") => error,
            done => return done.map_err(provider_error),
        };
        // The snapshot may be gone, and its files stay.
        if self.unblock(vm) {
            return self.session.consolidate(&vm.id).map(drop).map_err(provider_error);
        }
        // Without their names it is the same error.
        let holders = hot_add::holders(&self.session, vm).unwrap_or_default();
        Err(told_holders(provider_error(blocked), &holders))
    }

    fn has_snapshot(&self, _: &Vm, snapshot: &str) -> Result<bool, ProviderError> {
        self.session.has_snapshot(snapshot).map_err(provider_error)
    }

    fn is_gone(&self, vm: &Vm, sources: &[String]) -> Result<bool, ProviderError> {
        let at = self.session.whereabouts(&vm.id, &vm.instance_uuid).map_err(provider_error)?;
        told_gone(at, vm, self.session.about(), sources)
    }

    fn open_disk(&self, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        let opened = self.open_by_any(wanted)?;
        let disk = opened.disk.clone();
        let host = || {
            let (uuid, endpoint) = (&self.session.about().instance_uuid, self.session.endpoint_authority());
            Host::named(&name_of(uuid, &endpoint, &wanted.vm.vm.host_id))
        };
        let disk = match (&self.reads, wanted.urgency) {
            (None, _) => disk,
            (Some(reads), Urgency::Later) => reads.hold(wanted.vm, host(), disk),
            (Some(reads), Urgency::Down) => reads.limit(wanted.vm, disk),
            (Some(reads), Urgency::Delta) => reads.count(wanted.vm, host(), disk),
        };
        Ok(OpenedSource { disk, ..opened })
    }

    fn detach(&self, vm: &Vm, recorded: &[Attachment]) -> Result<Vec<String>, ProviderError> {
        match &self.hot_add {
            Some(hot_add) => hot_add.detach(&self.session, vm, recorded),
            None => hot_add::detach_recorded(&self.session, vm, recorded),
        }
    }

    fn watch_power(&self, vm: &Vm) -> Result<Option<Box<dyn PowerWatch + '_>>, ProviderError> {
        let mark = self.session.power_mark(&vm.id).map_err(provider_error)?;
        let watch = |mark| -> Box<dyn PowerWatch + '_> {
            Box::new(PowerEvents { session: &self.session, vm: vm.id.clone(), mark })
        };
        Ok(mark.map(watch))
    }

    fn tracking(&self) -> Option<&dyn ChangeTracking> {
        Some(self)
    }

    fn away(&self) -> Option<String> {
        self.session.away()
    }

    fn missed(&self) -> u64 {
        self.session.missed()
    }
}

/// The power events of a VM since a mark.
struct PowerEvents<'a> {
    session: &'a Session,
    vm: String,
    mark: PowerMark,
}

impl PowerWatch for PowerEvents<'_> {
    fn was_switched_on(&self) -> Result<bool, ProviderError> {
        self.session.was_switched_on(&self.vm, &self.mark).map_err(provider_error)
    }
}

/// Whether a VM is gone that is there, or not, by the word of what answers.
fn told_gone(at: Whereabouts, vm: &Vm, about: &About, sources: &[String]) -> Result<bool, ProviderError> {
    let (what, advice) = match at {
        Whereabouts::There => return Ok(false),
        Whereabouts::Under(id) => (
            format!("the source has {} as {id} by now, where drover touches nothing of it", vm.name),
            format!("look at {id}: switch it on if drover shut it down, and remove drover's snapshot"),
        ),
        Whereabouts::Gone if !about.is_vcenter => {
            let what = format!(
                "whether {} is gone is not known: a single host does not tell a VM that moved from one that is gone",
                vm.name
            );
            let advice =
                "look for it on other hosts: drover may have shut it down there, and left its snapshot";
            (what, advice.to_string())
        }
        Whereabouts::Gone if sources.iter().any(|uuid| *uuid != about.instance_uuid) => {
            let what = format!(
                "whether {} is gone is not known: the plan ran with another vCenter than this",
                vm.name
            );
            (what, "connect the plan to the vCenter that it ran with, then cancel again".to_string())
        }
        Whereabouts::Gone => return Ok(true),
    };
    Err(ProviderError::new(Cause::Source, what).advise(advice))
}

/// Names the VMs that hold a file of the snapshot open.
fn told_holders(error: ProviderError, holders: &[String]) -> ProviderError {
    if holders.is_empty() {
        return error;
    }
    let advice = format!(
        "a disk of it is attached to {}, as backups do: detach it there, let vSphere consolidate the VM's disks, then the same \
         command again",
        holders.join(", ")
    );
    ProviderError { advice: Some(advice), ..error }
}

impl VsphereSource {
    /// What it has, read by one plan of the state folder after the other.
    pub(crate) fn inventory(&self) -> Result<Arc<Read>, VsphereError> {
        let session = &self.session;
        // A vCenter that was cloned keeps its UUID.
        let source = format!("{}_{}", session.about().instance_uuid, session.endpoint_authority());
        let asker = Asker { source, user: session.user().to_string() };
        let read = || session.inventory().map(|inventory| Read { inventory, warnings: session.warnings() });
        match inventories::in_turn(&self.state, &asker, &|| session.is_stopped(), read)? {
            Some(read) => {
                session.take_over(&read.inventory, &read.warnings);
                Ok(read)
            }
            None => Err(VsphereError {
                kind: VsphereErrorKind::Stopped,
                op: "read the inventory".into(),
                fault: None,
                source: None,
            }),
        }
    }

    /// Detaches what blocks a snapshot's removal, if it is attached to a proxy of the plan; tells whether anything was.
    fn unblock(&self, vm: &Vm) -> bool {
        // Why one cannot be detached is told by the next run, which begins with that; the removal is what failed.
        let detach = |hot_add: &HotAdd| hot_add.detach(&self.session, vm, &[]);
        self.hot_add.as_ref().is_some_and(|it| detach(it).is_ok_and(|lines| !lines.is_empty()))
    }

    /// By a proxy where one gives it, else by the way of the plan.
    fn open_by_any(&self, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        let Some(hot_add) = &self.hot_add else { return self.open_directly(wanted) };
        match self.open_by_proxy(hot_add, wanted) {
            Err(error) if !hot_add.insists && error.cause != Cause::Cancelled => {
                let mut opened = self.open_directly(wanted)?;
                opened.notes.insert(0, chain(&error));
                Ok(opened)
            }
            opened => opened,
        }
    }

    fn open_by_proxy(&self, hot_add: &HotAdd, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        let frozen = self.frozen(wanted)?;
        let (identity, doubt) = self.identity(wanted, &frozen);
        let frozen = frozen.disk;
        let notes: Arc<Mutex<Vec<String>>> = Arc::default();
        let (session, vm, record) = (&self.session, wanted.vm, wanted.record);
        let extents = session.allocated_areas(&vm.vm.id, Some(wanted.snapshot), &frozen, &notes);
        let asked = hot_add::Asked { session, vm, frozen: &frozen, identity, extents, record };
        let mut opened = hot_add.open(&asked)?;
        opened.notes.extend(doubt);
        Ok(opened)
    }

    /// Which hosts do not give their disks in the way of the plan, as far as it can be told without opening one.
    pub(crate) fn host_problems(&self, vms: &[PlannedVm], begun: &[Begun]) -> Vec<Problem> {
        match &self.way {
            // Where there are proxies, disks are read by them, and by hosts only in their stead.
            Way::Nfc(way) if self.hot_add.is_none() => {
                way.unreachable(&self.session, (vms, begun), |vm| self.route(&vm.route))
            }
            _ => Vec::new(),
        }
    }

    fn open_directly(&self, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        match &self.way {
            Way::Https(why) => self.open_ranges(wanted, why.clone()),
            Way::Nfc(way) => match self.open_nfc(way, wanted) {
                Err(error) if !way.insists => by_ranges(&error, |why| self.open_ranges(wanted, why)),
                opened => opened,
            },
            Way::Vddk(way) => self.open_vddk(way, wanted),
        }
    }

    fn open_https(&self, wanted: &AskedDisk<'_>) -> Result<OpenedDisk, ProviderError> {
        let vm = wanted.vm;
        let route = self.route(&vm.route)?;
        let asked = OpenDisk {
            vm: &vm.vm,
            disk: &wanted.disk.disk,
            snapshot: Some(wanted.snapshot),
            route: &route,
            datacenter: &vm.vm.datacenter,
        };
        self.session.open_disk(asked).map_err(provider_error)
    }

    fn open_ranges(&self, wanted: &AskedDisk<'_>, why: String) -> Result<OpenedSource, ProviderError> {
        Ok(of_ranges(self.open_https(wanted)?, why))
    }

    fn open_nfc(&self, way: &NfcWay, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        let frozen = self.frozen(wanted)?;
        let (identity, doubt) = self.identity(wanted, &frozen);
        let frozen = frozen.disk;
        let notes: Arc<Mutex<Vec<String>>> = Arc::default();
        let vm = wanted.vm;
        let opened = way.open(Asked {
            session: &self.session,
            vm: &vm.vm,
            disk: &wanted.disk.disk,
            frozen: &frozen,
            route: self.route(&vm.route)?,
            identity,
            extents: self.session.allocated_areas(&vm.vm.id, Some(wanted.snapshot), &frozen, &notes),
            trace: None,
        })?;
        let mut opened = nfc::opened(opened, notes);
        opened.notes.extend(doubt);
        Ok(opened)
    }

    fn frozen(&self, wanted: &AskedDisk<'_>) -> Result<FrozenDisk, ProviderError> {
        frozen(&self.session, &wanted.vm.vm, &wanted.disk.disk, wanted.snapshot)
    }

    /// What tells the frozen files' state, and why it is not known, if it is not. It is the same by whatever way the disk is
    /// read, so that a copy may go on by another one. The browser is asked first: it tells also of files that a client that
    /// vanished still has locked. Where nobody tells anything, another snapshot counts as another state.
    fn identity(
        &self,
        wanted: &AskedDisk<'_>,
        FrozenDisk { disk: frozen, files }: &FrozenDisk,
    ) -> (String, Option<String>) {
        let AskedDisk { vm, snapshot, .. } = *wanted;
        let by_snapshot = format!("vsphere {} file={} snapshot={snapshot}", vm.vm.instance_uuid, frozen.path);
        // Passes go by what change tracking tells, whatever state the files are in.
        if vm.warm.is_some() {
            return (by_snapshot, None);
        }
        let untold = match self.session.disk_state(&vm.vm, frozen, files) {
            Ok(state) => return (state, None),
            Err(untold) => chain(&untold),
        };
        match self.open_https(wanted) {
            Ok(opened) => (opened.disk.identity(), None),
            Err(_) => (
                by_snapshot,
                Some(format!("should it be interrupted, it begins again with its first byte: {untold}")),
            ),
        }
    }

    fn open_vddk(&self, way: &VddkWay, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        let frozen = self.frozen(wanted)?;
        let (identity, doubt) = self.identity(wanted, &frozen);
        let AskedDisk { vm, disk, snapshot, .. } = *wanted;
        let log = disk.vddk_log();
        let is_here = vm.site.is_none() && log.parent().is_some_and(Path::is_dir);
        let log = is_here.then_some(log);
        let frozen = FrozenFile { snapshot: Some(snapshot), file: frozen.disk.path, identity };
        let opened = way.open(&self.session, vm, disk, frozen, log)?;
        let notes = std::iter::once(way.note(vm)).chain(doubt).collect();
        Ok(OpenedSource { disk: Arc::new(opened), notes, late: None })
    }

    fn route(&self, route: &PlanRoute) -> Result<Route, ProviderError> {
        match route {
            PlanRoute::Provider => Ok(Route::Provider),
            PlanRoute::Host(host) => self.host_route(host).map_err(login_error),
        }
    }

    fn host_route(&self, host: &HostRoute) -> Result<Route, LoginError> {
        let login = match &host.login {
            Some(login) => Some((login.user.clone(), login::secret(login, &self.folder)?)),
            None => None,
        };
        let trust = login::trust(&host.trust, &self.folder)?;
        let address = drover_plan::Endpoint { host: host.address.clone(), port: host.port }.to_string();
        Ok(Route::Host { address, trust, login })
    }
}

/// Reads a disk by HTTPS ranges that NFC does not give.
pub(crate) fn by_ranges(
    error: &ProviderError,
    open: impl FnOnce(String) -> Result<OpenedSource, ProviderError>,
) -> Result<OpenedSource, ProviderError> {
    let why = chain(error);
    open(format!("read by HTTPS ranges: {why}")).map_err(|error| {
        let what = format!("{why}; and by HTTPS ranges: {}", error.what);
        ProviderError { what, ..error }
    })
}

/// A disk that is read by HTTPS ranges, and why.
pub(crate) fn of_ranges(opened: OpenedDisk, why: String) -> OpenedSource {
    let (disk, notes) = (opened.disk.clone(), std::iter::once(why).chain(opened.notes()).collect());
    OpenedSource { notes, disk, late: Some(Box::new(move || opened.notes())) }
}

/// A disk as a snapshot froze it.
///
/// # Errors
/// If vSphere does not tell, or the snapshot has no such disk.
pub fn frozen(
    session: &Session,
    vm: &Vm,
    disk: &VmDisk,
    snapshot: &str,
) -> Result<FrozenDisk, ProviderError> {
    session.frozen_disk(snapshot, disk.key).map_err(provider_error)?.ok_or_else(|| {
        let what = format!("{} of {} is not in snapshot {snapshot}", disk.label, vm.name);
        ProviderError::new(Cause::Source, what)
    })
}

/// A vSphere error in the engine's words.
pub fn provider_error(error: VsphereError) -> ProviderError {
    let mut wrapped = ProviderError::new(cause(&error), error.to_string());
    wrapped.advice = error.advice();
    wrapped.source = error.source;
    wrapped
}

fn cause(error: &VsphereError) -> Cause {
    use VsphereErrorKind as K;
    match error.kind {
        K::WrongPassword | K::UserWithoutDomain | K::PermissionDenied => Cause::Access,
        K::CertificateNotTrusted
        | K::ThumbprintMismatch
        | K::Unencrypted
        | K::Unreachable
        | K::Timeout
        | K::Away(_)
        | K::NotVsphere => Cause::Connection,
        K::NotFound | K::Busy | K::State | K::Fault | K::Unsupported | K::Disk | K::ChangesUnknown => {
            Cause::Source
        }
        K::Stopped => Cause::Cancelled,
    }
}

fn login_error(error: LoginError) -> ProviderError {
    ProviderError { advice: error.advice, ..ProviderError::new(Cause::Plan, error.what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_host_does_not_tell_a_vm_that_moved_from_one_that_is_gone() {
        let vm = Vm { name: "web".into(), ..Vm::default() };
        let about = |is_vcenter| About { is_vcenter, instance_uuid: "vc".into(), ..About::default() };
        let gone = |is_vcenter, sources: &[&str]| {
            let sources: Vec<String> = sources.iter().map(|uuid| String::from(*uuid)).collect();
            told_gone(Whereabouts::Gone, &vm, &about(is_vcenter), &sources)
        };
        assert!(gone(true, &[]).unwrap() && gone(true, &["vc"]).unwrap());
        let other = gone(true, &["vc", "old"]).unwrap_err();
        assert!(other.what.contains("another vCenter"), "{}", other.what);
        assert!(other.advice.is_some_and(|advice| advice.contains("vCenter that it ran with")));
        let moved = gone(false, &[]).unwrap_err();
        assert!(moved.what.contains("a VM that moved from one that is gone"), "{}", moved.what);
        assert!(moved.advice.is_some_and(|advice| advice.contains("look for it on other hosts")));
        assert!(!told_gone(Whereabouts::There, &vm, &about(false), &[]).unwrap());
        let under = told_gone(Whereabouts::Under("7".into()), &vm, &about(false), &[]).unwrap_err();
        assert!(under.what.contains("has web as 7 by now"), "{}", under.what);
        assert!(under.advice.is_some_and(|advice| advice.starts_with("look at 7: switch it on if drover")));
    }

    #[test]
    fn a_disk_that_neither_nfc_nor_https_gives_is_refused_with_both_reasons() {
        let of_nfc = ProviderError::new(Cause::Connection, "NFC: no route").because("firewall");
        let refused = by_ranges(&of_nfc, |why| {
            assert_eq!(why, "read by HTTPS ranges: NFC: no route: firewall");
            Err(ProviderError::new(Cause::Access, "no leave").advise("ask for it"))
        });
        let error = refused.err().unwrap();
        assert_eq!(error.what, "NFC: no route: firewall; and by HTTPS ranges: no leave");
        assert_eq!((error.cause, error.advice.as_deref()), (Cause::Access, Some("ask for it")));
    }
}
