use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::Value;

use crate::child::run_of;
use crate::error::{QemuError, QemuErrorKind};
use crate::spec::ImageFormat;
use drover_child::Kind;

/// How a qcow2 image is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qcow2Options {
    /// Bytes of a cluster: a power of two, 512 to 2 MiB.
    pub cluster_bytes: u64,
    /// What is set aside at once.
    pub preallocation: Preallocation,
}

impl Default for Qcow2Options {
    fn default() -> Self {
        // QEMU's own default, and drover's block: one block never touches two clusters.
        Qcow2Options { cluster_bytes: 64 << 10, preallocation: Preallocation::Off }
    }
}

/// What of an image is set aside when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preallocation {
    /// Nothing.
    #[default]
    Off,
    /// The tables, but no room for data.
    Metadata,
    /// Tables, and room for the data where the file system can do so without writing it.
    Falloc,
    /// Tables, and the data as written zeros.
    Full,
}

/// Makes a qcow2 image that reads as zeros. It appears whole or not at all, and never in place of another file.
///
/// # Errors
/// [`QemuErrorKind::Exists`] if there is a file; [`QemuErrorKind::Invalid`] if `size_bytes` is not a multiple
/// of 512, since qcow2 cannot hold such a disk; [`QemuErrorKind::Missing`] without `qemu-img`.
pub fn create_qcow2(path: &Path, size_bytes: u64, options: &Qcow2Options) -> Result<(), QemuError> {
    let what = format!("creation of {}", path.display());
    if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES) {
        let why = format!(
            "qcow2 holds whole sectors of 512 bytes, not {size_bytes} bytes; choose raw for this disk"
        );
        return Err(QemuError::new(QemuErrorKind::Invalid, what).because(why));
    }
    if path.symlink_metadata().is_ok() {
        return Err(QemuError::new(QemuErrorKind::Exists, what).because("there is such a file already"));
    }
    let new = beside(path, "new");
    let made = make_qcow2(&new, size_bytes, options, &what)
        .and_then(|()| publish(&new, path).map_err(|error| QemuError::io(&what, error)));
    if made.is_err() {
        // Whether it was made at all is not known.
        let _ = fs::remove_file(&new);
    }
    made
}

fn make_qcow2(new: &Path, size_bytes: u64, options: &Qcow2Options, what: &str) -> Result<(), QemuError> {
    let preallocation = match options.preallocation {
        Preallocation::Off => "off",
        Preallocation::Metadata => "metadata",
        Preallocation::Falloc => "falloc",
        Preallocation::Full => "full",
    };
    let format = format!("cluster_size={},preallocation={preallocation}", options.cluster_bytes);
    let mut command = drover_child::command("qemu-img", Kind::Plain);
    command.args(["create", "-q", "-f", "qcow2", "-o", &format]).arg(new).arg(size_bytes.to_string());
    // Writing zeros over a whole disk takes as long as it takes.
    let time_max = if options.preallocation == Preallocation::Full { HOURS } else { CREATE_TIME_MAX };
    run_of(PACKAGE, &mut command, time_max)?.check(what).map(drop)
}

/// Makes a file durable, then gives it its name, but for a name that is taken.
fn publish(new: &Path, path: &Path) -> io::Result<()> {
    File::open(new)?.sync_all()?;
    match renameat_with(CWD, new, CWD, path, RenameFlags::NOREPLACE) {
        // Some network file systems cannot refuse; linking does the same there.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            fs::hard_link(new, path)?;
            fs::remove_file(new)?;
        }
        renamed => renamed?,
    }
    sync_folder_of(path)
}

/// Makes a rename or a removal in a file's folder durable.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// `dir/.NAME.SUFFIX-PID`: a name for work in progress, on the same file system.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}-{}", process::id()))
}

/// What `qemu-img info` tells of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageInfo {
    /// Bytes that a guest sees.
    pub virtual_bytes: u64,
    /// Bytes that the file takes.
    pub actual_bytes: u64,
    /// Bytes of a cluster; absent for raw.
    pub cluster_bytes: Option<u64>,
    /// The image below, as the header names it.
    pub backing_file: Option<String>,
    /// A second file with the data, as the header names it.
    pub data_file: Option<String>,
    /// Whether its content is encrypted.
    pub encrypted: bool,
    /// Whether it was not closed in order.
    pub dirty: bool,
    /// Whether QEMU marked it as damaged.
    pub corrupt: bool,
}

/// Looks at an image without probing its format. The image may be in use.
///
/// # Errors
/// [`QemuErrorKind::WrongFormat`] or QEMU's own words; [`QemuErrorKind::Missing`] without `qemu-img`.
pub fn image_info(path: &Path, format: ImageFormat) -> Result<ImageInfo, QemuError> {
    let what = format!("look at {}", path.display());
    let mut command = drover_child::command("qemu-img", Kind::Plain);
    command.args(["info", "--output=json", "-U", "-f", format.as_str()]).arg(path);
    let ended = run_of(PACKAGE, &mut command, INFO_TIME_MAX)?.check(&what)?;
    let answer: Value = serde_json::from_slice(&ended.stdout)
        .map_err(|error| QemuError::new(QemuErrorKind::Failed, what).because(error))?;
    Ok(read_info(&answer))
}

