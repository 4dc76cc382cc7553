use super::{claim::CLAIM_GOES_SECONDS, *};
use crate::model::{Pinned, Progress, SourceId, VmId, WorkerWord};

mod locks;
mod outages;
mod undo;
mod waves;

const SOURCE: &str = "0a1b2c3d-0000";
const VM: &str = "5030a0e6-3d1c-0c4c-8b0e-9a6d1f1a2b3c";
const KEEP_SECONDS: i64 = 86_400;

/// A cluster that carries out whatever is decided, with a worker of the test's.
struct World {
    spec: MigrationSpec,
    status: Status,
    facts: Facts,
    job: Option<JobSeen>,
    /// Those of workers before it.
    old_jobs: Vec<JobSeen>,
    claim: Option<String>,
    /// Whether the claim is being removed.
    claim_goes: bool,
    /// Sizes that it was made to ask for, and why it does not grow.
    grown: Vec<String>,
    why_not_grown: Option<String>,
    has_pods: bool,
    made: Vec<(u64, Work)>,
    is_gone: bool,
    claims: u32,
    namespace_ends: bool,
    /// The UID of the Migration that has the VM.
    lock: Option<String>,
    /// What the server says of all locks instead.
    lock_trouble: Option<LockSeen>,
    notes: Vec<Note>,
}

impl World {
    fn new() -> World {
        let spec = MigrationSpec {
            plan_ref: Pinned { name: "p".into(), uid: "p1".into(), generation: 1 },
            source: SourceId { instance_uuid: SOURCE.into() },
            vm: VmId { instance_uuid: VM.into(), id: "vm-1".into(), name: "web01".into() },
            ..MigrationSpec::default()
        };
        let facts = Facts {
            now: Moment(1_000_000),
            me: Named { name: migration_name(SOURCE, VM), uid: "m1".into() },
            generation: 1,
            is_going: false,
            is_held: true,
            is_abandoned: false,
            retry: None,
            plan: PlanStanding::Has,
            provider: ProviderStanding::Same,
            wave: WaveStanding::Open { closes: None },
            jobs: Vec::new(),
            claim: ClaimSeen::NotAsked,
            room: ClaimRoom::Enough,
            lock: LockSeen::NotAsked,
            pods: None,
            namespace_ends: None,
            is_admitted: true,
            may_cut_over: false,
            keep_failed_seconds: KEEP_SECONDS,
            keep_done_seconds: KEEP_SECONDS / 10,
            has_converter: false,
        };
        World {
            spec,
            status: Status::default(),
            facts,
            job: None,
            old_jobs: Vec::new(),
            claim: None,
            claim_goes: false,
            grown: Vec::new(),
            why_not_grown: None,
            has_pods: false,
            made: Vec::new(),
            is_gone: false,
            claims: 0,
            namespace_ends: false,
            lock: None,
            lock_trouble: None,
            notes: Vec::new(),
        }
    }

