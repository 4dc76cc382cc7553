//! Words of the tables.
//!
//! ```text
//! L1, bits      63 COPIED | 62-56 reserved | 55-9 host offset of an L2 table | 8-0 reserved
//! L2 standard   63 COPIED | 62 = 0 | 61-56 reserved | 55-9 host offset | 8-1 reserved | 0 reads as zeros
//! L2 compressed 63 = 0 | 62 = 1 | 61-x sectors beyond the first | (x-1)-0 host offset, any byte
//!               with x = 62 - (cluster_bits - 8)
//! ```

use std::io;

use drover_types::ByteSpan;

use crate::geometry::{Geometry, SECTOR_BYTES};
use crate::options::corrupt;

/// The cluster has one user, so it may be written in place.
pub const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// What an L2 entry says of a guest cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing was ever written: it reads as zeros.
    Absent,
    /// Reads as zeros; may keep a host cluster whose bytes mean nothing.
    Zero(Option<u64>),
    /// Lies in this host cluster.
    Data(u64),
    /// Lies packed in these bytes; the last sector may hold more than it.
    Packed(ByteSpan),
}

impl Entry {
    /// Reads an entry, whatever it is. Reserved bits count for nothing; [`Entry::check`] refuses them.
    pub fn decode(word: u64, geometry: Geometry) -> Entry {
        if word & COMPRESSED != 0 {
            let shift = 62 - (geometry.cluster_bits - 8);
            let offset = word & ((1 << shift) - 1);
            let sectors = ((word & (COMPRESSED - 1)) >> shift) + 1;
            return Entry::Packed(ByteSpan::new(offset, sectors * SECTOR_BYTES - offset % SECTOR_BYTES));
        }
        let host = word & OFFSET & !(geometry.cluster_bytes() - 1);
        match (host, word & ZERO != 0) {
            (0, false) => Entry::Absent,
            (0, true) => Entry::Zero(None),
            (host, true) => Entry::Zero(Some(host)),
            (host, false) => Entry::Data(host),
        }
    }

    /// The word of an entry. Every standard cluster that drover uses has one user.
    pub fn encode(self, geometry: Geometry) -> u64 {
        match self {
            Entry::Absent => 0,
            Entry::Zero(None) => ZERO,
            Entry::Zero(Some(host)) => host | ZERO | COPIED,
            Entry::Data(host) => host | COPIED,
            Entry::Packed(span) => {
                let shift = 62 - (geometry.cluster_bits - 8);
                let sectors = (span.offset % SECTOR_BYTES + span.length).div_ceil(SECTOR_BYTES);
                COMPRESSED | ((sectors - 1) << shift) | span.offset
            }
        }
    }

    /// Reads an entry of an image that somebody else may have written.
    ///
    /// # Errors
    /// When it is none that drover would write.
    pub fn check(word: u64, geometry: Geometry) -> io::Result<Entry> {
        let entry = Entry::decode(word, geometry);
        if entry.encode(geometry) == word {
            return Ok(entry);
        }
        Err(corrupt(format!("L2 entry {word:#018x} is damaged, or the cluster is shared with a snapshot")))
    }

    /// The host bytes that the cluster uses.
    pub fn used(self, geometry: Geometry) -> Option<ByteSpan> {
        match self {
            Entry::Absent | Entry::Zero(None) => None,
            Entry::Zero(Some(host)) | Entry::Data(host) => {
                Some(ByteSpan::new(host, geometry.cluster_bytes()))
            }
            Entry::Packed(span) => Some(span),
        }
    }

    pub fn reads_as_zeros(self) -> bool {
        matches!(self, Entry::Absent | Entry::Zero(_))
    }
}

/// The L2 table that an L1 word names, if any.
pub fn l2_host(word: u64) -> Option<u64> {
    Some(word & OFFSET).filter(|host| *host != 0)
}

/// Checks an L1 word of an image that somebody else may have written.
///
/// # Errors
/// When it is none that drover would write.
pub fn check_l1(word: u64, geometry: Geometry) -> io::Result<Option<u64>> {
    match l2_host(word) {
        None if word == 0 => Ok(None),
        Some(host) if word == host | COPIED && host.is_multiple_of(geometry.cluster_bytes()) => {
            Ok(Some(host))
        }
        _ => {
            Err(corrupt(format!("L1 entry {word:#018x} is damaged, or the table is shared with a snapshot")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_as_they_went() {
        for bits in [12, 16, 21] {
            let geometry = Geometry::new(bits, 1 << 30).unwrap();
            let cluster = geometry.cluster_bytes();
            let packed = |offset, length| Entry::Packed(ByteSpan::new(offset, length));
            let entries = [
                Entry::Absent,
                Entry::Zero(None),
                Entry::Zero(Some(cluster * 5)),
                Entry::Data(cluster * 7),
                packed(cluster * 3, 512),
                packed(cluster * 3 + 1, 511),
                packed(cluster * 3 + 511, 1),
                packed(cluster * 9 + 700, cluster - 700 + 512),
            ];
            for entry in entries {
                let word = entry.encode(geometry);
                assert_eq!(Entry::check(word, geometry).unwrap(), entry, "{word:#x}");
            }
        }
    }

    #[test]
    fn strange_words_are_refused_not_misread() {
        let geometry = Geometry::new(16, 1 << 30).unwrap();
        for word in [0x10000, COPIED, COPIED | 0x10200, COPIED | 0x10002, 1 << 60, COPIED | COMPRESSED] {
            assert!(Entry::check(word, geometry).is_err(), "{word:#x}");
        }
        for word in [0x10000, COPIED, COPIED | 0x10200, 1, 1 << 60] {
            assert!(check_l1(word, geometry).is_err(), "{word:#x}");
        }
        assert_eq!(check_l1(COPIED | 0x10000, geometry).unwrap(), Some(0x10000));
    }
}
