//! A connection between two cores: bytes take time, and may come to harm.

use std::collections::VecDeque;
use std::time::Duration;

use drover_wire::Decoder;

use super::Chance;
use crate::core::{Core, Moment, Pull, StripeId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Sound,
    /// It carries nothing more, and both sides learn it.
    Ending,
    /// It carries nothing more, and nobody is told.
    BlackHole,
}

/// Bytes that a black hole takes until it is full, and a line that stands still.
const BLACK_HOLE_BYTES: usize = 64 << 10;

/// Bytes pulled at a time.
const BATCH_BYTES: usize = 16 << 10;

pub struct Line {
    delay: Duration,
    bytes_per_ms: u64,
    pub fate: Fate,
    pub stalled_until: Moment,
    stood_still: bool,
    pub is_up: [bool; 2],
    /// By the side that sends: when its writer is free, and what is on the way.
    free_at: [Moment; 2],
    way: [VecDeque<(Moment, Vec<u8>)>; 2],
    swallowed: [usize; 2],
    /// By the side that receives.
    decoders: [Decoder; 2],
}

impl Line {
    pub fn new(delay: Duration, kilobytes_per_ms: u64) -> Line {
        Line {
            delay,
            bytes_per_ms: kilobytes_per_ms << 10,
            fate: Fate::Sound,
            stalled_until: Moment::ZERO,
            stood_still: false,
            is_up: [true; 2],
            free_at: [Moment::ZERO; 2],
            way: Default::default(),
            swallowed: [0; 2],
            decoders: Default::default(),
        }
    }

    /// Takes what the cores give and delivers what has come.
    pub fn carry(
        &mut self,
        id: StripeId,
        cores: &mut [Core; 2],
        is_cut: bool,
        now: Moment,
        chance: &mut Chance,
        flip: u64,
    ) {
        let stands_still = now < self.stalled_until;
        if self.stood_still && !stands_still {
            self.swallowed = [0; 2];
        }
        self.stood_still = stands_still;
        for (side, core) in cores.iter_mut().enumerate() {
            if self.is_up[side] && self.free_at[side] <= now && self.swallowed[side] < BLACK_HOLE_BYTES {
                self.pull(id, side, core, is_cut, now);
            }
        }
        if is_cut || self.fate != Fate::Sound || now < self.stalled_until {
            return;
        }
        for side in 0..2 {
            let to = 1 - side;
            while self.way[side].front().is_some_and(|(at, _)| *at <= now) {
                let Some((_, mut bytes)) = self.way[side].pop_front() else { break };
                if chance.millionths(flip) {
                    let bit = chance.below(bytes.len() as u64 * 8) as usize;
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                if self.is_up[to] && !self.deliver(id, to, &bytes, &mut cores[to], now) {
                    self.fate = Fate::Ending;
                    return;
                }
            }
        }
    }

    fn pull(&mut self, id: StripeId, side: usize, core: &mut Core, is_cut: bool, now: Moment) {
        let mut frames = Vec::new();
        if core.pull(id, BATCH_BYTES, now, &mut frames) != Pull::Frames {
            return;
        }
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|frame| [&frame.header.encode()[..], frame.payload.bytes()].concat())
            .collect();
        let time = Duration::from_micros(bytes.len() as u64 * 1000 / self.bytes_per_ms);
        self.free_at[side] = now + time;
        if is_cut || self.fate == Fate::BlackHole || self.stood_still {
            self.swallowed[side] += bytes.len();
        }
        self.way[side].push_back((now + time + self.delay, bytes));
        if !is_cut && self.fate == Fate::Sound && !self.stood_still {
            self.swallowed[side] = 0;
        }
    }

    /// False when the bytes were damaged: a receiver ends the connection then.
    fn deliver(&mut self, id: StripeId, to: usize, mut bytes: &[u8], core: &mut Core, now: Moment) -> bool {
        core.heard(id, bytes.len(), now);
        loop {
            match self.decoders[to].take(&mut bytes) {
                Ok(Some(frame)) => core.arrive(id, frame, now),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}
