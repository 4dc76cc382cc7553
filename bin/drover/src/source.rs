//! The source of a plan, as this program has it: with the state folder that a command was given, and its words on standard error.

use std::path::Path;

use drover_agent::sites::ThisHost;
use drover_engine::{SourceProvider, Store};
use drover_source::{PlanSource, Setting, to_give_up};
use drover_types::inventory::About;

use crate::exit::Failure;
use crate::plan_file::PlanFile;
use crate::sites::this_host;
use crate::state::state_folder;

/// Opens the source of a plan.
pub fn source_of(file: &PlanFile, state: Option<&Path>) -> Result<PlanSource, Failure> {
    Ok(PlanSource::open(&setting(file, this_host(state)))?)
}

/// What giving a plan up needs of its source, and who that source is.
pub fn source_to_give_up(
    file: &PlanFile,
    store: &Store,
) -> Result<(Box<dyn SourceProvider>, About), Failure> {
    Ok(to_give_up(&setting(file, this_host(Some(store.folder()))), store)?)
}

fn setting(file: &PlanFile, host: ThisHost) -> Setting<'_> {
    Setting { plan: &file.plan, folder: &file.folder, host, own_state: state_folder(None) }
}
