//! What goes into a channel in pieces (`drover_pack::pieces`): packed where that pays. One for each direction that does.
//!
//! A piece is what there is, at once: nothing waits to become one. How it is packed is chosen by what the line takes
//! and what packing costs here; small pieces, and all while the line is not waited for, go plain.

use std::time::{Duration, Instant};

use drover_pack::pieces::{HEAD_BYTES, PIECE_BYTES_MAX, head};
use drover_pack::{Chooser, Codec, Packer};

/// Smaller pieces go plain: what is that small is no stream that a line holds up.
const PACKED_BYTES_MIN: usize = 4 << 10;
/// Taken for a piece at a time: with its head it is one frame of the link, and no crumb behind it.
const TAKEN_BYTES_MAX: usize = PIECE_BYTES_MAX - HEAD_BYTES;

/// What a worker packs with, for all its flows in turn.
#[derive(Default)]
pub(crate) struct Press {
    /// Made when it is first needed; none if there is no memory for it.
    packer: Option<Packer>,
    /// Flows that move much at the moment: each has a share of the worker's time.
    busy: u32,
}

impl Press {
    /// Tells how many flows move much.
    pub(crate) fn set_busy(&mut self, flows: u32) {
        self.busy = flows;
    }

    fn packer(&mut self) -> Option<&mut Packer> {
        if self.packer.is_none() {
            self.packer = Packer::new().ok();
        }
        self.packer.as_mut()
    }
}

pub(crate) struct Packing {
    chooser: Chooser,
    began: Instant,
    /// Since when the line takes nothing more.
    full_since: Option<Instant>,
    waited: Duration,
    /// Of the piece that is under way: bytes before packing, and with its head.
    piece: (usize, usize),
    saved: u64,
}

impl Packing {
    pub(crate) fn new(now: Instant) -> Packing {
        Packing {
            chooser: Chooser::new(1, &Codec::ALL),
            began: now,
            full_since: None,
            waited: Duration::ZERO,
            piece: (0, 0),
            saved: 0,
        }
    }

    /// Whether pieces are packed at the moment, which takes time.
    pub(crate) fn is_on(&self) -> bool {
        self.chooser.codec() != Codec::Plain
    }

    /// How much to take for a piece when there is room for `room` bytes. What will be packed may be more than there is
    /// room for: that is not known before.
    pub(crate) fn wanted(&self, room: usize) -> usize {
        if self.is_on() { TAKEN_BYTES_MAX } else { room.saturating_sub(HEAD_BYTES).clamp(1, TAKEN_BYTES_MAX) }
    }

    /// Makes a piece of the `plain` bytes that lie in `buffer` behind room for a head: how long it is.
    pub(crate) fn pack(&mut self, buffer: &mut [u8], plain: usize, press: &mut Press, now: Instant) -> usize {
        let bytes = &mut buffer[HEAD_BYTES..HEAD_BYTES + plain];
        let packed = if plain < PACKED_BYTES_MIN { None } else { self.packed(bytes, press, now) };
        let (codec, length) = match packed {
            Some((codec, packed)) => {
                bytes[..packed.len()].copy_from_slice(packed);
                (codec, packed.len())
            }
            None => (Codec::Plain, plain),
        };
        buffer[..HEAD_BYTES].copy_from_slice(&head(codec, length, plain));
        self.piece = (plain, HEAD_BYTES + length);
        HEAD_BYTES + length
    }

