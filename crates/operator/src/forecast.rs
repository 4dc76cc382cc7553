//! When what is on its way will have arrived: the schedule on a virtual clock, by what is left of Migrations and by what workers measured.
//!
//! A worker that brings a VM home tells in its status what the move showed, and those that copy tell how far they are. What was learned is
//! thus with the objects, and whoever leads next has it.

use std::collections::BTreeMap;

use drover_forecast::{
    Copies, FleetDisk, FleetVm, Line, Measured, Progress, Question, Rates, Seen, Spread, WarmWish,
    foresee_roughly, left_of,
};
use drover_schedule::{Budgets, HostLimits, TenantLimits};
use drover_types::{DayLimit, Wave};
use serde_json::Value;

use crate::decide::reason;
use crate::model::{DiskSize, Foreseen, MigrationSpec, Phase, Status, Work};
use crate::time::Moment;

/// A forecast is told anew if it is off by so many seconds at the least, and not more often.
const NEWS_SECONDS: i64 = 60;
/// By such a part of what is left it may be off without being told anew.
const NEWS_PART: i64 = 5;
/// After such a part of the time that was left when it was told, it may be told anew.
const AGAIN_PART: i64 = 2;
/// Migrations that are told their forecast by requests of its own in one round, at the least.
const TELL_MIN: usize = 20;
/// Of thousands such a part is told in one round.
const TELL_PART: usize = 50;
/// A copy that goes on for a shorter time says nothing of rates.
const COPY_SECONDS_MIN: i64 = 60;
/// What was copied longer ago says little.
const HOURS_MAX: usize = 48;
/// No forecast goes further than a hundred years: the API server takes no moments of years with five digits.
const LONGEST_SECONDS: i64 = 100 * 365 * 86_400;
const HOUR_MS: i64 = 3_600_000;

/// Reasons of `Arrived` that pass only when somebody does something.
const WAITS_FOR_SOMEBODY: [&str; 5] = [
    reason::WAITS_FOR_CUTOVER,
    reason::WAVE_FAILED,
    reason::WAVE_STOPPED,
    "ProviderMissing",
    "ProviderChanged",
];

/// A Migration, as it is.
#[derive(Clone, Copy, Debug)]
pub struct One<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is to be.
    pub spec: &'a MigrationSpec,
    /// How far it is.
    pub status: &'a Status,
}

/// Whether it is on its way, so that its arrival can be foreseen. What waits for somebody to mend something is not.
pub fn is_on_its_way(spec: &MigrationSpec, status: &Status) -> bool {
    let moves = match status.phase {
        Phase::Queued | Phase::Retrying => true,
        Phase::Running => status.job.as_ref().is_none_or(|job| job.work == Work::Move),
        Phase::Pending | Phase::Cancelling | Phase::Done | Phase::Failed | Phase::Cancelled => false,
    };
    let arrived = status.condition("Arrived");
    let has_arrived = arrived.is_some_and(|it| it.status == "True");
    let waits = arrived.is_some_and(|it| WAITS_FOR_SOMEBODY.contains(&it.reason.as_str()));
    // What failed of something else than the VM itself is mended elsewhere, whenever that is.
    let failed_elsewhere = status.phase == Phase::Retrying && status.tries > status.failures;
    moves && !spec.cancel && !has_arrived && !waits && !failed_elsewhere
}

/// What is asked of the forecast.
#[derive(Clone, Debug)]
pub struct Asked {
    question: Question,
    /// Migrations, in the order of the question's VMs.
    names: Vec<String>,
    /// UIDs of Plans, by their numbers in the question.
    plans: Vec<String>,
    at: Moment,
}

/// What is foreseen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// By the names of Migrations.
    pub migrations: BTreeMap<String, Foreseen>,
    /// When the last one of each Plan arrives, by the UIDs of Plans.
    pub plans: BTreeMap<String, Foreseen>,
}

