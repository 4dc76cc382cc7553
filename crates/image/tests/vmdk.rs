//! VMDK images as QEMU makes them, and descriptors as ESXi writes them.
#![allow(clippy::unwrap_used)]

mod support;

use drover_disk::{Disk, DiskErrorKind, conformance};
use drover_image::{Format, open_part, probe};
use drover_types::ByteSpan;
use support::{Folder, Random, has_qemu, mixture, opened, read_all, refused};

const MIB: usize = 1 << 20;

#[test]
fn every_subformat_reads_as_qemu_reads_it() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    // Not whole grains: the last one is short.
    let bytes = mixture(9 * MIB + 5 * 512, 3);
    std::fs::write(folder.file("a.raw"), &bytes).unwrap();
    for options in [
        "subformat=monolithicSparse",
        "subformat=monolithicSparse,zeroed_grain=on",
        "subformat=monolithicFlat",
        "subformat=twoGbMaxExtentSparse",
        "subformat=twoGbMaxExtentFlat",
        "subformat=streamOptimized",
    ] {
        println!("{options}");
        folder.qemu_img(&format!("convert -f raw -O vmdk -o {options} a.raw a.vmdk"));
        let disk = opened(&folder.file("a.vmdk"), Format::Vmdk);
        conformance::check_reader(&disk, &bytes);
        assert_eq!(read_all(&disk).unwrap(), bytes);
        assert_eq!(probe(folder.file("a.vmdk")).unwrap(), Format::Vmdk);
        std::fs::remove_file(folder.file("a.vmdk")).unwrap();
    }
}

#[test]
fn a_disk_split_at_two_gigabytes_is_one_disk() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    for kind in ["Sparse", "Flat"] {
        folder.qemu_img(&format!("create -q -f vmdk -o subformat=twoGbMaxExtent{kind} a.vmdk 5G"));
        let at_seams = ["-c", "write -P 1 2147400000 200000", "-c", "write -P 2 4294900000 200000"];
        let name = "driver=vmdk,file.filename=a.vmdk";
        folder.run("qemu-io", &[&at_seams[..], &["--image-opts", name]].concat());
        let disk = opened(&folder.file("a.vmdk"), Format::Vmdk);
        assert_eq!(disk.size(), 5 << 30);
        let mut lane = disk.open_lane().unwrap();
        for (start, byte) in [(2_147_400_000u64, 1u8), (4_294_900_000, 2)] {
            let span = ByteSpan::new(start, 200_000);
            let work = drover_disk::Work::Read(drover_disk::Buffer::zeroed(200_000));
            lane.submit(drover_disk::Request { id: 1, span, work });
            let done = lane.complete().unwrap();
            done.result.unwrap();
            let drover_disk::Work::Read(buffer) = done.work else { panic!() };
            assert!(buffer.iter().all(|found| *found == byte), "{kind} at {start}");
        }
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
        let size = 512 * (2000 + random.below(90_000));
        let zeroed = if random.below(2) == 0 { ",zeroed_grain=on" } else { "" };
        folder.qemu_img(&format!("create -q -f vmdk -o subformat=monolithicSparse{zeroed} a.vmdk {size}"));
        let mut commands: Vec<String> = ["-f", "vmdk"].map(String::from).to_vec();
        for _ in 0..random.below(60) {
            let offset = random.below(size / 512) * 512;
            let length = ((1 + random.below(400)) * 512).min(size - offset);
            let zero =
                if random.below(4) == 0 { "-z".to_string() } else { format!("-P {}", 1 + random.below(255)) };
            commands.extend(["-c".to_string(), format!("write {zero} {offset} {length}")]);
        }
        commands.push("a.vmdk".to_string());
        folder.run("qemu-io", &commands.iter().map(String::as_str).collect::<Vec<_>>());
        folder.agrees(Format::Vmdk, "vmdk", "a.vmdk");
    }
}

fn descriptor(lines: &str) -> String {
    format!(
        "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"vmfs\"\n{lines}\n"
    )
}

#[test]
fn flat_extents_as_copied_off_a_datastore_are_read() {
    let folder = Folder::new();
    let bytes = mixture(2 * MIB, 4);
    std::fs::write(folder.file("web 01-flat.vmdk"), &bytes).unwrap();
    let path = folder.file("web 01.vmdk");
    std::fs::write(&path, descriptor("RW 4096 VMFS \"web 01-flat.vmdk\"")).unwrap();
    conformance::check_reader(&opened(&path, Format::Vmdk), &bytes);
    // In pieces, one of them zeros, one from the middle of the file.
    let lines = "RW 100 VMFS \"web 01-flat.vmdk\" 7\nRW 50 ZERO\nRW 200 FLAT \"web 01-flat.vmdk\" 0";
    std::fs::write(&path, descriptor(lines)).unwrap();
    let pieces = [&bytes[7 * 512..107 * 512], &[0; 50 * 512], &bytes[..200 * 512]];
    conformance::check_reader(&opened(&path, Format::Vmdk), &pieces.concat());
}

