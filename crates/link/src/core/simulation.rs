//! Two cores over lines that fail, with a virtual clock. A failure names its seed.
//!
//! What a program gives is checked against what the other one gets: every message once, every byte of a
//! stream in its place, and memory within its bounds at every step.

mod line;
mod program;
mod tests;

use std::time::Duration;

use drover_wire::Credits;

use super::{Core, Limits, Moment, Side, StripeId};
use line::{Fate, Line};
use program::Program;

/// Numbers drawn by chance, from a seed (SplitMix64).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in so many of a million cases.
    pub fn millionths(&mut self, millionths: u64) -> bool {
        self.below(1_000_000) < millionths
    }
}

/// What happens to lines; chances are in millionths for each line and step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// It ends, at both sides, not at the same time.
    pub death: u64,
    /// It takes bytes and carries none, for good.
    pub black_hole: u64,
    /// It stands still for a moment.
    pub stall: u64,
    /// It changes a bit, for each delivery.
    pub flip: u64,
    /// When all lines are cut, and until when.
    pub outage: Option<(Duration, Duration)>,
}

/// Bounds small enough that they are reached all the time.
pub fn small_limits() -> Limits {
    Limits {
        credits: Credits { stream: 16 << 10, messages: 64 << 10, session: 512 << 10 },
        channel_credit_max: 128 << 10,
        held_bytes_max: 256 << 10,
        channels_max: 64,
        give_up_after: Duration::from_secs(900),
    }
}

/// Largest message in a simulation: it fits into half of the first credit.
pub const MESSAGE_BYTES_MAX: u64 = 20 << 10;

pub struct World {
    pub seed: u64,
    pub chance: Chance,
    pub now: Moment,
    pub limits: Limits,
    /// The dialler and the listener.
    pub cores: [Core; 2],
    pub programs: [Program; 2],
    lines: Vec<(StripeId, Line)>,
    next_line: StripeId,
    wanted: usize,
    dialled: Moment,
    pub faults: Faults,
    pub deaths: usize,
}

/// How a connection is made, in virtual time.
const DIAL_EVERY: Duration = Duration::from_millis(200);

impl World {
    pub fn new(seed: u64, faults: Faults, limits: Limits) -> World {
        let core = |side| Core::new(side, limits, limits.credits);
        World {
            seed,
            chance: Chance::new(seed),
            now: Moment::ZERO,
            limits,
            cores: [core(Side::Dialler), core(Side::Listener)],
            programs: [Program::new(seed ^ 1), Program::new(seed ^ 2)],
            lines: Vec::new(),
            next_line: 1,
            wanted: 4,
            dialled: Moment::ZERO,
            faults,
            deaths: 0,
        }
    }

    fn is_cut(&self) -> bool {
        self.faults.outage.is_some_and(|(from, to)| self.now >= from && self.now < to)
    }

    /// One step of virtual time: lines, programs, clocks.
    pub fn step(&mut self, step: Duration) {
        self.now += step;
        self.draw_fates();
        let is_cut = self.is_cut();
        for (id, line) in &mut self.lines {
            line.carry(*id, &mut self.cores, is_cut, self.now, &mut self.chance, self.faults.flip);
        }
        self.end_lines();
        for side in 0..2 {
            self.programs[side].act(&mut self.cores[side], self.seed);
            let tick = self.cores[side].tick(self.wanted, self.now);
            for id in tick.kill {
                self.kill(id);
            }
        }
        self.dial(is_cut);
        self.check();
    }

    /// Lines and clocks alone: programs do nothing and a session may end.
    pub fn step_without_checks(&mut self, step: Duration) {
        self.now += step;
        self.draw_fates();
        for (id, line) in &mut self.lines {
            line.carry(*id, &mut self.cores, false, self.now, &mut self.chance, 0);
        }
        self.end_lines();
        for side in 0..2 {
            for id in self.cores[side].tick(self.wanted, self.now).kill {
                self.kill(id);
            }
        }
        self.dial(false);
    }

