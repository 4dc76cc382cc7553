use std::ops::Range;

/// Room for heads and small payloads. What follows a head in the same read is copied from here to where it belongs, so it
/// should not be large.
const STAGE_BYTES: usize = 4096;

/// Bytes received and not yet understood: heads of messages and what is no data. Data goes past it, into the buffer that
/// it is for.
pub struct Stage {
    bytes: [u8; STAGE_BYTES],
    filled: Range<usize>,
}

impl Default for Stage {
    fn default() -> Stage {
        Stage { bytes: [0; STAGE_BYTES], filled: 0..0 }
    }
}

impl Stage {
    /// What is there.
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.filled.clone()]
    }

    /// So many bytes are understood.
    pub fn consume(&mut self, length: usize) {
        self.filled.start = (self.filled.start + length).min(self.filled.end);
    }

    /// Moves what is there into `bytes`, as far as it goes; how much that was.
    pub fn take(&mut self, bytes: &mut [u8]) -> usize {
        let length = self.filled.len().min(bytes.len());
        bytes[..length].copy_from_slice(&self.get()[..length]);
        self.consume(length);
        length
    }

    /// The free part, after moving what is left to the front. Never empty where heads are consumed once they are whole.
    pub fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        &mut self.bytes[self.filled.end..]
    }

    /// So many bytes were received into the room.
    pub fn received(&mut self, length: usize) {
        self.filled.end = (self.filled.end + length).min(STAGE_BYTES);
    }
}
