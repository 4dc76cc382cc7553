//! Memory on its way: what is done to the source when `drover_live::Migration` says so.

use std::time::{Duration, Instant};

use drover_live::{Moved, Phase, RATE_UNLIMITED, Side, job_obstacles};

use super::{Ending, Move, RUNNING};
use crate::error::{QemuError, QemuErrorKind};
use crate::live::carried::Carried;
use crate::live::core::Adapter;
use crate::live::guest::POLL;

/// Between two tries to have a link made anew that nothing but the target's monitor goes over, and for which one is waited.
const LOOK_FOR_LINK_PAUSE: Duration = Duration::from_secs(5);
const LOOK_FOR_LINK_TIME: Duration = Duration::from_secs(2);

impl Move<'_> {
    /// Watches memory on its way, and sees the guest to the target.
    pub(super) fn follow(&mut self) -> Result<Moved, Ending> {
        let last = self.drive()?;
        self.let_go_unseen();
        self.arrived(last, self.patience())
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
    pub(super) fn may_go(&mut self) -> Result<bool, Ending> {
        let Some(Carried { by, ends: None }) = self.core.carried() else { return Ok(true) };
        let least = by.round_trip() * 3 + POLL;
        let left = self.core.wanted.promise.downtime_max.saturating_sub(self.core.is_paused_for());
        let error = match self.target.answers_within(left.max(least)) {
            Ok(()) => return Ok(true),
            Err(error) => error,
        };
        self.core.look_at_link();
        if self.core.is_paused_for() >= self.core.wanted.promise.downtime_max {
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
    pub(super) fn look_for_link(&mut self) {
        let is_to_be_made =
            self.starts_by_link_alone() && self.is_link_away() && !self.core.is_link_waited_for();
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

    /// Somebody else may stop the guest while it moves, or start it: so it is at the target, too. One that is sent ahead drover stops
    /// itself.
    pub(super) fn keep_to_orders(&mut self, phase: Phase) -> Result<(), Ending> {
        let may_be_told = matches!(phase, Phase::Setup | Phase::Precopy | Phase::Switchover | Phase::Done)
            && !self.core.state.passage.goes_ahead();
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
        if std::mem::replace(&mut self.core.state.was_running, runs) != runs {
            self.note(match runs {
                true => "somebody started the guest at the source: it is started at the target, too",
                false => "somebody stopped the guest at the source: it is not started at the target (`cont` at its monitor)",
            });
            if self.core.state.passage.has_sent() {
                self.source.mark_paused(!runs)?;
            }
        }
        Ok(())
    }
}
