//! `drover operator worker`: moves or undoes the VM of one Migration, and says in its status how that goes.
//!
//! All that it writes there is held against the Migration's UID, the epoch and its own pod: a worker whose time is over changes
//! nothing, and it stops as soon as it sees that, or when it cannot see it for a while. It asks before each phase and before each step
//! of an undo, also of the one with which a move ends that fails: without an answer source and target are left as they are.

mod end;
mod held;
mod turn;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_agent::limits::Sharers;
use drover_engine::{Board, Cause, Clock, PlanState, ProviderError, Store, SystemClock};
use drover_forecast::Measured;
use drover_foresight::measured;
use drover_kubevirt::{Access, Change, Cluster, KubeError, KubeErrorKind};
use drover_landing::PlanPolicy;
use drover_mover::StopSignal;
use drover_operator::decide::reason;
use drover_operator::fence::{Fence, Taken, asked_cutover, takes_provider, unwanted};
use drover_operator::model::{
    MigrationSpec, Named, Pinned, Place, ProviderSpec, Work, WorkerWord, plan_text,
};
use drover_operator::objects::engine_plan;
use drover_plan::{Others, PlannedVm, Problem};
use drover_types::{Opening, Wave};
use serde_json::{Value, json};

use self::end::{End, arrived, datastore_of, end_of, is_of_source, word};
use self::held::{Held, Look, Steps};
use self::turn::Turn;
use super::resolve::told;
use super::{Kind, Meta, failure, namespace, path_of};
use crate::cli::OperatorWorkerArgs;
use crate::exit::{Exit, Failure};
use crate::files::read_text;
use crate::own::OwnedStore;
use crate::plan_file::{PlanFile, parse_quietly};
use crate::run::{Meant, Prepared, Setting, Words, at_source, give_up_by_leave};
use crate::signals::stop_on_signals;

/// How often it looks whether it is still meant, and tells how far it is.
const LOOK: Duration = Duration::from_secs(2);
/// Without an answer for so long it stops: another may have been made in its place.
const UNSEEN_MAX: Duration = Duration::from_secs(30);
/// How often it looks how many workers share the plan's `rate_limit`.
const SHARERS_EVERY: Duration = Duration::from_secs(10);
/// How long one answer is waited for: the two above are to be kept on a line that swallows all.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// How long the first and the last word are tried to be said.
const WORD_MAX: Duration = Duration::from_secs(40);
/// How long an earlier worker is waited for that still has the state. One that is cut off gives it up within 96 s.
const EARLIER_MAX: Duration = Duration::from_secs(600);
const PASSWORD_BYTES_MAX: u64 = 4096;

/// What its move showed, for the status.
#[derive(Default)]
struct Shown {
    /// Root hashes of disks.
    roots: Vec<Value>,
    /// Once it has arrived.
    measured: Option<Measured>,
}

/// The Migration that it is for.
struct Post {
    cluster: Arc<Cluster>,
    path: String,
    fence: Fence,
}

impl Post {
    fn read(&self) -> Result<Value, KubeError> {
        Ok(self.cluster.get(&self.path)?.unwrap_or_default())
    }

    /// Makes the epoch this pod's, before anything else is done; gives the Migration as it is then.
    fn take(&self) -> Result<Value, Failure> {
        let until = Instant::now() + WORD_MAX;
        loop {
            let tried = self.read().and_then(|found| match self.fence.take(&found) {
                Taken::Mine => Ok(Ok(found)),
                Taken::Refused(why) => Ok(Err(Failure::new(Exit::Interrupted, why))),
                Taken::By(operations) => self.change(&operations).map(Ok),
            });
            match tried {
                Ok(taken) => return taken,
                // Changed since it was read, or nobody answered in time.
                Err(error) if may_pass(error.kind, true) && Instant::now() < until => {
                    std::thread::sleep(LOOK / 4);
                }
                Err(error) => return Err(failure(error)),
            }
        }
    }

