//! Logical volumes of LVM2, put together of the physical volumes of all of a guest's disks. Linear ones are read: that is what
//! installers make. Of the others it is told what they are.
//!
//! ```text
//! label, in one of the first four sectors: 0 "LABELONE", 20 offset of the header from here (u32), 24 "LVM2 001"
//! header: 0 UUID (32 letters), 32 size (u64), 40 places of data, then places of metadata: offset and size (u64 each), up to a pair
//!         of zeros for each kind
//! metadata area: 0 sum (u32), 4 " LVM2 x[5A%r0N*>", 20 version 1 (u32), 24 its own offset (u64), 32 its size (u64), 40 places of
//!         texts: offset in the area and size (u64 each), sum and flags (u32 each; 1: not used), up to zeros. The first one
//!         counts. A text that would end behind the area goes on after its first sector
//! ```
//!
//! Integers are little-endian; sums are CRC-32 from another start and not inverted. Source: LVM2 `lib/format_text/layout.h`,
//! `lib/misc/crc.c`.

mod text;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::read::{Part, ReadAt, u32_at, u64_at};
use text::{Section, Value};

/// The physical volumes of a guest.
#[derive(Default)]
pub(crate) struct Physical {
    /// By their UUIDs.
    parts: HashMap<String, Part>,
    /// Groups by their UUIDs, as their newest text has them.
    groups: Vec<Group>,
}

struct Group {
    name: String,
    id: String,
    sequence: u64,
    text: Section,
}

/// A logical volume.
pub(crate) struct Logical {
    /// `rhel/root`
    pub(crate) name: String,
    /// What it holds, or why it is not read.
    pub(crate) content: Result<Part, String>,
    /// The physical volume that it begins in.
    pub(crate) begins_in: Option<String>,
}

impl Physical {
    /// Adds a physical volume; gives its UUID.
    pub(crate) fn add(&mut self, part: Part) -> Result<String, String> {
        let header = Header::read(&part)?;
        let uuid = header.uuid.clone();
        let read = header.areas.iter().filter(|area| area.size > 0).map(|area| area.group(&part));
        let groups: Vec<Result<Option<Group>, String>> = read.collect();
        if self.parts.len() < PARTS_MAX {
            self.parts.insert(uuid.clone(), part);
        }
        // A volume may have no metadata, or two copies of it, of which one is enough.
        let problem = groups.iter().find_map(|group| group.as_ref().err().cloned());
        let found: Vec<Group> = groups.into_iter().filter_map(Result::ok).flatten().collect();
        if let (true, Some(problem)) = (found.is_empty(), problem) {
            return Err(problem);
        }
        for group in found {
            match self.groups.iter_mut().find(|it| it.id == group.id) {
                Some(known) if known.sequence < group.sequence => *known = group,
                Some(_) => {}
                None => self.groups.push(group),
            }
        }
        Ok(uuid)
    }

    /// The logical volumes that people made; those that others are made of are left out.
    pub(crate) fn logical(&self) -> Vec<Logical> {
        self.groups.iter().flat_map(|group| self.of_group(group)).take(LOGICAL_MAX).collect()
    }

    fn of_group(&self, group: &Group) -> Vec<Logical> {
        let Some(volumes) = group.text.section("logical_volumes") else { return Vec::new() };
        let is_visible = |volume: &Section| {
            let status = volume.list("status").unwrap_or_default();
            status.contains(&Value::Text("VISIBLE".into()))
        };
        let visible = volumes.sections().filter(|(_, volume)| is_visible(volume)).take(LOGICAL_MAX);
        let logical = |(name, volume): (&str, &Section)| {
            let name = format!("{}/{name}", group.name);
            let name = name.chars().take(NAME_CHARS_MAX).collect();
            match self.pieces(group, volume) {
                Ok((pieces, begins_in)) => {
                    let volume = Volume::of(pieces);
                    let size = volume.size();
                    Logical { name, content: Ok(Part::new(Arc::new(volume), 0, size)), begins_in }
                }
                Err(why) => Logical { name, content: Err(why), begins_in: None },
            }
        };
        visible.map(logical).collect()
    }

