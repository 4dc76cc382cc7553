//! Partition tables: MBR with its logical partitions, and GPT. Sectors are 512 bytes, as VMware's disks have them.
//!
//! ```text
//! MBR   446  4 entries of 16 bytes: type at 4, first sector at 8 (u32), sectors at 12 (u32); 510 0x55 0xAA
//! GPT   sector 1: "EFI PART", entries from sector (u64 at 72), how many (u32 at 80), bytes of each (u32 at 84)
//!       entry: type GUID at 0, first sector at 32 (u64), last at 40 (u64)
//! ```

use std::io;

use crate::read::{ReadAt, u32_at, u64_at};

/// A disk's partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// In the order of their numbers. A disk without a table is one part of its own, with the number 0.
    pub(crate) parts: Vec<TablePart>,
    /// Whether Windows' Logical Disk Manager has the disk.
    pub(crate) is_dynamic: bool,
    /// Which boot loader the MBR holds.
    pub(crate) boot_code: Option<&'static str>,
}

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TablePart {
    pub(crate) number: usize,
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// Whether it is an EFI system partition.
    pub(crate) is_efi: bool,
}

impl Table {
    pub(crate) fn read(disk: &dyn ReadAt) -> io::Result<Table> {
        let whole = TablePart { number: 0, start: 0, length: disk.size(), is_efi: false };
        let mut mbr = [0; SECTOR as usize];
        if disk.size() < 2 * SECTOR {
            return Ok(Table::default());
        }
        disk.read_at(0, &mut mbr)?;
        // The first sector of a file system has this mark too.
        let is_table = mbr[510..] == [0x55, 0xaa] && !is_boot_sector(&mbr);
        let entries = mbr_entries(&mbr);
        let is_sane = entries.iter().all(|entry| entry.status & 0x7f == 0);
        if !is_table || !is_sane || entries.iter().all(|entry| entry.kind == 0) {
            return Ok(Table { parts: vec![whole], ..Table::default() });
        }
        if entries.iter().any(|entry| entry.kind == PROTECTIVE) {
            return gpt(disk);
        }
        let mut table = Table { boot_code: boot_code(&mbr), ..Table::default() };
        table.is_dynamic = entries.iter().any(|entry| entry.kind == LDM);
        for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.kind != 0) {
            match entry.kind {
                0x05 | 0x0f | 0x85 => logical(disk, entry.start(), &mut table.parts)?,
                LDM => {}
                kind => {
                    let part = within(disk, index + 1, entry.start(), entry.length());
                    table.parts.extend(part.map(|part| TablePart { is_efi: kind == EFI, ..part }));
                }
            }
        }
        Ok(table)
    }
}

#[derive(Clone, Copy)]
struct Entry {
    status: u8,
    kind: u8,
    first: u32,
    sectors: u32,
}

impl Entry {
    fn start(self) -> u64 {
        u64::from(self.first) * SECTOR
    }

    fn length(self) -> u64 {
        u64::from(self.sectors) * SECTOR
    }
}

fn mbr_entries(sector: &[u8; SECTOR as usize]) -> [Entry; 4] {
    std::array::from_fn(|index| {
        let entry = &sector[446 + 16 * index..462 + 16 * index];
        Entry { status: entry[0], kind: entry[4], first: u32_at(entry, 8), sectors: u32_at(entry, 12) }
    })
}

fn is_boot_sector(sector: &[u8]) -> bool {
    [&b"NTFS    "[..], b"-FVE-FS-", b"MSDOS5.0", b"mkfs.fat", b"MSWIN4.1"]
        .iter()
        .any(|name| &sector[3..3 + name.len()] == *name)
}

fn boot_code(mbr: &[u8]) -> Option<&'static str> {
    let has = |word: &[u8]| mbr[..440].windows(word.len()).any(|window| window == word);
    [
        (&b"GRUB"[..], "GRUB"),
        (b"LILO", "LILO"),
        (b"SYSLINUX", "SYSLINUX"),
        (b"Missing operating system", "Windows"),
    ]
    .into_iter()
    .find(|(word, _)| has(word))
    .map(|(_, name)| name)
}

