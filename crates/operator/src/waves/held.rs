//! Waves that do not begin since VMs of another failed: what their Plan tells of them, and the word that lets them go on.

use drover_types::Wave;

use super::{NAMED_MAX, Order, WaveStanding};
use crate::PROCEED;
use crate::decide::reason;
use crate::model::{Condition, set_condition};
use crate::objects::Note;
use crate::time::Moment;

/// The condition of a Plan whose waves wait for one of which VMs failed, or do not begin because of it.
pub const HELD: &str = "WavesHeld";

/// A wave of which VMs failed, and those that do not begin because of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its name.
    pub wave: String,
    /// Whether those after it do not begin at all (`if_failed: stop`), or wait for a word.
    pub is_stop: bool,
    /// Those after it, in the order of the Plan.
    pub others: Vec<String>,
    /// How many VMs of it failed.
    pub failed: u64,
    /// The first of these.
    pub failed_vms: Vec<String>,
}

impl Held {
    /// What happened, and what to do about it.
    fn words(&self, plan: &str) -> String {
        let Held { wave, failed, .. } = self;
        let vms = if *failed == 1 { "VM" } else { "VMs" };
        let becomes = if self.is_stop { "do not begin" } else { "wait" };
        let (which, others) =
            (listed(&self.failed_vms, *failed), listed(&self.others, self.others.len() as u64));
        format!(
            "{failed} {vms} of wave {wave} failed ({which}), and the waves after it {becomes} ({others}): mend the cause and have what \
             failed tried again (`kubectl drover retry VM`), or let the waves after it go on without it (`kubectl drover proceed {plan} {wave}`)"
        )
    }
}

/// The first of so many names.
fn listed(names: &[String], all: u64) -> String {
    let named: Vec<&str> = names.iter().take(NAMED_MAX).map(String::as_str).collect();
    match all.saturating_sub(named.len() as u64) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

impl Order {
    /// Waves of which VMs failed, as far as others do not begin because of that.
    pub fn held(&self, now_ms: u64) -> Vec<Held> {
        let mut held: Vec<Held> = Vec::new();
        for Wave { name, .. } in &self.waves {
            if self.counts.get(name).is_none_or(|count| count.unfinished() == 0) {
                continue;
            }
            let (by, is_stop) = match self.standing(name, now_ms) {
                WaveStanding::Failed(by) => (by, false),
                WaveStanding::Stopped(by) => (by, true),
                _ => continue,
            };
            match held.iter_mut().find(|it| it.wave == by) {
                Some(known) => known.others.push(name.clone()),
                None => {
                    let count = self.counts.get(&by).cloned().unwrap_or_default();
                    let (failed, failed_vms) = (count.failed, count.failed_vms);
                    held.push(Held { wave: by, is_stop, others: vec![name.clone()], failed, failed_vms });
                }
            }
        }
        held
    }
}

/// Sets the condition [`HELD`] of a Plan; a Plan that was never held has none. What is new of it, for an event, which is one and the same
/// for all VMs that fail while waves are held.
pub fn set_held(
    conditions: &mut Vec<Condition>,
    plan: &str,
    held: &[Held],
    generation: i64,
    now: Moment,
) -> Option<Note> {
    let told = |conditions: &[Condition]| {
        let it = conditions.iter().find(|it| it.kind == HELD);
        it.map(|it| (it.reason.clone(), it.message.clone()))
    };
    let before = told(conditions);
    let words: Vec<String> = held.iter().map(|it| it.words(plan)).collect();
    let (reason, message) = match held {
        [] if before.is_none() => return None,
        [] => ("WavesGoOn", "no wave waits for one of which VMs failed".to_string()),
        _ if held.iter().any(|it| it.is_stop) => (reason::WAVE_STOPPED, words.join("; ")),
        _ => (reason::WAVE_FAILED, words.join("; ")),
    };
    let is_held = !held.is_empty();
    set_condition(conditions, HELD, is_held, reason, &message, generation, now);
    let (reason, message) = told(conditions).filter(|told| before.as_ref() != Some(told))?;
    Some(Note { is_warning: is_held, reason, message })
}

/// What the annotation [`PROCEED`] of a Plan says anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Waves after which others go on from now on, whatever of them failed or will.
    pub waves: Vec<String>,
    /// Names in it that no wave of the Plan has.
    pub unknown: Vec<String>,
}

