//! Images that lie. Opening and reading them gives bytes or an error; it never panics, never hangs
//! and never takes memory that the image's size does not explain.
#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::fs::FileExt;
use std::path::Path;

use drover_disk::{Buffer, Disk, Request, Work};
use drover_image::{Format, OpenOptions, open};
use drover_types::ByteSpan;
use support::{Folder, Random, has_qemu, mixture};

/// Address space that all tests of this program together may ever take. A table of the length that
/// an image claims, taken on trust, would be far above it.
const MEMORY_KIB_MAX: u64 = 2 << 20;

fn memory_is_bounded() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < MEMORY_KIB_MAX, "{kib} KiB");
}

/// Reads here and there, asks for extents; errors are fine.
fn poke(path: &Path, format: Format) {
    look(path, format);
    memory_is_bounded();
}

fn look(path: &Path, format: Format) {
    // The tests themselves have it open for writing.
    let options = OpenOptions { in_use: true, ..OpenOptions::default() };
    let Ok(disk) = open(path, format, &options) else { return };
    let size = disk.size();
    if size == 0 {
        return;
    }
    let mut lane = disk.open_lane().unwrap();
    for offset in [0, size / 3, size - 1] {
        let span = ByteSpan::new(offset, (size - offset).min(300_000));
        lane.submit(Request { id: 0, span, work: Work::Read(Buffer::zeroed(span.length as usize)) });
        let _ = lane.complete().unwrap().result;
        if let Ok(extents) = disk.extents(ByteSpan::from_bounds(offset, size)) {
            assert!(!extents.is_empty() && extents.len() <= 1024);
            let mut at = offset;
            for extent in extents {
                assert!(extent.span.offset == at && !extent.span.is_empty() && extent.span.end() <= size);
                at = extent.span.end();
            }
        }
    }
}

/// Extremes for a number of `width` bytes.
fn extremes(width: usize) -> Vec<Vec<u8>> {
    let zero = vec![0; width];
    let one = |at: usize| {
        let mut bytes = zero.clone();
        bytes[at] = 1;
        bytes
    };
    let mut half = vec![0xff; width];
    half[0] = 0x7f;
    let mut last = vec![0xff; width];
    last[width - 1] = 0xfe;
    let mut high = zero.clone();
    high[0] = 0x80;
    vec![zero.clone(), vec![0xff; width], one(0), one(width - 1), one(width / 2), half, last, high]
}

/// Every number of the first `fields` bytes at its extremes, in both widths and alignments.
fn every_field(folder: &Folder, format: Format, image: &[u8], fields: std::ops::Range<usize>) {
    let path = folder.file("hostile");
    std::fs::write(&path, image).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for width in [1, 2, 4, 8] {
        for at in fields.clone().step_by(width.min(4)).filter(|at| at + width <= image.len()) {
            for value in extremes(width) {
                file.write_all_at(&value, at as u64).unwrap();
                poke(&path, format);
            }
            file.write_all_at(&image[at..at + width], at as u64).unwrap();
        }
    }
}

fn every_length(folder: &Folder, format: Format, image: &[u8]) {
    let path = folder.file("hostile");
    std::fs::write(&path, image).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut lengths: Vec<usize> = (0..120).chain((0..image.len()).step_by(512)).collect();
    lengths.sort_unstable();
    for length in lengths.into_iter().rev() {
        file.set_len(length.min(image.len()) as u64).unwrap();
        poke(&path, format);
    }
}

/// Random bytes over random places, many at once: tables that point to each other.
fn random_damage(folder: &Folder, format: Format, image: &[u8], rounds: u64) {
    let path = folder.file("hostile");
    for seed in 0..rounds {
        let mut random = Random(seed);
        let mut bytes = image.to_vec();
        for _ in 0..1 + random.below(40) {
            let at = random.below(bytes.len() as u64 - 8) as usize;
            let value = match random.below(3) {
                0 => random.next(),
                1 => random.below(bytes.len() as u64 * 2) & !511,
                _ => random.below(bytes.len() as u64 / 512 + 2),
            };
            let value = if random.below(2) == 0 { value.to_be_bytes() } else { value.to_le_bytes() };
            bytes[at..at + 8].copy_from_slice(&value);
        }
        std::fs::write(&path, bytes).unwrap();
        poke(&path, format);
    }
}

/// A small image with data of every kind.
fn image(folder: &Folder, arguments: &str) -> Vec<u8> {
    std::fs::write(folder.file("a.raw"), mixture(400_000 / 512 * 512, 9)).unwrap();
    folder.qemu_img(&format!("convert -f raw {arguments} a.raw a.image"));
    let bytes = std::fs::read(folder.file("a.image")).unwrap();
    std::fs::remove_file(folder.file("a.image")).unwrap();
    bytes
}

#[test]
fn qcow2_that_lies_does_no_harm() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    for options in
        ["", "-c ", "-o extended_l2=on,cluster_size=16k ", "-c -o compression_type=zstd,cluster_size=512 "]
    {
        let image = image(&folder, format!("-O qcow2 {options}").trim_end());
        every_field(&folder, Format::Qcow2, &image, 0..128);
        every_length(&folder, Format::Qcow2, &image);
        random_damage(&folder, Format::Qcow2, &image, 150);
    }
}

