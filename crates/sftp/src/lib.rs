//! Disks that are files of another host, read over SSH: an SFTP client (version 3) that speaks through
//! the user's own `ssh`.
//!
//! ```text
//! uri      ssh://[user@]host[:port]/path
//! session  `ssh -s -- host sftp` as a child: packets in and out, bounded in size and time
//! wire     the few packets that reading a file takes
//! disk     SftpDisk
//! lane     one child for each lane; reads pipelined
//! ```
//!
//! By the user's `ssh`, so that configuration, agent, known hosts, bastions and hardware keys work, and
//! drover never sees a key. It never asks a question (`BatchMode`), and no secret is in its arguments.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod disk;
#[doc(hidden)]
pub mod fuzzing;
mod lane;
mod session;
mod uri;
mod wire;

pub use disk::{SftpDisk, SftpOptions};
pub use uri::{SshUri, SshUriError};
