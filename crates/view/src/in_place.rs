//! What is now, in place on a terminal: shown again and again by a thread of its own, told by whoever knows.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::mode::DisplayMode;
use crate::now::{DiskNow, TotalNow};
use crate::stage::{Scene, Stage, shows_blocks};
use crate::tally::Line;
use crate::text::clean;

/// Something that can be shown so.
pub trait InLines: Default + Send + 'static {
    /// Its lines, what matters most at their left: what does not fit is cut. `blocks`: bars are made of block elements.
    fn lines(&self, blocks: bool) -> Vec<String>;
}

/// Shows it in place on a terminal. Whoever tells it something never waits for the terminal.
#[derive(Debug)]
pub struct InPlace<T> {
    now: Arc<Mutex<T>>,
    stage: Stage,
}

impl<T: InLines> InPlace<T> {
    /// Begins to show it on standard error, which is a terminal. A drop leaves that clean.
    pub fn start() -> InPlace<T> {
        InPlace::start_on(Box::new(std::io::stderr()))
    }

    /// As [`InPlace::start`], on standard output.
    pub fn start_on_output() -> InPlace<T> {
        InPlace::start_on(Box::new(std::io::stdout()))
    }

    pub(crate) fn start_on(out: Box<dyn Write + Send>) -> InPlace<T> {
        let now = Arc::new(Mutex::new(T::default()));
        let view = View { now: now.clone(), blocks: shows_blocks() };
        InPlace { now, stage: Stage::open_on(DisplayMode::Terminal, view, out) }
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        self.stage.tell([Line { text: clean(text).into_owned(), bad: false }]);
    }

    /// What it shows from now on.
    pub fn show(&self, now: T) {
        *lock(&self.now) = now;
    }
}

fn lock<T>(now: &Mutex<T>) -> MutexGuard<'_, T> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

struct View<T> {
    now: Arc<Mutex<T>>,
    blocks: bool,
}

impl<T: InLines> Scene for View<T> {
    fn look(&mut self, _: Instant) {}

    fn disks(&self) -> Vec<DiskNow> {
        Vec::new()
    }

    fn others(&self, _: Instant) -> Vec<String> {
        lock(&self.now).lines(self.blocks)
    }

    fn total(&self) -> Option<TotalNow> {
        None
    }
}
