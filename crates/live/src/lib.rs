//! What is decided when a running guest moves: what both sides know, what is set on them, what will happen,
//! and what to do when it goes otherwise.
//!
//! ```text
//! answers of both monitors ──> Ability ──┐
//! measured line and memory ──> Facts ────┼──> choose ──> Course ──> settings (the same on both sides)
//! the promise ───────────────────────────┘                 │
//! what lies between, how busy the hosts are ───────────> Between ─> what that takes of a downtime
//! how memory is wished to go ──────────────────────────> conflicts, credentials ──> what is in the way
//! the line, and what both sides know of RDMA ──────────> chunk ──> how large its chunks are, and why
//! samples while it moves ──────────────────────────────> Outlook > what is foreseen, and whether the promise still is one
//! looks while it moves ────────────────────────────────> Migration > what is to be done now, by all of these:
//!   how far the guest is ──────────────────────────────> Passage > follow, hand over, start at the target, see after it
//! samples while it moves ──────────────────────────────> Watch ──> go on, throttle, post-copy, give up
//! the same, where a link holds what QEMU has sent ───────> Ease ──> the end of it slower than the line
//! what two ways were measured to carry ────────────────> route ─> directly, or over the link
//! what both sides told ────────────────────────────────> parts ──> what the downtime was made of
//! looks at both sides of post-copy ────────────────────> Ahead ──> a new line, lost, given up (when: Recovery)
//! what an earlier run left ────────────────────────────> found ──> begin, go on, start at the target, nothing
//! what two libvirt daemons say of a domain ────────────> domain ─> what is in the way, who has it
//! several guests, one line, one budget ────────────────> together > how many at once, in which order, with what shares
//! ```
//!
//! Pure: what the monitors said and the time go in. `drover-qemu` asks and tells them.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ability;
mod ahead;
mod between;
mod choose;
mod chunk;
mod conflicts;
mod credentials;
mod domain;
mod downtime;
mod ease;
mod event;
mod follow;
mod forecast;
mod found;
mod handover;
mod load;
mod migration;
mod outlook;
mod passage;
mod place;
mod preflight;
mod recovery;
mod route;
mod settings;
mod silence;
mod still;
pub mod together;
mod told;
mod turn;
mod watch;

pub use ability::{Ability, LOSES_WRITES, loses_writes};
pub use ahead::{Ahead, Mending};
pub use between::{Between, By, Carries};
pub use choose::{Allowed, Choice, Course, Looked, Way, channels_within, choose, excess};
pub use conflicts::conflicts;
pub use credentials::{Credentials, tls_left_set, tls_name_obstacle, tls_obstacles};
pub use domain::{
    Domain, DomainDisk, DomainJob, DomainStand, DomainUnclear, Room, Spot, cannot_resume, copy_obstacles,
    domain_found, domain_obstacles, tight_pools,
};
pub use downtime::Downtime;
pub use ease::Ease;
pub use event::{Event, MirrorState, Moved};
pub use follow::Follow;
pub use forecast::{Facts, Forecast, Promise, SoFar};
pub use found::{Found, Stand, Unclear, found};
pub use handover::{Handover, in_step};
pub use load::{HostLoad, Loads};
pub use migration::{Action, Halt, Migration, Pause, Seen};
pub use outlook::{Foreseen, LINE_ASSUMED, Outlook, facts_before, facts_under_way, line_said};
pub use passage::{Act, Passage, Settled};
pub use place::Where;
pub use preflight::{BlockJob, Disk, Machine, Obstacle, job_obstacles, obstacles, unshared};
pub use recovery::{Half, Look, Recovery, Step};
pub use route::{Route, RouteAsked, RouteReason, Streams, WantsLink, choose_route};
pub use settings::{
    Compression, Difference, Own, RATE_UNLIMITED, Rdma, Settings, SettingsError, Side, Throttle, Tls, Wish,
    differences, settings, slow_down,
};
pub use silence::{After, AfterStep, SILENCE_MAX, Silence};
pub use still::{Happened, Moment, Part, parts, stood_at_source, stopped_by_somebody};
pub use told::Told;
pub use turn::{TurnState, TurnStep, is_look_old};
pub use watch::{Cause, Deed, Phase, Sample, Watch, Why};