    /// The pieces of a volume in their order, and the physical volume of the first.
    fn pieces(&self, group: &Group, volume: &Section) -> Result<(Vec<Piece>, Option<String>), String> {
        let nonsense = || "its metadata makes no sense".to_string();
        let extent = group.text.number("extent_size").and_then(|sectors| sectors.checked_mul(SECTOR));
        let extent = extent.filter(|bytes| *bytes > 0).ok_or_else(nonsense)?;
        let mut segments: Vec<(u64, &Section)> = volume
            .sections()
            .filter_map(|(_, segment)| Some((segment.number("start_extent")?, segment)))
            .take(SEGMENTS_MAX)
            .collect();
        segments.sort_by_key(|(start, _)| *start);
        let (mut pieces, mut begins_in, mut next) = (Vec::new(), None, 0u64);
        for (start, segment) in segments {
            let kind = segment.text("type").unwrap_or("an unknown type");
            let count = segment.number("extent_count").filter(|count| *count > 0).ok_or_else(nonsense)?;
            if start != next {
                return Err(nonsense());
            }
            let [Value::Text(physical), Value::Number(first)] = segment.list("stripes").unwrap_or_default()
            else {
                let kind: String = kind.chars().take(NAME_CHARS_MAX).collect();
                return Err(format!("it is {kind}, and linear ones alone are looked into"));
            };
            let known = group.text.section("physical_volumes").and_then(|all| all.section(physical));
            let known = known.ok_or_else(nonsense)?;
            let uuid: String = known.text("id").unwrap_or_default().chars().filter(|it| *it != '-').collect();
            let part = self.parts.get(&uuid).ok_or("a part of it lies on a disk that is not there")?;
            let at = first.checked_mul(extent).ok_or_else(nonsense)?;
            let base = known.number("pe_start").and_then(|it| it.checked_mul(SECTOR)).ok_or_else(nonsense)?;
            let at = base.checked_add(at).ok_or_else(nonsense)?;
            let length = count.checked_mul(extent).ok_or_else(nonsense)?;
            if at.checked_add(length).is_none_or(|end| end > part.size()) {
                return Err("it lies past the end of its disk".into());
            }
            begins_in.get_or_insert(uuid);
            pieces.push(Piece { part: part.clone(), at, length });
            next = next.checked_add(count).ok_or_else(nonsense)?;
        }
        if pieces.is_empty() { Err(nonsense()) } else { Ok((pieces, begins_in)) }
    }
}

/// What a physical volume says of itself.
struct Header {
    uuid: String,
    areas: Vec<Area>,
}

/// A place of metadata.
#[derive(Clone, Copy)]
struct Area {
    offset: u64,
    size: u64,
}

impl Header {
    fn read(part: &Part) -> Result<Header, String> {
        let mut head = vec![0; 4 * SECTOR as usize];
        part.head(&mut head).map_err(|error| error.to_string())?;
        let is_label =
            |at: &usize| head[*at..].starts_with(b"LABELONE") && head[at + 24..].starts_with(b"LVM2 001");
        let label = (0..4).map(|sector| sector * SECTOR as usize).find(is_label).ok_or("it has no label")?;
        let header = label + u32_at(&head, label + 20).min(SECTOR as u32) as usize;
        let uuid = head.get(header..header + UUID_BYTES).ok_or("its label points nowhere")?;
        if !uuid.iter().all(u8::is_ascii_alphanumeric) {
            return Err("its UUID makes no sense".into());
        }
        let mut places = head[header + UUID_BYTES + 8..].as_chunks::<16>().0.iter().map(|pair| {
            let (offset, size) = pair.split_at(8);
            Area { offset: u64_at(offset, 0), size: u64_at(size, 0) }
        });
        let is_place = |area: &Area| area.offset != 0;
        // The places of data come first.
        places.by_ref().take_while(is_place).for_each(drop);
        let areas = places.take_while(is_place).take(AREAS_MAX).collect();
        Ok(Header { uuid: String::from_utf8_lossy(uuid).into_owned(), areas })
    }
}

impl Area {
    /// The group that its text describes; nothing if it has no text.
    fn group(self, part: &Part) -> Result<Option<Group>, String> {
        let Some(bytes) = self.text(part)? else { return Ok(None) };
        let text =
            Section::parse(&String::from_utf8_lossy(&bytes)).map_err(|why| format!("its metadata: {why}"))?;
        group_of(text).map(Some).ok_or_else(|| "its metadata describes no group".to_string())
    }

