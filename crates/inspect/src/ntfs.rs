//! Files of NTFS, read as they lie on the disk: its log is not replayed, so that what changed in the last moments before a snapshot of a
//! guest that runs may be seen as it was before.
//!
//! Integers are little-endian.
//!
//! ```text
//! boot sector: 3 "NTFS    ", 11 bytes of a sector (u16), 13 sectors of a cluster (u8; above 0x80 2^(256 - it)), 40 sectors (u64),
//!   48 first cluster of the file table (u64), 64 clusters of a record of it, 68 of an index record (i8 each; negative: 2^-it bytes)
//! record: 0 "FILE" or "INDX", 4 where the pairs are (u16), 6 how many (u16), 16 sequence number (u16), 20 first attribute (u16),
//!   22 flags (u16, 1: in use), 24 bytes in use (u32), 32 record that it belongs to (u64). The last two bytes of each 512 bytes hold the
//!   first pair, and what belongs there is the next pair
//! attribute: 0 kind (u32, 0xffffffff: no more), 4 length (u32), 8 whether it lies elsewhere (u8), 9 letters of its name (u8), 10 where
//!   that is, 12 flags (u16 each, 0x00ff: compressed, 0x4000: encrypted)
//!   here:      16 bytes (u32), 20 where (u16)
//!   elsewhere: 16 first cluster of it (u64), 32 where its runs are (u16), 48 size, 56 up to where it was written (u64 each)
//! run: how many bytes its length has (low 4 bits) and its place (high 4 bits), the length, the place from that of the run before
//!   (signed; none: a hole); 0 ends
//! list of attributes that other records have: 0 kind (u32), 4 length (u16), 6 letters of the name, 7 where it is (u8 each), 16 the record
//! record's number: 48 bits, and above them its sequence number
//! folder: a tree; its root (0x90) has a node at 16, an index record of 0xa0 at 24
//! node: 0 first entry, 4 end (u32 each, from here)
//! entry: 0 record, 8 length, 10 length of the key, 12 flags (u16 each, 1: the last 8 bytes number a node before it; 2: the last, without
//!   a key), 16 the key, a name: 64 letters (u8), 66 UTF-16
//! ```
//!
//! Source: Linux `fs/ntfs3/ntfs.h`; "NTFS Documentation" of the Linux-NTFS project.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::io;

use crate::read::{Part, ReadAt, u16_at, u32_at, u64_at};

/// A file system.
pub(crate) struct Ntfs {
    on: On,
    /// The file table, which describes itself in its first record.
    table: Stream,
}

/// A file system's clusters.
#[derive(Clone)]
struct On {
    part: Part,
    cluster_bytes: u64,
    clusters: u64,
    record_bytes: usize,
    node_bytes: usize,
}

/// What an attribute of a file holds.
#[derive(Clone)]
pub(crate) struct Stream {
    on: On,
    content: Content,
}

#[derive(Clone)]
enum Content {
    /// In the record itself.
    Here(Vec<u8>),
    /// In runs, by their first clusters.
    Elsewhere { runs: Vec<Run>, size: u64, written: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The first cluster of the file that it has.
    at: u64,
    clusters: u64,
    /// The first cluster of the file system; absent for a hole.
    from: Option<u64>,
}

/// An attribute as it lies in a record.
struct Attribute<'a> {
    kind: u32,
    name: Vec<u16>,
    bytes: &'a [u8],
}

/// What one node tells of a name.
enum Step {
    Found(u64),
    Below(u64),
    Nothing,
}

impl Ntfs {
    /// Reads what finds the files.
    pub(crate) fn load(part: Part) -> Result<Ntfs, String> {
        let mut boot = [0; 512];
        part.read_at(0, &mut boot).map_err(told)?;
        let (on, at) = On::of(part, &boot)?;
        let mut first = vec![0; on.record_bytes];
        on.part.read_at(at, &mut first).map_err(told)?;
        let first = repaired(first, b"FILE")?;
        let begins = attributes(&first)?.into_iter().filter(|it| it.is(DATA, "")).map(|it| it.bytes.to_vec());
        let table = on.stream(begins.collect())?.ok_or("its file table has no content")?;
        let ntfs = Ntfs { on, table };
        // Records of the first piece may tell of more pieces.
        let table = ntfs.attribute(FILE_TABLE, DATA, "")?.ok_or("its file table has no content")?;
        Ok(Ntfs { table, ..ntfs })
    }

