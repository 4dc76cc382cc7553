use std::io;

use drover_types::ByteSpan;

use crate::fault::{Numbers, damaged, unsupported};
use crate::open::Format;
use crate::source::{ReadAt, read_piece};
use crate::unpack::Codec;

/// The header, checked: every field lies in its bounds.
///
/// ```text
/// 0 magic  4 version  8 backing offset u64  16 backing length u32  20 cluster bits u32  24 size u64
/// 32 encryption u32  36 L1 entries u32  40 L1 offset u64  48 refcounts u64  56 their clusters u32
/// 60 snapshots u32  64 their offset u64                                       (version 2 ends: 72)
/// 72 incompatible u64  80 compatible u64  88 autoclear u64  96 refcount order u32  100 length u32
/// 104 compression u8                      then extensions: type u32, length u32, data, pad to 8
/// ```
/// All big endian. Source: QEMU `docs/interop/qcow2.txt`.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) cluster_bits: u32,
    pub(crate) size: u64,
    pub(crate) l1_offset: u64,
    /// Entries that the size needs; the table may have more.
    pub(crate) l1_entries: u64,
    pub(crate) codec: Codec,
    pub(crate) extended: bool,
    pub(crate) dirty: bool,
    pub(crate) backing: Option<Backing>,
    /// Name of the file with the data; absent if the data is in the image.
    pub(crate) data_file: Option<String>,
}

/// The backing file, as the header names it.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) name: String,
    pub(crate) format: Format,
}

pub(crate) const MAGIC: &[u8; 4] = b"QFI\xfb";

/// Clusters of 512 bytes to 2 MiB, as QEMU takes them.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Subclusters are at least one sector.
const CLUSTER_BITS_EXTENDED_MIN: u32 = 14;
/// As QEMU; with clusters of 64 KiB it maps 2 PiB.
const L1_BYTES_MAX: u64 = 32 << 20;
/// Header and extensions lie in the first cluster; more than this of it is not looked at.
const HEAD_BYTES_MAX: u64 = 64 << 10;
/// As the format says.
const NAME_BYTES_MAX: u32 = 1023;

const V2_BYTES: u32 = 72;
const V3_BYTES_MIN: u32 = 104;

const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;

impl Header {
    pub(crate) fn read(source: &dyn ReadAt) -> io::Result<Header> {
        let bytes = read_piece(
            source,
            "the header",
            ByteSpan::new(0, source.length().min(HEAD_BYTES_MAX)),
            HEAD_BYTES_MAX,
        )?;
        parse(&bytes)
    }

    pub(crate) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of an entry of an L2 table.
    pub(crate) fn entry_bytes(&self) -> u64 {
        if self.extended { 16 } else { 8 }
    }
}

fn parse(bytes: &[u8]) -> io::Result<Header> {
    if !bytes.starts_with(MAGIC) {
        return Err(damaged("it does not start as a qcow2 image"));
    }
    let version = bytes.be32(4)?;
    let (header_bytes, incompatible) = match version {
        2 => (V2_BYTES, 0),
        3 => (bytes.be32(100)?, bytes.be64(72)?),
        _ => return Err(unsupported(format!("qcow2 version {version}; versions 2 and 3 are read"))),
    };
    let cluster_bits = bytes.be32(20)?;
    if !CLUSTER_BITS.contains(&cluster_bits) {
        return Err(damaged(format!("clusters of 2^{cluster_bits} bytes; 2^9 to 2^21 are allowed")));
    }
    // Nothing of the header lies beyond the first cluster.
    let bytes = &bytes[..bytes.len().min(1 << cluster_bits)];
    if version == 3 && (header_bytes < V3_BYTES_MIN || header_bytes as usize > bytes.len()) {
        return Err(damaged(format!("a header of {header_bytes} bytes")));
    }
    check_features(incompatible)?;
    check_encryption(bytes.be32(32)?)?;
    let extended = incompatible & EXTENDED_L2 != 0;
    if extended && cluster_bits < CLUSTER_BITS_EXTENDED_MIN {
        return Err(damaged(format!("subclusters in clusters of 2^{cluster_bits} bytes")));
    }
    let extensions = Extensions::read(bytes, header_bytes as usize)?;
    let mut header = Header {
        version,
        cluster_bits,
        size: bytes.be64(24)?,
        l1_offset: bytes.be64(40)?,
        l1_entries: 0,
        codec: codec(incompatible, bytes, header_bytes)?,
        extended,
        dirty: incompatible & DIRTY != 0,
        backing: backing(bytes, extensions.backing_format)?,
        data_file: None,
    };
    header.l1_entries = l1_entries(&header, u64::from(bytes.be32(36)?))?;
    if incompatible & DATA_FILE != 0 {
        let missing = || damaged("its data is in another file, which it does not name");
        header.data_file = Some(extensions.data_file.ok_or_else(missing)?);
    }
    Ok(header)
}

