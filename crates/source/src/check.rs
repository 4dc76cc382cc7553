//! Disks read for a moment, to tell how fast they come and what would help.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drover_disk::DiskError;
use drover_engine::{Cause, ProviderError, chain};
use drover_mover::StopSignal;
use drover_nfc::{NfcState, Trace};
use drover_plan::PlannedVm;
use drover_types::inventory::{PowerState, Snapshot, Vm, VmDisk};
use drover_vsphere::{Route, Session};
use rustix::system::uname;

use crate::measure::{Measured, measure};
use crate::nfc::{Asked, NfcWay};
use crate::vddk::{Frozen, VddkWay};
use crate::vsphere::{frozen, provider_error};

/// Read to learn the rate.
const NFC_BYTES_MAX: u64 = 16 << 30;
const VDDK_BYTES_MAX: u64 = 1 << 30;
/// What the note of the protocol has from others, in bytes per second of one disk: below it something is in the way.
const USUAL_BYTES_PER_S: u64 = 150_000_000;

/// Every snapshot of a check is called so, and says so: one that a killed check left is known by it.
const SNAPSHOT_NAME: &str = "drover-nfc-check";
const SNAPSHOT_DESCRIPTION: &str = "made by drover nfc check, which removes it again";
/// No check takes so long: a snapshot of that age was left, whoever made it.
const LEFT_AFTER: Duration = Duration::from_secs(60 * 60);

/// Why a check came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The disk was not given.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// It was not read.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// What is read by NFC, and how.
pub struct NfcCheck<'a> {
    /// Who gives tickets.
    pub session: &'a Session,
    /// Whose disk it is.
    pub vm: &'a Vm,
    /// The disk.
    pub disk: &'a VmDisk,
    /// Where its host is reached.
    pub route: Route,
    /// Whether the data goes through TLS.
    pub encrypted: bool,
    /// The state folder of this user where none is named.
    pub own_state: &'a Path,
    /// Where the messages are written to, if anywhere.
    pub trace: Option<Arc<Trace>>,
}

/// What was found by NFC.
pub struct NfcChecked {
    /// How the disk was read.
    pub state: NfcState,
    /// How fast.
    pub measured: Measured,
    /// The share that the disks of its host have of the budget: bytes in use, disks, and the budget.
    pub used: (u64, u32, u64),
}

impl NfcCheck<'_> {
    /// Reads it as it lies there, of a VM that is off. Nothing is changed.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(self) -> Result<NfcChecked, CheckError> {
        let disk = self.disk;
        self.read_as(disk)
    }

    /// Reads it from a snapshot that is removed whatever comes of it.
    ///
    /// # Errors
    /// If it cannot be read, the snapshot cannot be made or removed, or it was stopped.
    pub fn read_frozen(self, stop: &StopSignal) -> Result<NfcChecked, CheckError> {
        let (session, vm, disk) = (self.session, self.vm, self.disk);
        let interrupted = |what: &str| -> Result<NfcChecked, CheckError> {
            Err(ProviderError::new(Cause::Cancelled, what).into())
        };
        let here = uname().nodename().to_string_lossy().into_owned();
        for left in vm.snapshots.iter().filter(|it| is_left(it, &here, SystemTime::now(), &runs)) {
            session.remove_snapshot(&left.id).map_err(provider_error)?;
        }
        let description = format!("{SNAPSHOT_DESCRIPTION} (process {} on {here})", std::process::id());
        let made =
            session.create_snapshot(&vm.id, SNAPSHOT_NAME, &description, false).map_err(provider_error)?;
        let frozen = frozen(session, vm, disk, &made.id).map_err(CheckError::from);
        let found = frozen.and_then(|frozen| match stop.is_set() {
            true => interrupted("interrupted"),
            false => self.read_as(&frozen.disk),
        });
        if let Err(error) = session.remove_snapshot(&made.id) {
            let why = found.as_ref().err().map(|first| format!("; before that: {}", chain(first)));
            let what = format!(
                "the snapshot {SNAPSHOT_NAME} of {} may still be there: {}{}",
                vm.name,
                chain(&error),
                why.unwrap_or_default()
            );
            let advice = "run the check with --snapshot again, which removes it, or remove it by hand";
            return Err(ProviderError::new(Cause::Source, what).advise(advice).into());
        }
        if stop.is_set() { interrupted("interrupted; the source is as it was") } else { found }
    }

    fn read_as(self, frozen: &VmDisk) -> Result<NfcChecked, CheckError> {
        let NfcCheck { session, vm, disk, route, encrypted, own_state, trace } = self;
        let way = NfcWay::unasked(own_state).encrypted(encrypted);
        let identity = frozen.path.clone();
        let opened = way.open(Asked { session, vm, disk, frozen, route, identity, extents: None, trace })?;
        let measured = measure(&opened, NFC_BYTES_MAX, opened.state().buffer_bytes)?;
        let state = opened.state();
        let used = way.used(&state.memory_of, &state.service).map_err(|error| {
            ProviderError::new(Cause::Internal, format!("the ledger of NFC memory: {error}"))
        })?;
        Ok(NfcChecked { state, measured, used })
    }
}

