//! Waves of a Plan: what of them may begin now. The one scheduler says so, which is told how many Migrations of each wave are left, arrived
//! and failed. All of it is read from the objects, so another operator comes to the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use drover_schedule::{Budgets, Ended, Job, JobId, Scheduler, Tenant, Wait};
use drover_types::{Opening, Wave};

use crate::model::{Phase, Status, WaveStatus};
use crate::time::Moment;

mod held;

pub use held::{HELD, Held, Word, asked_waves, set_held};

/// There is one Plan in each [`Order`].
const PLAN: Tenant = Tenant(0);
/// VMs of a wave that failed, of which the Plan names so many.
const NAMED_MAX: usize = 10;

/// How the Migrations of a wave stand. One that was given up is none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Those that have not ended, and VMs whose Migrations are not made yet.
    pub left: u64,
    /// Those that arrived.
    pub arrived: u64,
    /// Those that failed and are not tried again by themselves.
    pub failed: u64,
    /// Those that do not begin since a wave before their own failed. They have their turn again when that stops them no more.
    pub stopped: u64,
    /// The first VMs that failed, by their names at the source.
    pub failed_vms: Vec<String>,
}

impl Count {
    /// Counts one more.
    pub fn add(&mut self, vm: &str, status: &Status) {
        let has_arrived = status.condition("Arrived").is_some_and(|it| it.status == "True");
        match status.phase {
            _ if has_arrived => self.arrived += 1,
            Phase::Cancelled => {}
            Phase::Failed if status.is_stopped() => self.stopped += 1,
            Phase::Failed => {
                self.failed += 1;
                if self.failed_vms.len() < NAMED_MAX {
                    self.failed_vms.push(vm.to_string());
                }
            }
            Phase::Pending
            | Phase::Queued
            | Phase::Running
            | Phase::Retrying
            | Phase::Cancelling
            | Phase::Done => self.left += 1,
        }
    }

    /// Those that may yet arrive without being tried again.
    fn unfinished(&self) -> u64 {
        self.left + self.stopped
    }
}

/// How the waves of a Plan stand, by their names.
pub type Counts = BTreeMap<String, Count>;

/// What is kept of waves in the status of their Plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Those that were over once and hold back no other any more.
    pub passed: BTreeSet<String>,
    /// Those after which others go on, whatever of them failed or will, since somebody said so.
    pub proceed: BTreeSet<String>,
}

/// What the wave of a Migration says to its beginning. Without numbers that change with each VM: it is in the status of thousands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaveStanding {
    /// It may begin.
    Open {
        /// When its window closes.
        closes: Option<Moment>,
    },
    /// Its window is closed.
    Window {
        /// When it opens.
        opens: Moment,
        /// The same on the clock of its zone.
        words: String,
    },
    /// A wave that has to be over before is not.
    After(String),
    /// A wave that had to be over before is, and VMs of it failed: a word is waited for.
    Failed(String),
    /// VMs of a wave before failed, after which none begins.
    Stopped(String),
    /// The last of its windows is over.
    Over,
    /// What waves there are is not known now.
    Unknown,
    /// Its Plan is gone, and no wave keeps it any more.
    Gone,
}

impl fmt::Display for WaveStanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaveStanding::Open { .. } => f.write_str("its wave may begin"),
            WaveStanding::Window { words, .. } => write!(f, "the window of its wave opens {words}"),
            WaveStanding::After(wave) => write!(f, "wave {wave} has to be over before its own"),
            WaveStanding::Failed(wave) => write!(
                f,
                "VMs of wave {wave} failed, which was to be over before its own: mend the cause and have them tried again \
                 (`kubectl drover retry VM`), cancel their Migrations, or let the waves after it go on (`kubectl drover proceed PLAN {wave}`)"
            ),
            WaveStanding::Stopped(wave) => write!(
                f,
                "VMs of wave {wave} failed, after which none begins (`if_failed: stop`): its turn comes again when they are tried again \
                 (`kubectl drover retry VM`) or cancelled, or by `kubectl drover proceed PLAN {wave}`"
            ),
            WaveStanding::Over => {
                f.write_str("the window of its wave is over: give the wave a later one in the Plan")
            }
            WaveStanding::Unknown => f.write_str("the waves of its Plan are being looked at"),
            WaveStanding::Gone => f.write_str("its Plan is gone"),
        }
    }
}

