//! Host clusters are given out in the order they are asked for, and numbers are never used twice while an
//! image is open: what was never used reads as zeros, so a cluster written in part needs no filling, and
//! nothing that an older state of the image on disk names is ever overwritten.

use std::io;
use std::ops::Range;

use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_types::ByteSpan;

use crate::geometry::SECTOR_BYTES;
use crate::host::Host;
use crate::table::Table;
use crate::tables::{State, load};

/// The file is made longer by this much at a time (a hole, cut off again at the end): writes past the
/// end of a file are done one at a time by the kernel, writes into a hole are not.
const GROW_BYTES: u64 = 1 << 30;
/// Room is set aside for so much beyond what is written. 2 GiB in requests of 1 MiB, four at a time, took
/// 1.5 s so and 2.0 s without (ext4, a busy machine; median of 5).
const RESERVE_BYTES: u64 = 16 << 20;
/// Room for packed clusters is taken in pieces of at least this, so that they lie close together.
const ZONE_BYTES: u64 = 4 << 20;
/// Packed clusters of one request start on a page, so that direct I/O takes them.
pub const PACK_ALIGN: u64 = 4096;

impl State {
    /// Takes up to `count` host clusters that follow each other, at least one, and counts them as used.
    ///
    /// # Errors
    /// [`DiskErrorKind::OutOfSpace`] when the file or the refcount table cannot grow.
    pub fn allocate(&mut self, host: &dyn Host, count: u64) -> Result<Range<u64>, DiskError> {
        let range = self.reserve(host, count)?;
        for cluster in range.clone() {
            self.add_ref(host, cluster, 1)?;
        }
        Ok(range)
    }

    /// Takes one host cluster; gives its offset.
    pub fn allocate_one(&mut self, host: &dyn Host) -> Result<u64, DiskError> {
        Ok(self.allocate(host, 1)?.start << self.geometry.cluster_bits)
    }

    /// Takes cluster numbers without counting them; the refcount block that covers them is there then.
    fn reserve(&mut self, host: &dyn Host, count: u64) -> Result<Range<u64>, DiskError> {
        let per_block = self.geometry.refs_per_block();
        let block = self.next / per_block;
        if block >= self.reftable.words() {
            return Err(full(host));
        }
        let has_block = self.reftable.get64(block) != 0;
        let start = self.next + u64::from(!has_block);
        let block_end = (block + 1) * per_block;
        if start == block_end {
            // The block took the last number it covers.
            self.add_block(host, block)?;
            return self.reserve(host, count);
        }
        let end = start.saturating_add(count).min(block_end);
        self.ensure_length(host, end)?;
        if !has_block {
            self.add_block(host, block)?;
        }
        self.next = end;
        Ok(start..end)
    }

    /// Makes the refcount block for `next` in `next` itself.
    fn add_block(&mut self, host: &dyn Host, block: u64) -> Result<(), DiskError> {
        let cluster = self.next;
        self.ensure_length(host, cluster + 1)?;
        let at = cluster << self.geometry.cluster_bits;
        let mut table = Table::new(at, self.geometry.cluster_bytes());
        table.set16(cluster % self.geometry.refs_per_block(), 1);
        self.refs.insert(block, table);
        self.reftable.set64(block, at);
        self.next += 1;
        Ok(())
    }

    fn ensure_length(&mut self, host: &dyn Host, clusters: u64) -> Result<(), DiskError> {
        let needed = clusters << self.geometry.cluster_bits;
        if needed <= self.length {
            return Ok(());
        }
        let ahead = needed.next_multiple_of(GROW_BYTES);
        // A limit on file sizes may lie in between.
        match host.set_length(ahead) {
            Ok(()) => self.length = ahead,
            Err(_) => {
                host.set_length(needed)?;
                self.length = needed;
            }
        }
        Ok(())
    }

