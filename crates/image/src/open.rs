use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use drover_disk::DiskError;
use drover_types::ByteSpan;

use crate::disk::ImageDisk;
use crate::fault::{about, damaged, open_error, unsupported};
use crate::files::{Files, References};
use crate::map::{Chain, Layer};
use crate::raw::{RawLayer, ZeroLayer};
use crate::source::{FileSource, Part, ReadAt};
use crate::tables::Tables;
use crate::{qcow2, vhd, vhdx, vmdk};

/// The format of a disk image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// The disk's bytes and nothing else.
    Raw,
    /// QEMU's, versions 2 and 3.
    Qcow2,
    /// VMware's: a descriptor with extents, or one sparse file.
    Vmdk,
    /// Virtual PC's and Hyper-V's older one.
    Vhd,
    /// Hyper-V's.
    Vhdx,
}

impl Format {
    /// Every format, in the order of their names in messages.
    pub const ALL: [Format; 5] = [Format::Raw, Format::Qcow2, Format::Vmdk, Format::Vhd, Format::Vhdx];

    /// The name that users write.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Vmdk => "vmdk",
            Format::Vhd => "vhd",
            Format::Vhdx => "vhdx",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let names = || Format::ALL.map(Format::as_str).join(", ");
        // QEMU says `vpc`.
        let text = if text == "vpc" { "vhd" } else { text };
        let found = Format::ALL.into_iter().find(|format| format.as_str() == text);
        found.ok_or_else(|| {
            format!("'{}' is no image format that is read here; there are {}", text.escape_debug(), names())
        })
    }
}

/// How an image is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Other files that the image may name.
    pub references: References,
    /// Read it even if another program has it open for writing: what is read may then be of no one
    /// moment.
    pub in_use: bool,
}

/// Images in one chain. QEMU knows no limit; more than this is slow and most likely a mistake.
const CHAIN_MAX: usize = 32;

/// Memory that the tables of all images of one disk may take, beside the caches.
const MEMORY_BYTES_MAX: u64 = 128 << 20;

/// Opens an image to be read. The format is the caller's word; it is never guessed here.
///
/// # Errors
/// When it is not there, not of that format, damaged, needs something that is not read, or names
/// files that `options` do not allow. The error says what and what to try.
pub fn open(path: impl AsRef<Path>, format: Format, options: &OpenOptions) -> Result<ImageDisk, DiskError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    FileSource::open(path)
        .and_then(|file| open_file(&name, Arc::new(file), format, options))
        .map_err(|error| open_error(&name, error))
}

/// Opens an image that lies inside another file, such as an archive. It may not name other files.
///
/// # Errors
/// As [`open`]; also when `part` does not lie in the file.
pub fn open_part(path: impl AsRef<Path>, part: ByteSpan, format: Format) -> Result<ImageDisk, DiskError> {
    let path = path.as_ref();
    let name = format!("{} {part}", path.display());
    FileSource::open(path)
        .and_then(|file| open_part_of(&name, Arc::new(file), part, format))
        .map_err(|error| open_error(&name, error))
}

/// Opens a part of an open file as an image that may not name other files.
pub(crate) fn open_part_of(
    name: &str,
    file: Arc<FileSource>,
    part: ByteSpan,
    format: Format,
) -> io::Result<ImageDisk> {
    let options = OpenOptions { references: References::None, ..OpenOptions::default() };
    let files = Files::new(&options, &file)?;
    let mut context = Context { files, memory_left: MEMORY_BYTES_MAX, notes: Vec::new() };
    let place = Location::of(&file);
    let opened = open_layer(format, Arc::new(Part::new(file, part)?), &place, &mut context)?;
    if let Some(below) = opened.below {
        // The rule refuses it, in words.
        context.files.open("the image below", &below.name, &place.folder)?;
    }
    Ok(ImageDisk::new(name.to_string(), Chain::new(vec![opened.layer]), format, context.notes))
}

/// A disk of zeros.
pub(crate) fn empty_disk(name: &str, size: u64) -> ImageDisk {
    let chain = Chain::new(vec![Box::new(ZeroLayer { size })]);
    ImageDisk::new(name.to_string(), chain, Format::Raw, Vec::new())
}

