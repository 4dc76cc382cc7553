//! Packs what is read from disks, by what the line takes and what packing costs here ([`Chooser`]).
//!
//! A disk's answers have one chooser. Packers are the agent's: few, so that many disks take no more memory, and each packs for
//! whoever comes. Waiting for one counts as the cost of packing ([`Packing::took`]), so a host that is busy with other disks
//! packs less. It is waited for only to pack an answer: while a disk's answers go plain, there is a trial only if a packer is
//! free, so that trials keep to their share of the time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_pack::{Chooser, Codec, Packer, Sampled};

/// Packers at most, for all disks. Each holds up to 4 MiB.
const PACKERS_MAX: usize = 16;

/// Smaller answers go plain: who reads so little at a time waits for round trips, and not for the line.
const PACKED_BYTES_MIN: usize = 4 << 10;

/// The packers of an agent.
pub(super) struct Presses {
    state: Mutex<State>,
    freed: Condvar,
    max: usize,
}

#[derive(Default)]
struct State {
    free: Vec<Packer>,
    /// Those that there are, free or not.
    made: usize,
}

impl Presses {
    /// One for each processor, made when they are needed.
    pub(super) fn new() -> Presses {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
        Presses { state: Mutex::default(), freed: Condvar::new(), max: cores.clamp(1, PACKERS_MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a packer; `None` if there is no memory for the first one.
    fn take(&self) -> Option<Taken<'_>> {
        let mut state = self.lock();
        loop {
            match self.take_free(&mut state) {
                None if state.made > 0 => {}
                taken => return taken,
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A packer that nobody has now, if there is one.
    fn try_take(&self) -> Option<Taken<'_>> {
        self.take_free(&mut self.lock())
    }

    /// One that is free, or made for this; `None` if all are in use, or there is no memory for a further one.
    fn take_free(&self, state: &mut State) -> Option<Taken<'_>> {
        if state.free.is_empty()
            && state.made < self.max
            && let Ok(packer) = Packer::new()
        {
            state.made += 1;
            state.free.push(packer);
        }
        let packer = state.free.pop()?;
        Some(Taken { presses: self, packer: Some(packer) })
    }
}

/// A packer, free again when this goes.
struct Taken<'a> {
    presses: &'a Presses,
    packer: Option<Packer>,
}

impl Taken<'_> {
    fn packer(&mut self) -> &mut Packer {
        self.packer.as_mut().unwrap_or_else(|| unreachable!("it is given back at the end only"))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.presses.lock().free.extend(self.packer.take());
        self.presses.freed.notify_one();
    }
}

/// How the answers of a disk are packed.
pub(super) struct Packing<'a> {
    /// `None` if they go plain.
    presses: Option<&'a Presses>,
    chooser: Mutex<Chooser>,
    began: Instant,
    /// Of the time that threads spend, what counts: the chooser knows of those that pack at a time.
    share: f64,
}

