//! Other sites: who this host is, whom it trusts, and sessions to their agents.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drover_agent::trust::{DayLimit, Folder, Identity, Peer, Peers, limit_at};
use drover_agent::{Refusal, Route, Site, dial};
use drover_engine::chain;
use drover_link::{RateLimit, Session};

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
    let folder = folder(state)?;
    let identity = identity(&folder)?;
    let peers = Peers::new(folder);
    let peer = peers.named(name).map_err(|error| unusable(&error))?;
    let peer = peer.filter(|peer| !peer.addresses.is_empty()).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("there is no site '{name}' that this host could dial")).advise(
            "see `drover agent list`; pair with its agent by `drover agent pair HOST:PORT --name NAME`",
        )
    })?;
    let peer = Peer { limits: [&peer.limits, limits].concat(), ..peer };
    let limit = Arc::new(RateLimit::new(rate_now(&peer, rate)));
    follow_the_day(&limit, &peer, rate);
    Ok(Site::new(name, move || dial_peer(&identity, &peer, limit.clone())))
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

fn dial_peer(identity: &Identity, peer: &Peer, limit: Arc<RateLimit>) -> Result<Session, Refusal> {
    let rate_limit = Some(limit);
    let route =
        Route { addresses: peer.addresses.clone(), own_name: own_name(), rate_limit, ..Route::default() };
    Ok(dial(identity, peer.key, &route)?)
}
