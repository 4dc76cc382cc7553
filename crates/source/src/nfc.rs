//! NFC as a way to vSphere's disks: tickets, addresses of hosts, and the memory of hosts that all programs share.

mod hosts;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drover_engine::{Cause, OpenedSource, ProviderError, chain};
use drover_http::{Thumbprint, Trust};
use drover_nfc::{
    Codec, CodecWish, Ledger, NfcDisk, NfcError, NfcErrorKind, NfcOptions, NfcState, Rustls, Ticket, Tickets,
    Trace,
};
use drover_plan::{Begun, Compression, Limits, Nfc, PathChoice, PlannedVm, Problem, VsphereSource};
use drover_types::Bytes;
use drover_types::inventory::{Vm, VmDisk};
use drover_vsphere::{NfcAccess, Route, Session, VsphereError, VsphereErrorKind};

/// Folder of the ledger, where it is another one.
const LEDGER: &str = "DROVER_NFC_LEDGER";
/// Bytes of buffers of each disk, where somebody else keeps the ledger: the operator, for its workers.
const DISK_BYTES: &str = "DROVER_NFC_DISK_BYTES";
const PORT: u16 = 902;
/// How long a host without room is asked again. It cannot be stopped meanwhile.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// What all disks share that are read by NFC.
pub struct NfcWay {
    nfc: Nfc,
    ledger: Ledger,
    patience: Duration,
    /// Whether a disk that NFC does not give is an error, and not read by HTTPS.
    pub(crate) insists: bool,
}

impl NfcWay {
    /// For a plan, and a user with this state folder.
    pub(crate) fn new(source: &VsphereSource, limits: &Limits, own_state: &Path) -> NfcWay {
        let nfc = source.data.nfc.clone();
        let ledger = Ledger::new(ledger_folder(own_state));
        let ledger = match nfc.memory {
            Some(bytes) => ledger.with_budget(bytes),
            None => ledger,
        };
        let insists = source.data.path == PathChoice::Nfc;
        NfcWay { nfc, ledger, patience: limits.retry_for.min(PATIENCE_MAX), insists }
    }

    /// With everything as it is unasked, for a command without a plan, of a user with this state folder.
    pub fn unasked(own_state: &Path) -> NfcWay {
        let nfc = Nfc { encrypted: true, compression: None, memory: None, timeout: PATIENCE_MAX };
        NfcWay { nfc, ledger: Ledger::new(ledger_folder(own_state)), patience: Duration::ZERO, insists: true }
    }

    /// With the data through TLS, or in the clear.
    pub fn encrypted(mut self, encrypted: bool) -> NfcWay {
        self.nfc.encrypted = encrypted;
        self
    }

    /// Which hosts' NFC servers cannot be used from here. Opens no disk.
    pub(crate) fn unreachable(
        &self,
        session: &Session,
        (vms, begun): (&[PlannedVm], &[Begun]),
        route: impl Fn(&PlannedVm) -> Result<Route, ProviderError> + Sync,
    ) -> Vec<Problem> {
        hosts::unreachable(self, vms, begun, |vm| {
            let of_route = |error: ProviderError| {
                NfcError::other(NfcErrorKind::Unreachable, "find the host", error.what)
            };
            let route = route(vm).map_err(of_route)?;
            Ok(Box::new(TicketsOf::new(session, &vm.vm, &vm.disks[0].disk, route)))
        })
    }