#[test]
fn extents_that_are_missing_short_or_elsewhere_are_refused() {
    let folder = Folder::new();
    std::fs::create_dir(folder.file("in")).unwrap();
    std::fs::write(folder.file("in/short"), [0; 511]).unwrap();
    let path = folder.file("in/a.vmdk");
    for (line, kind, text) in [
        ("RW 1 FLAT \"none\"", DiskErrorKind::Gone, "none"),
        ("RW 1 FLAT \"short\"", DiskErrorKind::Corrupt, "511 bytes"),
        ("RW 1 FLAT \"../in/../secret\"", DiskErrorKind::Gone, "secret"),
        ("RW 1 FLAT \"/etc/passwd\"", DiskErrorKind::Denied, "outside"),
        ("RW 1 SPARSE \"short\"", DiskErrorKind::Corrupt, "past the end"),
    ] {
        std::fs::write(&path, descriptor(line)).unwrap();
        let (found, message) = refused(&path, Format::Vmdk);
        assert!(found == kind && message.contains(text), "{line}: {found:?} {message}");
    }
}

#[test]
fn a_delta_needs_its_parent_and_the_parent_as_it_was() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    folder.qemu_img("create -q -f vmdk base.vmdk 4M");
    folder.run("qemu-io", &["-f", "vmdk", "-c", "write -P 1 0 3M", "base.vmdk"]);
    folder.qemu_img("create -q -f vmdk -F vmdk -b base.vmdk a.vmdk");
    folder.run("qemu-io", &["-f", "vmdk", "-c", "write -P 2 1M 1M", "a.vmdk"]);
    let disk = folder.agrees(Format::Vmdk, "vmdk", "a.vmdk");
    assert_eq!(disk.chain_length(), 2);
    folder.run("qemu-io", &["-f", "vmdk", "-c", "write -P 3 0 64k", "base.vmdk"]);
    let (kind, text) = refused(&folder.file("a.vmdk"), Format::Vmdk);
    assert!(kind == DiskErrorKind::Corrupt && text.contains("was changed after"), "{text}");
    std::fs::remove_file(folder.file("base.vmdk")).unwrap();
    let (kind, text) = refused(&folder.file("a.vmdk"), Format::Vmdk);
    assert!(kind == DiskErrorKind::Gone && text.contains("parent 'base.vmdk'"), "{text}");
}

/// Sectors of the directory (56) and its copy (48) in the header.
fn number(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

#[test]
fn lost_tables_are_replaced_by_their_copies() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("a.vmdk");
    let content = mixture(MIB, 5);
    std::fs::write(folder.file("a.raw"), &content).unwrap();
    folder.qemu_img("convert -f raw -O vmdk a.raw a.vmdk");
    let bytes = std::fs::read(&path).unwrap();
    let mut lost = bytes.clone();
    lost[56..64].copy_from_slice(&0x0fff_ffff_u64.to_le_bytes());
    std::fs::write(&path, lost).unwrap();
    let disk = opened(&path, Format::Vmdk);
    assert!(disk.notes()[0].contains("its copy is used"), "{:?}", disk.notes());
    conformance::check_reader(&disk, &content);
    let mut lost = bytes.clone();
    let table = number(&bytes, 56) * 512;
    lost[table..table + 4].copy_from_slice(&0x0fff_ffff_u32.to_le_bytes());
    std::fs::write(&path, &lost).unwrap();
    conformance::check_reader(&opened(&path, Format::Vmdk), &content);
    let copy = number(&bytes, 48) * 512;
    lost[copy..copy + 4].copy_from_slice(&0x0fff_ffff_u32.to_le_bytes());
    std::fs::write(&path, &lost).unwrap();
    let error = read_all(&opened(&path, Format::Vmdk)).unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::Corrupt);
}

/// Makes of QEMU's stream one as VMware writes it: the directory's place is only in the footer.
fn with_footer(stream: &[u8]) -> Vec<u8> {
    let mut bytes = stream.to_vec();
    let footer = stream[..512].to_vec();
    bytes[56..64].fill(0xff);
    let mut marker = [0; 512];
    marker[0] = 1;
    marker[12] = 3;
    [bytes, marker.to_vec(), footer, vec![0; 512]].concat()
}