/// Opens an open file as an image, with the images below it.
pub(crate) fn open_file(
    name: &str,
    mut file: Arc<FileSource>,
    format: Format,
    options: &OpenOptions,
) -> io::Result<ImageDisk> {
    let files = Files::new(options, &file)?;
    let mut context = Context { files, memory_left: MEMORY_BYTES_MAX, notes: Vec::new() };
    let mut seen = vec![file.id()];
    let mut opened = open_layer(format, file.clone(), &Location::of(&file), &mut context)?;
    let mut layers = Vec::new();
    while let Some(below) = opened.below {
        layers.push(opened.layer);
        if layers.len() >= CHAIN_MAX {
            return Err(unsupported(format!(
                "its chain has more than {CHAIN_MAX} images; commit some of them"
            )));
        }
        file = context.files.open(below.what, &below.name, &Location::of(&file).folder)?;
        if seen.contains(&file.id()) {
            return Err(damaged(format!("its chain comes back to {}", file.name())));
        }
        seen.push(file.id());
        let what = || format!("{} {}", below.what, file.name());
        opened = open_layer(below.format, file.clone(), &Location::of(&file), &mut context)
            .map_err(|error| about(what(), error))?;
        if below.content_id.is_some() && below.content_id != opened.content_id {
            let text = "it was changed after the image above was made: the content ids differ";
            return Err(about(what(), damaged(text)));
        }
    }
    layers.push(opened.layer);
    Ok(ImageDisk::new(name.to_string(), Chain::new(layers), format, context.notes))
}

fn open_layer(
    format: Format,
    source: Arc<dyn ReadAt>,
    place: &Location,
    context: &mut Context,
) -> io::Result<Opened> {
    match format {
        Format::Raw => {
            let size = source.length();
            Ok(Opened::alone(Box::new(RawLayer::new(source, 0, size))))
        }
        Format::Qcow2 => qcow2::open(source, place, context),
        Format::Vmdk => vmdk::open(source, place, context),
        Format::Vhd => vhd::open(source, context),
        Format::Vhdx => vhdx::open(source, context),
    }
}

/// What formats need while they open.
pub(crate) struct Context {
    /// Opens what the image names.
    pub(crate) files: Files,
    memory_left: u64,
    /// What the user should know.
    pub(crate) notes: Vec<String>,
}

impl Context {
    /// Asks for memory that is held as long as the disk.
    pub(crate) fn take_memory(&mut self, what: &str, bytes: u64) -> io::Result<()> {
        self.memory_left = self.memory_left.checked_sub(bytes).ok_or_else(|| {
            let max = MEMORY_BYTES_MAX >> 20;
            unsupported(format!(
                "{what} takes {bytes} bytes of memory; the tables of a disk may take {max} MiB"
            ))
        })?;
        Ok(())
    }

    /// A cache for tables, smaller if memory is short.
    pub(crate) fn cache(&mut self, count: u64, table_bytes: u64) -> Tables {
        // A share of what is left, so that a long chain gets caches to its end.
        let tables = Tables::new(count, table_bytes, self.memory_left / 4);
        self.memory_left = self.memory_left.saturating_sub(tables.memory_bytes());
        tables
    }

    /// Keeps a sentence for the user.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }
}

/// Where an image lies; names in it are relative to that.
pub(crate) struct Location {
    pub(crate) folder: PathBuf,
}

impl Location {
    fn of(file: &FileSource) -> Location {
        let folder = file.path().parent().unwrap_or(Path::new("/")).to_path_buf();
        Location { folder }
    }
}

/// An image that was opened, without those below it.
pub(crate) struct Opened {
    pub(crate) layer: Box<dyn Layer>,
    pub(crate) below: Option<Below>,
    /// VMDK's CID, which a child holds against its own note of it.
    pub(crate) content_id: Option<u32>,
}

impl Opened {
    pub(crate) fn alone(layer: Box<dyn Layer>) -> Opened {
        Opened { layer, below: None, content_id: None }
    }
}

/// The image below, as the one above names it.
pub(crate) struct Below {
    /// `backing file`, `parent`.
    pub(crate) what: &'static str,
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) content_id: Option<u32>,
}
