//! The forecast of a run, made beside it and corrected while it goes on. The runs of a process, as those of a daemon, share hosts and
//! budgets: they are foreseen together, once for all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use drover_engine::{
    Clock, Foreseen, ForeseenNow, ForeseenVm, Foresight, KnownRates, LimitsOrder, ProgressRow, RunFacts,
    Store, StoreError, SystemClock, VmRow, VmState, budgets_of,
};
use drover_forecast::{
    FleetVm, Forecast, Line, Progress, Quantity, Question, Rates, Spread, VmForecast, foresee_roughly,
    left_of, together,
};
use drover_plan::{Plan, PlannedVm};
use drover_schedule::Budgets;
use drover_types::DayLimit;

use crate::known::{limit_hosts, lines_of, own_line, seen, sites_of};

/// The forecast of a run is corrected that often.
const CORRECT_EACH: Duration = Duration::from_secs(60);
/// What was foreseen for all runs serves each of them for so long.
const KEPT: Duration = Duration::from_secs(20);
/// After a forecast of all runs comes a pause of so many times what it took: runs that begin meanwhile share the next one.
const PAUSE_TIMES: u32 = 9;

/// What a run shares with the other plans of its process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared<'a> {
    /// The budgets of their schedule; absent: it has its own.
    pub budgets: Option<&'a Budgets>,
    /// What all of them may read of their sources, by the time.
    pub rate_limit: &'a [DayLimit],
}

/// Foresees a run that begins, beside it: what is foreseen is kept with the run, and compared with what comes. `facts` tell its source.
pub fn begin(
    store: &Store,
    plan: &Plan,
    vms: &[PlannedVm],
    facts: &RunFacts,
    shared: Shared<'_>,
) -> Foresight {
    let run = Arc::new(Begun::new(store, plan, vms, facts, shared));
    run.enter();
    let first = {
        let run = Arc::clone(&run);
        move || run.since_it_began(&ends_of(&run).unwrap_or_else(|_| run.assumed()))
    };
    let correct = move || {
        let ends = ends_of(&run).ok()?;
        Some(ForeseenNow { at_ms: ends.at_ms, end_ms: ends.end_ms, ready_ms: ends.ready_ms })
    };
    Foresight::correcting(first, CORRECT_EACH, correct)
}

/// Runs of this process that are not over, by their state folders and plans.
static RUNS: Mutex<BTreeMap<(PathBuf, String), Weak<Begun>>> = Mutex::new(BTreeMap::new());
/// What was foreseen last for all runs of a state folder.
static LATEST: Mutex<BTreeMap<PathBuf, Latest>> = Mutex::new(BTreeMap::new());

/// What was foreseen for some runs at a moment.
struct Latest {
    at: Instant,
    took: Duration,
    of: Vec<(Weak<Begun>, Arc<Ends>)>,
    /// By what was measured then, which is looked up once for each time that runs are corrected.
    rates: Rates,
    rates_at: Instant,
}

impl Latest {
    /// What it says of a run, while that may be said.
    fn of(&self, run: &Arc<Begun>) -> Option<Arc<Ends>> {
        let ends = self.of.iter().find(|it| it.0.as_ptr() == Arc::as_ptr(run)).map(|it| &it.1);
        ends.filter(|_| self.at.elapsed() < KEPT.max(self.pause())).cloned()
    }

    fn pause(&self) -> Duration {
        (self.took * PAUSE_TIMES).min(CORRECT_EACH)
    }

    fn left_of_pause(&self) -> Duration {
        self.pause().saturating_sub(self.at.elapsed())
    }
}

/// When a run is foreseen to end, and its VMs that have not arrived, by their ids; in milliseconds since 1970.
struct Ends {
    /// When that was foreseen.
    at_ms: i64,
    end_ms: [i64; 3],
    /// When all that wait for `drover cutover` are ready for it, and the others have arrived.
    ready_ms: Option<[i64; 3]>,
    vms: BTreeMap<String, VmEnds>,
    /// What was measured of its source by then.
    known: KnownRates,
}

