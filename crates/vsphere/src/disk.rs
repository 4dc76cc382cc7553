use std::fmt;
use std::sync::{Arc, Mutex};

use drover_disk::{Disk, DiskError, DiskErrorKind, Limits};
use drover_http::{Authorise, Endpoint, ExtentSource, HttpError, RANGE_LIMITS, RangeDisk, RangeOptions, Url};
use drover_types::Secret;
use drover_types::inventory::{DiskMode, PowerState, Vm, VmDisk};

use crate::Trust;
use crate::areas::AllocatedAreas;
use crate::collect::Object;
use crate::device;
use crate::error::{VsphereError, VsphereErrorKind};
use crate::login::secure_endpoint;
use crate::session::{ConnectOptions, Inner, Session, lock};
use crate::soap::Moref;
use crate::tags::encode;
use crate::ticket::{SessionCookie, Tickets};

/// Which disk to open, in which state, and by which way.
#[derive(Clone, Copy, Debug)]
pub struct OpenDisk<'a> {
    /// The VM.
    pub vm: &'a Vm,
    /// Its disk.
    pub disk: &'a VmDisk,
    /// Id of the snapshot whose content is read; without one the VM has to be off.
    pub snapshot: Option<&'a str>,
    /// The way the data takes.
    pub route: &'a Route,
    /// Path of the data centre (`Vm::datacenter`); not used by the host route.
    pub datacenter: &'a str,
}

/// The way data takes.
#[derive(Clone, Debug)]
pub enum Route {
    /// Through the endpoint of the session.
    Provider,
    /// From the host itself, which spares the vCenter.
    Host {
        /// `host[:port]`.
        address: String,
        /// Whose certificate to believe.
        trust: Trust,
        /// User and password at the host. Without them the vCenter gives a ticket for each request.
        login: Option<(String, Secret)>,
    },
}

/// A disk that was opened.
pub struct OpenedDisk {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Change id of what is read: the next pass asks for changes since it. Absent without change tracking.
    pub change_id: Option<String>,
    notes: Arc<Mutex<Vec<String>>>,
}

impl OpenedDisk {
    /// What the operator should know, so far: why allocated areas are not known, for one.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.notes).clone()
    }
}

impl fmt::Debug for OpenedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenedDisk({}, {} bytes)", self.disk.name(), self.disk.size())
    }
}

/// Each ticket costs a call, so requests are larger; and it dies after 30 s, so few wait in line.
const TICKET_LIMITS: Limits = Limits { bytes_preferred: 8 << 20, depth_max: 2, ..RANGE_LIMITS };
const HOST_DATACENTER: &str = "ha-datacenter";

impl Session {
    /// The disks as a snapshot froze them: their files, and the change ids for the next pass.
    ///
    /// # Errors
    /// Also when the snapshot is not there (any more).
    pub fn snapshot_disks(&self, snapshot: &str) -> Result<Vec<VmDisk>, VsphereError> {
        self.inner.snapshot_disks(snapshot)
    }

    /// Opens a disk for reading. Close it before an older snapshot of the VM is removed and open it again after:
    /// vSphere then moves the data to a file of another name.
    ///
    /// # Errors
    /// [`VsphereErrorKind::Unsupported`] for disks whose file does not hold all their data (delta files of earlier
    /// snapshots, raw mappings, sparse formats) or is not readable (encrypted); [`VsphereErrorKind::State`] for a
    /// running VM without a snapshot; [`VsphereErrorKind::Disk`] if the file is not there or has another size.
    pub fn open_disk(&self, o: OpenDisk<'_>) -> Result<OpenedDisk, VsphereError> {
        let session = &self.inner;
        let op = format!("open {} of {}", o.disk.label, o.vm.name);
        let frozen = session.frozen(&op, &o)?;
        let file = flat_file(&op, &frozen)?;
        let (endpoint, trust, datacenter, authorise) = session.way(&op, &o)?;
        let limits = match o.route {
            Route::Host { login: None, .. } => TICKET_LIMITS,
            _ => RANGE_LIMITS,
        };
        let notes: Arc<Mutex<Vec<String>>> = Arc::default();
        let extents = session.clone().extent_source(&o, &frozen, &notes);
        let options = RangeOptions {
            name: format!("{}/{}", o.vm.name, o.disk.label),
            url: Url { endpoint, path: folder_path(&file, &datacenter) },
            trust,
            timeouts: session.options.timeouts,
            authorise: Some(authorise),
            extents,
            identity: Some(identity(o.vm, &frozen)),
            limits,
        };
        let disk = RangeDisk::open_with(options).map_err(|error| data_error(&op, error))?;
        if disk.size() != frozen.capacity_bytes {
            let why =
                format!("{} has {} bytes, the disk {}", frozen.path, disk.size(), frozen.capacity_bytes);
            return Err(VsphereError::new(VsphereErrorKind::Disk, &op, why));
        }
        Ok(OpenedDisk { disk: Arc::new(disk), change_id: frozen.change_id, notes })
    }
}