/// Logical partitions form a chain, each link of which names its partition and the next link.
fn logical(disk: &dyn ReadAt, extended: u64, parts: &mut Vec<TablePart>) -> io::Result<()> {
    let mut at = extended;
    for number in 5..5 + LOGICAL_MAX {
        let mut sector = [0; SECTOR as usize];
        if at.checked_add(SECTOR).is_none_or(|end| end > disk.size()) {
            return Ok(());
        }
        disk.read_at(at, &mut sector)?;
        if sector[510..] != [0x55, 0xaa] {
            return Ok(());
        }
        let [own, next, ..] = mbr_entries(&sector);
        if own.kind != 0 {
            parts.extend(within(disk, number, at + own.start(), own.length()));
        }
        if next.kind == 0 || next.first == 0 {
            return Ok(());
        }
        at = extended + next.start();
    }
    Ok(())
}

fn gpt(disk: &dyn ReadAt) -> io::Result<Table> {
    let mut header = [0; SECTOR as usize];
    disk.read_at(SECTOR, &mut header)?;
    if &header[..8] != b"EFI PART" {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its GPT has no header"));
    }
    let (first, count, size) = (u64_at(&header, 72), u32_at(&header, 80), u32_at(&header, 84) as usize);
    if !(128..=4096).contains(&size) || count > GPT_ENTRIES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its GPT has entries of no sensible size"));
    }
    let mut entries = vec![0; count as usize * size];
    let at = first.checked_mul(SECTOR).ok_or(io::ErrorKind::InvalidData)?;
    disk.read_at(at, &mut entries)?;
    let mut table = Table::default();
    for (index, entry) in entries.chunks_exact(size).enumerate() {
        let kind: [u8; 16] = entry[..16].try_into().unwrap_or_default();
        match kind {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => continue,
            LDM_METADATA | LDM_DATA => {
                table.is_dynamic = true;
                continue;
            }
            _ => {}
        }
        let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
        let start = first.checked_mul(SECTOR);
        let length = last.checked_sub(first).and_then(|it| it.checked_add(1)?.checked_mul(SECTOR));
        if let (Some(start), Some(length)) = (start, length) {
            let part = within(disk, index + 1, start, length);
            table.parts.extend(part.map(|part| TablePart { is_efi: kind == EFI_SYSTEM, ..part }));
        }
    }
    Ok(table)
}

/// A part that begins on the disk; what lies past its end is cut off.
fn within(disk: &dyn ReadAt, number: usize, start: u64, length: u64) -> Option<TablePart> {
    let length = length.min(disk.size().saturating_sub(start));
    (length > 0).then_some(TablePart { number, start, length, is_efi: false })
}

const SECTOR: u64 = 512;
const PROTECTIVE: u8 = 0xee;
const LDM: u8 = 0x42;
const EFI: u8 = 0xef;
/// More than any tool makes; a chain that goes in circles ends here.
const LOGICAL_MAX: usize = 64;
const GPT_ENTRIES_MAX: u32 = 512;
/// `5808C8AA-7E8F-42E0-85D2-E1E90434CFB3`
const LDM_METADATA: [u8; 16] =
    [0xaa, 0xc8, 0x08, 0x58, 0x8f, 0x7e, 0xe0, 0x42, 0x85, 0xd2, 0xe1, 0xe9, 0x04, 0x34, 0xcf, 0xb3];
/// `AF9B60A0-1431-4F62-BC68-3311714A69AD`
const LDM_DATA: [u8; 16] =
    [0xa0, 0x60, 0x9b, 0xaf, 0x31, 0x14, 0x62, 0x4f, 0xbc, 0x68, 0x33, 0x11, 0x71, 0x4a, 0x69, 0xad];