    fn text(self, part: &Part) -> Result<Option<Vec<u8>>, String> {
        let read = |at: u64, bytes: &mut [u8]| part.read_at(at, bytes).map_err(|error| error.to_string());
        let mut head = [0; SECTOR as usize];
        read(self.offset, &mut head)?;
        if &head[4..20] != AREA_MAGIC || u32_at(&head, 20) != 1 || u64_at(&head, 24) != self.offset {
            return Err("its metadata area makes no sense".into());
        }
        let (offset, size, sum, flags) =
            (u64_at(&head, 40), u64_at(&head, 48), u32_at(&head, 56), u32_at(&head, 60));
        if offset == 0 || size == 0 || flags & IGNORED != 0 {
            return Ok(None);
        }
        // What the area itself says of its size is not believed beyond what the label says.
        let area = u64_at(&head, 32).min(self.size);
        if !(SECTOR..area).contains(&offset) || size > (area - SECTOR).min(TEXT_BYTES_MAX) {
            return Err("its metadata lies outside its area".into());
        }
        let mut bytes = vec![0; size as usize];
        let straight = size.min(area - offset) as usize;
        let at = |offset: u64| self.offset.checked_add(offset).ok_or("its metadata area makes no sense");
        read(at(offset)?, &mut bytes[..straight])?;
        read(at(SECTOR)?, &mut bytes[straight..])?;
        if crc(&bytes) != sum {
            return Err("its metadata is damaged: its sum is another".into());
        }
        // It ends with a zero.
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        Ok(Some(bytes))
    }
}

fn group_of(text: Section) -> Option<Group> {
    let (name, group) = text.take_section()?;
    let (id, sequence) = (group.text("id")?.to_string(), group.number("seqno")?);
    Some(Group { name, id, sequence, text: group })
}

/// A run of bytes of a physical volume.
pub(crate) struct Piece {
    pub(crate) part: Part,
    pub(crate) at: u64,
    pub(crate) length: u64,
}

/// Pieces, one behind the other.
pub(crate) struct Volume {
    /// With where they begin in the volume.
    pieces: Vec<(u64, Piece)>,
    size: u64,
}

impl Volume {
    pub(crate) fn of(pieces: Vec<Piece>) -> Volume {
        let mut size = 0u64;
        let placed = pieces.into_iter().map(|piece| {
            let start = size;
            size = size.saturating_add(piece.length);
            (start, piece)
        });
        Volume { pieces: placed.collect(), size }
    }
}

impl ReadAt for Volume {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (mut at, mut left) = (offset, bytes);
        while !left.is_empty() {
            let index = self.pieces.partition_point(|(start, _)| *start <= at);
            let found = index.checked_sub(1).map(|index| &self.pieces[index]);
            let room = |(start, piece): &&(u64, Piece)| piece.length.saturating_sub(at - start);
            let Some((start, piece)) = found.filter(|it| room(it) > 0) else {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it lies past the end of the volume",
                ));
            };
            let inside = at - start;
            let length = (piece.length - inside).min(left.len() as u64);
            let (now, later) = left.split_at_mut(length as usize);
            piece.part.read_at(piece.at + inside, now)?;
            (at, left) = (at + length, later);
        }
        Ok(())
    }
}

/// CRC-32 as LVM has it.
fn crc(bytes: &[u8]) -> u32 {
    let mut sum = 0xf597_a6cf_u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    sum
}

