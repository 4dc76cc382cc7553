//! Rounds of an adversary: each from a seed of its own, several at a time, counted.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::dice::Dice;

/// What must never be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A run ended with 0, and what is there is not what left.
    Differs,
    /// Bytes that nobody gave away are gone.
    Lost,
    /// A guest ran on two sides.
    TwoSides,
    /// The source is not as it was: its power, a snapshot that is left.
    Source,
    /// A secret in /proc, a log, the state or a report.
    Secret,
    /// It did not end.
    Hang,
    /// A panic, or an end by a signal that nobody sent.
    Panic,
    /// The next run without any fault does not go on, or does not say the truth about why.
    Stuck,
    /// Control or direction characters of a name reached the terminal.
    Terminal,
    /// The test itself failed.
    Test,
}

#[derive(Debug)]
pub struct Violation {
    pub kind: Kind,
    pub what: String,
}

impl Violation {
    pub fn new(kind: Kind, what: impl Into<String>) -> Violation {
        Violation { kind, what: what.into() }
    }
}

/// How a round ended, in a word or two; or what must never be.
pub type Ending = Result<String, Violation>;

/// How many rounds, from which seed, for how long.
pub struct Settings {
    pub seed: u64,
    pub rounds: u64,
    pub until: Option<Instant>,
    /// Rounds at a time.
    pub at_once: u64,
}

/// Of the rounds in the ordinary test run.
const FEW_SEED: u64 = 20_261_123;

fn setting<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

impl Settings {
    /// `rounds` of them, or as the environment says (`DROVER_SOAK_SEED`, `_ROUNDS`, `_HOURS`, `_AT_ONCE`).
    pub fn soak(rounds: u64) -> Settings {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let hours: Option<f64> = setting("DROVER_SOAK_HOURS");
        Settings {
            seed: setting("DROVER_SOAK_SEED").unwrap_or_else(clock),
            rounds: setting("DROVER_SOAK_ROUNDS").unwrap_or(rounds),
            until: hours.map(|hours| Instant::now() + Duration::from_secs_f64(hours * 3600.0)),
            at_once: setting("DROVER_SOAK_AT_ONCE").unwrap_or(3),
        }
    }

    /// A handful, for the ordinary test run.
    pub fn few(rounds: u64) -> Settings {
        // The same rounds each time: a change is not to fail for what a new round finds. New rounds are the soak's.
        let seed = setting("DROVER_SOAK_SEED").unwrap_or(FEW_SEED);
        let rounds = setting("DROVER_SOAK_ROUNDS").unwrap_or(rounds);
        Settings { seed, rounds, until: None, at_once: 1 }
    }

    /// The same with a share of the rounds.
    pub fn share(&self, percent: u64) -> Settings {
        let rounds = (self.rounds * percent).div_ceil(100);
        Settings { seed: self.seed, rounds, until: self.until, at_once: self.at_once }
    }

    /// The first round has the seed itself: that is how a round is had again.
    fn seed_of(&self, round: u64) -> u64 {
        self.seed.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// What came out.
#[derive(Default)]
pub struct Tally {
    pub rounds: u64,
    pub violations: BTreeMap<Kind, u64>,
    endings: BTreeMap<String, u64>,
}

/// Plays the rounds of one adversary and prints a line of what came out, and what has to be known to have each violation again.
pub fn play(name: &str, settings: &Settings, round: impl Fn(&mut Dice) -> Ending + Sync) -> Tally {
    let (next, tally) = (AtomicU64::new(0), Mutex::new(Tally::default()));
    let worker = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= settings.rounds || settings.is_over() {
                return;
            }
            let seed = settings.seed_of(number);
            let ending = catch_unwind(AssertUnwindSafe(|| round(&mut Dice::new(seed))));
            let ending =
                ending.unwrap_or_else(|_| Err(Violation::new(Kind::Test, "the test failed, see above")));
            let mut tally = tally.lock().unwrap();
            tally.rounds += 1;
            match ending {
                Ok(word) => *tally.endings.entry(word).or_default() += 1,
                Err(found) => {
                    println!("{name}: {:?}: {}", found.kind, found.what);
                    println!(
                        "{name}: again: DROVER_SOAK_SEED={seed} DROVER_SOAK_ROUNDS=1 DROVER_SOAK_ONLY={name}"
                    );
                    *tally.violations.entry(found.kind).or_default() += 1;
                }
            }
        }
    };
    std::thread::scope(|scope| (0..settings.at_once).for_each(|_| drop(scope.spawn(worker))));
    let tally = tally.into_inner().unwrap();
    println!("{name}: {tally}");
    let endings: Vec<String> = tally.endings.iter().map(|(word, count)| format!("{count} {word}")).collect();
    println!("{name}: rounds ended: {}", endings.join(", "));
    tally
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.rounds += other.rounds;
        for (kind, count) in other.violations {
            *self.violations.entry(kind).or_default() += count;
        }
    }

    pub fn assert_none(&self) {
        assert!(self.violations.is_empty(), "{self}; what has to be known to have them again is above");
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum: u64 = self.violations.values().sum();
        write!(f, "{} rounds, {sum} violations", self.rounds)?;
        for (kind, count) in &self.violations {
            write!(f, ", {kind:?} {count}")?;
        }
        Ok(())
    }
}