    /// Decides and carries out until nothing is to be done.
    fn settle(&mut self) {
        for _ in 0..50 {
            self.facts.jobs = self.job.iter().chain(&self.old_jobs).cloned().collect();
            let decision = decide(&self.spec, &self.status, &self.facts);
            let word = self.status.worker.clone();
            let is_same = self.status == decision.status;
            // What is asked for changes what is decided: until then nothing of it is written.
            if !decision.act.is_question() {
                self.status = decision.status;
                self.notes.extend(decision.notes);
            }
            assert_eq!(self.status.worker, word, "that is the worker's");
            match decision.act {
                Act::Nothing if is_same || self.wakes_later(&decision.wake) => {
                    self.forget();
                    self.facts.namespace_ends = None;
                    return;
                }
                Act::Nothing => {}
                Act::Hold => self.facts.is_held = true,
                Act::AskClaim => self.facts.claim = self.claim_seen(),
                Act::AskLock => self.facts.lock = self.lock_seen(),
                Act::AskNamespace => self.facts.namespace_ends = Some(self.namespace_ends),
                Act::AskPods => self.facts.pods = Some(self.has_pods),
                Act::MakeClaim => {
                    self.claims += 1;
                    self.claim = Some(format!("c{}", self.claims));
                    self.facts.claim = self.claim_seen();
                }
                Act::GrowClaim(uid, size) => {
                    assert_eq!(self.claim.as_ref(), Some(&uid));
                    self.grown.push(size.clone());
                    self.facts.room = match &self.why_not_grown {
                        None => ClaimRoom::Enough,
                        Some(why) => ClaimRoom::Stays { size: "1Gi".into(), wanted: size, why: why.clone() },
                    };
                }
                Act::MakeJob => {
                    assert!(!self.has_pods, "never beside another's pod");
                    let job = self.status.job.clone().unwrap();
                    self.made.push((self.status.epoch, job.work));
                    self.old_jobs.extend(self.job.take());
                    self.job = Some(JobSeen {
                        uid: format!("j {}", job.name),
                        name: job.name,
                        work: Some(job.work),
                        ..JobSeen::default()
                    });
                    self.has_pods = true;
                    self.forget();
                }
                Act::RemoveJob(named) => {
                    match self.old_jobs.iter().position(|job| job.uid == named.uid) {
                        Some(place) => drop(self.old_jobs.remove(place)),
                        None => {
                            assert_eq!(self.job.take().unwrap().uid, named.uid);
                            self.has_pods = false;
                        }
                    }
                    self.forget();
                }
                Act::RemoveClaim(uid) => {
                    assert_eq!(self.claim.take(), Some(uid));
                    self.facts.claim = ClaimSeen::Missing;
                }
                Act::RemoveLock(uid) => {
                    assert_eq!(uid, "lock");
                    assert_eq!(self.lock.take(), Some(self.facts.me.uid.clone()), "another's stays");
                    self.facts.lock = LockSeen::Free;
                }
                Act::RemoveMigration | Act::LetGo => {
                    self.is_gone = true;
                    return;
                }
            }
        }
        panic!("it never comes to rest: {:?}", self.status);
    }

    fn wakes_later(&self, wake: &Option<Moment>) -> bool {
        wake.is_some_and(|wake| wake > self.facts.now)
    }

    fn forget(&mut self) {
        (self.facts.claim, self.facts.pods) = (ClaimSeen::NotAsked, None);
        self.facts.lock = LockSeen::NotAsked;
    }

    fn lock_seen(&self) -> LockSeen {
        if let Some(trouble) = &self.lock_trouble {
            return trouble.clone();
        }
        match self.lock.as_deref() {
            None => LockSeen::Free,
            Some(uid) if uid == self.facts.me.uid => LockSeen::Mine("lock".into()),
            Some(_) => LockSeen::Others("moved elsewhere: other/vm".into()),
        }
    }

    fn claim_seen(&self) -> ClaimSeen {
        if self.claim_goes {
            return ClaimSeen::Going;
        }
        self.claim.clone().map_or(ClaimSeen::Missing, |uid| ClaimSeen::There(uid, true))
    }

    fn works(&mut self) {
        self.status.worker = Some(WorkerWord { epoch: self.status.epoch, ..WorkerWord::default() });
        self.lock = Some(self.facts.me.uid.clone());
        self.status.begun = true;
        self.settle();
    }

    /// The worker ends with a word.
    fn says(&mut self, exit: u8, reason: &str) {
        self.status.worker = Some(WorkerWord {
            epoch: self.status.epoch,
            exit: Some(exit),
            reason: Some(reason.into()),
            message: Some("words".into()),
            ..WorkerWord::default()
        });
        self.dies(false);
    }

    /// The worker's pod ends.
    fn dies(&mut self, by_cluster: bool) {
        let has_failed = self.status.word().and_then(|word| word.exit) != Some(0);
        let job = self.job.as_mut().unwrap();
        (job.has_ended, job.was_disrupted) = (true, by_cluster);
        job.failed_at = has_failed.then_some(self.facts.now);
        job.done_at = (!has_failed).then_some(self.facts.now);
        self.has_pods = false;
        self.settle();
    }

    fn later(&mut self, seconds: i64) {
        self.facts.now = self.facts.now.plus(seconds);
        self.settle();
    }

    fn reason(&self, kind: &str) -> String {
        self.status.condition(kind).map(|it| it.reason.clone()).unwrap_or_default()
    }

