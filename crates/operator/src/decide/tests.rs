use super::*;
use crate::model::{Pinned, SourceId, VmId, WorkerWord};

mod claims;
mod failures;
mod jobs;
mod locks;
mod outages;
mod plans;
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
