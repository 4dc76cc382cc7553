//! Images made by qemu-img, for the tests.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

use drover_disk::{Buffer, Disk, DiskError, DiskErrorKind, Request, Work, conformance};
use drover_image::{Format, ImageDisk, OpenOptions, open};
use drover_types::ByteSpan;

/// Whether the programs are there; says so if not.
pub fn has_qemu() -> bool {
    let found = Command::new("qemu-img").arg("--version").output().is_ok()
        && Command::new("qemu-io").arg("--version").output().is_ok();
    if !found {
        println!("skipped: no qemu-img or qemu-io");
    }
    found
}

pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Runs a program in the folder.
    pub fn run(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(program).args(arguments).current_dir(self.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{program} {arguments:?}: {error}{text}");
    }

    pub fn qemu_img(&self, arguments: &str) {
        self.run("qemu-img", &arguments.split(' ').collect::<Vec<_>>());
    }

    /// What QEMU reads from an image.
    pub fn content(&self, format: &str, name: &str) -> Vec<u8> {
        self.qemu_img(&format!("convert -f {format} -O raw {name} content.raw"));
        let bytes = std::fs::read(self.file("content.raw")).unwrap();
        std::fs::remove_file(self.file("content.raw")).unwrap();
        bytes
    }

    /// Opens, reads in every way and compares with what QEMU reads.
    pub fn agrees(&self, format: Format, qemu: &str, name: &str) -> ImageDisk {
        let disk = opened(&self.file(name), format);
        conformance::check_reader(&disk, &self.content(qemu, name));
        disk
    }
}

pub fn opened(path: &Path, format: Format) -> ImageDisk {
    open(path, format, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}: {}", error.source))
}

pub fn refused(path: &Path, format: Format) -> (DiskErrorKind, String) {
    match open(path, format, &OpenOptions::default()) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => (error.kind, format!("{error}: {}", error.source)),
    }
}

/// Reads a whole disk in requests of an odd size.
pub fn read_all(disk: &dyn Disk) -> Result<Vec<u8>, DiskError> {
    let mut lane = disk.open_lane()?;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < disk.size() {
        let at = bytes.len() as u64;
        let span = ByteSpan::new(at, 1_234_567.min(disk.size() - at));
        let mut buffer = Buffer::zeroed(span.length as usize);
        buffer.fill(0xee);
        lane.submit(Request { id: 1, span, work: Work::Read(buffer) });
        let completion = lane.complete().unwrap();
        completion.result?;
        let Work::Read(buffer) = completion.work else { panic!("a read came back as something else") };
        bytes.extend_from_slice(&buffer);
    }
    Ok(bytes)
}

/// A splitmix64 generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Bytes of every kind: holes, runs that compress well, runs that do not.
pub fn mixture(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let length = 1 + random.below(200_000) as usize;
        match random.below(4) {
            0 => bytes.resize(bytes.len() + length, 0),
            1 => bytes.extend((0..length).map(|at| (at / 700) as u8 | 1)),
            2 => bytes.extend((0..length).map(|_| random.next() as u8)),
            _ => bytes.extend((0..length / 8).flat_map(|at| (at as u64 * 3).to_le_bytes())),
        }
    }
    bytes.truncate(size);
    bytes
}
