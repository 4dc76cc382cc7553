//! Appliances: an OVF descriptor with its disks, packed (`.ova`, a tar archive) or in a folder.
//!
//! ```text
//! tar        the files of an archive, by their places
//! xml        a bounded XML tree
//! ovf        the descriptor: machine, disks, files
//! hardware   its hardware section
//! manifest   digests of the files
//! ```
//!
//! Nothing is unpacked: a disk is read where it lies in the archive.

mod hardware;
mod manifest;
mod ovf;
mod tar;
mod xml;

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::Context;
use drover_disk::DiskError;
use drover_types::ByteSpan;
use drover_types::inventory::Vm;

use crate::disk::ImageDisk;
use crate::fault::{about, damaged, open_error, unsupported};
use crate::files::{Files, References};
use crate::open::{self, Format, OpenOptions};
use crate::source::{FileSource, Part, ReadAt, read_piece};
use ovf::{Descriptor, DiskEntry};
use tar::Member;

/// An appliance: one machine and its disks.
pub struct Ova {
    name: String,
    files: Store,
    descriptor_name: String,
    /// All that it is made of, open: what writes to a file looks whether this process has it open.
    _held: Vec<Piece>,
    descriptor: Descriptor,
}

/// A disk of an appliance. The machine's own view of it is in [`Vm::disks`] at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvaDisk {
    /// Label (`Hard disk 1`).
    pub label: String,
    /// The file it comes from, as the descriptor names it; absent for a disk that starts empty.
    pub href: Option<String>,
    /// Bytes that the guest sees, as the descriptor says; 0 if it does not. The opened disk knows.
    pub capacity_bytes: u64,
    /// Bytes of the file; 0 without one or if it is missing.
    pub stored_bytes: u64,
    /// How the file is kept; absent if that is not told in a way known here.
    pub format: Option<Format>,
}

/// What comparing the files with the manifest brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestCheck {
    /// Whether there is a manifest at all.
    pub present: bool,
    /// Whether there is a certificate. It is not verified: nobody said whom to trust.
    pub certificate: bool,
    /// Files whose digest is the manifest's.
    pub equal: Vec<String>,
    /// Files whose digest differs.
    pub different: Vec<String>,
    /// Files that the manifest lists and that are not there.
    pub missing: Vec<String>,
    /// The descriptor and files of disks that the manifest does not list.
    pub unlisted: Vec<String>,
}

impl ManifestCheck {
    /// Whether all is there and as the manifest says. Without a manifest it is not known: false.
    pub fn is_good(&self) -> bool {
        self.present && self.different.is_empty() && self.missing.is_empty() && self.unlisted.is_empty()
    }
}

/// Bytes hashed at a time.
const HASHED_BYTES: usize = 1 << 20;

