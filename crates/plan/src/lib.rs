//! Plans: what a user wants moved, judged against what a provider has, and put in order.
//!
//! Pure: text and values in, values out. No clock, socket, file or thread.
//!
//! - [`Plan::parse`] reads a plan file and finds every mistake in it at once; [`schema`] tells
//!   editors the same rules, and [`structural`] a cluster.
//! - [`concerns`] says what is worth knowing about a VM before it moves.
//! - [`resolve`] lays a plan over an inventory: which VMs, where to, which way.
//! - [`proxies`] finds the VMs to which a plan has disks attached.
//! - [`placement`] finds a host for each VM where a plan has several.
//! - [`as_begun`] keeps a run at the VMs and disks it began with.
//! - [`nfc`] tells what reading through VDDK takes of each host, and how much of it there is.
//! - [`Moves::parse`] reads a file of live moves.
//! - [`Wanted`] chooses VMs of an inventory by the keys of a plan's selections.
//! - [`draft`] writes a first plan from an inventory, [`draft_rows`] one from a table of VMs, [`draft_waves`] waves for one.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod begun;
mod cards;
mod concern;
mod draft;
mod draft_table;
mod draft_waves;
mod flat;
mod glob;
mod hardware;
mod json;
mod keys;
mod model;
mod moves;
mod near;
pub mod nfc;
mod node;
pub mod placement;
mod problem;
mod read;
mod resolution;
mod resolve;
mod told_again;
mod wanted;
mod warm;

pub use begun::{Begun, Others, as_begun};
pub use cards::{Cards, RouteOfSeveral, cards, how_to_set, why_left_out};
pub use concern::{
    CATALOGUE, Concern, ConcernContext, Fate, NO_NETWORK_DRIVER, Namesakes, Stays, Weight, concerns,
    concerns_among, concerns_inside, fates, has_known_loader, lacking_driver, lacking_windows_driver,
    names_of_slots, renamed,
};
pub use draft::{DraftOptions, DraftSource, draft, draft_rows, given_in};
pub use draft_table::{DraftTable, draft_table, short_name};
pub use draft_waves::{DraftMember, DraftWave, draft_waves};
pub use flat::{FlatSetting, settings};
pub use glob::matches as name_matches;
pub use json::keys_json;
pub use keys::{SELECTORS, schema, structural};
pub use model::*;
pub use moves::{MOVES_MAX, Moves, OneMove, Setting};
pub use near::{near_names as near, unmatched};
pub use problem::{At, Problem, Severity};
pub use read::WAVES_MAX;
pub use resolution::{
    HostRoute, PlannedDisk, PlannedNic, PlannedVm, Resolution, Route, Space, TargetBus, TargetHost, VmGroup,
    space_needed,
};
pub use resolve::{NAMES_SHOWN_MAX, PlannedProxy, chosen_by, kube_name, proxies, resolve};
pub use wanted::Wanted;
pub use warm::{Audit, Cutover, Interval, Warm, WarmKeys, moment_text, parse_moment};
