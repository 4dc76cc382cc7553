//! What a device holds, told by its first and last bytes. For refusing to overwrite it, so rather one
//! signature too many than one too few; never for choosing how to read it.

use std::fmt;

/// Bytes from the start that [`signatures`] looks at: VMFS has its mark at 1 MiB.
pub const HEAD_BYTES: u64 = (1 << 20) + 4096;

/// Bytes before the end: RAID superblocks lie up to 128 KiB before it.
pub const TAIL_BYTES: u64 = 132 << 10;

/// Something that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What it is.
    pub name: &'static str,
    /// Where it lies.
    pub offset: u64,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.name, self.offset)
    }
}

/// Marks at fixed places from the start: name, offset, bytes.
const FIXED: [(&str, usize, &[u8]); 38] = [
    ("qcow2 image", 0, b"QFI\xfb"),
    ("VMDK image", 0, b"KDMV"),
    ("VMDK descriptor", 0, b"# Disk DescriptorFile"),
    ("VHDX image", 0, b"vhdxfile"),
    ("VHD image", 0, b"conectix"),
    ("VDI image", 0x40, b"\x7f\x10\xda\xbe"),
    ("LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("XFS file system", 0, b"XFSB"),
    ("btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("ext2/3/4 file system", 0x438, b"\x53\xef"),
    ("NTFS file system", 3, b"NTFS    "),
    ("exFAT file system", 3, b"EXFAT   "),
    ("BitLocker encrypted volume", 3, b"-FVE-FS-"),
    ("FAT file system", 0x36, b"FAT12   "),
    ("FAT file system", 0x36, b"FAT16   "),
    ("FAT file system", 0x52, b"FAT32   "),
    ("F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
    ("EROFS file system", 0x400, b"\xe2\xe1\xf5\xe0"),
    ("ReiserFS file system", 0x1_0034, b"ReIsEr"),
    ("JFS file system", 0x8000, b"JFS1"),
    ("SquashFS file system", 0, b"hsqs"),
    ("ISO 9660 file system", 0x8001, b"CD001"),
    ("UDF file system", 0x8001, b"BEA01"),
    ("bcache device", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("bcachefs file system", 0x1018, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    ("VMFS volume", 1 << 20, b"\x0d\xd0\x01\xc0"),
    ("Ceph BlueStore", 0, b"bluestore block device"),
    ("Oracle ASM disk", 32, b"ORCLDISK"),
    ("RAID (md 1.1) member", 0, MD_MAGIC),
    ("RAID (md 1.2) member", 4096, MD_MAGIC),
    ("GPT partition table", 512, b"EFI PART"),
    ("GPT partition table", 4096, b"EFI PART"),
    // Swap has its mark at the end of the first page, whatever a page is on the machine that made it.
    ("swap", 4096 - 10, b"SWAPSPACE2"),
    ("swap", 8192 - 10, b"SWAPSPACE2"),
    ("swap", 16384 - 10, b"SWAPSPACE2"),
    ("swap", 65536 - 10, b"SWAPSPACE2"),
    ("hibernated system", 4096 - 10, b"S1SUSPEND"),
    ("hibernated system", 4096 - 10, b"LINHIB0001"),
];

const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";

const SECTOR: usize = 512;

/// What the first [`HEAD_BYTES`] and the last [`TAIL_BYTES`] of a device of `size` bytes say that it
/// holds. Either may be shorter; a device smaller than both gives all its bytes twice.
pub fn signatures(head: &[u8], tail: &[u8], size: u64) -> Vec<Signature> {
    let mut found = Vec::new();
    let fixed = FIXED.iter().filter(|(_, at, mark)| has(head, *at, mark));
    found.extend(fixed.map(|(name, at, _)| Signature { name, offset: *at as u64 }));
    found.extend(lvm(head));
    found.extend(zfs(head));
    found.extend(boot_sector(head, &found));
    found.extend(at_end(tail, size));
    found
}

fn has(bytes: &[u8], at: usize, mark: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(mark))
}

/// An LVM label is in one of the first four sectors.
fn lvm(head: &[u8]) -> Option<Signature> {
    let at = (0..4).map(|sector| sector * SECTOR).find(|at| has(head, *at, b"LABELONE"))?;
    let name = if has(head, at + 24, b"LVM2 001") { "LVM physical volume" } else { "LVM label" };
    Some(Signature { name, offset: at as u64 })
}

/// ZFS writes its uberblocks in turn to slots of 1 KiB from 128 KiB on, in the byte order of its host.
fn zfs(head: &[u8]) -> Option<Signature> {
    let magic = 0x00ba_b10c_u64;
    let slots = (128 << 10..256 << 10).step_by(1024);
    let at = slots
        .into_iter()
        .find(|at| has(head, *at, &magic.to_le_bytes()) || has(head, *at, &magic.to_be_bytes()))?;
    Some(Signature { name: "ZFS pool member", offset: at as u64 })
}

/// An MBR partition table, or a boot sector with no partitions in it, unless what was found before
/// (FAT, NTFS, GPT) has one by nature.
fn boot_sector(head: &[u8], found: &[Signature]) -> Option<Signature> {
    if !has(head, SECTOR - 2, &[0x55, 0xaa]) || !found.is_empty() {
        return None;
    }
    let entry = |number: usize| &head[446 + 16 * number..][..16];
    let is_partition = |entry: &[u8]| entry[0] & 0x7f == 0 && entry[4] != 0;
    let table = (0..4).any(|number| is_partition(entry(number)));
    Some(Signature { name: if table { "MBR partition table" } else { "boot sector" }, offset: 0 })
}

/// What lies at places counted from the end.
fn at_end(tail: &[u8], size: u64) -> Vec<Signature> {
    let start = size - (tail.len() as u64).min(size);
    let md_0_90 = (size / (64 << 10) * (64 << 10)).checked_sub(64 << 10);
    let md_1_0 = (size / 512).checked_sub(16).map(|sectors| sectors / 8 * 8 * 512);
    let gpt_backup = [512, 4096].map(|sector: u64| (size / sector).checked_sub(1).map(|last| last * sector));
    let places: [(&'static str, Option<u64>, &[u8]); 5] = [
        ("RAID (md 0.90) member", md_0_90, MD_MAGIC),
        ("RAID (md 1.0) member", md_1_0, MD_MAGIC),
        ("backup of a GPT partition table", gpt_backup[0], b"EFI PART"),
        ("backup of a GPT partition table", gpt_backup[1], b"EFI PART"),
        ("VHD image", size.checked_sub(512), b"conectix"),
    ];
    let is_there = |at: u64, mark: &[u8]| at >= start && has(tail, (at - start) as usize, mark);
    places
        .into_iter()
        .filter_map(|(name, at, mark)| Some(Signature { name, offset: at.filter(|at| is_there(*at, mark))? }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::{Command, Stdio};

    fn found_in(bytes: &[u8]) -> Vec<Signature> {
        let head = &bytes[..bytes.len().min(HEAD_BYTES as usize)];
        let tail = &bytes[bytes.len() - bytes.len().min(TAIL_BYTES as usize)..];
        signatures(head, tail, bytes.len() as u64)
    }

    fn names_in(bytes: &[u8]) -> Vec<&'static str> {
        found_in(bytes).iter().map(|signature| signature.name).collect()
    }

    #[test]
    fn every_mark_is_found_at_its_place_and_nowhere_else() {
        for (name, at, mark) in FIXED {
            let mut bytes = vec![0; 2 << 20];
            bytes[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(found_in(&bytes), [Signature { name, offset: at as u64 }], "{name}");
            let mut elsewhere = vec![0; 2 << 20];
            elsewhere[at + 1..at + 1 + mark.len()].copy_from_slice(mark);
            assert_eq!(found_in(&elsewhere), [], "{name} one byte further");
            assert_eq!(found_in(&bytes[..at + mark.len() - 1]), [], "{name} cut");
        }
    }

    #[test]
    fn tables_labels_and_ends_are_found() {
        let blank = vec![0u8; 4 << 20];
        let with = |edits: &[(usize, &[u8])]| {
            let mut bytes = blank.clone();
            edits.iter().for_each(|(at, mark)| bytes[*at..at + mark.len()].copy_from_slice(mark));
            names_in(&bytes)
        };
        assert_eq!(with(&[]), Vec::<&str>::new());
        assert_eq!(with(&[(510, b"\x55\xaa")]), ["boot sector"]);
        assert_eq!(with(&[(510, b"\x55\xaa"), (446, b"\x80\0\0\0\x83")]), ["MBR partition table"]);
        assert_eq!(with(&[(510, b"\x55\xaa"), (494, b"\0\0\0\0\x07")]), ["MBR partition table"]);
        assert_eq!(with(&[(512, b"LABELONE"), (536, b"LVM2 001")]), ["LVM physical volume"]);
        assert_eq!(with(&[(1536, b"LABELONE")]), ["LVM label"]);
        assert_eq!(with(&[(130 << 10, &0x00ba_b10c_u64.to_le_bytes())]), ["ZFS pool member"]);
        assert_eq!(with(&[((4 << 20) - 512, b"EFI PART")]), ["backup of a GPT partition table"]);
        assert_eq!(with(&[((4 << 20) - 65536, MD_MAGIC)]), ["RAID (md 0.90) member"]);
        assert_eq!(with(&[((4 << 20) - 8192, MD_MAGIC)]), ["RAID (md 1.0) member"]);
    }

    #[test]
    fn devices_of_any_size_are_looked_at_without_harm() {
        for size in [0, 1, 509, 510, 511, 512, 513, 4095, 4096, 4097, 65536, 70_000] {
            for byte in [0, 0x55, 0xff] {
                found_in(&vec![byte; size]);
            }
        }
    }

    /// What real tools write. A tool that is not installed is a printed skip.
    #[test]
    fn what_real_tools_make_is_found() {
        let path = std::env::temp_dir().join(format!("drover-signature-{}", std::process::id()));
        let at = path.to_str().unwrap();
        let tools: [(&str, &[&str], u64, &str); 13] = [
            ("mkfs.ext4", &["-q", "-F", at], 64, "ext2/3/4 file system"),
            ("mkfs.ext2", &["-q", "-F", at], 64, "ext2/3/4 file system"),
            ("mkfs.xfs", &["-q", "-f", at], 320, "XFS file system"),
            ("mkfs.btrfs", &["-q", "-f", at], 256, "btrfs file system"),
            ("mkfs.vfat", &[at], 64, "FAT file system"),
            ("mkfs.vfat", &["-F", "32", at], 64, "FAT file system"),
            ("mkfs.ntfs", &["-q", "-F", "-Q", at], 64, "NTFS file system"),
            ("mkswap", &[at], 64, "swap"),
            ("mkswap", &["-p", "65536", at], 64, "swap"),
            (
                "cryptsetup",
                &[
                    "luksFormat",
                    "-q",
                    "--type",
                    "luks2",
                    "--pbkdf-force-iterations=4",
                    "--pbkdf-memory=32",
                    "--pbkdf=argon2id",
                    "--key-file=/proc/version",
                    at,
                ],
                64,
                "LUKS encrypted volume",
            ),
            ("qemu-img", &["create", "-q", "-f", "qcow2", at, "64M"], 64, "qcow2 image"),
            ("qemu-img", &["create", "-q", "-f", "vmdk", at, "64M"], 64, "VMDK image"),
            ("qemu-img", &["create", "-q", "-f", "vhdx", at, "64M"], 64, "VHDX image"),
        ];
        for (tool, args, mib, expected) in tools {
            let made = made_by(&path, tool, args, mib);
            let Some(bytes) = made else {
                println!("skipped: {tool} is not installed or made nothing");
                continue;
            };
            assert!(names_in(&bytes).contains(&expected), "{tool} {args:?}: {:?}", names_in(&bytes));
        }
        let _ = std::fs::remove_file(&path);
    }

    fn made_by(path: &Path, tool: &str, args: &[&str], mib: u64) -> Option<Vec<u8>> {
        let _ = std::fs::remove_file(path);
        std::fs::File::create(path).unwrap().set_len(mib << 20).unwrap();
        let folders = "/usr/sbin:/sbin:/usr/bin:/bin";
        let mut command = Command::new(tool);
        command.args(args).env("PATH", folders).stdin(Stdio::null());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
        status.success().then(|| std::fs::read(path).unwrap())
    }
}