impl Ova {
    /// Opens a `.ova` archive, an `.ovf` descriptor, or a folder that holds one descriptor.
    ///
    /// # Errors
    /// When it is not there, not an appliance, damaged, or describes several machines.
    pub fn open(path: impl AsRef<Path>) -> Result<Ova, DiskError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        Ova::open_path(&name, path).map_err(|error| open_error(&name, error))
    }

    fn open_path(name: &str, path: &Path) -> io::Result<Ova> {
        let (files, descriptor_name) = Store::open(path)?;
        let text = files.text(&descriptor_name, xml::XML_BYTES_MAX)?;
        let descriptor = ovf::read(&text).map_err(|error| about(&descriptor_name, error))?;
        let beside = ["mf", "cert"].map(|end| beside(&descriptor_name, end));
        let hrefs = descriptor.disks.iter().filter_map(|disk| disk.file.as_ref().map(|file| &file.href));
        let names = std::iter::once(&descriptor_name).chain(&beside).chain(hrefs);
        // What is missing is told when it is needed.
        let held = names.filter_map(|name| files.find(name).ok()).collect();
        Ok(Ova { name: name.to_string(), files, descriptor_name, _held: held, descriptor })
    }

    /// The machine, in the words of the inventory: power off, no folder, no host, no snapshots.
    pub fn vm(&self) -> &Vm {
        &self.descriptor.vm
    }

    /// What the user should know, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.descriptor.notes
    }

    /// The machine's disks, in the order of [`Vm::disks`].
    pub fn disks(&self) -> Vec<OvaDisk> {
        let disks = self.descriptor.vm.disks.iter().zip(&self.descriptor.disks);
        disks
            .map(|(disk, entry)| OvaDisk {
                label: disk.label.clone(),
                href: entry.file.as_ref().map(|file| file.href.clone()),
                capacity_bytes: entry.capacity_bytes,
                stored_bytes: self.stored_bytes(entry),
                format: entry.format,
            })
            .collect()
    }

    fn stored_bytes(&self, entry: &DiskEntry) -> u64 {
        let Some(file) = &entry.file else { return 0 };
        self.files.find(&file.href).map_or(0, |piece| piece.length())
    }

    /// Opens the disk of that number to be read, where it lies.
    ///
    /// # Errors
    /// When its file is missing, compressed as a whole, or of a format that is not read.
    pub fn open_disk(&self, number: usize) -> Result<ImageDisk, DiskError> {
        let entry = self.descriptor.disks.get(number);
        let label = self.descriptor.vm.disks.get(number).map_or("", |disk| disk.label.as_str());
        let name = format!("{} {label}", self.name);
        entry
            .ok_or_else(|| unsupported(format!("it has no disk {number}")))
            .and_then(|entry| self.open_entry(&name, entry))
            .map_err(|error| open_error(&name, error))
    }

    fn open_entry(&self, name: &str, entry: &DiskEntry) -> io::Result<ImageDisk> {
        let Some(file) = &entry.file else {
            return Ok(open::empty_disk(name, entry.capacity_bytes));
        };
        let shown = file.href.escape_default();
        if file.chunked || !matches!(file.compression.as_str(), "" | "identity") {
            return Err(unsupported(format!(
                "its file '{shown}' is compressed or cut into chunks as a whole; unpack it, and make the \
                 descriptor say so"
            )));
        }
        let Some(format) = entry.format else {
            return Err(unsupported(format!("the descriptor does not say in a known way what '{shown}' is")));
        };
        let piece = self.files.find(&file.href)?;
        if file.bytes.is_some_and(|bytes| bytes != piece.length()) {
            let (told, found) = (file.bytes.unwrap_or(0), piece.length());
            return Err(damaged(format!("its file '{shown}' has {found} bytes, the descriptor says {told}")));
        }
        piece.open(name, format)
    }

    /// Reads every file that the manifest lists and compares digests. `progress` is told bytes read
    /// and bytes in all, and may break it off.
    ///
    /// # Errors
    /// When the manifest cannot be understood, a file cannot be read, or it was broken off. A
    /// difference is not an error but part of the answer.
    pub fn check_manifest(
        &self,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ManifestCheck, DiskError> {
        self.compare(None, &mut progress).map_err(|error| open_error(&self.name, error))
    }

    /// As [`Ova::check_manifest`], but of the descriptor and the file of one disk alone.
    ///
    /// # Errors
    /// As there.
    pub fn check_manifest_of(
        &self,
        disk: usize,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ManifestCheck, DiskError> {
        self.compare(Some(disk), &mut progress).map_err(|error| open_error(&self.name, error))
    }

    /// The descriptor and the files of one disk or of all.
    fn needed(&self, disk: Option<usize>) -> Vec<&String> {
        let entries = self.descriptor.disks.iter().enumerate();
        let wanted = entries.filter(|(number, _)| disk.is_none_or(|disk| disk == *number));
        let hrefs = wanted.filter_map(|(_, entry)| entry.file.as_ref()).map(|file| &file.href);
        std::iter::once(&self.descriptor_name).chain(hrefs).collect()
    }

    fn compare(
        &self,
        disk: Option<usize>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> io::Result<ManifestCheck> {
        let manifest = beside(&self.descriptor_name, "mf");
        let mut check = ManifestCheck {
            present: self.files.find(&manifest).is_ok(),
            certificate: self.files.find(&beside(&self.descriptor_name, "cert")).is_ok(),
            ..ManifestCheck::default()
        };
        if !check.present {
            return Ok(check);
        }
        let needed = self.needed(disk);
        let is_needed = |file: &str| needed.iter().any(|name| self.files.same(file, name));
        let mut lines = manifest::parse(&self.files.text(&manifest, manifest::MANIFEST_BYTES_MAX)?)?;
        lines.retain(|line| disk.is_none() || is_needed(&line.file));
        let pieces: Vec<_> = lines.iter().map(|line| self.files.find(&line.file)).collect();
        let total = pieces.iter().flatten().map(Piece::length).sum();
        let mut done = 0;
        for (line, piece) in lines.iter().zip(&pieces) {
            let list = match piece {
                Err(error) if error.kind() == io::ErrorKind::NotFound => &mut check.missing,
                Err(error) => return Err(io::Error::new(error.kind(), error.to_string())),
                Ok(piece) => {
                    let mut context = Context::new(line.algorithm());
                    piece.each(|bytes| {
                        context.update(bytes);
                        done += bytes.len() as u64;
                        progress(done, total)
                    })?;
                    let equal = context.finish().as_ref() == line.digest;
                    if equal { &mut check.equal } else { &mut check.different }
                }
            };
            list.push(line.file.clone());
        }
        let listed = |name: &String| lines.iter().any(|line| self.files.same(&line.file, name));
        check.unlisted = needed.into_iter().filter(|name| !listed(name)).cloned().collect();
        Ok(check)
    }
}

/// The file beside a descriptor with another ending.
fn beside(descriptor: &str, end: &str) -> String {
    Path::new(descriptor).with_extension(end).display().to_string()
}

/// The files of an appliance.
enum Store {
    Archive { file: Arc<FileSource>, members: Vec<Member> },
    Folder { folder: PathBuf },
}

/// One of them.
enum Piece {
    Member { file: Arc<FileSource>, span: ByteSpan },
    File(Arc<FileSource>),
}

impl Store {
    /// Opens it and finds the name of its descriptor.
    fn open(path: &Path) -> io::Result<(Store, String)> {
        if std::fs::metadata(path)?.is_dir() {
            let names = std::fs::read_dir(path)?
                .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<Vec<String>>>()?;
            return Ok((Store::Folder { folder: path.canonicalize()? }, only_descriptor(names.iter())?));
        }
        if is_descriptor(&path.to_string_lossy()) {
            let real = path.canonicalize()?;
            let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Ok((
                Store::Folder { folder: real.parent().unwrap_or(Path::new("/")).to_path_buf() },
                name,
            ));
        }
        let file = Arc::new(FileSource::open(path)?);
        let members = tar::list(&*file)?;
        let name = only_descriptor(members.iter().map(|member| &member.name))?;
        Ok((Store::Archive { file, members }, name))
    }

    /// The file of that name, as written or with its `%20`s taken for what they mean.
    fn find(&self, name: &str) -> io::Result<Piece> {
        match self.find_plain(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                unescaped(name).map_or(Err(error), |name| self.find_plain(&name))
            }
            found => found,
        }
    }

    fn find_plain(&self, name: &str) -> io::Result<Piece> {
        match self {
            Store::Archive { file, members } => {
                let found =
                    members.iter().find(|member| member.name == name.strip_prefix("./").unwrap_or(name));
                let missing = || format!("the archive holds no '{}'", name.escape_default());
                let member = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, missing()))?;
                Ok(Piece::Member { file: file.clone(), span: member.span })
            }
            Store::Folder { folder } => {
                let mut files = Files::below(References::SameFolder, folder);
                files.open("the file", name, folder).map(Piece::File)
            }
        }
    }

    /// Whether two names mean one file.
    fn same(&self, a: &str, b: &str) -> bool {
        let plain = |name: &str| {
            let name = name.strip_prefix("./").unwrap_or(name);
            unescaped(name).unwrap_or_else(|| name.to_string())
        };
        plain(a) == plain(b)
    }

    fn text(&self, name: &str, bytes_max: u64) -> io::Result<String> {
        let piece = self.find(name)?;
        let source = piece.source()?;
        let bytes = read_piece(&*source, name, ByteSpan::new(0, source.length()), bytes_max)?;
        let text = String::from_utf8(bytes).map_err(|_| unsupported(format!("{name} is not UTF-8")))?;
        Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
    }
}