#[test]
fn vmdk_that_lies_does_no_harm() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    for options in ["", "-o zeroed_grain=on ", "-o subformat=streamOptimized "] {
        let image = image(&folder, format!("-O vmdk {options}").trim_end());
        every_field(&folder, Format::Vmdk, &image, 0..80);
        let footer = image.len() - 1024;
        every_field(&folder, Format::Vmdk, &image, footer..footer + 80);
        every_length(&folder, Format::Vmdk, &image);
        random_damage(&folder, Format::Vmdk, &image, 150);
    }
}

#[test]
fn descriptors_that_lie_do_no_harm() {
    let folder = Folder::new();
    let path = folder.file("hostile");
    let text = "# Disk DescriptorFile\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"vmfs\"\n\
                RW 18446744073709551615 ZERO\nRW 281474976710656 ZERO\nRW 1 FLAT \"hostile\" 281474976710656\n";
    for end in 0..=text.len() {
        std::fs::write(&path, &text[..end]).unwrap();
        poke(&path, Format::Vmdk);
    }
    random_damage(&folder, Format::Vmdk, text.as_bytes(), 1000);
    let zeros = "RW 281474976710656 ZERO\n".repeat(900);
    std::fs::write(&path, format!("# Disk DescriptorFile\ncreateType=\"vmfs\"\n{zeros}")).unwrap();
    poke(&path, Format::Vmdk);
}

#[test]
fn vhd_and_vhdx_that_lie_do_no_harm() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let image_of = |options: &str| image(&folder, &format!("-O {options}"));
    let vhd = image_of("vpc -o force_size=on");
    every_length(&folder, Format::Vhd, &vhd);
    random_damage(&folder, Format::Vhd, &vhd, 300);
    // Checksums would hide the fields behind them, so they are made right again.
    for (at, length, sum) in [(vhd.len() - 512, 512, 64), (512, 1024, 36)] {
        every_signed_field(&folder, &vhd, at..at + length, sum);
    }
    let vhdx = image_of("vhdx -o block_size=1M");
    random_damage(&folder, Format::Vhdx, &vhdx, 40);
    let metadata = vhdx.windows(8).position(|eight| eight == b"metadata").unwrap();
    every_field(&folder, Format::Vhdx, &vhdx, metadata..metadata + 192);
    every_field(&folder, Format::Vhdx, &vhdx, metadata + 65536..metadata + 65536 + 64);
    for (at, length) in [(64 << 10, 80), (192 << 10, 80)] {
        every_summed_field(&folder, &vhdx, at, length);
    }
    let guid = [0x66, 0x77, 0xc2, 0x2d];
    let entry = (192 << 10) + vhdx[192 << 10..].windows(4).position(|four| four == guid).unwrap();
    let blocks = u64::from_le_bytes(vhdx[entry + 16..entry + 24].try_into().unwrap()) as usize;
    every_field(&folder, Format::Vhdx, &vhdx, blocks..blocks + 64);
}

fn every_signed_field(folder: &Folder, image: &[u8], part: std::ops::Range<usize>, sum: usize) {
    let path = folder.file("hostile");
    for width in [1, 4, 8] {
        for at in (0..88).step_by(width.min(4)) {
            for value in extremes(width) {
                let mut bytes = image.to_vec();
                let part = &mut bytes[part.clone()];
                part[at..at + width].copy_from_slice(&value);
                part[sum..sum + 4].fill(0);
                let total: u32 = part.iter().map(|byte| u32::from(*byte)).sum();
                part[sum..sum + 4].copy_from_slice(&(!total).to_be_bytes());
                std::fs::write(&path, bytes).unwrap();
                poke(&path, Format::Vhd);
            }
        }
    }
}

/// Fields of a VHDX header (4 KiB) or region table (64 KiB). Both copies of it get the value, else the
/// good one would be taken.
fn every_summed_field(folder: &Folder, image: &[u8], at: usize, fields: usize) {
    let path = folder.file("hostile");
    std::fs::write(&path, image).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let length = if at == 64 << 10 { 4096 } else { 64 << 10 };
    for width in [4, 8] {
        for field in (8..fields).step_by(4) {
            for value in extremes(width) {
                let mut part = image[at..at + length].to_vec();
                part[field..field + width].copy_from_slice(&value);
                part[4..8].fill(0);
                let sum = crc32c(&part).to_le_bytes();
                part[4..8].copy_from_slice(&sum);
                file.write_all_at(&part, at as u64).unwrap();
                file.write_all_at(&part, at as u64 + (64 << 10)).unwrap();
                poke(&path, Format::Vhdx);
            }
        }
    }
    for at in [at, at + (64 << 10)] {
        file.write_all_at(&image[at..at + length], at as u64).unwrap();
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// A frame of zstd that asks for a window of gigabytes, where a cluster of 64 KiB should be.
#[test]
fn a_huge_window_is_refused_before_memory_is_taken() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let mut image = image(&folder, "-O qcow2 -c -o compression_type=zstd");
    let frames: Vec<usize> =
        (0..image.len() - 4).filter(|at| image[*at..at + 4] == [0x28, 0xb5, 0x2f, 0xfd]).collect();
    assert!(!frames.is_empty());
    for at in frames {
        // Frame header descriptor without content size, then a window of 2 GiB.
        image[at + 4] = 0;
        image[at + 5] = 21 << 3;
    }
    let path = folder.file("hostile");
    std::fs::write(&path, image).unwrap();
    let disk = support::opened(&path, Format::Qcow2);
    let error = support::read_all(&disk).unwrap_err();
    assert_eq!(error.kind, drover_disk::DiskErrorKind::Corrupt);
    assert!(error.source.to_string().contains("too much memory"), "{}", error.source);
    memory_is_bounded();
}