/// Reads the annotation, if it says something else than when it was heeded last. Of what is in it, `proceed` is known already.
pub fn asked_waves(
    said: Option<&str>,
    heeded: Option<&str>,
    waves: &[Wave],
    proceed: &[String],
) -> Option<Word> {
    let said = said.filter(|_| said != heeded)?;
    let names =
        said.split([' ', ',']).filter(|name| !name.is_empty() && !proceed.iter().any(|it| it == name));
    let mut word = Word::default();
    for name in names.map(str::to_string) {
        let is_wave = waves.iter().any(|wave| wave.name == name);
        let list = if is_wave { &mut word.waves } else { &mut word.unknown };
        if !list.contains(&name) {
            list.push(name);
        }
    }
    Some(word)
}

impl Word {
    /// What is told of it, of a Plan with such waves.
    pub fn notes(&self, waves: &[Wave]) -> Vec<Note> {
        let taken = (!self.waves.is_empty()).then(|| Note {
            is_warning: false,
            reason: "Proceed".into(),
            message: format!(
                "whatever of them failed or will, the waves after these go on: {}",
                self.waves.join(", ")
            ),
        });
        let unknown = (!self.unknown.is_empty()).then(|| {
            let names: Vec<&str> = waves.iter().map(|wave| wave.name.as_str()).collect();
            Note {
                is_warning: true,
                reason: "ProceedUnknown".into(),
                message: format!(
                    "{PROCEED} names what is no wave of this Plan: {}; its waves: {}",
                    self.unknown.join(", "),
                    listed(&names.iter().map(ToString::to_string).collect::<Vec<_>>(), names.len() as u64)
                ),
            }
        });
        taken.into_iter().chain(unknown).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use drover_types::IfFailed;

    use super::super::{Count, Counts, Kept};
    use super::*;

    fn waves(rule: IfFailed) -> Vec<Wave> {
        let wave = |name: &str, after: &[&str]| Wave {
            name: name.into(),
            after: after.iter().map(ToString::to_string).collect(),
            ..Wave::default()
        };
        let pilot = Wave { if_failed: rule, ..wave("pilot", &[]) };
        vec![pilot, wave("web", &["pilot"]), wave("rest", &["web"]), wave("beside", &[])]
    }

    fn counts(failed_vms: &[&str], left: u64) -> Counts {
        let failed_vms: Vec<String> = failed_vms.iter().map(ToString::to_string).collect();
        let pilot =
            Count { left, arrived: 3, failed: failed_vms.len() as u64, failed_vms, ..Count::default() };
        let of = |name: &str| (name.to_string(), Count { left: 2, ..Count::default() });
        [("pilot".to_string(), pilot), of("web"), of("rest"), of("beside")].into()
    }

    fn order(rule: IfFailed, failed_vms: &[&str], left: u64) -> Order {
        Order::new(&waves(rule), counts(failed_vms, left), Kept::default(), 0)
    }

    #[test]
    fn a_stop_stops_all_waves_after_it_at_once_and_no_other() {
        let order = order(IfFailed::Stop, &["web07"], 5);
        let held = order.held(0);
        let [one] = held.as_slice() else { panic!("{held:?}") };
        assert_eq!((one.wave.as_str(), one.is_stop), ("pilot", true));
        assert_eq!(one.others, ["web", "rest"]);
        assert_eq!(order.standing("beside", 0), WaveStanding::Open { closes: None });
        assert_eq!(order.standing("pilot", 0), WaveStanding::Open { closes: None }, "its other VMs go on");
        let told = order.told(0);
        assert_eq!(told.iter().map(|it| it.holds).collect::<Vec<_>>(), [true, false, false, false]);
        assert!(told[2].waits.as_ref().is_some_and(|it| it.contains("kubectl drover proceed PLAN pilot")));
    }

    #[test]
    fn those_that_were_stopped_are_left_for_the_waves_after_theirs() {
        let mut stopped = counts(&[], 1);
        stopped.insert("web".into(), Count { stopped: 2, ..Count::default() });
        let mut all = waves(IfFailed::Stop);
        all[1].if_failed = IfFailed::GoOn;
        let order = Order::new(&all, stopped, Kept::default(), 0);
        // The one that failed is tried again.
        assert_eq!(order.standing("web", 0), WaveStanding::After("pilot".into()));
        assert_eq!(order.standing("rest", 0), WaveStanding::After("web".into()));
        assert!(order.passed().is_empty() && order.held(0).is_empty());
        let told = order.told(0);
        assert_eq!((told[1].vms, told[1].failed), (2, 2));
        assert!(told[1].waits.is_some());
    }

    #[test]
    fn a_word_lets_the_waves_after_go_on_whatever_the_rule_and_before_it_is_needed() {
        for rule in [IfFailed::Stop, IfFailed::Wait] {
            let kept = Kept { proceed: BTreeSet::from(["pilot".to_string()]), ..Kept::default() };
            let of = |failed: &[&str], left| Order::new(&waves(rule), counts(failed, left), kept.clone(), 0);
            let over = of(&["web07"], 0);
            assert_eq!(over.standing("web", 0), WaveStanding::Open { closes: None }, "{rule:?}");
            assert_eq!(over.standing("rest", 0), WaveStanding::After("web".into()));
            assert!(over.held(0).is_empty() && over.passed().contains("pilot"));
            let early = of(&["web07"], 1);
            assert_eq!(early.standing("web", 0), WaveStanding::After("pilot".into()), "it is not over");
            let before = order(rule, &["web07"], 0);
            assert!(!before.is_of(&counts(&["web07"], 0), &kept.proceed));
            assert!(over.changed(Some(&before), 0).contains("web"));
        }
    }

    #[test]
    fn the_plan_names_the_wave_the_vms_and_what_to_do() {
        let at = Moment(5);
        let mut conditions = Vec::new();
        let mut set = |order: &Order| set_held(&mut conditions, "web", &order.held(0), 1, at);
        assert_eq!(set(&order(IfFailed::Stop, &[], 1)), None, "nothing is told of what was never held");
        let note = set(&order(IfFailed::Stop, &["web07"], 1)).unwrap();
        assert_eq!((note.reason.as_str(), note.is_warning), ("WaveStopped", true));
        for part in [
            "1 VM of wave pilot failed (web07), and the waves after it do not begin (web, rest)",
            "`kubectl drover retry VM`",
            "`kubectl drover proceed web pilot`",
        ] {
            assert!(note.message.contains(part), "{part} in {}", note.message);
        }
        assert_eq!(
            set(&order(IfFailed::Stop, &["web07"], 1)),
            None,
            "once, also by the operator after this one"
        );
        let waits = set(&order(IfFailed::Wait, &["web07", "web08"], 0)).unwrap();
        assert_eq!(waits.reason, "WaveFailed");
        assert!(waits.message.contains("2 VMs of wave pilot failed (web07, web08)"), "{}", waits.message);
        assert!(waits.message.contains("the waves after it wait (web)"), "{}", waits.message);
        let over = set(&order(IfFailed::Wait, &[], 1)).unwrap();
        assert_eq!((over.reason.as_str(), over.is_warning), ("WavesGoOn", false));
        let [condition] = conditions.as_slice() else { panic!("{conditions:?}") };
        assert_eq!((condition.kind.as_str(), condition.status.as_str()), (HELD, "False"));
        let names: Vec<String> = (0..12).map(|number| format!("web{number}")).collect();
        assert!(listed(&names, 12).ends_with("web9 and 2 more"));
    }

    #[test]
    fn an_annotation_is_taken_once() {
        let waves = waves(IfFailed::Stop);
        let of = |said: Option<&str>, heeded: Option<&str>, proceed: &[&str]| {
            let proceed: Vec<String> = proceed.iter().map(ToString::to_string).collect();
            asked_waves(said, heeded, &waves, &proceed).map(|word| (word.waves, word.unknown))
        };
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of(None, None, &[]), None);
        assert_eq!(of(Some("pilot"), None, &[]), Some((names(&["pilot"]), names(&[]))));
        assert_eq!(of(Some("pilot"), Some("pilot"), &["pilot"]), None);
        assert_eq!(of(None, Some("pilot"), &["pilot"]), None, "one that is removed takes nothing back");
        let more = of(Some("pilot web, wbe web"), Some("pilot"), &["pilot"]);
        assert_eq!(more, Some((names(&["web"]), names(&["wbe"]))));
        let word = asked_waves(Some("web wbe"), None, &waves, &[]).unwrap();
        let notes = word.notes(&waves);
        let [taken, unknown] = notes.as_slice() else { panic!("{notes:?}") };
        assert!(!taken.is_warning && taken.message.ends_with("go on: web"), "{taken:?}");
        assert!(
            unknown.is_warning && unknown.message.contains("wbe; its waves: pilot, web, rest"),
            "{unknown:?}"
        );
    }
}