impl Piece {
    fn length(&self) -> u64 {
        match self {
            Piece::Member { span, .. } => span.length,
            Piece::File(file) => file.length(),
        }
    }

    fn source(&self) -> io::Result<Arc<dyn ReadAt>> {
        match self {
            Piece::Member { file, span } => Ok(Arc::new(Part::new(file.clone(), *span)?)),
            Piece::File(file) => Ok(file.clone()),
        }
    }

    fn open(self, name: &str, format: Format) -> io::Result<ImageDisk> {
        match self {
            Piece::Member { file, span } => open::open_part_of(name, file, span, format),
            Piece::File(file) => open::open_file(name, file, format, &OpenOptions::default()),
        }
    }

    /// Gives all bytes to `take`, which may break it off.
    fn each(&self, mut take: impl FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<()> {
        let source = self.source()?;
        let mut buffer = vec![0; HASHED_BYTES];
        let mut at = 0;
        while at < source.length() {
            let length = (source.length() - at).min(HASHED_BYTES as u64) as usize;
            source.read_at(at, &mut buffer[..length])?;
            if take(&buffer[..length]).is_break() {
                return Err(io::Error::other("stopped as asked"));
            }
            at += length as u64;
        }
        Ok(())
    }
}

fn is_descriptor(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|end| end.eq_ignore_ascii_case("ovf"))
}

fn only_descriptor<'a>(names: impl Iterator<Item = &'a String>) -> io::Result<String> {
    let found: Vec<&String> = names.filter(|name| is_descriptor(name)).collect();
    match found[..] {
        [name] => Ok(name.clone()),
        [] => Err(damaged("it holds no .ovf file, so it is no appliance")),
        _ => Err(unsupported(format!("it holds {} .ovf files; name the one that is meant", found.len()))),
    }
}

/// `a%20b` as `a b`; `None` if nothing is escaped or it is no text.
fn unescaped(name: &str) -> Option<String> {
    if !name.contains('%') {
        return None;
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, after @ ..] = rest {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}
