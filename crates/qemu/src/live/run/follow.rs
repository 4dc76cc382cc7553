//! Memory on its way: looks at the source, and what comes of them. What is done when `drover_live::Passage` and `Follow` decide.

use std::time::{Duration, Instant};

use drover_live::{Act, Event, Follow, Moved, Phase, RATE_UNLIMITED, Sample, Side, job_obstacles};
use serde_json::json;

use super::{Ending, Mirrors, Move, RUNNING, SAMPLE_PAUSE};
use crate::error::{QemuError, QemuErrorKind};
use crate::live::carried::{Carried, CarriedEnds, Carrier};
use crate::live::core::{Adapter, Looked};
use crate::live::guest::POLL;

/// Between two looks where little is left.
const CLOSE_PAUSE: Duration = Duration::from_millis(10);
/// Between two tries to have a link made anew that nothing but the target's monitor goes over, and for which one is waited.
const LOOK_FOR_LINK_PAUSE: Duration = Duration::from_secs(5);
const LOOK_FOR_LINK_TIME: Duration = Duration::from_secs(2);

impl Move<'_> {
    /// Watches memory on its way, and sees it to its end.
    pub(super) fn follow(&mut self, began: Instant, mut follow: Follow) -> Result<Moved, Ending> {
        let (mut is_close, mut was_told, mut has_told_sent) = (false, began, false);
        loop {
            let told = match self.source.sample(began) {
                Ok(told) => told,
                Err(error) => return Err(self.source_failed(error)),
            };
            let phase = told.sample.phase;
            if !is_close || phase != Phase::Precopy || was_told.elapsed() >= SAMPLE_PAUSE {
                was_told = Instant::now();
                self.core.tell(Event::Memory(told.clone()));
            }
            let is_up = self.core.look_at_link();
            if matches!(phase, Phase::Setup | Phase::Precopy) {
                self.look_for_link();
            }
            self.halt_if_still_for_long(phase)?;
            self.keep_to_orders(phase)?;
            if self.passage.can_be_called_back(&told) {
                self.halt_if_job_began()?;
            }
            self.keep_share(phase)?;
            if !has_told_sent && self.is_as_good_as_sent(&told.sample, follow.rate()) {
                has_told_sent = true;
                self.core.tell(Event::Sent);
            }
            match self.passage.act(&told) {
                Act::Follow => {
                    self.core.halt_if_stopped()?;
                    self.get_in_step(&told.sample, follow.rate());
                    let (goes_ahead, late) = (self.passage.goes_ahead(), Duration::ZERO);
                    let looked = Looked { told: &told, is_up, is_told: true, goes_ahead, late };
                    self.carry_out(&mut follow, &looked)?;
                }
                Act::Wait => {}
                Act::HandOver => self.hand_over()?,
                Act::LetGo => self.let_go()?,
                Act::SeeAfter => self.see_after(&told)?,
                Act::Arrive => {
                    self.let_go_unseen();
                    return self.arrived(began, told, self.patience());
                }
                Act::Fail => return Err(self.failed(&told)),
            }
            is_close = follow.is_close(&told.sample);
            self.pause(phase, is_close)?;
        }
    }

    /// The guest stands still, and all but the last of its memory is sent: its disks are handed over, and the source goes on.
    fn hand_over(&mut self) -> Result<(), Ending> {
        if self.may_go()? {
            self.hand_over_disks()?;
            let state = json!({"state": "pre-switchover"});
            self.source.qmp.execute("migrate-continue", state)?;
            self.passage.hand_over();
        }
        Ok(())
    }

    /// Whether the line is for others. Over a link the next takes some round trips before it sends: it begins while this one stands, if
    /// all of this one is on its way by then and what was lost of it goes again. Not where they share a budget, which would be given to
    /// others at once.
    fn is_as_good_as_sent(&self, sample: &Sample, rate: Option<f64>) -> bool {
        let is_over_by_then = |(by, _): (&dyn Carrier, &CarriedEnds)| {
            let sends = by.round_trip().as_secs_f64();
            let is_on_its_way = rate.is_some_and(|rate| sample.left_bytes as f64 <= rate * sends);
            is_on_its_way && self.core.still.lasts() >= by.round_trip()
        };
        match sample.phase {
            Phase::Done => true,
            Phase::Switchover
                if !self.passage.goes_ahead()
                    && self.mirrors == Mirrors::None
                    && self.core.wanted.share.is_none() =>
            {
                Carried::of_data(self.core.carried()).is_some_and(is_over_by_then)
            }
            _ => false,
        }
    }

    /// Sends as fast as it may. What somebody else sets meanwhile is no reason to end a move.
    pub(super) fn send_as_allowed(&mut self) -> Result<(), Ending> {
        match self.source.bound_rate(self.core.rate_max().unwrap_or(RATE_UNLIMITED), false) {
            Err(error) if error.is_of_connection() => Err(self.source_failed(error)),
            Err(error) => {
                self.note(format!("it goes on as fast as it is set to: {}", error.chain()));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Memory and disks go past the link, over which alone the guest can be started at the target. It is not let go while that is away.
    pub(super) fn starts_by_link_alone(&self) -> bool {
        self.core.carried().is_some_and(|carried| carried.ends.is_none())
    }

    /// The guest stands still, and all but the last of its memory is sent: whether it may go. A link is told to be there for seconds
    /// after it was cut, so the target's own word counts; it is waited for as long as was promised that the guest stands still.
    fn may_go(&mut self) -> Result<bool, Ending> {
        let Some(Carried { by, ends: None }) = self.core.carried() else { return Ok(true) };
        let least = by.round_trip() * 3 + POLL;
        let left = self.core.wanted.promise.downtime_max.saturating_sub(self.core.still.lasts());
        let error = match self.target.answers_within(left.max(least)) {
            Ok(()) => return Ok(true),
            Err(error) => error,
        };
        self.core.look_at_link();
        if self.core.still.lasts() >= self.core.wanted.promise.downtime_max {
            let why = format!(
                "the guest could not be started at the target, which does not answer: {}",
                error.chain()
            );
            return Err(Ending::Failed(self.core.failed(&why)));
        }
        if error.is_of_connection() && error.kind != QemuErrorKind::Timeout {
            // The next look tells whether that helped.
            let _ = self.target.connect_again_within(left.max(least));
        }
        Ok(false)
    }

    /// A link whose session ended comes back with the next connection, and while memory goes past it nobody makes one.
    fn look_for_link(&mut self) {
        let is_to_be_made = self.starts_by_link_alone() && self.is_link_away() && !self.is_link_waited_for();
        let is_time = self.looked_for_link.is_none_or(|at| at.elapsed() >= LOOK_FOR_LINK_PAUSE);
        if is_to_be_made && is_time {
            self.looked_for_link = Some(Instant::now());
            // It is tried again.
            let _ = self.target.connect_again_within(LOOK_FOR_LINK_TIME);
        }
    }

    /// Whether the target cannot be reached at this moment, because what carries the move does not.
    pub(super) fn is_link_away(&self) -> bool {
        self.core.carried().is_some_and(|carried| !carried.by.is_up())
    }

    /// Whether what the target would be asked waits until it can be reached again.
    pub(super) fn is_link_waited_for(&self) -> bool {
        self.core.carried().is_some_and(|carried| carried.by.is_waited_for())
    }

    /// A guest that stands still and does not arrive is better off where it was. In post-copy there is no way back.
    fn halt_if_still_for_long(&mut self, phase: Phase) -> Result<(), Ending> {
        // Sent ahead it was stopped before, and stands until QEMU begins with that.
        let goes = self.passage.goes_ahead()
            && self.core.was_running
            && matches!(phase, Phase::Setup | Phase::Precopy);
        self.core.halt_if_still_for_long(goes || phase == Phase::Switchover, phase)
    }

    /// Somebody else may stop the guest while it moves, or start it: so it is at the target, too. One that is sent ahead drover stops
    /// itself.
    fn keep_to_orders(&mut self, phase: Phase) -> Result<(), Ending> {
        let may_be_told = matches!(phase, Phase::Setup | Phase::Precopy | Phase::Switchover | Phase::Done)
            && !self.passage.goes_ahead();
        let done = match may_be_told {
            true => {
                self.source.has_turned().and_then(|has| if has { self.see_whether_it_runs() } else { Ok(()) })
            }
            false => Ok(()),
        };
        done.map_err(|error| self.source_failed(error))
    }

    /// A job on the guest's disks would end the move at its very end ("Bad address"), or be lost with the source.
    pub(super) fn halt_if_job_began(&mut self) -> Result<(), Ending> {
        let asked = self.source.have_jobs_changed().and_then(|have| match have {
            true => self.source.others_jobs(),
            false => Ok(Vec::new()),
        });
        let jobs = asked.map_err(|error| self.source_failed(error))?;
        match job_obstacles(Side::Source, &jobs) {
            found if found.is_empty() => Ok(()),
            found => Err(Ending::Obstacles(found)),
        }
    }

    /// Whether the guest runs at the source, or stands as somebody wants. What QEMU stops to hand it over says nothing of that.
    pub(super) fn see_whether_it_runs(&mut self) -> Result<(), QemuError> {
        let runs = match self.source.status()?.as_str() {
            RUNNING => true,
            "paused" => false,
            // It stands to be handed over: that it stood before nothing tells but what came in which order.
            _ if self.source.is_stopped_by_somebody() => false,
            _ => return Ok(()),
        };
        if std::mem::replace(&mut self.core.was_running, runs) != runs {
            self.note(match runs {
                true => "somebody started the guest at the source: it is started at the target, too",
                false => "somebody stopped the guest at the source: it is not started at the target (`cont` at its monitor)",
            });
            if self.passage.has_sent() {
                self.source.mark_paused(!runs)?;
            }
        }
        Ok(())
    }

    /// Until the next look. While the guest stands still each millisecond counts, so whatever QEMU says ends the wait.
    fn pause(&mut self, phase: Phase, is_close: bool) -> Result<(), Ending> {
        // One that goes ahead stands still until it is started.
        let is_still = phase == Phase::Switchover || self.passage.goes_ahead();
        let time_max = match is_still {
            true => POLL,
            false if is_close => CLOSE_PAUSE,
            false => SAMPLE_PAUSE,
        };
        match self.source.wait_for_news(time_max) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.source_failed(error)),
        }
    }
}
