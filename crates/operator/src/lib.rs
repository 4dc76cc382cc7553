//! What the operator decides: which Migration gets a worker, when, and what becomes of it.
//!
//! Pure: objects as the API server shows them and the time go in; a status and the next act come out. No clock, socket or thread.
//!
//! ```text
//! model      the custom resources, as far as the operator reads and writes them
//! layout     a plan that was laid over its source -> Migrations to make and to change
//! begun      VMs that are on their way, when a plan is laid over its source again
//! decide     one Migration, what is there of its Job, claim and pods -> its status, and what is to be done next
//! lock       which Migration has a VM, of all namespaces
//! fence      what a worker writes to its Migration, held against its epoch and its pod
//! apply      a plan file -> a Plan
//! forecast   when what is on its way will have arrived
//! admission  which of those that wait may go: the one scheduler, with names for its jobs
//! cutovers   how many guests are down for their cutovers at once
//! waves      what of a Plan may begin by its waves, windows and freezes
//! jobs       the Jobs that are there
//! objects    Jobs, claims and events
//! time       moments as Kubernetes writes them
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission;
pub mod apply;
pub mod begun;
pub mod cutovers;
pub mod decide;
pub mod fence;
pub mod forecast;
pub mod jobs;
pub mod layout;
pub mod lock;
pub mod model;
pub mod objects;
pub mod time;
pub mod waves;

/// Group and version of the resources.
pub const API: &str = "drover.dev/v1alpha1";
/// Keeps a Migration until what it began is undone, or stays by leave.
pub const FINALIZER: &str = "drover.dev/undo";
/// Annotation: the Migration may go although what it began is not undone.
pub const ABANDON: &str = "drover.dev/abandon";
/// Annotation: whatever it says anew, a Migration that has failed is tried again.
pub const RETRY: &str = "drover.dev/retry";
/// Annotation: whatever it says anew, a Migration that moves warm moves over now.
pub const CUTOVER: &str = "drover.dev/cutover";
/// Annotation of a Plan: names of waves, after which others go on whatever of them failed.
pub const PROCEED: &str = "drover.dev/proceed";
/// Label of all that is made for a Migration: its name.
pub const MIGRATION: &str = "drover.dev/migration";
/// Annotation of the same: the Migration's UID.
pub const MIGRATION_UID: &str = "drover.dev/migration-uid";
/// Annotation of a Job: what its worker does.
pub const WORK: &str = "drover.dev/work";
/// Annotation of a Job: the epoch of its worker.
pub const EPOCH: &str = "drover.dev/epoch";
/// On a Job: bytes that its worker may take of the NFC memory of its VM's host.
pub const NFC_BYTES: &str = "drover.dev/nfc-bytes";