    /// Its last try fails, and the next one is due.
    fn fails(&mut self, exit: u8, reason: &str) {
        self.says(exit, reason);
        self.later(PAUSE_SECONDS_MAX);
    }
}

#[test]
fn a_vm_moves_by_one_worker() {
    let mut world = World::new();
    world.settle();
    assert_eq!(world.made, [(1, Work::Move)]);
    assert_eq!(world.status.phase, Phase::Running);
    world.works();
    world.says(0, "Success");
    assert_eq!(world.status.phase, Phase::Done);
    assert_eq!(
        (world.reason("Arrived").as_str(), world.reason("CleanedUp").as_str()),
        ("Arrived", "CleanedUp")
    );
    assert!(world.job.is_some(), "its log can be read");
    assert_eq!(
        (world.claim.clone(), world.status.claim.clone()),
        (None, None),
        "nothing needs its state any more"
    );
    world.later(100_000);
    assert_eq!(world.made.len(), 1);
}

#[test]
fn nothing_begins_before_it_may() {
    let mut world = World::new();
    world.facts.plan = PlanStanding::Unknown("edited".into());
    world.settle();
    assert_eq!((world.reason("Arrived").as_str(), world.claims), ("PlanNotResolved", 0));
    world.facts.plan = PlanStanding::Has;
    world.facts.provider = ProviderStanding::Other("another".into());
    world.settle();
    assert_eq!(world.reason("Arrived"), "ProviderChanged");
    world.facts.provider = ProviderStanding::Same;
    world.facts.is_admitted = false;
    world.settle();
    assert_eq!((world.status.phase, world.claims), (Phase::Queued, 0));
    world.facts.plan = PlanStanding::LeftOut;
    world.settle();
    assert!(world.is_gone && world.made.is_empty(), "a VM that left its plan never starts");
}

#[test]
fn what_has_begun_goes_on_without_its_plan() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.dies(false);
    world.facts.plan = PlanStanding::LeftOut;
    world.later(PAUSE_SECONDS_MIN);
    assert_eq!(world.made, [(1, Work::Move), (2, Work::Move)]);
}

#[test]
fn a_second_worker_waits_for_the_end_of_the_first() {
    let mut world = World::new();
    world.settle();
    world.works();
    // Somebody removed its Job, and the pod still runs.
    world.job = None;
    world.settle();
    world.later(1000);
    assert_eq!(world.made.len(), 1);
    world.has_pods = false;
    world.later(LINGER_SECONDS);
    assert_eq!(world.reason("Arrived"), "WorkerDied");
    world.later(PAUSE_SECONDS_MIN);
    assert_eq!(world.made.len(), 2);
}

#[test]
fn the_last_logs_of_failures_are_kept_for_a_time() {
    let epochs = |world: &World| -> Vec<u64> {
        let all = world.job.iter().chain(&world.old_jobs);
        let mut epochs: Vec<u64> =
            all.map(|job| epoch_of(&world.facts.me.name, &job.name).unwrap()).collect();
        epochs.sort();
        epochs
    };
    let mut world = World::new();
    world.settle();
    world.works();
    world.says(6, "Source");
    assert_eq!((world.status.phase, epochs(&world)), (Phase::Retrying, vec![1]));
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!(
        (world.status.phase, epochs(&world)),
        (Phase::Running, vec![1, 2]),
        "also beside the next one"
    );
    for _ in 0..3 {
        world.works();
        world.fails(6, "Source");
    }
    assert_eq!(epochs(&world), [2, 3, 4, 5], "so many, and the one that works");
    world.works();
    world.says(0, "Success");
    assert_eq!((world.status.phase, epochs(&world)), (Phase::Done, vec![2, 3, 4, 5]));
    world.later(KEEP_SECONDS - 2 * PAUSE_SECONDS_MAX);
    assert_eq!(
        epochs(&world),
        [4],
        "those that failed a day ago are gone, and the one with which it arrived"
    );
    world.later(KEEP_SECONDS);
    assert!(epochs(&world).is_empty());
    // With its Migration all go.
    let mut world = World::new();
    world.settle();
    world.fails(3, "Plan");
    world.facts.is_going = true;
    world.settle();
    assert!(world.is_gone && epochs(&world).is_empty());
    // One that does not go holds up nobody.
    let mut world = World::new();
    world.settle();
    world.works();
    world.fails(6, "Source");
    world.works();
    world.old_jobs.iter_mut().for_each(|job| job.is_going = true);
    world.says(0, "Success");
    assert_eq!(world.status.phase, Phase::Done);

    // An undo's, too; nothing is left of what is undone.
    let mut world = World::new();
    world.settle();
    world.works();
    world.spec.cancel = true;
    world.settle();
    world.works();
    world.says(6, "LeftBehind");
    assert_eq!((world.status.phase, epochs(&world)), (Phase::Cancelling, vec![2]));
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!(epochs(&world), [2, 3]);
    world.works();
    world.says(0, "Undone");
    assert_eq!((world.status.phase, epochs(&world).len()), (Phase::Cancelled, 0));
}

