//! The ways to vSphere's disks; VDDK as one: whether it is there, and how a disk is opened through it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_engine::{Cause, ProviderError};
use drover_plan::nfc::REQUEST_BYTES;
use drover_plan::{
    Aio, Compression, PathChoice, PlannedDisk, PlannedVm, Problem, ReuseSession, Vddk, VsphereSource,
};
use drover_types::Secret;
use drover_types::inventory::About;
use drover_vddk::{
    ApiSession, Buffers, Installation, Settings, VddkDisk, VddkError, VddkErrorKind, Versions,
};
use drover_vsphere::Session;

use crate::login;
use crate::nfc::NfcWay;
use crate::setting::{Setting, SourceError};

/// Names VDDK's folder where the plan does not.
const LIBDIR: &str = "DROVER_VDDK_LIBDIR";
/// How long a host without room is asked again. It cannot be stopped meanwhile.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// The way a plan's disks take.
pub enum Way {
    /// HTTPS ranges, and why.
    Https(String),
    /// NFC.
    Nfc(Box<NfcWay>),
    /// VDDK.
    Vddk(Box<VddkWay>),
}

/// What all disks share that are read through VDDK.
pub struct VddkWay {
    /// The library, and what reads by it.
    pub installation: Installation,
    /// Their versions.
    pub versions: Versions,
    source: VsphereSource,
    password: Secret,
    patience: Duration,
}

/// Chooses the way that a plan's disks take.
///
/// # Errors
/// If the plan insists on VDDK and it is not there.
pub(crate) fn choose(source: &VsphereSource, setting: &Setting<'_>) -> Result<Way, SourceError> {
    let (limits, folder) = (&setting.plan.limits, setting.folder);
    match source.data.path {
        PathChoice::Https => return Ok(Way::Https("read by HTTPS ranges, as the plan says".into())),
        PathChoice::Auto | PathChoice::HotAdd | PathChoice::Nfc => {
            return Ok(Way::Nfc(Box::new(NfcWay::new(source, limits, &setting.own_state))));
        }
        PathChoice::Vddk => {}
    }
    let (installation, versions) = installation(&source.data.vddk, folder).map_err(|error| {
        let what = format!("source.data.path is vddk: {}", error.what);
        ProviderError { what, ..error }
    })?;
    check_reuse(source.data.vddk.reuse_session)?;
    Ok(Way::Vddk(Box::new(VddkWay {
        installation,
        versions,
        source: source.clone(),
        password: login::secret(&source.login, folder)?,
        patience: limits.retry_for.min(PATIENCE_MAX),
    })))
}

/// Whether the session may be reused here as the plan says: nbdkit takes its cookie as an argument only.
fn check_reuse(reuse: ReuseSession) -> Result<(), ProviderError> {
    if reuse != ReuseSession::Hidden || drover_vddk::arguments_are_hidden().unwrap_or(false) {
        return Ok(());
    }
    let message = "source.data.vddk.reuse_session is hidden, and every user of this machine can see the arguments of other \
                   users' programs: /proc is not mounted with hidepid";
    Err(ProviderError::new(Cause::Plan, message).advise(
        "mount it so (`mount -o remount,hidepid=invisible /proc`), or write `never`: each disk then logs in by itself",
    ))
}

/// The library that a plan or the environment names, if it can be loaded.
fn installation(vddk: &Vddk, folder: &Path) -> Result<(Installation, Versions), ProviderError> {
    let told = vddk.libdir.as_ref().map(|libdir| folder.join(libdir));
    let libdir = told.or_else(|| std::env::var_os(LIBDIR).map(PathBuf::from)).ok_or_else(|| {
        ProviderError::new(Cause::Plan, "no VDDK is named").advise(format!(
            "name its folder with source.data.vddk.libdir or the variable {LIBDIR}; see docs/how-to/vddk.md"
        ))
    })?;
    let plugin = vddk.plugin.as_ref().map(|plugin| folder.join(plugin));
    let installation = Installation::find(&libdir, plugin.as_deref()).map_err(installation_error)?;
    let versions = installation.versions().map_err(installation_error)?;
    Ok((installation, versions))
}

