//! The ends of `drover copy`: from a path or URI to an open disk.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_disk::{Disk, FileDisk, OpenTarget};
use drover_engine::chain;
use drover_http::RangeDisk;
use drover_mover::{file_tag, journal_path};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_qemu::ImageFormat as Format;
use drover_vsphere::{OpenDisk, Route};

use crate::cli::{CopyArgs, Format as FormatArg, SecretArgs};
use crate::connect;

use crate::exit::{Exit, Failure, disk_exit};
use crate::image;

/// An open end of a copy.
pub struct End {
    pub disk: Arc<dyn Disk>,
    /// What must live as long as the disk: image servers, sessions.
    pub keep: Vec<Box<dyn Any + Send + Sync>>,
    pub notes: Vec<String>,
}

/// A target, and what is known of it.
pub struct TargetEnd {
    pub end: End,
    pub tag: String,
    pub is_new: bool,
    pub zeroed: bool,
    /// Where its journal lies, if nothing else is said.
    pub journal: Option<PathBuf>,
}

/// What a text on the command line names.
enum Place {
    Nbd(NbdUri),
    Web(String),
    Vsphere { host: String, vm: String, disk: usize },
    Path(PathBuf),
    Null,
}

fn place(text: &str) -> Result<Place, Failure> {
    let usage = |message: String| Failure::new(Exit::Usage, message);
    match text.split_once(':') {
        Some(("nbd" | "nbd+unix" | "nbds" | "nbds+unix", _)) => {
            text.parse().map(Place::Nbd).map_err(|error: drover_nbd::UriError| usage(error.to_string()))
        }
        Some(("http" | "https", _)) => Ok(Place::Web(text.to_string())),
        Some(("vsphere", rest)) => vsphere_place(rest).ok_or_else(|| {
            usage(format!("'{text}' is not vsphere://HOST[:PORT]/VM/DISK, with DISK counted from 0"))
        }),
        Some(("null", "")) => Ok(Place::Null),
        Some((scheme, rest)) if rest.starts_with("//") => Err(usage(format!(
            "'{scheme}' is not known; use a path, nbd://, nbd+unix://, http://, https:// or vsphere://"
        ))),
        _ => Ok(Place::Path(PathBuf::from(text))),
    }
}

fn vsphere_place(rest: &str) -> Option<Place> {
    let mut parts = rest.strip_prefix("//")?.splitn(2, '/');
    let host = parts.next().filter(|host| !host.is_empty())?.to_string();
    let (vm, disk) = parts.next()?.rsplit_once('/')?;
    Some(Place::Vsphere { host, vm: vm.to_string(), disk: disk.parse().ok()? })
}

/// The format of an image: what was told, else what its name ends in, else raw. Never what its content
/// looks like: a guest can write a qcow2 header at the start of a raw disk.
fn format_of(path: &Path, told: Option<FormatArg>) -> Format {
    match told {
        Some(FormatArg::Raw) => Format::Raw,
        Some(FormatArg::Qcow2) => Format::Qcow2,
        None if path.extension().is_some_and(|ending| ending == "qcow2") => Format::Qcow2,
        None => Format::Raw,
    }
}

/// What names a disk to be read, and how to get at it.
pub struct Named<'a> {
    pub text: &'a str,
    pub format: Option<FormatArg>,
    pub user: Option<&'a str>,
    pub secret: &'a SecretArgs,
}

/// Opens a disk to be read.
pub fn open_source(named: &Named<'_>) -> Result<End, Failure> {
    let simple = |disk: Arc<dyn Disk>| End { disk, keep: Vec::new(), notes: Vec::new() };
    match place(named.text)? {
        Place::Nbd(uri) => {
            let disk = NbdDisk::open_source(&uri, NbdOptions::default()).map_err(source_failure)?;
            Ok(simple(Arc::new(disk)))
        }
        Place::Web(url) => {
            let disk = RangeDisk::open(&url, connect::trust_of(named.secret)?).map_err(source_failure)?;
            Ok(simple(Arc::new(disk)))
        }
        Place::Vsphere { host, vm, disk } => open_vsphere(&host, &vm, disk, named.user, named.secret),
        Place::Path(path) => match format_of(&path, named.format) {
            Format::Raw => Ok(simple(Arc::new(FileDisk::open_source(&path).map_err(source_failure)?))),
            Format::Qcow2 => {
                let image = image::open_for_reading(&path)?;
                Ok(End { disk: image.disk, keep: vec![Box::new(image.server)], notes: Vec::new() })
            }
        },
        Place::Null => Err(Failure::new(Exit::Usage, "null: can only be a target")),
    }
}

/// Opens a disk that is there already to change it in place, and says what file it is, if it is one.
pub fn open_in_place(named: &Named<'_>) -> Result<(End, Option<PathBuf>), Failure> {
    let end = |disk, keep| End { disk, keep, notes: Vec::new() };
    match place(named.text)? {
        Place::Nbd(uri) => {
            let disk = NbdDisk::open_target(&uri, NbdOptions::default()).map_err(target_failure)?;
            Ok((end(Arc::new(disk), Vec::new()), None))
        }
        Place::Path(path) => match format_of(&path, named.format) {
            Format::Raw => {
                let size = FileDisk::open_source(&path).map_err(target_failure)?.size();
                let how = OpenTarget { size, create: false, resume: true };
                let disk = FileDisk::open_target(&path, how).map_err(target_failure)?;
                Ok((end(Arc::new(disk), Vec::new()), Some(path)))
            }
            Format::Qcow2 => {
                let image = image::open_for_writing(&path, 0, false)?;
                Ok((end(image.disk, vec![Box::new(image.server)]), Some(path)))
            }
        },
        Place::Web(_) | Place::Vsphere { .. } | Place::Null => {
            Err(Failure::new(Exit::Usage, format!("'{}' cannot be written to", named.text)))
        }
    }
}

