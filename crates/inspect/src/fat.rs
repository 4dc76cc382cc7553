//! What boots from an EFI system partition: folders of a FAT, by their short names.
//!
//! ```text
//! 11 bytes of a sector (u16), 13 sectors of a cluster (u8), 14 sectors before the tables (u16), 16 tables (u8), 17 entries of the
//! root folder (u16, 0 on FAT32), 19 sectors (u16, or u32 at 32), 22 sectors of a table (u16, or u32 at 36 on FAT32), 44 first
//! cluster of the root folder (u32, FAT32)
//! entry of 32 bytes: 0 name (8) and ending (3), 11 attributes (0x10 folder, 0x08 no file), 20 and 26 first cluster (high, low)
//! ```
//!
//! Source: Microsoft, "FAT32 File System Specification" 1.03; what decides between FAT12 and FAT16 is the number of clusters.

use drover_types::guest::EfiPartition;

use crate::read::Part;

/// What of an EFI system partition decides whether a firmware without boot entries starts something.
pub(crate) fn loaders(part: &Part) -> Result<EfiPartition, String> {
    let fat = Fat::read(part)?;
    let folder =
        |entries: &[Entry], name: &str| entries.iter().find(|it| it.is_folder && it.name() == name).copied();
    let Some(efi) = folder(&fat.root()?, "EFI") else { return Ok(EfiPartition::default()) };
    let entries = fat.folder(efi.cluster)?;
    let has_fallback = match folder(&entries, "BOOT") {
        Some(boot) => fat.folder(boot.cluster)?.iter().any(|it| !it.is_folder && it.name() == "BOOTX64.EFI"),
        None => false,
    };
    let is_loader = |it: &&Entry| it.is_folder && !it.name().starts_with('.') && it.name() != "BOOT";
    let folders = entries.iter().filter(is_loader).map(|it| it.name()).take(LOADERS_MAX).collect();
    Ok(EfiPartition { has_fallback, folders })
}

struct Fat<'a> {
    part: &'a Part,
    /// Bits of an entry of the table.
    bits: u32,
    table: u64,
    cluster_bytes: u64,
    /// Where the clusters begin; the first has the number 2.
    data: u64,
    clusters: u64,
    root: Root,
}

enum Root {
    At { offset: u64, bytes: u64 },
    Cluster(u32),
}

#[derive(Clone, Copy)]
struct Entry {
    short: [u8; 11],
    is_folder: bool,
    cluster: u32,
}

impl Entry {
    /// `BOOTX64.EFI`; what is no plain letter is a `?`.
    fn name(&self) -> String {
        let plain = |bytes: &[u8]| -> String {
            let letter =
                |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' };
            bytes.iter().map(letter).collect::<String>().trim_end().to_string()
        };
        let (name, ending) = (plain(&self.short[..8]), plain(&self.short[8..]));
        if ending.is_empty() { name } else { format!("{name}.{ending}") }
    }
}

impl<'a> Fat<'a> {
    fn read(part: &'a Part) -> Result<Fat<'a>, String> {
        let mut boot = [0; 512];
        part.read_at(0, &mut boot).map_err(|error| error.to_string())?;
        let short = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
        let word = |at: usize| u32::from_le_bytes(boot[at..at + 4].try_into().unwrap_or_default());
        let or = |short: u64, long: u32| if short == 0 { u64::from(long) } else { short };
        let (sector, cluster) = (short(11), u64::from(boot[13]));
        if ![512, 1024, 2048, 4096].contains(&sector) || !cluster.is_power_of_two() {
            return Err("its sectors or clusters have no sensible size".into());
        }
        let (is_32, table_sectors) = (short(22) == 0, or(short(22), word(36)));
        let table = short(14) * sector;
        let root = table + u64::from(boot[16]) * table_sectors * sector;
        let root_bytes = (short(17) * 32).next_multiple_of(sector);
        let data = root + if is_32 { 0 } else { root_bytes };
        let end = (or(short(19), word(32)) * sector).min(part.size());
        let clusters = end.saturating_sub(data) / (cluster * sector);
        let bits = match (is_32, clusters) {
            (true, _) => 32,
            (false, ..4085) => 12,
            (false, _) => 16,
        };
        let root = if is_32 { Root::Cluster(word(44)) } else { Root::At { offset: root, bytes: root_bytes } };
        Ok(Fat { part, bits, table, cluster_bytes: cluster * sector, data, clusters, root })
    }

    fn root(&self) -> Result<Vec<Entry>, String> {
        match self.root {
            Root::Cluster(first) => self.folder(first),
            Root::At { offset, bytes } => Ok(entries(&self.bytes(offset, bytes.min(FOLDER_BYTES_MAX))?)),
        }
    }

    fn folder(&self, first: u32) -> Result<Vec<Entry>, String> {
        let (mut cluster, mut content) = (u64::from(first), Vec::new());
        // A chain that goes in circles ends at the bound.
        while (2..self.clusters + 2).contains(&cluster) && (content.len() as u64) < FOLDER_BYTES_MAX {
            content.extend(self.bytes(self.data + (cluster - 2) * self.cluster_bytes, self.cluster_bytes)?);
            cluster = self.next(cluster)?;
        }
        Ok(entries(&content))
    }

    fn next(&self, cluster: u64) -> Result<u64, String> {
        let at = cluster * u64::from(self.bits) / 8;
        let bytes = self.bytes(self.table + at, if self.bits == 32 { 4 } else { 2 })?;
        let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        Ok(match self.bits {
            12 if cluster % 2 == 1 => value >> 4,
            12 => value & 0xfff,
            16 => value,
            _ => value & 0x0fff_ffff,
        })
    }

    fn bytes(&self, offset: u64, length: u64) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; length as usize];
        self.part.read_at(offset, &mut bytes).map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

/// Those in use, up to the first that never was. Parts of long names have the attributes 0x0f, the label has 0x08.
fn entries(content: &[u8]) -> Vec<Entry> {
    let in_use = content.chunks_exact(32).take_while(|entry| entry[0] != 0);
    let named = in_use.filter(|entry| entry[0] != 0xe5 && entry[11] & 0x08 == 0);
    let entry = |entry: &[u8]| Entry {
        short: entry[..11].try_into().unwrap_or_default(),
        is_folder: entry[11] & 0x10 != 0,
        cluster: u32::from_le_bytes([entry[26], entry[27], entry[20], entry[21]]),
    };
    named.map(entry).collect()
}

/// Many more than such a folder has.
const FOLDER_BYTES_MAX: u64 = 256 << 10;
const LOADERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;