    /// Whether Windows wants it checked before it is used.
    pub(crate) fn is_dirty(&self) -> Result<bool, String> {
        let about = self.attribute(VOLUME, VOLUME_INFORMATION, "")?.ok_or("it does not tell its state")?;
        let about = about.whole(64)?;
        let flags = about.get(10..12).ok_or("its state is cut off")?;
        Ok(u16_at(flags, 0) & DIRTY != 0)
    }

    /// Free space by its bitmap; absent where that is so large that reading it takes long.
    pub(crate) fn free_bytes(&self) -> Result<Option<u64>, String> {
        let bitmap = self.attribute(BITMAP, DATA, "")?.ok_or("its bitmap has no content")?;
        let bytes = self.on.clusters.div_ceil(8);
        if bytes > BITMAP_BYTES_MAX {
            return Ok(None);
        }
        let (mut used, mut at) = (0u64, 0);
        while at < bytes {
            let mut piece = vec![0; (bytes - at).min(PIECE_BYTES) as usize];
            bitmap.read_at(at, &mut piece).map_err(told)?;
            at += piece.len() as u64;
            if at == bytes && !self.on.clusters.is_multiple_of(8) {
                // Bits behind the last cluster mean nothing.
                let last = piece.last_mut().ok_or("its bitmap is empty")?;
                *last &= (1 << (self.on.clusters % 8)) - 1;
            }
            used += piece.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        }
        Ok(Some((self.on.clusters - used) * self.on.cluster_bytes))
    }

    /// Whether there is something at a path (`/Windows/System32`), whatever the case of its letters.
    pub(crate) fn has(&self, path: &str) -> Result<bool, String> {
        Ok(self.find(path)?.is_some())
    }

    /// What a file holds; absent if there is none.
    pub(crate) fn file(&self, path: &str) -> Result<Option<Stream>, String> {
        let Some(reference) = self.find(path)? else { return Ok(None) };
        if self.attribute(reference, REPARSE_POINT, "")?.is_some() {
            return Err("it is a link, or packed by Windows".into());
        }
        self.attribute(reference, DATA, "")
    }

