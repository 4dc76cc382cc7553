//! How much there is of everything.

use serde::{Deserialize, Serialize};

/// VMs of one host at once: `MAX_VM_INFLIGHT` of the Migration Toolkit for Virtualization.
pub const VMS_PER_HOST: u32 = 20;
/// Disks at once in all. MTV's published figures fall by a quarter beyond 200 disks at once.
pub const DISKS: u32 = 200;
/// Warm VMs whose guests are down for their last pass at once.
pub const CUTOVERS: u32 = 20;
/// Tries of a host that is left alone; after the last it is given up.
pub const HOST_TRIES: u32 = 5;

/// Budgets of a [`crate::Scheduler`], and what is assumed of rates. 0 counts as 1, so that every schedule ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budgets {
    /// VMs of one host at once.
    pub vms_per_host: u32,
    /// Disks of one host at once, where nothing else is told of it ([`HostLimits`]).
    pub disks_per_host: u32,
    /// Disks of one datastore at once.
    pub disks_per_datastore: u32,
    /// Disks at once in all.
    pub disks: u32,
    /// Warm VMs whose guests are down for their last pass at once.
    pub cutovers: u32,
    /// Tries of a host that failed and is left alone between them, after which it is given up.
    pub host_tries: u32,
    /// In which order jobs go.
    pub order: Order,
    /// What is assumed of rates.
    pub rates: Rates,
    /// For the jitter of back-offs.
    pub seed: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        Budgets {
            vms_per_host: VMS_PER_HOST,
            disks_per_host: u32::MAX,
            disks_per_datastore: u32::MAX,
            disks: DISKS,
            cutovers: CUTOVERS,
            host_tries: HOST_TRIES,
            order: Order::Critical,
            rates: Rates::default(),
            seed: 0,
        }
    }
}

/// In which order jobs go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Fewer turns, greater priority, earlier deadline, then whatever holds up the end of all: the greatest of the VM's
    /// own time and what is left to do at its host and datastore.
    #[default]
    Critical,
    /// As they came: what a counter per host does. To compare with.
    Arrival,
}

/// Rates that estimates are made of, in bytes a second. They decide the order only, never how much runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// One disk alone.
    pub disk: u64,
    /// All disks of a host.
    pub host: u64,
    /// All disks of a datastore.
    pub datastore: u64,
}

impl Default for Rates {
    /// MTV's published figures: 100 MiB/s for one disk, 284 MiB/s for a host, 312 MiB/s for a datastore.
    fn default() -> Self {
        Rates { disk: 100 << 20, host: 284 << 20, datastore: 312 << 20 }
    }
}

/// What is different at one host; absent: as for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLimits {
    /// VMs at once.
    pub vms: Option<u32>,
    /// Disks at once, such as its NFC memory allows.
    pub disks: Option<u32>,
    /// Disks at once that are worth it, as [`crate::Climb`] found; never more than `disks`.
    pub learned: Option<u32>,
    /// Bytes a second of all its disks, as measured.
    pub rate: Option<u64>,
}

impl HostLimits {
    /// Of what two tell of what a host takes, the least counts; what was found out about it stays.
    pub fn within(self, other: HostLimits) -> HostLimits {
        let least = |one: Option<u32>, two: Option<u32>| one.into_iter().chain(two).min();
        HostLimits { vms: least(self.vms, other.vms), disks: least(self.disks, other.disks), ..self }
    }
}
