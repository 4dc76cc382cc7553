//! The header, version 3, big-endian; offset and bytes.
//!
//! ```text
//!   0 4 magic               4 4 version            8 8 backing file offset  16 4 its length
//!  20 4 cluster bits       24 8 virtual size      32 4 encryption          36 4 L1 entries
//!  40 8 L1 offset          48 8 reftable offset   56 4 its clusters        60 4 snapshots
//!  64 8 snapshot table     72 8 incompatible      80 8 compatible          88 8 autoclear features
//!  96 4 refcount order    100 4 header length    104 1 compression type   105 7 padding
//! 112 extensions: 4 type, 4 length, data padded to 8; type 0 ends them
//! ```

use std::io;

use crate::geometry::{Geometry, L1_BYTES_MAX, REFTABLE_BYTES_MAX};
use crate::options::{Compression, corrupt, refusal};

const MAGIC: u32 = 0x5146_49fb;
const HEADER_BYTES: usize = 112;
/// Bytes of the first cluster that are looked at: no larger than the smallest cluster taken.
pub const PROLOGUE_BYTES: usize = 4096;
/// Refcounts of 16 bits, QEMU's default.
const REFCOUNT_ORDER: u32 = 4;
const COMPRESSION_TYPE: u64 = 1 << 3;
const ZSTD: u8 = 1;

const END: u32 = 0;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const FEATURE_NAMES: u32 = 0x6803_f857;

/// Where the tables of an image lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub geometry: Geometry,
    pub l1_offset: u64,
    pub reftable_offset: u64,
    pub reftable_clusters: u64,
    pub compression: Compression,
}

impl Header {
    pub fn encode(&self, bytes: &mut [u8]) {
        let incompatible = if self.compression == Compression::Zstd { COMPRESSION_TYPE } else { 0 };
        put32(bytes, 0, MAGIC);
        put32(bytes, 4, 3);
        put32(bytes, 20, self.geometry.cluster_bits);
        put64(bytes, 24, self.geometry.size);
        put32(bytes, 36, self.geometry.l1_entries() as u32);
        put64(bytes, 40, self.l1_offset);
        put64(bytes, 48, self.reftable_offset);
        put32(bytes, 56, self.reftable_clusters as u32);
        put64(bytes, 72, incompatible);
        put32(bytes, 96, REFCOUNT_ORDER);
        put32(bytes, 100, HEADER_BYTES as u32);
        bytes[104] = if self.compression == Compression::Zstd { ZSTD } else { 0 };
    }

    /// Reads the header of an image that drover may go on with.
    ///
    /// # Errors
    /// When it is no qcow2 image, or has what drover never makes: a backing file, snapshots, bitmaps,
    /// encryption, an external data file, extended entries, another refcount width.
    pub fn decode(bytes: &[u8; PROLOGUE_BYTES]) -> io::Result<Header> {
        if get32(bytes, 0) != MAGIC {
            return Err(corrupt("it does not start as a qcow2 image"));
        }
        let cluster_bits = get32(bytes, 20);
        let refusals = [
            (get32(bytes, 4) != 3, "it is not of version 3 (compat=1.1)"),
            (get64(bytes, 8) != 0, "it has a backing file"),
            (get32(bytes, 32) != 0, "it is encrypted"),
            (get32(bytes, 60) != 0, "it has snapshots"),
            (get64(bytes, 72) & 1 != 0, "it was not closed in order (lazy refcounts)"),
            (get64(bytes, 72) & 2 != 0, "QEMU marked it as damaged; see `qemu-img check`"),
            (get64(bytes, 72) & !COMPRESSION_TYPE != 0, "it has features drover does not write"),
            (get64(bytes, 80) != 0, "it has lazy refcounts or other features drover does not write"),
            (get64(bytes, 88) != 0, "it has bitmaps or an external data file"),
            (get32(bytes, 96) != REFCOUNT_ORDER, "its refcounts are not of 16 bits"),
            (!(12..=21).contains(&cluster_bits), "its clusters are not of 4 KiB to 2 MiB"),
        ];
        if let Some((_, what)) = refusals.iter().find(|(wrong, _)| *wrong) {
            return Err(refusal(format!("{what}, so drover cannot write it")));
        }
        let compression = read_compression(bytes)?;
        check_extensions(bytes)?;
        let size = get64(bytes, 24);
        let geometry = Geometry::new(cluster_bits, size)?;
        if geometry.size != size || u64::from(get32(bytes, 36)) != geometry.l1_entries() {
            return Err(refusal("its L1 table does not fit its size, as after resizing; convert it first"));
        }
        let header = Header {
            geometry,
            l1_offset: get64(bytes, 40),
            reftable_offset: get64(bytes, 48),
            reftable_clusters: u64::from(get32(bytes, 56)),
            compression,
        };
        header.check_places()?;
        Ok(header)
    }

