//! What boots from an EFI system partition: loaders on a FAT, by their names and first bytes.
//!
//! ```text
//! 11 bytes of a sector (u16), 13 sectors of a cluster (u8), 14 sectors before the tables (u16), 16 tables (u8), 17 entries of the
//! root folder (u16, 0 on FAT32), 19 sectors (u16, or u32 at 32), 22 sectors of a table (u16, or u32 at 36 on FAT32), 44 first
//! cluster of the root folder (u32, FAT32)
//! entry of 32 bytes: 0 name (8) and ending (3), 11 attributes (0x10 folder, 0x08 no file, 0x0f part of a long name), 12 case
//! (0x08 name, 0x10 ending: small letters), 20 and 26 first cluster (high, low), 28 size (u32)
//! part of a long name, before the entry, the last part first: 0 number from 1 (0x40: the last), 1, 14 and 28 letters (5, 6 and 2
//! of UTF-16), 13 sum of the short name
//! ```
//!
//! Source: Microsoft, "FAT32 File System Specification" 1.03; what decides between FAT12 and FAT16 is the number of clusters.

use drover_types::guest::EfiPartition;

use crate::read::Part;

/// What of an EFI system partition decides whether a firmware without boot entries starts something.
pub(crate) fn loaders(part: &Part) -> Result<EfiPartition, String> {
    let fat = Fat::read(part)?;
    let Some(efi) = folder_in(&fat.root()?, "EFI") else { return Ok(EfiPartition::default()) };
    let mut found = EfiPartition::default();
    for folder in fat.folder(efi.cluster)?.iter().filter(|it| it.is_folder && !it.name.starts_with('.')) {
        let files = fat.folder(folder.cluster)?;
        if folder.is_called(FALLBACK_FOLDER) {
            found.has_fallback |= fat.loader_of(&files, &[FALLBACK]).is_some();
            continue;
        }
        let place = format!(r"\EFI\{}", shown(&folder.name));
        let loader = match fat.loader_of(&files, LOADERS) {
            Some(loader) => Some(format!(r"{place}\{loader}")),
            // As Windows has it.
            None => match folder_in(&files, FALLBACK_FOLDER) {
                Some(boot) => {
                    let files = fat.folder(boot.cluster)?;
                    fat.loader_of(&files, LOADERS).map(|loader| format!(r"{place}\Boot\{loader}"))
                }
                None => None,
            },
        };
        found.loaders.extend(loader.filter(|_| found.loaders.len() < LOADERS_MAX));
    }
    Ok(found)
}

fn folder_in(entries: &[Entry], name: &str) -> Option<Entry> {
    entries.iter().find(|entry| entry.is_folder && entry.is_called(name)).cloned()
}

/// A guest's name as people may be shown it.
fn shown(name: &str) -> String {
    let letter = |letter: char| if letter.is_ascii_graphic() || letter == ' ' { letter } else { '?' };
    name.chars().take(SHOWN_CHARS_MAX).map(letter).collect()
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

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// The long one, where there is one.
    name: String,
    /// `BOOTX64.EFI`; what is no plain letter is a `?`.
    short: String,
    is_folder: bool,
    cluster: u32,
    bytes: u32,
}

impl Entry {
    fn of(raw: &[u8; 32], long: Option<String>) -> Entry {
        let [name, ending] = [&raw[..8], &raw[8..11]].map(plain);
        // Names in one case have no long name, but say so.
        let cased =
            |text: &str, flag: u8| if raw[12] & flag == 0 { text.into() } else { text.to_ascii_lowercase() };
        let short = joined(&name, &ending);
        Entry {
            name: long.unwrap_or_else(|| joined(&cased(&name, 0x08), &cased(&ending, 0x10))),
            short,
            is_folder: raw[11] & 0x10 != 0,
            cluster: u32::from_le_bytes([raw[26], raw[27], raw[20], raw[21]]),
            bytes: u32::from_le_bytes([raw[28], raw[29], raw[30], raw[31]]),
        }
    }

    fn is_called(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name) || self.short.eq_ignore_ascii_case(name)
    }
}

fn plain(bytes: &[u8]) -> String {
    let letter = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' };
    bytes.iter().map(letter).collect::<String>().trim_end().to_string()
}

fn joined(name: &str, ending: &str) -> String {
    if ending.is_empty() { name.into() } else { format!("{name}.{ending}") }
}