impl Asked {
    /// Of all Migrations that there are, with the budgets of the scheduler and the waves of a Plan by its name.
    pub fn new<'a>(
        all: impl IntoIterator<Item = One<'a>>,
        budgets: &Budgets,
        waves: impl Fn(&str) -> Vec<Wave>,
        at: Moment,
    ) -> Asked {
        let all: Vec<One<'_>> = all.into_iter().collect();
        let mut question = Question {
            vms: Vec::new(),
            plans: Vec::new(),
            waves: BTreeMap::new(),
            rates: rates_of(&all, at),
            budgets: budgets.clone(),
            hosts: BTreeMap::new(),
            limits: BTreeMap::new(),
            lines: Vec::new(),
            sites: BTreeMap::new(),
            start_ms: u64::try_from(ms(at)).unwrap_or_default(),
            zero_ms: 0,
            seed: 1,
        };
        let (mut names, mut plans, mut progress) = (Vec::new(), Vec::<String>::new(), Vec::new());
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        for it in all.iter().filter(|it| is_on_its_way(it.spec, it.status)) {
            let uid = it.spec.plan_ref.uid.as_str();
            let plan = *numbers.entry(uid).or_insert(plans.len());
            if plan == plans.len() {
                plans.push(uid.to_string());
                add_plan(&mut question, plan, it.spec);
                let waves = waves(&it.spec.plan_ref.name);
                if !waves.is_empty() {
                    question.waves.insert(plan, waves);
                }
            }
            let vm = vm_of(it.spec, it.status, plan);
            if let Some(disks) = it.spec.size.host_disks {
                let limits = question.hosts.entry(vm.host.clone()).or_default();
                let disks = limits.disks.map_or(disks, |known| known.min(disks));
                *limits = HostLimits { disks: Some(disks), ..*limits };
            }
            progress.push(progress_of(&vm, it.status));
            names.push(it.name.to_string());
            question.vms.push(vm);
        }
        let question = left_of(&question, &progress, question.start_ms);
        Asked { question, names, plans, at }
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Foresees it, which takes a while for thousands.
    pub fn answer(&self) -> Answer {
        let forecast = foresee_roughly(&self.question);
        let after = |seconds: f64| self.at.plus((seconds.round() as i64).min(LONGEST_SECONDS));
        let of =
            |it: Spread| Foreseen { at: self.at, p10: after(it.p10), p50: after(it.p50), p90: after(it.p90) };
        let migrations = self.names.iter().zip(&forecast.vms);
        let plans = self.plans.iter().zip(&forecast.plan_ends_s);
        Answer {
            migrations: migrations.filter_map(|(name, vm)| Some((name.clone(), of(vm.end_s?)))).collect(),
            plans: plans.filter_map(|(uid, end)| Some((uid.clone(), of((*end)?)))).collect(),
        }
    }
}

/// What a Plan limits itself to, by one of its Migrations.
fn add_plan(question: &mut Question, plan: usize, spec: &MigrationSpec) {
    let name = &spec.plan_ref.name;
    let own = spec.size.plan_limits;
    let cutovers = spec.plan["limits"]["cutovers"].as_u64().and_then(|number| u32::try_from(number).ok());
    let limits = TenantLimits { vms_per_host: own.vms_per_host, disks: own.disks, cutovers };
    if limits != TenantLimits::default() {
        question.limits.insert(plan, limits);
    }
    let rates = rate_limits(&spec.plan);
    if !rates.is_empty() {
        let name = format!("rate_limit of plan {name}");
        question.lines.push(Line { name, limits: rates, plans: vec![plan] });
    }
    question.plans.push(name.clone());
}

/// What a plan file's keys say of its line.
fn rate_limits(keys: &Value) -> Vec<DayLimit> {
    let told = &keys["target"]["rate_limit"];
    let texts = told.as_array().map_or(std::slice::from_ref(told), Vec::as_slice);
    texts.iter().filter_map(|text| text.as_str()?.parse().ok()).collect()
}

fn data_of(disk: &DiskSize) -> u64 {
    disk.data.unwrap_or(disk.bytes)
}

fn host_of(spec: &MigrationSpec) -> String {
    format!("{}/{}", spec.source.instance_uuid, spec.size.host)
}