impl<'a> Packing<'a> {
    /// For so many threads (at least 1), by the codecs that the peer unpacks.
    pub(super) fn new(presses: &'a Presses, codecs: &[Codec], threads: usize, now: Instant) -> Packing<'a> {
        let lanes = threads.min(presses.max);
        Packing {
            presses: (!codecs.is_empty()).then_some(presses),
            chooser: Mutex::new(Chooser::new(lanes, codecs)),
            began: now,
            share: lanes as f64 / threads as f64,
        }
    }

    fn chooser(&self) -> MutexGuard<'_, Chooser> {
        self.chooser.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// Packs an answer in its place, if that pays: by which codec, and how many bytes it is then.
    pub(super) fn pack(&self, bytes: &mut [u8], now: Instant) -> (Codec, usize) {
        let plain = (Codec::Plain, bytes.len());
        let Some(presses) = self.presses.filter(|_| bytes.len() >= PACKED_BYTES_MIN) else { return plain };
        let Some(choice) = self.chooser().choose(self.time(now)) else { return plain };
        let asked = Instant::now();
        let taken = if choice.is_trial_only() { presses.try_take() } else { presses.take() };
        let Some(mut taken) = taken else { return plain };
        let waited = asked.elapsed();
        let (lesson, packed) = choice.carry_out(taken.packer(), bytes, || asked.elapsed());
        let all = bytes.len() as f64;
        // A trial bears its part of the waiting, so that it compares with the codec in use, which bears all.
        let cost = |it: &Sampled| self.took(it.took, waited.mul_f64(it.plain as f64 / all));
        self.chooser().learn(lesson, cost);
        let Some((codec, packed)) = packed else { return plain };
        bytes[..packed.len()].copy_from_slice(packed);
        (codec, packed.len())
    }

    /// What packing takes one of those that pack at a time, by how long a packer had the bytes and how long a thread waited
    /// for it.
    ///
    /// All threads together move `threads / (waited + packing)`, and the chooser reckons with `lanes / took`. Where threads
    /// wait behind each other only, both are what the packers do: `lanes / packing`. Where others have packers, too, it is
    /// what they leave. It is never more than all packers do.
    fn took(&self, packing: Duration, waited: Duration) -> Duration {
        packing.max((waited + packing).mul_f64(self.share))
    }

    /// An answer has gone: of how many bytes, as how many, and how long its thread waited for the line.
    pub(super) fn sent(&self, plain: usize, sent: usize, waited: Duration, now: Instant) {
        if self.presses.is_some() {
            let waited = waited.mul_f64(self.share);
            self.chooser().sent(plain as u64, sent as u64, waited, self.time(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_pack::unpack;

    use super::*;

    const ANSWER_BYTES: usize = 1 << 20;
    const ALL: [Codec; 3] = [Codec::Lz4, Codec::Zstd1, Codec::Zstd3];

    fn text() -> Vec<u8> {
        (0..ANSWER_BYTES).map(|at| b"drover reads disks, "[at % 20] ^ (at / 9973) as u8).collect()
    }

    fn noise() -> Vec<u8> {
        let mut noise = vec![0; ANSWER_BYTES];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        noise
    }

    /// Sends an answer again and again over a line that takes so many bytes a second, and waits for it so long a share of the
    /// time: how many bytes went of how many. What goes is unpacked and held against the answer.
    fn sent(packing: &Packing<'_>, answer: &[u8], answers: usize, line: f64, waits: f64) -> (usize, usize) {
        let (mut now, mut sent) = (packing.began, 0);
        let mut bytes = answer.to_vec();
        for _ in 0..answers {
            bytes.copy_from_slice(answer);
            let (codec, length) = packing.pack(&mut bytes, now);
            let took = Duration::from_secs_f64(length as f64 / line);
            now += took;
            packing.sent(answer.len(), length, took.mul_f64(waits), now);
            let mut plain = vec![0; answer.len()];
            unpack(codec.number(), &bytes[..length], &mut plain).unwrap();
            assert!(plain == answer, "{codec:?}");
            sent += length;
        }
        (sent, answers * answer.len())
    }

    #[test]
    fn what_packs_is_packed_while_the_line_is_waited_for_and_noise_goes_plain() {
        let (presses, now) = (Presses::new(), Instant::now());
        let packing = Packing::new(&presses, &ALL, 1, now);
        // The figures of packing are this machine's own; a line of 1 MB/s is slower than any.
        let (went, all) = sent(&packing, &text(), 60, 1e6, 1.0);
        assert!(went * 3 < all, "{went} of {all}");
        let (went, all) = sent(&Packing::new(&presses, &ALL, 1, now), &noise(), 10, 1e6, 1.0);
        assert_eq!(went, all);
    }

    #[test]
    fn nothing_is_packed_that_nobody_waits_for_or_that_the_peer_does_not_unpack() {
        let (presses, now) = (Presses::new(), Instant::now());
        let (went, all) = sent(&Packing::new(&presses, &ALL, 1, now), &text(), 300, 1e8, 0.2);
        assert_eq!(went, all, "the line is not what is waited for");
        let (went, all) = sent(&Packing::new(&presses, &[], 1, now), &text(), 20, 1e6, 1.0);
        assert_eq!(went, all, "the peer unpacks nothing");
        let small = &text()[..PACKED_BYTES_MIN - 1];
        let (went, all) = sent(&Packing::new(&presses, &ALL, 1, now), small, 2000, 1e6, 1.0);
        assert_eq!(went, all, "small ones");
        assert_eq!(presses.lock().made, 0);
    }

    #[test]
    fn a_trial_waits_for_no_packer() {
        let (presses, now) = (Presses { max: 1, ..Presses::new() }, Instant::now());
        let taken = presses.take().unwrap();
        let (went, all) = sent(&Packing::new(&presses, &ALL, 1, now), &text(), 60, 1e6, 1.0);
        assert_eq!(went, all, "there was none to try with");
        drop(taken);
        let (went, all) = sent(&Packing::new(&presses, &ALL, 1, now), &text(), 60, 1e6, 1.0);
        assert!(went * 3 < all, "{went} of {all}");
    }

    #[test]
    fn eight_threads_count_on_what_two_packers_do_and_on_half_of_it_beside_eight_others() {
        const MB: usize = 1_000_000;
        let (presses, now, ms) =
            (Presses { max: 2, ..Presses::new() }, Instant::now(), Duration::from_millis);
        // 100 MB/s each. A thread waits while the others that are there have their turns.
        let codec_for = |line: usize, threads: u32| {
            let packing = Packing::new(&presses, &ALL, 8, now);
            let took = packing.took(ms(10), ms(10) * (threads / 2 - 1));
            let (plain, packed) = (MB as u64, MB as u64 / 4);
            packing.chooser().packed(Sampled { codec: Codec::Lz4, plain, packed, took });
            for at in 0..100 {
                // All eight wait for the line.
                packing.sent(line / 100, line / 100, ms(80), now + ms(10) * at);
            }
            packing.chooser().codec()
        };
        assert_eq!(codec_for(150 * MB, 8), Codec::Lz4, "200 MB/s");
        assert_eq!(codec_for(250 * MB, 8), Codec::Plain, "200 MB/s");
        assert_eq!(codec_for(80 * MB, 16), Codec::Lz4, "100 MB/s");
        assert_eq!(codec_for(150 * MB, 16), Codec::Plain, "100 MB/s");
    }

    #[test]
    fn many_who_pack_share_few_packers() {
        let presses = Presses { max: 2, ..Presses::new() };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut taken = presses.take().unwrap();
                        assert!(taken.packer().pack(Codec::Lz4, &[7; 4096]).is_some());
                    }
                });
            }
        });
        let state = presses.lock();
        assert!(state.made <= 2 && state.free.len() == state.made, "{} made", state.made);
    }
}
