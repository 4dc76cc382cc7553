//! `drover operator`: Providers, Plans and Migrations of a namespace, carried out by one worker Job for each VM.
//!
//! ```text
//! watches ─┐                        ┌── statuses, Jobs, claims
//! lease ───┼── messages ── Operator ┤
//! resolve ─┤   (one thread)         └── decisions: crates/operator
//! foresee ─┘
//! ```

mod cancels;
mod carry;
mod figures;
mod forecasts;
mod lease;
mod migrations;
mod plans;
mod resolve;
mod waves;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drover_kubevirt::{Access, Cluster, KubeError, KubeErrorKind, Seen};
use drover_operator::admission::Admissions;
use drover_operator::cutovers::Cutovers;
use drover_operator::fence::is_older;
use drover_operator::jobs::{Jobs, Known};
use drover_operator::model::Work;
use drover_operator::objects::{ConverterShape, Shape};
use drover_operator::time::Moment;
use drover_schedule::Budgets;
use drover_server::Server;
use serde_json::Value;

use crate::cli::{OperatorArgs, OperatorCommand};
use crate::exit::{Exit, Failure};
use crate::signals::stop_on_signals;
use cancels::GivenUp;
use figures::Told;
use forecasts::Forecasts;
use lease::Lease;
use migrations::Migration;
use plans::{Plan, Provider};
use resolve::Resolved;

/// Messages that wait for the one thread.
const QUEUE: usize = 1024;
/// How often it looks whether it is to end, and whether it still leads.
const LOOK: Duration = Duration::from_millis(500);
/// How long one answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// The namespace of a pod.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Kinds that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Plan,
    Provider,
    Migration,
    Job,
}

const KINDS: [Kind; 4] = [Kind::Provider, Kind::Plan, Kind::Job, Kind::Migration];

enum Message {
    Seen(Kind, Seen),
    /// Nobody follows the kind any more.
    Unwatched(Kind),
    Resolved(Box<Resolved>),
    Foreseen(Box<forecasts::Told>),
}

/// Serves a namespace until it is told to stop, or does what its subcommands say.
pub fn run(args: &OperatorArgs) -> Result<Exit, Failure> {
    if let Some(OperatorCommand::Worker(args)) = &args.command {
        return worker::run(args);
    }
    if args.json {
        crate::out::say_in_json();
    }
    let Some(image) = args.image.clone() else {
        return Err(Failure::new(Exit::Usage, "no image for workers is given").advise("--image IMAGE"));
    };
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let namespace = namespace(args.namespace.as_deref())?;
    let access = Access { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    let cluster = Cluster::connect(&access).map_err(failure)?;
    // What was asked for under the lease lands not long after it.
    cluster.wait_at_most(ANSWER_MAX);
    crate::out::say(format_args!("drover operator: namespace {namespace} of {}", cluster.server()));
    let told = Arc::new(Told::new(args.listen.is_some()));
    let server = args.listen.map(|listen| Server::tell(listen, told.clone())).transpose();
    let server = server.map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    if let Some(server) = &server {
        crate::out::say(format_args!("figures at http://{}/metrics", server.address()));
    }
    let lease = Lease::new(cluster.clone(), &namespace);
    if !lease.take(&|| stop.is_set(), &|waits| told.set_ready(waits)) {
        return Ok(Exit::Success);
    }
    crate::out::say("it leads");
    let shape = Shape {
        image,
        target_images: args.target_image.clone(),
        image_pull: args.image_pull.clone(),
        account: args.worker_account.clone(),
        state_class: args.state_class.clone(),
        state_size: args.state_size.clone(),
        cpu: args.worker_cpu.clone(),
        memory: args.worker_memory.clone(),
        json: args.json,
        converter: args.converter_image.clone().filter(|image| !image.is_empty()).map(|image| {
            ConverterShape {
                image,
                memory: args.converter_memory.clone(),
                state_size: args.converter_state_size.clone(),
                has_kvm: args.converter_kvm,
            }
        }),
    };
    for image in shape.by_tag() {
        crate::out::say(format_args!(
            "warning: {image} is named by a tag: once that is pushed anew, workers of one plan may run different programs; name it by digest \
             (NAME@sha256:...)"
        ));
    }
    let OperatorArgs { vms_per_host, disks, cutovers, .. } = *args;
    let budgets = Budgets { vms_per_host, disks, cutovers, ..Budgets::default() };
    let (sender, receiver) = sync_channel(QUEUE);
    KINDS.iter().try_for_each(|kind| follow(*kind, &cluster, &namespace, &sender))?;
    let mut operator = Operator::new(cluster, namespace, shape, budgets, lease.clone(), told, sender);
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    operator.keep_failed_seconds = seconds(args.keep_failed);
    operator.keep_done_seconds = seconds(args.keep_done);
    let ended = operator.serve(&receiver, &|| stop.is_set());
    if ended.is_ok() {
        lease.give_back();
    }
    ended
}

fn namespace(told: Option<&str>) -> Result<String, Failure> {
    if let Some(told) = told {
        return Ok(told.to_string());
    }
    std::fs::read_to_string(NAMESPACE_FILE).map(|text| text.trim().to_string()).map_err(|error| {
        Failure::new(Exit::Usage, format!("{NAMESPACE_FILE}: {error}")).advise("--namespace NAMESPACE")
    })
}

/// A failure of the cluster's, as commands tell it.
pub fn failure(error: KubeError) -> Failure {
    let exit = match error.kind {
        KubeErrorKind::Denied => Exit::Access,
        KubeErrorKind::Unreachable => Exit::Connection,
        KubeErrorKind::Config => Exit::Usage,
        _ => Exit::Target,
    };
    Failure::new(exit, error.what)
}

fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment(i64::try_from(since.as_secs()).unwrap_or_default())
}

