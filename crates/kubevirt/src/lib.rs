//! KubeVirt as a target: what a planned VM becomes in a cluster, and the cluster's API.
//!
//! ```text
//! vm        pure: a planned VM -> a VirtualMachine
//! objects   pure: claims, worker pods and their secrets; names and whose they are
//! upload    pure: claims that disks are sent to through CDI's upload proxy
//! access    kubeconfigs and their plug-ins
//! cluster   the API server: requests with a bound on their time, refusals with their kind
//! watch     lists in pages, and what changes afterwards
//! lines     texts that may never end: the logs of pods
//! forward   a port of this host that leads to one of a pod
//! ```
//!
//! Objects are made of small types and JSON of our own with only the fields that drover sets: the true schemas are the servers', which
//! refuse what they do not know (strict validation).
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod cluster;
mod forward;
mod lines;
pub mod objects;
pub mod upload;
pub mod vm;
mod watch;

pub use access::Access;
pub use cluster::{Change, Cluster, KubeError, KubeErrorKind, NOT_KNOWN};
pub use forward::Forward;
pub use watch::Seen;