/// `C12A7328-F81F-11D2-BA4B-00A0C93EC93B`
const EFI_SYSTEM: [u8; 16] =
    [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b];

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// What sfdisk makes of a script, on a disk of 64 MiB; `None` without it.
    fn disk(script: &str) -> Option<Vec<u8>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        let mut sfdisk = Command::new("sfdisk");
        sfdisk.args(["-q", "--no-reread", "--no-tell-kernel"]).arg(file.path()).stdin(Stdio::piped());
        let Ok(mut child) = sfdisk.spawn() else {
            println!("skipped: no sfdisk");
            return None;
        };
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        Some(std::fs::read(file.path()).unwrap())
    }

    const MIB: u64 = 1 << 20;

    fn parts(table: &Table) -> Vec<(usize, u64, u64)> {
        table.parts.iter().map(|part| (part.number, part.start / MIB, part.length / MIB)).collect()
    }

    #[test]
    fn primary_and_logical_partitions_are_found_by_their_numbers() {
        let script = "label: dos\nstart=1MiB size=8MiB type=83\nstart=9MiB size=50MiB type=5\nstart=10MiB size=4MiB type=83\nstart=20MiB \
                      size=8MiB type=8e\n";
        let Some(disk) = disk(script) else { return };
        let table = Table::read(&disk).unwrap();
        assert_eq!(parts(&table), [(1, 1, 8), (5, 10, 4), (6, 20, 8)]);
        assert!(!table.is_dynamic && !table.parts.iter().any(|part| part.is_efi));
    }

    #[test]
    fn a_gpt_tells_its_partitions_and_what_they_are_for() {
        let script = "label: gpt\nstart=1MiB size=8MiB type=U\nstart=9MiB size=20MiB type=L\n";
        let Some(made) = disk(script) else { return };
        let table = Table::read(&made).unwrap();
        assert_eq!(parts(&table), [(1, 1, 8), (2, 9, 20)]);
        assert!(table.parts[0].is_efi && !table.parts[1].is_efi && !table.is_dynamic);
        let ldm = "label: gpt\nstart=1MiB size=8MiB type=5808C8AA-7E8F-42E0-85D2-E1E90434CFB3\n";
        assert!(Table::read(&disk(ldm).unwrap()).unwrap().is_dynamic);
        let ldm = "label: dos\nstart=1MiB size=8MiB type=42\n";
        assert!(Table::read(&disk(ldm).unwrap()).unwrap().is_dynamic);
    }

    #[test]
    fn a_disk_without_a_table_is_one_part() {
        for fill in [0u8, 0xff] {
            let table = Table::read(&vec![fill; 1 << 20]).unwrap();
            assert_eq!(parts(&table), [(0, 0, 1)]);
        }
        assert_eq!(Table::read(&vec![0u8; 100]).unwrap(), Table::default());
    }

    #[test]
    fn tables_that_lie_lead_nowhere() {
        let Some(mut disk) = disk("label: dos\nstart=1MiB size=8MiB type=5\nstart=20MiB size=8MiB type=83\n")
        else {
            return;
        };
        // The extended partition's chain leads to itself, and the other past the end.
        disk[1 << 20..(1 << 20) + 512].fill(0);
        disk[(1 << 20) + 446 + 16 + 4] = 5;
        disk[(1 << 20) + 446 + 16 + 8] = 0;
        disk[(1 << 20) + 446 + 16 + 9] = 1;
        disk[(1 << 20) + 510..(1 << 20) + 512].copy_from_slice(&[0x55, 0xaa]);
        disk[446 + 16 + 8..446 + 16 + 12].fill(0xff);
        assert_eq!(Table::read(&disk).unwrap().parts, []);
    }

    proptest::proptest! {
        #[test]
        fn no_table_makes_it_panic(mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 4096), is_gpt: bool) {
            bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
            for entry in 0..4 {
                bytes[446 + 16 * entry] &= 0x80;
            }
            if is_gpt {
                bytes[450] = PROTECTIVE;
                bytes[512..520].copy_from_slice(b"EFI PART");
                bytes[584..592].copy_from_slice(&2u64.to_le_bytes());
                bytes[592..596].copy_from_slice(&4u32.to_le_bytes());
                bytes[596..600].copy_from_slice(&128u32.to_le_bytes());
            }
            let _ = Table::read(&bytes);
        }
    }
}