    fn find(&self, path: &str) -> Result<Option<u64>, String> {
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match self.child(at, name)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The record of a name in a folder. Names are in the order of their capital letters, of which ASCII's are known here.
    fn child(&self, folder: u64, name: &str) -> Result<Option<u64>, String> {
        let wanted: Vec<u16> = name.encode_utf16().map(capital).collect();
        let Some(root) = self.attribute(folder, INDEX_ROOT, NAMES)? else { return Ok(None) };
        let (mut node, mut at) = (root.whole(NODE_BYTES_MAX)?, 16);
        let mut nodes = None;
        for _ in 0..DEPTH_MAX {
            let number = match step(&node, at, &wanted)? {
                Step::Found(reference) => return Ok(Some(reference)),
                Step::Nothing => return Ok(None),
                Step::Below(number) => number,
            };
            if nodes.is_none() {
                nodes = self.attribute(folder, INDEX_ALLOCATION, NAMES)?;
            }
            let nodes = nodes.as_ref().ok_or_else(nonsense)?;
            (node, at) = (self.on.node(nodes, number)?, 24);
        }
        Err("a folder has more levels than any".into())
    }

    fn record(&self, reference: u64) -> Result<Vec<u8>, String> {
        let (number, sequence) = (reference & NUMBER, (reference >> 48) as u16);
        let at = number.checked_mul(self.on.record_bytes as u64).ok_or_else(nonsense)?;
        let mut bytes = vec![0; self.on.record_bytes];
        self.table.read_at(at, &mut bytes).map_err(|error| format!("record {number}: {error}"))?;
        let bytes = repaired(bytes, b"FILE").map_err(|why| format!("record {number}: {why}"))?;
        let is_it = sequence == 0 || u16_at(&bytes, 16) == sequence;
        if !is_it || u16_at(&bytes, 22) & IN_USE == 0 {
            return Err(format!("record {number} is none that is in use"));
        }
        Ok(bytes)
    }

    /// What an attribute of a file holds, from all records that have a part of it; absent if it has none.
    fn attribute(&self, reference: u64, kind: u32, name: &str) -> Result<Option<Stream>, String> {
        let record = self.record(reference)?;
        let mut pieces = Vec::new();
        let mut others = BTreeSet::new();
        for attribute in attributes(&record)? {
            if attribute.is(kind, name) {
                pieces.push(attribute.bytes.to_vec());
            } else if attribute.kind == ATTRIBUTE_LIST {
                let list = self.on.stream(vec![attribute.bytes.to_vec()])?.ok_or_else(nonsense)?;
                others = holders(&list.whole(LIST_BYTES_MAX)?, kind, name)?;
            }
        }
        others.retain(|other| other & NUMBER != reference & NUMBER);
        if others.len() > RECORDS_MAX {
            return Err("a file lies in too many records".into());
        }
        for other in others {
            let more = self.record(other)?;
            if u64_at(&more, 32) & NUMBER != reference & NUMBER {
                return Err(format!("record {} belongs to another file", other & NUMBER));
            }
            let found = attributes(&more)?.into_iter().filter(|it| it.is(kind, name));
            pieces.extend(found.map(|it| it.bytes.to_vec()));
        }
        self.on.stream(pieces)
    }
}

impl On {
    /// The file system of a boot sector, and where its file table begins.
    fn of(part: Part, boot: &[u8; 512]) -> Result<(On, u64), String> {
        let sector_bytes = u64::from(u16_at(boot, 11));
        let of_cluster = match boot[13] {
            0 => 0,
            count @ 1..=0x80 => u64::from(count),
            power => 1u64.checked_shl(256 - u32::from(power)).unwrap_or(0),
        };
        let cluster_bytes = sector_bytes.saturating_mul(of_cluster);
        let is_sane = [512, 1024, 2048, 4096].contains(&sector_bytes)
            && cluster_bytes.is_power_of_two()
            && cluster_bytes <= CLUSTER_BYTES_MAX;
        if !is_sane {
            return Err("its sectors or clusters have no sensible size".into());
        }
        let clusters = u64_at(boot, 40) / of_cluster;
        if clusters.saturating_mul(cluster_bytes) > part.size() {
            return Err(format!("it claims {clusters} clusters, more than its partition has"));
        }
        let bytes = |at: usize, bytes_max: u64| {
            let bytes = match boot[at] as i8 {
                power @ -16..=-9 => 1 << -power,
                count => cluster_bytes * u64::try_from(count).unwrap_or(0),
            };
            let is_sane = bytes.is_power_of_two() && (512..=bytes_max).contains(&bytes);
            is_sane.then_some(bytes as usize).ok_or("its records have no sensible size")
        };
        let (record_bytes, node_bytes) = (bytes(64, RECORD_BYTES_MAX)?, bytes(68, NODE_BYTES_MAX)?);
        let first = u64_at(boot, 48);
        if first >= clusters {
            return Err(format!("its file table begins in cluster {first} of {clusters}"));
        }
        Ok((On { part, cluster_bytes, clusters, record_bytes, node_bytes }, first * cluster_bytes))
    }

    /// An index record by its number, which counts clusters, or sectors where a cluster is larger than a record.
    fn node(&self, nodes: &Stream, number: u64) -> Result<Vec<u8>, String> {
        let unit = if self.cluster_bytes > self.node_bytes as u64 { 512 } else { self.cluster_bytes };
        let mut bytes = vec![0; self.node_bytes];
        nodes.read_at(number.checked_mul(unit).ok_or_else(nonsense)?, &mut bytes).map_err(told)?;
        repaired(bytes, b"INDX")
    }