    /// Looks how many workers the plan has. Without an answer, and without the plan, it stays as it was.
    fn count_sharers(&self, plan: &str, uid: &str, sharers: &Sharers) {
        // One that was made anew has other workers.
        let found = self.cluster.get(plan).ok().flatten().filter(|found| found["metadata"]["uid"] == uid);
        if let Some(count) = found.and_then(|plan| plan["status"]["running"].as_u64()) {
            sharers.set(count);
        }
    }

    /// Whether it is still meant.
    fn is_mine(&self) -> Result<bool, KubeError> {
        self.read().map(|found| self.fence.holds(&found))
    }

    /// Passes on a cutover that is asked for, if one is.
    fn heed_cutover(&self, found: &Value, state: &Path, plan: &str) -> Result<(), Failure> {
        let Some(word) = asked_cutover(found) else { return Ok(()) };
        drover_engine::ask_cutover(&Store::open(state)?, plan, &[], None)?;
        self.write(&[("cutover", json!(word))]).map_err(failure)
    }

    fn change(&self, operations: &Value) -> Result<Value, KubeError> {
        self.cluster.change(&format!("{}/status", self.path), Change::Operations, operations)
    }

    /// Writes fields of the status; refused where another is meant.
    fn write(&self, fields: &[(&str, Value)]) -> Result<(), KubeError> {
        self.change(&self.fence.write(fields)).map(drop)
    }

    /// Says how it ended. Unsaid, the operator finds the Job at its end, and makes another.
    fn say(&self, end: &End, shown: &Shown, progress: &Value) {
        let word = WorkerWord {
            epoch: self.fence.epoch,
            pod: Some(self.fence.pod.clone()),
            exit: Some(end.exit as u8),
            reason: Some(end.reason.clone()),
            message: Some(end.message.chars().take(2000).collect()),
            outage: end.outage,
            left_off: end.left_off,
            host_failed: end.host_failed,
            asks_cutover: false,
            datastore_failed: end.datastore_failed.clone(),
        };
        let mut fields = vec![("worker", json!(word))];
        if !shown.roots.is_empty() {
            fields.push(("roots", json!(shown.roots)));
        }
        if let Some(measured) = &shown.measured {
            fields.push(("measured", json!(measured)));
        }
        if !progress.is_null() {
            fields.push(("progress", progress.clone()));
        }
        let until = Instant::now() + WORD_MAX;
        loop {
            match self.write(&fields) {
                Ok(()) => return,
                Err(error) => {
                    crate::out::say(format_args!("the end is not told: {error}"));
                    if !may_pass(error.kind, false) || Instant::now() >= until {
                        return;
                    }
                    std::thread::sleep(LOOK);
                }
            }
        }
    }
}

/// Whether a request is worth another try; a test that failed, where all is read again before.
fn may_pass(kind: KubeErrorKind, reads_again: bool) -> bool {
    match kind {
        KubeErrorKind::Unreachable | KubeErrorKind::Server | KubeErrorKind::Conflict => true,
        KubeErrorKind::Refused => reads_again,
        _ => false,
    }
}

/// What it has to work with.
struct Desk<'a> {
    args: &'a OperatorWorkerArgs,
    post: Arc<Post>,
    namespace: String,
    spec: MigrationSpec,
    /// Of that spec.
    generation: i64,
    /// Whether an earlier worker touched source or target.
    has_begun: bool,
    provider: ProviderSpec,
    held: Arc<Held>,
    turn: Arc<Turn>,
    stop: StopSignal,
    board: Board,
    /// Workers of the plan's VMs, which share its `rate_limit`.
    sharers: Sharers,
}