    fn draw_fates(&mut self) {
        for (_, line) in &mut self.lines {
            if self.chance.millionths(self.faults.death) {
                line.fate = Fate::Ending;
            } else if self.chance.millionths(self.faults.black_hole) {
                line.fate = Fate::BlackHole;
            } else if self.chance.millionths(self.faults.stall) {
                line.stalled_until = self.now + Duration::from_millis(self.chance.below(4000));
            }
        }
    }

    fn kill(&mut self, id: StripeId) {
        if let Some((_, line)) = self.lines.iter_mut().find(|(it, _)| *it == id) {
            line.fate = Fate::Ending;
        }
    }

    /// Each side learns in its own time that a line has ended.
    fn end_lines(&mut self) {
        for at in 0..self.lines.len() {
            let (id, line) = &mut self.lines[at];
            for side in 0..2 {
                if line.fate == Fate::Ending && line.is_up[side] && self.chance.below(20) == 0 {
                    line.is_up[side] = false;
                    self.cores[side].stripe_down(*id, self.now);
                    self.deaths += side;
                }
            }
        }
        self.lines.retain(|(_, line)| line.is_up[0] || line.is_up[1]);
    }

    fn dial(&mut self, is_cut: bool) {
        let is_due = self.now >= self.dialled + DIAL_EVERY;
        if !is_cut && is_due && self.cores[0].healthy() < self.wanted {
            self.dialled = self.now;
            let id = self.next_line;
            self.next_line += 1;
            let delay = Duration::from_millis(1 + self.chance.below(60));
            self.lines.push((id, Line::new(delay, 1 + self.chance.below(50))));
            self.cores.iter_mut().for_each(|core| core.stripe_up(id, self.now));
        }
    }

    /// Starts on so many connections.
    pub fn set_wanted(&mut self, wanted: usize) {
        self.wanted = wanted;
        self.cores[0].retire_down_to(wanted, self.now);
    }

    /// What must be so at every step.
    fn check(&self) {
        for (side, core) in self.cores.iter().enumerate() {
            let (held, unread) = core.memory();
            let seed = self.seed;
            if let Some(why) = core.ended() {
                panic!("seed {seed}: side {side} ended: {why}");
            }
            assert!(held <= self.limits.held_bytes_max + MESSAGE_BYTES_MAX * 2, "seed {seed}: {held} held");
            assert!(unread <= self.limits.credits.session, "seed {seed}: {unread} unread");
            assert!(core.flying.len() as u64 <= drover_wire::WINDOW_FRAMES, "seed {seed}");
            assert!(core.arrived.memory_ranges() <= core.flying.len() * 2 + 70_000, "seed {seed}");
        }
    }

    /// Runs until both programs have all they should get, and checks it. Then everything was let go.
    pub fn run(&mut self, limit: Duration) {
        while !self.is_complete() {
            assert!(self.now < limit, "seed {}: not done after {limit:?}: {}", self.seed, self.describe());
            let step = if self.is_cut() { 20 } else { 1 };
            self.step(Duration::from_millis(step));
        }
        self.faults = Faults::default();
        for _ in 0..20_000 {
            if self.cores.iter().all(|core| core.memory() == (0, 0) && core.channels() == 0) {
                // No credit was lost on the way: what one side took is what came to the other.
                for (core, peer) in [(0, 1), (1, 0)].map(|(at, to)| (&self.cores[at], &self.cores[to])) {
                    assert_eq!(core.used, peer.budget.arrived, "seed {}", self.seed);
                }
                return;
            }
            self.step(Duration::from_millis(1));
        }
        panic!("seed {}: something is left: {}", self.seed, self.describe());
    }

    fn is_complete(&self) -> bool {
        self.programs.iter().all(Program::is_complete)
    }

    fn describe(&self) -> String {
        let side = |side: usize| {
            let core = &self.cores[side];
            format!(
                "side {side}: {}, memory {:?}, {} channels, {} flying, {} healthy",
                self.programs[side].describe(),
                core.memory(),
                core.channels(),
                core.flying.len(),
                core.healthy(),
            )
        };
        format!("at {:?}; {}; {}", self.now, side(0), side(1))
    }
}