struct VmEnds {
    end_ms: [i64; 3],
    downtime_ms: Option<[u64; 3]>,
    on_order: bool,
}

/// When a run is foreseen to end, with all others that go on. Whoever asks while that is worked out, or too soon after, waits for it.
fn ends_of(run: &Arc<Begun>) -> Result<Arc<Ends>, StoreError> {
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let known = latest.get(&run.folder);
        if let Some(ends) = known.and_then(|it| it.of(run)) {
            return Ok(ends);
        }
        let pause = known.map_or(Duration::ZERO, Latest::left_of_pause);
        if pause.is_zero() {
            break;
        }
        drop(latest);
        std::thread::sleep(pause);
        latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    }
    let began = Instant::now();
    let runs: Vec<Arc<Begun>> = std::iter::once(Arc::clone(run)).chain(run.others()).collect();
    let store = Store::open_to_read(&run.folder)?;
    let known = latest.get(&run.folder).filter(|it| it.rates_at.elapsed() < CORRECT_EACH);
    let (rates, rates_at) = match known {
        Some(known) => (known.rates.clone(), known.rates_at),
        None => (seen(&store)?.rates(), began),
    };
    let progress = runs.iter().map(|it| it.progress_now(&store)).collect::<Result<Vec<_>, _>>()?;
    let ends: Vec<Arc<Ends>> =
        foresee_all(&runs, progress, rates.clone()).into_iter().map(Arc::new).collect();
    let own = Arc::clone(&ends[0]);
    let of = runs.iter().map(Arc::downgrade).zip(ends).collect();
    let now = Latest { at: Instant::now(), took: began.elapsed(), of, rates, rates_at };
    latest.insert(run.folder.clone(), now);
    Ok(own)
}

/// What is left of runs that share a schedule, as one fleet.
fn foresee_all(runs: &[Arc<Begun>], progress: Vec<Vec<Progress>>, rates: Rates) -> Vec<Ends> {
    let at_ms = SystemClock.now_ms();
    let left = |(run, progress): (&Arc<Begun>, &Vec<Progress>)| {
        left_of(&run.question_now(), progress, at_ms.max(0) as u64)
    };
    let questions: Vec<Question> = runs.iter().zip(&progress).map(left).collect();
    let counts: Vec<usize> = questions.iter().map(|it| it.vms.len()).collect();
    let shared = runs.first().map(|run| run.shared_now()).unwrap_or_default();
    let question = Question { rates, ..together(questions, &shared) };
    let forecast = foresee_roughly(&question);
    let Forecast { plan_ends_s, plans_on_order, vms, .. } = forecast;
    let mut vms = vms.into_iter();
    let of_run = |(at, run): (usize, &Arc<Begun>)| {
        let left = run.ids.iter().zip(&progress[at]).filter(|(_, progress)| **progress != Progress::Ended);
        let of_vm = |((id, _), it): ((&String, &Progress), VmForecast)| {
            let end_ms = moments(at_ms, it.end_s?);
            Some((
                id.clone(),
                VmEnds { end_ms, downtime_ms: it.downtime_s.map(millis), on_order: it.on_order },
            ))
        };
        let vms: BTreeMap<String, VmEnds> =
            left.zip(vms.by_ref().take(counts[at])).filter_map(of_vm).collect();
        // Of one with VMs that never arrive: until the others have.
        let last = |part: usize| vms.values().map(|it| it.end_ms[part]).max().unwrap_or(at_ms);
        let end_ms = plan_ends_s[at].map_or_else(|| [0, 1, 2].map(last), |end| moments(at_ms, end));
        // One that never is ready has no moment either.
        let ready_ms = plans_on_order[at].map(|it| it.ready_s.map_or(end_ms, |ready| moments(at_ms, ready)));
        Ends { at_ms, end_ms, ready_ms, vms, known: run.known(&question.rates) }
    };
    runs.iter().enumerate().map(of_run).collect()
}

