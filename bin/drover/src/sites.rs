//! Other sites: who this host is, whom it trusts, and sessions to their agents.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drover_agent::trust::{DayLimit, Folder, Identity, Peer, Peers, limit_at};
use drover_agent::{Refusal, Route, Site, dial};
use drover_engine::chain;
use drover_link::{LinkError, RateLimit, Session, StripeBounds};

use crate::exit::{Exit, Failure};
use crate::state::state_folder;

/// How often the limit of the hour is looked up.
const LIMIT_EVERY: Duration = Duration::from_secs(5);

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
            "see `drover agent list`; pair with its agent by `drover agent pair HOST:PORT --name NAME`",
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
    Ok(Site::new(name, dialler(state, name, rate, limits, None)?))
}

/// Makes sessions to the site of that name. `mark` is for rules of the packet filter that must leave them alone.
pub fn dialler(
    state: Option<&Path>,
    name: &str,
    rate: Option<u64>,
    limits: &[DayLimit],
    mark: Option<u32>,
) -> Result<impl Fn() -> Result<Session, Refusal> + Send + Sync + 'static, Failure> {
    let folder = folder(state)?;
    let identity = identity(&folder)?;
    let peer = dialled(folder, name)?;
    let peer = Peer { limits: [&peer.limits, limits].concat(), ..peer };
    let limit = Arc::new(RateLimit::new(rate_now(&peer, rate)));
    follow_the_day(&limit, &peer, rate);
    Ok(move || Ok(dial(&identity, peer.key, &Route { mark, ..route(&peer, limit.clone()) })?))
}

/// A site whose line is measured.
pub struct Measured {
    identity: Identity,
    peer: Peer,
    /// Bytes a second that may go to it at this hour.
    pub limit: Option<u64>,
}

/// The site of that name, to measure the line to it.
pub fn measured(state: Option<&Path>, name: &str) -> Result<Measured, Failure> {
    let folder = folder(state)?;
    let identity = identity(&folder)?;
    let peer = dialled(folder, name)?;
    let limit = rate_now(&peer, None);
    Ok(Measured { identity, peer, limit })
}

impl Measured {
    /// A session of so many connections.
    pub fn session(&self, stripes: usize) -> Result<Session, LinkError> {
        let limit = Arc::new(RateLimit::new(self.limit));
        let route = Route { stripes: StripeBounds::fixed(stripes), ..route(&self.peer, limit) };
        dial(&self.identity, self.peer.key, &route)
    }
}

/// Connects to a site's agent, so that a site that cannot be reached is told before anything is begun.
pub fn dial_now(site: &Site) -> Result<(), Failure> {
    site.session().map(drop).map_err(|refusal| {
        Failure::new(Exit::Connection, format!("agent of {}: {refusal}", site.name()))
            .advise("see `drover agent list`, and whether the agent runs there")
    })
}

/// The limit of this hour, and the one that was asked for: the lower one.
fn rate_now(peer: &Peer, asked: Option<u64>) -> Option<u64> {
    limit_at(&peer.limits, drover_agent::now()).into_iter().chain(asked).min()
}

/// Sets the limit anew as the day goes on, for as long as anybody keeps to it.
fn follow_the_day(limit: &Arc<RateLimit>, peer: &Peer, asked: Option<u64>) {
    if peer.limits.is_empty() {
        return;
    }
    let (limit, peer) = (Arc::downgrade(limit), peer.clone());
    std::thread::spawn(move || {
        while let Some(limit) = limit.upgrade() {
            limit.set(rate_now(&peer, asked));
            drop(limit);
            std::thread::sleep(LIMIT_EVERY);
        }
    });
}

fn route(peer: &Peer, limit: Arc<RateLimit>) -> Route {
    let rate_limit = Some(limit);
    Route {
        addresses: peer.addresses.clone(),
        sources: peer.sources.clone(),
        own_name: own_name(),
        rate_limit,
        ..Route::default()
    }
}