    /// The share that the disks of a host have of its budget: bytes in use, disks, and the budget.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn used(&self, host: &str, service: &str) -> std::io::Result<(u64, u32, u64)> {
        let (bytes, disks) = self.ledger.used(host, service)?;
        Ok((bytes, disks, self.ledger.budget(host, service)))
    }

    /// Opens a disk as a snapshot froze it; without one the VM has to be off.
    ///
    /// # Errors
    /// If its host does not give it.
    pub fn open(&self, asked: Asked<'_>) -> Result<NfcDisk, ProviderError> {
        let Asked { session, vm, disk, frozen, route, identity, extents, trace } = asked;
        let tickets = TicketsOf::new(session, vm, disk, route);
        let options = NfcOptions {
            identity,
            size: Some(disk.capacity_bytes),
            encrypted: self.nfc.encrypted,
            timeout: self.nfc.timeout,
            patience: self.patience,
            codec: match self.nfc.compression {
                None => CodecWish::Measure,
                Some(Compression::None) => CodecWish::Always(Codec::None),
                Some(Compression::Zlib) => CodecWish::Always(Codec::Zlib),
                Some(Compression::Fastlz) => CodecWish::Always(Codec::FastLz),
                Some(Compression::Skipz) => CodecWish::Always(Codec::SkipZ),
            },
            extents,
            trace,
            buffers_max: disk_bytes(std::env::var(DISK_BYTES).ok().as_deref()),
            ..NfcOptions::new(&format!("{}/{}", vm.name, disk.label), &frozen.path)
        };
        NfcDisk::open(options, Arc::new(tickets), Arc::new(Rustls), self.ledger.clone())
            .map_err(provider_error)
    }
}

impl std::fmt::Display for NfcWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("read by NFC from TCP port 902 of their hosts")?;
        f.write_str(if self.nfc.encrypted { ", through TLS" } else { ", IN CLEAR TEXT" })?;
        f.write_str(if self.insists { "" } else { "; by HTTPS ranges where a host does not give them" })
    }
}

/// Which disk to open.
pub struct Asked<'a> {
    /// Who gives tickets.
    pub session: &'a Session,
    /// Whose disk it is.
    pub vm: &'a Vm,
    /// The disk.
    pub disk: &'a VmDisk,
    /// The same as its snapshot has it, or the same again.
    pub frozen: &'a VmDisk,
    /// Where its host is reached.
    pub route: Route,
    /// What tells the state of the disk from others.
    pub identity: String,
    /// Who tells which areas are allocated, if it can be told.
    pub extents: Option<Arc<dyn drover_http::ExtentSource>>,
    /// Where the messages are written to, if anywhere.
    pub trace: Option<Arc<Trace>>,
}

/// A disk that is read by NFC, and what is noticed of the map of its areas.
pub(crate) fn opened(disk: NfcDisk, of_map: Arc<Mutex<Vec<String>>>) -> OpenedSource {
    let disk = Arc::new(disk);
    let (notes, read) = (notes(&disk), disk.clone());
    let late = move || {
        let of_map = std::mem::take(&mut *of_map.lock().unwrap_or_else(PoisonError::into_inner));
        late_notes(&read.state()).into_iter().chain(of_map).collect()
    };
    OpenedSource { notes, disk, late: Some(Box::new(late)) }
}

/// How a disk is read, for the operator.
fn notes(disk: &NfcDisk) -> Vec<String> {
    let state = disk.state();
    let mut notes = vec![format!(
        "read by NFC from {} ({}, version {}), buffers {}",
        state.host, state.service, state.version, state.buffers
    )];
    notes.extend(state.notes);
    notes
}

/// How a disk was read.
fn late_notes(state: &NfcState) -> Vec<String> {
    let (plain, wire) = state.bytes;
    let packed = state.codec.filter(|_| plain > 0).map(|codec| {
        format!("compression {codec}, {} came over the network for {}", Bytes(wire), Bytes(plain))
    });
    let anew = (state.reconnects > 0).then(|| match state.reconnects {
        1 => "connected anew once".to_string(),
        times => format!("connected anew {times} times"),
    });
    packed.into_iter().chain(anew).chain(state.notes.iter().cloned()).collect()
}

fn disk_bytes(told: Option<&str>) -> u64 {
    told.and_then(|bytes| bytes.parse().ok()).unwrap_or(u64::MAX)
}

/// The folder that all drovers of this machine (of this user, where it is not root's) find.
fn ledger_folder(own_state: &Path) -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = variable(LEDGER) {
        return folder;
    }
    match (rustix::process::geteuid().is_root(), variable("XDG_RUNTIME_DIR")) {
        (true, _) => PathBuf::from("/run/drover/nfc"),
        (false, Some(folder)) => folder.join("drover/nfc"),
        (false, None) => own_state.join("nfc"),
    }
}

