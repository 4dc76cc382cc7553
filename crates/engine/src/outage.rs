//! A source that does not answer for the moment: what is told of it.

use std::time::Instant;

use crate::event::Event;
use crate::runner::Runner;

/// What was told of the source.
#[derive(Debug, Default)]
pub(crate) struct Told(Option<(String, Instant)>);

impl Runner<'_> {
    /// Forgets that the source was away when an earlier run was killed.
    pub(crate) fn forget_outage(&self) {
        // What cannot be kept is a loss to `drover status` only.
        if self.store.source_away(self.plan).is_ok_and(|away| away.is_some()) {
            let _ = self.store.add_source_back(self.plan, "a run begins");
        }
    }

    /// Tells that the source does not answer for the moment, and that it does again.
    pub(crate) fn tell_outage(&self, told: &mut Told) {
        // A note that cannot be kept is still shown.
        match (self.source.away(), told.0.take()) {
            (Some(what), None) => {
                let _ = self.store.add_source_away(self.plan, &what);
                self.observer.event(&Event::SourceAway { what: what.clone() });
                told.0 = Some((what, Instant::now()));
            }
            (None, Some((what, since))) => {
                let seconds = since.elapsed().as_secs_f64();
                let text = format!("{what}: it answers again after {seconds:.0} s");
                let _ = self.store.add_source_back(self.plan, &text);
                self.observer.event(&Event::SourceBack { what, seconds });
            }
            (_, before) => told.0 = before,
        }
    }
}