    fn packed<'a>(&mut self, bytes: &[u8], press: &'a mut Press, now: Instant) -> Option<(Codec, &'a [u8])> {
        let time = now.saturating_duration_since(self.began);
        let choice = self.chooser.choose(time)?;
        let busy = press.busy.max(1);
        let (lesson, packed) = choice.carry_out(press.packer()?, bytes, || self.began.elapsed());
        self.chooser.learn(lesson, |sampled| sampled.took * busy);
        packed
    }

    /// The piece has gone.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.went_on(now);
        let (plain, sent) = std::mem::take(&mut self.piece);
        let waited = std::mem::take(&mut self.waited);
        self.chooser.sent(plain as u64, sent as u64, waited, now.saturating_duration_since(self.began));
        self.saved += plain.saturating_sub(sent) as u64;
    }

    /// The line takes nothing more.
    pub(crate) fn is_full(&mut self, now: Instant) {
        self.full_since.get_or_insert(now);
    }

    /// There was something else to wait for.
    pub(crate) fn went_on(&mut self, now: Instant) {
        if let Some(since) = self.full_since.take() {
            self.waited += now.saturating_duration_since(since);
        }
    }

    /// Bytes that did not have to be sent.
    pub(crate) fn saved(&self) -> u64 {
        self.saved
    }
}

#[cfg(test)]
mod tests {
    use drover_pack::pieces::{Next, Reader};

    use super::*;

    /// Sends so many pieces of these bytes, or fewer if `is_enough` by what was sent and what that was, over a line that
    /// takes 1 MB a second; gives the bytes that went and what they were. What is read is held against what was sent.
    fn over_a_slow_line(
        plain: &[u8],
        pieces: usize,
        is_enough: impl Fn(usize, usize) -> bool,
    ) -> (usize, usize) {
        let (mut now, mut press) = (Instant::now(), Press::default());
        let (mut packing, mut reader) = (Packing::new(now), Reader::default());
        let mut buffer = vec![0; HEAD_BYTES + PIECE_BYTES_MAX];
        let (mut sent, mut all, mut saved) = (0, 0, 0);
        for _ in 0..pieces {
            buffer[HEAD_BYTES..HEAD_BYTES + plain.len()].copy_from_slice(plain);
            let length = packing.pack(&mut buffer, plain.len(), &mut press, now);
            packing.is_full(now);
            now += Duration::from_micros(length as u64);
            packing.sent(now);
            (sent, all, saved) =
                (sent + length, all + plain.len(), saved + plain.len().saturating_sub(length));
            let (taken, next) = reader.next(&buffer[..length]).unwrap();
            match next {
                Next::Plain(bytes) => assert!(buffer[taken..taken + bytes] == *plain),
                Next::Unpacked(bytes, _) => assert!(taken == length && bytes == plain),
                Next::More => panic!("a whole piece"),
            }
            if is_enough(sent, all) {
                break;
            }
        }
        assert_eq!(packing.saved(), saved as u64);
        (sent, all)
    }

    #[test]
    fn what_packs_is_packed_on_a_line_that_is_slow() {
        let text: Vec<u8> =
            (0..100_000).map(|at| b"drover moves streams "[at % 21] ^ (at / 9973) as u8).collect();
        // At once, unless this machine is as slow as the line for a while.
        let (sent, all) = over_a_slow_line(&text, 5_000, |sent, all| sent * 3 < all);
        assert!(sent * 3 < all, "{sent} of {all}");
    }

    #[test]
    fn noise_goes_plain() {
        let mut state = 9_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .take(100_000)
        .collect();
        let (sent, all) = over_a_slow_line(&noise, 100, |_, _| false);
        assert_eq!(sent, all + 100 * HEAD_BYTES);
    }

    #[test]
    fn what_is_small_goes_plain_and_so_does_all_while_nothing_is_waited_for() {
        let (sent, all) = over_a_slow_line(&[0; PACKED_BYTES_MIN - 1], 2_000, |_, _| false);
        assert_eq!(sent, all + 2_000 * HEAD_BYTES);
        let (mut now, mut press) = (Instant::now(), Press::default());
        let mut packing = Packing::new(now);
        let mut buffer = vec![0; HEAD_BYTES + PIECE_BYTES_MAX];
        for _ in 0..2_000 {
            assert_eq!(packing.pack(&mut buffer, 100_000, &mut press, now), HEAD_BYTES + 100_000);
            now += Duration::from_millis(10);
            packing.sent(now);
        }
    }
}
