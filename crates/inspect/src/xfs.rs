//! Files of XFS, read as they lie on the disk: its log is not replayed, so that what changed in the last moments before a snapshot of a
//! guest that runs may be seen as it was before.
//!
//! Integers are big-endian.
//!
//! ```text
//! superblock: 0 "XFSB", 4 bytes of a block (u32), 8 blocks (u64), 56 inode of / (u64), 84 blocks of a group (u32), 88 groups (u32),
//!   100 version (u16, its low 4 bits), 102 bytes of a sector, 104 of an inode (u16), 120 log2 of a block, 122 of an inode, 123 of
//!   inodes in a block, 124 of blocks in a group, rounded up (u8 each), 144 free blocks (u64), 192 log2 of blocks of a folder's block
//!   (u8), 216 incompatible features (u32)
//! number of an inode or block: the group, then as many bits as 124 says (and 123, of an inode) of what lies in it
//! inode: 0 "IN", 2 mode (u16), 4 version, 5 format (u8: 1 here, 2 extents, 3 a tree of them), 24 extents (u64, if 120 says so), 56 size
//!   (u64), 76 extents (u32), 82 length of the data's part / 8 (u8, 0: all), 120 flags (u64, 0x10: extents at 24), 152 its own number;
//!   then the data's part, at 176 (version 3) or 100
//! extent, 128 bits: 1 not written, 54 block of the file, 52 block, 21 blocks
//! tree: levels (u16), records (u16), then keys and pointers (u64 each), in an inode right behind, in a block behind its head; at level 0
//!   extents
//! folder in its inode: 0 names, 1 those with numbers of 8 bytes (u8 each), 2 its parent; names: length (u8), offset (u16), the name, a
//!   byte for its kind, the number (4 bytes, or 8)
//! folder in blocks, 64 bytes of head: the number (u64), length (u8), the name, a byte for its kind, offset (u16), up to a multiple of 8;
//!   free: 0xffff, length (u16). "XDB3" is alone, and has at its end hashes of 8 bytes, whose number is 8 bytes before its end
//! ```
//!
//! Source: Linux `fs/xfs/libxfs/xfs_format.h`, `xfs_da_format.h`; "XFS Algorithms & Data Structures". Version 4 has no byte for the kind
//! unless a feature says so, and smaller heads ("XD2B", 16 bytes).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::rc::Rc;

use crate::read::Part;
use crate::tree::{FileSystem, Found};

/// A file system.
pub(crate) struct Xfs {
    on: On,
    root: u64,
    /// Folders by their paths: each look begins at the root.
    folders: RefCell<HashMap<String, u64>>,
}

/// A file system's blocks.
#[derive(Clone)]
struct On {
    part: Part,
    block_bytes: u64,
    sector_bytes: u64,
    blocks_of_group: u64,
    groups: u64,
    /// Bits of a block's number that tell it from others of its group.
    group_bits: u32,
    /// Bits of an inode's number that tell it from others of its block.
    inode_bits: u32,
    inode_bytes: usize,
    folder_bytes: u64,
    is_v5: bool,
    has_kinds: bool,
    /// Bytes of folders that may still be gone through: a folder that leads into itself makes paths without an end.
    left: Rc<Cell<u64>>,
}

struct Inode {
    mode: u16,
    format: u8,
    size: u64,
    extents: u64,
    data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// The first block of the file that it has.
    at: u64,
    /// The first block of the file system.
    block: u64,
    blocks: u64,
    is_written: bool,
}

impl Xfs {
    /// Reads what finds the files.
    pub(crate) fn load(part: Part) -> Result<(Xfs, u64), String> {
        let mut head = [0; 512];
        part.read_at(0, &mut head).map_err(told)?;
        let (on, root) = On::of(part, &head)?;
        let free_bytes = on.free_blocks().unwrap_or(u64_at(&head, 144)).saturating_mul(on.block_bytes);
        let xfs = Xfs { on, root, folders: RefCell::default() };
        if !xfs.on.inode(xfs.root)?.is(FOLDER) {
            return Err("its root is no folder".into());
        }
        Ok((xfs, free_bytes))
    }

