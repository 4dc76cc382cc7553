//! Disks to be read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_disk::{Disk, DiskError, FileDisk, OpenTarget, read_span};
use drover_engine::Cause;
use drover_http::RangeDisk;
use drover_image::{Format, OpenOptions, Ova};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_sftp::{SftpDisk, SftpOptions};
use drover_source::single;
use drover_types::{BLOCK_BYTES, ByteSpan};

use crate::agent;
use crate::errors::{EndError, failed, only_read, source_failure, target_failure, usage};
use crate::format::{ToldFormat, format_of};
use crate::named::NamedSource;
use crate::place::{Place, place};
use crate::qcow2;
use crate::{End, Notes};

/// No disk is larger: what claims to be would take memory for its map alone.
const DISK_BYTES_MAX: u64 = 1 << 50;

/// Opens a disk to be read.
///
/// # Errors
/// If it is named wrongly, or cannot be had.
pub fn open_source(named: &NamedSource<'_>) -> Result<End, EndError> {
    let mut end = open_any(named)?;
    match end.disk.size() {
        size if size <= DISK_BYTES_MAX => {
            if is_read_raw_by_chance(named) {
                let (disk, name) = (end.disk.clone(), named.text.to_string());
                end.notes.look(move || note_of_image(&name, disk.as_ref()));
            }
            Ok(end)
        }
        size => {
            let text = format!("{} claims to have {size} bytes; drover reads up to 1 PiB", end.disk.name());
            Err(failed(Cause::Source, text))
        }
    }
}

fn open_any(named: &NamedSource<'_>) -> Result<End, EndError> {
    let simple = |disk: Arc<dyn Disk>| End { disk, keep: Vec::new(), notes: Notes::default(), link: None };
    match place(named.text)? {
        Place::Nbd(uri) => {
            let disk = NbdDisk::open_source(&uri, NbdOptions::default()).map_err(source_failure)?;
            Ok(simple(Arc::new(disk)))
        }
        Place::Web(url) => {
            check_read_raw(named, url.split(['?', '#']).next().unwrap_or_default(), "files of web servers")?;
            let disk = RangeDisk::open(&url, named.login.trust()?).map_err(source_failure)?;
            Ok(simple(Arc::new(disk)))
        }
        Place::Ssh(uri) => {
            check_read_raw(named, &uri.path, "files of other hosts")?;
            let disk = SftpDisk::open(&uri, SftpOptions::default()).map_err(source_failure)?;
            Ok(simple(Arc::new(disk)))
        }
        Place::Agent(place) => {
            check_read_raw(named, &place.disk, "an agent's disks")?;
            agent::open_source(&place, named)
        }
        Place::Ova(path, disk) => open_ova(&path, disk, named.manifest_is_checked),
        Place::Vsphere { host, vm, disk } => open_vsphere(&host, &vm, disk, named),
        Place::Path(path) => {
            let format = match format_of(&path, named.format) {
                ToldFormat::Is(format) => format,
                ToldFormat::Auto => drover_image::probe(&path).map_err(source_failure)?,
            };
            match format {
                Format::Raw => {
                    Ok(simple(Arc::new(open_raw(&path, named.past_cache).map_err(source_failure)?)))
                }
                format => open_image(&path, format),
            }
        }
        Place::Null => Err(usage("null: can only be a target")),
        Place::Stream => Err(usage("- can only be a target: a stream cannot be read twice")
            .advise("a file of that name is ./-")),
    }
}

/// Whether a disk is read byte by byte, though nobody said that it is raw, and may be looked at for an image.
fn is_read_raw_by_chance(named: &NamedSource<'_>) -> bool {
    let Ok(place) = place(named.text) else { return false };
    let is_raw = match place {
        // Of other sites and hosts names are looked at: to read would cost a connection by ssh, or bytes of a line.
        Place::Agent(_)
        | Place::Ssh(_)
        | Place::Ova(..)
        | Place::Vsphere { .. }
        | Place::Null
        | Place::Stream => false,
        Place::Nbd(_) | Place::Web(_) => true,
        Place::Path(path) => format_of(&path, None) == ToldFormat::RAW,
    };
    is_raw && named.format.is_none()
}

/// A note about a disk that is read byte by byte and begins like an image. No more than a note: a guest can write such a
/// beginning to its disk, and its server may be what reads the image.
fn note_of_image(name: &str, disk: &dyn Disk) -> Option<String> {
    let format = image_on(disk)?;
    Some(format!(
        "{name} begins like a {format} image and is read as a raw disk, byte by byte; if the disk in the image is meant, say its \
         format or have it served (`drover serve-disk`, `qemu-nbd`)"
    ))
}

