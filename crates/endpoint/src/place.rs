//! What a text on the command line names.

use std::path::PathBuf;

use drover_agent::PlaceName;
use drover_nbd::NbdUri;
use drover_sftp::{SshUri, SshUriError};

use crate::errors::{EndError, usage};

/// What a text on the command line names.
pub enum Place {
    /// An export of an NBD server.
    Nbd(NbdUri),
    /// A file of a web server.
    Web(String),
    /// A disk of another site.
    Agent(AgentPlace),
    /// A file of another host, over its SSH.
    Ssh(SshUri),
    /// A disk of an appliance, counted from 0.
    Ova(PathBuf, usize),
    /// A disk of a VM, counted from 0.
    Vsphere {
        /// vCenter or ESXi host.
        host: String,
        /// Its name or id.
        vm: String,
        /// Which of its disks.
        disk: usize,
    },
    /// A file or device of this host.
    Path(PathBuf),
    /// Nothing: what is written is dropped.
    Null,
    /// Standard output.
    Stream,
}

/// A disk of another site, as it was named.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentPlace {
    /// The site.
    pub site: String,
    /// `POOL/FILE`, or a device.
    pub disk: String,
}

impl AgentPlace {
    /// Reads what follows `agent:`.
    pub fn parse(rest: &str) -> Option<AgentPlace> {
        let (site, disk) = rest.strip_prefix("//")?.split_once('/')?;
        let is_sound = drover_agent::trust::check_name(site).is_ok() && PlaceName::parse(disk).is_ok();
        is_sound.then(|| AgentPlace { site: site.to_string(), disk: disk.to_string() })
    }
}

/// What a text names.
///
/// # Errors
/// If it names nothing.
pub fn place(text: &str) -> Result<Place, EndError> {
    if text == "-" {
        return Ok(Place::Stream);
    }
    match text.split_once(':') {
        Some(("nbd" | "nbd+unix" | "nbds" | "nbds+unix", _)) => {
            text.parse().map(Place::Nbd).map_err(|error: drover_nbd::UriError| usage(error.to_string()))
        }
        Some(("ssh", _)) => {
            text.parse().map(Place::Ssh).map_err(|error: SshUriError| usage(error.to_string()))
        }
        Some(("ova", rest)) => ova_place(rest)
            .ok_or_else(|| usage(format!("'{text}' is not ova:FILE/DISK, with DISK counted from 0"))),
        Some(("agent", rest)) => AgentPlace::parse(rest)
            .map(Place::Agent)
            .ok_or_else(|| usage(format!("'{text}' is not agent://SITE/POOL/FILE or agent://SITE/DEVICE"))),
        Some(("http" | "https", _)) => Ok(Place::Web(text.to_string())),
        Some(("vsphere", rest)) => vsphere_place(rest).ok_or_else(|| {
            usage(format!("'{text}' is not vsphere://HOST[:PORT]/VM/DISK, with DISK counted from 0"))
        }),
        Some(("null", "")) => Ok(Place::Null),
        Some((scheme, rest)) if rest.starts_with("//") => Err(usage(format!(
            "'{scheme}' is not known; use a path, nbd://, nbd+unix://, http://, https://, ssh://, agent:// or vsphere://"
        ))),
        _ => Ok(Place::Path(PathBuf::from(text))),
    }
}

fn ova_place(rest: &str) -> Option<Place> {
    let (file, disk) = rest.rsplit_once('/')?;
    let disk = disk.parse().ok()?;
    (!file.is_empty()).then(|| Place::Ova(PathBuf::from(file), disk))
}

fn vsphere_place(rest: &str) -> Option<Place> {
    let mut parts = rest.strip_prefix("//")?.splitn(2, '/');
    let host = parts.next().filter(|host| !host.is_empty())?.to_string();
    let (vm, disk) = parts.next()?.rsplit_once('/')?;
    Some(Place::Vsphere { host, vm: vm.to_string(), disk: disk.parse().ok()? })
}

/// The file or device that a text names, if it names one.
pub fn path_of(text: &str) -> Option<PathBuf> {
    match place(text) {
        Ok(Place::Path(path)) => Some(path),
        _ => None,
    }
}

/// The NBD export that a text names, if it names one.
pub fn nbd_uri_of(text: &str) -> Option<NbdUri> {
    match place(text) {
        Ok(Place::Nbd(uri)) => Some(uri),
        _ => None,
    }
}

/// Whether a text names standard output.
pub fn is_stream(text: &str) -> bool {
    matches!(place(text), Ok(Place::Stream))
}

/// The appliance and the number of its disk that a text names, if it names one.
pub fn appliance_of(text: &str) -> Option<(PathBuf, usize)> {
    match place(text) {
        Ok(Place::Ova(path, disk)) => Some((path, disk)),
        _ => None,
    }
}
