//! Which orders about a machine are still to be carried out. Orders may be late: a line was cut, a host stood still, and
//! meanwhile whoever gave them went on. So each has a number, and none is carried out after one with a higher number.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;

use super::claims::Run;
use super::refused;
use crate::error::Refusal;

/// How long after a `ready` a start may come. In between, whoever orders it looks whether the source is off.
pub const START_WITHIN: Duration = Duration::from_secs(30);

/// Folders that orders were given about, in an agent's life.
const FOLDERS_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct Orders(Mutex<HashMap<PathBuf, Arc<OfFolder>>>);

/// Orders about a folder.
#[derive(Default)]
pub(super) struct OfFolder {
    last: Mutex<Last>,
    /// Whose order is being carried out.
    current: Mutex<Option<Box<dyn Run>>>,
}

/// An order is being carried out as long as this lives.
pub(super) struct AtWork<'a>(&'a OfFolder);

/// The last order about a folder.
#[derive(Default)]
pub(super) struct Last {
    number: u64,
    ready_since: Option<Instant>,
}

impl Orders {
    /// What is known of a folder. To be locked for as long as an order is carried out.
    pub(super) fn of(&self, folder: &Path) -> Result<Arc<OfFolder>, Refusal> {
        let mut folders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if folders.len() >= FOLDERS_MAX && !folders.contains_key(folder) {
            let why = format!("orders were given about {FOLDERS_MAX} machines: restart the agent");
            return Err(refused(DiskErrorKind::Failed, why));
        }
        Ok(folders.entry(folder.to_path_buf()).or_default().clone())
    }
}

impl OfFolder {
    /// The last order, held while the next is carried out.
    pub(super) fn held(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an order ended whose peer is gone: whoever comes now would wait for what nobody else waits for.
    pub(super) fn end_what_was_left(&self) {
        if let Some(run) = self.current().as_ref().filter(|run| !run.is_there()) {
            run.end();
        }
    }

    /// Tells whose order is being carried out.
    pub(super) fn at_work(&self, run: Box<dyn Run>) -> AtWork<'_> {
        *self.current() = Some(run);
        AtWork(self)
    }

    fn current(&self) -> MutexGuard<'_, Option<Box<dyn Run>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        *self.0.current() = None;
    }
}

impl Last {
    /// The number of the last order.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Takes an order in. From here on, no other with a number up to this one is carried out.
    pub(super) fn take(&mut self, number: u64) -> Result<(), Refusal> {
        if number <= self.number {
            let why =
                format!("order {number} came too late: order {} was carried out before it", self.number);
            return Err(refused(DiskErrorKind::Denied, why));
        }
        *self = Last { number, ready_since: None };
        Ok(())
    }

    /// A start may follow the order that was taken last.
    pub(super) fn make_ready(&mut self) {
        self.ready_since = Some(Instant::now());
    }

    /// Takes in an order to start that follows a `ready`.
    pub(super) fn take_start(&mut self, number: u64, after: u64, within: Duration) -> Result<(), Refusal> {
        let is_ready =
            self.number == after && self.ready_since.is_some_and(|since| since.elapsed() <= within);
        self.take(number)?;
        if is_ready {
            return Ok(());
        }
        let why = "the order to start came too late: the source has to be looked at again before";
        Err(refused(DiskErrorKind::Denied, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    fn after_ready(number: u64) -> Last {
        let mut last = Last::default();
        last.take(number).unwrap();
        last.make_ready();
        last
    }

    #[test]
    fn a_start_is_carried_out_right_after_its_ready_and_never_later() {
        assert!(after_ready(5).take_start(6, 5, LONG).is_ok());
        assert!(after_ready(5).take_start(6, 4, LONG).is_err(), "of another ready");
        assert!(after_ready(5).take_start(6, 5, Duration::ZERO).is_err(), "too long ago");
        assert!(Last::default().take_start(6, 0, LONG).is_err(), "without any");
        let mut looked = after_ready(5);
        looked.take(7).unwrap();
        let late = looked.take_start(6, 5, LONG).unwrap_err();
        assert!(late.why.contains("too late"), "a look came between: {late}");
        assert!(looked.take_start(8, 5, LONG).is_err(), "a look came between, whatever the number");
    }

    #[test]
    fn orders_that_were_overtaken_are_refused() {
        let orders = Orders::default();
        let of = |path: &str| orders.of(Path::new(path)).unwrap();
        let a = of("/a");
        a.held().take(5).unwrap();
        assert!(of("/a").held().take(5).is_err());
        assert!(of("/b").held().take(5).is_ok());
        assert!(a.held().take(6).is_ok());
    }
}
