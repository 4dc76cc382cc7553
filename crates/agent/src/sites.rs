//! Other sites, as this host knows them: who it is itself, whom it trusts, and sessions to their agents.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Builder;
use std::time::Duration;

use drover_link::{LinkError, RateLimit, RdmaMode, Session, StripeBounds};
use drover_types::chain;

use crate::limits::{DayLimits, Own, followed};
use crate::trust::{Folder, Identity, Peer, Peers, check_name, limit_at};
use crate::{AgentDisk, Refusal, Route, Site, dial, now};

/// How long a link may be down after the user asked for a stop, before nobody waits for it any more.
const DOWN_AFTER_STOP_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(250);

/// What to try where no thread can be had.
pub const MORE_THREADS: &str = "let this user have more threads (`ulimit -u`), then the same command again";

/// Why a site cannot be reached.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SiteError {
    /// The state that links use cannot be read or kept.
    #[error("{0}")]
    State(String),
    /// It has no agent that this host knows an address of.
    #[error("there is no site '{0}' that this host could dial")]
    Unknown(String),
    /// Its agent was not reached, or refused.
    #[error("agent of {site}: {refusal}")]
    Refused {
        /// The site.
        site: String,
        /// What it said, or what stood in the way.
        refusal: Refusal,
    },
    /// Nothing here would notice what becomes of it.
    #[error("starting a thread to watch the site {site}: {why}")]
    Thread {
        /// The site.
        site: String,
        /// What the kernel said.
        why: String,
    },
}

impl SiteError {
    fn state(error: &dyn std::error::Error) -> SiteError {
        SiteError::State(chain(error))
    }

    /// What to try.
    pub fn advice(&self) -> &'static str {
        match self {
            SiteError::State(_) => "give another folder with --state",
            SiteError::Unknown(_) => {
                "see `drover agent list`; pair with its agent by `drover agent pair HOST:PORT --name NAME --token-file FILE`"
            }
            SiteError::Refused { .. } => "see `drover agent list`, and whether the agent runs there",
            SiteError::Thread { .. } => MORE_THREADS,
        }
    }
}

/// What this host calls itself.
pub fn own_name() -> String {
    let name = rustix::system::uname();
    let name: String = name.nodename().to_string_lossy().chars().take(64).collect();
    match check_name(&name) {
        Ok(()) => name,
        Err(_) => "drover".to_string(),
    }
}

/// This host, for one state folder.
#[derive(Clone, Debug)]
pub struct ThisHost {
    /// The state folder.
    pub state: PathBuf,
    /// Who is told what goes on with lines and limits.
    pub say: fn(&str),
}

impl ThisHost {
    /// The part of the state folder that links use.
    ///
    /// # Errors
    /// When it cannot be made or read.
    pub fn folder(&self) -> Result<Folder, SiteError> {
        Folder::open(&self.state).map_err(|error| SiteError::state(&error))
    }

    /// The key of this host.
    ///
    /// # Errors
    /// When it cannot be made, read or kept.
    pub fn identity(&self) -> Result<Identity, SiteError> {
        Identity::open(&self.folder()?).map_err(|error| SiteError::state(&error))
    }

    /// The site of that name, not connected yet; a `rate` and `limits` are beside its own.
    ///
    /// # Errors
    /// When there is none of that name, or the state cannot be used.
    pub fn site(&self, name: &str, rate: Option<u64>, limits: DayLimits) -> Result<Arc<Site>, SiteError> {
        Ok(Site::new(name, self.dialler(name, rate, limits, Asked::default())?))
    }

    /// The same for a site that is given up once it has been away for so long.
    ///
    /// # Errors
    /// As [`ThisHost::site`].
    pub fn site_for(&self, name: &str, give_up_after: Duration) -> Result<Arc<Site>, SiteError> {
        let asked = Asked { give_up_after: Some(give_up_after), ..Asked::default() };
        Ok(Site::new(name, self.dialler(name, None, DayLimits::default(), asked)?))
    }

