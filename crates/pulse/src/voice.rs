use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::PulseError;

/// What a guest says on its serial line.
#[derive(Debug)]
pub struct Voice {
    serial: UnixStream,
    lines: Arc<Mutex<Vec<Line>>>,
    /// How long it may take for a word.
    patience: Duration,
    /// Once it is set nobody waits any more.
    stop: Arc<AtomicBool>,
}

/// Something that a guest said, and when it was heard.
#[derive(Clone, Debug)]
pub struct Line {
    /// When the host had the whole line.
    pub at: Instant,
    /// Without the end of line.
    pub text: String,
}

/// What a guest found in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Pages that are not what was written there.
    pub bad_pages: u32,
    /// Writes that the pages remember.
    pub writes_found: u32,
    /// Writes that the guest counted.
    pub writes_counted: u32,
}

impl Verdict {
    /// Every page is as the guest left it.
    pub fn is_sound(&self) -> bool {
        self.bad_pages == 0 && self.writes_found == self.writes_counted
    }
}

/// A guest fills or reads 1 GiB in a few seconds; a busy machine may take twenty times as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE_PER_GIB: Duration = Duration::from_secs(30);
pub(crate) const POLL: Duration = Duration::from_millis(5);

impl Voice {
    /// Listens to a guest whose serial line is this socket.
    ///
    /// # Errors
    /// If the socket cannot be had twice.
    pub fn of(serial: UnixStream) -> Result<Voice, PulseError> {
        Voice::patient(serial, 0, Arc::default())
    }

    /// The same for one that has to fill so many GiB.
    pub(crate) fn patient(serial: UnixStream, gib: u32, stop: Arc<AtomicBool>) -> Result<Voice, PulseError> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = serial.try_clone().map_err(PulseError::of("listening to the serial line"))?;
        listen(heard, lines.clone());
        Ok(Voice { serial, lines, patience: PATIENCE + PATIENCE_PER_GIB * gib, stop })
    }

    /// Everything it has said.
    pub fn lines(&self) -> Vec<Line> {
        lock(&self.lines).clone()
    }

    /// Its beats, with their numbers.
    pub fn beats(&self) -> Vec<(Instant, u32)> {
        self.told('H').into_iter().map(|(at, numbers)| (at, numbers[0])).collect()
    }

    /// Pages that it had written to at each beat.
    pub fn writes(&self) -> Vec<(Instant, u32)> {
        let told = self.told('H').into_iter();
        told.filter_map(|(at, numbers)| Some((at, *numbers.get(1)?))).collect()
    }

    /// Waits until it has beaten so many times more.
    ///
    /// # Errors
    /// If it does not.
    pub fn beat(&self, more: usize) -> Result<(), PulseError> {
        let had = self.beats().len();
        self.wait_for("beat", || (self.beats().len() >= had + more).then_some(()))
    }

    /// Whether it beats: looks for so long.
    pub fn beats_within(&self, time: Duration) -> bool {
        let had = self.beats().len();
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.beats().len() > had {
                return true;
            }
            thread::sleep(POLL);
        }
        false
    }

    /// Has it look at all of its memory.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn verify(&mut self) -> Result<Verdict, PulseError> {
        let had = self.told('V').len();
        self.serial.write_all(b"v").map_err(PulseError::of("asking the guest for its verdict"))?;
        self.wait_for("verdict", || {
            let [bad_pages, writes_found, writes_counted] = self.told('V').get(had)?.1[..] else {
                return None;
            };
            Some(Verdict { bad_pages, writes_found, writes_counted })
        })
    }

    /// Lines that begin with this letter.
    fn told(&self, letter: char) -> Vec<(Instant, Vec<u32>)> {
        let told = |line: &Line| Some((line.at, numbers(&line.text, letter)?));
        lock(&self.lines).iter().filter_map(told).collect()
    }

    fn wait_for<T>(&self, what: &'static str, look: impl Fn() -> Option<T>) -> Result<T, PulseError> {
        let until = Instant::now() + self.patience;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(PulseError::Stopped);
            }
            if Instant::now() >= until {
                let last = lock(&self.lines).last().map(|line| line.text.clone());
                return Err(PulseError::Silent { what, seconds: self.patience.as_secs(), last });
            }
            thread::sleep(POLL);
        }
    }
}

/// Takes down what is said, until the line ends.
fn listen(serial: UnixStream, lines: Arc<Mutex<Vec<Line>>>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(serial);
        let mut bytes = Vec::new();
        while matches!(reader.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_string();
            lock(&lines).push(Line { at: Instant::now(), text });
            bytes.clear();
        }
    });
}

/// The numbers of a line that begins with this letter.
fn numbers(text: &str, letter: char) -> Option<Vec<u32>> {
    let rest = text.strip_prefix(letter)?;
    let numbers: Option<Vec<u32>> =
        rest.split_whitespace().map(|word| u32::from_str_radix(word, 16).ok()).collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_guest_are_numbers_behind_a_letter() {
        assert_eq!(numbers("H 00000012 00000480", 'H'), Some(vec![0x12, 0x480]));
        for other in ["V 00000000", "H", "H 12 xy", "", "R"] {
            assert_eq!(numbers(other, 'H'), None, "{other}");
        }
    }

    #[test]
    fn a_verdict_is_sound_if_nothing_is_bad_and_all_writes_are_there() {
        let sound = Verdict { bad_pages: 0, writes_found: 7, writes_counted: 7 };
        assert!(sound.is_sound());
        assert!(
            !Verdict { bad_pages: 1, ..sound }.is_sound() && !Verdict { writes_found: 6, ..sound }.is_sound()
        );
    }

    #[test]
    fn who_waits_is_told_to_stop() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let stop = Arc::new(AtomicBool::new(true));
        let voice = Voice::patient(ours, 0, stop).unwrap();
        assert!(matches!(voice.beat(1), Err(PulseError::Stopped)));
    }
}
