//! One ring for the packets that are on the line: read into it, written from it, never copied.
//!
//! Packets lie one after the other, in the order they came, and leave it in that order too: one that is done waits for those before it. A packet
//! never goes over the end; what is left there is skipped.

use std::collections::VecDeque;

use super::Segments;
use super::packet::FRAME_BYTES_MAX;

/// Rings are never larger: what unlimited lines get.
pub const RING_BYTES_MAX: usize = 512 << 20;

/// Rings are never smaller.
pub const RING_BYTES_MIN: usize = 8 << 20;

/// Packets on the line at once; small ones take more memory beside the ring than in it.
pub const PACKETS_MAX: usize = 1 << 20;

const PAGE_BYTES: usize = 4 << 10;

/// The packets of one direction.
#[derive(Debug)]
pub struct Ring {
    bytes: Vec<u8>,
    head: usize,
    /// Number of the first of `packets`.
    first: u64,
    packets: VecDeque<Stored>,
}

#[derive(Debug)]
struct Stored {
    begin: usize,
    bytes: usize,
    segments: Segments,
    /// Segments whose fate is open.
    left: u32,
}

impl Ring {
    /// A ring for about `bytes`, held between [`RING_BYTES_MIN`] and [`RING_BYTES_MAX`].
    pub fn new(bytes: u64) -> Ring {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(RING_BYTES_MIN, RING_BYTES_MAX);
        let mut bytes = vec![0; bytes];
        // The first touch of memory takes long; it must not take it while packets wait.
        bytes.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
        Ring { bytes, head: 0, first: 0, packets: VecDeque::new() }
    }

    /// Where the next frame may be put, with room for the largest; `None` if the ring is full.
    pub fn space(&mut self) -> Option<&mut [u8]> {
        let Some(oldest) = self.packets.front().map(|it| it.begin) else {
            self.head = 0;
            return Some(&mut self.bytes[..FRAME_BYTES_MAX]);
        };
        if self.packets.len() >= PACKETS_MAX {
            return None;
        }
        if self.head > oldest && self.bytes.len() - self.head < FRAME_BYTES_MAX {
            self.head = 0;
        }
        // Head and oldest never meet in a ring that holds something.
        let is_free = self.head > oldest || self.head + FRAME_BYTES_MAX < oldest;
        is_free.then(|| &mut self.bytes[self.head..self.head + FRAME_BYTES_MAX])
    }

    /// Keeps the first `bytes` of what [`Ring::space`] gave; returns the packet's number.
    pub fn keep(&mut self, bytes: usize, segments: Segments) -> u64 {
        assert!(bytes > 0 && bytes <= FRAME_BYTES_MAX && segments.count > 0, "{bytes} bytes, {segments:?}");
        self.packets.push_back(Stored { begin: self.head, bytes, segments, left: segments.count });
        self.head += bytes;
        self.first + self.packets.len() as u64 - 1
    }

    /// A packet that is not done.
    pub fn frame(&self, number: u64) -> (&[u8], &Segments) {
        let stored = &self.packets[self.index(number)];
        (&self.bytes[stored.begin..stored.begin + stored.bytes], &stored.segments)
    }

    /// `segments` of a packet need nothing more.
    pub fn done(&mut self, number: u64, segments: u32) {
        let index = self.index(number);
        let stored = &mut self.packets[index];
        assert!(stored.left >= segments, "packet {number}: {segments} of {} done", stored.left);
        stored.left -= segments;
        while self.packets.front().is_some_and(|it| it.left == 0) {
            self.packets.pop_front();
            self.first += 1;
        }
    }

    /// Packets that are not done, or wait for those before them.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number.checked_sub(self.first).expect("packets that are done are not asked for"))
            .expect("no more packets than memory")
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    fn put(ring: &mut Ring, bytes: usize, mark: u8, count: u32) -> Option<u64> {
        let space = ring.space()?;
        assert_eq!(space.len(), FRAME_BYTES_MAX);
        space[..bytes].fill(mark);
        Some(ring.keep(bytes, Segments { header: 40, size: 1, last: 1, count }))
    }

    #[test]
    fn packets_are_what_they_were_whatever_comes_and_goes() {
        for seed in 0..20 {
            let (mut ring, mut random) = (Ring::new(0), Random::new(seed));
            let mut there: Vec<(u64, usize, u8, u32)> = Vec::new();
            let mut was_full = false;
            for step in 0..20_000u32 {
                let bytes = 1 + (random.bits() % FRAME_BYTES_MAX as u64) as usize;
                let count = 1 + (random.bits() % 3) as u32;
                // Fills and empties in long waves.
                let fills = random.chance(if step / 3_000 % 2 == 0 { 0.8 } else { 0.3 });
                match fills.then(|| put(&mut ring, bytes, step as u8, count)) {
                    Some(Some(number)) => there.push((number, bytes, step as u8, count)),
                    Some(None) => was_full = true,
                    None if there.is_empty() => {}
                    None => {
                        let picked = (random.bits() % there.len().min(8) as u64) as usize;
                        let (number, bytes, mark, left) = &mut there[picked];
                        let (frame, _) = ring.frame(*number);
                        assert!(frame.len() == *bytes && frame.iter().step_by(997).all(|it| it == mark));
                        ring.done(*number, 1);
                        *left -= 1;
                        if *left == 0 {
                            there.remove(picked);
                        }
                    }
                }
            }
            assert!(was_full, "seed {seed} never filled the ring");
        }
    }

    #[test]
    fn an_empty_ring_has_room_again() {
        let mut ring = Ring::new(0);
        let numbers: Vec<u64> = std::iter::from_fn(|| put(&mut ring, 60_000, 1, 2)).collect();
        assert!(numbers.len() > 100 && ring.space().is_none());
        numbers.iter().for_each(|number| ring.done(*number, 2));
        assert_eq!(ring.packets(), 0);
        assert_eq!(put(&mut ring, 1, 1, 1), Some(numbers.len() as u64));
    }
}
