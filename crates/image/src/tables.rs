use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// A bounded cache of tables of one length. A table has one slot where it may be; copying reads
/// tables in order, and then this keeps as much as anything cleverer.
pub(crate) struct Tables {
    slots: Vec<Mutex<Slot>>,
    table_bytes: usize,
}

/// Which table, and its bytes.
type Slot = Option<(u64, Arc<[u8]>)>;

/// Memory of one image's cache. At clusters of 64 KiB it maps 64 GiB at once.
pub(crate) const CACHE_BYTES_MAX: u64 = 8 << 20;

const SLOTS_MAX: u64 = 4096;

impl Tables {
    /// A cache for `count` tables of `table_bytes` each, in about so much memory. It holds one
    /// table at least.
    pub(crate) fn new(count: u64, table_bytes: u64, memory_bytes: u64) -> Tables {
        let fitting = (memory_bytes.min(CACHE_BYTES_MAX) / table_bytes).clamp(1, SLOTS_MAX);
        let slots = (0..fitting.min(count)).map(|_| Mutex::new(None)).collect();
        Tables { slots, table_bytes: table_bytes as usize }
    }

    /// Memory it takes when full.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.slots.len() * self.table_bytes) as u64
    }

    /// The table of that number, loaded by `load` if it is not there. Others who want a table of
    /// the same slot wait, so that none is loaded twice at once.
    pub(crate) fn table(
        &self,
        index: u64,
        load: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<Arc<[u8]>> {
        let slot = &self.slots[(index % self.slots.len() as u64) as usize];
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((held, table)) = &*slot
            && *held == index
        {
            return Ok(table.clone());
        }
        let mut bytes = vec![0; self.table_bytes];
        load(&mut bytes)?;
        let table: Arc<[u8]> = bytes.into();
        *slot = Some((index, table.clone()));
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_loaded_once_while_it_is_held_and_memory_is_bounded() {
        let tables = Tables::new(u64::MAX, 2 << 20, u64::MAX);
        assert_eq!(tables.memory_bytes(), CACHE_BYTES_MAX);
        let mut loads = 0;
        for index in [0, 0, 1, 0, 4, 0] {
            let table = tables.table(index, |bytes| {
                loads += 1;
                bytes[0] = index as u8;
                Ok(())
            });
            assert_eq!(table.unwrap()[0], index as u8);
        }
        assert_eq!(loads, 4, "0, 1, 4 and 0 again, which 4 pushed out");
        assert!(tables.table(9, |_| Err(io::ErrorKind::Other.into())).is_err());
        assert!(tables.table(9, |_| Ok(())).is_ok(), "a failed load is tried again");
    }
}