    fn check_places(&self) -> io::Result<()> {
        let cluster = self.geometry.cluster_bytes();
        let offsets = [self.l1_offset, self.reftable_offset];
        let is_place = |offset: &u64| offset.is_multiple_of(cluster) && (1..1 << 56).contains(offset);
        let table_bytes = self.reftable_clusters.saturating_mul(cluster);
        // An empty disk has an L1 table of no entries, wherever it is said to lie.
        let places_ok = offsets.iter().skip(usize::from(self.geometry.l1_entries() == 0)).all(is_place);
        if places_ok && (1..=REFTABLE_BYTES_MAX.max(cluster)).contains(&table_bytes) {
            debug_assert!(self.geometry.l1_entries() * 8 <= L1_BYTES_MAX);
            return Ok(());
        }
        Err(corrupt("its header names tables at impossible places"))
    }
}

fn read_compression(bytes: &[u8]) -> io::Result<Compression> {
    let has_type = get64(bytes, 72) & COMPRESSION_TYPE != 0;
    let kind = if get32(bytes, 100) > 104 { bytes[104] } else { 0 };
    match (has_type, kind) {
        (false, 0) => Ok(Compression::Zlib),
        (true, ZSTD) => Ok(Compression::Zstd),
        _ => Err(refusal(format!("its compression type {kind} is not known"))),
    }
}

/// Extensions that change nothing for a writer may be there; others may not.
fn check_extensions(bytes: &[u8]) -> io::Result<()> {
    let mut at = get32(bytes, 100) as usize;
    if at < 104 || !at.is_multiple_of(8) {
        return Err(corrupt("its header has an impossible length"));
    }
    while at + 8 <= bytes.len() {
        let (kind, length) = (get32(bytes, at), get32(bytes, at + 4) as usize);
        match kind {
            END => return Ok(()),
            BACKING_FORMAT | FEATURE_NAMES => {}
            kind => return Err(refusal(format!("it has the header extension {kind:#010x}"))),
        }
        at = at.saturating_add(8).saturating_add(length.next_multiple_of(8));
    }
    Err(corrupt("its header extensions have no end"))
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get32(bytes, at)) << 32 | u64::from(get32(bytes, at + 4))
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(compression: Compression) -> (Header, [u8; PROLOGUE_BYTES]) {
        let geometry = Geometry::new(16, 10 << 20).unwrap();
        let (l1_offset, reftable_offset) = (3 << 16, 1 << 16);
        let header = Header { geometry, l1_offset, reftable_offset, reftable_clusters: 1, compression };
        let mut bytes = [0; PROLOGUE_BYTES];
        header.encode(&mut bytes);
        (header, bytes)
    }

    #[test]
    fn a_header_comes_back_as_it_went() {
        for compression in [Compression::Zlib, Compression::Zstd] {
            let (header, bytes) = header(compression);
            assert_eq!(Header::decode(&bytes).unwrap(), header);
        }
    }

    #[test]
    fn what_drover_does_not_write_is_refused() {
        for (at, value) in [
            (4, 2),
            (15, 1),
            (23, 9),
            (23, 22),
            (35, 1),
            (63, 1),
            (79, 1),
            (79, 2),
            (79, 4),
            (79, 16),
            (87, 1),
            (95, 1),
            (99, 6),
            (103, 8),
            (104, 1),
            (115, 0x44),
            (39, 9),
            (46, 1),
            (56, 9),
            (31, 1),
        ] {
            let (_, mut bytes) = header(Compression::Zlib);
            bytes[at] = value;
            assert!(Header::decode(&bytes).is_err(), "byte {at} = {value}");
        }
    }
}