impl Inner {
    pub fn snapshot_disks(&self, snapshot: &str) -> Result<Vec<VmDisk>, VsphereError> {
        let op = format!("look at snapshot {snapshot}");
        let object = self.read(&op, &Moref::new("VirtualMachineSnapshot", snapshot), DISK_PROPERTIES)?;
        Ok(disks_of(&object))
    }

    /// The disk with the file that holds what is to be read.
    fn frozen(&self, op: &str, o: &OpenDisk<'_>) -> Result<VmDisk, VsphereError> {
        let refuse = |kind, why: &str| VsphereError::new(kind, op, why.to_string());
        let key = o.disk.key;
        let disks = match o.snapshot {
            Some(_) if o.disk.mode != DiskMode::Persistent => {
                return Err(refuse(
                    VsphereErrorKind::Unsupported,
                    "an independent disk is left out of snapshots",
                ));
            }
            Some(snapshot) => self.snapshot_disks(snapshot)?,
            None => {
                let vm = self.vm(&o.vm.id)?;
                let why = match vm.power {
                    PowerState::On => Some("the VM runs; take a snapshot first"),
                    PowerState::Unknown => Some("vSphere does not tell whether the VM runs"),
                    PowerState::Off | PowerState::Suspended => None,
                };
                if let Some(why) = why {
                    return Err(refuse(VsphereErrorKind::State, why));
                }
                vm.disks
            }
        };
        let disk = disks.into_iter().find(|disk| disk.key == key);
        disk.ok_or_else(|| refuse(VsphereErrorKind::NotFound, "the disk is not in that snapshot"))
    }

    /// Server, trust, data centre path and credentials of the data requests.
    fn way(self: &Arc<Self>, op: &str, o: &OpenDisk<'_>) -> Result<Way, VsphereError> {
        let (address, trust, login) = match o.route {
            Route::Provider => {
                let datacenter = if self.content.about.is_vcenter { o.datacenter } else { HOST_DATACENTER };
                let (endpoint, trust) = (self.client.endpoint().clone(), self.options.trust.clone());
                return Ok((endpoint, trust, datacenter.to_string(), Arc::new(SessionCookie(self.clone()))));
            }
            Route::Host { address, trust, login } => (address, trust, login),
        };
        let endpoint = secure_endpoint(op, address)?;
        let authorise: Arc<dyn Authorise> = match login {
            Some((user, password)) => {
                Arc::new(SessionCookie(self.host_session(address, trust, user, password)?))
            }
            None => Arc::new(Tickets::new(self.clone(), endpoint.to_string())),
        };
        Ok((endpoint, trust.clone(), HOST_DATACENTER.to_string(), authorise))
    }