/// A long name, of which parts have come.
struct Long {
    /// Of the short name that it belongs to.
    sum: u8,
    /// Parts that are still to come.
    left: u8,
    letters: Vec<u16>,
}

impl Long {
    /// With one more part; nothing if that belongs to another name.
    fn add(before: Option<Long>, raw: &[u8; 32]) -> Option<Long> {
        let (number, sum) = (raw[0] & 0x3f, raw[13]);
        let before = match raw[0] & 0x40 {
            0 => before.filter(|it| it.left == number && it.sum == sum)?,
            _ => Long { sum, left: number, letters: Vec::new() },
        };
        (1..=LONG_PARTS_MAX).contains(&number).then_some(())?;
        let places = [1..11, 14..26, 28..32];
        let bytes = places.into_iter().flat_map(|place| raw[place].as_chunks::<2>().0);
        let mut letters: Vec<u16> = bytes.map(|pair| u16::from_le_bytes(*pair)).collect();
        letters.extend(before.letters);
        Some(Long { sum, left: number - 1, letters })
    }

    /// The name, if all of it came and it is that of this entry.
    fn of(self, raw: &[u8; 32]) -> Option<String> {
        let sum = raw[..11].iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        (self.left == 0 && self.sum == sum).then_some(())?;
        let end = self.letters.iter().position(|letter| *letter == 0).unwrap_or(self.letters.len());
        Some(String::from_utf16_lossy(&self.letters[..end]))
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

    /// The first of these names that a file has which is a program.
    fn loader_of<'n>(&self, files: &[Entry], names: &[&'n str]) -> Option<&'n str> {
        let is_there = |name: &&&str| files.iter().any(|file| file.is_called(name) && self.is_program(file));
        names.iter().find(is_there).copied()
    }

    /// Whether a file begins as a program does. Source: Microsoft, "PE Format": the stub of MS-DOS.
    fn is_program(&self, file: &Entry) -> bool {
        let cluster = u64::from(file.cluster);
        let is_readable =
            !file.is_folder && file.bytes >= PROGRAM_BYTES_MIN && (2..self.clusters + 2).contains(&cluster);
        is_readable
            && self.bytes(self.data + (cluster - 2) * self.cluster_bytes, 2).is_ok_and(|head| head == b"MZ")
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

/// Those in use, up to the first that never was.
fn entries(content: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut long = None;
    for raw in content.as_chunks::<32>().0.iter().take_while(|raw| raw[0] != 0) {
        let before = long.take();
        match raw[11] {
            _ if raw[0] == 0xe5 => {}
            attributes if attributes & 0x3f == 0x0f => long = Long::add(before, raw),
            // The label.
            attributes if attributes & 0x08 != 0 => {}
            _ => entries.push(Entry::of(raw, before.and_then(|long| long.of(raw)))),
        }
    }
    entries
}

/// What a firmware starts that knows no boot entries.
const FALLBACK_FOLDER: &str = "BOOT";
const FALLBACK: &str = "BOOTX64.EFI";
/// Loaders in folders of their own, the one that is started first before what it starts.
const LOADERS: &[&str] = &[
    "shimx64.efi",
    "shim.efi",
    "grubx64.efi",
    "grub.efi",
    "systemd-bootx64.efi",
    "bootmgfw.efi",
    "elilo.efi",
    "refind_x64.efi",
    "loader.efi",
];
/// The head of MS-DOS that each program of UEFI begins with.
const PROGRAM_BYTES_MIN: u32 = 64;
/// 255 letters.
const LONG_PARTS_MAX: u8 = 20;
const SHOWN_CHARS_MAX: usize = 64;
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
        let script = format!(
            "mkfs.vfat {options} >&2\nexport MTOOLS_SKIP_CHECK=1\necho x >x\n{{ printf MZ; head -c 98 /dev/zero; }} >pe\n{script}"
        );
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
    fn loaders_are_found_on_each_kind_of_fat_whatever_the_case_of_their_names() {
        // Many files, so that a folder takes several clusters.
        let many = "for i in $(seq 70); do echo; done | awk '{print \"x\" NR}' >names\nmmd -i esp ::/EFI ::/EFI/debian ::/EFI/Microsoft\n\
                    while read name; do cp x $name; done <names\nmcopy -i esp $(cat names) ::/EFI/\nmmd -i esp ::/EFI/Boot ::/EFI/Microsoft/Boot\n\
                    mcopy -i esp pe ::/EFI/debian/SHIMX64.EFI\nmcopy -i esp pe ::/EFI/debian/grubx64.efi\n\
                    mcopy -i esp pe ::/EFI/Microsoft/Boot/bootmgfw.efi\nmmd -i esp ::/EFI/systemd\nmcopy -i esp pe ::/EFI/systemd/Systemd-bootx64.efi\n";
        for options in ["-F 12 -s 4 -C esp 4096", "-F 16 -s 4 -C esp 40960", "-F 32 -s 1 -C esp 40960"] {
            let Some(without) = made(options, many) else { return };
            let expected = [
                r"\EFI\debian\shimx64.efi",
                r"\EFI\Microsoft\Boot\bootmgfw.efi",
                r"\EFI\systemd\systemd-bootx64.efi",
            ];
            let expected = EfiPartition { has_fallback: false, loaders: expected.map(String::from).to_vec() };
            assert_eq!(look(without), Ok(expected.clone()), "{options}");
            let with = made(options, &format!("{many}mcopy -i esp pe ::/EFI/BOOT/bootx64.efi\n")).unwrap();
            assert_eq!(look(with), Ok(EfiPartition { has_fallback: true, ..expected }), "{options}");
        }
        assert_eq!(look(made("-F 32 -C esp 40960", "").unwrap()), Ok(EfiPartition::default()));
    }

    #[test]
    fn a_folder_without_a_loader_and_a_file_that_is_no_program_count_for_nothing() {
        let script = "mmd -i esp ::/EFI ::/EFI/BOOT ::/EFI/debian ::/EFI/tools ::/EFI/old ::/EFI/odd\n: >empty\n\
                      mcopy -i esp x ::/EFI/BOOT/BOOTX64.EFI\nmcopy -i esp pe ::/EFI/tools/memtest.efi\nmcopy -i esp empty ::/EFI/old/grubx64.efi\n\
                      mmd -i esp ::/EFI/odd/shimx64.efi\n";
        let Some(made) = made("-F 32 -s 1 -C esp 40960", script) else { return };
        assert_eq!(look(made), Ok(EfiPartition::default()));
    }

    #[test]
    fn a_long_name_counts_for_its_own_entry_alone() {
        let Some(made) = made("-F 16 -s 4 -C esp 40960", "mmd -i esp '::/a long name of a folder'\n") else {
            return;
        };
        let length = made.len() as u64;
        let part = Part::new(Arc::new(made), 0, length);
        let fat = Fat::read(&part).unwrap();
        let Root::At { offset, bytes } = fat.root else { panic!("a FAT16") };
        let content = fat.bytes(offset, bytes).unwrap();
        let found = &entries(&content)[0];
        assert_eq!((found.name.as_str(), found.short.as_str()), ("a long name of a folder", "ALONGN~1"));
        let long = content.as_chunks::<32>().0.iter().position(|raw| raw[11] == 0x0f).unwrap() * 32;
        // Parts that are missing, in another order, or of another entry.
        for (at, byte) in [
            (long, 0x43),
            (long, 0x02),
            (long + 13, !content[long + 13]),
            (long + 32, 0xe5),
            (long + 32, 0x02),
        ] {
            let mut content = content.clone();
            content[at] = byte;
            assert_eq!(entries(&content)[0].name, "ALONGN~1", "{at} {byte:#x}");
        }
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

        /// A good one, of which some bytes were changed.
        #[test]
        fn no_damage_makes_it_panic(
            damage in proptest::collection::vec((0usize..64 << 10, proptest::num::u8::ANY), 1..64),
        ) {
            static GOOD: std::sync::LazyLock<Option<Vec<u8>>> = std::sync::LazyLock::new(|| {
                let script = "mmd -i esp ::/EFI ::/EFI/BOOT '::/EFI/a longer name'\nmcopy -i esp pe ::/EFI/BOOT/BOOTX64.EFI\n\
                              mcopy -i esp pe '::/EFI/a longer name/shimx64.efi'\n";
                made("-F 12 -s 1 -C esp 64", script)
            });
            let Some(mut bytes) = GOOD.clone() else { return Ok(()) };
            damage.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            let _ = look(bytes);
        }
    }
}
