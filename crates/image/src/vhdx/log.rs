//! The log of a VHDX that was not closed in order, replayed in memory: the file stays as it is.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use drover_types::{ByteSpan, Extent};

use super::crc::crc32c;
use super::header::{CHECKSUM, Guid, Header};
use crate::fault::{Numbers, damaged, unsupported};
use crate::source::{ReadAt, read_piece};

/// What of the log, and of the file, is one piece.
const PAGE_BYTES: u64 = 4096;
/// Hyper-V and QEMU make logs of 1 MiB.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// Pages that a log may change: what it holds and what it says is zeros (1 GiB).
const PAGES_MAX: usize = 1 << 18;
/// Entries do not overlap in an honest log, so checking them all costs its length; some are stale.
const CHECKED_BYTES_MAX: u64 = 4 * LOG_BYTES_MAX;

/// An entry, its checksum verified.
///
/// ```text
/// 0 "loge"  4 checksum u32  8 length u32  12 tail u32  16 sequence u64  24 descriptors u32
/// 32 log GUID  48 flushed u64  56 last u64            64 descriptors of 32 bytes, padded to 4 KiB, then data
/// data descriptor   0 "desc"  4 trailing u32  8 leading u64  16 place u64  24 sequence u64
/// zero descriptor   0 "zero"                  8 length u64   16 place u64  24 sequence u64
/// data page         0 "data"  4 sequence, high u32   8 data of 4084 bytes   4092 sequence, low u32
/// ```
/// Source: Microsoft, MS-VHDX, "Log Entries".
struct Entry {
    bytes: Vec<u8>,
    sequence: u64,
    /// Where the oldest entry is that still counts when this is the newest.
    tail: u64,
    /// The file was at least so long when the entry was written.
    flushed: u64,
    /// The file has at least this length when the entry is replayed.
    last: u64,
}

/// The image as it is with its log replayed.
pub(crate) struct Replayed {
    file: Arc<dyn ReadAt>,
    /// By number; absent bytes are zeros.
    pages: BTreeMap<u64, Option<Box<[u8]>>>,
    length: u64,
}

/// Replays the log of that header.
pub(crate) fn replay(file: Arc<dyn ReadAt>, header: &Header) -> io::Result<Replayed> {
    let Header { log, log_version, .. } = header;
    if *log_version != 0 || !log.length.is_multiple_of(1 << 20) || log.length == 0 {
        return Err(unsupported(format!("a log of version {log_version} at {log}")));
    }
    let bytes = read_piece(&*file, "its log", *log, LOG_BYTES_MAX)?;
    let entries = entries(&bytes, &header.log_guid)?;
    let length = file.length();
    let mut replayed = Replayed { file, pages: BTreeMap::new(), length };
    for place in active(&entries, log.length) {
        replayed.apply(&entries[&place])?;
    }
    Ok(replayed)
}

/// All entries that are whole, by their places.
fn entries(log: &[u8], guid: &Guid) -> io::Result<BTreeMap<u64, Entry>> {
    let mut found = BTreeMap::new();
    let mut checked = 0;
    for place in (0..log.len()).step_by(PAGE_BYTES as usize) {
        let head = &log[place..place + 64];
        let length = u64::from(head.le32(8)?);
        let fits = length >= PAGE_BYTES && length.is_multiple_of(PAGE_BYTES) && length <= log.len() as u64;
        if !head.starts_with(b"loge") || head.take(32)? != *guid || !fits {
            continue;
        }
        checked += length;
        if checked > CHECKED_BYTES_MAX {
            return Err(damaged("the entries of its log overlap"));
        }
        // The log is a ring: an entry may begin at its end and go on at its start.
        let bytes: Vec<u8> = log[place..].iter().chain(log).take(length as usize).copied().collect();
        if crc32c(&bytes, CHECKSUM) == head.le32(4)? {
            let (tail, sequence) = (u64::from(head.le32(12)?), head.le64(16)?);
            let (flushed, last) = (head.le64(48)?, head.le64(56)?);
            found.insert(place as u64, Entry { bytes, sequence, tail, flushed, last });
        }
    }
    Ok(found)
}

/// The places of the entries that count, oldest first: from the tail that the newest entry names
/// up to it, without a gap in their numbers. An entry whose chain is broken was never finished.
fn active(entries: &BTreeMap<u64, Entry>, log_bytes: u64) -> Vec<u64> {
    let mut newest: Vec<(&u64, &Entry)> = entries.iter().collect();
    newest.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.sequence));
    newest.iter().find_map(|(head, entry)| chain(entries, entry.tail, **head, log_bytes)).unwrap_or_default()
}