/// The waves of a Plan and how they stand.
#[derive(Clone, Debug)]
pub struct Order {
    waves: Vec<Wave>,
    counts: Counts,
    kept: Kept,
    scheduler: Scheduler,
    /// Of each wave a job that asks.
    jobs: BTreeMap<String, JobId>,
    due: BTreeMap<String, u64>,
}

impl Order {
    /// Of waves that stand so.
    pub fn new(waves: &[Wave], counts: Counts, kept: Kept, now_ms: u64) -> Order {
        let mut scheduler = Scheduler::new(Budgets::default());
        scheduler.set_waves(PLAN, waves);
        // How many they are decides nothing.
        let stand = counts.iter().flat_map(|(wave, count)| {
            let ends = [None, Some(Ended::Arrived), Some(Ended::Failed)].map(|ended| (wave.as_str(), ended));
            let many = [count.unfinished(), count.arrived, count.failed];
            ends.into_iter().zip(many).filter(|(_, many)| *many > 0).map(|(end, _)| end)
        });
        let stand: Vec<(&str, Option<Ended>)> = stand.collect();
        // A warm one is held back by its wave when it asks, and not before.
        let job = |wave: &str| Job { wave: Some(wave.to_string()), is_warm: true, ..Job::default() };
        let ids = scheduler.add(PLAN, stand.iter().map(|(wave, _)| job(wave)).collect(), now_ms);
        let jobs = stand.iter().zip(&ids).map(|((wave, _), id)| (wave.to_string(), *id)).collect();
        for ((_, ended), id) in stand.iter().zip(&ids) {
            if let Some(ended) = ended {
                scheduler.finished(*id, *ended, now_ms);
            }
        }
        kept.passed.iter().for_each(|wave| scheduler.let_pass(PLAN, wave));
        for wave in &kept.proceed {
            scheduler.proceed(PLAN, wave, now_ms);
        }
        let passed = scheduler.passed(PLAN).map(str::to_string).collect();
        let due = scheduler.waves_due(PLAN, now_ms);
        Order { waves: waves.to_vec(), counts, kept: Kept { passed, ..kept }, scheduler, jobs, due }
    }

    /// Whether it is of waves that stand so, and of the same words.
    pub fn is_of(&self, counts: &Counts, proceed: &BTreeSet<String>) -> bool {
        self.counts == *counts && self.kept.proceed == *proceed
    }

    /// Waves that hold back no other any more.
    pub fn passed(&self) -> &BTreeSet<String> {
        &self.kept.passed
    }

    /// Waves that stand otherwise than before: what is in them is decided on.
    pub fn changed(&self, before: Option<&Order>, now_ms: u64) -> BTreeSet<String> {
        let is_other = |wave: &&Wave| {
            let of = |order: &Order| order.standing(&wave.name, now_ms);
            before.is_none_or(|before| of(before) != of(self))
        };
        self.waves.iter().filter(is_other).map(|wave| wave.name.clone()).collect()
    }

    /// By when a wave has to be over, in milliseconds since 1970, where it or one after it has a window that closes.
    pub fn due_ms(&self, wave: &str) -> Option<u64> {
        self.due.get(wave).copied()
    }

