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

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let mut word = [0; 8];
    word[..length].copy_from_slice(&bytes[at..at + length]);
    u64::from_le_bytes(word)
}

const LOG_GUID: [u8; 16] = [7; 16];

/// A log entry that puts `page` at `place`, and zeros at `zeros`.
fn log_entry(sequence: u64, tail: u32, place: u64, page: &[u8], zeros: u64, length: u64) -> Vec<u8> {
    let mut entry = vec![0; 8192];
    put(&mut entry, 0, b"loge");
    put(&mut entry, 8, &8192u32.to_le_bytes());
    put(&mut entry, 12, &tail.to_le_bytes());
    put(&mut entry, 16, &sequence.to_le_bytes());
    put(&mut entry, 24, &2u32.to_le_bytes());
    put(&mut entry, 32, &LOG_GUID);
    put(&mut entry, 48, &length.to_le_bytes());
    put(&mut entry, 56, &length.to_le_bytes());
    put(&mut entry, 64, b"desc");
    put(&mut entry, 68, &page[4092..]);
    put(&mut entry, 72, &page[..8]);
    put(&mut entry, 80, &place.to_le_bytes());
    put(&mut entry, 88, &sequence.to_le_bytes());
    put(&mut entry, 96, b"zero");
    put(&mut entry, 104, &4096u64.to_le_bytes());
    put(&mut entry, 112, &zeros.to_le_bytes());
    put(&mut entry, 120, &sequence.to_le_bytes());
    put(&mut entry, 4096, b"data");
    put(&mut entry, 4100, &((sequence >> 32) as u32).to_le_bytes());
    put(&mut entry, 4104, &page[8..4092]);
    put(&mut entry, 8188, &(sequence as u32).to_le_bytes());
    let sum = crc32c(&entry);
    put(&mut entry, 4, &sum.to_le_bytes());
    entry
}

/// Where the table of blocks is: the region table names it by its GUID.
fn blocks_at(image: &[u8]) -> usize {
    let guid = [0x66, 0x77, 0xc2, 0x2d];
    let entry = (192 << 10) + image[192 << 10..].windows(4).position(|four| four == guid).unwrap();
    number(image, entry + 16, 8) as usize
}

/// A log whose newest chain has two entries and goes round the end: the first breaks the page of the
/// table of blocks, the second puts it right. Older and torn entries lie beside.
fn with_log(image: &[u8]) -> (Vec<u8>, usize) {
    let mut bytes = image.to_vec();
    let (log_length, log) = (number(image, 65536 + 68, 4) as usize, number(image, 65536 + 72, 8) as usize);
    let blocks = blocks_at(image);
    let page = image[blocks..blocks + 4096].to_vec();
    bytes[blocks..blocks + 4096].fill(0xaf);
    // What the log zeroes: a page of the table that so small a disk has no use for.
    let spare = (blocks + (64 << 10)) as u64;
    let length = image.len() as u64;
    let tail = (log_length - 4096) as u32;
    let entry = |sequence, page: &[u8]| log_entry(sequence, tail, blocks as u64, page, spare, length);
    let first = entry(1 << 33, &[0xbf; 4096]);
    put(&mut bytes, log + log_length - 4096, &first[..4096]);
    put(&mut bytes, log, &first[4096..]);
    put(&mut bytes, log + 4096, &entry((1 << 33) + 1, &page));
    let mut torn = entry((1 << 33) + 2, &[0xcf; 4096]);
    torn[5000] ^= 1;
    put(&mut bytes, log + 4096 + 8192, &torn);
    put(&mut bytes, log + (64 << 10), &log_entry(5, 64 << 10, blocks as u64, &[0xdf; 4096], spare, length));
    for header in [65536, 131072] {
        put(&mut bytes, header + 48, &LOG_GUID);
        bytes[header + 4..header + 8].fill(0);
        let sum = crc32c(&bytes[header..header + 4096]);
        put(&mut bytes, header + 4, &sum.to_le_bytes());
    }
    (bytes, log)
}

#[test]
fn a_log_is_replayed_in_memory_as_qemu_replays_it() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("image");
    let content = mixture(5 * MIB, 14);
    converted(&folder, "vhdx -o block_size=1M", &content);
    let (bytes, log) = with_log(&std::fs::read(&path).unwrap());
    std::fs::write(&path, &bytes).unwrap();
    let disk = opened(&path, Format::Vhdx);
    assert!(disk.notes()[0].contains("2 pages"), "{:?}", disk.notes());
    conformance::check_reader(&disk, &content);
    assert!(std::fs::read(&path).unwrap() == bytes, "the file stays as it is");
    // Without the newest entry the one before it counts, whose page is nonsense.
    let mut torn = bytes.clone();
    torn[log + 4096 + 100] ^= 1;
    std::fs::write(&path, &torn).unwrap();
    let error = read_all(&opened(&path, Format::Vhdx)).err();
    assert_eq!(error.map(|error| error.kind), Some(DiskErrorKind::Corrupt));
    // A file that was cut since is told.
    let mut short = bytes.clone();
    short.truncate(bytes.len() - MIB);
    std::fs::write(&path, &short).unwrap();
    assert!(refused(&path, Format::Vhdx).1.contains("cut short"));
    std::fs::write(&path, &bytes).unwrap();
    folder.qemu_img("check -q -r all -f vhdx image");
    assert!(folder.content("vhdx", "image") == content, "QEMU reads the same from it");
}

#[test]
fn a_log_that_lies_does_no_harm() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("image");
    converted(&folder, "vhdx -o block_size=1M", &mixture(MIB, 15));
    let (bytes, log) = with_log(&std::fs::read(&path).unwrap());
    for at in (0..128).step_by(4) {
        for value in [0u32, 1, 4096, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let mut bytes = bytes.clone();
            let start = log + 4096;
            put(&mut bytes, start + at, &value.to_le_bytes());
            if at != 4 {
                bytes[start + 4..start + 8].fill(0);
                let sum = crc32c(&bytes[start..start + 8192]);
                put(&mut bytes, start + 4, &sum.to_le_bytes());
            }
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(disk) = drover_image::open(&path, Format::Vhdx, &drover_image::OpenOptions::default()) {
                let _ = read_all(&disk);
            }
        }
    }
}