fn chain(entries: &BTreeMap<u64, Entry>, tail: u64, head: u64, log_bytes: u64) -> Option<Vec<u64>> {
    let mut places = Vec::new();
    let mut at = tail;
    while places.len() < entries.len() {
        let entry = entries.get(&at)?;
        places.push(at);
        if at == head {
            return Some(places);
        }
        let next = (at + entry.bytes.len() as u64) % log_bytes;
        if entries.get(&next)?.sequence != entry.sequence.checked_add(1)? {
            return None;
        }
        at = next;
    }
    None
}

impl Replayed {
    /// How many pages the log changes.
    pub(crate) fn pages(&self) -> usize {
        self.pages.len()
    }

    fn apply(&mut self, entry: &Entry) -> io::Result<()> {
        if self.file.length() < entry.flushed {
            return Err(damaged(format!(
                "it had {} bytes when its log was written; it was cut short",
                entry.flushed
            )));
        }
        self.length = self.length.max(entry.last);
        let bytes = &entry.bytes[..];
        let count = bytes.le32(24)? as usize;
        let mut data = (64 + 32 * count as u64).next_multiple_of(PAGE_BYTES) as usize;
        for index in 0..count {
            let descriptor: [u8; 32] = bytes.take(64 + 32 * index)?;
            let descriptor = &descriptor[..];
            let place = descriptor.le64(16)?;
            if descriptor.le64(24)? != entry.sequence || !place.is_multiple_of(PAGE_BYTES) {
                return Err(damaged("a descriptor of its log is of another entry"));
            }
            match &descriptor[..4] {
                b"desc" => {
                    let page: [u8; PAGE_BYTES as usize] = bytes.take(data)?;
                    self.put(place / PAGE_BYTES, Some(data_page(&page, descriptor, entry.sequence)?))?;
                    data += page.len();
                }
                b"zero" => {
                    let pages = descriptor.le64(8)?.div_ceil(PAGE_BYTES);
                    for page in (place / PAGE_BYTES..).take(pages.min(PAGES_MAX as u64 + 1) as usize) {
                        self.put(page, None)?;
                    }
                }
                _ => return Err(damaged("a descriptor of its log is of no known kind")),
            }
        }
        Ok(())
    }

    fn put(&mut self, page: u64, bytes: Option<Box<[u8]>>) -> io::Result<()> {
        self.pages.insert(page, bytes);
        if self.pages.len() > PAGES_MAX {
            return Err(unsupported(format!("its log changes more than {PAGES_MAX} pages")));
        }
        Ok(())
    }

    fn changed(&self, span: ByteSpan) -> impl Iterator<Item = (ByteSpan, Option<&[u8]>)> {
        let first = span.offset / PAGE_BYTES;
        let last = (span.end() - 1) / PAGE_BYTES;
        let pages = self.pages.range(first..=last);
        pages.map(|(page, bytes)| (ByteSpan::new(page * PAGE_BYTES, PAGE_BYTES), bytes.as_deref()))
    }
}

/// Its first eight and last four bytes stand in the descriptor, since the page's own hold the mark
/// and the number that tell a whole page from a torn one.
fn data_page(page: &[u8], descriptor: &[u8], sequence: u64) -> io::Result<Box<[u8]>> {
    let last = page.len() - 4;
    let number = u64::from(page.le32(4)?) << 32 | u64::from(page.le32(last)?);
    if !page.starts_with(b"data") || number != sequence {
        return Err(damaged("a page of its log is of another entry"));
    }
    Ok([&descriptor[8..16], &page[8..last], &descriptor[4..8]].concat().into())
}

impl ReadAt for Replayed {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let span = ByteSpan::new(offset, bytes.len() as u64);
        if span.is_empty() {
            return Ok(());
        }
        if span.end() > self.length {
            return Err(damaged(format!("bytes at {span} are missing: it ends at {:#x}", self.length)));
        }
        // The log makes the file as long as it has to be.
        let there = self.file.length().saturating_sub(offset).min(span.length) as usize;
        self.file.read_at(offset, &mut bytes[..there])?;
        bytes[there..].fill(0);
        for (page, content) in self.changed(span) {
            let Some(both) = page.intersect(span) else { continue };
            let to = &mut bytes[(both.offset - offset) as usize..(both.end() - offset) as usize];
            let from = (both.offset - page.offset) as usize..(both.end() - page.offset) as usize;
            match content {
                Some(content) => to.copy_from_slice(&content[from]),
                None => to.fill(0),
            }
        }
        Ok(())
    }

    fn extent_at(&self, span: ByteSpan) -> io::Result<Extent> {
        if self.changed(span).next().is_some() || span.end() > self.file.length() {
            return Ok(Extent::allocated(span));
        }
        self.file.extent_at(span)
    }

    fn identity(&self) -> String {
        self.file.identity()
    }
}