    /// The content of an attribute that lies in these pieces; absent without any.
    fn stream(&self, pieces: Vec<Vec<u8>>) -> Result<Option<Stream>, String> {
        let Some(first) = pieces.first() else { return Ok(None) };
        // On the index of a folder these say how new files in it are made.
        let is_data = u32_at(first, 0) == DATA;
        if is_data && pieces.iter().any(|piece| u16_at(piece, 12) & COMPRESSED != 0) {
            return Err("it is compressed by NTFS, which is not read".into());
        }
        if is_data && pieces.iter().any(|piece| u16_at(piece, 12) & ENCRYPTED != 0) {
            return Err("it is encrypted".into());
        }
        if first[8] == 0 {
            let (length, at) = (u32_at(first, 16) as usize, usize::from(u16_at(first, 20)));
            let bytes = first.get(at..).and_then(|rest| rest.get(..length)).ok_or_else(nonsense)?;
            return Ok(Some(Stream { on: self.clone(), content: Content::Here(bytes.to_vec()) }));
        }
        let (mut runs, mut sizes) = (Vec::new(), None);
        for piece in &pieces {
            if piece[8] == 0 || piece.len() < 64 {
                return Err(nonsense());
            }
            let at = u64_at(piece, 16);
            if at == 0 {
                sizes = Some((u64_at(piece, 48), u64_at(piece, 56)));
            }
            self.runs(piece.get(usize::from(u16_at(piece, 32))..).ok_or_else(nonsense)?, at, &mut runs)?;
        }
        runs.sort_by_key(|run| run.at);
        let (size, written) = sizes.ok_or("the first part of a file is not there")?;
        Ok(Some(Stream { on: self.clone(), content: Content::Elsewhere { runs, size, written } }))
    }

    /// Adds runs, the first of which begins at this cluster of the file.
    fn runs(&self, mut bytes: &[u8], mut at: u64, runs: &mut Vec<Run>) -> Result<(), String> {
        let mut place = 0i64;
        loop {
            let (&head, rest) = bytes.split_first().ok_or_else(nonsense)?;
            let (of_length, of_place) = (usize::from(head & 15), usize::from(head >> 4));
            if head == 0 {
                return Ok(());
            }
            if !(1..=8).contains(&of_length) || of_place > 8 || rest.len() < of_length + of_place {
                return Err(nonsense());
            }
            let (length, rest) = rest.split_at(of_length);
            let (step, rest) = rest.split_at(of_place);
            let clusters = length.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
            let mut from = None;
            if let Some(last) = step.last() {
                let sign = if last & 0x80 == 0 { 0 } else { -1i64 };
                let step = step.iter().rev().fold(sign, |value, byte| value << 8 | i64::from(*byte));
                place = place.checked_add(step).ok_or_else(nonsense)?;
                let first = u64::try_from(place).map_err(|_| outside())?;
                if first.checked_add(clusters).is_none_or(|end| end > self.clusters) {
                    return Err(outside());
                }
                from = Some(first);
            }
            if clusters == 0 || runs.len() >= RUNS_MAX {
                return Err("a file has runs of no sensible number".into());
            }
            runs.push(Run { at, clusters, from });
            at = at.checked_add(clusters).ok_or_else(nonsense)?;
            bytes = rest;
        }
    }
}

impl Stream {
    /// All of it, if that is no more than so many bytes.
    pub(crate) fn whole(&self, bytes_max: u64) -> Result<Vec<u8>, String> {
        if self.size() > bytes_max {
            return Err(format!("it has {} bytes, more than such a thing has", self.size()));
        }
        let mut bytes = vec![0; self.size() as usize];
        self.read_at(0, &mut bytes).map_err(told)?;
        Ok(bytes)
    }
}

impl ReadAt for Stream {
    fn size(&self) -> u64 {
        match &self.content {
            Content::Here(bytes) => bytes.len() as u64,
            Content::Elsewhere { size, .. } => *size,
        }
    }