fn read_info(answer: &Value) -> ImageInfo {
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_string);
    let flag = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
    let specific = answer.pointer("/format-specific/data");
    ImageInfo {
        virtual_bytes: number("virtual-size").unwrap_or(0),
        actual_bytes: number("actual-size").unwrap_or(0),
        cluster_bytes: number("cluster-size"),
        backing_file: text(answer.get("backing-filename")),
        data_file: text(specific.and_then(|data| data.get("data-file"))),
        encrypted: flag(answer.get("encrypted")),
        dirty: flag(answer.get("dirty-flag")),
        corrupt: flag(specific.and_then(|data| data.get("corrupt"))),
    }
}

/// The format of an image: as told, else by the end of its name (`.qcow2`, `.raw`, `.img`), else raw.
///
/// It is never taken from the content: a guest that owns a raw disk could write a qcow2 header to it and so
/// have another file of this machine read as its backing. The content only serves to refuse.
///
/// # Errors
/// [`QemuErrorKind::WrongFormat`] if it is said to be qcow2 and the file does not start as one.
pub fn format_of(path: &Path, told: Option<ImageFormat>) -> Result<ImageFormat, QemuError> {
    let by_name = match path.extension().and_then(|end| end.to_str()) {
        Some(end) if end.eq_ignore_ascii_case("qcow2") => ImageFormat::Qcow2,
        _ => ImageFormat::Raw,
    };
    let format = told.unwrap_or(by_name);
    if format == ImageFormat::Qcow2 && !starts_as_qcow2(path)? {
        let what = format!("{} does not start as a qcow2 image", path.display());
        return Err(QemuError::new(QemuErrorKind::WrongFormat, what));
    }
    Ok(format)
}

/// A file that is not there yet counts: it will be made in that format.
fn starts_as_qcow2(path: &Path) -> Result<bool, QemuError> {
    let mut magic = [0; QCOW_MAGIC.len()];
    match File::open(path).and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) => Ok(&magic == QCOW_MAGIC),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(QemuError::io(format!("look at {}", path.display()), error)),
    }
}

/// Source: QEMU `docs/interop/qcow2.txt`.
const QCOW_MAGIC: &[u8; 4] = b"QFI\xfb";
const SECTOR_BYTES: u64 = 512;
pub(crate) const PACKAGE: &str = "qemu-utils";
const CREATE_TIME_MAX: Duration = Duration::from_secs(300);
const INFO_TIME_MAX: Duration = Duration::from_secs(60);
pub(crate) const HOURS: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::on_path;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn the_format_is_told_or_named_but_never_guessed_from_content() {
        let folder = folder();
        let raw = folder.path().join("disk.raw");
        fs::write(&raw, b"QFI\xfb forged by the guest").unwrap();
        assert_eq!(format_of(&raw, None).unwrap(), ImageFormat::Raw);
        assert_eq!(format_of(&folder.path().join("new.qcow2"), None).unwrap(), ImageFormat::Qcow2);
        let wrong = folder.path().join("disk.qcow2");
        fs::write(&wrong, b"MBR").unwrap();
        assert_eq!(format_of(&wrong, None).unwrap_err().kind, QemuErrorKind::WrongFormat);
        assert_eq!(format_of(&wrong, Some(ImageFormat::Raw)).unwrap(), ImageFormat::Raw);
    }

    #[test]
    fn an_image_is_made_once_and_looks_as_asked() {
        if !on_path("qemu-img") {
            return println!("skipped: no qemu-img");
        }
        let folder = folder();
        let path = folder.path().join("it's a,disk.qcow2");
        let options = Qcow2Options { cluster_bytes: 128 << 10, ..Qcow2Options::default() };
        create_qcow2(&path, 3 << 30, &options).unwrap();
        let info = image_info(&path, ImageFormat::Qcow2).unwrap();
        assert_eq!((info.virtual_bytes, info.cluster_bytes), (3 << 30, Some(128 << 10)));
        assert!(info.actual_bytes < 1 << 20 && info.backing_file.is_none() && !info.corrupt);
        assert_eq!(create_qcow2(&path, 1 << 20, &options).unwrap_err().kind, QemuErrorKind::Exists);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_size_that_qcow2_cannot_hold_is_refused() {
        let path = folder().path().join("a.qcow2");
        for size in [0, 1000] {
            let error = create_qcow2(&path, size, &Qcow2Options::default()).unwrap_err();
            assert_eq!(error.kind, QemuErrorKind::Invalid);
        }
    }

    #[test]
    fn a_failed_creation_leaves_nothing() {
        if !on_path("qemu-img") {
            return println!("skipped: no qemu-img");
        }
        let folder = folder();
        let options = Qcow2Options { cluster_bytes: 1000, ..Qcow2Options::default() };
        create_qcow2(&folder.path().join("a.qcow2"), 1 << 20, &options).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