/// Tells that a kind is not followed any more, also when its thread panics.
struct Ending(Kind, SyncSender<Message>);

impl Drop for Ending {
    fn drop(&mut self) {
        // Nobody listens when all of it ends.
        let _ = self.1.send(Message::Unwatched(self.0));
    }
}

fn follow(
    kind: Kind,
    cluster: &Arc<Cluster>,
    namespace: &str,
    sender: &SyncSender<Message>,
) -> Result<(), Failure> {
    let (path, query) = match kind {
        Kind::Job => (
            format!("/apis/batch/v1/namespaces/{namespace}/jobs"),
            "labelSelector=app.kubernetes.io%2Fmanaged-by%3Ddrover-operator",
        ),
        _ => (path_of(kind, namespace, ""), ""),
    };
    let (cluster, sender) = (cluster.clone(), sender.clone());
    let thread = std::thread::Builder::new().name(format!("watch {kind:?}"));
    let run = move || {
        let ending = Ending(kind, sender);
        cluster.follow(&path, query, |seen| ending.1.send(Message::Seen(kind, seen)).is_ok());
    };
    thread.spawn(run).map(drop).map_err(|error| Failure::new(Exit::Internal, format!("no thread: {error}")))
}

/// Where objects of a kind are.
fn path_of(kind: Kind, namespace: &str, name: &str) -> String {
    let (api, plural) = match kind {
        Kind::Plan => ("/apis/drover.dev/v1alpha1", "plans"),
        Kind::Provider => ("/apis/drover.dev/v1alpha1", "providers"),
        Kind::Migration => ("/apis/drover.dev/v1alpha1", "migrations"),
        Kind::Job => ("/apis/batch/v1", "jobs"),
    };
    let all = format!("{api}/namespaces/{namespace}/{plural}");
    if name.is_empty() { all } else { format!("{all}/{name}") }
}

/// What every object has.
#[derive(Clone, Debug, Default)]
struct Meta {
    name: String,
    uid: String,
    version: String,
    generation: i64,
    is_going: bool,
}