#[test]
fn a_stream_is_read_at_an_offset_and_damage_in_it_is_found() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let content = mixture(MIB, 6);
    std::fs::write(folder.file("a.raw"), &content).unwrap();
    folder.qemu_img("convert -f raw -O vmdk -o subformat=streamOptimized a.raw a.vmdk");
    let stream = with_footer(&std::fs::read(folder.file("a.vmdk")).unwrap());
    let path = folder.file("archive");
    let part = ByteSpan::new(1536, stream.len() as u64);
    std::fs::write(&path, [&[7; 1536][..], &stream, &[8; 100]].concat()).unwrap();
    conformance::check_reader(&open_part(&path, part, Format::Vmdk).unwrap(), &content);
    let beyond = ByteSpan::new(1537 + 100, stream.len() as u64);
    assert_eq!(open_part(&path, beyond, Format::Vmdk).err().unwrap().kind, DiskErrorKind::Corrupt);
    let short = ByteSpan::new(1536, stream.len() as u64 - 512);
    let error = open_part(&path, short, Format::Vmdk).err().unwrap();
    assert!(error.source.to_string().contains("downloaded in full"), "{}", error.source);
    // One bit anywhere in the first grain shows: in its marker, its stream or its checksum.
    let grain = stream.chunks(512).position(|sector| sector[12] == 0x78).unwrap() * 512;
    let length = u32::from_le_bytes(stream[grain + 8..grain + 12].try_into().unwrap()) as usize;
    for at in (grain..grain + 12 + length).step_by(97).chain([grain + 12 + length - 1]) {
        let mut bytes = stream.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        let disk = open_part(&path, ByteSpan::new(0, stream.len() as u64), Format::Vmdk).unwrap();
        match read_all(&disk) {
            Err(error) => assert_eq!(error.kind, DiskErrorKind::Corrupt, "byte {at}"),
            // A bit of the zlib head that means nothing.
            Ok(bytes) => assert_eq!(bytes, content, "byte {at}"),
        }
    }
}

/// A base of one flat extent, and the descriptor of a delta on it.
fn with_base(folder: &Folder, kind: &str, create_type: &str, sectors: usize) -> Vec<u8> {
    let base = mixture(sectors * 512, 20);
    std::fs::write(folder.file("web-flat.vmdk"), &base).unwrap();
    let text = format!("RW {sectors} VMFS \"web-flat.vmdk\"");
    std::fs::write(folder.file("web.vmdk"), descriptor(&text)).unwrap();
    let delta = format!(
        "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=fffffffe\ncreateType=\"{create_type}\"\n\
         parentFileNameHint=\"web.vmdk\"\nRW {sectors} {kind} \"web-000001-delta.vmdk\"\n"
    );
    std::fs::write(folder.file("web-000001.vmdk"), delta).unwrap();
    base
}

/// Random grains of `grain` sectors: `(number, None)` for zeros, else a byte that fills it.
fn random_grains(random: &mut Random, count: u64, zeros: bool) -> Vec<(u64, Option<u8>)> {
    let mut grains: Vec<(u64, Option<u8>)> = Vec::new();
    for number in 0..count {
        match random.below(6) {
            0 => grains.push((number, Some(1 + random.below(255) as u8))),
            1 if zeros => grains.push((number, None)),
            _ => {}
        }
    }
    grains
}

fn overlaid(base: &[u8], grains: &[(u64, Option<u8>)], grain_bytes: usize) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for (number, byte) in grains {
        let start = *number as usize * grain_bytes;
        let end = (start + grain_bytes).min(bytes.len());
        bytes[start..end].fill(byte.unwrap_or(0));
    }
    bytes
}