    /// The inode of a path without links.
    fn number_of(&self, path: &str) -> Result<u64, String> {
        let (above, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or_default();
        if name.is_empty() {
            return Ok(self.root);
        }
        let known = self.folders.borrow().get(above).copied();
        let folder = known.map_or_else(|| self.number_of(above), Ok)?;
        let mut found = None;
        self.on.each_name(&self.on.inode(folder)?, &mut |entry, number| {
            if entry != name.as_bytes() {
                return ControlFlow::Continue(());
            }
            found = Some(number);
            ControlFlow::Break(())
        })?;
        let mut folders = self.folders.borrow_mut();
        if folders.len() < FOLDERS_MAX {
            folders.insert(above.to_string(), folder);
        }
        found.ok_or_else(|| "it is not there".into())
    }

    fn inode_of(&self, path: &str) -> Result<Inode, String> {
        self.on.inode(self.number_of(path)?)
    }

    fn file(&self, path: &str) -> Result<Content, String> {
        let inode = self.inode_of(path)?;
        if !inode.is(FILE) || inode.format == HERE {
            return Err("it is no file".into());
        }
        self.on.content(&inode)
    }
}

impl FileSystem for Xfs {
    fn look(&self, path: &str) -> Option<Found> {
        let inode = self.inode_of(path).ok()?;
        Some(match inode.mode & KIND {
            LINK => Found::Link { bytes: inode.size },
            FILE => Found::File { bytes: inode.size },
            _ => Found::Other,
        })
    }