/// The file or device that a text names, if it names one.
pub fn path_of(text: &str) -> Option<PathBuf> {
    match place(text) {
        Ok(Place::Path(path)) => Some(path),
        _ => None,
    }
}

fn open_vsphere(
    host: &str,
    vm: &str,
    disk: usize,
    user: Option<&str>,
    secret: &SecretArgs,
) -> Result<End, Failure> {
    let session = connect::connect_host(host, user, secret)?;
    let inventory = session.inventory()?;
    let found: Vec<_> = inventory.vms.iter().filter(|it| it.name == vm || it.id == vm).collect();
    let vm = match found.as_slice() {
        [] => {
            return Err(
                Failure::new(Exit::Source, format!("there is no VM '{vm}'")).advise("see `drover inventory`")
            );
        }
        [vm] => *vm,
        many => {
            let ids: Vec<String> = many.iter().map(|vm| format!("{} in {}", vm.id, vm.folder)).collect();
            return Err(Failure::new(
                Exit::Source,
                format!("{} VMs are called '{vm}': {}", many.len(), ids.join(", ")),
            )
            .advise("give the id instead of the name"));
        }
    };
    let Some(found) = vm.disks.get(disk) else {
        return Err(Failure::new(
            Exit::Source,
            format!("{} has {} disks, so there is no disk {disk}", vm.name, vm.disks.len()),
        ));
    };
    let route = Route::Provider;
    let opened = session.open_disk(OpenDisk {
        vm,
        disk: found,
        snapshot: None,
        route: &route,
        datacenter: &vm.datacenter,
    })?;
    Ok(End { notes: opened.notes(), disk: opened.disk, keep: vec![Box::new(session)] })
}

/// Whether two paths lead to one file, by whatever names.
fn is_same_file(a: &str, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    id(Path::new(a)).is_some_and(|of_a| id(b) == Some(of_a))
}

/// Opens the target of a copy of `size` bytes; `None` for `null:`, which only reads.
pub fn open_target(args: &CopyArgs, size: u64) -> Result<Option<TargetEnd>, Failure> {
    match place(&args.target)? {
        Place::Path(path) if is_same_file(&args.source, &path) => {
            Err(Failure::new(Exit::Usage, format!("{} is both source and target", path.display())))
        }
        Place::Null => Ok(None),
        Place::Nbd(uri) => open_nbd_target(&uri).map(Some),
        Place::Path(path) => match format_of(&path, args.format) {
            Format::Raw => open_raw_target(&path, size, args.force).map(Some),
            Format::Qcow2 => open_qcow2_target(&path, size, args.force).map(Some),
        },
        Place::Web(_) | Place::Vsphere { .. } => {
            Err(Failure::new(Exit::Usage, format!("'{}' cannot be written to", args.target)))
        }
    }
}

/// An NBD export has no name of its own beyond its URI and no place for a journal beside it.
fn open_nbd_target(uri: &NbdUri) -> Result<TargetEnd, Failure> {
    let disk = NbdDisk::open_target(uri, NbdOptions::default()).map_err(target_failure)?;
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: Vec::new() };
    Ok(TargetEnd { end, tag: uri.to_string(), is_new: false, zeroed: false, journal: None })
}

/// Opens a raw file or block device. A file with a journal is gone on with; one that holds something
/// and has none is somebody else's.
pub fn open_raw_target(path: &Path, size: u64, force: bool) -> Result<TargetEnd, Failure> {
    let resume = force || journal_path(path).exists() || holds_nothing(path);
    let how = OpenTarget { size, create: true, resume };
    let disk = FileDisk::open_target(path, how).map_err(target_failure)?;
    let zeroed = disk.features().zeroed;
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: Vec::new() };
    let tag =
        file_tag(path).map_err(|error| Failure::new(Exit::Target, format!("{}: {error}", path.display())))?;
    Ok(TargetEnd { end, tag, is_new: zeroed, zeroed, journal: Some(journal_path(path)) })
}

/// Whether a file has no allocated byte: an earlier try made it and ended before its journal.
fn holds_nothing(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.blocks() == 0)
}

/// Makes or goes on with a qcow2 image.
pub fn open_qcow2_target(path: &Path, size: u64, force: bool) -> Result<TargetEnd, Failure> {
    let is_new = !path.exists();
    if !is_new && !force && !journal_path(path).exists() {
        return Err(Failure::new(Exit::Target, format!("{} is there already", path.display()))
            .advise("remove it, choose another name, or overwrite it with --force"));
    }
    let image = image::open_for_writing(path, size, is_new)?;
    let tag =
        file_tag(path).map_err(|error| Failure::new(Exit::Target, format!("{}: {error}", path.display())))?;
    let end = End { disk: image.disk, keep: vec![Box::new(image.server)], notes: Vec::new() };
    Ok(TargetEnd { end, tag, is_new, zeroed: is_new, journal: Some(journal_path(path)) })
}

fn source_failure(error: drover_disk::DiskError) -> Failure {
    Failure::new(disk_exit(&error, ""), chain(&error))
}

fn target_failure(error: drover_disk::DiskError) -> Failure {
    let name = error.disk.clone();
    Failure::new(disk_exit(&error, &name), chain(&error))
}
