//! What a move may send of a budget that it has with others: they come and go, and it is told so on its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::disks::Pair;
use super::guest::Guest;
use crate::error::{QemuError, QemuErrorKind};

/// A bound, in bytes a second, that can be set while a move goes. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Share(Arc<AtomicU64>);

impl Share {
    /// A bound.
    pub fn new(rate: u64) -> Share {
        Share(Arc::new(AtomicU64::new(rate)))
    }

    /// Sets another; the move tells when it is kept ([`super::Event::Share`]).
    pub fn set(&self, rate: u64) {
        self.0.store(rate, Ordering::Relaxed);
    }

    /// What it is now.
    pub fn rate(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Guest {
    /// Sends so much from now on, also of what is left when the guest has gone ahead, and says so (source).
    pub(super) fn bound_rate(&mut self, rate: u64, also_postcopy: bool) -> Result<(), QemuError> {
        let mut parameters = json!({ "max-bandwidth": rate });
        if also_postcopy {
            parameters["max-postcopy-bandwidth"] = json!(rate);
        }
        self.qmp.execute("migrate-set-parameters", parameters)?;
        let told = self.qmp.execute("query-migrate-parameters", Value::Null)?;
        match told["max-bandwidth"].as_u64() {
            Some(set) if set == rate => Ok(()),
            other => {
                let what = "another share of what several moves may send";
                Err(QemuError::new(QemuErrorKind::Failed, what)
                    .because(format!("max-bandwidth was set to {rate} and is {other:?}")))
            }
        }
    }

    /// Has mirrors copy so much, all together (source). One that has copied all follows each write, which no bound is to hold
    /// up.
    pub(super) fn bound_mirrors(&mut self, pairs: &[Pair], rate: u64) -> Result<(), QemuError> {
        for pair in pairs {
            let each = (rate / pairs.len().max(1) as u64).max(1);
            let speed = if self.mirror_state(pair)?.is_ready { 0 } else { each };
            self.qmp.execute("block-job-set-speed", json!({"device": pair.job(), "speed": speed}))?;
        }
        Ok(())
    }
}
