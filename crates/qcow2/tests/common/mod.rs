//! What the tests share: an own checker of images, QEMU as the outside judge, and a source of chance.
#![allow(clippy::unwrap_used, dead_code)]

pub mod checker;
pub mod sim;

use std::path::Path;
use std::process::Command;

use drover_disk::{Buffer, Completion, Disk, Lane, Request, Slice, Work};
use drover_types::ByteSpan;

/// A small generator, so that a failure comes back with its seed.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

pub fn run(lane: &mut dyn Lane, span: ByteSpan, work: Work) -> Completion {
    lane.submit(Request { id: 1, span, work });
    lane.complete().unwrap()
}

pub fn write(lane: &mut dyn Lane, offset: u64, bytes: &[u8]) -> Completion {
    let mut buffer = Buffer::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    run(lane, ByteSpan::new(offset, bytes.len() as u64), Work::Write(Slice::from(buffer)))
}

pub fn read(disk: &dyn Disk, offset: u64, length: u64) -> Vec<u8> {
    let mut lane = disk.open_lane().unwrap();
    let mut bytes = Vec::new();
    for start in (offset..offset + length).step_by(1 << 20) {
        let span = ByteSpan::from_bounds(start, (start + (1 << 20)).min(offset + length));
        let mut buffer = Buffer::zeroed(span.length as usize);
        buffer.fill(0xee);
        let completion = run(&mut *lane, span, Work::Read(buffer));
        completion.result.unwrap();
        let Work::Read(buffer) = completion.work else { panic!("a read came back as another") };
        bytes.extend_from_slice(&buffer);
    }
    bytes
}

/// Whether `qemu-img` is there; says so if a test is skipped.
pub fn has_qemu() -> bool {
    let found = Command::new("qemu-img").arg("--version").output().is_ok();
    if !found {
        println!("skipped: no qemu-img");
    }
    found
}

pub fn qemu_img(args: &[&str], paths: &[&Path]) -> String {
    let output = Command::new("qemu-img").args(args).args(paths).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "qemu-img {args:?}: {text}");
    text
}

/// Has QEMU say that an image has neither errors nor leaks.
pub fn qemu_check(path: &Path) {
    let text = qemu_img(&["check", "-f", "qcow2"], &[path]);
    assert!(text.contains("No errors were found"), "{text}");
}

/// The content of an image as QEMU reads it.
pub fn qemu_read(path: &Path) -> Vec<u8> {
    let raw = path.with_extension("raw-by-qemu");
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw"], &[path, &raw]);
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(raw).unwrap();
    bytes
}