    fn link(&self, path: &str) -> Option<String> {
        let inode = self.inode_of(path).ok()?;
        let size = usize::try_from(inode.size).ok().filter(|size| *size <= LINK_BYTES_MAX)?;
        if inode.format == HERE {
            return String::from_utf8(inode.data.get(..size)?.to_vec()).ok();
        }
        // Its blocks have heads, unlike those of a file.
        let head = if self.on.is_v5 { LINK_HEAD_BYTES } else { 0 };
        let mut target = Vec::new();
        for extent in self.on.extents(&inode).ok()? {
            for block in extent.block..extent.block.checked_add(extent.blocks)? {
                let bytes = self.on.block(block).ok()?;
                (head == 0 || bytes.starts_with(b"XSLM")).then_some(())?;
                target.extend(bytes.get(head..)?.iter().take(size - target.len()));
                if target.len() == size {
                    return String::from_utf8(target).ok();
                }
            }
        }
        None
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(path).ok()?.read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn names(&self, path: &str, max: usize) -> Vec<String> {
        let mut names = Vec::new();
        let Ok(folder) = self.inode_of(path) else { return names };
        // What can be read of a folder that is damaged counts.
        let _ = self.on.each_name(&folder, &mut |name, _| {
            if let Ok(name) = std::str::from_utf8(name)
                && name != "."
                && name != ".."
            {
                names.push(name.to_string());
            }
            if names.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        names
    }

    fn open(&self, path: &str) -> Result<Box<dyn Read>, String> {
        Ok(Box::new(self.file(path)?))
    }
}

impl On {
    /// What a superblock says, held against the partition, and the inode of the root.
    fn of(part: Part, head: &[u8; 512]) -> Result<(On, u64), String> {
        let (block_bytes, blocks) = (u64::from(u32_at(head, 4)), u64_at(head, 8));
        let (block_log, inode_log, inode_bits, group_bits) =
            (u32::from(head[120]), u32::from(head[122]), u32::from(head[123]), u32::from(head[124]));
        let (blocks_of_group, groups) = (u64::from(u32_at(head, 84)), u64::from(u32_at(head, 88)));
        let version = u16_at(head, 100) & 0xf;
        let is_sane = &head[..4] == b"XFSB"
            && (9..=16).contains(&block_log)
            && block_bytes == 1 << block_log
            && (8..=11).contains(&inode_log)
            && inode_log <= block_log
            && inode_bits == block_log - inode_log
            && group_bits <= 31
            && (1..=1u64 << group_bits).contains(&blocks_of_group)
            && groups > 0
            && block_log + u32::from(head[192]) <= 16;
        if !is_sane {
            return Err("its superblock makes no sense".into());
        }
        if blocks.saturating_mul(block_bytes) > part.size() {
            return Err(format!("it claims {blocks} blocks, more than its partition has"));
        }
        let features = u32_at(head, 216);
        let (is_v5, has_kinds) = match version {
            4 => (false, u16_at(head, 100) & MORE_FEATURES != 0 && u32_at(head, 200) & KINDS_OF_V4 != 0),
            5 => (true, features & KINDS != 0),
            version => return Err(format!("it is of version {version}")),
        };
        if is_v5 && features & !KNOWN_FEATURES != 0 {
            return Err(format!("it has features that are not known here ({features:#x})"));
        }
        let folder_bytes = block_bytes << head[192];
        let inode_bytes = 1 << inode_log;
        let on = On {
            part,
            block_bytes,
            sector_bytes: u64::from(u16_at(head, 102)),
            blocks_of_group,
            groups,
            group_bits,
            inode_bits,
            inode_bytes,
            folder_bytes,
            is_v5,
            has_kinds,
            left: Rc::new(Cell::new(SCANNED_BYTES_MAX)),
        };
        Ok((on, u64_at(head, 56)))
    }

    /// Free blocks by the groups' own counts: the superblock's is written when the file system is left. Absent where there are many.
    fn free_blocks(&self) -> Option<u64> {
        (self.groups <= GROUPS_ASKED_MAX).then_some(())?;
        let mut free = 0u64;
        for group in 0..self.groups {
            let mut head = [0; 64];
            let at = group * self.blocks_of_group * self.block_bytes + self.sector_bytes;
            self.part.read_at(at, &mut head).ok()?;
            (&head[..4] == b"XAGF").then_some(())?;
            free += u64::from(u32_at(&head, 52));
        }
        Some(free)
    }

    /// Where a block lies, by its number.
    fn place(&self, number: u64) -> Result<u64, String> {
        let (group, block) = (number >> self.group_bits, number & ((1 << self.group_bits) - 1));
        if group >= self.groups || block >= self.blocks_of_group {
            return Err(format!("block {number:#x} is none"));
        }
        Ok((group * self.blocks_of_group + block) * self.block_bytes)
    }

    fn block(&self, number: u64) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; self.block_bytes as usize];
        self.part.read_at(self.place(number)?, &mut bytes).map_err(told)?;
        Ok(bytes)
    }

    fn inode(&self, number: u64) -> Result<Inode, String> {
        let (block, index) = (number >> self.inode_bits, number & ((1 << self.inode_bits) - 1));
        let mut bytes = vec![0; self.inode_bytes];
        let at = self.place(block)? + index * self.inode_bytes as u64;
        self.part.read_at(at, &mut bytes).map_err(told)?;
        let is_v3 = bytes[4] == 3;
        if &bytes[..2] != b"IN" || (is_v3 && u64_at(&bytes, 152) != number) {
            return Err(format!("inode {number} is none"));
        }
        let core = if is_v3 { 176 } else { 100 };
        let has_many = is_v3 && u64_at(&bytes, 120) & MANY_EXTENTS != 0;
        let length = match usize::from(bytes[82]) * 8 {
            0 => bytes.len() - core,
            length => length.min(bytes.len() - core),
        };
        Ok(Inode {
            mode: u16_at(&bytes, 2),
            format: bytes[5],
            size: u64_at(&bytes, 56),
            extents: if has_many { u64_at(&bytes, 24) } else { u64::from(u32_at(&bytes, 76)) },
            data: bytes[core..core + length].to_vec(),
        })
    }

    /// The extents of a file, in their order.
    fn extents(&self, inode: &Inode) -> Result<Vec<Extent>, String> {
        let mut extents = Vec::new();
        match inode.format {
            EXTENTS => {
                let count = usize::try_from(inode.extents).unwrap_or(usize::MAX);
                extents.extend(inode.data.as_chunks::<16>().0.iter().take(count).map(Extent::of));
            }
            TREE => {
                let (levels, records) = (short_at(&inode.data, 0)?, usize::from(short_at(&inode.data, 2)?));
                let room = inode.data.len().saturating_sub(4) / 16;
                let mut left = TREE_BYTES_MAX / self.block_bytes;
                for pointer in pointers(&inode.data, 4, room, records)? {
                    self.branch(pointer, levels.checked_sub(1), &mut left, &mut extents)?;
                }
            }
            format => return Err(format!("an inode of format {format} has no extents")),
        }
        extents.sort_by_key(|extent| extent.at);
        Ok(extents)
    }

    /// Adds the extents below a block of a tree, which is of this level.
    fn branch(
        &self,
        block: u64,
        level: Option<u16>,
        left: &mut u64,
        extents: &mut Vec<Extent>,
    ) -> Result<(), String> {
        let nonsense = || "a tree of extents makes no sense".to_string();
        *left = left.checked_sub(1).ok_or("a tree of extents is too large")?;
        let bytes = self.block(block)?;
        let head = if self.is_v5 { 72 } else { 24 };
        let magic = if self.is_v5 { b"BMA3" } else { b"BMAP" };
        let level = level.filter(|level| *level <= LEVELS_MAX).ok_or_else(nonsense)?;
        if &bytes[..4] != magic || u16_at(&bytes, 4) != level {
            return Err(nonsense());
        }
        let (records, room) = (usize::from(u16_at(&bytes, 6)), (bytes.len() - head) / 16);
        if level == 0 {
            extents.extend(bytes[head..].as_chunks::<16>().0.iter().take(records).map(Extent::of));
            return Ok(());
        }
        for pointer in pointers(&bytes, head, room, records)? {
            self.branch(pointer, level.checked_sub(1), left, extents)?;
        }
        Ok(())
    }

    fn content(&self, inode: &Inode) -> Result<Content, String> {
        Ok(Content { on: self.clone(), extents: self.extents(inode)?, at: 0, size: inode.size })
    }

    /// Calls with each name in a folder and its inode, until that breaks off.
    fn each_name(
        &self,
        folder: &Inode,
        call: &mut dyn FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), String> {
        if !folder.is(FOLDER) {
            return Err("it is no folder".into());
        }
        if folder.format == HERE {
            self.scan(self.inode_bytes as u64)?;
            return self.names_here(&folder.data, call);
        }
        let mut content = self.content(folder)?;
        // Behind the names, at a place that no folder reaches, lie its indexes.
        content.size = INDEXES_AT;
        let (mut next, mut left) = (0, FOLDER_BYTES_MAX / self.folder_bytes);
        for extent in content.extents.clone() {
            let (start, end) = (extent.at, extent.at.saturating_add(extent.blocks));
            let first = (start.saturating_mul(self.block_bytes) / self.folder_bytes).max(next);
            next = end.saturating_mul(self.block_bytes).div_ceil(self.folder_bytes);
            for number in first..next {
                if number.saturating_mul(self.folder_bytes) >= INDEXES_AT {
                    return Ok(());
                }
                left = left.checked_sub(1).ok_or("a folder is too large")?;
                self.scan(self.folder_bytes)?;
                let mut bytes = vec![0; self.folder_bytes as usize];
                content.at = number * self.folder_bytes;
                content.read_exact(&mut bytes).map_err(told)?;
                if self.names_in(&bytes, call)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn scan(&self, bytes: u64) -> Result<(), String> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.ok_or("its folders are too large")?);
        Ok(())
    }

    fn names_here(
        &self,
        data: &[u8],
        call: &mut dyn FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<(), String> {
        let cut = || "a folder is cut off".to_string();
        let [count, long, ..] = *data else { return Err(cut()) };
        let number_bytes = if long > 0 { 8 } else { 4 };
        let mut left = data.get(2 + number_bytes..).ok_or_else(cut)?;
        for _ in 0..count {
            let length = usize::from(*left.first().ok_or_else(cut)?);
            let end = 3 + length + usize::from(self.has_kinds);
            let name = left.get(3..3 + length).ok_or_else(cut)?;
            let number = left.get(end..end + number_bytes).ok_or_else(cut)?;
            let number = number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            if call(name, number).is_break() {
                return Ok(());
            }
            left = &left[end + number_bytes..];
        }
        Ok(())
    }

    fn names_in(
        &self,
        block: &[u8],
        call: &mut dyn FnMut(&[u8], u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, String> {
        let nonsense = || "a block of a folder makes no sense".to_string();
        let (mut at, is_alone) = match &block[..4] {
            b"XDB3" => (64, true),
            b"XDD3" => (64, false),
            b"XD2B" => (16, true),
            b"XD2D" => (16, false),
            _ => return Err(nonsense()),
        };
        let end = if is_alone {
            let hashes = (u32_at(block, block.len() - 8) as usize).checked_mul(8).ok_or_else(nonsense)?;
            (block.len() - 8).checked_sub(hashes).ok_or_else(nonsense)?
        } else {
            block.len()
        };
        while at + NAME_BYTES_MIN <= end {
            if u16_at(block, at) == FREE {
                let length = usize::from(u16_at(block, at + 2));
                at += if length >= 8 && length.is_multiple_of(8) { length } else { return Err(nonsense()) };
                continue;
            }
            let length = usize::from(block[at + 8]);
            let name =
                block.get(at + 9..at + 9 + length).filter(|name| !name.is_empty()).ok_or_else(nonsense)?;
            if call(name, u64_at(block, at)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            at += (9 + length + usize::from(self.has_kinds) + 2).next_multiple_of(8);
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Inode {
    fn is(&self, kind: u16) -> bool {
        self.mode & KIND == kind
    }
}

impl Extent {
    fn of(bytes: &[u8; 16]) -> Extent {
        let bits = u128::from_be_bytes(*bytes);
        let take = |from: u32, count: u32| ((bits >> from) & ((1 << count) - 1)) as u64;
        Extent { is_written: take(127, 1) == 0, at: take(73, 54), block: take(21, 52), blocks: take(0, 21) }
    }
}

/// The pointers of a tree's node, which lie behind the room for its keys.
fn pointers(node: &[u8], head: usize, room: usize, count: usize) -> Result<Vec<u64>, String> {
    let start = head + room * 8;
    let bytes = node.get(start..start + room * 8).filter(|_| count <= room);
    let bytes = bytes.ok_or("a tree of extents makes no sense")?;
    Ok(bytes.as_chunks::<8>().0.iter().take(count).map(|bytes| u64::from_be_bytes(*bytes)).collect())
}

/// What is in a file.
struct Content {
    on: On,
    extents: Vec<Extent>,
    at: u64,
    size: u64,
}

impl Read for Content {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let wanted = self.size.saturating_sub(self.at).min(bytes.len() as u64);
        if wanted == 0 {
            return Ok(0);
        }
        let (block, inside) = (self.at / self.on.block_bytes, self.at % self.on.block_bytes);
        // Behind the last one that begins up to here, or in a hole up to the next one.
        let index = self.extents.partition_point(|extent| extent.at <= block);
        let found = index.checked_sub(1).map(|index| self.extents[index]);
        let found = found.filter(|extent| block - extent.at < extent.blocks);
        let end = match (found, self.extents.get(index)) {
            (Some(extent), _) => extent.at + extent.blocks,
            (None, Some(next)) => next.at,
            (None, None) => u64::MAX,
        };
        let length = (end - block).saturating_mul(self.on.block_bytes) - inside;
        let length = length.min(wanted) as usize;
        match found.filter(|extent| extent.is_written) {
            Some(extent) => {
                let place = self.on.place(extent.block).map_err(io::Error::other)?;
                let at = place + (block - extent.at) * self.on.block_bytes + inside;
                self.on.part.read_at(at, &mut bytes[..length])?;
            }
            None => bytes[..length].fill(0),
        }
        self.at += length as u64;
        Ok(length)
    }
}

fn told(error: io::Error) -> String {
    error.to_string()
}

fn short_at(bytes: &[u8], at: usize) -> Result<u16, String> {
    let pair = bytes.get(at..at + 2).ok_or("an inode is cut off")?;
    Ok(u16_at(pair, 0))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap_or_default())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

const KIND: u16 = 0o170_000;
const FOLDER: u16 = 0o040_000;
const FILE: u16 = 0o100_000;
const LINK: u16 = 0o120_000;
const HERE: u8 = 1;
const EXTENTS: u8 = 2;
const TREE: u8 = 3;
/// Of the version's field: features of version 4 lie at 200.
const MORE_FEATURES: u16 = 0x8000;
const KINDS_OF_V4: u32 = 0x200;
const KINDS: u32 = 1;
/// Kinds of names, sparse inodes, another UUID, times after 2038, to be repaired, many extents, exchanged ranges, parents.
const KNOWN_FEATURES: u32 = 0xff;
const MANY_EXTENTS: u64 = 0x10;
const FREE: u16 = 0xffff;
const NAME_BYTES_MIN: usize = 12;
const LINK_HEAD_BYTES: usize = 56;
const LINK_BYTES_MAX: usize = 4096;
/// Where indexes of a folder begin. Source: `XFS_DIR2_LEAF_OFFSET`.
const INDEXES_AT: u64 = 32 << 30;
/// Some 500,000 names.
const FOLDER_BYTES_MAX: u64 = 32 << 20;
const FOLDERS_MAX: usize = 4096;
/// Some 250,000 extents.
const TREE_BYTES_MAX: u64 = 4 << 20;
/// A look into a usual guest takes a few MiB.
const SCANNED_BYTES_MAX: u64 = 1 << 30;
const LEVELS_MAX: u16 = 8;
/// Each is a read somewhere else on the disk.
const GROUPS_ASKED_MAX: u64 = 16;

#[cfg(test)]
mod tests;
