//! What the passes and phases so far tell of the next ones.

use std::time::Duration;

use drover_copy::converge::{
    Advice, Contract, Costs, Forecast, PassFacts, Reason, Trend, UNSEEN_BOOT, UNSEEN_SHUTDOWN, When, off_by,
};
use drover_plan::{Audit, Cutover, Interval, PlannedVm};
use drover_types::Estimate;

use crate::itinerary::{Journey, NOTHING_DONE, Outcome};
use crate::phase::Phase;
use crate::store::{Downtime, PassKind, PassRow};

/// Writing a definition, where that was never measured.
const DEFINE: Estimate = Estimate { likely: 0.1, spread: 0.1 };

/// The latest of these are looked at: what was measured long ago says little.
const SAMPLES_MAX: usize = 20;

/// A run that begins so many milliseconds after the plan's moment still moves the VM over.
pub const MOMENT_GRACE_MS: i64 = 3_600_000;

impl Journey<'_> {
    pub(super) fn contract(&self) -> Outcome<Contract> {
        let warm = self.planned.warm.unwrap_or_default();
        let is_over = self.why_moment_is_over()?.is_some();
        Ok(Contract {
            interval: match warm.interval {
                Interval::Auto => None,
                Interval::Every(interval) => Some(interval),
            },
            when: match warm.cutover {
                Cutover::Manual => When::Asked,
                Cutover::Auto => When::Fits,
                Cutover::At(_) if is_over => When::Asked,
                Cutover::At(moment) => When::At(moment),
            },
            downtime_max: warm.downtime_max,
        })
    }

    /// The moment of the plan at which the VM is to move over.
    pub(super) fn moment(&self) -> Option<i64> {
        moment_of(self.planned)
    }

    /// Why the plan's moment does not count any more: whoever chose it meant a maintenance window, and did not
    /// mean a guest to go down at whatever later time somebody resumes the plan.
    pub(super) fn why_moment_is_over(&self) -> Outcome<Option<&'static str>> {
        let Some(moment) = self.moment() else { return Ok(None) };
        let tried = self.context.store.warm(self.context.plan, &self.planned.vm.id)?.moment_tried_ms;
        Ok(match self.passes_began_ms {
            _ if tried == Some(moment) => Some("was tried, and did not end well"),
            Some(began_ms) if began_ms > moment + MOMENT_GRACE_MS => {
                Some("had passed more than an hour before this run began")
            }
            _ => None,
        })
    }

    /// What a downtime has in it besides copying: as measured with this VM's own passes and whatever VMs moved before, or
    /// assumed.
    pub(super) fn costs(&self, passes: &[PassRow]) -> Outcome<Costs> {
        let Outlook { known, shutdown, boot } = self.outlook(passes)?;
        Ok(Costs {
            shutdown: shutdown.unwrap_or(UNSEEN_SHUTDOWN),
            boot: boot.unwrap_or(UNSEEN_BOOT),
            ..known
        })
    }

    fn outlook(&self, passes: &[PassRow]) -> Outcome<Outlook> {
        let measured = |phase: Phase, ended: &str| -> Outcome<Option<Estimate>> {
            let seconds = self.context.store.phase_seconds(phase.name(), ended, SAMPLES_MAX)?;
            Ok(Estimate::measured(seconds))
        };
        let freezes =
            passes.iter().filter_map(|pass| Some((pass.frozen_ms? - pass.began_ms) as f64 / 1000.0));
        let trend = Trend::of(&facts(passes));
        let full_audit = self.planned.warm.is_some_and(|warm| warm.audit == Audit::Full);
        let audit = match trend.filter(|_| full_audit) {
            Some(trend) => self.planned.capacity_bytes() as f64 / trend.rate,
            None => 0.0,
        };
        let now_ms = self.context.clock.now_ms();
        let unmeasured = || trend.map_or_else(Estimate::default, |trend| trend.unmeasured_proof(now_ms));
        let verify = measured(Phase::Verify, "")?.unwrap_or_else(unmeasured);
        let define = measured(Phase::Define, "")?.unwrap_or(DEFINE);
        let convert = measured(Phase::Convert, "")?.unwrap_or_default();
        let boot = match self.planned.start {
            true => measured(Phase::Start, "")?,
            // What is left is a last look at the source.
            false => Some(measured(Phase::Start, NOTHING_DONE)?.unwrap_or_default()),
        };
        let errors = self.context.store.forecast_errors(self.planned.start, SAMPLES_MAX)?;
        let known = Costs {
            shutdown: Estimate::default(),
            freeze: Estimate::measured(freezes).unwrap_or_default(),
            prove: verify.and(define).and(convert).and(Estimate { likely: audit, spread: audit / 4.0 }),
            boot: Estimate::default(),
            off_by: off_by(errors),
        };
        Ok(Outlook { known, shutdown: measured(Phase::PowerOff, "")?, boot })
    }

    /// How long the VM would be down if it moved over now.
    pub(super) fn forecast(&self, passes: &[PassRow]) -> Outcome<Option<Downtime>> {
        let Outlook { known, shutdown, boot } = self.outlook(passes)?;
        let (without_shutdown, without_start) = (shutdown.is_none(), boot.is_none());
        let costs = Costs { shutdown: shutdown.unwrap_or_default(), boot: boot.unwrap_or_default(), ..known };
        let now = self.context.clock.now_ms();
        let forecast = Trend::of(&facts(passes)).map(|trend| in_millis(trend.forecast(&costs, now)));
        Ok(forecast.map(|forecast| Downtime { without_shutdown, without_start, ..forecast }))
    }
}

