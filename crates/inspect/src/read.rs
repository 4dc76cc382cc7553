//! Reading a part of a disk.

use std::io;
use std::sync::Arc;

use ext4_view::Ext4Read;

/// A disk that can be read at any byte.
pub trait ReadAt: Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// Also where the disk ends before `bytes` is full.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| beyond())?;
        let end = start.checked_add(bytes.len()).ok_or_else(beyond)?;
        bytes.copy_from_slice(self.get(start..end).ok_or_else(beyond)?);
        Ok(())
    }
}

fn beyond() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it lies past the end of the disk")
}

/// Two bytes as partition tables and NTFS have them.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap_or_default())
}

/// Four bytes.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

/// Eight bytes.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

/// A part of a disk.
#[derive(Clone)]
pub(crate) struct Part {
    disk: Arc<dyn ReadAt>,
    start: u64,
    length: u64,
}

impl Part {
    pub(crate) fn new(disk: Arc<dyn ReadAt>, start: u64, length: u64) -> Part {
        Part { disk, start, length }
    }

    pub(crate) fn size(&self) -> u64 {
        self.length
    }

    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or_else(beyond)?;
        if end > self.length {
            return Err(beyond());
        }
        self.disk.read_at(self.start.checked_add(offset).ok_or_else(beyond)?, bytes)
    }

    /// As [`Part::read_at`]; zeros where it is shorter.
    pub(crate) fn head(&self, bytes: &mut [u8]) -> io::Result<()> {
        let length = self.length.min(bytes.len() as u64) as usize;
        self.read_at(0, &mut bytes[..length])
    }
}

impl Ext4Read for Part {
    fn read(&mut self, start: u64, bytes: &mut [u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.read_at(start, bytes)?)
    }
}