    use super::*;

    /// What mkfs.vfat and mtools make; `None`, after a printed line, without them.
    fn made(options: &str, script: &str) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("mkfs.vfat {options} >&2\nexport MTOOLS_SKIP_CHECK=1\necho x >x\n{script}");
        let made = Command::new("sh")
            .args(["-ec", &format!("command -v mkfs.vfat mmd >&2 || exit 77\n{script}")])
            .env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()))
            .current_dir(folder.path())
            .output()
            .unwrap();
        if made.status.code() == Some(77) {
            println!("skipped: no mkfs.vfat or mtools");
            return None;
        }
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(std::fs::read(folder.path().join("esp")).unwrap())
    }

    fn look(bytes: Vec<u8>) -> Result<EfiPartition, String> {
        let length = bytes.len() as u64;
        loaders(&Part::new(Arc::new(bytes), 0, length))
    }

    #[test]
    fn the_fallback_loader_is_found_on_each_kind_of_fat() {
        // Many files, so that a folder takes several clusters.
        let many = "for i in $(seq 70); do echo; done | awk '{print \"x\" NR}' >names\nmmd -i esp ::/EFI ::/EFI/debian ::/EFI/Microsoft\n\
                    while read name; do cp x $name; done <names\nmcopy -i esp $(cat names) ::/EFI/\nmmd -i esp ::/EFI/BOOT\n";
        for options in ["-F 12 -s 4 -C esp 4096", "-F 16 -s 4 -C esp 40960", "-F 32 -s 1 -C esp 40960"] {
            let Some(without) = made(options, many) else { return };
            let expected =
                EfiPartition { has_fallback: false, folders: vec!["DEBIAN".into(), "MICROS~1".into()] };
            assert_eq!(look(without), Ok(expected.clone()), "{options}");
            let with = made(options, &format!("{many}mcopy -i esp x ::/EFI/BOOT/bootx64.efi\n")).unwrap();
            assert_eq!(look(with), Ok(EfiPartition { has_fallback: true, ..expected }), "{options}");
        }
        assert_eq!(look(made("-F 32 -C esp 40960", "").unwrap()), Ok(EfiPartition::default()));
    }

    #[test]
    fn a_fat_that_lies_is_refused_or_ends() {
        assert!(look(vec![0; 4096]).unwrap_err().contains("no sensible size"));
        let Some(good) = made("-F 16 -s 4 -C esp 40960", "mmd -i esp ::/EFI\n") else { return };
        let mut circle = good.clone();
        // Every cluster's next one is the second.
        let table = 512 * usize::from(u16::from_le_bytes([good[14], good[15]]));
        circle[table..table + 64].copy_from_slice(&[2, 0].repeat(32));
        assert!(look(circle).is_ok());
        let mut far = good;
        far.truncate(64 << 10);
        assert!(look(far).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_fat_makes_it_panic(mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 2048), is_32: bool) {
            (bytes[11], bytes[12], bytes[13]) = (0, 2, 1);
            if is_32 {
                bytes[22..24].fill(0);
            }
            let _ = look(bytes);
        }
    }
}