#[test]
fn the_job_of_what_arrived_goes_after_a_time_so_that_its_claim_is_free() {
    let arrived = |exit: u8| {
        let mut world = World::new();
        world.settle();
        world.works();
        world.says(exit, "Success");
        world
    };
    let mut world = arrived(0);
    assert_eq!((world.status.phase, world.claim.is_none()), (Phase::Done, true));
    world.later(KEEP_SECONDS / 10 - 1);
    assert!(world.job.is_some(), "its log can be read");
    world.later(1);
    assert!(world.job.is_none() && world.status.phase == Phase::Done && world.claims == 1);
    // What was not cleaned up needs its state, and its log tells why.
    let mut world = arrived(13);
    world.later(PAUSE_SECONDS_MAX);
    for _ in 1..FAILURES_MAX {
        world.works();
        world.fails(13, "NotCleanedUp");
    }
    assert_eq!((world.status.phase, world.claim.is_some()), (Phase::Done, true));
    world.later(KEEP_SECONDS * 2);
    assert!(world.job.is_some() && world.claim.is_some());
}

#[test]
fn a_claim_that_is_being_removed_is_waited_for() {
    let mut world = World::new();
    world.claim_goes = true;
    world.settle();
    assert_eq!(
        (world.status.phase, world.reason("Arrived").as_str()),
        (Phase::Pending, "StateClaimTerminating")
    );
    assert_eq!(world.status.next_try, Some(world.facts.now.plus(CLAIM_GOES_SECONDS)));
    world.later(CLAIM_GOES_SECONDS);
    assert_eq!((world.claims, world.made.len()), (0, 0));
    world.claim_goes = false;
    world.later(CLAIM_GOES_SECONDS);
    assert_eq!((world.claims, world.made.len()), (1, 1));
    // With the state of what has begun it is as good as gone.
    world.works();
    world.dies(false);
    world.claim_goes = true;
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!((world.status.phase, world.reason("StateLost").as_str()), (Phase::Failed, "StateLost"));
}

#[test]
fn failures_count_in_a_row_and_evictions_do_not() {
    let mut world = World::new();
    world.settle();
    for _ in 0..20 {
        world.works();
        world.dies(true);
        world.later(PAUSE_SECONDS_MIN);
    }
    assert_eq!((world.status.failures, world.made.len()), (0, 21));
    for round in 1..=20 {
        world.works();
        let progress = Progress { done_bytes: round * 100, ..Progress::default() };
        world.status.progress = Some(progress);
        world.fails(6, "Source");
    }
    assert_eq!((world.status.failures, world.status.phase), (1, Phase::Running));
    for _ in 1..FAILURES_MAX {
        world.works();
        world.fails(6, "Source");
    }
    assert_eq!(world.status.phase, Phase::Failed);
    let made = world.made.len();
    world.later(100_000);
    assert_eq!(world.made.len(), made);
    world.facts.retry = Some("now".into());
    world.settle();
    assert_eq!((world.made.len(), world.status.failures), (made + 1, 0));
}

