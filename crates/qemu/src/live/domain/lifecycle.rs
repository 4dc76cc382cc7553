//! A domain's move from its begin to its end.

use drover_live::{DomainUnclear, Follow, Found, Moved, Passage, Sample, Unclear, Where};

use super::run::Move;
use crate::error::QemuError;
use crate::live::core::{Adapter, Lifecycle, Plan};
use crate::live::turn::{Dated, in_turn};
use crate::live::{Ending, LiveError};

impl<'a> Lifecycle<'a> for Move<'a> {
    fn find(&mut self) -> Result<Found, QemuError> {
        self.found()
    }

    fn sent(&mut self) -> Result<Sample, QemuError> {
        Ok(self.ends.source.job(&self.known.uuid, 0)?.sample)
    }

    /// It is at the source, unless that says otherwise or nothing.
    fn unsent(&mut self, cause: Ending) -> LiveError {
        let failed = matches!(cause, Ending::Failed(_));
        let guest_at = match failed.then(|| self.found()) {
            Some(Ok(Found::Unclear(Unclear::Domain(DomainUnclear::Nowhere)))) => Where::Ended,
            Some(Err(_)) => Where::Unknown,
            Some(Ok(_)) | None => Where::Source,
        };
        LiveError { cause, guest_at }
    }

    fn look_in_turn(&mut self) -> Result<Dated<Plan>, Ending> {
        let facts = self.looked()?;
        let (turn, stop) = (self.core.wanted.turn.as_ref(), self.core.stop);
        let facts = in_turn(turn, facts, stop, || self.inspect())?;
        self.core.state.was_running = self.ends.source.stand(&self.known.uuid)?.runs();
        facts.map(|facts| self.plan(&facts))
    }

    fn go(&mut self, plan: Dated<Plan>) -> Result<Moved, Ending> {
        let plan = plan.what;
        let Some(course) = &plan.choice.course else {
            return Err(Ending::Promise(Box::new(plan.choice)));
        };
        self.core.begins(Follow::new(self.core.promise(), course, self.core.easing(&plan.facts)));
        self.core.state.passage = Passage::sent();
        self.core.state.outlook.begins(&plan.choice, &plan.facts);
        self.core.halt_if_stopped()?;
        self.make_volumes()?;
        self.promise_downtime()?;
        self.core.note_excess(course.channels);
        self.take_share();
        let words = self.words(course.channels);
        self.begin(&words)?;
        self.follow()
    }

    fn take_over(&mut self, found: &Found) -> Result<Moved, Ending> {
        if *found == Found::Moved {
            return self.arrive();
        }
        self.was_persistent = self.ends.source.info(&self.known.uuid).is_ok_and(|info| info.is_persistent);
        if self.ends.source.stand(&self.known.uuid).is_ok_and(|stand| stand.stands_for_itself()) {
            self.core.state.was_running = false;
            self.note("it is paused at the source, and is not started at the target (`virsh resume`)");
        }
        let deeds = self.deeds_left();
        self.core.begins(Follow::of_earlier(self.core.promise(), &deeds));
        self.follow()
    }

    fn settle(&mut self, cause: Ending) -> Result<Moved, LiveError> {
        self.core.rests();
        let found = self.settled();
        if self.is_to_be_seen_after(&found) {
            // It went before anybody looked, or while it was to be cancelled.
            self.after = Some(self.begin_to_see_after());
            return match self.drive() {
                // Where it ended is looked at once more, and why it was to end is known.
                Ok(_) => self.arrive().or_else(|_| self.settle(cause)),
                Err(late) => self.settle(late),
            };
        }
        let guest_at = match &found {
            Ok(Found::Moved) => return self.arrived(),
            Ok(found) => found.settled().1,
            Err(_) => Where::Unknown,
        };
        match &found {
            Ok(Found::Ahead) => {
                self.note("the rest of its memory follows, and nobody sees after it any more: say `drover live` again");
            }
            Ok(Found::Unclear(why)) => self.note(format!("{}; {}", why.words().0, why.words().1)),
            Err(error) => self.note(error.chain()),
            Ok(_) => {}
        }
        if guest_at == Where::Source {
            self.tidy_source();
        }
        if matches!(found, Ok(Found::Nothing)) {
            self.remove_volumes();
        }
        Err(LiveError { cause, guest_at })
    }
}
