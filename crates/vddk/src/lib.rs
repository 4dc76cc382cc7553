//! Disks of vSphere through VMware's VDDK: one `nbdkit` with the vddk plugin for each disk, read over NBD.
//!
//! ```text
//! find      where library, plugin and nbdkit are, and which versions
//! settings  what a disk needs to be opened; pure: nbdkit's arguments, VDDK's configuration file
//! child     nbdkit under a guard: password by descriptor, private folder, ends with this process
//! log       what both say: a bounded file, and the last lines for errors
//! causes    pure: known causes of failures, by what the logs say, and what to try
//! disk      VddkDisk: a drover disk whose nbdkit is replaced when it dies or falls ill
//! session   a session of the API that disks are opened in, and who could see its cookie
//! ```
//!
//! VDDK is proprietary, so it is neither linked nor shipped: users put it where `libdir` says. It runs in a process of
//! its own, which also keeps its crashes and its libraries out of ours.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod causes;
mod child;
mod disk;
mod error;
mod find;
mod log;
mod session;
mod settings;

pub use disk::VddkDisk;
pub use error::{VddkError, VddkErrorKind};
pub use find::{Installation, Versions, supported};
pub use session::{ApiSession, arguments_are_hidden};
pub use settings::{Buffers, Settings};
