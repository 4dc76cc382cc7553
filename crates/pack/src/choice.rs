//! What the chooser wants of one block, and how it is done. Pure: the clock is handed in.

use std::time::Duration;

use crate::chooser::{Chooser, Sampled};
use crate::codec::{Codec, Packer};

/// Of a block, so much is packed on trial.
const SAMPLE_BYTES: usize = 64 << 10;

/// How one block is to be packed, and by which other codec a part of it on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    codec: Codec,
    trial: Option<Codec>,
}

/// What came of a choice, for the chooser.
#[derive(Debug)]
#[must_use]
pub struct Lesson {
    tried: Option<Sampled>,
    packed: Option<Sampled>,
}

impl Choice {
    /// Whether the block goes plain, and a part of it is packed only to see.
    pub fn is_trial_only(self) -> bool {
        self.codec == Codec::Plain
    }

    /// Packs `bytes`; nothing if they go plain. `clock` tells the time since some moment.
    pub fn carry_out<'a>(
        self,
        packer: &'a mut Packer,
        bytes: &[u8],
        clock: impl Fn() -> Duration,
    ) -> (Lesson, Option<(Codec, &'a [u8])>) {
        let mut timed = |codec, bytes: &[u8], is_probed: bool| {
            let started = clock();
            let packs = !is_probed || packer.may_pack(bytes);
            let length = if packs { packer.pack(codec, bytes).map(<[u8]>::len) } else { None };
            let (plain, packed) = (bytes.len() as u64, length.unwrap_or(bytes.len()) as u64);
            (Sampled { codec, plain, packed, took: clock().saturating_sub(started) }, length)
        };
        let sample = &bytes[..bytes.len().min(SAMPLE_BYTES)];
        let tried = self.trial.map(|codec| timed(codec, sample, false).0);
        if self.is_trial_only() {
            return (Lesson { tried, packed: None }, None);
        }
        let (packed, length) = timed(self.codec, bytes, true);
        let lesson = Lesson { tried, packed: Some(packed) };
        (lesson, length.map(|length| (self.codec, packer.packed(length))))
    }
}

impl Chooser {
    /// What to do with the next block; nothing if it just goes plain.
    pub fn choose(&mut self, now: Duration) -> Option<Choice> {
        let (codec, trial) = (self.codec(), self.trial(now));
        (codec != Codec::Plain || trial.is_some()).then_some(Choice { codec, trial })
    }

    /// Takes in what came of a choice. `cost` says what the packing took those who wait for it.
    pub fn learn(&mut self, lesson: Lesson, cost: impl Fn(&Sampled) -> Duration) {
        let costing = |sampled: Sampled| Sampled { took: cost(&sampled), ..sampled };
        if let Some(sampled) = lesson.tried {
            self.tried(costing(sampled));
        }
        if let Some(sampled) = lesson.packed {
            self.packed(costing(sampled));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_choice_is_carried_out_and_its_lesson_learnt_at_what_it_cost() {
        let ticks = Cell::new(0);
        let clock = || {
            ticks.set(ticks.get() + 1);
            Duration::from_secs(ticks.get())
        };
        let mut packer = Packer::new().unwrap();
        let bytes = vec![7; SAMPLE_BYTES * 2];
        let choice = Choice { codec: Codec::Plain, trial: Some(Codec::Lz4) };
        let (lesson, packed) = choice.carry_out(&mut packer, &bytes, clock);
        assert!(choice.is_trial_only() && packed.is_none() && lesson.packed.is_none());
        let tried = lesson.tried.unwrap();
        assert_eq!(
            (tried.codec, tried.plain, tried.took),
            (Codec::Lz4, SAMPLE_BYTES as u64, Duration::from_secs(1))
        );
        assert!(tried.packed < tried.plain / 10);

        let choice = Choice { codec: Codec::Zstd1, trial: None };
        let (lesson, packed) = choice.carry_out(&mut packer, &bytes, clock);
        let (codec, packed) = packed.unwrap();
        let mut plain = vec![0; bytes.len()];
        crate::unpack(codec.number(), packed, &mut plain).unwrap();
        assert!(plain == bytes && lesson.tried.is_none());
        let seen = Cell::new(0);
        Chooser::new(1, &Codec::ALL).learn(lesson, |sampled| {
            seen.set(sampled.plain);
            sampled.took * 2
        });
        assert_eq!(seen.get(), bytes.len() as u64);
    }

    #[test]
    fn what_does_not_pack_goes_plain_and_the_chooser_is_told_so() {
        let mut noise = vec![0_u8; 4 << 10];
        let mut state = 9_u64;
        noise.iter_mut().for_each(|byte| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 56) as u8;
        });
        let choice = Choice { codec: Codec::Lz4, trial: None };
        let mut packer = Packer::new().unwrap();
        let (lesson, packed) = choice.carry_out(&mut packer, &noise, || Duration::ZERO);
        let told = lesson.packed.unwrap();
        assert!(packed.is_none() && told.packed == told.plain);
    }

    #[test]
    fn nothing_is_chosen_while_nothing_is_waited_for() {
        assert_eq!(Chooser::new(1, &Codec::ALL).choose(Duration::ZERO), None);
    }
}