    /// Takes room for `bytes` of packed clusters, on a page; gives its offset. Counts nothing yet.
    ///
    /// # Errors
    /// As [`State::allocate`].
    pub fn allocate_packed(&mut self, host: &dyn Host, bytes: u64) -> Result<u64, DiskError> {
        let bytes = bytes.next_multiple_of(PACK_ALIGN);
        let cluster_bytes = self.geometry.cluster_bytes();
        let mut tries = 0;
        while self.zone.end - self.zone.start < bytes {
            let count = bytes.max(ZONE_BYTES).div_ceil(cluster_bytes);
            let range = self.reserve(host, count)?;
            let bits = self.geometry.cluster_bits;
            let (start, end) = (range.start << bits, range.end << bits);
            // Numbers that follow the zone make it longer; a refcount block in between starts a new one.
            self.zone = if start == self.zone.end { self.zone.start..end } else { start..end };
            tries += 1;
            assert!(tries <= ZONE_TRIES_MAX, "a zone of {bytes} bytes was not found");
        }
        let at = self.zone.start;
        self.zone.start += bytes;
        Ok(at)
    }

    /// Gives up the rest of the room for packed clusters, if nothing was taken behind it.
    pub fn return_zone(&mut self) {
        if self.zone.end == self.end_bytes() && !self.zone.is_empty() {
            self.next = self.zone.start.div_ceil(self.geometry.cluster_bytes());
            self.zone.end = self.end_bytes();
        }
    }

    /// Counts the host clusters that a packed cluster touches.
    ///
    /// # Errors
    /// When a refcount block cannot be read.
    pub fn count_packed(&mut self, host: &dyn Host, span: ByteSpan) -> Result<(), DiskError> {
        self.touched(span).try_for_each(|cluster| self.add_ref(host, cluster, 1).map(drop))
    }

    /// Gives back what a packed cluster used; returns the host clusters that nobody uses any more.
    ///
    /// # Errors
    /// When a refcount block cannot be read.
    pub fn uncount_packed(&mut self, host: &dyn Host, span: ByteSpan) -> Result<Vec<u64>, DiskError> {
        let mut free = Vec::new();
        for cluster in self.touched(span) {
            if self.add_ref(host, cluster, -1)? == 0 && !self.is_in_zone(cluster) {
                free.push(cluster);
            }
        }
        Ok(free)
    }

    fn is_in_zone(&self, cluster: u64) -> bool {
        let bits = self.geometry.cluster_bits;
        (self.zone.start >> bits..self.zone.end.div_ceil(self.geometry.cluster_bytes())).contains(&cluster)
    }

    /// Host clusters of the sectors that a packed cluster lies in.
    fn touched(&self, span: ByteSpan) -> Range<u64> {
        let start = span.offset / SECTOR_BYTES * SECTOR_BYTES;
        start >> self.geometry.cluster_bits..span.end().div_ceil(self.geometry.cluster_bytes())
    }

    fn add_ref(&mut self, host: &dyn Host, cluster: u64, change: i16) -> Result<u16, DiskError> {
        let per_block = self.geometry.refs_per_block();
        let block = cluster / per_block;
        let table = self.ref_block(host, block)?;
        let count = table.get16(cluster % per_block).checked_add_signed(change);
        let count =
            count.expect("a cluster has at most as many users as it has sectors, and none below zero");
        table.set16(cluster % per_block, count);
        Ok(count)
    }

    /// The refcount block `block`, read if need be.
    pub fn ref_block(&mut self, host: &dyn Host, block: u64) -> Result<&mut Table, DiskError> {
        if self.refs.get(block).is_none() {
            let at = self.reftable.get64(block);
            self.refs.insert(block, load(host, at, self.geometry.cluster_bytes())?);
        }
        Ok(self.refs.get_mut(block).expect("it was inserted just above"))
    }

    /// What to set room aside for, now that clusters were taken.
    pub fn room_to_reserve(&mut self) -> Option<ByteSpan> {
        let end = self.end_bytes();
        if end <= self.reserved {
            return None;
        }
        let ahead = end.saturating_add(RESERVE_BYTES).min(self.length);
        let span = ByteSpan::from_bounds(self.reserved, ahead);
        self.reserved = ahead;
        Some(span)
    }

    /// Where the file may end when no request is in flight.
    pub fn end_bytes(&self) -> u64 {
        self.next << self.geometry.cluster_bits
    }
}

/// A zone may end at a refcount block twice: after the old zone, and after a piece too short.
const ZONE_TRIES_MAX: u32 = 64;

fn full(host: &dyn Host) -> DiskError {
    let text = "the refcount table is full; copy again into a new image, with larger clusters";
    let source = io::Error::new(io::ErrorKind::StorageFull, text);
    DiskError::with_kind(DiskErrorKind::OutOfSpace, DiskOp::Write, ByteSpan::new(0, 0), host.name(), source)
}
