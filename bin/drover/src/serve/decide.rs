//! What the daemon decides about plans, without doing any of it.

use drover_engine::{PlanRow, PlanState, ServedRow};
use drover_plan::Others;
use drover_server::{Wanted, default_project};

use crate::exit::Exit;

/// A row whose plan could not be prepared after a restart: the next start tries again. Those who look see a plan that ended.
pub const AGAIN: &str = "again";

pub fn word(wanted: Wanted) -> &'static str {
    match wanted {
        Wanted::Run => "run",
        Wanted::Pause => "pause",
        Wanted::Cancel => "cancel",
        Wanted::Nothing => "nothing",
    }
}

pub fn wanted_of(word: &str) -> Wanted {
    match word {
        "run" => Wanted::Run,
        "pause" => Wanted::Pause,
        "cancel" => Wanted::Cancel,
        _ => Wanted::Nothing,
    }
}

/// Whether a plan has ended for good.
pub fn is_over(plan: &PlanRow) -> bool {
    matches!(plan.state, PlanState::Done | PlanState::Cancelled)
}

/// The project that a plan's name belongs to, also after its end: that of whoever handed it in first. What was begun by a command
/// is the default project's. None if nobody has the name.
pub fn owner(served: Option<&ServedRow>, plan: Option<&PlanRow>) -> Option<String> {
    served.map(|row| row.project.clone()).or_else(|| plan.map(|_| default_project()))
}

/// What a daemon that starts does with a plan of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Runs it.
    Run(Others),
    /// Undoes it.
    Cancel,
    /// Tells that it was killed while it was to pause: what it had shut down is off still.
    TellHalfPaused,
    /// Nothing.
    Leave,
}

/// The step for a plan that was handed in, and what was run of it. VMs that a run has not begun with are taken only where
/// the text that was handed in was not begun yet.
pub fn step(served: &ServedRow, plan: Option<&PlanRow>) -> Step {
    match (served.wanted.as_str(), plan) {
        ("run" | AGAIN, None) => Step::Run(Others::Selected),
        ("run" | AGAIN, Some(plan)) if is_over(plan) => match plan.ended_ms {
            // It was handed in anew, and nothing came of that yet.
            Some(ended_ms) if served.at_ms > ended_ms => Step::Run(Others::Selected),
            _ => Step::Leave,
        },
        ("run" | AGAIN, Some(plan)) if plan.text == served.text => Step::Run(Others::LeftOut),
        ("run" | AGAIN, Some(_)) => Step::Run(Others::Selected),
        ("cancel", Some(plan)) if !is_over(plan) => Step::Cancel,
        ("pause", Some(plan)) if plan.state == PlanState::Running => Step::TellHalfPaused,
        _ => Step::Leave,
    }
}

/// What is wanted of a plan once its thread has ended.
pub fn wanted_after(wanted: &str, exit: Exit, daemon_ends: bool, is_unprepared: bool) -> &str {
    match wanted {
        "run" if daemon_ends && exit != Exit::Success => "run",
        "run" if is_unprepared => AGAIN,
        "run" => word(Wanted::Nothing),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(state: PlanState, text: &str, ended_ms: Option<i64>) -> PlanRow {
        PlanRow {
            name: "p".into(),
            text: text.into(),
            folder: "/".into(),
            state,
            pid: None,
            started_ms: 1,
            ended_ms,
        }
    }

    fn served(wanted: &str, text: &str, at_ms: i64) -> ServedRow {
        ServedRow {
            name: "p".into(),
            project: "web".into(),
            text: text.into(),
            wanted: wanted.into(),
            at_ms,
            ..ServedRow::default()
        }
    }

    #[test]
    fn a_name_stays_with_the_project_that_had_it_first() {
        let row = plan(PlanState::Done, "t", Some(2));
        assert_eq!(owner(Some(&served("nothing", "t", 1)), Some(&row)).as_deref(), Some("web"));
        assert_eq!(
            owner(Some(&served("nothing", "t", 1)), None).as_deref(),
            Some("web"),
            "refused before it began"
        );
        assert_eq!(owner(None, Some(&row)), Some(default_project()), "begun by a command");
        assert_eq!(owner(None, None), None);
    }

    #[test]
    fn a_daemon_that_starts_takes_new_vms_only_for_a_text_that_was_not_begun() {
        use PlanState::{Cancelled, Done, Incomplete, Running};
        let run = |plan: Option<PlanRow>, at_ms| step(&served("run", "t", at_ms), plan.as_ref());
        assert_eq!(run(None, 1), Step::Run(Others::Selected));
        for state in [Running, Incomplete] {
            assert_eq!(run(Some(plan(state, "t", None)), 1), Step::Run(Others::LeftOut));
            assert_eq!(run(Some(plan(state, "before the edit", None)), 1), Step::Run(Others::Selected));
        }
        for state in [Done, Cancelled] {
            assert_eq!(run(Some(plan(state, "t", Some(5))), 1), Step::Leave, "{state:?}");
            assert_eq!(
                run(Some(plan(state, "t", Some(5))), 6),
                Step::Run(Others::Selected),
                "handed in anew"
            );
        }
        assert_eq!(
            step(&served(AGAIN, "t", 1), Some(&plan(Incomplete, "t", None))),
            Step::Run(Others::LeftOut)
        );
        assert_eq!(step(&served("cancel", "t", 1), Some(&plan(Incomplete, "t", None))), Step::Cancel);
        assert_eq!(step(&served("cancel", "t", 1), Some(&plan(Cancelled, "t", Some(2)))), Step::Leave);
        assert_eq!(step(&served("pause", "t", 1), Some(&plan(Running, "t", None))), Step::TellHalfPaused);
        assert_eq!(step(&served("pause", "t", 1), Some(&plan(Incomplete, "t", None))), Step::Leave);
        assert_eq!(step(&served("nothing", "t", 1), Some(&plan(Incomplete, "t", None))), Step::Leave);
    }

    #[test]
    fn a_plan_that_is_done_is_not_run_again_and_one_that_waits_for_its_source_is() {
        assert_eq!(wanted_after("run", Exit::Success, true, false), "nothing");
        assert_eq!(wanted_after("run", Exit::Interrupted, true, false), "run");
        assert_eq!(wanted_after("run", Exit::Source, false, false), "nothing");
        assert_eq!(wanted_after("run", Exit::Connection, false, true), AGAIN);
        assert_eq!(wanted_of(AGAIN), Wanted::Nothing);
        for kept in ["pause", "cancel"] {
            assert_eq!(wanted_after(kept, Exit::Interrupted, true, true), kept);
        }
    }
}