fn ms(at: Moment) -> i64 {
    at.0.saturating_mul(1000)
}

/// A VM with all that it has; what is done of it comes off by its progress.
fn vm_of(spec: &MigrationSpec, status: &Status, plan: usize) -> FleetVm {
    let (size, source) = (&spec.size, &spec.source.instance_uuid);
    let disk = |disk: &DiskSize| FleetDisk {
        data_bytes: data_of(disk),
        datastore: format!("{source}/{}", disk.datastore),
        pool: None,
    };
    let data = size.disks.iter().map(data_of).sum();
    FleetVm {
        name: spec.target_name.clone(),
        plan,
        wave: spec.wave.clone(),
        host: host_of(spec),
        disks: size.disks.iter().map(disk).collect(),
        priority: size.priority,
        deadline_ms: size.deadline_ms,
        warm: size.warm.map(|warm| WarmWish {
            interval_ms: warm.interval_ms,
            cutover_ms: warm.cutover_ms,
            downtime_ms: warm.downtime_ms,
            // One that waits for its order is no more on its way.
            on_order: false,
        }),
        runs: size.runs.unwrap_or(true),
        // One that failed and is tried again waits for its wave once more.
        goes_on: status.epoch > 0 && !(spec.wave.is_some() && status.phase == Phase::Queued),
        verified_bytes: size.verified_bytes.unwrap_or(data),
        ..FleetVm::default()
    }
}

/// Such a part of bytes as is done of all.
fn part(bytes: u64, done: u64, total: u64) -> u64 {
    let part = u128::from(bytes) * u128::from(done.min(total)) / u128::from(total.max(1));
    u64::try_from(part).unwrap_or(bytes)
}

fn progress_of(vm: &FleetVm, status: &Status) -> Progress {
    let (done, total) = status.progress.as_ref().map_or((0, 0), |told| (told.done_bytes, told.total_bytes));
    let is_at_work = status.phase == Phase::Running && status.word().is_some();
    match (is_at_work, done) {
        (false, 0) => Progress::Waits,
        (true, done) if done >= total && total > 0 => Progress::Verifies,
        (_, done) => {
            Progress::Copies(vm.disks.iter().map(|disk| part(disk.data_bytes, done, total)).collect())
        }
    }
}