fn check_features(incompatible: u64) -> io::Result<()> {
    if incompatible & CORRUPT != 0 {
        return Err(damaged("it is marked as corrupt; repair a copy of it with `qemu-img check -r all`"));
    }
    let unknown = incompatible & !(DIRTY | DATA_FILE | COMPRESSION | EXTENDED_L2);
    if unknown == 0 {
        return Ok(());
    }
    let bits: Vec<String> =
        (0..64).filter(|bit| unknown >> bit & 1 == 1).map(|bit| bit.to_string()).collect();
    Err(unsupported(format!("it needs features that are not known here: bits {}", bits.join(", "))))
}

fn check_encryption(method: u32) -> io::Result<()> {
    let name = match method {
        0 => return Ok(()),
        1 => "AES",
        2 => "LUKS",
        _ => "an unknown method",
    };
    Err(unsupported(format!("it is encrypted ({name}); decrypt it with `qemu-img convert` first")))
}

fn codec(incompatible: u64, bytes: &[u8], header_bytes: u32) -> io::Result<Codec> {
    let kind = if header_bytes > V3_BYTES_MIN { bytes.take::<1>(V3_BYTES_MIN as usize)?[0] } else { 0 };
    match (incompatible & COMPRESSION != 0, kind) {
        (false, 0) => Ok(Codec::Deflate),
        (true, 1) => Ok(Codec::Zstd),
        (true, 2..) => Err(unsupported(format!("compression of kind {kind}; zlib and zstd are read"))),
        _ => Err(damaged("its header tells two kinds of compression")),
    }
}

/// How many entries of L1 the size needs, if the table has them and is not too large.
fn l1_entries(header: &Header, entries: u64) -> io::Result<u64> {
    let per_table = header.cluster_bytes() / header.entry_bytes();
    let needed = header.size.div_ceil(header.cluster_bytes() * per_table);
    if needed > entries {
        return Err(damaged(format!("an L1 table of {entries} entries; its size needs {needed}")));
    }
    if needed * 8 > L1_BYTES_MAX {
        return Err(unsupported(format!(
            "an L1 table of {needed} entries; it may have {}",
            L1_BYTES_MAX / 8
        )));
    }
    if !header.l1_offset.is_multiple_of(header.cluster_bytes()) {
        return Err(damaged(format!("an L1 table at {:#x}, not at a cluster", header.l1_offset)));
    }
    Ok(needed)
}

fn backing(bytes: &[u8], format: Option<String>) -> io::Result<Option<Backing>> {
    let (offset, length) = (bytes.be64(8)?, bytes.be32(16)?);
    if offset == 0 || length == 0 {
        return Ok(None);
    }
    if length > NAME_BYTES_MAX {
        return Err(damaged(format!("a name of {length} bytes for its backing file")));
    }
    let name =
        usize::try_from(offset).ok().and_then(|start| bytes.get(start..start.checked_add(length as usize)?));
    let name = text(name.ok_or_else(|| damaged("the name of its backing file lies outside its header"))?)?;
    let Some(format) = format else {
        return Err(unsupported(format!(
            "it does not say what format its backing file '{name}' has, and guessing is not safe; \
             say it with `qemu-img rebase -u -F FORMAT -b FILE IMAGE`"
        )));
    };
    let format = format.parse().map_err(|error| unsupported(format!("its backing file: {error}")))?;
    Ok(Some(Backing { name, format }))
}

#[derive(Default)]
struct Extensions {
    backing_format: Option<String>,
    data_file: Option<String>,
}

impl Extensions {
    fn read(bytes: &[u8], start: usize) -> io::Result<Extensions> {
        let mut found = Extensions::default();
        let mut at = start;
        // Each one is at least 8 bytes long, so the header bounds their number. A header that ends
        // without an end mark is one where the backing file's name follows at once, or nothing.
        while let (Ok(kind), Ok(length)) = (bytes.be32(at), bytes.be32(at + 4)) {
            if kind == 0 {
                break;
            }
            let data = bytes.get(at + 8..).and_then(|rest| rest.get(..length as usize));
            let Some(data) = data else {
                return Err(damaged("an extension of its header is longer than that"));
            };
            match kind {
                EXTENSION_BACKING_FORMAT => found.backing_format = Some(text(data)?),
                EXTENSION_DATA_FILE => found.data_file = Some(text(data)?),
                _ => {}
            }
            at += 8 + (length as usize).next_multiple_of(8);
        }
        Ok(found)
    }
}

fn text(bytes: &[u8]) -> io::Result<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| unsupported("a name in its header is not UTF-8"))
}