#[test]
fn what_is_mended_elsewhere_is_tried_for_ever() {
    let mut world = World::new();
    world.settle();
    for _ in 0..100 {
        world.works();
        world.fails(3, "NameTaken");
    }
    assert_eq!((world.status.phase, world.made.len()), (Phase::Running, 101));
    world.works();
    world.fails(3, reason::UNPARSABLE);
    assert_eq!(world.status.phase, Phase::Failed, "that is the same the next time");
}

#[test]
fn a_worker_that_touched_nothing_leaves_the_plan_its_way() {
    let mut world = World::new();
    world.settle();
    world.says(3, "Plan");
    world.spec.cancel = true;
    world.settle();
    assert_eq!((world.reason("Cancelled").as_str(), world.made.len()), ("NothingBegun", 1));
    let mut world = World::new();
    world.settle();
    world.says(3, "Plan");
    world.facts.plan = PlanStanding::LeftOut;
    world.later(PAUSE_SECONDS_MAX);
    assert!(world.is_gone && world.made.len() == 1);
}

#[test]
fn a_worker_that_has_touched_nothing_is_stopped_when_its_plan_has_the_vm_no_more() {
    for standing in [PlanStanding::LeftOut, PlanStanding::Unknown("edited".into())] {
        let mut world = World::new();
        world.settle();
        world.facts.plan = standing.clone();
        world.settle();
        assert!(world.job.is_none() && world.status.failures == 0);
        assert_eq!(world.is_gone, standing == PlanStanding::LeftOut);
    }
    let mut world = World::new();
    world.settle();
    world.works();
    world.facts.plan = PlanStanding::LeftOut;
    world.settle();
    assert!(world.job.is_some(), "what has begun goes on");
}

#[test]
fn failures_of_elsewhere_end_nothing_and_bytes_that_fall_are_no_progress() {
    let mut world = World::new();
    world.settle();
    for _ in 0..12 {
        world.works();
        world.fails(5, "Connection");
    }
    world.works();
    world.fails(6, "Source");
    assert_eq!((world.status.phase, world.status.failures), (Phase::Running, 1));
    let mut rounds = 1;
    while world.status.phase != Phase::Failed {
        world.works();
        let done_bytes = if rounds % 2 == 0 { 8 } else { 50 };
        world.status.progress = Some(Progress { done_bytes, ..Progress::default() });
        world.fails(6, "Source");
        rounds += 1;
        assert!(rounds < 30, "one that always dies at the same place is not tried for ever");
    }
}

#[test]
fn pauses_grow() {
    let mut world = World::new();
    world.settle();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        world.works();
        world.says(5, "Connection");
        pauses.push(world.status.next_try.unwrap().0 - world.facts.now.0);
        world.later(pauses[pauses.len() - 1]);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600]);
}

#[test]
fn a_worker_that_never_starts_is_given_up() {
    let mut world = World::new();
    world.settle();
    world.later(START_SECONDS - 1);
    assert_eq!(world.made.len(), 1);
    world.later(1);
    assert_eq!((world.reason("Arrived").as_str(), world.status.failures), ("WorkerDidNotStart", 0));
    world.later(PAUSE_SECONDS_MIN);
    assert_eq!(world.made.len(), 2);
}

#[test]
fn another_claim_or_none_is_lost_state() {
    for there in [None, Some("another".to_string())] {
        let mut world = World::new();
        world.settle();
        world.works();
        world.dies(false);
        world.claim = there;
        world.later(PAUSE_SECONDS_MIN);
        assert_eq!((world.reason("StateLost").as_str(), world.made.len()), ("StateLost", 1));
        world.facts.retry = Some("x".into());
        world.spec.cancel = true;
        world.later(1000);
        assert_eq!(
            (world.status.phase, world.made.len()),
            (Phase::Failed, 1),
            "nothing is undone by guesses"
        );
    }
    let mut world = World::new();
    world.settle();
    world.says(14, reason::STATE_LOST);
    assert_eq!((world.status.phase, world.reason("StateLost").as_str()), (Phase::Failed, "StateLost"));
}