/// NFC memory that was told for a vCenter, whose agents have a fixed amount.
pub(crate) fn unused_memory(source: &VsphereSource, about: &About) -> Option<Problem> {
    let text = "the NFC memory of hosts behind a vCenter cannot be configured, so this is not used";
    let problem = Problem::warning("source.data.vddk.nfc_memory", text).advise("leave it out");
    (source.data.vddk.nfc_memory.is_some() && about.is_vcenter).then_some(problem)
}

/// An error of an installation in the engine's words: what is missing was named by the plan, or by whoever looks at it.
pub fn installation_error(error: VddkError) -> ProviderError {
    match error.kind {
        VddkErrorKind::Missing => ProviderError { cause: Cause::Plan, ..provider_error(error) },
        _ => provider_error(error),
    }
}

impl VddkWay {
    /// Opens a disk as a snapshot froze it; without one the VM has to be off.
    ///
    /// # Errors
    /// If VDDK does not give it.
    pub fn open(
        &self,
        session: &Session,
        vm: &PlannedVm,
        disk: &PlannedDisk,
        frozen: Frozen<'_>,
        log: Option<PathBuf>,
    ) -> Result<VddkDisk, ProviderError> {
        let thumbprint = session.thumbprint().map_err(crate::vsphere::provider_error)?;
        let vddk = &self.source.data.vddk;
        let aio = vm.aio();
        let endpoint = &self.source.endpoint;
        let settings = Settings {
            name: format!("{}/{}", vm.vm.name, disk.disk.label),
            identity: frozen.identity,
            size: disk.disk.capacity_bytes,
            installation: self.installation.clone(),
            server: endpoint.host.clone(),
            port: Some(endpoint.port).filter(|port| *port != 443),
            user: self.source.login.user.clone(),
            password: self.password.clone(),
            session: (vddk.reuse_session != ReuseSession::Never).then(|| api_session(session)),
            thumbprint: thumbprint.to_string(),
            vm: vm.vm.id.clone(),
            snapshot: frozen.snapshot.map(str::to_string),
            file: frozen.file,
            transports: vddk.transports.clone(),
            compression: match vddk.compression {
                Compression::None => "none",
                Compression::Zlib => "zlib",
                Compression::Fastlz => "fastlz",
                Compression::Skipz => "skipz",
            },
            nfc_port: vddk.nfc_port,
            buffers: Some(Buffers { size_in_64kb: aio.buf_size_in_64kb, count: aio.buf_count })
                .filter(|_| aio != Aio::OWN),
            log_level: vddk.log_level,
            request_bytes: vm.nfc.map_or(REQUEST_BYTES, |nfc| nfc.request_bytes),
            timeout: vddk.timeout,
            patience: self.patience,
            log,
        };
        VddkDisk::open(settings).map_err(provider_error)
    }

    /// How a VM's disks are read, in words.
    pub(crate) fn note(&self, vm: &PlannedVm) -> String {
        format!("{self}, AIO {}", vm.aio())
    }
}

impl fmt::Display for VddkWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Versions { nbdkit, plugin, library, .. } = &self.versions;
        let transports = &self.source.data.vddk.transports;
        write!(f, "read through VDDK {library} (nbdkit {nbdkit}, plugin {plugin}), {transports}")?;
        match self.source.data.vddk.reuse_session {
            ReuseSession::Never => Ok(()),
            ReuseSession::Hidden | ReuseSession::Visible => f.write_str(", in drover's own session"),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Https(why) => f.write_str(why),
            Way::Nfc(way) => way.fmt(f),
            Way::Vddk(way) => way.fmt(f),
        }
    }
}

/// The session of the API, for disks that are opened in it.
fn api_session(session: &Session) -> ApiSession {
    let session = session.clone();
    ApiSession::new(move || session.cookie().map_err(io::Error::other))
}

/// The state of a disk that is read.
pub struct Frozen<'a> {
    /// The snapshot that froze it, if one did.
    pub snapshot: Option<&'a str>,
    /// Its file then.
    pub file: String,
    /// What tells this state from others.
    pub identity: String,
}

fn provider_error(error: VddkError) -> ProviderError {
    let cause = match error.kind {
        VddkErrorKind::Access => Cause::Access,
        VddkErrorKind::Connection => Cause::Connection,
        VddkErrorKind::Missing | VddkErrorKind::Busy | VddkErrorKind::Failed => Cause::Source,
    };
    let mut wrapped = ProviderError::new(cause, error.to_string());
    wrapped.advice = error.advice;
    wrapped.source = error.source;
    wrapped
}