#[test]
fn deltas_of_esxi_snapshots_are_read_over_their_base() {
    let folder = Folder::new();
    let sectors = 9000;
    let base = with_base(&folder, "VMFSSPARSE", "vmfsSparse", sectors);
    let grains = random_grains(&mut Random(1), sectors as u64, false);
    let mut image = vec![0; 8 * 512];
    image[..4].copy_from_slice(b"COWD");
    for (at, number) in [(4, 1), (8, 3), (12, sectors), (16, 1), (20, 4), (24, 3)] {
        image[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
    }
    // Three tables of 4096 entries; the middle one is not there.
    let tables = [8usize, 0, 40];
    for (index, sector) in tables.iter().enumerate() {
        image[2048 + index * 4..2052 + index * 4].copy_from_slice(&(*sector as u32).to_le_bytes());
    }
    image.resize(72 * 512, 0);
    let grains: Vec<_> = grains.into_iter().filter(|(number, _)| number / 4096 != 1).collect();
    for (number, byte) in &grains {
        let entry = tables[*number as usize / 4096] * 512 + *number as usize % 4096 * 4;
        let sector = (image.len() / 512) as u32;
        image[entry..entry + 4].copy_from_slice(&sector.to_le_bytes());
        image.extend([byte.unwrap(); 512]);
    }
    std::fs::write(folder.file("web-000001-delta.vmdk"), &image).unwrap();
    let disk = opened(&folder.file("web-000001.vmdk"), Format::Vmdk);
    conformance::check_reader(&disk, &overlaid(&base, &grains, 512));
    assert_eq!(disk.chain_length(), 2);
    if has_qemu() {
        folder.agrees(Format::Vmdk, "vmdk", "web-000001.vmdk");
    }
    let (kind, text) = refused(&folder.file("web-000001-delta.vmdk"), Format::Vmdk);
    assert!(kind == DiskErrorKind::Unsupported && text.contains("open the descriptor"), "{text}");
}

/// Sectors: 0 header, 1 volatile header, 8 directory, 16 tables of 64 sectors, then grains of 8.
fn se_sparse(sectors: usize, grains: &[(u64, Option<u8>)]) -> Vec<u8> {
    let tables = sectors.div_ceil(8 * 4096);
    let grains_offset = 16 + 64 * tables;
    let mut image = vec![0; grains_offset * 512];
    let mut put = |at: usize, number: u64| image[at..at + 8].copy_from_slice(&number.to_le_bytes());
    let numbers = [0xcafe_babe, 0x2_0000_0001, sectors as u64, 8, 64];
    numbers.iter().enumerate().for_each(|(index, number)| put(index * 8, *number));
    for (at, number) in
        [(80, 1), (88, 1), (128, 8), (136, 8), (144, 16), (152, 64 * tables), (192, grains_offset)]
    {
        put(at, number as u64);
    }
    put(512, 0xcafe_cafe);
    (0..tables).for_each(|table| put(8 * 512 + table * 8, 0x1000_0000_0000_0000 | table as u64));
    for (number, byte) in grains {
        let place = 16 * 512 + *number as usize * 8;
        let index = ((image.len() - grains_offset * 512) / 4096) as u64;
        let entry = match byte {
            Some(_) => 0x3 << 60 | (index & 0xfff) << 48 | index >> 12,
            None => (1 + number % 2) << 60,
        };
        image[place..place + 8].copy_from_slice(&entry.to_le_bytes());
        image.extend(byte.iter().flat_map(|byte| [*byte; 4096]));
    }
    image
}

#[test]
fn deltas_of_large_disks_are_read_over_their_base() {
    let folder = Folder::new();
    // So many grains that their numbers need more than twelve bits.
    let sectors = 8 * 4096 * 9 + 8 * 5;
    let base = with_base(&folder, "SESPARSE", "seSparse", sectors);
    let grains = random_grains(&mut Random(2), sectors as u64 / 8, true);
    assert!(grains.iter().filter(|(_, byte)| byte.is_some()).count() > 5000);
    let image = se_sparse(sectors, &grains);
    let path = folder.file("web-000001-delta.vmdk");
    std::fs::write(&path, &image).unwrap();
    let disk = opened(&folder.file("web-000001.vmdk"), Format::Vmdk);
    assert!(read_all(&disk).unwrap() == overlaid(&base, &grains, 4096));
    if has_qemu() {
        assert!(folder.content("vmdk", "web-000001.vmdk") == overlaid(&base, &grains, 4096));
    }
    let mut open = image.clone();
    open[512 + 24] = 1;
    std::fs::write(&path, &open).unwrap();
    let (kind, text) = refused(&folder.file("web-000001.vmdk"), Format::Vmdk);
    assert!(kind == DiskErrorKind::Unsupported && text.contains("journal"), "{text}");
    // Lies.
    for at in (0..208).step_by(4).chain((512..544).step_by(4)).chain([4096, 4100, 8192, 8196]) {
        for value in [0u32, 1, 0x7fff_ffff, u32::MAX] {
            let mut bytes = image.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes.truncate(300_000);
            std::fs::write(&path, &bytes).unwrap();
            let options = drover_image::OpenOptions::default();
            let disk = drover_image::open(folder.file("web-000001.vmdk"), Format::Vmdk, &options);
            let _ = disk.map(|disk| disk.extents(ByteSpan::new(0, disk.size())).is_ok());
        }
    }
}