#[test]
fn arrived_and_not_cleaned_up_is_said_as_it_is() {
    let mut world = World::new();
    world.settle();
    for _ in 0..FAILURES_MAX {
        world.works();
        world.fails(13, "NotCleanedUp");
    }
    assert_eq!(world.status.phase, Phase::Done);
    assert_eq!(world.status.condition("Arrived").unwrap().status, "True");
    assert_eq!(world.reason("CleanedUp"), "SourceNotCleanedUp");
    assert!(world.claim.is_some(), "what is left at the source is told by its state");
    let made = world.made.len();
    world.facts.retry = Some("mended".into());
    world.settle();
    assert_eq!(world.made.len(), made + 1, "its clean-up is tried again");
    world.works();
    world.says(0, "Success");
    assert_eq!((world.status.phase, world.reason("CleanedUp").as_str()), (Phase::Done, "CleanedUp"));
    world.facts.retry = Some("more".into());
    world.later(1);
    assert_eq!(world.made.len(), made + 1, "nothing is left to be done");
}

#[test]
fn an_operator_that_dies_between_status_and_act_loses_nothing() {
    let mut world = World::new();
    world.settle();
    // The Job was decided on and not made, or made and not seen.
    world.job = None;
    world.has_pods = false;
    world.made.clear();
    world.status.job.as_mut().unwrap().uid = None;
    world.settle();
    assert_eq!(world.made, [(1, Work::Move)], "in the same epoch");
    world.works();
    // A Job of an epoch that is over is removed, before anything else is made.
    let stray = JobSeen { name: "stray".into(), uid: "s".into(), ..JobSeen::default() };
    world.facts.jobs = vec![stray];
    let decision = decide(&world.spec, &world.status, &world.facts);
    assert_eq!(decision.act, Act::RemoveJob(Named { name: "stray".into(), uid: "s".into() }));
}

#[test]
fn what_has_begun_goes_to_the_provider_as_it_is_now() {
    for is_cancelled in [false, true] {
        let mut world = World::new();
        world.settle();
        world.works();
        world.facts.provider = ProviderStanding::Other("edited, or made again".into());
        world.dies(false);
        world.spec.cancel = is_cancelled;
        world.later(PAUSE_SECONDS_MIN);
        let work = if is_cancelled { Work::Undo } else { Work::Move };
        assert_eq!(world.made.last(), Some(&(2, work)));
    }
}

#[test]
fn an_edit_mends_what_failed_before_it_began() {
    let mut world = World::new();
    world.settle();
    world.says(3, reason::FORBIDDEN);
    world.later(100_000);
    assert_eq!((world.status.phase, world.made.len()), (Phase::Failed, 1));
    world.facts.generation = 2;
    world.settle();
    assert_eq!((world.status.phase, world.made.len()), (Phase::Running, 2));
    world.works();
    world.says(3, reason::FORBIDDEN);
    world.facts.generation = 3;
    world.later(100_000);
    assert_eq!(
        (world.status.phase, world.made.len()),
        (Phase::Failed, 2),
        "its plan does not change any more"
    );
}

#[test]
fn one_that_failed_before_it_began_goes_with_its_place_in_the_plan() {
    let mut world = World::new();
    world.settle();
    world.says(3, reason::FORBIDDEN);
    world.facts.plan = PlanStanding::Unknown("edited".into());
    world.later(1);
    assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Failed, reason::FORBIDDEN));
    world.facts.plan = PlanStanding::LeftOut;
    world.later(1);
    assert!(world.is_gone);
}

#[test]
fn what_has_begun_and_has_a_wrong_plan_says_what_to_do() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.says(3, "Plan");
    let message = world.status.condition("Arrived").unwrap().message.clone();
    assert!(message.contains("words") && message.contains("cancel and remove"), "{message}");
}

#[test]
fn an_epoch_is_over_when_its_job_was_looked_at() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.dies(false);
    assert_eq!((world.status.epoch, world.status.job.is_none()), (2, true), "a late pod of it is refused");
    world.later(PAUSE_SECONDS_MIN);
    world.works();
    world.spec.cancel = true;
    world.settle();
    assert_eq!(world.made, [(1, Work::Move), (2, Work::Move), (3, Work::Undo)]);
    // Decided on, not made, and not wanted any more: whoever makes it late makes it in vain.
    let mut world = World::new();
    world.settle();
    (world.job, world.has_pods) = (None, false);
    world.status.job.as_mut().unwrap().uid = None;
    world.spec.cancel = true;
    world.settle();
    assert_eq!((world.status.epoch, world.status.phase), (2, Phase::Cancelled));
}

