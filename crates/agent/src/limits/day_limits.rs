//! Limits by the hours that may be changed while they are kept to.

use std::sync::{Arc, Mutex, PoisonError};

use crate::trust::{DayLimit, limit_at};

/// Limits by the hours, of which the lowest that holds counts. Clones are the same: whoever keeps to them finds others that are set
/// with its next look, a second later at most.
#[derive(Clone, Debug, Default)]
pub struct DayLimits(Arc<Mutex<Vec<DayLimit>>>);

impl DayLimits {
    /// These.
    pub fn new(limits: Vec<DayLimit>) -> DayLimits {
        DayLimits(Arc::new(Mutex::new(limits)))
    }

    /// From now on it is these.
    pub fn set(&self, limits: Vec<DayLimit>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// The lowest that holds at a time, in seconds since 1970.
    pub fn at(&self, seconds: u64) -> Option<u64> {
        limit_at(&self.0.lock().unwrap_or_else(PoisonError::into_inner), seconds)
    }
}
