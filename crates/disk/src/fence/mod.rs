//! Which run may write. Here is the rule alone, without locks, files or sockets; `gate` puts it between
//! threads, `file` on disk.
//!
//! ```text
//! epoch 3   enter ─ begin ── end ─ begin ──────── end     begin: refused, for ever
//! epoch 4                                 enter ─ begin: after the end above
//! ```
//!
//! Each run that writes a disk carries an epoch, higher than those of all runs before it. Once a run
//! has entered, what runs before it had begun is finished, nothing new of theirs is begun, and only
//! then the new run's first write begins. So a run that was given up for dead and wakes up later
//! cannot touch what another took over.

mod file;
mod gate;

use std::collections::BTreeMap;

pub use file::{FenceFileError, fence_path, highest_in};
pub use gate::{Gate, GateError, Pass};

/// The number of a run; 0 stands for clients that carry none.
pub type Epoch = u64;

/// What a server knows about the epochs of one disk.
#[derive(Debug, Default)]
pub struct Fence {
    highest: Epoch,
    /// Writes in progress by epoch; no entry is 0.
    running: BTreeMap<Epoch, u64>,
}

/// A run whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Superseded {
    /// It has a lower epoch than another that came.
    #[error("epoch {mine} is over: epoch {highest} has taken this disk")]
    Older {
        /// The run's epoch.
        mine: Epoch,
        /// The highest that came.
        highest: Epoch,
    },
    /// It has none, and others have.
    #[error(
        "epoch {highest} has taken this disk, and this client carries no epoch; \
         start the server with --no-fence to let any client write"
    )]
    Without {
        /// The highest that came.
        highest: Epoch,
    },
}

/// What a write has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It is in progress now; [`Fence::end`] must follow.
    Now,
    /// Writes of older runs are still in progress: ask again when one has ended.
    AfterOlder,
}

impl Fence {
    /// A fence that has seen these epochs already.
    pub fn new(highest: Epoch) -> Fence {
        Fence { highest, running: BTreeMap::new() }
    }

    /// The highest epoch that entered.
    pub fn highest(&self) -> Epoch {
        self.highest
    }

    /// Whether `epoch` may enter.
    ///
    /// # Errors
    /// When a higher one did.
    pub fn check(&self, epoch: Epoch) -> Result<(), Superseded> {
        match (epoch, self.highest) {
            (mine, highest) if mine >= highest => Ok(()),
            (0, highest) => Err(Superseded::Without { highest }),
            (mine, highest) => Err(Superseded::Older { mine, highest }),
        }
    }

    /// Lets `epoch` in. If it is higher than all before, it must have been made durable by now.
    ///
    /// # Errors
    /// As [`Fence::check`].
    pub fn enter(&mut self, epoch: Epoch) -> Result<(), Superseded> {
        self.check(epoch)?;
        self.highest = epoch;
        Ok(())
    }

    /// Begins a write of a run that entered, if it is its turn.
    ///
    /// # Errors
    /// As [`Fence::check`].
    pub fn begin(&mut self, epoch: Epoch) -> Result<Begin, Superseded> {
        self.check(epoch)?;
        assert!(epoch <= self.highest, "a write of epoch {epoch}, which never entered");
        if self.running.keys().next().is_some_and(|oldest| *oldest < epoch) {
            return Ok(Begin::AfterOlder);
        }
        *self.running.entry(epoch).or_default() += 1;
        Ok(Begin::Now)
    }

    /// Ends a write that had begun. `true` if it was the last of its epoch, so that others may begin.
    pub fn end(&mut self, epoch: Epoch) -> bool {
        let Some(count) = self.running.get_mut(&epoch) else {
            panic!("the end of a write of epoch {epoch} that never began");
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.running.remove(&epoch);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Enter(Epoch),
        Begin(Epoch),
        /// Ends the nth write in progress.
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let epoch = 0u64..5;
        prop_oneof![
            1 => epoch.clone().prop_map(Step::Enter),
            4 => epoch.prop_map(Step::Begin),
            3 => (0usize..8).prop_map(Step::End),
        ]
    }

    proptest! {
        #[test]
        fn no_write_is_begun_or_in_progress_once_one_of_a_higher_epoch_began(
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut fence = Fence::default();
            let mut entered = vec![0];
            let mut running: Vec<Epoch> = Vec::new();
            let mut began_highest = 0;
            for step in steps {
                match step {
                    Step::Enter(epoch) => {
                        let highest = entered.iter().copied().max().unwrap();
                        prop_assert_eq!(fence.enter(epoch).is_ok(), epoch >= highest);
                        if epoch >= highest {
                            entered.push(epoch);
                        }
                    }
                    Step::Begin(epoch) if entered.contains(&epoch) => {
                        let highest = entered.iter().copied().max().unwrap();
                        match fence.begin(epoch) {
                            Ok(Begin::Now) => {
                                prop_assert!(epoch == highest && epoch >= began_highest);
                                prop_assert!(running.iter().all(|other| *other == epoch));
                                began_highest = epoch;
                                running.push(epoch);
                            }
                            Ok(Begin::AfterOlder) => {
                                prop_assert!(epoch == highest);
                                prop_assert!(running.iter().any(|other| *other < epoch));
                            }
                            Err(_) => prop_assert!(epoch < highest),
                        }
                    }
                    Step::End(nth) if !running.is_empty() => {
                        let epoch = running.remove(nth % running.len());
                        prop_assert_eq!(fence.end(epoch), !running.contains(&epoch));
                    }
                    Step::Begin(_) | Step::End(_) => {}
                }
            }
            // However it went, the highest may write once the others have ended.
            while let Some(epoch) = running.pop() {
                fence.end(epoch);
            }
            prop_assert_eq!(fence.begin(fence.highest()), Ok(Begin::Now));
        }
    }

    #[test]
    fn a_refusal_names_both_epochs() {
        let fence = Fence::new(5);
        assert_eq!(fence.check(3).unwrap_err().to_string(), "epoch 3 is over: epoch 5 has taken this disk");
        assert!(fence.check(0).unwrap_err().to_string().contains("carries no epoch"));
        assert!(fence.check(5).is_ok() && fence.check(6).is_ok());
    }
}