impl Meta {
    fn of(object: &Value) -> Meta {
        let metadata = &object["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_string();
        Meta {
            name: text("name"),
            uid: text("uid"),
            version: text("resourceVersion"),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            is_going: !metadata["deletionTimestamp"].is_null(),
        }
    }
}

struct Operator {
    cluster: Arc<Cluster>,
    namespace: String,
    shape: Shape,
    /// For how long Jobs of workers that failed are kept.
    keep_failed_seconds: i64,
    /// For how long the Job is kept with which a VM arrived, and its state claim by that.
    keep_done_seconds: i64,
    lease: Lease,
    sender: SyncSender<Message>,
    plans: BTreeMap<String, Plan>,
    providers: BTreeMap<String, Provider>,
    migrations: BTreeMap<String, Migration>,
    jobs: Jobs,
    /// Names that the list under way has told so far.
    listing: BTreeMap<Kind, BTreeSet<String>>,
    /// Kinds whose list was complete once.
    complete: BTreeSet<Kind>,
    admissions: Admissions,
    cutovers: Cutovers,
    budgets: Budgets,
    forecasts: Forecasts,
    given_up: GivenUp,
    /// Migrations to decide on.
    due: BTreeSet<String>,
    wakes: BTreeMap<String, Moment>,
    /// Whether a plan is being laid over its source.
    is_resolving: bool,
    /// A kind that nobody follows any more.
    unwatched: Option<Kind>,
    begun: Instant,
    /// When plans were summed up last.
    counted: Moment,
    /// Workers that ended, by exit; those that told none.
    ends: BTreeMap<Option<u8>, u64>,
    told: Arc<Told>,
}

impl Operator {
    fn new(
        cluster: Arc<Cluster>,
        namespace: String,
        shape: Shape,
        budgets: Budgets,
        lease: Lease,
        told: Arc<Told>,
        sender: SyncSender<Message>,
    ) -> Operator {
        Operator {
            cluster,
            namespace,
            shape,
            keep_failed_seconds: 0,
            keep_done_seconds: 0,
            lease,
            sender,
            plans: BTreeMap::new(),
            providers: BTreeMap::new(),
            migrations: BTreeMap::new(),
            jobs: Jobs::default(),
            listing: BTreeMap::new(),
            complete: BTreeSet::new(),
            admissions: Admissions::new(budgets.clone()),
            cutovers: Cutovers::new(budgets.clone()),
            budgets,
            forecasts: Forecasts::default(),
            given_up: GivenUp::default(),
            due: BTreeSet::new(),
            wakes: BTreeMap::new(),
            is_resolving: false,
            unwatched: None,
            begun: Instant::now(),
            counted: Moment::default(),
            ends: BTreeMap::new(),
            told,
        }
    }

