//! Other sites: who this host is, whom it trusts, and sessions to their agents.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Builder;
use std::time::Duration;

use drover_agent::trust::{DayLimit, Folder, Identity, Peer, Peers, limit_at};
use drover_agent::{AgentDisk, Refusal, Route, Site, dial};
use drover_engine::chain;
use drover_link::{LinkError, RateLimit, RdmaMode, Session, StripeBounds};
use drover_mover::StopSignal;

use crate::exit::{Exit, Failure};
use crate::limits::{Own, followed};
use crate::out::say;
use crate::state::state_folder;

/// How long a link may be down after the user asked for a stop, before nobody waits for it any more.
const DOWN_AFTER_STOP_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(250);

/// The part of the state folder that links use.
pub fn folder(state: Option<&Path>) -> Result<Folder, Failure> {
    Folder::open(&state_folder(state)).map_err(|error| unusable(&error))
}

/// The key of this host.
pub fn identity(folder: &Folder) -> Result<Identity, Failure> {
    Identity::open(folder).map_err(|error| unusable(&error))
}

/// State that cannot be used.
pub fn unusable(error: &dyn std::error::Error) -> Failure {
    Failure::new(Exit::Internal, chain(error)).advise("give another folder with --state")
}

/// What this host calls itself.
pub fn own_name() -> String {
    let name = rustix::system::uname();
    let name: String = name.nodename().to_string_lossy().chars().take(64).collect();
    match drover_agent::trust::check_name(&name) {
        Ok(()) => name,
        Err(_) => "drover".to_string(),
    }
}

/// The peer of that name, which has an agent that this host could dial.
fn dialled(folder: Folder, name: &str) -> Result<Peer, Failure> {
    let peer = Peers::new(folder).named(name).map_err(|error| unusable(&error))?;
    peer.filter(|peer| !peer.addresses.is_empty()).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("there is no site '{name}' that this host could dial")).advise(
            "see `drover agent list`; pair with its agent by `drover agent pair HOST:PORT --name NAME --token-file FILE`",
        )
    })
}

/// The site of that name, not connected yet.
pub fn site(state: Option<&Path>, name: &str, rate: Option<u64>) -> Result<Arc<Site>, Failure> {
    site_within(state, name, rate, &[])
}

/// The same with limits of a plan's own.
pub fn site_within(
    state: Option<&Path>,
    name: &str,
    rate: Option<u64>,
    limits: &[DayLimit],
) -> Result<Arc<Site>, Failure> {
    Ok(Site::new(name, dialler(state, name, rate, limits, Asked::default())?))
}

/// The same for a site that is given up once it has been away for so long.
pub fn site_for(state: Option<&Path>, name: &str, give_up_after: Duration) -> Result<Arc<Site>, Failure> {
    let asked = Asked { give_up_after: Some(give_up_after), ..Asked::default() };
    Ok(Site::new(name, dialler(state, name, None, &[], asked)?))
}

/// What is asked of the connections to a site beyond what they are for all.
#[derive(Clone, Copy, Default)]
pub struct Asked {
    /// For rules of the packet filter that must leave them alone.
    pub mark: Option<u32>,
    /// How long a session may be without a connection.
    pub give_up_after: Option<Duration>,
}

/// Makes sessions to the site of that name.
pub fn dialler(
    state: Option<&Path>,
    name: &str,
    rate: Option<u64>,
    limits: &[DayLimit],
    Asked { mark, give_up_after }: Asked,
) -> Result<impl Fn() -> Result<Session, Refusal> + Send + Sync + 'static, Failure> {
    let folder = folder(state)?;
    let identity = identity(&folder)?;
    let peer = dialled(folder.clone(), name)?;
    let limit = followed(folder, &peer, Own { limits: limits.to_vec(), rate, ..Own::default() });
    let is_told = AtomicBool::new(false);
    Ok(move || {
        let session =
            dial(&identity, peer.key, &Route { mark, give_up_after, ..route(&peer, limit.clone()) })?;
        if !is_told.swap(true, Ordering::Relaxed) {
            session.stats().notes.iter().for_each(|note| say(format!("{}: {note}", peer.name)));
        }
        Ok(session)
    })
}

/// Whether something is set that limits what goes to the site of that name, at whatever hour.
pub fn is_limited(state: Option<&Path>, name: &str) -> Result<bool, Failure> {
    Ok(!dialled(folder(state)?, name)?.limits.is_empty())
}