    /// Whether a Migration of a wave may begin.
    pub fn standing(&self, wave: &str, now_ms: u64) -> WaveStanding {
        let known = self.waves.iter().find(|it| it.name == wave);
        let (Some(id), Some(known)) = (self.jobs.get(wave), known) else { return WaveStanding::Unknown };
        match self.scheduler.wave_wait(*id, now_ms) {
            Ok(None) => WaveStanding::Open {
                closes: match known.window.at(now_ms) {
                    Opening::Open { until_ms } => until_ms.map(moment),
                    Opening::At(_) | Opening::Never => None,
                },
            },
            Ok(Some(Wait::Window { opens_ms, opens })) => {
                WaveStanding::Window { opens: moment(opens_ms), words: opens }
            }
            Ok(Some(Wait::Wave { wave, .. })) => WaveStanding::After(self.next_before(known, wave)),
            Ok(Some(Wait::WaveFailed { wave, .. })) => WaveStanding::Failed(wave),
            Err(Ended::WaveFailed) => {
                WaveStanding::Stopped(self.scheduler.stopped_by(*id).unwrap_or_default().to_string())
            }
            Err(Ended::TooLate) => WaveStanding::Over,
            // A wave knows no other word.
            Ok(Some(_)) | Err(_) => WaveStanding::Unknown,
        }
    }

    /// The wave that another names itself among those that it waits for, where that is not over, either: it stays the same while those
    /// before that one end one by one, and each change is written to all Migrations of the wave.
    fn next_before(&self, wave: &Wave, waited_for: String) -> String {
        let is_left = |name: &&String| {
            let count = self.counts.get(*name).map_or(0, Count::unfinished);
            count > 0 && !self.kept.passed.contains(*name)
        };
        wave.after.iter().find(is_left).cloned().unwrap_or(waited_for)
    }

    /// How each wave stands that has Migrations, for the status of the Plan.
    pub fn told(&self, now_ms: u64) -> Vec<WaveStatus> {
        let held = self.held(now_ms);
        let of = |wave: &Wave| {
            let count = self.counts.get(&wave.name)?;
            let waits = match self.standing(&wave.name, now_ms) {
                _ if count.unfinished() == 0 => None,
                WaveStanding::Open { .. } => None,
                standing => Some(standing.to_string()),
            };
            Some(WaveStatus {
                name: wave.name.clone(),
                vms: count.unfinished() + count.arrived + count.failed,
                arrived: count.arrived,
                failed: count.failed + count.stopped,
                passed: self.kept.passed.contains(&wave.name),
                holds: held.iter().any(|it| it.wave == wave.name),
                waits,
            })
        };
        self.waves.iter().filter_map(of).collect()
    }
}

