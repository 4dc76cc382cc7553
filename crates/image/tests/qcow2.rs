//! qcow2 images as QEMU makes them.
#![allow(clippy::unwrap_used)]

mod support;

use drover_disk::{Disk, DiskErrorKind, conformance};
use drover_image::{Format, OpenOptions, References, open, probe};
use drover_types::{ByteSpan, Extent};
use support::{Folder, Random, has_qemu, mixture, opened, read_all, refused};

const MIB: usize = 1 << 20;

#[test]
fn every_kind_of_image_reads_as_qemu_reads_it() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let bytes = mixture(9 * MIB + 512, 1);
    std::fs::write(folder.file("a.raw"), &bytes).unwrap();
    for options in [
        "-o compat=0.10",
        "-o compat=1.1",
        "-o cluster_size=512",
        "-o cluster_size=2M",
        "-o cluster_size=4k,lazy_refcounts=on",
        "-o extended_l2=on",
        "-o extended_l2=on,cluster_size=16k",
        "-o preallocation=metadata",
        "-o preallocation=falloc",
        "-o preallocation=full,extended_l2=on,cluster_size=128k",
        "-o data_file=a.data",
        "-o data_file=a.data,data_file_raw=on",
        "-o data_file=a.data,extended_l2=on",
        "-c",
        "-c -o compat=0.10",
        "-c -o cluster_size=512",
        "-c -o cluster_size=2M",
        "-c -o compression_type=zstd",
        "-c -o compression_type=zstd,cluster_size=2M",
        "-c -o compression_type=zstd,extended_l2=on,cluster_size=32k",
    ] {
        println!("{options}");
        folder.qemu_img(&format!("convert -f raw -O qcow2 {options} a.raw a.qcow2"));
        let disk = opened(&folder.file("a.qcow2"), Format::Qcow2);
        conformance::check_reader(&disk, &bytes);
        assert!(disk.notes().is_empty() && disk.chain_length() == 1);
        assert_eq!(probe(folder.file("a.qcow2")).unwrap(), Format::Qcow2);
        std::fs::remove_file(folder.file("a.qcow2")).unwrap();
        let _ = std::fs::remove_file(folder.file("a.data"));
    }
}

#[test]
fn an_empty_image_is_one_hole_however_large() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    for (size, options) in [("0", "cluster_size=64k"), ("6T", "cluster_size=64k"), ("1P", "cluster_size=2M")]
    {
        folder.qemu_img(&format!("create -q -f qcow2 -o {options} a.qcow2 {size}"));
        let disk = opened(&folder.file("a.qcow2"), Format::Qcow2);
        let mut at = 0;
        let mut answers = 0;
        while at < disk.size() {
            let extents = disk.extents(ByteSpan::from_bounds(at, disk.size())).unwrap();
            assert_eq!(extents, [Extent::zero(ByteSpan::new(at, extents[0].span.length))]);
            at = extents[0].span.end();
            answers += 1;
        }
        assert!(answers <= 10, "{answers} answers for {size}");
    }
}

/// Random writes, zeros and discards through QEMU, over chains of random kinds of images.
#[test]
fn random_chains_read_as_qemu_reads_them() {
    if !has_qemu() {
        return;
    }
    for seed in 0..24 {
        println!("seed {seed}");
        let folder = Folder::new();
        random_chain(&folder, &mut Random(seed));
    }
}