/// The moment of its plan at which a VM is to move over.
pub(crate) fn moment_of(planned: &PlannedVm) -> Option<i64> {
    match planned.warm?.cutover {
        Cutover::At(moment) => Some(moment),
        Cutover::Manual | Cutover::Auto => None,
    }
}

/// What a downtime has in it besides copying.
struct Outlook {
    /// All but the next two.
    known: Costs,
    /// Absent if no guest was ever seen shutting down.
    shutdown: Option<Estimate>,
    /// Absent if no machine was ever seen starting.
    boot: Option<Estimate>,
}

/// Completed passes in the words of the contract.
pub(super) fn facts(passes: &[PassRow]) -> Vec<PassFacts> {
    let fact = |pass: &PassRow| {
        let ended_ms = pass.ended_ms.unwrap_or(pass.began_ms);
        let copying = ended_ms - pass.copying_ms.unwrap_or(ended_ms);
        PassFacts {
            began_ms: pass.began_ms,
            frozen_ms: pass.frozen_ms.unwrap_or(pass.began_ms),
            copying: Duration::from_millis(copying.max(0) as u64),
            read_bytes: pass.read_bytes,
            areas_bytes: (pass.kind == PassKind::Delta).then_some(pass.areas_bytes),
        }
    };
    passes.iter().map(fact).collect()
}

pub(super) fn reason_word(reason: Reason) -> &'static str {
    match reason {
        Reason::Asked => "asked for",
        Reason::Fits => "the predicted downtime fits",
        Reason::Time => "it is time",
    }
}

/// Advice for whoever runs the plan. The same as long as no other interval is meant, so that it is told once.
pub(super) fn advice_words(advice: Advice) -> String {
    match advice {
        Advice::NeverFits { least } => format!(
            "a cutover takes up to {} s besides copying (shutdown, proof, start: as measured with VMs that moved before, or \
             assumed), which is more than downtime_max, so `cutover: auto` never moves it: say `drover cutover`, or allow \
             more",
            least.as_secs_f64().ceil()
        ),
        Advice::Hopeless => "it changes as fast as it is copied, so further passes gain nothing: move it with `mode: cold`, at a \
                             time when less is written, or over a faster way"
            .into(),
        Advice::IntervalTooShort { better, .. } => format!(
            "a pass takes longer than the interval, so its snapshots follow each other without a pause: take `interval: {}`, or \
             auto",
            round_interval(better)
        ),
        Advice::IntervalTooLong { better, .. } => format!(
            "what changes in an interval takes longer to copy than downtime_max: take `interval: {}`, or auto",
            round_interval(better)
        ),
    }
}

/// The next interval that somebody would write, as a plan writes it.
fn round_interval(interval: Duration) -> String {
    const MINUTES: [u64; 10] = [1, 2, 3, 5, 10, 15, 20, 30, 45, 60];
    let minutes = interval.as_secs().div_ceil(60).max(1);
    match MINUTES.into_iter().find(|it| *it >= minutes) {
        Some(minutes) => format!("{minutes}m"),
        None => format!("{}h", minutes.div_ceil(60)),
    }
}

fn in_millis(forecast: Forecast) -> Downtime {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2);
    Downtime {
        forecast_ms: millis(forecast.likely),
        low_ms: millis(forecast.low),
        high_ms: millis(forecast.high),
        ..Downtime::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_rounded_up_to_what_somebody_would_write() {
        for (seconds, text) in [(0, "1m"), (60, "1m"), (61, "2m"), (700, "15m"), (3600, "60m"), (3601, "2h")]
        {
            assert_eq!(round_interval(Duration::from_secs(seconds)), text, "{seconds} s");
        }
    }
}
