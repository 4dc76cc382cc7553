use std::io;

use drover_types::ByteSpan;

use super::header::Header;
use crate::fault::{Numbers, damaged};

/// Host offsets in L1 and L2 entries.
pub(crate) const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
/// Bits of an L1 entry that mean nothing: all but the offset and "refcount is one".
pub(crate) const L1_RESERVED: u64 = !(OFFSET_MASK | COPIED);

const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// Of an entry that is not extended; version 3 only.
const ALL_ZEROS: u64 = 1;
const SECTOR_BYTES: u64 = 512;
const SUBCLUSTERS: u64 = 32;

/// An entry of an L2 table.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    word: u64,
    /// Of extended entries: which subclusters are allocated (low half), which are zeros (high half).
    bitmap: u64,
}

/// What an entry says about a part of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cluster {
    /// The backing file's.
    Absent,
    /// Zeros.
    Zero,
    /// Data; the cluster starts at this host offset.
    Data(u64),
    /// Compressed into these bytes of the image, or a little less.
    Packed(ByteSpan),
}

/// A part of a cluster, up to `end` in it.
pub(crate) struct Piece {
    pub(crate) cluster: Cluster,
    pub(crate) end: u64,
}

impl Entry {
    pub(crate) fn read(table: &[u8], index: usize, header: &Header) -> io::Result<Entry> {
        if header.extended {
            return Ok(Entry { word: table.be64(index * 16)?, bitmap: table.be64(index * 16 + 8)? });
        }
        Ok(Entry { word: table.be64(index * 8)?, bitmap: 0 })
    }

    /// What lies at byte `skip` of the cluster, and how far it goes.
    pub(crate) fn piece_at(self, skip: u64, header: &Header, external: bool) -> io::Result<Piece> {
        if self.word & COMPRESSED != 0 {
            let cluster = Cluster::Packed(self.packed_span(header, external)?);
            return Ok(Piece { cluster, end: header.cluster_bytes() });
        }
        let host = self.host(header, external)?;
        if header.extended {
            return self.subclusters_at(skip, host, header);
        }
        let zeros = header.version >= 3 && self.word & ALL_ZEROS != 0;
        let cluster = match host {
            _ if zeros => Cluster::Zero,
            Some(host) => Cluster::Data(host),
            None => Cluster::Absent,
        };
        Ok(Piece { cluster, end: header.cluster_bytes() })
    }

    /// Where the cluster is, if it has a place.
    fn host(self, header: &Header, external: bool) -> io::Result<Option<u64>> {
        let flags = if header.extended || header.version < 3 { COPIED } else { COPIED | ALL_ZEROS };
        let host = self.word & OFFSET_MASK;
        if self.word & !(OFFSET_MASK | flags) != 0 || !host.is_multiple_of(header.cluster_bytes()) {
            return Err(self.fault("has bits that mean nothing"));
        }
        // Offset 0 is the image's own header, but the first cluster of a data file is data.
        let there = host != 0 || (external && self.word & COPIED != 0);
        Ok(there.then_some(host))
    }

    /// Subclusters from that byte on that are alike.
    fn subclusters_at(self, skip: u64, host: Option<u64>, header: &Header) -> io::Result<Piece> {
        let bytes = header.cluster_bytes() / SUBCLUSTERS;
        let first = skip / bytes;
        let state = self.subcluster(first, host)?;
        let mut last = first;
        while last + 1 < SUBCLUSTERS && self.subcluster(last + 1, host).is_ok_and(|next| next == state) {
            last += 1;
        }
        Ok(Piece { cluster: state, end: (last + 1) * bytes })
    }

    fn subcluster(self, index: u64, host: Option<u64>) -> io::Result<Cluster> {
        let allocated = self.bitmap >> index & 1 == 1;
        let zeros = self.bitmap >> (index + SUBCLUSTERS) & 1 == 1;
        match (allocated, zeros, host) {
            (true, true, _) => Err(self.fault("says of a subcluster that it is data and zeros")),
            (true, false, None) => Err(self.fault("says of a subcluster that it is data, but not where")),
            (true, false, Some(host)) => Ok(Cluster::Data(host)),
            (false, true, _) => Ok(Cluster::Zero),
            (false, false, _) => Ok(Cluster::Absent),
        }
    }

    /// A compressed cluster starts at any byte; its length is told in sectors beyond the first.
    fn packed_span(self, header: &Header, external: bool) -> io::Result<ByteSpan> {
        if external || self.bitmap != 0 {
            return Err(self.fault("is compressed where nothing may be"));
        }
        let offset_bits = 62 - (header.cluster_bits - 8);
        let offset = self.word & ((1 << offset_bits) - 1);
        let sectors = (self.word & (COMPRESSED - 1)) >> offset_bits;
        let bytes = (sectors + 1) * SECTOR_BYTES - offset % SECTOR_BYTES;
        Ok(ByteSpan::new(offset, bytes))
    }

    fn fault(self, text: &str) -> io::Error {
        damaged(format!("an entry of an L2 table ({:#x}, {:#x}) {text}", self.word, self.bitmap))
    }
}