const SECTOR: u64 = 512;
const UUID_BYTES: usize = 32;
const AREA_MAGIC: &[u8; 16] = b" LVM2 x[5A%r0N*>";
const IGNORED: u32 = 1;
/// One at the beginning and one at the end.
const AREAS_MAX: usize = 4;
/// LVM sets 1 MiB aside, of which a text takes less than half.
const TEXT_BYTES_MAX: u64 = 4 << 20;
const PARTS_MAX: usize = 256;
const LOGICAL_MAX: usize = 256;
const SEGMENTS_MAX: usize = 10_000;
const NAME_CHARS_MAX: usize = 200;

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Read;

    use super::*;

    /// The first MiB of two physical volumes of a group, as LVM 2.03 made them, and nothing behind it. `rhel/root` has 20 extents of 128 KiB from
    /// the first's third on and 16 from the second's third on; `rhel/data` is striped.
    pub(crate) fn disks() -> [Vec<u8>; 2] {
        let fixtures =
            [&include_bytes!("../fixtures/lvm-first.gz")[..], include_bytes!("../fixtures/lvm-second.gz")];
        let sizes = [8 << 20, 4 << 20];
        std::array::from_fn(|disk| {
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(fixtures[disk]).read_to_end(&mut bytes).unwrap();
            bytes.resize(sizes[disk], 0);
            bytes
        })
    }

    pub(crate) const EXTENT: usize = 128 << 10;
    pub(crate) const FIRST: usize = 1 << 20;

    fn part(bytes: Vec<u8>) -> Part {
        let size = bytes.len() as u64;
        Part::new(Arc::new(bytes), 0, size)
    }

    fn found(disks: impl IntoIterator<Item = Vec<u8>>) -> Vec<(String, Result<u64, String>)> {
        let mut physical = Physical::default();
        disks.into_iter().for_each(|disk| drop(physical.add(part(disk)).unwrap()));
        let size = |it: Logical| (it.name, it.content.map(|part| part.size()));
        physical.logical().into_iter().map(size).collect()
    }

    #[test]
    fn a_volume_on_two_disks_is_read_in_its_order() {
        let mut disks = disks();
        disks[0][FIRST + 2 * EXTENT..][..4].copy_from_slice(b"here");
        disks[0][FIRST + 22 * EXTENT - 4..][..4].copy_from_slice(b"over");
        disks[1][FIRST + 2 * EXTENT..][..4].copy_from_slice(b"come");
        let mut physical = Physical::default();
        let uuids = disks.map(|disk| physical.add(part(disk)).unwrap());
        let volumes = physical.logical();
        let root = volumes.iter().find(|it| it.name == "rhel/root").unwrap();
        assert_eq!(root.begins_in.as_ref(), Some(&uuids[0]));
        let root = root.content.as_ref().unwrap();
        let mut bytes = [0; 8];
        root.read_at(20 * EXTENT as u64 - 4, &mut bytes).unwrap();
        assert_eq!(&bytes, b"overcome");
        root.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"here\0\0\0\0");
        assert!(root.read_at(36 * EXTENT as u64 - 7, &mut bytes).is_err(), "past its end");
        assert_eq!(
            found(self::disks()),
            [
                ("rhel/swap".to_string(), Ok(2 * EXTENT as u64)),
                ("rhel/root".to_string(), Ok(36 * EXTENT as u64)),
                (
                    "rhel/data".to_string(),
                    Err("it is striped, and linear ones alone are looked into".to_string())
                ),
            ]
        );
    }

    #[test]
    fn a_volume_of_which_a_disk_is_missing_or_cut_is_told() {
        let [first, second] = disks();
        let of_root = |disks: Vec<Vec<u8>>| {
            let found = found(disks).into_iter().find(|(name, _)| name == "rhel/root");
            found.unwrap().1.unwrap_err()
        };
        assert_eq!(of_root(vec![first.clone()]), "a part of it lies on a disk that is not there");
        let cut = first[..3 << 20].to_vec();
        assert!(found([cut.clone()])[0].1.is_ok(), "the swap lies before");
        assert_eq!(of_root(vec![cut, second]), "it lies past the end of its disk");
    }

    #[test]
    fn metadata_that_lies_is_refused() {
        let [good, _] = disks();
        let add = |disk: Vec<u8>| Physical::default().add(part(disk));
        assert!(add(good.clone()).is_ok());
        let text = good.windows(8).rposition(|window| window == b"seqno = ").unwrap();
        for (at, byte, words) in [
            (text, b'S', "its sum is another"),
            (4096 + 5, b'x', "makes no sense"),
            (4096 + 40, 0xff, "its sum is another"),
            (4096 + 46, 1, "lies outside its area"),
            (4096 + 52, 1, "lies outside its area"),
            (512 + 32, b'-', "its UUID makes no sense"),
            (512, b'X', "no label"),
        ] {
            let mut bad = good.clone();
            bad[at] = byte;
            let refused = add(bad).unwrap_err();
            assert!(refused.contains(words), "{words}: {refused}");
        }
        assert!(add(good[..5000].to_vec()).is_err(), "cut");
    }

    proptest::proptest! {
        #[test]
        fn no_damage_makes_it_panic(
            damage in proptest::collection::vec((0usize..16384, proptest::num::u8::ANY), 1..32), sums: bool,
        ) {
            let mut disks = disks();
            for (at, byte) in damage {
                disks[0][at] = byte;
            }
            if sums {
                // So that damaged texts are looked at.
                let (offset, size) = (u64_at(&disks[0], 4096 + 40) as usize, u64_at(&disks[0], 4096 + 48) as usize);
                if let Some(text) = offset.checked_add(4096).and_then(|at| disks[0].get(at..at.checked_add(size)?)) {
                    let sum = crc(text);
                    disks[0][4096 + 56..4096 + 60].copy_from_slice(&sum.to_le_bytes());
                }
            }
            let mut physical = Physical::default();
            disks.into_iter().for_each(|disk| drop(physical.add(part(disk))));
            for volume in physical.logical() {
                if let Ok(part) = volume.content {
                    let _ = part.read_at(part.size() / 2, &mut [0; 4096]);
                }
            }
        }
    }
}