    /// Makes sessions to the site of that name.
    ///
    /// # Errors
    /// As [`ThisHost::site`].
    pub fn dialler(
        &self,
        name: &str,
        rate: Option<u64>,
        limits: DayLimits,
        Asked { mark, give_up_after }: Asked,
    ) -> Result<impl Fn() -> Result<Session, Refusal> + Send + Sync + use<>, SiteError> {
        let (folder, identity, peer, say) = (self.folder()?, self.identity()?, self.dialled(name)?, self.say);
        let limit = followed(folder, &peer, Own { limits, rate, ..Own::none(say) });
        let is_told = AtomicBool::new(false);
        Ok(move || {
            let session =
                dial(&identity, peer.key, &Route { mark, give_up_after, ..route(&peer, limit.clone()) })?;
            if !is_told.swap(true, Ordering::Relaxed) {
                session.stats().notes.iter().for_each(|note| say(&format!("{}: {note}", peer.name)));
            }
            Ok(session)
        })
    }

    fn dialled(&self, name: &str) -> Result<Peer, SiteError> {
        dialled(self.folder()?, name)
    }

    /// Whether something is set that limits what goes to the site of that name, at whatever hour.
    ///
    /// # Errors
    /// As [`ThisHost::site`].
    pub fn is_limited(&self, name: &str) -> Result<bool, SiteError> {
        Ok(!self.dialled(name)?.limits.is_empty())
    }

    /// The site of that name, to measure the line to it; over RDMA as that says, else as it was paired.
    ///
    /// # Errors
    /// As [`ThisHost::site`].
    pub fn measured(&self, name: &str, rdma: Option<RdmaMode>) -> Result<Measured, SiteError> {
        let (folder, identity, mut peer) = (self.folder()?, self.identity()?, self.dialled(name)?);
        peer.rdma = rdma.unwrap_or(peer.rdma);
        let limit = limit_at(&peer.limits, now());
        let share = followed(folder, &peer, Own::none(self.say));
        Ok(Measured { identity, peer, limit, share })
    }
}

/// The peer of that name, which has an agent that this host could dial.
fn dialled(folder: Folder, name: &str) -> Result<Peer, SiteError> {
    let peer = Peers::new(folder).named(name).map_err(|error| SiteError::state(&error))?;
    let dialled = peer.filter(|peer| !peer.addresses.is_empty());
    dialled.ok_or_else(|| SiteError::Unknown(name.to_string()))
}

/// The same, where it is known in this state folder; nothing is made only to look.
pub fn known(state: &Path, name: &str) -> Option<Peer> {
    let folder = Folder::is_there(state).then(|| Folder::open(state).ok()).flatten()?;
    dialled(folder, name).ok()
}

/// What is asked of the connections to a site beyond what they are for all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// For rules of the packet filter that must leave them alone.
    pub mark: Option<u32>,
    /// How long a session may be without a connection.
    pub give_up_after: Option<Duration>,
}

/// A site whose line is measured.
pub struct Measured {
    identity: Identity,
    peer: Peer,
    /// Bytes a second that may go to it at this hour.
    pub limit: Option<u64>,
    share: Arc<RateLimit>,
}

impl Measured {
    /// A session of so many connections.
    ///
    /// # Errors
    /// When the agent is not there, or is another.
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
///
/// # Errors
/// When its agent is not reached, or refuses.
pub fn dial_now(site: &Site) -> Result<(), SiteError> {
    let refused = |refusal| SiteError::Refused { site: site.name().to_string(), refusal };
    site.session().map(drop).map_err(refused)
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
    /// One more.
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
///
/// # Errors
/// When no thread can be had.
pub fn give_up_on_stop(
    is_to_stop: impl Fn() -> bool + Send + 'static,
    site: &Arc<Site>,
    open: &OpenDisks,
) -> io::Result<()> {
    let (open, mut down) = (open.clone(), Duration::ZERO);
    watch("watch-site", LOOK, site, move |site| {
        let is_waited_for = is_to_stop() && !site.is_up();
        down = if is_waited_for { down + LOOK } else { Duration::ZERO };
        if down >= DOWN_AFTER_STOP_MAX {
            down = Duration::ZERO;
            open.give_up("the link is down, and the run is to stop");
            site.hang_up();
        }
    })
}

/// Looks at a site again and again, in a thread of this name, for as long as somebody else has it.
///
/// # Errors
/// When no thread can be had.
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