fn random_chain(folder: &Folder, random: &mut Random) {
    let layers = 1 + random.below(4);
    for layer in 0..layers {
        let size = 512 * (2000 + random.below(5000));
        let cluster_bits = 9 + random.below(13);
        let mut options = format!("cluster_size={}", 1u64 << cluster_bits);
        let old = random.below(5) == 0;
        if old {
            options += ",compat=0.10";
        } else {
            options += if cluster_bits >= 14 && random.below(2) == 0 { ",extended_l2=on" } else { "" };
            options += if random.below(2) == 0 { ",compression_type=zstd" } else { "" };
        }
        let name = format!("{layer}.qcow2");
        let below = if layer == 0 { String::new() } else { format!("-b {}.qcow2 -F qcow2 ", layer - 1) };
        folder.qemu_img(&format!("create -q -f qcow2 {below}-o {options} {name} {size}"));
        let mut commands = vec!["-f".to_string(), "qcow2".to_string()];
        let cluster = 1 << cluster_bits;
        // QEMU refuses to compress over what is allocated, so that comes first, each cluster once.
        let packed = (0..size / cluster).filter(|_| random.below(4) == 0).take(30);
        let packed: Vec<u64> = packed.collect();
        for index in packed {
            let byte = 1 + random.below(255);
            commands.extend(["-c".to_string(), format!("write -c -P {byte} {} {cluster}", index * cluster)]);
        }
        for _ in 0..random.below(60) {
            commands.extend(["-c".to_string(), random_write(random, size)]);
        }
        commands.push(name);
        folder.run("qemu-io", &commands.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let top = format!("{}.qcow2", layers - 1);
    let disk = folder.agrees(Format::Qcow2, "qcow2", &top);
    assert_eq!(disk.chain_length() as u64, layers);
    assert_eq!(read_all(&disk).unwrap(), folder.content("qcow2", &top));
}

fn random_write(random: &mut Random, size: u64) -> String {
    let offset = random.below(size / 512) * 512;
    let length = (1 + random.below(400)) * 512;
    let length = length.min(size - offset);
    let byte = 1 + random.below(255);
    match random.below(5) {
        0 => format!("write -z {offset} {length}"),
        1 => format!("write -z -u {offset} {length}"),
        2 => format!("discard {offset} {length}"),
        _ => format!("write -P {byte} {offset} {length}"),
    }
}

fn with_backing(folder: &Folder, name: &str, format: &str) {
    folder.qemu_img("create -q -f qcow2 a.qcow2 1M");
    folder.qemu_img(&format!("rebase -u -F {format} -b {name} a.qcow2"));
}

#[test]
fn backing_files_are_followed_only_where_the_rule_allows() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    std::fs::create_dir(folder.file("in")).unwrap();
    std::fs::create_dir(folder.file("in/sub")).unwrap();
    let bytes = mixture(MIB, 2);
    std::fs::write(folder.file("secret"), &bytes).unwrap();
    std::fs::write(folder.file("in/sub/fine"), &bytes).unwrap();
    std::os::unix::fs::symlink("../secret", folder.file("in/link")).unwrap();
    let inner = folder.file("in/sub/fine").display().to_string();
    let outer = folder.file("secret").display().to_string();
    for (name, allowed) in [
        ("sub/fine", true),
        ("./sub/../sub/fine", true),
        (inner.as_str(), true),
        ("../secret", false),
        ("link", false),
        (outer.as_str(), false),
        ("/etc/shadow", false),
    ] {
        with_backing(&folder, name, "raw");
        let path = folder.file("in/a.qcow2");
        std::fs::rename(folder.file("a.qcow2"), &path).unwrap();
        if allowed {
            conformance::check_reader(&opened(&path, Format::Qcow2), &bytes);
            let none = OpenOptions { references: References::None, ..OpenOptions::default() };
            assert_eq!(open(&path, Format::Qcow2, &none).err().unwrap().kind, DiskErrorKind::Denied);
            continue;
        }
        let (kind, text) = refused(&path, Format::Qcow2);
        assert!(kind == DiskErrorKind::Denied && text.contains("outside"), "{name}: {text}");
        if name != "/etc/shadow" {
            let anywhere = OpenOptions { references: References::Anywhere, ..OpenOptions::default() };
            let disk = open(&path, Format::Qcow2, &anywhere).unwrap();
            conformance::check_reader(&disk, &bytes);
        }
    }
}

#[test]
fn backing_files_that_are_no_plain_path_or_no_file_are_refused() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    for name in ["nbd://host/x", "json:{\"driver\":\"file\"}", "file:a"] {
        with_backing(&folder, name, "raw");
        let (kind, text) = refused(&folder.file("a.qcow2"), Format::Qcow2);
        assert!(kind == DiskErrorKind::Unsupported && text.contains("plain paths"), "{text}");
    }
    with_backing(&folder, "missing", "raw");
    assert_eq!(refused(&folder.file("a.qcow2"), Format::Qcow2).0, DiskErrorKind::Gone);
    with_backing(&folder, ".", "raw");
    assert!(refused(&folder.file("a.qcow2"), Format::Qcow2).1.contains("neither a regular file"));
    with_backing(&folder, "missing", "parallels");
    assert!(refused(&folder.file("a.qcow2"), Format::Qcow2).1.contains("'parallels' is no image format"));
}

#[test]
fn a_backing_file_without_a_stated_format_is_refused_and_one_stated_raw_is_raw() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    folder.qemu_img("create -q -f qcow2 base 1M");
    with_backing(&folder, "base", "raw");
    let path = folder.file("a.qcow2");
    // The base is a qcow2 image inside; a guest could have written that.
    let mut expected = std::fs::read(folder.file("base")).unwrap();
    expected.resize(MIB, 0);
    conformance::check_reader(&opened(&path, Format::Qcow2), &expected);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|four| four == [0xe2, 0x79, 0x2a, 0xca]).unwrap();
    bytes[at] = 0x11;
    std::fs::write(&path, bytes).unwrap();
    let (kind, text) = refused(&path, Format::Qcow2);
    assert!(kind == DiskErrorKind::Unsupported && text.contains("qemu-img rebase"), "{text}");
}

#[test]
fn loops_and_endless_chains_are_refused() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    with_backing(&folder, "a.qcow2", "qcow2");
    assert!(refused(&folder.file("a.qcow2"), Format::Qcow2).1.contains("comes back to"));
    folder.qemu_img("create -q -f qcow2 0 1M");
    for link in 1..40 {
        folder.qemu_img(&format!("create -q -u -f qcow2 -F qcow2 -b {} {link} 1M", link - 1));
    }
    assert_eq!(opened(&folder.file("31"), Format::Qcow2).chain_length(), 32);
    assert!(refused(&folder.file("32"), Format::Qcow2).1.contains("more than 32 images"));
}