/// What may go to the site of that name, by the hours; nothing where that is not known.
pub fn limits_of(state: Option<&Path>, name: &str) -> Vec<DayLimit> {
    // Nothing is made only to look.
    if !Folder::is_there(&state_folder(state)) {
        return Vec::new();
    }
    folder(state).and_then(|folder| dialled(folder, name)).map(|peer| peer.limits).unwrap_or_default()
}

/// Where the agent of the site of that name is; nothing where that is not known.
pub fn addresses_of(state: Option<&Path>, name: &str) -> Vec<String> {
    // Nothing is made only to look.
    if !Folder::is_there(&state_folder(state)) {
        return Vec::new();
    }
    folder(state).and_then(|folder| dialled(folder, name)).map(|peer| peer.addresses).unwrap_or_default()
}

/// A site whose line is measured.
pub struct Measured {
    identity: Identity,
    peer: Peer,
    /// Bytes a second that may go to it at this hour.
    pub limit: Option<u64>,
    share: Arc<RateLimit>,
}

/// The site of that name, to measure the line to it; over RDMA as that says, else as it was paired.
pub fn measured(state: Option<&Path>, name: &str, rdma: Option<RdmaMode>) -> Result<Measured, Failure> {
    let folder = folder(state)?;
    let identity = identity(&folder)?;
    let mut peer = dialled(folder.clone(), name)?;
    peer.rdma = rdma.unwrap_or(peer.rdma);
    let limit = limit_at(&peer.limits, drover_agent::now());
    let share = followed(folder, &peer, Own::default());
    Ok(Measured { identity, peer, limit, share })
}

impl Measured {
    /// A session of so many connections.
    pub fn session(&self, stripes: usize) -> Result<Session, LinkError> {
        let route = Route { stripes: StripeBounds::fixed(stripes), ..route(&self.peer, self.share.clone()) };
        dial(&self.identity, self.peer.key, &route)
    }

    /// What this host's other runs leave of the limit, in bytes a second.
    pub fn share(&self) -> Option<u64> {
        self.share.bytes_per_second()
    }
}

/// Connects to a site's agent, so that a site that cannot be reached is told before anything is begun.
pub fn dial_now(site: &Site) -> Result<(), Failure> {
    site.session().map(drop).map_err(|refusal| {
        Failure::new(Exit::Connection, format!("agent of {}: {refusal}", site.name()))
            .advise("see `drover agent list`, and whether the agent runs there")
    })
}

fn route(peer: &Peer, limit: Arc<RateLimit>) -> Route {
    let rate_limit = Some(limit);
    Route {
        addresses: peer.addresses.clone(),
        sources: peer.sources.clone(),
        own_name: own_name(),
        rate_limit,
        rdma: peer.rdma,
        ..Route::default()
    }
}

/// Disks of a site that a run has open.
#[derive(Clone, Default)]
pub struct OpenDisks(Arc<Mutex<Vec<Weak<AgentDisk>>>>);

impl OpenDisks {
    pub fn keep(&self, disk: AgentDisk) -> Arc<AgentDisk> {
        let disk = Arc::new(disk);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|disk| disk.strong_count() > 0);
        open.push(Arc::downgrade(&disk));
        disk
    }

    fn give_up(&self, why: &str) {
        let disks: Vec<_> = {
            let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            open.iter().filter_map(Weak::upgrade).collect()
        };
        disks.iter().for_each(|disk| disk.give_up(why));
    }
}

/// Once a stop was asked for, nobody waits long for a link that is down.
pub fn give_up_on_stop(stop: &StopSignal, site: &Arc<Site>, open: &OpenDisks) -> io::Result<()> {
    let (stop, open, mut down) = (stop.clone(), open.clone(), Duration::ZERO);
    watch("watch-site", LOOK, site, move |site| {
        let is_waited_for = stop.is_set() && !site.is_up();
        down = if is_waited_for { down + LOOK } else { Duration::ZERO };
        if down >= DOWN_AFTER_STOP_MAX {
            down = Duration::ZERO;
            open.give_up("the link is down, and the run is to stop");
            site.hang_up();
        }
    })
}

/// Looks at a site again and again, in a thread of this name, for as long as somebody else has it.
pub fn watch(
    name: &str,
    every: Duration,
    site: &Arc<Site>,
    mut look: impl FnMut(&Site) + Send + 'static,
) -> io::Result<()> {
    let site = Arc::downgrade(site);
    let watcher = move || {
        loop {
            std::thread::sleep(every);
            let Some(site) = site.upgrade() else { return };
            look(&site);
        }
    };
    Builder::new().name(name.into()).spawn(watcher).map(drop)
}