fn moments(at_ms: i64, seconds: Spread) -> [i64; 3] {
    millis(seconds).map(|ms| at_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
}

fn millis(Spread { p10, p50, p90 }: Spread) -> [u64; 3] {
    [p10, p50, p90].map(|seconds| (seconds * 1000.0) as u64)
}

/// A limit that all plans of the process share; of one name for all of them.
fn line_of_all(limits: &[DayLimit]) -> Option<Line> {
    let line = || Line { name: "rate limit of the daemon".into(), limits: limits.to_vec(), plans: vec![0] };
    (!limits.is_empty()).then(line)
}

/// A run that goes on.
struct Begun {
    folder: PathBuf,
    plan: String,
    /// Its VMs by their ids, and the labels of their disks, in the order of the question.
    ids: Vec<String>,
    disks: Vec<Vec<String>>,
    /// All of it, within its own limits.
    question: Question,
    /// Budgets of the schedule that it shares with other runs; absent: its own.
    shared: Option<Budgets>,
    /// How far its VMs were when it began, until its first forecast takes that: what arrives meanwhile is foreseen, too.
    began: Mutex<Option<Vec<Progress>>>,
    /// Ids of VMs whose cutovers were ordered, as it was seen last.
    ordered: Mutex<BTreeSet<String>>,
    /// Limits that were ordered while it runs, as it was seen last.
    limits: Mutex<LimitsOrder>,
}

impl Begun {
    fn new(
        store: &Store,
        plan: &Plan,
        vms: &[PlannedVm],
        RunFacts { source_uuid, source_hosts, .. }: &RunFacts,
        shared: Shared<'_>,
    ) -> Begun {
        let host = |vm: &PlannedVm| source_hosts.get(&vm.vm.host_id).unwrap_or(&vm.vm.host_id).clone();
        let fleet_vm =
            |vm: &PlannedVm| FleetVm { source: source_uuid.clone(), ..FleetVm::planned(vm, 0, &host(vm)) };
        let mut hosts = BTreeMap::new();
        limit_hosts(&mut hosts, vms, host);
        let budgets = budgets_of(&plan.limits);
        let mut lines = lines_of(&[plan], store.folder());
        lines.extend(line_of_all(shared.rate_limit));
        let shared = shared.budgets.cloned();
        let question = Question {
            vms: vms.iter().map(fleet_vm).collect(),
            plans: vec![plan.name.clone()],
            waves: [(0, plan.waves())].into(),
            budgets,
            hosts,
            lines,
            sites: sites_of(&[plan], store.folder()),
            start_ms: SystemClock.now_ms().max(0) as u64,
            seed: 1,
            ..Question::default()
        };
        let labels = |vm: &PlannedVm| vm.disks.iter().map(|disk| disk.disk.label.clone()).collect();
        let run = Begun {
            folder: store.folder().to_path_buf(),
            plan: plan.name.clone(),
            ids: vms.iter().map(|vm| vm.vm.id.clone()).collect(),
            disks: vms.iter().map(labels).collect(),
            question,
            shared,
            began: Mutex::new(None),
            ordered: Mutex::default(),
            limits: Mutex::default(),
        };
        // Before the run changes it: of a run that is resumed, only what is left is foreseen. A store that cannot be read shows itself
        // elsewhere.
        let progress = run.progress_in(store).unwrap_or_else(|_| vec![Progress::Waits; run.ids.len()]);
        *run.began.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
        run
    }

    /// What was measured of its source.
    fn known(&self, rates: &Rates) -> KnownRates {
        let likely = |it: &Quantity| it.spread.p50 as u64;
        let source = self.question.vms.first().map_or("", |vm| vm.source.as_str());
        let prefix = Rates::datastore_key(source, "");
        let datastore =
            |(key, it): (&String, &Quantity)| Some((key.strip_prefix(&prefix)?.into(), likely(it)));
        KnownRates {
            host: rates.host.is_measured().then(|| likely(&rates.host)),
            datastores: rates.datastores.iter().filter_map(datastore).collect(),
        }
    }

    /// Has it be foreseen with the others from now on, in place of an earlier run of its plan.
    fn enter(self: &Arc<Begun>) {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, run| run.strong_count() > 0);
        runs.insert((self.folder.clone(), self.plan.clone()), Arc::downgrade(self));
    }

    /// Runs of other plans of its state folder that go on.
    fn others(&self) -> Vec<Arc<Begun>> {
        let runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        let others = runs.iter().filter(|((folder, plan), _)| *folder == self.folder && *plan != self.plan);
        others.filter_map(|(_, run)| run.upgrade()).collect()
    }

    /// What is foreseen without what other runs measured.
    fn assumed(self: &Arc<Begun>) -> Arc<Ends> {
        let began = self.began.lock().unwrap_or_else(PoisonError::into_inner).take();
        let progress = began.unwrap_or_else(|| vec![Progress::Waits; self.ids.len()]);
        let mut ends = foresee_all(&[Arc::clone(self)], vec![progress], Rates::default());
        Arc::new(ends.remove(0))
    }

    /// The same as times after its begin.
    fn since_it_began(&self, ends: &Ends) -> Foreseen {
        let began_ms = i64::try_from(self.question.start_ms).unwrap_or(i64::MAX);
        let since = |ms: i64| u64::try_from(ms.saturating_sub(began_ms)).unwrap_or(0);
        let of_vm = |(id, it): (&String, &VmEnds)| {
            let VmEnds { end_ms, downtime_ms, on_order } = *it;
            (id.clone(), ForeseenVm { end_ms: end_ms.map(since), downtime_ms, on_order })
        };
        Foreseen {
            makespan_ms: ends.end_ms.map(since),
            ready_ms: ends.ready_ms.map(|ready| ready.map(since)),
            vms: ends.vms.iter().map(of_vm).collect(),
            known: ends.known.clone(),
        }
    }

    /// How far it is, or was when it began if it is asked for the first time.
    fn progress_now(&self, store: &Store) -> Result<Vec<Progress>, StoreError> {
        match self.began.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(began) => Ok(began),
            None => {
                let limits = store.limits_order(&self.plan)?.unwrap_or_default();
                *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
                self.progress_in(store)
            }
        }
    }

    /// The budgets of the schedule, with the orders for limits that were given where it has its own.
    fn shared_now(&self) -> Budgets {
        self.shared.clone().unwrap_or_else(|| self.question_now().budgets)
    }

    /// All of it, with the orders for cutovers and limits that were given.
    fn question_now(&self) -> Question {
        let ordered = self.ordered.lock().unwrap_or_else(PoisonError::into_inner);
        let mut question = self.question.clone();
        for (vm, _) in question.vms.iter_mut().zip(&self.ids).filter(|(_, id)| ordered.contains(*id)) {
            vm.warm.iter_mut().for_each(|warm| warm.on_order = false);
        }
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let budgets = &mut question.budgets;
        budgets.disks = limits.disks.unwrap_or(budgets.disks);
        budgets.vms_per_host = limits.vms_per_host.unwrap_or(budgets.vms_per_host);
        if let Some(rates) = limits.rate_limit {
            let line = own_line(&self.plan, 0, rates);
            question.lines.retain(|it| it.name != line.name);
            if !line.limits.is_empty() {
                question.lines.push(line);
                question.sites.clear();
            }
        }
        question
    }

    fn progress_in(&self, store: &Store) -> Result<Vec<Progress>, StoreError> {
        *self.ordered.lock().unwrap_or_else(PoisonError::into_inner) = store.cutovers_ordered(&self.plan)?;
        Ok(self.progress(&store.vms_in_short(&self.plan)?, &store.progress(&self.plan)?))
    }

    /// How far each VM is. What failed before the run began is tried again by it.
    fn progress(&self, rows: &[VmRow], disks: &[ProgressRow]) -> Vec<Progress> {
        let began_ms = i64::try_from(self.question.start_ms).unwrap_or(i64::MAX);
        let rows: HashMap<&str, &VmRow> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        let known: HashMap<(&str, &str), &ProgressRow> =
            disks.iter().map(|it| ((it.vm.as_str(), it.disk.as_str()), it)).collect();
        let of = |((id, labels), vm): ((&String, &Vec<String>), &FleetVm)| {
            let Some(row) = rows.get(id.as_str()) else { return Progress::Waits };
            if row.state.has_arrived() || row.ended_ms.is_some_and(|ended_ms| ended_ms >= began_ms) {
                return Progress::Ended;
            }
            // One that was stopped goes on where it was.
            let goes_on = matches!(row.state, VmState::Running | VmState::Stopped);
            match row.phase.as_deref().filter(|_| goes_on) {
                None => Progress::Waits,
                Some("verify") => Progress::Verifies,
                Some("convert" | "define" | "start" | "clean up") => Progress::Copied,
                Some(_) => {
                    let done = |(at, label): (usize, &String)| {
                        let data = vm.disks.get(at).map_or(0, |disk| disk.data_bytes);
                        let known = known.get(&(row.name.as_str(), label.as_str()));
                        known.map_or(0, |disk| data - disk.left_of(data))
                    };
                    Progress::Copies(labels.iter().enumerate().map(done).collect())
                }
            }
        };
        self.ids.iter().zip(&self.disks).zip(&self.question.vms).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use drover_engine::DiskActivity;
    use drover_forecast::{FleetDisk, WarmWish};

    use super::*;

    fn begun(plan: &str, folder: PathBuf, question: Question) -> Begun {
        Begun {
            folder,
            plan: plan.into(),
            ids: question.vms.iter().map(|vm| vm.name.clone()).collect(),
            disks: vec![vec!["a".to_string()]; question.vms.len()],
            question,
            shared: Some(Budgets::default()),
            limits: Mutex::default(),
            began: Mutex::new(None),
            ordered: Mutex::default(),
        }
    }

    #[test]
    fn runs_of_one_process_are_foreseen_together_and_each_has_its_own_end() {
        let state = tempfile::tempdir().unwrap();
        Store::open(state.path()).unwrap();
        let question = |plan: &str, vms: usize| {
            let vm = |at: usize| FleetVm {
                name: format!("{plan}{at}"),
                host: "esx1".into(),
                disks: vec![FleetDisk { data_bytes: 20 << 30, ..FleetDisk::default() }],
                ..FleetVm::default()
            };
            let vms = (0..vms).map(vm).collect();
            Question { vms, plans: vec![plan.into()], seed: 1, ..Question::default() }
        };
        let begin = |plan: &str, vms| {
            let run = Arc::new(begun(plan, state.path().into(), question(plan, vms)));
            run.enter();
            run
        };
        let likely = |ends: &Ends| ends.end_ms[1] - ends.at_ms;
        let one = begin("one", 10);
        let alone = ends_of(&one).unwrap();
        assert_eq!(alone.vms.len(), 10);
        // The first is kept for a while, but another begins.
        let two = begin("two", 20);
        let second = ends_of(&two).unwrap();
        assert_eq!(second.vms.len(), 20);
        let first = ends_of(&one).unwrap();
        assert_eq!(first.at_ms, second.at_ms, "worked out once for both");
        assert!(likely(&first) > likely(&alone) * 3 / 2, "{} after {}", likely(&first), likely(&alone));
        assert!(likely(&second) > likely(&first), "{} after {}", likely(&second), likely(&first));
        // One that is over takes nothing from the others.
        drop(two);
        forget_ends(state.path());
        let last = ends_of(&one).unwrap();
        assert!(likely(&last) < likely(&first), "{} after {}", likely(&last), likely(&first));
        let foreseen = one.since_it_began(&last);
        assert_eq!((foreseen.vms.len(), foreseen.makespan_ms.is_sorted()), (10, true));
        // One that takes the place of an earlier run of its plan, whose forecast has not ended, is foreseen without that.
        let again = begin("one", 10);
        let again = likely(&ends_of(&again).unwrap());
        assert!(again < likely(&last) * 5 / 4, "{again} after {}", likely(&last));
        assert_eq!(one.others().len(), 0, "nor with the later one");
    }

    #[test]
    fn what_nobody_ordered_yet_is_foreseen_until_it_is_ready() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        store.begin_plan("one", "", std::path::Path::new("/")).unwrap();
        ["a", "b"].iter().for_each(|id| store.enter_vm("one", id, id, "{}").unwrap());
        let wish = WarmWish { interval_ms: 60_000, on_order: true, ..WarmWish::default() };
        let vm = |name: &str, warm| FleetVm { name: name.into(), warm, runs: true, ..FleetVm::default() };
        let vms = vec![vm("a", Some(wish)), vm("b", None)];
        let question = Question { vms, plans: vec!["one".into()], seed: 1, ..Question::default() };
        let run = Arc::new(begun("one", state.path().into(), question));
        let ends = ends_of(&run).unwrap();
        let ready = ends.ready_ms.unwrap();
        assert!(ready[1] <= ends.end_ms[1] && ends.vms["a"].on_order && !ends.vms["b"].on_order);
        let foreseen = run.since_it_began(&ends);
        assert!(foreseen.ready_ms.is_some() && foreseen.vms["a"].on_order);
        store.ask_cutover("one", Some("a")).unwrap();
        forget_ends(state.path());
        let ends = ends_of(&run).unwrap();
        assert!(ends.ready_ms.is_none() && !ends.vms["a"].on_order, "it was ordered");
    }

    /// Has what was foreseen last be too old.
    fn forget_ends(state: &std::path::Path) {
        LATEST.lock().unwrap().remove(state);
    }

    #[test]
    fn a_process_foresees_its_runs_a_tenth_of_the_time_and_looks_up_what_was_measured_once_a_minute() {
        let state = tempfile::tempdir().unwrap();
        Store::open(state.path()).unwrap();
        let begin = |plan: &str| {
            let vms = vec![FleetVm { name: plan.into(), ..FleetVm::default() }];
            let question = Question { vms, plans: vec![plan.into()], seed: 1, ..Question::default() };
            let run = Arc::new(begun(plan, state.path().into(), question));
            run.enter();
            run
        };
        let one = begin("one");
        let first = ends_of(&one).unwrap();
        let (measured, at) = (Rates { start_s: Quantity::given(7.0), ..Rates::default() }, Instant::now());
        {
            let mut latest = LATEST.lock().unwrap();
            let latest = latest.get_mut(state.path()).unwrap();
            (latest.at, latest.took, latest.rates) = (at, Duration::from_millis(50), measured.clone());
        }
        let second = ends_of(&begin("two")).unwrap();
        assert!(second.at_ms > first.at_ms);
        let latest = LATEST.lock().unwrap();
        let latest = &latest[state.path()];
        assert!(latest.at - at >= Duration::from_millis(450), "it waited {:?}", latest.at - at);
        assert_eq!(latest.rates, measured, "nothing was looked up again");
        let latest = |took| Latest {
            at: Instant::now(),
            took,
            of: Vec::new(),
            rates: Rates::default(),
            rates_at: Instant::now(),
        };
        assert_eq!(latest(Duration::from_secs(2)).pause(), Duration::from_secs(18));
        assert_eq!(latest(Duration::from_secs(60)).pause(), CORRECT_EACH, "and never longer");
    }

    #[test]
    fn limits_that_are_ordered_while_it_runs_count_in_what_is_foreseen_from_then_on() {
        let question =
            Question { lines: vec![own_line("p", 0, vec![DayLimit::always(7)])], ..Question::default() };
        let run = Begun { shared: None, ..begun("p", PathBuf::new(), question) };
        assert_eq!(run.question_now().lines.len(), 1);
        let order = |rates| LimitsOrder { rate_limit: Some(rates), disks: Some(3), vms_per_host: None };
        *run.limits.lock().unwrap() = order(vec![DayLimit::always(9)]);
        let now = run.question_now();
        assert_eq!((now.lines.len(), now.lines[0].limits[0].bytes_per_second), (1, 9));
        assert_eq!((now.budgets.disks, run.shared_now().disks), (3, 3));
        *run.limits.lock().unwrap() = order(Vec::new());
        assert!(run.question_now().lines.is_empty());
    }

    #[test]
    fn how_far_a_run_is_follows_from_what_it_keeps() {
        let row = |id: &str, state, phase: Option<&str>, ended_ms| VmRow {
            id: id.into(),
            name: format!("{id} there"),
            trace_id: String::new(),
            site: None,
            target_host: None,
            wave: None,
            state,
            phase: phase.map(str::to_string),
            planned: String::new(),
            snapshot: None,
            switched_off: false,
            touched: false,
            started: None,
            error: None,
            cause: None,
            advice: None,
            started_ms: None,
            ended_ms,
        };
        let rows = [
            row("copies", VmState::Running, Some("copy"), None),
            row("reads back", VmState::Running, Some("verify"), None),
            row("starts", VmState::Running, Some("start"), None),
            row("arrived", VmState::Done, Some("clean up"), Some(1_500)),
            row("tried again", VmState::Failed, Some("copy"), Some(500)),
            row("waits", VmState::Queued, None, None),
            row("tried again by order", VmState::Queued, Some("copy"), None),
            row("arrived before", VmState::Done, Some("clean up"), Some(500)),
            row("stopped", VmState::Stopped, Some("copy"), Some(500)),
        ];
        let disk = |label: &str, done_bytes, left_bytes| ProgressRow {
            vm: "copies there".into(),
            disk: label.into(),
            activity: DiskActivity::Copy,
            is_live: true,
            at_ms: 0,
            size_bytes: 100,
            done_bytes,
            read_bytes: 0,
            left_bytes,
            rate_bytes_per_s: None,
        };
        let ids: Vec<String> = rows.iter().map(|row| row.id.clone()).chain(["unknown".into()]).collect();
        let of_vm = FleetVm {
            disks: vec![FleetDisk { data_bytes: 100, ..FleetDisk::default() }; 3],
            ..FleetVm::default()
        };
        let question = Question { vms: vec![of_vm; ids.len()], start_ms: 1_000, ..Question::default() };
        let disks = vec![vec!["a".to_string(), "b".to_string(), "c".to_string()]; ids.len()];
        let run = Begun { ids, disks, ..begun("p", PathBuf::new(), question) };
        let stopped = ProgressRow { vm: "stopped there".into(), ..disk("b", 30, None) };
        let progress = run.progress(&rows, &[disk("a", 70, None), disk("b", 10, Some(40)), stopped]);
        let copies = Progress::Copies(vec![70, 60, 0]);
        let (waits, ended) = (Progress::Waits, Progress::Ended);
        assert_eq!(
            progress,
            [
                copies,
                Progress::Verifies,
                Progress::Copied,
                ended.clone(),
                waits.clone(),
                waits.clone(),
                waits.clone(),
                ended,
                Progress::Copies(vec![0, 30, 0]),
                waits
            ]
        );
    }
}
