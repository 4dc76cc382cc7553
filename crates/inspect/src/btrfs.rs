//! Files of btrfs, read as its last transaction left them: its log tree is not replayed, so that what programs flushed in the last
//! moments before a snapshot of a guest that runs may be seen as it was before.
//!
//! Integers are little-endian. A key is an object (u64), a type (u8) and an offset (u64).
//!
//! ```text
//! superblock, at 65536: 64 "_BHRfS_M", 80 tree of trees, 88 tree of chunks, 112 bytes in all, 120 bytes in use (u64 each), 144 bytes
//!   of a sector, 148 of a node, 160 length of the first chunks (u32 each), 188 incompatible features (u64), 201 its device (u64),
//!   811 the first chunks: keys, each with its chunk
//! node: 48 where it lies (u64), 96 items (u32), 100 level (u8); from 101 in a leaf a key, where its data begins behind 101 and its
//!   length (u32 each), above it a key, the node below (u64) and its generation (u64)
//! chunk, type 228, its place is the key's offset: length (u64), 24 profile (u64), 44 copies (u16), from 48 each with its device (u64),
//!   its place there (u64) and 16 bytes
//! tree, type 132: 176 its node (u64). Tree 5 is the top; those from 256 on are subvolumes. Object 6 of the tree of trees has an entry
//!   "default" for the one that is mounted unless a name is given
//! inode, type 1: 16 size (u64), 52 mode (u32)
//! entry of a folder, type 84 by the hash of its name, 96 in order: the key of what it names (an inode here, or another tree, whose
//!   first folder is inode 256), 27 length of the name (u16), 30 the name
//! extent of a file, type 108 from the key's offset on: 8 its bytes unpacked (u64), 16 how it is packed (u8), 20 kind (u8: 0 here,
//!   1 on the disk, 2 not written); from 21 the bytes, or where (u64, 0: a hole), its length there, where in it this begins, its bytes
//! ```
//!
//! Source: Linux `include/uapi/linux/btrfs_tree.h`; "On-disk Format" of the btrfs documentation.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::rc::Rc;

use crate::read::{Part, u32_at, u64_at};
use crate::tree::{FileSystem, Found};

/// A file system, looked at from the subvolume that holds its system.
pub(crate) struct Btrfs {
    on: Rc<On>,
    root: Place,
    /// What lies at paths without links.
    known: RefCell<HashMap<String, Place>>,
}

/// An inode, and the first node of the tree that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    tree: u64,
    inode: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    object: u64,
    kind: u8,
    offset: u64,
}

/// A file system's nodes.
struct On {
    part: Part,
    node_bytes: usize,
    device: u64,
    /// Sorted by where they begin.
    chunks: Vec<Chunk>,
    trees: u64,
    nodes: RefCell<HashMap<u64, Rc<Vec<u8>>>>,
    /// Nodes that may still be looked at: trees that lead into themselves have no end.
    left: Cell<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    start: u64,
    length: u64,
    is_striped: bool,
    /// Where it lies on this device, if it does.
    place: Option<u64>,
}

struct Inode {
    mode: u32,
    size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    /// Where it begins in the file.
    at: u64,
    /// Its bytes in the file.
    length: u64,
    holds: Holds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Holds {
    Zeros,
    /// Bytes as they are, from there on.
    Plain(u64),
    /// Bytes that are unpacked whole, of which the extent begins at `skip`.
    Packed {
        place: u64,
        packed_bytes: u64,
        bytes: u64,
        how: u8,
        skip: u64,
    },
    /// Bytes that lie with the extent itself.
    Here {
        data: Vec<u8>,
        bytes: u64,
        how: u8,
    },
}

impl Btrfs {
    /// Reads what finds the files.
    pub(crate) fn load(part: Part) -> Result<(Btrfs, u64), String> {
        let mut head = vec![0; SUPERBLOCK_BYTES];
        part.read_at(SUPERBLOCK, &mut head).map_err(told)?;
        let (mut on, chunk_tree) = On::of(part, &head)?;
        on.read_chunks(chunk_tree)?;
        let free_bytes = u64_at(&head, 112).saturating_sub(u64_at(&head, 120));
        let on = Rc::new(on);
        let root = on.root_of_system()?;
        Ok((Btrfs { on, root, known: RefCell::default() }, free_bytes))
    }