/// What workers measured, and what those that copy show so far; what is assumed where there is nothing.
fn rates_of(all: &[One<'_>], at: Moment) -> Rates {
    let (mut seen, mut by_hour) = (Seen::default(), BTreeMap::<i64, Copies>::new());
    for it in all {
        if let Some(measured) = &it.status.measured {
            seen.see(measured, None);
        }
        if let Some(copy) = it.status.measured.clone().or_else(|| under_way(it, at)) {
            by_hour.entry(copy.copy_ended_ms / HOUR_MS).or_default().see(&host_of(it.spec), &copy, &[]);
        }
    }
    by_hour.values().rev().take(HOURS_MAX).for_each(|copies| seen.see_run(copies));
    seen.rates()
}

/// What a copy shows that goes on, if it is its first worker's: what others did before is in its progress, too.
fn under_way(it: &One<'_>, at: Moment) -> Option<Measured> {
    let Status { epoch, job, progress, .. } = it.status;
    let (job, told) = (job.as_ref()?, progress.as_ref()?);
    let is_first = *epoch == 1 && job.work == Work::Move && job.at.plus(COPY_SECONDS_MIN) <= at;
    let is_copied = (1..told.total_bytes).contains(&told.done_bytes);
    let data: u64 = it.spec.size.disks.iter().map(data_of).sum();
    (is_first && is_copied).then(|| Measured {
        copy_began_ms: ms(job.at),
        copy_ended_ms: ms(at),
        disks: u32::try_from(it.spec.size.disks.len()).unwrap_or(u32::MAX),
        read_bytes: part(data, told.done_bytes, told.total_bytes),
        data_bytes: data,
        ..Measured::default()
    })
}

/// Whether what is foreseen now is worth a request beside what was told last. It is not if it is off by little of what is left, and not
/// before half of the time is over that was left then: so one that is a day ahead is told some ten times, however wrong each time was.
pub fn is_news(told: Option<&Foreseen>, fresh: &Foreseen) -> bool {
    let Some(told) = told else { return true };
    let left = |it: &Foreseen| (it.p50.0 - it.at.0).max(0);
    let (waited, off) = (fresh.at.0 - told.at.0, (fresh.p50.0 - told.p50.0).abs());
    waited >= NEWS_SECONDS.max(left(told) / AGAIN_PART) && off > NEWS_SECONDS.max(left(fresh) / NEWS_PART)
}

/// Migrations that are to be told their forecast in this round by a request for each: those that arrive next, and of thousands a part.
pub fn to_tell<'a>(
    fresh: &'a BTreeMap<String, Foreseen>,
    told: impl Fn(&str) -> Option<&'a Foreseen>,
) -> Vec<&'a str> {
    let news = fresh.iter().filter(|(name, it)| is_news(told(name), it));
    let mut news: Vec<(Moment, &str)> = news.map(|(name, it)| (it.p50, name.as_str())).collect();
    news.sort_unstable();
    let most = TELL_MIN.max(fresh.len() / TELL_PART);
    news.into_iter().take(most).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{Condition, JobRef, Pinned, PlanLimits, Progress as Told, Size, SourceId, WorkerWord};

    const GIB: u64 = 1 << 30;
    const NOW: Moment = Moment(1_800_000_000);

    fn spec(name: &str, plan: &str) -> MigrationSpec {
        let disk = DiskSize { bytes: 40 * GIB, datastore: "ds".into(), data: Some(10 * GIB) };
        MigrationSpec {
            plan_ref: Pinned { name: plan.into(), uid: format!("uid of {plan}"), generation: 1 },
            source: SourceId { instance_uuid: "vc".into() },
            target_name: name.into(),
            size: Size { host: "host-1".into(), disks: vec![disk], ..Size::default() },
            ..MigrationSpec::default()
        }
    }

    fn in_phase(phase: Phase) -> Status {
        Status { phase, ..Status::default() }
    }

    /// Copied by its first worker since then, with such a part of 100 done.
    fn copied(since: i64, percent: u64) -> Status {
        let (total_bytes, done_bytes) = (40 * GIB, 40 * GIB * percent / 100);
        let job = JobRef { name: "j".into(), uid: None, work: Work::Move, at: Moment(since), overdue: false };
        Status {
            phase: Phase::Running,
            epoch: 1,
            job: Some(job),
            worker: Some(WorkerWord { epoch: 1, ..WorkerWord::default() }),
            progress: Some(Told { total_bytes, done_bytes, percent: percent as u8 }),
            ..Status::default()
        }
    }

    fn asked(all: &[(&str, MigrationSpec, Status)]) -> Asked {
        let one = |(name, spec, status)| One { name, spec, status };
        Asked::new(
            all.iter().map(|(name, spec, status)| one((*name, spec, status))),
            &Budgets::default(),
            |_| Vec::new(),
            NOW,
        )
    }

    #[test]
    fn what_waits_for_somebody_is_not_on_its_way() {
        let because = |phase, reason: &str| {
            let mut status = in_phase(phase);
            status.set("Arrived", false, reason, "", NOW);
            is_on_its_way(&spec("x", "p"), &status)
        };
        assert!(because(Phase::Queued, "WaitsForSlot") && because(Phase::Running, "Moving"));
        for (phase, reason) in [
            (Phase::Running, reason::WAITS_FOR_CUTOVER),
            (Phase::Queued, "ProviderMissing"),
            (Phase::Retrying, "ProviderChanged"),
        ] {
            assert!(!because(phase, reason), "{reason}");
        }
        let tried = |tries, failures| {
            let status = Status { tries, failures, ..in_phase(Phase::Retrying) };
            is_on_its_way(&spec("x", "p"), &status)
        };
        assert!(tried(2, 2), "it fails by itself, and comes again after a pause");
        assert!(!tried(3, 2), "what it failed of is mended elsewhere");
    }

    #[test]
    fn no_forecast_goes_beyond_what_the_api_server_takes() {
        let slow = Status {
            progress: Some(Told { total_bytes: u64::MAX, done_bytes: 1, percent: 0 }),
            ..copied(NOW.0 - 600, 0)
        };
        let huge = MigrationSpec {
            size: Size {
                disks: vec![DiskSize { bytes: u64::MAX / 4, datastore: "ds".into(), data: None }],
                ..spec("x", "p").size
            },
            ..spec("x", "p")
        };
        let answer = asked(&[("huge", huge, slow)]).answer();
        let far = answer.migrations["huge"].p90.text();
        assert!(far.len() == "2026-01-02T03:04:05Z".len(), "{far}");
    }

    #[test]
    fn what_is_on_its_way_is_foreseen_and_nothing_else() {
        let mut arrived = in_phase(Phase::Retrying);
        arrived.conditions.push(Condition {
            kind: "Arrived".into(),
            status: "True".into(),
            reason: "Arrived".into(),
            message: String::new(),
            last_transition_time: NOW,
            observed_generation: 1,
        });
        let cancelled = MigrationSpec { cancel: true, ..spec("x", "p") };
        let mut all =
            vec![("arrived", spec("x", "p"), arrived), ("given up", cancelled, in_phase(Phase::Queued))];
        for phase in [Phase::Pending, Phase::Cancelling, Phase::Done, Phase::Failed, Phase::Cancelled] {
            all.push(("other", spec("x", "p"), in_phase(phase)));
        }
        assert!(asked(&all).is_empty() && asked(&all).answer() == Answer::default());
        all.push(("waits", spec("a", "p"), in_phase(Phase::Queued)));
        all.push(("copied", spec("b", "q"), copied(NOW.0 - 10, 50)));
        let answer = asked(&all).answer();
        assert_eq!(answer.migrations.keys().collect::<Vec<_>>(), ["copied", "waits"]);
        assert_eq!(answer.plans.keys().collect::<Vec<_>>(), ["uid of p", "uid of q"]);
        for it in answer.migrations.values().chain(answer.plans.values()) {
            assert!(it.at == NOW && NOW < it.p10 && it.p10 <= it.p50 && it.p50 <= it.p90, "{it:?}");
        }
        assert!(answer.migrations["copied"].p50 < answer.migrations["waits"].p50, "{answer:?}");
    }

    #[test]
    fn a_copy_is_foreseen_by_what_is_left_of_its_data_and_by_the_rate_that_it_shows() {
        let of = |status: Status| asked(&[("a", spec("a", "p"), status)]);
        assert_eq!(of(in_phase(Phase::Queued)).question.vms[0].data_bytes(), 10 * GIB, "what is allocated");
        let half = of(copied(NOW.0 - 10, 50));
        assert_eq!(half.question.vms[0].data_bytes(), 5 * GIB);
        assert_eq!(half.question.rates, Rates::default(), "ten seconds say nothing");
        // Half of 10 GiB in 1000 s: as much again.
        let slow = of(copied(NOW.0 - 1000, 50));
        let stream = slow.question.rates.stream.spread.p50;
        assert!((stream / (5 * GIB) as f64 * 1000.0 - 1.0).abs() < 1e-6, "{stream}");
        let left = |asked: &Asked| asked.answer().migrations["a"].p50.0 - NOW.0;
        assert!((900..1500).contains(&left(&slow)) && left(&slow) > 3 * left(&half), "{}", left(&slow));
        // Another worker's bytes are in what is told of the second one's.
        let second = Status { epoch: 2, ..copied(NOW.0 - 1000, 50) };
        assert_eq!(of(second).question.rates, Rates::default());
        let proven = of(copied(NOW.0 - 10, 100));
        assert_eq!((proven.question.vms[0].data_bytes(), left(&proven) < left(&half)), (0, true));
    }

    #[test]
    fn those_that_arrived_tell_how_fast_the_next_ones_are() {
        let measured = Measured {
            copy_began_ms: ms(NOW) - 2_000_000,
            copy_ended_ms: ms(NOW) - 1_000_000,
            disks: 1,
            read_bytes: 10 * GIB,
            data_bytes: 10 * GIB,
            after_ms: 77_000,
            ..Measured::default()
        };
        let done = Status { measured: Some(measured), ..in_phase(Phase::Done) };
        let all = [("a", spec("a", "p"), done), ("b", spec("b", "p"), in_phase(Phase::Queued))];
        let rates = asked(&all).question.rates;
        assert_eq!((rates.stream.spread.p50, rates.start_s.spread.p50), (10.0 * GIB as f64 / 1000.0, 77.0));
        // As the API server holds it.
        let text = serde_json::to_string(&all[0].2.measured).unwrap();
        assert!(text.contains("\"copyBeganMs\":") && text.contains("\"afterMs\":77000"), "{text}");
        assert_eq!(serde_json::from_str::<Option<Measured>>(&text).unwrap(), all[0].2.measured);
    }

    #[test]
    fn what_plans_and_hosts_allow_is_heeded() {
        let mut one = spec("a", "p");
        one.plan = json!({"target": {"rate_limit": ["1MiB", "08:00-18:00=512KiB"]}});
        one.size.plan_limits = PlanLimits { vms_per_host: Some(1), disks: None };
        one.size.host_disks = Some(50);
        let mut two = spec("b", "q");
        two.plan = json!({"target": {"rate_limit": "2MiB"}});
        two.size.host_disks = Some(30);
        let all = [("a", one, in_phase(Phase::Queued)), ("b", two, in_phase(Phase::Queued))];
        let asked = asked(&all);
        assert_eq!(asked.question.hosts["vc/host-1"].disks, Some(30));
        assert_eq!(asked.question.limits[&0].vms_per_host, Some(1));
        let lines: Vec<(usize, &[usize])> =
            asked.question.lines.iter().map(|it| (it.limits.len(), it.plans.as_slice())).collect();
        assert_eq!(lines, [(2, &[0][..]), (1, &[1][..])]);
        // 10 GiB at 2 MiB/s.
        let left = asked.answer().migrations["b"].p50.0 - NOW.0;
        assert!((5120..6000).contains(&left), "{left}");
    }

    fn foreseen(at: i64, p50: i64) -> Foreseen {
        Foreseen { at: Moment(at), p10: Moment(p50), p50: Moment(p50), p90: Moment(p50) }
    }

    #[test]
    fn a_forecast_is_told_a_few_times_however_wrong_it_is() {
        assert!(is_news(None, &foreseen(0, 1000)));
        let told = foreseen(0, 1000);
        assert!(!is_news(Some(&told), &foreseen(600, 1100)), "little is little");
        assert!(!is_news(Some(&told), &foreseen(400, 9000)), "not so soon");
        assert!(is_news(Some(&told), &foreseen(600, 1300)));
        // A day ahead, and always wrong by half of what is left.
        let (mut told, mut count) = (foreseen(0, 86_400), 1);
        for at in (60..86_400).step_by(60) {
            let left = 86_400 - at;
            let fresh = foreseen(at, at + if count % 2 == 0 { left } else { left / 2 });
            if is_news(Some(&told), &fresh) {
                (told, count) = (fresh, count + 1);
            }
        }
        assert!((5..30).contains(&count), "{count}");
    }

    #[test]
    fn of_thousands_a_part_is_told_in_a_round_and_the_next_to_arrive_first() {
        let fresh: BTreeMap<String, Foreseen> =
            (0..5000).map(|number| (format!("m{number:04}"), foreseen(0, 10_000 - number))).collect();
        let first = to_tell(&fresh, |_| None);
        assert_eq!((first.len(), first[0]), (100, "m4999"));
        let again = to_tell(&fresh, |name| fresh.get(name).filter(|_| first.contains(&name)));
        assert_eq!((again.len(), again[0]), (100, "m4899"));
        assert!(to_tell(&fresh, |name| fresh.get(name)).is_empty());
        let few: BTreeMap<String, Foreseen> = fresh.into_iter().take(30).collect();
        assert_eq!(to_tell(&few, |_| None).len(), 20);
    }
}