/// Gives tickets for a disk, and says where its host is reached.
struct TicketsOf {
    session: Session,
    vm: String,
    disk: i32,
    host: String,
    /// The address that the plan chose for the host that gave the first ticket, and that host's name. A VM that moved to
    /// another host since is read from there.
    address: Option<String>,
    first_host: Mutex<Option<String>>,
    trust: Trust,
}

impl TicketsOf {
    /// The endpoint gives the tickets, also where the plan has a login on the host.
    fn new(session: &Session, vm: &Vm, disk: &VmDisk, route: Route) -> TicketsOf {
        let (address, trust) = match route {
            Route::Provider => (None, session.trust().clone()),
            Route::Host { address, trust, .. } => (Some(host_of(&address)), trust),
        };
        TicketsOf {
            session: session.clone(),
            vm: vm.id.clone(),
            disk: disk.key,
            host: vm.host_id.clone(),
            address,
            first_host: Mutex::default(),
            trust,
        }
    }

    fn place(&self, told: &str) -> String {
        let mut first = self.first_host.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = first.get_or_insert_with(|| told.to_string()) == told;
        self.address.clone().filter(|_| is_first).unwrap_or_else(|| told.to_string())
    }
}

/// Without the port of its HTTPS server.
fn host_of(address: &str) -> String {
    address.parse::<drover_http::Endpoint>().map_or_else(|_| address.to_string(), |endpoint| endpoint.host)
}

impl Tickets for TicketsOf {
    fn ticket(&self) -> Result<Ticket, NfcError> {
        let failed = |error: VsphereError| {
            let kind = match error.kind {
                VsphereErrorKind::PermissionDenied => NfcErrorKind::Permission,
                VsphereErrorKind::NotFound => NfcErrorKind::Missing,
                _ if error.is_transient() => NfcErrorKind::Connection,
                _ => NfcErrorKind::Unsupported,
            };
            NfcError::other(kind, "NFC ticket", chain(&error))
        };
        let ticket =
            self.session.nfc_ticket(&self.vm, self.disk, &self.host, NfcAccess::Read).map_err(failed)?;
        let wrong = |why: &str| NfcError::other(NfcErrorKind::Certificate, "NFC ticket", why);
        let trust = match (&ticket.thumbprint, &ticket.certificate) {
            (Some(text), _) => {
                let thumbprint: Thumbprint = text.parse().map_err(|_| wrong("its thumbprint is none"))?;
                Trust::Thumbprint(thumbprint)
            }
            (None, Some(pem)) => {
                Trust::Thumbprint(Thumbprint::of_pem(pem).ok_or_else(|| wrong("its certificate is none"))?)
            }
            (None, None) => self.trust.clone(),
        };
        let host = ticket.host.unwrap_or_else(|| self.session.endpoint_host().to_string());
        Ok(Ticket {
            host: self.place(&host),
            memory_of: host,
            port: ticket.port.unwrap_or(PORT),
            trust,
            service: ticket.service,
            session: ticket.session,
        })
    }

    fn keep_alive(&self) {
        // What comes of it shows itself when the next ticket is asked for.
        let _ = self.session.keep_alive();
    }
}

fn provider_error(error: NfcError) -> ProviderError {
    let cause = match error.kind {
        NfcErrorKind::Permission | NfcErrorKind::Ticket => Cause::Access,
        NfcErrorKind::Certificate | NfcErrorKind::Connection | NfcErrorKind::Unreachable => Cause::Connection,
        _ => Cause::Source,
    };
    let mut wrapped = ProviderError::new(cause, format!("NFC: {error}"));
    wrapped.advice = error.advice().map(str::to_string);
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_takes_what_the_operator_told_its_worker_and_else_what_the_ledger_gives() {
        assert_eq!((disk_bytes(Some("262144")), disk_bytes(None)), (262_144, u64::MAX));
    }
}