    fn read_at(&self, mut offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        let (runs, size, written) = match &self.content {
            Content::Here(content) => return content.read_at(offset, bytes),
            Content::Elsewhere { runs, size, written } => (runs, *size, *written),
        };
        let beyond = |what: &str| io::Error::new(io::ErrorKind::UnexpectedEof, what);
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > size) {
            return Err(beyond("it lies past the end of the file"));
        }
        while !bytes.is_empty() && offset < written {
            let cluster = offset / self.on.cluster_bytes;
            let before = runs.partition_point(|run| run.at <= cluster).checked_sub(1);
            let run = before.map(|index| runs[index]).filter(|run| cluster - run.at < run.clusters);
            let run = run.ok_or_else(|| beyond("a part of the file is not there"))?;
            let inside = offset - run.at * self.on.cluster_bytes;
            let left = run.clusters.saturating_mul(self.on.cluster_bytes) - inside;
            let length = left.min(bytes.len() as u64).min(written - offset) as usize;
            let (now, later) = std::mem::take(&mut bytes).split_at_mut(length);
            match run.from {
                Some(from) => self.on.part.read_at(from * self.on.cluster_bytes + inside, now)?,
                None => now.fill(0),
            }
            (bytes, offset) = (later, offset + length as u64);
        }
        // What was never written is zeros, whatever lies there.
        bytes.fill(0);
        Ok(())
    }
}

impl Attribute<'_> {
    fn is(&self, kind: u32, name: &str) -> bool {
        self.kind == kind && self.name.iter().copied().eq(name.encode_utf16())
    }
}

/// A record with the bytes in their places that its writer put elsewhere, to see later whether all of it was written.
fn repaired(mut record: Vec<u8>, magic: &[u8; 4]) -> Result<Vec<u8>, String> {
    if &record[..4] != magic {
        return Err("it does not begin as a record does".into());
    }
    let (at, count) = (usize::from(u16_at(&record, 4)), usize::from(u16_at(&record, 6)));
    let pairs = record.get(at..at + 2 * count).filter(|_| count == record.len() / 512 + 1);
    let pairs = pairs.ok_or("a record makes no sense")?.to_vec();
    let (mark, pairs) = pairs.split_at(2);
    for (sector, pair) in record.chunks_exact_mut(512).zip(pairs.chunks_exact(2)) {
        if sector[510..] != *mark {
            return Err("a record was written in part only".into());
        }
        sector[510..].copy_from_slice(pair);
    }
    Ok(record)
}

fn attributes(record: &[u8]) -> Result<Vec<Attribute<'_>>, String> {
    let mut at = usize::from(u16_at(record, 20));
    let mut found = Vec::new();
    loop {
        let head = record.get(at..at + 4).ok_or_else(nonsense)?;
        if u32_at(head, 0) == NO_MORE {
            return Ok(found);
        }
        let rest = record.get(at..at + 8).ok_or_else(nonsense)?;
        let length = u32_at(rest, 4) as usize;
        let bytes = record[at..].get(..length).filter(|bytes| bytes.len() >= ATTRIBUTE_BYTES_MIN);
        let bytes = bytes.ok_or_else(nonsense)?;
        let name = name_at(bytes, usize::from(u16_at(bytes, 10)), bytes[9])?;
        found.push(Attribute { kind: u32_at(head, 0), name, bytes });
        at += length;
    }
}

/// A name of so many letters.
fn name_at(bytes: &[u8], at: usize, letters: u8) -> Result<Vec<u16>, String> {
    let name = bytes.get(at..at + 2 * usize::from(letters)).ok_or_else(nonsense)?;
    Ok(name.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect())
}