/// The format of the image that a disk begins like. One that cannot be read is none: what reads it next tells why.
pub(crate) fn image_on(disk: &dyn Disk) -> Option<Format> {
    let span = ByteSpan::new(0, disk.size().min(BLOCK_BYTES));
    if span.length == 0 {
        return None;
    }
    let mut lane = disk.open_lane().ok()?;
    let format = drover_image::probe_head(&read_span(lane.as_mut(), span).ok()?);
    (format != Format::Raw).then_some(format)
}

/// Refuses what is read as a raw disk and was said to be, or by its name is, an image.
fn check_read_raw(named: &NamedSource<'_>, name: &str, what: &str) -> Result<(), EndError> {
    let why = match (named.format, format_of(Path::new(name), named.format)) {
        (_, ToldFormat::RAW) => return Ok(()),
        (Some(_), _) => "another format cannot be asked for".to_string(),
        (None, _) => format!("{} has the name of an image", named.text),
    };
    let text = format!("{what} are read as raw disks, and {why}");
    Err(usage(text).advise(
        "say that its format is raw to read its bytes as they are, or read it where it lies (`drover serve-disk`)",
    ))
}

/// A disk of an appliance, read at its place in the archive.
fn open_ova(path: &Path, number: usize, manifest_is_checked: bool) -> Result<End, EndError> {
    let ova = Ova::open(path).map_err(source_failure)?;
    let disks = ova.disks();
    if number >= disks.len() {
        let labels: Vec<String> =
            disks.iter().enumerate().map(|(number, disk)| format!("{number} ({})", disk.label)).collect();
        let text = format!("{} has no disk {number}; it has {}", path.display(), labels.join(", "));
        return Err(failed(Cause::Source, text));
    }
    let image = ova.open_disk(number).map_err(source_failure)?;
    let mut notes = ova.notes().to_vec();
    notes.extend(image.notes().iter().cloned());
    if !manifest_is_checked {
        notes.push("the appliance's manifest is not looked at".to_string());
    }
    Ok(End { disk: Arc::new(image), keep: vec![Box::new(ova)], notes: notes.into(), link: None })
}

fn open_raw(path: &Path, past_cache: bool) -> Result<FileDisk, DiskError> {
    let disk = if past_cache { FileDisk::open_for_verify(path)? } else { FileDisk::open_source(path)? };
    disk.check_no_writer()?;
    Ok(disk)
}

fn open_image(path: &Path, format: Format) -> Result<End, EndError> {
    let image = drover_image::open(path, format, &OpenOptions::default()).map_err(source_failure)?;
    let notes = image.notes().to_vec();
    Ok(End { disk: Arc::new(image), keep: Vec::new(), notes: notes.into(), link: None })
}

/// Opens a disk that is there already to change it in place, and says what file it is, if it is one.
///
/// # Errors
/// If it is not one that is written, or cannot be had.
pub fn open_in_place(named: &NamedSource<'_>) -> Result<(End, Option<PathBuf>), EndError> {
    let end = |disk, keep| End { disk, keep, notes: Notes::default(), link: None };
    match place(named.text)? {
        Place::Nbd(uri) => {
            let disk = NbdDisk::open_target(&uri, NbdOptions::default()).map_err(target_failure)?;
            Ok((end(Arc::new(disk), Vec::new()), None))
        }
        Place::Path(path) => match format_of(&path, named.format) {
            ToldFormat::RAW => {
                let size = FileDisk::open_source(&path).map_err(target_failure)?.size();
                let how = OpenTarget { size, create: false, resume: true };
                let disk = FileDisk::open_target(&path, how).map_err(target_failure)?;
                Ok((end(Arc::new(disk), Vec::new()), Some(path)))
            }
            ToldFormat::QCOW2 => Ok((qcow2::open_in_place(&path)?, Some(path))),
            ToldFormat::Is(_) | ToldFormat::Auto => Err(only_read()),
        },
        Place::Web(_)
        | Place::Agent(_)
        | Place::Ssh(_)
        | Place::Ova(..)
        | Place::Vsphere { .. }
        | Place::Null
        | Place::Stream => Err(usage(format!("'{}' cannot be written to", named.text))),
    }
}

fn open_vsphere(host: &str, vm: &str, disk: usize, named: &NamedSource<'_>) -> Result<End, EndError> {
    let session = named.login.connect(host, named.host.say)?;
    let (vm, found) = single::find_disk(&session, vm, disk)?;
    let opened = single::open_disk(&session, &vm, &found, &named.own_state)?;
    let (disk, notes) = (opened.disk, opened.notes.into());
    Ok(End { disk, notes, keep: vec![Box::new(session)], link: None })
}
