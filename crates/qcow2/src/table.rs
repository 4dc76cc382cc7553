use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use drover_disk::Buffer;

/// Tables reach the file in pages of this size, which direct I/O takes.
const PAGE_BYTES: usize = 4096;

/// A table as it lies in the file, big-endian, and which part of it the file does not have yet.
pub struct Table {
    host: u64,
    bytes: Buffer,
    dirty: Range<usize>,
    is_new: bool,
}

/// Bytes on their way to the file.
pub struct Piece {
    pub host: u64,
    pub bytes: Buffer,
}

impl Table {
    /// A table of zeros for a host place that nothing points to yet.
    pub fn new(host: u64, bytes: u64) -> Table {
        let bytes = Buffer::zeroed(bytes as usize);
        Table { host, dirty: 0..bytes.len(), bytes, is_new: true }
    }

    /// A table as it was read.
    pub fn loaded(host: u64, bytes: Buffer) -> Table {
        Table { host, bytes, dirty: 0..0, is_new: false }
    }

    /// The table's length in words of 64 bits.
    pub fn words(&self) -> u64 {
        (self.bytes.len() / 8) as u64
    }

    pub fn get64(&self, index: u64) -> u64 {
        let at = index as usize * 8;
        self.bytes[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    pub fn set64(&mut self, index: u64, value: u64) {
        self.put(index as usize * 8, &value.to_be_bytes());
    }

    pub fn get16(&self, index: u64) -> u16 {
        let at = index as usize * 2;
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    pub fn set16(&mut self, index: u64, value: u16) {
        self.put(index as usize * 2, &value.to_be_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.bytes[at..end].copy_from_slice(bytes);
        self.dirty = match self.is_dirty() {
            true => self.dirty.start.min(at)..self.dirty.end.max(end),
            false => at..end,
        };
    }

    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether the file has nothing of it yet.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// A copy of what the file lacks, in whole pages. From now on the table counts as written.
    pub fn take_dirty(&mut self) -> Option<Piece> {
        if !self.is_dirty() {
            return None;
        }
        let start = self.dirty.start / PAGE_BYTES * PAGE_BYTES;
        let end = self.dirty.end.next_multiple_of(PAGE_BYTES).min(self.bytes.len());
        let mut bytes = Buffer::zeroed(end - start);
        bytes.copy_from_slice(&self.bytes[start..end]);
        self.dirty = 0..0;
        self.is_new = false;
        Some(Piece { host: self.host + start as u64, bytes })
    }
}

/// Tables in memory, by their index in the table above.
#[derive(Default)]
pub struct Tables {
    tables: HashMap<u64, Table>,
    /// In the order they came.
    order: VecDeque<u64>,
}

impl Tables {
    pub fn get(&self, index: u64) -> Option<&Table> {
        self.tables.get(&index)
    }

    pub fn get_mut(&mut self, index: u64) -> Option<&mut Table> {
        self.tables.get_mut(&index)
    }

    pub fn insert(&mut self, index: u64, table: Table) {
        if self.tables.insert(index, table).is_none() {
            self.order.push_back(index);
        }
    }

    /// Forgets written tables, oldest first, until the rest takes no more than `bytes_max`. Dirty ones stay.
    pub fn shrink(&mut self, bytes_max: usize) {
        let table_bytes = self.tables.values().next().map_or(1, Table::bytes);
        for _ in 0..self.order.len() {
            if self.tables.len() * table_bytes <= bytes_max {
                return;
            }
            let Some(oldest) = self.order.pop_front() else { return };
            match self.tables.get(&oldest) {
                Some(table) if table.is_dirty() => self.order.push_back(oldest),
                _ => drop(self.tables.remove(&oldest)),
            }
        }
    }

    /// Bytes of tables that the file does not have yet in full.
    pub fn dirty_bytes(&self) -> usize {
        self.tables.values().filter(|table| table.is_dirty()).map(Table::bytes).sum()
    }

    /// Takes what the file lacks: first of tables that are new to it, then of the others.
    pub fn take_dirty(&mut self) -> (Vec<Piece>, Vec<Piece>) {
        let mut dirty: Vec<&mut Table> = self.tables.values_mut().filter(|table| table.is_dirty()).collect();
        dirty.sort_by_key(|table| table.host);
        let (new, old): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|table| table.is_new());
        let take = |tables: Vec<&mut Table>| tables.into_iter().filter_map(Table::take_dirty).collect();
        (take(new), take(old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pages_that_changed_are_written() {
        let mut table = Table::loaded(0x10000, Buffer::zeroed(65536));
        assert!(table.take_dirty().is_none());
        table.set64(513, 7);
        table.set64(1024, u64::MAX);
        assert_eq!((table.get64(513), table.get64(1024)), (7, u64::MAX));
        let piece = table.take_dirty().unwrap();
        assert_eq!((piece.host, piece.bytes.len()), (0x11000, 8192));
        assert_eq!(piece.bytes[8..16], 7u64.to_be_bytes());
        assert!(!table.is_dirty());
        table.set16(2, 0x1234);
        assert_eq!((table.get16(2), table.take_dirty().unwrap().bytes[4]), (0x1234, 0x12));
    }

    #[test]
    fn shrinking_keeps_what_the_file_lacks() {
        let mut tables = Tables::default();
        for index in 0..4 {
            tables.insert(index, Table::loaded(index << 16, Buffer::zeroed(4096)));
        }
        tables.get_mut(0).unwrap().set64(0, 1);
        tables.shrink(8192);
        assert!(tables.get(0).is_some() && tables.get(1).is_none() && tables.get(3).is_some());
        assert_eq!(tables.dirty_bytes(), 4096);
        tables.insert(9, Table::new(9 << 16, 4096));
        let (new, old) = tables.take_dirty();
        assert_eq!((new.len(), old.len(), tables.dirty_bytes()), (1, 1, 0));
    }
}