/// The records that a list says to have a part of an attribute.
fn holders(mut list: &[u8], kind: u32, name: &str) -> Result<BTreeSet<u64>, String> {
    let mut found = BTreeSet::new();
    while list.len() >= LISTED_BYTES_MIN {
        let length = usize::from(u16_at(list, 4));
        if length < LISTED_BYTES_MIN || length > list.len() {
            return Err(nonsense());
        }
        let is_it = u32_at(list, 0) == kind
            && name_at(&list[..length], usize::from(list[7]), list[6])?.into_iter().eq(name.encode_utf16());
        if is_it {
            found.insert(u64_at(list, 16));
        }
        list = &list[length..];
    }
    Ok(found)
}

fn step(node: &[u8], at: usize, wanted: &[u16]) -> Result<Step, String> {
    let head = node.get(at..at + 16).ok_or_else(nonsense)?;
    let (first, end) = (u32_at(head, 0) as usize, u32_at(head, 4) as usize);
    let mut left = node[at..].get(first..end).ok_or_else(nonsense)?;
    loop {
        let length = left.get(8..10).map(|bytes| usize::from(u16_at(bytes, 0)));
        let entry = length.filter(|length| *length >= 16).and_then(|length| left.get(..length));
        let entry = entry.ok_or_else(nonsense)?;
        let flags = u16_at(entry, 12);
        if flags & LAST == 0 {
            let letters = *entry.get(16 + 64).ok_or_else(nonsense)?;
            let name = name_at(entry, 16 + 66, letters)?;
            match wanted.iter().copied().cmp(name.into_iter().map(capital)) {
                Ordering::Equal => return Ok(Step::Found(u64_at(entry, 0))),
                Ordering::Less => {}
                Ordering::Greater => {
                    left = &left[entry.len()..];
                    continue;
                }
            }
        }
        return match flags & HAS_NODE {
            0 => Ok(Step::Nothing),
            _ if entry.len() < 24 => Err(nonsense()),
            _ => Ok(Step::Below(u64_at(entry, entry.len() - 8))),
        };
    }
}

fn capital(letter: u16) -> u16 {
    u8::try_from(letter).map_or(letter, |letter| u16::from(letter.to_ascii_uppercase()))
}

fn nonsense() -> String {
    "a record makes no sense".into()
}

fn outside() -> String {
    "a file lies outside of its file system".into()
}

fn told(error: io::Error) -> String {
    error.to_string()
}

/// Numbers of records that each has.
const FILE_TABLE: u64 = 0;
const VOLUME: u64 = 3;
const ROOT: u64 = 5;
const BITMAP: u64 = 6;
/// Kinds of attributes.
const ATTRIBUTE_LIST: u32 = 0x20;
const VOLUME_INFORMATION: u32 = 0x70;
const DATA: u32 = 0x80;
const INDEX_ROOT: u32 = 0x90;
const INDEX_ALLOCATION: u32 = 0xa0;
const REPARSE_POINT: u32 = 0xc0;
const NO_MORE: u32 = 0xffff_ffff;
/// The name of a folder's index.
const NAMES: &str = "$I30";
const NUMBER: u64 = (1 << 48) - 1;
const IN_USE: u16 = 1;
const DIRTY: u16 = 1;
const COMPRESSED: u16 = 0x00ff;
const ENCRYPTED: u16 = 0x4000;
const HAS_NODE: u16 = 1;
const LAST: u16 = 2;
const ATTRIBUTE_BYTES_MIN: usize = 24;
const LISTED_BYTES_MIN: usize = 26;
const CLUSTER_BYTES_MAX: u64 = 2 << 20;
/// Records have 1 KiB, or 4 on disks with sectors of 4 KiB.
const RECORD_BYTES_MAX: u64 = 4 << 10;
const NODE_BYTES_MAX: u64 = 64 << 10;
/// As NTFS itself has it.
const LIST_BYTES_MAX: u64 = 256 << 10;
/// A file in 500 records has some 50,000 runs.
const RECORDS_MAX: usize = 512;
const RUNS_MAX: usize = 1 << 18;
/// Of a folder with millions of names it has four or five.
const DEPTH_MAX: usize = 16;
/// Of 1 TiB with the usual clusters of 4 KiB.
const BITMAP_BYTES_MAX: u64 = 32 << 20;
const PIECE_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests;