#[test]
fn a_job_that_was_made_again_in_an_epoch_is_removed() {
    let mut world = World::new();
    world.settle();
    world.works();
    let again = JobSeen { uid: "another".into(), ..world.job.clone().unwrap() };
    world.facts.jobs = vec![again.clone()];
    let decision = decide(&world.spec, &world.status, &world.facts);
    assert_eq!(decision.act, Act::RemoveJob(Named { name: again.name, uid: again.uid }));
}

#[test]
fn a_stray_job_keeps_the_slot_until_its_pod_is_gone() {
    for (is_going, has_job) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut world = World::new();
        world.settle();
        world.works();
        if !has_job {
            world.dies(false);
        }
        let stray = JobSeen { name: "stray".into(), uid: "s".into(), is_going, ..JobSeen::default() };
        world.facts.jobs = world.job.iter().cloned().chain([stray]).collect();
        let decision = decide(&world.spec, &world.status, &world.facts);
        assert!(decision.wants_slot.is_some(), "{is_going} {has_job}");
    }
}

#[test]
fn a_name_that_is_not_the_vms_is_refused() {
    let mut world = World::new();
    world.facts.me.name = "mine".into();
    world.settle();
    assert_eq!((world.status.phase, world.made.len()), (Phase::Failed, 0));
    world.facts.is_going = true;
    world.settle();
    assert!(world.is_gone);
}

#[test]
fn a_guest_that_has_to_be_converted_waits_for_a_converter_untouched() {
    let mut world = World::new();
    world.spec.conversion = Conversion::Needed;
    world.settle();
    assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Pending, "ConverterMissing"));
    assert_eq!((world.claims, world.made.len(), world.status.epoch), (0, 0, 0));
    let message = world.status.condition("Arrived").unwrap().message.clone();
    assert!(message.contains("--converter-image"), "{message}");
    world.facts.has_converter = true;
    world.settle();
    assert_eq!(world.made, [(1, Work::Move)]);
    // Begun, it goes on: its worker says what it lacks, and switches the guest on again.
    world.works();
    world.facts.has_converter = false;
    world.fails(7, "Target");
    assert_eq!(world.made.len(), 2);
    // What is only found out in the copy is tried.
    let mut world = World::new();
    world.spec.conversion = Conversion::Maybe;
    world.settle();
    assert_eq!(world.made.len(), 1);
}

#[test]
fn one_that_waits_to_be_asked_for_its_cutover_says_so() {
    let mut world = World::new();
    world.settle();
    world.works();
    assert_eq!(world.reason("Arrived"), "Moving");
    let says = |world: &mut World, word: Option<&str>| {
        world.status.worker.as_mut().unwrap().reason = word.map(str::to_string);
        world.settle();
        world.reason("Arrived")
    };
    assert_eq!(says(&mut world, Some(reason::WAITS_FOR_CUTOVER)), "WaitsForCutover");
    assert!(world.status.condition("Arrived").unwrap().message.contains(crate::CUTOVER));
    assert_eq!(says(&mut world, None), "Moving");
}

#[test]
fn a_state_claim_that_was_made_too_small_grows_before_the_next_worker_or_is_told() {
    let small = || ClaimRoom::Small { size: "1Gi".into(), wanted: "10Gi".into() };
    for why in [None, Some("the class does not support resize".to_string())] {
        let mut world = World::new();
        world.claim = Some("c0".into());
        world.status.claim = Some(Named { name: "x-state".into(), uid: "c0".into() });
        (world.facts.room, world.why_not_grown) = (small(), why.clone());
        world.settle();
        // Either way a worker begins, with what there is.
        assert_eq!((world.grown.as_slice(), world.made.len()), (&["10Gi".to_string()][..], 1));
        let told = world.status.condition("StateSmall").map(|it| it.message.clone());
        assert_eq!(told.is_some(), why.is_some());
        assert!(told.is_none_or(|told| told.contains("has 1Gi") && told.contains("allowVolumeExpansion")));
    }
}
