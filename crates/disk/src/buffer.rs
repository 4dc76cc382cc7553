use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Buffers start on a multiple of this many bytes, as direct I/O demands.
/// 4 KiB covers every logical block size in use.
pub const BUFFER_ALIGN: usize = 4096;

/// Bytes in memory that start on an aligned address, so that direct I/O takes them.
///
/// Make few and use them again: first touch of fresh memory costs more than a read from the page
/// cache (0.4 to 2.5 GB/s measured, against 7 and more for warm memory).
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// A buffer of `length` zero bytes.
    pub fn zeroed(length: usize) -> Self {
        let bytes = vec![0; length + BUFFER_ALIGN];
        let start = bytes.as_ptr().align_offset(BUFFER_ALIGN);
        assert!(start <= BUFFER_ALIGN, "align_offset is exact for byte pointers");
        Buffer { bytes, start, length }
    }

    /// As [`Buffer::zeroed`], for buffers so large that there may be no memory for them.
    ///
    /// # Errors
    /// Then. Another thread may still take the memory in between, and a process whose allocator fails ends.
    pub fn try_zeroed(length: usize) -> io::Result<Self> {
        // Asked for first, since `vec![0; n]` does not fail; zeros that nobody touched yet cost nothing, so it is used all the same.
        let mut asked = Vec::<u8>::new();
        let room = length.checked_add(BUFFER_ALIGN).ok_or(io::ErrorKind::OutOfMemory)?;
        let is_there = asked.try_reserve_exact(room);
        std::hint::black_box(&asked);
        is_there.map_err(|_| {
            let text = format!("there is no memory for a buffer of {length} bytes: see `ulimit -v`, or give less with --memory");
            io::Error::new(io::ErrorKind::OutOfMemory, text)
        })?;
        drop(asked);
        Ok(Buffer::zeroed(length))
    }

    /// The largest length [`Buffer::set_len`] takes.
    pub fn capacity(&self) -> usize {
        self.bytes.len() - BUFFER_ALIGN
    }

    /// Sets the length in use; the bytes keep whatever they held.
    ///
    /// # Panics
    /// If `length` is larger than the capacity.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.capacity(), "buffer of {} bytes set to {length}", self.capacity());
        self.length = length;
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

/// A part of a buffer that several writes may share: one read of 1 MiB with a hole in its middle
/// becomes two writes of the same buffer.
#[derive(Clone, Debug)]
pub struct Slice {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl Slice {
    /// The bytes `range` of `buffer`.
    ///
    /// # Panics
    /// If the range does not lie in the buffer.
    pub fn new(buffer: Arc<Buffer>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= buffer.len(), "slice {range:?} of {}", buffer.len());
        Slice { buffer, range }
    }

    /// The bytes `range` of this slice, of the same buffer.
    ///
    /// # Panics
    /// If the range does not lie in the slice.
    pub fn part(&self, range: Range<usize>) -> Slice {
        assert!(range.end <= self.range.len(), "part {range:?} of {}", self.range.len());
        let start = self.range.start;
        Slice::new(self.buffer.clone(), start + range.start..start + range.end)
    }

    /// Gives up the slice and, if it was the last, returns the buffer for further use.
    pub fn into_buffer(self) -> Option<Buffer> {
        Arc::into_inner(self.buffer)
    }
}

impl From<Buffer> for Slice {
    fn from(buffer: Buffer) -> Self {
        let range = 0..buffer.len();
        Slice { buffer: Arc::new(buffer), range }
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_whatever_their_length() {
        for length in [0, 1, 511, 4096, 1 << 20] {
            let buffer = Buffer::try_zeroed(length).unwrap();
            assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGN, 0);
            assert_eq!((buffer.len(), buffer.capacity()), (length, length));
        }
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error_that_says_so() {
        let error = Buffer::try_zeroed(usize::MAX / 4).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("there is no memory for a buffer of"), "{error}");
    }

    #[test]
    fn the_last_slice_gives_the_buffer_back() {
        let buffer = Arc::new(Buffer::zeroed(8192));
        let (a, b) = (Slice::new(buffer.clone(), 0..4096), Slice::new(buffer, 4096..8192));
        assert_eq!(b.part(96..196).range, 4192..4292);
        assert!(a.into_buffer().is_none());
        assert_eq!(b.into_buffer().map(|buffer| buffer.capacity()), Some(8192));
    }
}
