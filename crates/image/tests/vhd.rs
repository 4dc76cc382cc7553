//! VHD and VHDX images as QEMU makes them.
#![allow(clippy::unwrap_used)]

mod support;

use drover_disk::{Disk, DiskErrorKind, conformance};
use drover_image::{Format, probe};
use support::{Folder, Random, has_qemu, mixture, opened, read_all, refused};

const MIB: usize = 1 << 20;

fn converted(folder: &Folder, options: &str, content: &[u8]) {
    std::fs::write(folder.file("a.raw"), content).unwrap();
    folder.qemu_img(&format!("convert -f raw -O {options} a.raw image"));
}

#[test]
fn every_kind_reads_as_it_was_written() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let bytes = mixture(9 * MIB, 10);
    for (options, format) in [
        ("vpc -o force_size=on", Format::Vhd),
        ("vpc -o subformat=fixed,force_size=on", Format::Vhd),
        ("vhdx", Format::Vhdx),
        ("vhdx -o subformat=fixed", Format::Vhdx),
        ("vhdx -o block_size=1M", Format::Vhdx),
        ("vhdx -o block_size=256M", Format::Vhdx),
        ("vhdx -o block_state_zero=off", Format::Vhdx),
    ] {
        println!("{options}");
        converted(&folder, options, &bytes);
        let disk = opened(&folder.file("image"), format);
        conformance::check_reader(&disk, &bytes);
        assert_eq!(probe(folder.file("image")).unwrap(), format);
        std::fs::remove_file(folder.file("image")).unwrap();
    }
}

#[test]
fn random_writes_read_as_qemu_reads_them() {
    if !has_qemu() {
        return;
    }
    for seed in 0..8 {
        println!("seed {seed}");
        let folder = Folder::new();
        let mut random = Random(seed);
        let (qemu, format, options) = match seed % 2 {
            0 => ("vpc", Format::Vhd, "force_size=on".to_string()),
            _ => ("vhdx", Format::Vhdx, format!("block_size={}M", 1 << random.below(6))),
        };
        let size = (20 + random.below(30)) << 20;
        folder.qemu_img(&format!("create -q -f {qemu} -o {options} image {size}"));
        let mut commands: Vec<String> = ["-f", qemu].map(String::from).to_vec();
        for _ in 0..random.below(40) {
            let offset = random.below(size / 512) * 512;
            let length = ((1 + random.below(4000)) * 512).min(size - offset);
            commands
                .extend(["-c".to_string(), format!("write -P {} {offset} {length}", 1 + random.below(255))]);
        }
        commands.push("image".to_string());
        folder.run("qemu-io", &commands.iter().map(String::as_str).collect::<Vec<_>>());
        folder.agrees(format, qemu, "image");
    }
}

/// A VHDX so large that entries for bitmaps stand between those for blocks.
#[test]
fn blocks_beyond_the_first_chunk_are_found() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    folder.qemu_img("create -q -f vhdx -o block_size=1M image 20G");
    let (first, second) = (4u64 << 30, 17u64 << 30);
    let write = |at: u64, byte: u8| format!("write -P {byte} {} 4M", at - (2 << 20));
    folder.run("qemu-io", &["-f", "vhdx", "-c", &write(first, 1), "-c", &write(second, 2), "image"]);
    let disk = opened(&folder.file("image"), Format::Vhdx);
    let mut lane = disk.open_lane().unwrap();
    for (at, byte) in [(first, 1), (second, 2)] {
        let span = drover_types::ByteSpan::new(at - (3 << 20), 6 << 20);
        let work = drover_disk::Work::Read(drover_disk::Buffer::zeroed(6 << 20));
        lane.submit(drover_disk::Request { id: 1, span, work });
        let done = lane.complete().unwrap();
        done.result.unwrap();
        let drover_disk::Work::Read(found) = done.work else { panic!() };
        let expected = [vec![0; MIB], vec![byte; 4 * MIB], vec![0; MIB]].concat();
        assert!(*found == *expected, "around {at}");
    }
}

#[test]
fn a_lost_footer_is_replaced_by_its_copy_where_there_is_one() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let content = mixture(3 * MIB, 11);
    for (kind, readable) in [("dynamic", true), ("fixed", false)] {
        converted(&folder, &format!("vpc -o subformat={kind},force_size=on"), &content);
        let mut bytes = std::fs::read(folder.file("image")).unwrap();
        let end = bytes.len();
        bytes[end - 100] ^= 1;
        std::fs::write(folder.file("image"), bytes).unwrap();
        if readable {
            let disk = opened(&folder.file("image"), Format::Vhd);
            assert!(disk.notes()[0].contains("copy at the start"));
            assert_eq!(read_all(&disk).unwrap(), content);
        } else {
            let (kind, text) = refused(&folder.file("image"), Format::Vhd);
            assert!(kind == DiskErrorKind::Corrupt && text.contains("checksum of its footer"), "{text}");
        }
    }
    std::fs::write(folder.file("image"), vec![0; 5000]).unwrap();
    assert!(refused(&folder.file("image"), Format::Vhd).1.contains("no footer of a VHD"));
}

/// Writes the one's complement checksum of a VHD structure.
fn sign(bytes: &mut [u8], place: usize) {
    bytes[place..place + 4].fill(0);
    let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
    bytes[place..place + 4].copy_from_slice(&(!sum).to_be_bytes());
}

#[test]
fn differencing_disks_and_bad_sums_are_refused() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("image");
    converted(&folder, "vpc -o force_size=on", &mixture(MIB, 12));
    let bytes = std::fs::read(&path).unwrap();
    let footer = bytes.len() - 512;
    let mut delta = bytes.clone();
    delta[footer + 63] = 4;
    sign(&mut delta[footer..], 64);
    std::fs::write(&path, &delta).unwrap();
    let (kind, text) = refused(&path, Format::Vhd);
    assert!(kind == DiskErrorKind::Unsupported && text.contains("differencing"), "{text}");
    let mut wrong = bytes.clone();
    wrong[512 + 100] ^= 1;
    std::fs::write(&path, &wrong).unwrap();
    assert!(refused(&path, Format::Vhd).1.contains("checksum of its header"));
    let mut short = bytes;
    short[512 + 28..512 + 32].copy_from_slice(&0u32.to_be_bytes());
    sign(&mut short[512..1536], 36);
    std::fs::write(&path, &short).unwrap();
    assert!(refused(&path, Format::Vhd).1.contains("a table of 0 blocks"));
}

#[test]
fn of_two_headers_and_tables_one_is_enough() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("image");
    let content = mixture(MIB, 13);
    converted(&folder, "vhdx", &content);
    let bytes = std::fs::read(&path).unwrap();
    let kib = 1024;
    for broken in [&[64][..], &[128], &[192], &[256], &[64, 192], &[128, 256]] {
        let mut damaged = bytes.clone();
        for at in broken {
            damaged[at * kib + 20] ^= 1;
        }
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(read_all(&opened(&path, Format::Vhdx)).unwrap(), content, "{broken:?}");
    }
    for (broken, expected) in [([64, 128], "two headers"), ([192, 256], "tables of regions")] {
        let mut damaged = bytes.clone();
        for at in broken {
            damaged[at * kib + 20] ^= 1;
        }
        std::fs::write(&path, damaged).unwrap();
        let (kind, text) = refused(&path, Format::Vhdx);
        assert!(kind == DiskErrorKind::Corrupt && text.contains(expected), "{text}");
    }
}