    fn place_of(&self, path: &str) -> Result<Place, String> {
        let (above, name) = path.trim_end_matches('/').rsplit_once('/').unwrap_or_default();
        if name.is_empty() {
            return Ok(self.root);
        }
        if let Some(known) = self.known.borrow().get(path) {
            return Ok(*known);
        }
        let found = self.on.entry(self.place_of(above)?, name)?.ok_or("it is not there")?;
        let mut known = self.known.borrow_mut();
        if known.len() < KNOWN_MAX {
            known.insert(path.to_string(), found);
        }
        Ok(found)
    }

    fn inode_of(&self, path: &str) -> Result<(Place, Inode), String> {
        let place = self.place_of(path)?;
        Ok((place, self.on.inode(place)?))
    }

    fn content(&self, path: &str, kind: u32) -> Result<Content, String> {
        let (place, inode) = self.inode_of(path)?;
        if inode.mode & KIND != kind {
            return Err("it is no file".into());
        }
        let extents = self.on.extents(place)?;
        Ok(Content { on: self.on.clone(), extents, at: 0, size: inode.size, unpacked: None })
    }
}

impl FileSystem for Btrfs {
    fn look(&self, path: &str) -> Option<Found> {
        let (_, inode) = self.inode_of(path).ok()?;
        Some(match inode.mode & KIND {
            LINK => Found::Link { bytes: inode.size },
            FILE => Found::File { bytes: inode.size },
            _ => Found::Other,
        })
    }

