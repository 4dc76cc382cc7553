//! What came of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::climb::Found;
use crate::scheduler::Ended;
use crate::wait::Resource;

/// What came of a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// From the beginning until the last VM runs at the target, in milliseconds.
    pub makespan_ms: u64,
    /// Each VM, in the order of the fleet.
    pub vms: Vec<Moved>,
    /// Resources, each as far as it has a limit.
    pub resources: Vec<ResourceUse>,
    /// Which resource limited most of the transfers when.
    pub limited: Vec<Limited>,
    /// Milliseconds in which nothing was transferred, by what went on then.
    pub idle: BTreeMap<Idle, u64>,
    /// Disks at once that were found by measuring, of hosts and datastores.
    pub found: Vec<(Resource, Found)>,
    /// Decisions of the scheduler.
    pub decisions: u64,
    /// Greatest number of disks that were read at once.
    pub disks_max: u32,
}

/// What came of a VM. Times are in milliseconds, as those of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// When it was admitted first; absent if it never was.
    pub begin_ms: Option<u64>,
    /// When it ran at the target; absent if it never did.
    pub end_ms: Option<u64>,
    /// When its guest was shut down.
    pub down_ms: Option<u64>,
    /// Why it never began.
    pub given_up: Option<Ended>,
    /// Passes, the last one too; 1 if it moved cold.
    pub passes: u32,
    /// Bytes that were read.
    pub bytes: u64,
    /// Milliseconds that its disks were limited by each resource, added up over its disks; the longest first.
    pub limited_by: Vec<(Resource, u64)>,
}

impl Moved {
    /// How long its guest was down.
    pub fn downtime_ms(&self) -> Option<u64> {
        Some(self.end_ms?.saturating_sub(self.down_ms?))
    }
}

/// What a resource did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResourceUse {
    /// Which one.
    pub resource: Resource,
    /// Bytes that went through it.
    pub bytes: u64,
    /// Time in which it was full, in milliseconds.
    pub full_ms: u64,
    /// Bytes that went through it, as a part of what could have until the end.
    pub part: f64,
}

/// What goes on while nothing is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idle {
    /// A VM is shut down, gets a snapshot, is verified or starts.
    Steps,
    /// No VM is, and one pauses between passes or waits for the moment of its cutover.
    Pauses,
    /// VMs wait for windows.
    Windows,
}

/// A span of time in which one resource limited more transfers than any other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limited {
    /// From.
    pub from_ms: u64,
    /// Until.
    pub to_ms: u64,
    /// Which one; absent while nothing was transferred.
    pub by: Option<Resource>,
}
