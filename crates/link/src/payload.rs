//! The bytes of a frame: written once, shared until the peer has acknowledged them.
//!
//! Buffers are used again: memory that is touched for the first time costs more than the copy into it.

use std::sync::{Arc, Mutex, PoisonError};

/// Buffers to be used again.
#[derive(Debug)]
pub struct Pool {
    free: Mutex<Free>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Pool {
    /// A pool that keeps so many bytes at most.
    pub fn new(bytes_max: usize) -> Pool {
        Pool { free: Mutex::default(), bytes_max }
    }

    /// An empty buffer with room for so many bytes.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        let reused = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let buffer = free.buffers.pop();
            free.bytes -= buffer.as_ref().map_or(0, Vec::capacity);
            buffer
        };
        let mut buffer = reused.unwrap_or_default();
        buffer.reserve(bytes);
        buffer
    }

    fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.capacity() > 0 && free.bytes + buffer.capacity() <= self.bytes_max {
            free.bytes += buffer.capacity();
            free.buffers.push(buffer);
        }
    }
}

/// Shared bytes that do not change.
#[derive(Clone, Debug)]
pub struct Payload(Arc<Buffer>);

#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    pool: Option<Arc<Pool>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give(std::mem::take(&mut self.bytes));
        }
    }
}

impl Payload {
    /// Bytes whose buffer goes back to `pool` when nobody needs it any more.
    pub fn pooled(bytes: Vec<u8>, pool: &Arc<Pool>) -> Payload {
        Payload(Arc::new(Buffer { bytes, pool: Some(pool.clone()) }))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload(Arc::new(Buffer { bytes, pool: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL_BYTES_MAX: usize = 32 << 20;

    #[test]
    fn a_buffer_comes_back_when_its_last_user_is_gone() {
        let pool = Arc::new(Pool::new(POOL_BYTES_MAX));
        let mut buffer = pool.take(1000);
        buffer.extend([1; 1000]);
        let at = buffer.as_ptr();
        let one = Payload::pooled(buffer, &pool);
        let two = one.clone();
        drop(one);
        let other = pool.take(1000);
        assert_ne!(other.as_ptr(), at, "still in use");
        drop(two);
        let again = pool.take(1000);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
    }

    #[test]
    fn no_more_than_the_bound_is_kept() {
        let pool = Arc::new(Pool::new(POOL_BYTES_MAX));
        for buffer in [(); 40].map(|()| pool.take(1 << 20)) {
            drop(Payload::pooled(buffer, &pool));
        }
        let free = pool.free.lock().unwrap();
        let kept: usize = free.buffers.iter().map(Vec::capacity).sum();
        assert_eq!(kept, free.bytes);
        assert!(kept <= POOL_BYTES_MAX && kept > POOL_BYTES_MAX / 2);
    }
}