impl NfcChecked {
    /// What would help.
    pub fn advice(&self) -> &'static str {
        match self.measured.rate() {
            _ if self.measured.bytes == 0 => "the disk holds no data to read; name another",
            rate if rate >= USUAL_BYTES_PER_S => {
                "this is what others reach with one disk; several disks at once may bring more"
            }
            _ if self.measured.latency > Duration::from_millis(20) => {
                "answers take long: look at the datastore's latency, and at the line between here and the host"
            }
            _ => {
                "slow for one disk: look at the line (10 Gbit/s?), the host's vSphereBackupNFC vmknic, and whether a backup runs"
            }
        }
    }
}

/// Whether a snapshot was left by a check that ended, on this host or long ago. Another check may be reading from one.
fn is_left(snapshot: &Snapshot, here: &str, now: SystemTime, runs: &dyn Fn(u32) -> bool) -> bool {
    let Some(by) = snapshot.description.strip_prefix(SNAPSHOT_DESCRIPTION) else { return false };
    let by = by.strip_prefix(" (process ").and_then(|by| by.strip_suffix(')')?.split_once(" on "));
    let has_ended = by.is_some_and(|(process, host)| host == here && !process.parse().is_ok_and(runs));
    let created = snapshot.created_s.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
    has_ended || created.is_some_and(|created| now.duration_since(created).is_ok_and(|age| age > LEFT_AFTER))
}

fn runs(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

impl VddkWay {
    /// Reads the first disk of a VM that is off, the named one or the first that has disks; none if no VM is off. Nothing is
    /// changed.
    ///
    /// # Errors
    /// If the named VM is not among these or may run, or its disk cannot be read.
    pub fn check<'a>(
        &self,
        session: &Session,
        vms: &'a [PlannedVm],
        name: Option<&str>,
    ) -> Result<Option<(&'a PlannedVm, Measured)>, CheckError> {
        let failed = |what| ProviderError::new(Cause::Plan, what);
        let fits = |planned: &&PlannedVm| match name {
            Some(name) => planned.target_name == name,
            None => planned.vm.power == PowerState::Off && !planned.disks.is_empty(),
        };
        let Some(planned) = vms.iter().find(fits) else {
            let missing = |name| Err(failed(format!("the plan moves no VM '{name}'")).into());
            return name.map_or(Ok(None), missing);
        };
        let name = &planned.vm.name;
        if matches!(planned.vm.power, PowerState::On | PowerState::Unknown) {
            let what = format!("{name} runs, or may run, and a running VM is read from a snapshot only");
            return Err(failed(what).advise("name one that is off with --vm").into());
        }
        let disk = planned.disks.first().ok_or_else(|| failed(format!("{name} has no disk to read")))?;
        let path = &disk.disk.path;
        let frozen = Frozen { snapshot: None, file: path.clone(), identity: path.clone() };
        let opened = self.open(session, planned, disk, frozen, None)?;
        Ok(Some((planned, measure(&opened, VDDK_BYTES_MAX, planned.aio().bytes())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_a_check_is_left_once_its_process_is_gone_or_an_hour_has_passed() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let is_left = |description: &str, age_s: u64| {
            let snapshot = Snapshot {
                description: description.to_string(),
                created_s: Some(1_800_000_000 - age_s),
                ..Snapshot::default()
            };
            is_left(&snapshot, "here", now, &|process| process == 7)
        };
        let by = |process: &str| format!("{SNAPSHOT_DESCRIPTION} (process {process})");
        assert!(is_left(&by("8 on here"), 0));
        assert!(
            !is_left(&by("7 on here"), 0) && is_left(&by("7 on here"), 3601),
            "it runs, or another has its number"
        );
        assert!(!is_left(&by("8 on there"), 0) && is_left(&by("8 on there"), 3601));
        assert!(
            !is_left(SNAPSHOT_DESCRIPTION, 0) && is_left(SNAPSHOT_DESCRIPTION, 3601),
            "of an older drover"
        );
        assert!(!is_left("somebody's", 3601));
    }
}
