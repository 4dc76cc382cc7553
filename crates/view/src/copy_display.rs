use std::sync::Arc;
use std::time::Instant;

use drover_mover::Progress;

use crate::meter::Meter;
use crate::mode::DisplayMode;
use crate::now::{DiskNow, TotalNow};
use crate::stage::{Scene, Stage};

/// Shows one transfer as it happens.
#[derive(Debug)]
pub struct CopyDisplay {
    stage: Stage,
}

impl CopyDisplay {
    /// Begins to show it under a name (`copy`, `verify`).
    pub fn start(mode: DisplayMode, label: &str, progress: Arc<Progress>) -> CopyDisplay {
        let meter = Meter::since(Instant::now());
        CopyDisplay { stage: Stage::open(mode, One { label: label.into(), progress, meter }) }
    }

    /// Ends it and leaves the terminal clean; so does a drop.
    pub fn finish(self) {
        self.stage.close();
    }
}

struct One {
    label: String,
    progress: Arc<Progress>,
    meter: Meter,
}

impl Scene for One {
    fn look(&mut self, now: Instant) {
        self.meter.add(now, self.progress.snapshot());
    }

    fn disks(&self) -> Vec<DiskNow> {
        vec![DiskNow::new(None, None, self.label.clone(), &self.meter)]
    }

    fn others(&self, _: Instant) -> Vec<String> {
        Vec::new()
    }

    fn total(&self) -> Option<TotalNow> {
        None
    }
}