/// Moves or undoes a VM.
pub fn run(args: &OperatorWorkerArgs) -> Result<Exit, Failure> {
    if args.json {
        crate::out::say_in_json();
    }
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let namespace = namespace(None)?;
    let cluster = Cluster::connect(&Access::default()).map_err(failure)?;
    cluster.wait_at_most(ANSWER_MAX);
    let path = path_of(Kind::Migration, &namespace, &args.migration);
    let fence = Fence { uid: args.uid.clone(), epoch: args.epoch, pod: args.pod.clone() };
    let post = Arc::new(Post { cluster, path, fence });
    let found = post.take()?;
    let has_begun = found["status"]["begun"] == true;
    let ready = check_mark(args).and_then(|()| spec_of(args, &found)).and_then(|spec| {
        let provider = provider_of(&post, &namespace, &spec.provider, has_begun)?;
        Ok((spec, provider))
    });
    let (spec, provider) = match ready {
        Ok(ready) => ready,
        Err(end) => {
            post.say(&end, &Shown::default(), &Value::Null);
            return Ok(end.exit);
        }
    };
    let (board, generation) = (Board::default(), Meta::of(&found).generation);
    let me = Named { name: args.migration.clone(), uid: args.uid.clone() };
    let held = Arc::new(Held::new(post.cluster.clone(), &spec, &me, &namespace));
    let turn = Arc::new(Turn::new(spec.size.warm.is_some() && work_of(args) == Work::Move));
    let desk = Desk {
        args,
        post: post.clone(),
        namespace,
        spec,
        generation,
        has_begun,
        provider,
        held,
        turn,
        stop: stop.clone(),
        board,
        sharers: Sharers::default(),
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let told = found["status"]["progress"]["doneBytes"].as_u64().unwrap_or_default();
    let watcher = watch(&desk, told, is_over.clone())?;
    follow_sharers(&desk)?;
    let mut shown = Shown::default();
    let end = match desk.work() {
        Work::Move => desk.go(&mut shown),
        Work::Undo => desk.undo(),
        Work::SwitchOn => desk.switch_on(),
    };
    let end = desk.held.end(end.unwrap_or_else(|end| end));
    is_over.store(true, Ordering::SeqCst);
    // A panic there was printed.
    let _ = watcher.join();
    crate::out::say(format_args!("{}: {}", end.reason, end.message));
    post.say(&end, &shown, &desk.progress(end.exit == Exit::Success && desk.work() == Work::Move));
    Ok(end.exit)
}

/// What is to be done, if it still is.
fn spec_of(args: &OperatorWorkerArgs, found: &Value) -> Result<MigrationSpec, End> {
    if let Some(why) = unwanted(work_of(args), found) {
        return Err(End::new(Exit::Interrupted, "Changed", why));
    }
    serde_json::from_value(found["spec"].clone())
        .map_err(|error| End::new(Exit::Plan, reason::UNPARSABLE, format!("the Migration: {error}")))
}

fn work_of(args: &OperatorWorkerArgs) -> Work {
    match (args.undo, args.switch_on) {
        (true, _) => Work::Undo,
        (false, true) => Work::SwitchOn,
        (false, false) => Work::Move,
    }
}

/// What says whose state is on the claim.
fn mark(args: &OperatorWorkerArgs) -> PathBuf {
    args.state.with_extension("migration")
}

/// Refuses a claim that has another's state, or none where it should.
fn check_mark(args: &OperatorWorkerArgs) -> Result<(), End> {
    let place = mark(args);
    let lost = |why: String| End::new(Exit::State, reason::STATE_LOST, why);
    match std::fs::read_to_string(&place) {
        Ok(uid) if uid.trim() == args.uid => Ok(()),
        Ok(uid) => Err(lost(format!("the claim has the state of Migration {}", uid.trim()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !args.begun => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(lost("an earlier worker wrote to the claim, and it is empty now".into()))
        }
        Err(error) => Err(End::new(Exit::State, "State", format!("{}: {error}", place.display()))),
    }
}

/// Marks the claim as this Migration's; it is durable before anything is touched.
fn put_mark(args: &OperatorWorkerArgs) -> Result<(), End> {
    let place = mark(args);
    write_mark(&place, &args.uid)
        .map_err(|error| End::new(Exit::State, "State", format!("{}: {error}", place.display())))
}

/// One that is there is never cut short: a worker that is ended meanwhile would leave another's mark, and the state would count as lost.
fn write_mark(place: &Path, uid: &str) -> std::io::Result<()> {
    let folder = File::open(place.parent().unwrap_or(Path::new("/")))?;
    // One of an earlier worker may not be durable yet.
    if std::fs::read_to_string(place).is_ok_and(|known| known == uid) {
        return folder.sync_all();
    }
    let fresh = place.with_extension("migration-new");
    let mut file = File::create(&fresh)?;
    file.write_all(uid.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, place)?;
    folder.sync_all()
}

fn provider_of(post: &Post, namespace: &str, wanted: &Pinned, has_begun: bool) -> Result<ProviderSpec, End> {
    let path = path_of(Kind::Provider, namespace, &wanted.name);
    let found = post.cluster.get(&path).map_err(|error| End::from(failure(error)))?.unwrap_or_default();
    if !takes_provider(wanted, has_begun, &found) {
        let what = format!("Provider {} is not what the plan was laid over", wanted.name);
        return Err(End::new(Exit::Connection, "ProviderChanged", what));
    }
    serde_json::from_value(found["spec"].clone())
        .map_err(|error| End::new(Exit::Plan, reason::UNPARSABLE, format!("the Provider: {error}")))
}

/// Looks after epoch and lock, and tells how far the copy is; so far it was told.
fn watch(
    desk: &Desk<'_>,
    mut told: u64,
    is_over: Arc<AtomicBool>,
) -> Result<std::thread::JoinHandle<()>, Failure> {
    let (post, stop, board) = (desk.post.clone(), desk.stop.clone(), desk.board.clone());
    let (held, turn, mut look) = (desk.held.clone(), desk.turn.clone(), Look::new());
    let (moves, state, plan) = (desk.work() == Work::Move, desk.args.state.clone(), engine_plan(&desk.me()));
    let mut refused = String::new();
    let total = total_bytes(&desk.spec);
    let mut seen = Instant::now();
    let thread = std::thread::Builder::new().name("watch".into());
    let run = move || {
        while !is_over.load(Ordering::SeqCst) {
            let asked = Instant::now();
            let answer = post.read();
            let is_mine = answer.is_ok();
            match answer {
                Ok(found) if post.fence.holds(&found) => {
                    seen = asked;
                    turn.look(&post.fence, &found, |operations| post.change(operations));
                    // It is heeded once the VM is on its way: until then it is refused, and asked for again.
                    if moves && let Err(failure) = post.heed_cutover(&found, &state, &plan) {
                        if refused != failure.message {
                            crate::out::say(format_args!(
                                "the cutover is not asked for yet: {}",
                                failure.message
                            ));
                        }
                        refused = failure.message;
                    }
                }
                Ok(_) => {
                    crate::out::say("the Migration has another worker, or is gone: stopping");
                    stop.stop();
                    return;
                }
                Err(error) if seen.elapsed() >= UNSEEN_MAX => {
                    crate::out::say(format_args!("{error}: stopping, since another worker may be there"));
                    stop.stop();
                    return;
                }
                Err(_) => {}
            }
            if let Some(why) = look.why_to_stop(&held) {
                crate::out::say(format_args!("{why}: stopping"));
                stop.stop();
                return;
            }
            let done = done_bytes(&board, total);
            // It is only ever told when it is more, and unsaid it is told the next time.
            if is_mine && done > told && post.write(&[("progress", progress_of(total, done))]).is_ok() {
                told = done;
            }
            // What is new from now on is told at once; what could not be told is tried again like all else.
            let (until, had_news) = (Instant::now() + LOOK, turn.has_news());
            let is_due = || Instant::now() >= until || turn.has_news() && !had_news;
            while !is_due() && !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    };
    thread.spawn(run).map_err(|error| Failure::new(Exit::Internal, format!("no thread: {error}")))
}

/// Follows how many workers share the plan's `rate_limit`, until the process ends.
fn follow_sharers(desk: &Desk<'_>) -> Result<(), Failure> {
    if desk.work() != Work::Move || desk.spec.plan["target"]["rate_limit"].is_null() {
        return Ok(());
    }
    let (post, sharers, plan) = (desk.post.clone(), desk.sharers.clone(), desk.spec.plan_ref.clone());
    let path = path_of(Kind::Plan, &desk.namespace, &plan.name);
    post.count_sharers(&path, &plan.uid, &sharers);
    let run = move || {
        loop {
            std::thread::sleep(SHARERS_EVERY);
            post.count_sharers(&path, &plan.uid, &sharers);
        }
    };
    // A thread of its own: whoever looks whether this worker is still meant waits for nothing else.
    let thread = std::thread::Builder::new().name("sharers".into()).spawn(run);
    thread.map(drop).map_err(|error| Failure::new(Exit::Internal, format!("no thread: {error}")))
}

fn total_bytes(spec: &MigrationSpec) -> u64 {
    spec.size.disks.iter().map(|disk| disk.bytes).sum()
}

/// Bytes that are at the target: of disks that are done and of those at work, those of earlier workers too.
fn done_bytes(board: &Board, total: u64) -> u64 {
    let live = board.live().iter().map(|disk| disk.progress.snapshot().done()).sum::<u64>();
    (board.capacity().1 + live).min(total)
}

fn progress_of(total: u64, done: u64) -> Value {
    let percent = if total == 0 { 100 } else { u128::from(done) * 100 / u128::from(total) };
    json!({"totalBytes": total, "doneBytes": done, "percent": percent as u8})
}

impl Desk<'_> {
    fn progress(&self, is_done: bool) -> Value {
        let total = total_bytes(&self.spec);
        match done_bytes(&self.board, total) {
            _ if is_done => progress_of(total, total),
            0 => Value::Null,
            done => progress_of(total, done),
        }
    }

    fn work(&self) -> Work {
        work_of(self.args)
    }

    fn me(&self) -> Named {
        Named { name: self.args.migration.clone(), uid: self.args.uid.clone() }
    }

    fn file(&self) -> Result<PlanFile, End> {
        let user = read_text(&self.args.provider.join("user"), PASSWORD_BYTES_MAX)
            .map_err(|error| End::new(Exit::Access, "SecretIncomplete", format!("user: {error}")))?;
        let folder = self.args.provider.display().to_string();
        let (name, keys) = (&engine_plan(&self.me()), &self.spec.plan);
        let mut images = self.args.target_image.clone();
        // What an earlier worker ran is not refused because the operator has another image by now.
        images.extend(keys["target"]["image"].as_str().filter(|_| self.has_begun).map(str::to_string));
        let place = Place { namespace: &self.namespace, folder: &folder, images: &images };
        let text = plan_text(name, keys, &self.provider, user.trim(), &place)
            .map_err(|why| End::new(Exit::Plan, reason::FORBIDDEN, why))?;
        let path = PathBuf::from(format!("/state/{name}.yaml"));
        let file = parse_quietly(text, path, PathBuf::from("/state"))
            .map_err(|problems| End::new(Exit::Plan, reason::UNPARSABLE, told(&problems)))?;
        PlanPolicy::default()
            .check_plan(&file.plan)
            .map_err(|why| End::new(Exit::Plan, reason::FORBIDDEN, why.what))?;
        Ok(file)
    }

    /// Refuses to begin what its plan has no more, as far as can be seen now.
    fn check_plan(&self) -> Result<(), End> {
        // What was begun goes on without its plan.
        if self.has_begun {
            return Ok(());
        }
        let wanted = &self.spec.plan_ref;
        let path = path_of(Kind::Plan, &self.namespace, &wanted.name);
        let plan =
            self.post.cluster.get(&path).map_err(|error| End::from(failure(error)))?.unwrap_or_default();
        let meta = Meta::of(&plan);
        let is_same = meta.uid == wanted.uid && meta.generation == wanted.generation && !meta.is_going;
        match is_same && plan["spec"]["cancel"] != true {
            true => Ok(()),
            false => {
                let what = format!("the Plan {} is another by now", wanted.name);
                Err(End::new(Exit::Interrupted, "Changed", what))
            }
        }
    }

    /// Refuses to begin what would wait in its pod for the next window: it may have taken long to start. A warm VM is copied meanwhile, and
    /// of what was begun its state says whether it waits.
    fn check_window(&self, waves: &[Wave]) -> Result<(), End> {
        let is_held = !self.has_begun && self.spec.size.warm.is_none();
        match is_held && is_closed(waves, u64::try_from(SystemClock.now_ms()).unwrap_or_default()) {
            false => Ok(()),
            true => {
                let what = "the window of its wave closed before it began";
                Err(End::new(Exit::Interrupted, reason::WINDOW_CLOSED, what))
            }
        }
    }

    /// Says that it begins to touch source and target. A spec that was changed or removed since it was read has another generation.
    fn begin(&self) -> Result<(), End> {
        let changed = |error: KubeError| {
            End::new(Exit::Interrupted, "Changed", format!("what is wanted may be another by now: {error}"))
        };
        self.post.change(&self.post.fence.begin(self.generation)).map(drop).map_err(changed)
    }

    /// Whether the next step of an undo may be done.
    fn may_go_on(&self) -> Result<(), ProviderError> {
        match self.stop.is_set() {
            true => Err(ProviderError::new(Cause::Cancelled, "it was asked to stop")),
            false => self.is_meant(&|| self.held.is_kept()),
        }
    }

    /// Whether source and target may still be touched: asked of the cluster, since a process may have stood still for any time, and another
    /// may have been made in its place. A server that is away is waited for, but not by a worker that is to stop.
    fn is_meant(&self, is_kept: &dyn Fn() -> Result<bool, KubeError>) -> Result<(), ProviderError> {
        let until = Instant::now() + UNSEEN_MAX;
        let why = loop {
            match self.post.is_mine().and_then(|is_mine| Ok((is_mine, is_kept()?))) {
                Ok((true, true)) => return Ok(()),
                Ok((false, _)) => break "the Migration has another worker, or is gone".to_string(),
                Ok((true, false)) => break "the VmLock was removed, or is another's".to_string(),
                Err(error) if self.stop.is_set() || Instant::now() >= until => {
                    break format!("whether another worker is meant by now is not known: {error}");
                }
                Err(_) => std::thread::sleep(LOOK / 4),
            }
        };
        Err(ProviderError::new(Cause::Cancelled, why))
    }

    fn meant(&self) -> Meant {
        Meant {
            source: self.spec.source.instance_uuid.clone(),
            id: self.spec.vm.id.clone(),
            vm: self.spec.vm.instance_uuid.clone(),
        }
    }

    /// Waits until no earlier worker has the state any more. To fail instead would count as one more try with the guest down.
    fn wait_for_earlier(&self, store: &Store, plan: &str) -> Result<(), End> {
        let (until, mut is_told) = (Instant::now() + EARLIER_MAX, false);
        while drover_engine::is_running(store, plan).map_err(Failure::from)? && Instant::now() < until {
            if self.stop.is_set() {
                return Err(End::new(Exit::Interrupted, "Stopped", "an earlier worker still has the state"));
            }
            if !is_told {
                crate::out::say("an earlier worker still has the state: it is waited for");
            }
            is_told = true;
            std::thread::sleep(LOOK / 4);
        }
        Ok(())
    }

    fn go(&self, shown: &mut Shown) -> Result<End, End> {
        let file = self.file()?;
        let waves = file.plan.waves();
        let store = OwnedStore::open(&self.args.state)?;
        let name = file.plan.name.clone();
        self.wait_for_earlier(&store, &name)?;
        let known = store.plan(&name).map_err(Failure::from)?;
        if known.as_ref().is_some_and(|row| row.state == PlanState::Cancelled) {
            return Err(End::new(Exit::Interrupted, "Undone", "what it had begun was undone"));
        }
        let others = if known.is_some() { Others::LeftOut } else { Others::Selected };
        let (meant, words, policy) = (self.meant(), Collected::default(), PlanPolicy::default());
        // Its lock is looked at by its steps: without it the guest goes on as it was found.
        let leave = || self.is_meant(&|| Ok(true));
        let schedule = self.turn.schedule(&file.plan.limits, &store)?;
        let setting = Setting {
            store: &store,
            state: Some(&self.args.state),
            stop: &self.stop,
            words: &words,
            policy: Some(&policy),
            schedule: Some(&schedule),
            memory: None,
            reads: None,
            meant: Some(&meant),
            sharers: &self.sharers,
            leave: &leave,
        };
        let prepared = Prepared::new(file, others, false, &setting).map_err(|failure| words.with(failure))?;
        self.check_plan()?;
        self.check_window(&waves)?;
        put_mark(self.args)?;
        self.held.take()?;
        self.begin()?;
        let vm = &self.spec.vm.id;
        let steps = Steps {
            held: &self.held,
            stop: &self.stop,
            turn: &self.turn,
            goes_down: &|| self.post.change(&self.post.fence.go_down(self.turn.had_leave())).map(drop),
            says: &|field, value| self.post.write(&[(field, value)]),
            is_off: &|| Power::of(&store, &name, vm).map_or(true, |now| now.is_off),
        };
        let before = Power::of(&store, &name, vm)?;
        let outcome = prepared.run(&setting, &steps, &self.board).map_err(End::from);
        let now = Power::of(&store, &name, vm);
        // What cannot be read now may well be one.
        let outage = now.as_ref().map_or(true, |now| now.is_outage(&before));
        let left_off = now.ok().map(|now| now.is_off);
        let outcome = outcome.map_err(|end| End { outage, left_off, ..end })?;
        for disk in store.disks(&name).map_err(Failure::from)? {
            if let Some(root) = disk.root {
                let is_equal = disk.target_root.as_ref() == Some(&root);
                shown.roots.push(json!({"disk": disk.label, "root": root, "verified": is_equal}));
            }
        }
        // What a move showed is for forecasts: without it the VM has arrived all the same.
        if let Err(error) =
            drover_engine::arrived_vms(&store, &name, |vm| shown.measured = Some(measured(vm)))
        {
            crate::out::say(format_args!(
                "what the move showed is not told: {}",
                drover_engine::chain(&error)
            ));
        }
        let host_failed = outcome.quarantine.iter().any(is_of_source);
        let datastore_failed = datastore_of(&outcome.quarantine);
        Ok(End { outage, left_off, host_failed, datastore_failed, ..end_of(&outcome, self.stop.is_set()) })
    }

    /// Switches the guest on again that was left off, if it is, and keeps all that was copied.
    fn switch_on(&self) -> Result<End, End> {
        let file = self.file()?;
        let store = OwnedStore::open(&self.args.state)?;
        let name = &file.plan.name;
        let on = |words: &str| End { left_off: Some(false), ..End::new(Exit::Success, "SwitchedOn", words) };
        if store.plan(name).map_err(Failure::from)?.is_none() {
            return Ok(on("nothing was begun"));
        }
        if !Power::of(&store, name, &self.spec.vm.id)?.is_off {
            return Ok(on("drover did not leave its guest off"));
        }
        self.begin()?;
        self.held.take()?;
        let (state, meant) = (Some(self.args.state.as_path()), self.meant());
        let leave = || self.may_go_on();
        let left = at_source(&file, &store, state, Some(&meant), &|source, target| {
            drover_engine::switch_on_by_leave(name, &store, source, target, &leave)
        })?;
        match left.is_empty() {
            true => Ok(on("its guest is on again at the source")),
            false if self.stop.is_set() => Err(End::new(Exit::Interrupted, "Stopped", left.join("; "))),
            false => Err(End::new(Exit::Source, "SwitchOnFailed", left.join("; "))),
        }
    }

    fn undo(&self) -> Result<End, End> {
        let file = self.file()?;
        let store = OwnedStore::open(&self.args.state)?;
        let row = store.plan(&file.plan.name).map_err(Failure::from)?;
        let undone =
            |words: &str| Ok(End { left_off: Some(false), ..End::new(Exit::Success, "Undone", words) });
        let Some(row) = row else { return undone("nothing was begun") };
        let name = row.name.clone();
        // Before what the plan says of itself: a plan that was given up may have a VM that had arrived. What is left of that one at its
        // source is cleaned up.
        let is_to_clean_up = match arrived(&store, &name)? {
            Some(end) if end.exit == Exit::Success => return Ok(end),
            end => end.is_some(),
        };
        match row.state {
            PlanState::Cancelled if !is_to_clean_up => return undone("what it had begun is undone"),
            _ => {}
        }
        self.begin()?;
        self.held.take()?;
        // Not over the text that it was begun with: address, certificate and login may be others by now.
        let (state, meant) = (Some(self.args.state.as_path()), self.meant());
        let given_up = give_up_by_leave(&file, &store, state, Some(&meant), &|| self.may_go_on())?;
        given_up.notes.iter().for_each(|note| crate::out::say(format_args!("note: {note}")));
        if let Some(end) = arrived(&store, &name)? {
            return Ok(end);
        }
        match given_up.left.is_empty() {
            true if !given_up.kept.is_empty() => undone(&given_up.notes.join("; ")),
            true => undone("what it had begun is undone"),
            false if self.stop.is_set() => {
                Err(End::new(Exit::Interrupted, "Stopped", given_up.left.join("; ")))
            }
            false => Err(End::new(Exit::Source, "LeftBehind", given_up.left.join("; "))),
        }
    }
}

/// Whether nothing of a plan may begin at a moment, in milliseconds since 1970: it has the VM's own wave alone.
fn is_closed(waves: &[Wave], now_ms: u64) -> bool {
    waves.iter().any(|wave| !matches!(wave.window.at(now_ms), Opening::Open { .. }))
}

/// What drover did to a guest's power.
struct Power {
    /// How often it was shut down.
    shutdowns: usize,
    /// Whether it is off by that.
    is_off: bool,
}

impl Power {
    fn of(store: &Store, plan: &str, vm: &str) -> Result<Power, End> {
        let row = store.vm(plan, vm).map_err(Failure::from)?;
        let shutdowns = store.shutdowns(plan, vm).map_err(Failure::from)?;
        Ok(Power { shutdowns, is_off: row.is_some_and(|row| row.switched_off) })
    }

    /// Whether the guest was down for a try that began so.
    fn is_outage(&self, before: &Power) -> bool {
        before.is_off || self.shutdowns > before.shutdowns
    }
}

/// Keeps what is wrong with the plan, for the status.
#[derive(Default)]
struct Collected(Mutex<Vec<Problem>>);

impl Collected {
    fn with(&self, failure: Failure) -> End {
        let problems = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let errors: Vec<Problem> = problems.iter().filter(|it| it.is_error()).cloned().collect();
        let message = if errors.is_empty() { failure.message.clone() } else { told(&errors) };
        let reason = word(failure.exit, &message);
        End { reason, ..End::from(Failure { message, ..failure }) }
    }
}

impl Words for Collected {
    fn say(&self, line: &str) {
        crate::out::say(line);
    }

    fn problems(&self, file: &Path, problems: &[Problem], _: &[PlannedVm]) {
        crate::out::problems(file, problems);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(problems);
    }

    fn site(&self, summary: &str) {
        crate::out::say(summary);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_types::WaveWindow;

    use super::*;

    #[test]
    fn nothing_begins_before_its_window_or_after() {
        let window = WaveWindow { from_ms: Some(1000), until_ms: Some(2000), ..WaveWindow::default() };
        let waves = [Wave { window, ..Wave::default() }];
        assert_eq!([999, 1000, 1999, 2000].map(|now| is_closed(&waves, now)), [true, false, false, true]);
        assert!(!is_closed(&[], 1000));
    }

    #[test]
    fn a_mark_is_never_cut_short() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("state.migration");
        write_mark(&place, "m1").unwrap();
        assert_eq!(std::fs::read_to_string(&place).unwrap(), "m1");
        // The file under another name: it is as it was when a new one takes its place.
        let kept = folder.path().join("kept");
        std::fs::hard_link(&place, &kept).unwrap();
        write_mark(&place, "m1").unwrap();
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
        assert_eq!(inode(&place), inode(&kept), "the same mark is not written again");
        write_mark(&place, "m2").unwrap();
        assert_eq!(std::fs::read_to_string(&place).unwrap(), "m2");
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "m1", "it was not written in place");
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 2, "nothing is left beside it");
        // What a worker that was ended left beside it does no harm.
        std::fs::write(place.with_extension("migration-new"), "m").unwrap();
        write_mark(&place, "m3").unwrap();
        assert_eq!(std::fs::read_to_string(&place).unwrap(), "m3");
    }
}