#[test]
fn what_is_marked_or_encrypted_is_told() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("a.qcow2");
    folder.qemu_img("create -q -f qcow2 a.qcow2 1M");
    let clean = std::fs::read(&path).unwrap();
    let with = |offset: usize, byte: u8| {
        let mut bytes = clean.clone();
        bytes[offset] = byte;
        std::fs::write(&path, bytes).unwrap();
    };
    with(79, 1);
    assert!(opened(&path, Format::Qcow2).notes()[0].contains("not closed in order"));
    with(79, 2);
    let (kind, text) = refused(&path, Format::Qcow2);
    assert!(kind == DiskErrorKind::Corrupt && text.contains("marked as corrupt"), "{text}");
    with(78, 1);
    assert!(refused(&path, Format::Qcow2).1.contains("bits 8"));
    with(35, 2);
    let (kind, text) = refused(&path, Format::Qcow2);
    assert!(kind == DiskErrorKind::Unsupported && text.contains("encrypted (LUKS)"), "{text}");
    with(0, 0);
    assert!(refused(&path, Format::Qcow2).1.contains("does not start as a qcow2"));
}

#[test]
fn an_internal_snapshot_does_not_change_what_is_read() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    folder.qemu_img("create -q -f qcow2 a.qcow2 4M");
    folder.run("qemu-io", &["-c", "write -P 1 0 2M", "a.qcow2"]);
    folder.qemu_img("snapshot -c before a.qcow2");
    folder.run("qemu-io", &["-c", "write -P 2 1M 2M", "a.qcow2"]);
    folder.agrees(Format::Qcow2, "qcow2", "a.qcow2");
}

#[test]
fn the_identity_changes_with_any_file_of_the_chain_and_not_with_the_path() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    std::fs::write(folder.file("base"), vec![1; MIB]).unwrap();
    with_backing(&folder, "base", "raw");
    let before = opened(&folder.file("a.qcow2"), Format::Qcow2).identity();
    // A rename counts as a change of the file; another path to it does not.
    std::os::unix::fs::symlink("a.qcow2", folder.file("b.qcow2")).unwrap();
    let disk = opened(&folder.file("b.qcow2"), Format::Qcow2);
    assert_eq!(disk.identity(), before);
    let base = std::fs::OpenOptions::new().write(true).open(folder.file("base")).unwrap();
    base.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_ne!(disk.identity(), before);
}

#[test]
fn an_image_that_a_guest_writes_is_refused_unless_that_is_wanted() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("a.qcow2");
    folder.qemu_img("create -q -f qcow2 a.qcow2 1M");
    let mut writer = std::process::Command::new("qemu-io")
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Its prompt comes when the image is open.
    std::io::Read::read_exact(writer.stdout.as_mut().unwrap(), &mut [0; 8]).unwrap();
    let (kind, text) = refused(&path, Format::Qcow2);
    assert!(kind == DiskErrorKind::Denied && text.contains("open for writing"), "{text}");
    let anyway = OpenOptions { in_use: true, ..OpenOptions::default() };
    open(&path, Format::Qcow2, &anyway).unwrap();
    drop(writer.stdin.take());
    writer.wait().unwrap();
    opened(&path, Format::Qcow2);
}

/// Runs a program that needs rights; `None`, and a word about it, if it fails.
fn privileged(program: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(arguments).output().ok();
    let output = output.filter(|output| output.status.success());
    if output.is_none() {
        println!("skipped: {program} {arguments:?} is not possible here");
    }
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Beside a device lie all the disks of the host.
#[test]
fn an_image_on_a_block_device_is_read_but_names_no_files() {
    if !has_qemu() {
        return;
    }
    let folder = Folder::new();
    let content = mixture(MIB, 3);
    std::fs::write(folder.file("a.raw"), &content).unwrap();
    folder.qemu_img("convert -f raw -O qcow2 a.raw plain.qcow2");
    with_backing(&folder, "/dev/null", "raw");
    for (name, readable) in [("plain.qcow2", true), ("a.qcow2", false)] {
        let path = folder.file(name);
        // A device has whole sectors.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4 << 20).unwrap();
        let Some(device) = privileged("losetup", &["--find", "--show", path.to_str().unwrap()]) else {
            return;
        };
        let found = open(&device, Format::Qcow2, &OpenOptions::default());
        let found = found.map(|disk| read_all(&disk).unwrap());
        privileged("losetup", &["--detach", &device]);
        match found {
            Ok(bytes) => assert!(readable && bytes == content),
            Err(error) => assert!(!readable && error.kind == DiskErrorKind::Denied, "{}", error.source),
        }
    }
}
