//! Other sites, by the state folder that a command was given.

use std::path::Path;
use std::sync::Arc;

use drover_agent::limits::DayLimits;
pub use drover_agent::sites::{Asked, Measured, own_name};
use drover_agent::sites::{SiteError, ThisHost, known};
use drover_agent::trust::{Folder, Identity};
use drover_agent::{Refusal, Site};
use drover_link::{RdmaMode, Session};

use crate::exit::{Exit, Failure};
use crate::out::say;
use crate::state::state_folder;

/// This host, which tells people what goes on.
pub fn this_host(state: Option<&Path>) -> ThisHost {
    ThisHost { state: state_folder(state), say: |words| say(words) }
}

/// The part of the state folder that links use.
pub fn folder(state: Option<&Path>) -> Result<Folder, Failure> {
    Ok(this_host(state).folder()?)
}

/// The key of this host.
pub fn identity(folder: &Folder) -> Result<Identity, Failure> {
    Identity::open(folder).map_err(|error| unusable(&error))
}

/// State that cannot be used.
pub fn unusable(error: &dyn std::error::Error) -> Failure {
    SiteError::State(drover_engine::chain(error)).into()
}

/// The site of that name, not connected yet.
pub fn site(state: Option<&Path>, name: &str, rate: Option<u64>) -> Result<Arc<Site>, Failure> {
    Ok(this_host(state).site(name, rate, DayLimits::default())?)
}

/// Makes sessions to the site of that name.
pub fn dialler(
    state: Option<&Path>,
    name: &str,
    rate: Option<u64>,
    asked: Asked,
) -> Result<impl Fn() -> Result<Session, Refusal> + Send + Sync + 'static, Failure> {
    Ok(this_host(state).dialler(name, rate, DayLimits::default(), asked)?)
}

/// Whether something is set that limits what goes to the site of that name, at whatever hour.
pub fn is_limited(state: Option<&Path>, name: &str) -> Result<bool, Failure> {
    Ok(this_host(state).is_limited(name)?)
}

/// Where the agent of the site of that name is; nothing where that is not known.
pub fn addresses_of(state: Option<&Path>, name: &str) -> Vec<String> {
    known(&state_folder(state), name).map(|peer| peer.addresses).unwrap_or_default()
}

/// The site of that name, to measure the line to it; over RDMA as that says, else as it was paired.
pub fn measured(state: Option<&Path>, name: &str, rdma: Option<RdmaMode>) -> Result<Measured, Failure> {
    Ok(this_host(state).measured(name, rdma)?)
}

impl From<SiteError> for Failure {
    fn from(error: SiteError) -> Failure {
        let exit = match error {
            SiteError::State(_) | SiteError::Thread { .. } => Exit::Internal,
            SiteError::Unknown(_) => Exit::Usage,
            SiteError::Refused { .. } => Exit::Connection,
        };
        Failure::new(exit, error.to_string()).advise(error.advice())
    }
}
