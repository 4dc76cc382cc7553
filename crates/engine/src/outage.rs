//! A source that does not answer for the moment: what is told of it, and how many VMs of a run wait for nothing else.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::event::Event;
use crate::parallel::OnDrop;
use crate::runner::Runner;

/// How many VMs of a run are at work, and how many of them failed and only wait until they can be undone.
#[derive(Debug, Default)]
pub(crate) struct AtWork {
    all: AtomicUsize,
    undone: AtomicUsize,
}

impl AtWork {
    /// A VM is at work until this is dropped.
    pub(crate) fn enter(&self) -> impl Drop + use<'_> {
        counted(&self.all)
    }

    /// One that is at work waits until it can be undone, until this is dropped.
    pub(crate) fn waits_to_be_undone(&self) -> impl Drop + use<'_> {
        counted(&self.undone)
    }

    /// Whether the run goes on whatever becomes of those that wait to be undone.
    pub(crate) fn has_others(&self) -> bool {
        self.all.load(Ordering::Relaxed) > self.undone.load(Ordering::Relaxed)
    }
}

fn counted(counter: &AtomicUsize) -> impl Drop + use<'_> {
    counter.fetch_add(1, Ordering::Relaxed);
    OnDrop::new(|| {
        counter.fetch_sub(1, Ordering::Relaxed);
    })
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_to_be_undone_do_not_keep_each_other_waiting() {
        let at_work = AtWork::default();
        let first = at_work.enter();
        let second = at_work.enter();
        let undone = at_work.waits_to_be_undone();
        assert!(at_work.has_others());
        let both = at_work.waits_to_be_undone();
        assert!(!at_work.has_others());
        drop((both, undone));
        drop(second);
        assert!(at_work.has_others());
        drop(first);
        assert!(!at_work.has_others());
    }
}
