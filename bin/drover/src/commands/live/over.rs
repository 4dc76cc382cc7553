//! A move over the link to another site: what QEMU connects to here, and what that leads to there.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use drover_agent::Site;
use drover_link::Session;
use drover_live::{HostLoad, Route, Side};
use drover_qemu::live::{Carried, CarriedEnds, Carrier, Guest, Hurry, NbdAt, Passage};
use drover_relay::{Door, DoorError, Doors, Probed, Reach, Refusal, Via, probe};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::memory::RDMA;
use super::nbd_at;
use super::route::Direct;
use crate::cli::{DisksArg, LiveArgs};
use crate::exit::{Exit, Failure};
use crate::sites;

/// A site, and where the target is to listen there: what is known before anybody is connected to.
pub struct Way {
    shared: Arc<Shared>,
    /// Where the target waits for memory, as its QEMU takes it.
    pub memory: String,
    /// Where the target offers its disks.
    pub disks: NbdAt,
}

impl Way {
    /// Fails with what is wrong with what was said, without a look at the network.
    pub fn find(args: &LiveArgs, site: &str, sites: &Sites) -> Result<Way, Failure> {
        let (memory, disks) = places(args)?;
        address_of(&memory)?;
        Ok(Way { shared: sites.named(args, site)?, memory, disks })
    }
}

/// Sockets here that lead to a site.
pub struct Over {
    link: Arc<Link>,
    here: Here,
    asking: Asking,
    /// Where sockets of QEMU's moves lie.
    _folder: Option<Sockets>,
}

/// Sockets on this side.
struct Here {
    monitor: PathBuf,
    memory: PathBuf,
    disks: PathBuf,
}

/// What is asked of the site's agent before a move, and how.
struct Asking {
    session: Session,
    /// Places that the target's QEMU is to listen at.
    wanted: Vec<String>,
    /// They lie beside the target's monitor.
    is_own: bool,
    /// Memory and disks go past the link.
    is_direct: bool,
}

/// Where a domain's sockets lie on both sides: libvirt takes one path for the source's end and the target's.
pub const DOMAIN_FOLDER: &str = "/var/lib/libvirt/qemu";

struct Link {
    site: String,
    doors: Doors,
    /// The round trip when the site was asked first; the sockets' own session begins with the first connection.
    first_round_trip: Duration,
    /// What the agent is asked to connect to for the target's monitor, where there is one.
    monitor: Option<String>,
    /// After the doors: what they carry ends before the session does.
    shared: Arc<Shared>,
}

impl Carrier for Link {
    fn site(&self) -> &str {
        &self.site
    }

    fn round_trip(&self) -> Duration {
        // The shortest: what waits before the line while others send is reckoned by itself.
        match self.doors.link().rtt_min_us {
            0 => self.first_round_trip,
            told => Duration::from_micros(told),
        }
    }

    fn is_up(&self) -> bool {
        self.doors.link().state == "up"
    }

    fn is_waited_for(&self) -> bool {
        self.doors.link().state == "reconnecting"
    }

    fn hurry(&self) -> Option<Hurry> {
        self.doors.hurry().map(Hurry::new)
    }

    fn has_nobody(&self) -> bool {
        // A QEMU that ends by itself removes its socket: then there is nothing to connect to.
        let is_nobody =
            |reason: &Refusal| matches!(reason, Refusal::TargetRefused | Refusal::TargetUnreachable);
        let refused = self.doors.take_refused();
        refused.iter().any(|one| Some(&one.target) == self.monitor.as_ref() && is_nobody(&one.reason))
    }
}

/// Names of the sockets here.
/// A folder for sockets of one run, which holds a lock on it as long as it lives: what killed runs left the next one removes.
struct Sockets {
    folder: TempDir,
    _lock: File,
}

/// What it is called, and what is locked in it.
const SOCKETS: &str = "drover-live-";
const LOCK: &str = "lock";