    fn serve(&mut self, messages: &Receiver<Message>, stops: &dyn Fn() -> bool) -> Result<Exit, Failure> {
        loop {
            match messages.recv_timeout(LOOK) {
                Ok(message) => {
                    self.take(message);
                    // All that came together is decided on together.
                    for message in messages.try_iter().take(QUEUE) {
                        self.take(message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // It holds a sender itself: `unwatched` tells of those that watch.
                Err(RecvTimeoutError::Disconnected) => {}
            }
            if stops() {
                return Ok(Exit::Success);
            }
            if let Some(kind) = self.unwatched {
                return Err(Failure::new(Exit::Internal, format!("nobody watches {kind:?}s any more")));
            }
            self.check_lease().map_err(failure)?;
            self.tell_figures();
            if self.complete.len() == KINDS.len() {
                self.tend_plans();
                self.tend_migrations();
                self.tend_forecasts();
            }
        }
    }

    /// Refuses to go on with many requests when another operator may lead.
    fn check_lease(&self) -> Result<(), KubeError> {
        match self.lease.is_held() {
            true => Ok(()),
            false => {
                let what = "the lease is lost: another operator may lead".into();
                Err(KubeError { kind: KubeErrorKind::Unreachable, what })
            }
        }
    }

    /// Milliseconds on the clock of the scheduler.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Unwatched(kind) => self.unwatched = Some(kind),
            Message::Resolved(resolved) => self.take_resolved(*resolved),
            Message::Foreseen(told) => self.take_foreseen(*told),
            Message::Seen(kind, Seen::Begin) => drop(self.listing.insert(kind, BTreeSet::new())),
            Message::Seen(kind, Seen::There(object)) => {
                let name = Meta::of(&object).name;
                if let Some(listing) = self.listing.get_mut(&kind) {
                    listing.insert(name);
                }
                self.put(kind, &object);
            }
            Message::Seen(kind, Seen::Gone(object)) => {
                let gone = Meta::of(&object);
                // One of that name that was made since is not it.
                if self.held(kind, &gone.name).is_none_or(|(uid, _)| uid == gone.uid) {
                    self.lose(kind, &gone.name);
                }
            }
            Message::Seen(kind, Seen::Complete) => {
                let there = self.listing.remove(&kind).unwrap_or_default();
                let known: Vec<String> = match kind {
                    Kind::Plan => self.plans.keys().cloned().collect(),
                    Kind::Provider => self.providers.keys().cloned().collect(),
                    Kind::Migration => self.migrations.keys().cloned().collect(),
                    Kind::Job => self.jobs.names().cloned().collect(),
                };
                known.iter().filter(|name| !there.contains(*name)).for_each(|name| self.lose(kind, name));
                if self.complete.insert(kind) && self.complete.len() == KINDS.len() {
                    self.readmit();
                }
            }
            Message::Seen(kind, Seen::Trouble(error)) => {
                let is_ours = kind != Kind::Job && error.kind == KubeErrorKind::NotServed;
                let hint = if is_ours { " (apply deploy/crds.yaml of this version of drover)" } else { "" };
                crate::out::say(format_args!("{kind:?}s: {error}{hint}; it is tried again"));
            }
        }
    }

    /// UID and version of what is known by a name.
    fn held(&self, kind: Kind, name: &str) -> Option<(&str, &str)> {
        fn of(meta: &Meta) -> (&str, &str) {
            (&meta.uid, &meta.version)
        }
        match kind {
            Kind::Plan => self.plans.get(name).map(|it| of(&it.meta)),
            Kind::Provider => self.providers.get(name).map(|it| of(&it.meta)),
            Kind::Migration => self.migrations.get(name).map(|it| of(&it.meta)),
            Kind::Job => self.jobs.get(name).map(|it| (it.seen.uid.as_str(), it.version.as_str())),
        }
    }

    fn put(&mut self, kind: Kind, object: &Value) {
        let meta = Meta::of(object);
        let known = self.held(kind, &meta.name);
        // What the server answered to this operator may be newer than what the watch tells now.
        if known.is_some_and(|(uid, version)| uid == meta.uid && is_older(version, &meta.version)) {
            return;
        }
        match kind {
            // Their statuses change all the time, and decide nothing but by what is compared here.
            Kind::Plan => {
                let known = self.plans.remove(&meta.name);
                let before = known.as_ref().map(|plan| plan.laid(None));
                let plan = Plan::of(object, known);
                self.given_up.see(&plan.meta.uid, &meta.name, plan.cancel);
                if before.as_ref() != Some(&plan.laid(None)) {
                    self.due_where(|it| it.spec.plan_ref.name == meta.name);
                }
                self.plans.insert(meta.name, plan);
            }
            Kind::Provider => {
                let provider = Provider::of(object);
                if self.providers.get(&meta.name).map(Provider::pinned) != Some(provider.pinned()) {
                    self.due_where(|_| true);
                    let of_it = self.plans.values_mut().filter(|plan| plan.provider() == meta.name);
                    of_it.for_each(Plan::try_now);
                }
                self.providers.insert(meta.name, provider);
            }
            Kind::Migration => match Migration::of(object) {
                Ok(migration) => {
                    self.due.insert(meta.name.clone());
                    self.migrations.insert(meta.name, migration);
                }
                // The schema keeps such out.
                Err(error) => crate::out::say(format_args!("Migration {}: {error}", meta.name)),
            },
            Kind::Job => {
                let migration = object["metadata"]["labels"][drover_operator::MIGRATION].as_str();
                let Some(migration) = migration.map(str::to_string) else { return };
                self.due.insert(migration.clone());
                let seen = carry::job_seen(object);
                self.jobs.put(Known { migration, version: meta.version, seen });
            }
        }
    }

    fn due_where(&mut self, is_due: impl Fn(&Migration) -> bool) {
        let due = self.migrations.values().filter(|it| is_due(it)).map(|it| it.meta.name.clone());
        self.due.extend(due);
    }

    fn lose(&mut self, kind: Kind, name: &str) {
        match kind {
            Kind::Plan => {
                self.plans.remove(name);
                self.due_where(|it| it.spec.plan_ref.name == name);
            }
            Kind::Provider => {
                self.providers.remove(name);
                self.due_where(|_| true);
            }
            Kind::Migration => {
                if let Some(gone) = self.migrations.remove(name) {
                    for plan in self.plans.values_mut() {
                        plan.is_stale |= plan.meta.uid == gone.spec.plan_ref.uid || plan.has_refused();
                    }
                }
                self.wakes.remove(name);
                let now_ms = self.now_ms();
                self.admissions.leave(name, now_ms);
                self.cutovers.leave(name, now_ms);
            }
            Kind::Job => {
                self.due.extend(self.jobs.remove(name));
            }
        }
    }

    /// Those that are at work keep their slots before anybody else gets one.
    fn readmit(&mut self) {
        let now_ms = self.now_ms();
        for (name, migration) in &self.migrations {
            let status = &migration.status;
            let work = status.job.as_ref().map(|job| job.work);
            if let Some(work) = work.or(status.keeps_slot().then_some(Work::Move)) {
                self.admissions.want(name, &migration.spec, work, true, now_ms);
            }
            if status.is_moving_over() && migration.spec.size.warm.is_some() {
                let most = migrations::cutovers_of(&migration.spec.plan);
                self.cutovers.want(name, &migration.spec.plan_ref.uid, most, true, now_ms);
            }
        }
        self.admissions.admit(now_ms);
        self.due.extend(self.migrations.keys().cloned());
    }
}