    /// One login per host, shared by all its disks: hosts allow few sessions.
    fn host_session(
        &self,
        address: &str,
        trust: &Trust,
        user: &str,
        password: &Secret,
    ) -> Result<Arc<Inner>, VsphereError> {
        let mut hosts = lock(&self.hosts);
        let key = (address.to_string(), user.to_string());
        if let Some(session) = hosts.get(&key).and_then(std::sync::Weak::upgrade) {
            return Ok(session);
        }
        let session = Arc::new(Inner::connect(ConnectOptions {
            endpoint: address.to_string(),
            user: user.to_string(),
            password: password.clone(),
            trust: trust.clone(),
            timeouts: self.options.timeouts,
        })?);
        hosts.insert(key, Arc::downgrade(&session));
        Ok(session)
    }

    fn extent_source(
        self: Arc<Self>,
        o: &OpenDisk<'_>,
        frozen: &VmDisk,
        notes: &Arc<Mutex<Vec<String>>>,
    ) -> Option<Arc<dyn ExtentSource>> {
        if frozen.change_id.is_none() {
            lock(notes).push("change tracking is off for this disk, so the whole disk is read".to_string());
            return None;
        }
        Some(Arc::new(AllocatedAreas::of(self, &o.vm.id, o.snapshot, frozen, notes)))
    }
}

type Way = (Endpoint, Trust, String, Arc<dyn Authorise>);

/// What tells the disks of a VM or of a snapshot.
pub(crate) const DISK_PROPERTIES: &[&str] = &["config.hardware", "config.extraConfig"];

pub(crate) fn disks_of(object: &Object) -> Vec<VmDisk> {
    let Some(hardware) = object.get("config.hardware") else { return Vec::new() };
    let mut disks = device::disks(hardware.all("device"), &[]);
    if let Some(settings) = object.get("config.extraConfig") {
        device::mark_tracked(&mut disks, settings.children.iter());
    }
    disks
}

/// `[ds] web01/web01.vmdk` holds its data in `web01/web01-flat.vmdk`, if that is all of it.
fn flat_file(op: &str, disk: &VmDisk) -> Result<(String, String), VsphereError> {
    let refuse = |why: String| Err(VsphereError::new(VsphereErrorKind::Unsupported, op, why));
    let path = &disk.path;
    if disk.rdm.is_some() {
        return refuse(format!("{path} is a raw device mapping, which has no file to read"));
    }
    if disk.encrypted {
        return refuse(format!("{path} is encrypted"));
    }
    if disk.has_parent {
        return refuse(format!(
            "{path} holds only the changes since an earlier snapshot or a parent; remove the VM's older snapshots \
             first and let it consolidate its disks, or read it through VDDK"
        ));
    }
    match device::split_path(path).and_then(|(store, file)| Some((store, file.strip_suffix(".vmdk")?))) {
        Some((store, stem)) if !store.is_empty() && !stem.ends_with("-sesparse") => {
            Ok((store.to_string(), format!("{stem}-flat.vmdk")))
        }
        _ => refuse(format!("'{path}' is no path of a disk file that can be read by ranges")),
    }
}

/// Path and query of a file on a datastore.
fn folder_path((datastore, file): &(String, String), datacenter: &str) -> String {
    let file: Vec<String> = file.split('/').map(encode).collect();
    format!("/folder/{}?dcPath={}&dsName={}", file.join("/"), encode(datacenter), encode(datastore))
}

/// Neither the snapshot nor the change id is part of it: a snapshot that is removed and made again, as a
/// resumed migration does, changes nothing of what is read. What would is told by the modification time
/// of the frozen file, which [`RangeDisk`] adds.
pub(crate) fn identity(vm: &Vm, frozen: &VmDisk) -> String {
    let id = if vm.instance_uuid.is_empty() { &vm.id } else { &vm.instance_uuid };
    format!("vsphere {id} disk={} file={}", frozen.key, frozen.path)
}

fn data_error(op: &str, error: DiskError) -> VsphereError {
    use VsphereErrorKind as K;
    let http = error.source.get_ref().and_then(|inner| inner.downcast_ref::<HttpError>());
    let kind = match (error.kind, http) {
        (_, Some(http)) => crate::error::http_kind(http),
        (DiskErrorKind::Denied, None) => K::PermissionDenied,
        _ => K::Disk,
    };
    VsphereError::new(kind, op, error)
}