    fn link(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let content = self.content(path, LINK).ok()?;
        content.take(LINK_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        String::from_utf8(bytes).ok()
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.content(path, FILE).ok()?.read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn names(&self, path: &str, max: usize) -> Vec<String> {
        let mut names = Vec::new();
        let Ok(folder) = self.place_of(path) else { return names };
        // What can be read of a folder that is damaged counts.
        let _ = self.on.each(folder.tree, Key::all(folder.inode, ENTRY), &mut |_, item| {
            for (_, name) in entries(item) {
                names.extend(std::str::from_utf8(name).ok().map(str::to_string));
            }
            if names.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        names.truncate(max);
        names
    }

    fn open(&self, path: &str) -> Result<Box<dyn Read>, String> {
        Ok(Box::new(self.content(path, FILE)?))
    }
}

impl Key {
    fn new(object: u64, kind: u8, offset: u64) -> Key {
        Key { object, kind, offset }
    }

    fn at(bytes: &[u8], at: usize) -> Key {
        Key::new(u64_at(bytes, at), bytes[at + 8], u64_at(bytes, at + 9))
    }

    /// All of a kind that an object has.
    fn all(object: u64, kind: u8) -> [Key; 2] {
        [Key::new(object, kind, 0), Key::new(object, kind, u64::MAX)]
    }

    fn only(object: u64, kind: u8, offset: u64) -> [Key; 2] {
        [Key::new(object, kind, offset); 2]
    }
}

impl On {
    /// What a superblock says, and the tree of chunks.
    fn of(part: Part, head: &[u8]) -> Result<(On, u64), String> {
        let (sector, node) = (u32_at(head, 144), u32_at(head, 148));
        let is_sane = &head[64..72] == b"_BHRfS_M"
            && sector.is_power_of_two()
            && (512..=65536).contains(&sector)
            && node.is_power_of_two()
            && (sector.max(4096)..=65536).contains(&node);
        if !is_sane {
            return Err("its superblock makes no sense".into());
        }
        let features = u64_at(head, 188);
        if features & !FEATURES != 0 {
            return Err(format!("it has features that are not known here ({:#x})", features & !FEATURES));
        }
        let device = u64_at(head, 201);
        let mut chunks = Vec::new();
        let length = u32_at(head, 160) as usize;
        let mut left =
            head.get(811..811 + length).filter(|_| length <= FIRST_CHUNKS_BYTES).ok_or(SENSELESS)?;
        while left.len() > KEY_BYTES {
            let (chunk, bytes) = Chunk::at(Key::at(left, 0).offset, &left[KEY_BYTES..], device)?;
            chunks.push(chunk);
            left = &left[KEY_BYTES + bytes..];
        }
        let on = On {
            part,
            node_bytes: node as usize,
            device,
            chunks,
            trees: u64_at(head, 80),
            nodes: RefCell::default(),
            left: Cell::new(NODES_MAX),
        };
        Ok((on, u64_at(head, 88)))
    }

    fn read_chunks(&mut self, tree: u64) -> Result<(), String> {
        let mut chunks = Vec::new();
        let mut failed = None;
        self.each(tree, [Key::new(0, 0, 0), Key::new(u64::MAX, u8::MAX, u64::MAX)], &mut |key, item| {
            if key.kind == CHUNK {
                match Chunk::at(key.offset, item, self.device) {
                    Ok((chunk, _)) => chunks.push(chunk),
                    Err(why) => failed = Some(why),
                }
            }
            if chunks.len() < CHUNKS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        failed.map_or(Ok(()), Err)?;
        chunks.sort_by_key(|chunk| chunk.start);
        self.chunks = chunks;
        Ok(())
    }

    /// Where a byte lies on this disk, and how many follow it there.
    fn find(&self, logical: u64) -> Result<(u64, u64), String> {
        let after = self.chunks.partition_point(|chunk| chunk.start <= logical);
        let chunk = after.checked_sub(1).map(|at| &self.chunks[at]);
        let chunk = chunk.filter(|it| logical - it.start < it.length).ok_or("it points to no chunk")?;
        if chunk.is_striped {
            return Err("it is striped over several disks".into());
        }
        let place = chunk.place.ok_or("a part of it lies on another disk")?;
        let within = logical - chunk.start;
        Ok((place.checked_add(within).ok_or(SENSELESS)?, chunk.length - within))
    }

    fn read_at(&self, logical: u64, bytes: &mut [u8]) -> Result<(), String> {
        let mut done = 0;
        while done < bytes.len() {
            let (place, follow) = self.find(logical.checked_add(done as u64).ok_or(SENSELESS)?)?;
            let length = follow.min((bytes.len() - done) as u64) as usize;
            self.part.read_at(place, &mut bytes[done..done + length]).map_err(told)?;
            done += length;
        }
        Ok(())
    }

    fn node(&self, logical: u64) -> Result<Rc<Vec<u8>>, String> {
        self.left.set(self.left.get().checked_sub(1).ok_or("its trees have no end")?);
        if let Some(node) = self.nodes.borrow().get(&logical) {
            return Ok(node.clone());
        }
        let mut bytes = vec![0; self.node_bytes];
        self.read_at(logical, &mut bytes)?;
        if u64_at(&bytes, 48) != logical {
            return Err(format!("at {logical} is no node of it"));
        }
        let node = Rc::new(bytes);
        let mut nodes = self.nodes.borrow_mut();
        if nodes.len() >= NODES_KEPT {
            nodes.clear();
        }
        nodes.insert(logical, node.clone());
        Ok(node)
    }

    /// Each item of a tree between two keys, both among them, in order, until it is enough.
    fn each(
        &self,
        tree: u64,
        range: [Key; 2],
        take: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), String> {
        self.each_below(tree, None, range, take).map(drop)
    }

    fn each_below(
        &self,
        node: u64,
        level: Option<u8>,
        [from, to]: [Key; 2],
        take: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, String> {
        let bytes = self.node(node)?;
        let (items, here) = (u32_at(&bytes, 96) as usize, bytes[100]);
        let item_bytes = if here == 0 { LEAF_ITEM_BYTES } else { BRANCH_ITEM_BYTES };
        let is_sane = here <= LEVEL_MAX
            && level.is_none_or(|level| level == here)
            && items <= (self.node_bytes - NODE_HEAD_BYTES) / item_bytes;
        if !is_sane {
            return Err(SENSELESS.into());
        }
        let key = |index: usize| Key::at(&bytes, NODE_HEAD_BYTES + index * item_bytes);
        for index in 0..items {
            let at = NODE_HEAD_BYTES + index * item_bytes;
            if key(index) > to {
                break;
            }
            let flow = if here == 0 {
                if key(index) < from {
                    continue;
                }
                let (start, length) = (u32_at(&bytes, at + 17) as usize, u32_at(&bytes, at + 21) as usize);
                let start = start.checked_add(NODE_HEAD_BYTES).ok_or(SENSELESS)?;
                let item =
                    start.checked_add(length).and_then(|end| bytes.get(start..end)).ok_or(SENSELESS)?;
                take(key(index), item)
            } else {
                // All below it comes before what is wanted.
                if index + 1 < items && key(index + 1) <= from {
                    continue;
                }
                self.each_below(u64_at(&bytes, at + 17), Some(here - 1), [from, to], take)?
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The last item between two keys.
    fn last(&self, tree: u64, range: [Key; 2]) -> Result<Option<Vec<u8>>, String> {
        let mut found = None;
        self.each(tree, range, &mut |_, item| {
            found = Some(item.to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// The first folder of a tree that is told by its number.
    fn tree(&self, number: u64) -> Result<Place, String> {
        let item = self.last(self.trees, Key::all(number, TREE))?.filter(|item| item.len() >= 184);
        let item = item.ok_or_else(|| format!("there is no tree {number}"))?;
        Ok(Place { tree: u64_at(&item, 176), inode: FIRST_FOLDER })
    }

    /// What a folder calls by a name.
    fn entry(&self, folder: Place, name: &str) -> Result<Option<Place>, String> {
        let mut found = None;
        let range = Key::only(folder.inode, ENTRY_BY_HASH, hash(name.as_bytes()).into());
        self.each(folder.tree, range, &mut |_, item| {
            found = entries(item).find(|(_, it)| *it == name.as_bytes()).map(|(key, _)| key);
            ControlFlow::Break(())
        })?;
        match found {
            None => Ok(None),
            Some(key) if key.kind == TREE => self.tree(key.object).map(Some),
            Some(key) => Ok(Some(Place { inode: key.object, ..folder })),
        }
    }

    /// The subvolume that is mounted unless the guest says otherwise; where that holds no system, one with a name that
    /// installers give.
    fn root_of_system(&self) -> Result<Place, String> {
        let top = self.tree(TOP)?;
        let mut chosen = top;
        let range = Key::only(TREES_FOLDER, ENTRY_BY_HASH, hash(b"default").into());
        self.each(self.trees, range, &mut |_, item| {
            for (key, name) in entries(item) {
                if name == b"default" && key.kind == TREE {
                    chosen = self.tree(key.object).unwrap_or(top);
                }
            }
            ControlFlow::Break(())
        })?;
        let named = SYSTEM_NAMES.iter().filter_map(|name| self.entry(top, name).ok().flatten());
        let holds_system = |place: &Place| self.entry(*place, "etc").is_ok_and(|it| it.is_some());
        Ok(std::iter::once(chosen).chain(named).find(holds_system).unwrap_or(chosen))
    }

    fn inode(&self, place: Place) -> Result<Inode, String> {
        let item = self.last(place.tree, Key::only(place.inode, INODE, 0))?;
        let item = item.filter(|item| item.len() >= 56).ok_or("it has no inode")?;
        Ok(Inode { mode: u32_at(&item, 52), size: u64_at(&item, 16) })
    }

    fn extents(&self, file: Place) -> Result<Vec<Extent>, String> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut failed = None;
        self.each(file.tree, Key::all(file.inode, EXTENT), &mut |key, item| {
            // In order, so that a node that is named again and again gives each of its extents once.
            let is_next = extents.last().is_none_or(|last| last.at < key.offset);
            match Extent::at(key.offset, item) {
                Ok(extent) if is_next && extents.len() < EXTENTS_MAX => {
                    extents.push(extent);
                    ControlFlow::Continue(())
                }
                Ok(_) => {
                    let why = if is_next { "it lies in too many pieces" } else { SENSELESS };
                    failed = Some(why.to_string());
                    ControlFlow::Break(())
                }
                Err(why) => {
                    failed = Some(why);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(extents), Err)
    }
}

impl Chunk {
    /// A chunk as a device has it, and the bytes that tell it.
    fn at(start: u64, bytes: &[u8], device: u64) -> Result<(Chunk, usize), String> {
        let copies = bytes.get(44..46).map(|it| usize::from(u16::from_le_bytes([it[0], it[1]])));
        let length = CHUNK_HEAD_BYTES + copies.unwrap_or_default() * COPY_BYTES;
        let bytes = bytes.get(..length).filter(|_| copies > Some(0)).ok_or(SENSELESS)?;
        let mut copies = bytes[CHUNK_HEAD_BYTES..].chunks_exact(COPY_BYTES);
        let is_striped = u64_at(bytes, 24) & STRIPED != 0 && copies.len() > 1;
        let place = copies.find(|it| u64_at(it, 0) == device).map(|it| u64_at(it, 8));
        Ok((Chunk { start, length: u64_at(bytes, 0), is_striped, place }, length))
    }
}

impl Extent {
    fn at(at: u64, item: &[u8]) -> Result<Extent, String> {
        let item = Some(item).filter(|item| item.len() >= 21).ok_or(SENSELESS)?;
        let (bytes, how, kind) = (u64_at(item, 8), item[16], item[20]);
        if item[17] != 0 || item[18] != 0 {
            return Err("it is encrypted".into());
        }
        // A file that is as small as that has nothing else.
        if kind == HERE && at != 0 {
            return Err(SENSELESS.into());
        }
        if kind == HERE {
            let holds = Holds::Here { data: item[21..].to_vec(), bytes, how };
            return Ok(Extent { at, length: bytes, holds });
        }
        let item = Some(item).filter(|item| item.len() >= 53).ok_or(SENSELESS)?;
        let (place, packed_bytes, skip, length) =
            (u64_at(item, 21), u64_at(item, 29), u64_at(item, 37), u64_at(item, 45));
        let holds = match (kind, how) {
            _ if place == 0 => Holds::Zeros,
            (ON_DISK, 0) => Holds::Plain(place.checked_add(skip).ok_or(SENSELESS)?),
            (ON_DISK, _) => Holds::Packed { place, packed_bytes, bytes, how, skip },
            (NOT_WRITTEN, _) => Holds::Zeros,
            _ => return Err(SENSELESS.into()),
        };
        Ok(Extent { at, length, holds })
    }
}

/// What a file holds.
struct Content {
    on: Rc<On>,
    /// In order.
    extents: Vec<Extent>,
    at: u64,
    size: u64,
    /// The extent that was unpacked last, by where it begins in the file.
    unpacked: Option<(u64, Vec<u8>)>,
}

impl Read for Content {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.size.saturating_sub(self.at).min(out.len() as u64);
        if left == 0 {
            return Ok(0);
        }
        let after = self.extents.partition_point(|extent| extent.at <= self.at);
        let next = self.extents.get(after).map_or(u64::MAX, |extent| extent.at);
        let within = |extent: &&Extent| self.at - extent.at < extent.length;
        let extent = after.checked_sub(1).and_then(|at| self.extents.get(at)).filter(within).cloned();
        let until = extent.as_ref().map_or(next, |extent| extent.at.saturating_add(extent.length).min(next));
        let out = &mut out[..left.min(until - self.at) as usize];
        match extent.as_ref().map(|extent| (extent, &extent.holds)) {
            None | Some((_, Holds::Zeros)) => out.fill(0),
            Some((extent, Holds::Plain(place))) => {
                let logical = place.checked_add(self.at - extent.at).ok_or_else(|| bad(SENSELESS))?;
                self.on.read_at(logical, out).map_err(bad)?;
            }
            Some((extent, holds)) => {
                let skip = if let Holds::Packed { skip, .. } = holds { *skip } else { 0 };
                let from = skip.checked_add(self.at - extent.at).ok_or_else(|| bad(SENSELESS))?;
                if self.unpacked.as_ref().is_none_or(|(at, _)| *at != extent.at) {
                    self.unpacked = Some((extent.at, self.on.unpacked(holds).map_err(bad)?));
                }
                let bytes = self.unpacked.as_ref().map(|(_, bytes)| bytes.as_slice()).unwrap_or_default();
                // What an extent is too short for is zeros.
                let rest = bytes.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default();
                let length = rest.len().min(out.len());
                out[..length].copy_from_slice(&rest[..length]);
                out[length..].fill(0);
            }
        }
        self.at += out.len() as u64;
        Ok(out.len())
    }
}

impl On {
    fn unpacked(&self, holds: &Holds) -> Result<Vec<u8>, String> {
        match holds {
            Holds::Here { data, how: 0, .. } => Ok(data.clone()),
            Holds::Here { data, bytes, how } => unpack(data, *bytes, *how),
            Holds::Packed { place, packed_bytes, bytes, how, .. } => {
                let length =
                    Some(*packed_bytes).filter(|bytes| *bytes <= UNPACKED_BYTES_MAX).ok_or(SENSELESS)?;
                let mut packed = vec![0; length as usize];
                self.read_at(*place, &mut packed)?;
                unpack(&packed, *bytes, *how)
            }
            Holds::Zeros | Holds::Plain(_) => Ok(Vec::new()),
        }
    }
}

fn unpack(packed: &[u8], bytes: u64, how: u8) -> Result<Vec<u8>, String> {
    let bytes = Some(bytes).filter(|bytes| *bytes <= UNPACKED_BYTES_MAX).ok_or(SENSELESS)?;
    let mut out = Vec::new();
    // Behind the packed bytes a sector is filled up with zeros.
    let done = match how {
        ZLIB => flate2::read::ZlibDecoder::new(packed).take(bytes).read_to_end(&mut out),
        ZSTD => zstd::stream::read::Decoder::with_buffer(packed)
            .map(zstd::stream::read::Decoder::single_frame)
            .and_then(|decoder| decoder.take(bytes).read_to_end(&mut out)),
        LZO => return Err("it is packed by LZO, which is not read".into()),
        _ => return Err(SENSELESS.into()),
    };
    done.map(|_| out).map_err(told)
}

/// Entries of a folder: what each names, and its name.
fn entries(mut item: &[u8]) -> impl Iterator<Item = (Key, &[u8])> {
    std::iter::from_fn(move || {
        let head = item.get(..ENTRY_HEAD_BYTES)?;
        let length = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let name = item.get(ENTRY_HEAD_BYTES..ENTRY_HEAD_BYTES + length(27))?;
        item = item.get(ENTRY_HEAD_BYTES + length(27) + length(25)..).unwrap_or_default();
        Some((Key::at(head, 0), name))
    })
}

/// By which a folder finds a name: CRC-32C, begun with 0xfffffffe and not turned at its end.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(!1, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

fn told(error: io::Error) -> String {
    error.to_string()
}

fn bad(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

const SENSELESS: &str = "it makes no sense";

const SUPERBLOCK: u64 = 64 << 10;
const SUPERBLOCK_BYTES: usize = 4096;
const FIRST_CHUNKS_BYTES: usize = 2048;
const KEY_BYTES: usize = 17;
const NODE_HEAD_BYTES: usize = 101;
const LEAF_ITEM_BYTES: usize = 25;
const BRANCH_ITEM_BYTES: usize = 33;
const CHUNK_HEAD_BYTES: usize = 48;
const COPY_BYTES: usize = 32;
const ENTRY_HEAD_BYTES: usize = 30;
const LEVEL_MAX: u8 = 7;

/// All but trees of extents of version 2 and trees of stripes, which change where things are found.
const FEATURES: u64 = 0x1_1fff;
/// RAID 0, 10, 5 and 6.
const STRIPED: u64 = 0x8 | 0x40 | 0x80 | 0x100;

const INODE: u8 = 1;
const ENTRY_BY_HASH: u8 = 84;
const ENTRY: u8 = 96;
const EXTENT: u8 = 108;
const TREE: u8 = 132;
const CHUNK: u8 = 228;
/// The tree of the top folder.
const TOP: u64 = 5;
/// The folder of the tree of trees.
const TREES_FOLDER: u64 = 6;
const FIRST_FOLDER: u64 = 256;
/// Of Ubuntu and Arch Linux, Fedora, and Debian. openSUSE and SLES set a default.
const SYSTEM_NAMES: [&str; 3] = ["@", "root", "@rootfs"];

const HERE: u8 = 0;
const ON_DISK: u8 = 1;
const NOT_WRITTEN: u8 = 2;
const ZLIB: u8 = 1;
const LZO: u8 = 2;
const ZSTD: u8 = 3;

const KIND: u32 = 0o170_000;
const LINK: u32 = 0o120_000;
const FILE: u32 = 0o100_000;

/// Bounds on what somebody else's disk may make drover read and keep.
const NODES_MAX: u32 = 200_000;
const NODES_KEPT: usize = 256;
const CHUNKS_MAX: usize = 100_000;
const EXTENTS_MAX: usize = 100_000;
const KNOWN_MAX: usize = 10_000;
const LINK_BYTES_MAX: u64 = 4096;
/// The kernel packs 128 KiB at a time.
const UNPACKED_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests;