impl Sockets {
    fn make(place: &Path) -> std::io::Result<Sockets> {
        clear_sockets(place);
        let folder = tempfile::Builder::new().prefix(SOCKETS).tempdir_in(place)?;
        // It gets its name when it is locked: nobody takes it for that of a run that is gone.
        let new = folder.path().join("new");
        let lock = File::create_new(&new)?;
        lock.lock()?;
        std::fs::rename(new, folder.path().join(LOCK))?;
        Ok(Sockets { folder, _lock: lock })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes folders of runs that are gone. What cannot be looked at or removed is another user's, or another run was faster.
fn clear_sockets(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(SOCKETS));
    for path in ours.map(|entry| entry.path()).take(CLEARED_MAX) {
        let user = rustix::process::geteuid();
        // QEMU's user may have got it.
        let is_ours = |meta: &std::fs::Metadata| user.is_root() || meta.uid() == user.as_raw();
        let is_folder = path.symlink_metadata().is_ok_and(|meta| meta.is_dir() && is_ours(&meta));
        let lock = File::options().read(true).custom_flags(AS_IT_IS).open(path.join(LOCK));
        if is_folder && lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Folders that one run looks at.
const CLEARED_MAX: usize = 1000;
/// Whatever somebody else put there is neither followed nor waited for.
const AS_IT_IS: i32 = (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()) as i32;

const MONITOR: &str = "monitor";
const MEMORY: &str = "memory";
const DISKS: &str = "disks";

/// Sites that guests go to. Those that go to one share a session: its connections, and what it has learnt of the line.
#[derive(Default)]
pub struct Sites {
    known: Mutex<BTreeMap<String, Weak<Shared>>>,
    /// What was measured of ways past links.
    routes: Mutex<BTreeMap<String, Route>>,
    /// Most bytes a second that all guests may send, which holds for measuring, too.
    rate_max: Option<u64>,
}

/// A site that guests go to. When nobody goes there any more its session ends.
pub struct Shared(Arc<Site>);

impl Sites {
    pub fn named(&self, args: &LiveArgs, name: &str) -> Result<Arc<Shared>, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(site) = known.get(name).and_then(Weak::upgrade) {
            return Ok(site);
        }
        let site = Arc::new(Shared(sites::site(args.state.as_deref(), name, None)?));
        known.insert(name.to_string(), Arc::downgrade(&site));
        Ok(site)
    }

    /// For guests that may all together send so many bytes a second.
    pub fn within(rate_max: Option<u64>) -> Sites {
        Sites { rate_max, ..Sites::default() }
    }

    /// Which way is better to this site, the link or past it. What both carry is measured once; who comes meanwhile waits, or they
    /// would measure each other.
    pub fn route(&self, shared: &Shared, direct: &Direct) -> Route {
        let direct = direct.within(self.rate_max);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        // Each has ports of its own, if any.
        if let Err(why) = direct.reaches(&shared.0) {
            return direct.unreachable(why);
        }
        let key = format!("{} {}", shared.0.name(), direct.key());
        let known = routes.entry(key).or_insert_with(|| direct.route(&shared.0));
        direct.as_measured(known)
    }
}

impl Shared {
    /// How busy its host is. An agent that does not tell, or not now, is no reason not to move.
    pub fn load(&self) -> Option<HostLoad> {
        self.0.info().ok()?.load.map(super::host_load)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The agent would hold what it carried for the time in which a lost session may come back.
        self.0.leave();
    }
}

impl Over {
    /// Sees whether the site is there, and makes the sockets. QEMU is not touched.
    pub fn open(args: &LiveArgs, way: Way) -> Result<Over, Failure> {
        let Way { shared, memory, disks } = way;
        let folder = Sockets::make(&std::env::temp_dir());
        let folder = folder.map_err(|error| internal("folder for sockets", &error))?;
        let path = |name: &str| folder.path().join(name);
        let here = Here { monitor: path(MONITOR), memory: path(MEMORY), disks: path(DISKS) };
        let monitor = format!("unix:{}", args.to.display());
        let mut over = Over::dial(args, shared, here, (memory, disks), Reach::Folder, Some(monitor))?;
        over.asking.is_own = args.uri.is_none() && args.nbd.is_none();
        let Here { monitor, memory, disks } = &over.here;
        give_to_qemu(&args.source, &[monitor, memory, disks, folder.path()]);
        over._folder = Some(folder);
        Ok(over)
    }

    /// The same for a libvirt domain: sockets of the same path as those that its QEMU will listen at there.
    pub fn open_for_domain(
        args: &LiveArgs,
        site: &str,
        sites: &Sites,
        passage: &Passage,
    ) -> Result<Over, Failure> {
        let place = |given: &Option<String>, option: &str, name: &str| {
            let otherwise = format!("unix:{DOMAIN_FOLDER}/drover-{}.{name}", passage.uuid);
            let given = given.clone().unwrap_or(otherwise);
            given.strip_prefix("unix:").filter(|path| path.starts_with('/')).map(PathBuf::from).ok_or_else(|| {
                let text = format!("{option} {given}: with --via a domain goes by unix:/PATH, the same path on both hosts");
                Failure::new(Exit::Usage, text)
            })
        };
        let (memory, disks) = (place(&args.uri, "--uri", MEMORY)?, place(&args.nbd, "--nbd", DISKS)?);
        let there = (format!("unix:{}", memory.display()), NbdAt::Unix(disks.clone()));
        // A look takes no place from a move.
        let here = |path: PathBuf, name: &str| if args.dry_run { to_look(&path, name) } else { path };
        let (memory, disks) = (here(memory, MEMORY), here(disks, DISKS));
        let here = Here { monitor: PathBuf::new(), memory, disks };
        Over::dial(args, sites.named(args, site)?, here, there, Reach::User(passage.owner), None)
    }

    /// Makes what leads there. Without a monitor there nobody is connected to it.
    fn dial(
        args: &LiveArgs,
        shared: Arc<Shared>,
        here: Here,
        (memory, disks): (String, NbdAt),
        reach: Reach,
        monitor: Option<String>,
    ) -> Result<Over, Failure> {
        let site = shared.0.clone();
        let name = site.name().to_string();
        let memory_to = address_of(&memory)?;
        let mut wanted = vec![memory_to.clone()];
        wanted.extend((args.disks == DisksArg::Mirror).then(|| nbd_text(&disks)));
        let session = site.session().map_err(|refusal| away(&name, &refusal.to_string()))?;
        let stripes = session.stats().stripes;
        let round_trips = stripes.iter().filter_map(|stripe| stripe.rtt.or(stripe.rtt_min));
        let first_round_trip = round_trips.min().unwrap_or_default();
        let asking = Asking { session, wanted, is_own: false, is_direct: false };
        let door = |path: &Path, to: String| Door { path: path.to_path_buf(), reach, to };
        let mut doors = vec![door(&here.memory, memory_to), door(&here.disks, nbd_text(&disks))];
        doors.extend(monitor.iter().map(|to| door(&here.monitor, to.clone())));
        let packs = !args.no_link_compression;
        let dial = Arc::new(move || Ok(site.session()?));
        let via = Via { site: name.clone(), dial, is_shared: true, packs, takes_over: true };
        let opened = Doors::open(via, &doors).map_err(|error| match &monitor {
            Some(_) => unmade(&error),
            None => no_door(error),
        })?;
        let link = Arc::new(Link { site: name, doors: opened, first_round_trip, monitor, shared });
        Ok(Over { link, here, asking, _folder: None })
    }

    /// Asks the site whether all that the move needs may be connected to. The agent connects to see it, which a QEMU that
    /// listens there would take for its move: so only a target that does not listen yet is asked about.
    pub fn ask(&self, target: &mut Guest) -> Result<(), Failure> {
        let waits = target.waits_deferred();
        let waits = waits.map_err(|error| Failure::new(Exit::Target, error.chain()))?;
        self.ask_if(waits)
    }

    /// The same, if nobody can be listening there yet.
    pub fn ask_if(&self, waits: bool) -> Result<(), Failure> {
        let Asking { session, wanted, is_own, is_direct } = &self.asking;
        match waits && !is_direct {
            // At once: each takes a round trip.
            true => thread::scope(|scope| {
                let thread = |to| thread::Builder::new().spawn_scoped(scope, move || probe(session, to));
                let probes: Vec<_> = wanted.iter().map(|to| (to, thread(to))).collect();
                probes.into_iter().try_for_each(|(to, thread)| {
                    let probed = match thread {
                        Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                        // Without a thread it takes its round trip by itself.
                        Err(_) => probe(session, to),
                    };
                    free(self.site(), to, *is_own, probed)
                })
            }),
            false => Ok(()),
        }
    }

    /// Connects to the target's monitor.
    pub fn connect(&self) -> Result<Guest, Failure> {
        Guest::connect(&self.here.monitor, Side::Target).map_err(|error| {
            let site = self.site();
            match self.link.doors.take_refused().pop() {
                Some(refused) => {
                    Failure::new(Exit::Plan, format!("{site}: monitor {}: {}", refused.target, refused.why))
                }
                None => {
                    Failure::new(Exit::Target, format!("monitor of the target at {site}: {}", error.chain()))
                        .advise("QEMU serves one client per monitor: see that nobody else is connected there; what a killed run held is free after some seconds: run the command again")
                }
            }
        })
    }

    /// How busy the site's host is, where its agent tells.
    pub fn load(&self) -> Option<HostLoad> {
        self.link.shared.load()
    }

    /// Which way is better for memory and disks, this one or past it.
    pub fn route(&self, sites: &Sites, direct: &Direct) -> Route {
        sites.route(&self.link.shared, direct)
    }

    /// Memory and disks go past it.
    pub fn set_direct(&mut self) {
        self.asking.is_direct = true;
    }

    /// What a move over it is told.
    pub fn carried(&self) -> Carried {
        let ends = || CarriedEnds {
            memory: format!("unix:{}", self.here.memory.display()),
            disks: NbdAt::Unix(self.here.disks.clone()),
        };
        Carried { by: self.link.clone(), ends: (!self.asking.is_direct).then(ends) }
    }

    /// Whether memory and disks go over it, too, not the target's monitor alone.
    pub fn is_whole(&self) -> bool {
        !self.asking.is_direct
    }

    /// Where the source connects to for memory.
    pub fn memory_here(&self) -> &Path {
        &self.here.memory
    }

    /// What the site is called.
    pub fn site(&self) -> &str {
        &self.link.site
    }

    /// Why connections of a domain came to nothing at the site, since this was asked last: libvirt knows only that they ended.
    pub fn refused(&self) -> Vec<String> {
        if self.link.monitor.is_some() {
            return Vec::new();
        }
        let refused = self.link.doors.take_refused();
        refused.iter().map(|one| format!("{}: {}: {}", self.site(), one.target, one.why)).collect()
    }

    /// What went over it, for reports.
    pub fn told(&self) -> Value {
        let told = self.link.doors.link();
        json!({
            "site": told.site, "connections": told.connections, "rtt_us": told.rtt_us,
            "congestion": told.congestion,
            "up_bytes": told.up_bytes, "down_bytes": told.down_bytes, "bytes_again": told.bytes_again,
        })
    }
}

/// Where the target waits for memory and offers its disks: beside its monitor, if nothing else was said.
fn places(args: &LiveArgs) -> Result<(String, NbdAt), Failure> {
    if !args.to.is_absolute() {
        let text = format!("--to {}: with --via it is a path at the site, from / on", args.to.display());
        return Err(Failure::new(Exit::Usage, text));
    }
    if args.uri.as_ref().is_some_and(|uri| uri.starts_with(RDMA)) {
        let what = "RDMA goes from host to host, not over a link: leave --via out, or go by unix:";
        return Err(Failure::new(Exit::Usage, what));
    }
    let beside = |what: &str| format!("unix:{}.{what}", args.to.display());
    let memory = args.uri.clone().unwrap_or_else(|| beside(MEMORY));
    let disks = nbd_at(&args.nbd.clone().unwrap_or_else(|| beside(DISKS)))?;
    Ok((memory, disks))
}

/// What the agent is asked to connect to for memory.
fn address_of(uri: &str) -> Result<String, Failure> {
    match uri.strip_prefix("tcp:") {
        Some(address) if address.ends_with(":0") => Err(Failure::new(
            Exit::Usage,
            format!("--uri {uri}: with --via a port is to be named, not chosen there"),
        )),
        Some(address) => Ok(address.to_string()),
        None => Ok(uri.to_string()),
    }
}

fn nbd_text(at: &NbdAt) -> String {
    match at {
        NbdAt::Unix(path) => format!("unix:{}", path.display()),
        NbdAt::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        NbdAt::Tcp(host, port) => format!("{host}:{port}"),
    }
}

/// Nobody may be there yet, and it must be allowed to connect.
fn free(
    site: &str,
    to: &str,
    is_own: bool,
    probed: Result<Probed, drover_link::LinkError>,
) -> Result<(), Failure> {
    match probed {
        Ok(Probed::Free) => Ok(()),
        Ok(Probed::Taken) if is_own => Ok(()),
        Ok(Probed::Taken) => Err(Failure::new(Exit::Plan, format!("{site}: {to}: address already in use"))
            .advise("end it, or choose another place with --uri and --nbd")),
        Ok(Probed::Refused(_, why)) => Err(Failure::new(Exit::Plan, format!("{site}: {to}: {why}"))),
        Err(error) => Err(away(site, &error.to_string())),
    }
}

fn away(site: &str, why: &str) -> Failure {
    Failure::new(Exit::Connection, format!("agent of {site}: {why}"))
        .advise("see `drover agent list`, and whether the agent runs there")
}

fn internal(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Internal, format!("{what}: {error}"))
}

fn unmade(error: &DoorError) -> Failure {
    let why = error.source().map_or_else(String::new, |source| format!(": {source}"));
    Failure::new(Exit::Internal, format!("sockets of the link: {error}{why}"))
}

/// Beside the place of a move's socket, where a look has its own.
fn to_look(path: &Path, name: &str) -> PathBuf {
    path.with_file_name(format!("drover-look-{}.{name}", std::process::id()))
}

/// QEMU may run as another user, who must reach the sockets; nobody else does. Where that cannot be, QEMU says so.
fn give_to_qemu(monitor: &Path, paths: &[&Path]) {
    let Ok(owner) = std::fs::metadata(monitor).map(|file| file.uid()) else { return };
    for path in paths {
        let _ = chown(path, Some(owner), None);
    }
}

fn no_socket(path: &Path, why: &str) -> Failure {
    Failure::new(Exit::Plan, format!("{}: no socket can be there: {why}", path.display())).advise(
        "name other places with --uri and --nbd (unix:/PATH): folders that are there on both hosts, and in which drover may \
         write here, and QEMU there",
    )
}

/// Why a domain's sockets cannot be where they are wanted.
fn no_door(error: DoorError) -> Failure {
    match error {
        DoorError::Taken(path) => {
            let what = format!("{}: another drover listens there, and moves this domain", path.display());
            Failure::new(Exit::Plan, what).advise("wait for its end, or end it there by Ctrl-C")
        }
        DoorError::NotGiven { path, user, source } => Failure::new(
            Exit::Plan,
            format!(
                "{}: it cannot be given to user {user}, as which libvirt runs the guest: {source}",
                path.display()
            ),
        )
        .advise("run drover as root"),
        DoorError::Failed { path, source } => no_socket(&path, &source.to_string()),
        DoorError::Threads(error) => internal("sockets of the link", &error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_runs_that_are_gone_are_removed_and_of_those_that_live_never() {
        let place = tempfile::tempdir().unwrap();
        let alive = Sockets::make(place.path()).unwrap();
        let killed = Sockets::make(place.path()).unwrap();
        let gone = killed.path().to_path_buf();
        std::fs::write(gone.join(MONITOR), "").unwrap();
        let Sockets { folder, _lock } = killed;
        drop(_lock);
        let _ = folder.keep();
        // Somebody else's, and one that is being made.
        let others = place.path().join("drover-live-x");
        std::fs::create_dir(&others).unwrap();
        let next = Sockets::make(place.path()).unwrap();
        assert!(!gone.exists() && others.exists());
        assert!(alive.path().join(LOCK).exists() && next.path().join(LOCK).exists());
    }
}
