//! The bytes of a frame: written once, shared until the peer has acknowledged them.
//!
//! Buffers are used again: memory that is touched for the first time costs more than the copy into it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Smaller buffers cost nothing to make.
const POOLED_BYTES_MIN: usize = 16 << 10;

/// Buffers to be used again.
#[derive(Debug)]
pub struct Pool {
    free: Mutex<Free>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Free {
    /// By what they have room for.
    buffers: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl Free {
    /// One of just this size: what is counted by its bytes must not hold much more.
    fn take(&mut self, capacity: usize) -> Option<Vec<u8>> {
        let alike = self.buffers.get_mut(&capacity)?;
        let buffer = alike.pop();
        if alike.is_empty() {
            self.buffers.remove(&capacity);
        }
        self.bytes -= buffer.as_ref().map_or(0, Vec::capacity);
        buffer
    }

    fn give(&mut self, buffer: Vec<u8>) {
        self.bytes += buffer.capacity();
        self.buffers.entry(buffer.capacity()).or_default().push(buffer);
    }

    /// Has one go, so that those of a size that is not wanted any more do not stay for ever.
    fn drop_one(&mut self) {
        let most = self.buffers.iter().max_by_key(|(capacity, alike)| *capacity * alike.len());
        if let Some(capacity) = most.map(|(capacity, _)| *capacity) {
            drop(self.take(capacity));
        }
    }
}

/// Room that is made for so many bytes: one of few sizes, so that buffers fit again, and an eighth more at most.
fn rounded(bytes: usize) -> usize {
    bytes.next_multiple_of((bytes.next_power_of_two() / 16).max(1))
}

impl Pool {
    /// A pool that keeps so many bytes at most.
    pub fn new(bytes_max: usize) -> Pool {
        Pool { free: Mutex::default(), bytes_max }
    }

    /// An empty buffer with room for so many bytes.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.any(bytes);
        buffer.clear();
        buffer
    }

    /// A buffer of so many bytes, whatever they are: to be written over.
    pub fn take_filled(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.any(bytes);
        buffer.resize(bytes, 0);
        buffer
    }

    fn any(&self, bytes: usize) -> Vec<u8> {
        if bytes >= POOLED_BYTES_MIN {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(buffer) = free.take(rounded(bytes)) {
                return buffer;
            }
            if free.bytes > self.bytes_max / 2 {
                free.drop_one();
            }
        }
        Vec::with_capacity(rounded(bytes))
    }

    /// Takes a buffer back, with what is in it: it need not be made zero again for one that only writes over it.
    pub fn give(&self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        // One that was not made here may have a size that nobody asks for.
        if capacity < POOLED_BYTES_MIN || capacity != rounded(capacity) {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + capacity <= self.bytes_max {
            free.give(buffer);
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
        const BYTES: usize = 100_000;
        let pool = Arc::new(Pool::new(POOL_BYTES_MAX));
        let mut buffer = pool.take(BYTES);
        buffer.extend([1; BYTES]);
        let at = buffer.as_ptr();
        let one = Payload::pooled(buffer, &pool);
        let two = one.clone();
        drop(one);
        let other = pool.take(BYTES);
        assert_ne!(other.as_ptr(), at, "still in use");
        drop(two);
        let again = pool.take(BYTES);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
    }

    #[test]
    fn a_buffer_is_never_given_for_much_less_than_it_holds() {
        let pool = Pool::new(POOL_BYTES_MAX);
        (14..20)
            .for_each(|power| (8..16).for_each(|part| pool.give(Vec::with_capacity(part << (power - 3)))));
        for bytes in (16 << 10..=1 << 20).step_by(997) {
            let buffer = pool.take_filled(bytes);
            let room = buffer.capacity();
            assert!(buffer.len() == bytes && room <= bytes + bytes / 8, "{room} for {bytes}");
            pool.give(buffer);
        }
    }

    #[test]
    fn what_was_not_made_here_is_not_kept() {
        let pool = Pool::new(POOL_BYTES_MAX);
        (0..1000).for_each(|more| pool.give(Vec::with_capacity(100_001 + more)));
        assert!(pool.free.lock().unwrap().buffers.len() <= 1);
        drop(pool.take(rounded(100_001)));
        assert!(pool.free.lock().unwrap().buffers.is_empty(), "what is empty has no place");
    }

    #[test]
    fn buffers_of_a_size_that_nobody_wants_go() {
        let pool = Pool::new(POOL_BYTES_MAX);
        (0..32).for_each(|_| pool.give(Vec::with_capacity(1 << 20)));
        let wanted: Vec<_> = (0..200).map(|_| pool.take(128 << 10)).collect();
        assert!(pool.free.lock().unwrap().bytes <= POOL_BYTES_MAX / 2);
        wanted.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.take(128 << 10).capacity(), 128 << 10);
    }

    #[test]
    fn no_more_than_the_bound_is_kept() {
        let pool = Arc::new(Pool::new(POOL_BYTES_MAX));
        for buffer in [(); 40].map(|()| pool.take(1 << 20)) {
            drop(Payload::pooled(buffer, &pool));
        }
        let free = pool.free.lock().unwrap();
        let kept: usize = free.buffers.values().flatten().map(Vec::capacity).sum();
        assert_eq!(kept, free.bytes);
        assert!(kept <= POOL_BYTES_MAX && kept > POOL_BYTES_MAX / 2);
    }
}