/// A moment of the scheduler's, not before it.
fn moment(ms: u64) -> Moment {
    Moment(i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use drover_types::{IfFailed, WaveWindow, Windows};

    use super::*;
    use crate::decide::reason;

    const DAY: u64 = 86_400_000;
    const HOUR: u64 = 3_600_000;

    fn wave(name: &str, after: &[&str], windows: &[&str], freezes: &[&str]) -> Wave {
        let read = |texts: &[&str]| Windows(texts.iter().map(|it| it.parse().unwrap()).collect());
        Wave {
            name: name.into(),
            after: after.iter().map(|it| (*it).into()).collect(),
            window: WaveWindow { windows: read(windows), freezes: read(freezes), ..WaveWindow::default() },
            if_failed: IfFailed::Wait,
        }
    }

    fn counts(of: &[(&str, u64, u64, u64)]) -> Counts {
        let one = |(name, left, arrived, failed): &(&str, u64, u64, u64)| {
            let count = Count { left: *left, arrived: *arrived, failed: *failed, ..Count::default() };
            ((*name).to_string(), count)
        };
        of.iter().map(one).collect()
    }

    fn order(waves: &[Wave], of: &[(&str, u64, u64, u64)]) -> Order {
        Order::new(waves, counts(of), Kept::default(), 0)
    }

    #[test]
    fn a_wave_waits_for_those_before_it_however_many_are_between() {
        let waves = [wave("a", &[], &[], &[]), wave("b", &["a"], &[], &[]), wave("c", &["b"], &[], &[])];
        let at = |of: &[(&str, u64, u64, u64)]| {
            let order = order(&waves, of);
            ["a", "b", "c"].map(|it| order.standing(it, 0))
        };
        let open = || WaveStanding::Open { closes: None };
        let after = |it: &str| WaveStanding::After(it.into());
        assert_eq!(at(&[("a", 2, 0, 0), ("b", 1, 0, 0), ("c", 1, 0, 0)]), [open(), after("a"), after("b")]);
        assert_eq!(at(&[("a", 0, 2, 0), ("b", 1, 0, 0), ("c", 1, 0, 0)]), [open(), open(), after("b")]);
        assert_eq!(at(&[("a", 0, 2, 0), ("b", 0, 1, 0), ("c", 1, 0, 0)]), [open(), open(), open()]);
        let failed = || WaveStanding::Failed("a".into());
        assert_eq!(at(&[("a", 0, 1, 1), ("b", 1, 0, 0), ("c", 1, 0, 0)])[1..], [failed(), after("b")]);
        // One without Migrations keeps nobody, and neither does one whose Migrations were all given up.
        assert_eq!(at(&[("a", 0, 0, 0), ("c", 1, 0, 0)])[2], open());
        assert_eq!(order(&waves, &[("a", 1, 0, 0)]).standing("other", 0), WaveStanding::Unknown);
    }

    #[test]
    fn what_failed_goes_by_the_rule_of_its_wave() {
        for (rule, standing) in [
            (IfFailed::GoOn, WaveStanding::Open { closes: None }),
            (IfFailed::Wait, WaveStanding::Failed("a".into())),
            (IfFailed::Stop, WaveStanding::Stopped("a".into())),
        ] {
            let waves = [Wave { if_failed: rule, ..wave("a", &[], &[], &[]) }, wave("b", &["a"], &[], &[])];
            assert_eq!(
                order(&waves, &[("a", 0, 1, 1), ("b", 1, 0, 0)]).standing("b", 0),
                standing,
                "{rule:?}"
            );
        }
    }

    #[test]
    fn a_wave_that_let_others_go_on_holds_them_back_no_more() {
        let waves =
            [Wave { if_failed: IfFailed::GoOn, ..wave("a", &[], &[], &[]) }, wave("b", &["a"], &[], &[])];
        let over = order(&waves, &[("a", 0, 1, 1), ("b", 3, 0, 0)]);
        assert_eq!(*over.passed(), BTreeSet::from(["a".to_string()]));
        // The one that failed is tried again.
        let again = counts(&[("a", 1, 1, 0), ("b", 3, 0, 0)]);
        let none = BTreeSet::new();
        assert!(!over.is_of(&again, &none) && over.is_of(&counts(&[("a", 0, 1, 1), ("b", 3, 0, 0)]), &none));
        let again = Order::new(&waves, again, over.kept.clone(), 0);
        assert_eq!(again.standing("b", 0), WaveStanding::Open { closes: None });
        assert_eq!(
            order(&waves, &[("a", 1, 1, 0), ("b", 3, 0, 0)]).standing("b", 0),
            WaveStanding::After("a".into())
        );
    }

    #[test]
    fn what_fails_after_its_wave_let_others_go_on_keeps_none_of_them() {
        for rule in [IfFailed::Stop, IfFailed::Wait] {
            let waves = [Wave { if_failed: rule, ..wave("a", &[], &[], &[]) }, wave("b", &["a"], &[], &[])];
            let over = order(&waves, &[("a", 0, 2, 0), ("b", 3, 0, 0)]);
            // One that was given up is made anew, and fails.
            let later = Order::new(&waves, counts(&[("a", 0, 2, 1), ("b", 3, 0, 0)]), over.kept.clone(), 0);
            assert_eq!(later.standing("b", 0), WaveStanding::Open { closes: None }, "{rule:?}");
            assert!(later.held(0).is_empty(), "{rule:?}");
        }
    }

    #[test]
    fn windows_and_freezes_are_heeded_at_the_moment_that_is_asked_of() {
        // 2026-12-18, a Friday.
        let friday = 20_805 * DAY;
        let waves = [
            wave("night", &[], &["22:00-06:00"], &["2026-12-19 - 2026-12-20"]),
            wave("once", &["night"], &["2026-12-18"], &[]),
        ];
        let order =
            Order::new(&waves, counts(&[("night", 1, 0, 0), ("once", 1, 0, 0)]), Kept::default(), friday);
        let words =
            |opens: u64, text: &str| WaveStanding::Window { opens: moment(opens), words: text.into() };
        assert_eq!(
            order.standing("night", friday + 7 * HOUR),
            words(friday + 22 * HOUR, "Fri 2026-12-18 22:00 UTC")
        );
        let closes = Some(moment(friday + DAY));
        assert_eq!(
            order.standing("night", friday + 23 * HOUR),
            WaveStanding::Open { closes },
            "the freeze begins"
        );
        assert_eq!(
            order.standing("night", friday + DAY),
            words(friday + 3 * DAY, "Mon 2026-12-21 00:00 UTC"),
            "in the middle of a night"
        );
        assert_eq!(order.standing("once", friday + DAY), WaveStanding::Over, "whatever it waits for beside");
        assert_eq!(order.standing("once", friday), WaveStanding::After("night".into()));
        assert_eq!((order.due_ms("night"), order.due_ms("x")), (Some(friday + 6 * HOUR), None));
    }

    #[test]
    fn the_status_of_the_plan_tells_how_waves_stand() {
        let waves = [wave("a", &[], &[], &[]), wave("b", &["a"], &[], &[]), wave("empty", &[], &[], &[])];
        let told = order(&waves, &[("a", 1, 2, 1), ("b", 5, 0, 0)]).told(0);
        let [a, b] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((a.vms, a.arrived, a.failed, a.passed, a.waits.clone()), (4, 2, 1, false, None));
        assert_eq!((b.vms, b.waits.as_deref()), (5, Some("wave a has to be over before its own")));
    }

    #[test]
    fn each_migration_counts_once() {
        let mut count = Count::default();
        for phase in [Phase::Pending, Phase::Failed, Phase::Cancelled, Phase::Done, Phase::Running] {
            let mut status = Status { phase, ..Status::default() };
            if phase == Phase::Done {
                status.set("Arrived", true, "Arrived", "", Moment(1));
            }
            count.add("web01", &status);
        }
        let mut stopped = Status { phase: Phase::Failed, ..Status::default() };
        stopped.set("Arrived", false, reason::WAVE_STOPPED, "", Moment(1));
        count.add("web02", &stopped);
        let failed_vms = vec!["web01".to_string()];
        assert_eq!(count, Count { left: 2, arrived: 1, failed: 1, stopped: 1, failed_vms });
    }

    /// A plan of many waves one after the other: how many Migrations are decided on, and written, because of waves before their own.
    #[test]
    fn how_often_a_migration_is_decided_on_does_not_grow_with_the_waves_before_it() {
        const WAVES: usize = 40;
        const VMS: u64 = 125;
        let name = |number: usize| format!("w{number:02}");
        let waves: Vec<Wave> = (0..WAVES)
            .map(|number| match number {
                0 => wave(&name(0), &[], &[], &[]),
                _ => wave(&name(number), &[&name(number - 1)], &[], &[]),
            })
            .collect();
        let of = |number: usize| (name(number), Count { left: VMS, ..Count::default() });
        let mut counts: Counts = (0..WAVES).map(of).collect();
        let mut order = Order::new(&waves, counts.clone(), Kept::default(), 0);
        let mut decided = order.changed(None, 0).len() as u64 * VMS;
        for number in 0..WAVES {
            for arrived in [1, VMS] {
                let it = counts.get_mut(&name(number)).unwrap();
                (it.left, it.arrived) = (VMS - arrived, arrived);
                let next = Order::new(&waves, counts.clone(), order.kept.clone(), 0);
                decided += next.changed(Some(&order), 0).len() as u64 * VMS;
                order = next;
            }
        }
        // Once each at first, and once when the wave before its own is over.
        assert_eq!(decided, (2 * WAVES as u64 - 1) * VMS);
    }
}
