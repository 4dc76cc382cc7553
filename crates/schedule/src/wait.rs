//! What a job waits for.

use std::fmt;
use std::mem::discriminant;

use drover_types::{Bytes, count, counted, utc_moment};
use serde::{Deserialize, Serialize};

/// Something that there is only so much of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "name")]
pub enum Resource {
    /// One disk's own stream.
    Stream,
    /// VMs of a host, or its NIC.
    Host(String),
    /// A datastore.
    Datastore(String),
    /// The line to the target.
    Link,
    /// A part of the line with a rate of its own, such as the limit of a site.
    Line(String),
    /// A pool or folder of the target.
    Pool(String),
    /// This machine.
    Cpu,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Stream => f.write_str("one disk's stream"),
            Resource::Host(name) => write!(f, "host {name}"),
            Resource::Datastore(name) => write!(f, "datastore {name}"),
            Resource::Link => f.write_str("link"),
            Resource::Line(name) => f.write_str(name),
            Resource::Pool(name) => write!(f, "target pool {name}"),
            Resource::Cpu => f.write_str("this machine's CPU"),
        }
    }
}

/// What a job waits for. Its text is what `drover status` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "for")]
pub enum Wait {
    /// All VMs that its host serves at once are taken.
    HostVms {
        /// Host.
        host: String,
        /// VMs that run.
        held: u32,
        /// VMs that may.
        of: u32,
    },
    /// There is no room for its disks at its host.
    HostDisks {
        /// Host.
        host: String,
        /// Disks that are read.
        held: u32,
        /// Disks that may be.
        of: u32,
        /// Slots that it needs.
        needs: u32,
    },
    /// One VM of its host takes so long that it is to have the host's rate.
    Longest {
        /// Host.
        host: String,
        /// Disks that are read.
        held: u32,
        /// Disks that may be until then.
        of: u32,
    },
    /// There is no room for its disks at a datastore.
    DatastoreDisks {
        /// Datastore.
        datastore: String,
        /// Disks that are read.
        held: u32,
        /// Disks that may be.
        of: u32,
    },
    /// There is no room for its disks in all.
    Disks {
        /// Disks that are read.
        held: u32,
        /// Disks that may be.
        of: u32,
        /// Slots that it needs.
        needs: u32,
    },
    /// All VMs of a host that its own plan allows at once are taken.
    OwnVms {
        /// Host.
        host: String,
        /// VMs of the plan that run.
        held: u32,
        /// VMs of the plan that may.
        of: u32,
    },
    /// There is no room for its disks among those that its own plan allows.
    OwnDisks {
        /// Disks of the plan that are read.
        held: u32,
        /// Disks of the plan that may be.
        of: u32,
        /// Slots that it needs.
        needs: u32,
    },
    /// Others go first.
    Turn {
        /// Host.
        host: String,
        /// Jobs of its host that wait, with it.
        waiting: usize,
    },
    /// Its window is closed.
    Window {
        /// When the next one opens.
        opens_ms: u64,
        /// The same on the clock of its zone; empty if it is not known, or never.
        #[serde(default)]
        opens: String,
    },
    /// A wave that has to be over before its own is not.
    Wave {
        /// The wave.
        wave: String,
        /// Its VMs that have not ended.
        left: usize,
    },
    /// A wave that had to be over before its own is, but VMs of it failed: somebody has to say that this one goes on.
    WaveFailed {
        /// The wave.
        wave: String,
        /// VMs that failed.
        failed: usize,
    },
    /// It is the turn of its wave, and what is called before a wave runs.
    WaveHooks {
        /// Its wave.
        wave: String,
    },
    /// It failed, and is tried again later.
    Retry {
        /// What failed, as people call it; empty if that is not known.
        #[serde(default)]
        of: String,
        /// When.
        at_ms: u64,
    },
    /// Its host failed, and is left alone for a while.
    Host {
        /// Host.
        host: String,
        /// When it is tried again.
        until_ms: u64,
    },
    /// A datastore of it failed, and is left alone for a while.
    Datastore {
        /// Datastore.
        datastore: String,
        /// When it is tried again.
        until_ms: u64,
    },
    /// A place that it goes to is full or failed, and is left alone for a while.
    Target {
        /// The place, as people call it.
        target: String,
        /// What failed there last.
        #[serde(default)]
        why: String,
        /// When it is tried again.
        until_ms: u64,
    },
    /// A VM that it never runs beside is running.
    AntiAffinity {
        /// That VM.
        other: String,
    },
    /// An earlier stage of its group has not arrived.
    Stage {
        /// The group.
        group: String,
        /// The first stage that is left.
        stage: u32,
    },
    /// Others of its group are not ready to move over.
    Together {
        /// The group.
        group: String,
        /// How many.
        left: usize,
    },
    /// As many guests as may be are down for their cutover.
    Cutovers {
        /// Guests that are down.
        held: u32,
        /// Guests that may be.
        of: u32,
    },
    /// As many guests of its own plan as may be are down for their cutover.
    OwnCutovers {
        /// Guests of the plan that are down.
        held: u32,
        /// Guests of the plan that may be.
        of: u32,
    },
    /// What it may need at its target is promised to others.
    Room {
        /// The folder or pool.
        place: String,
        /// Bytes that it may need there.
        needs_bytes: u64,
        /// Bytes that are free there.
        free_bytes: u64,
        /// Of these, the bytes that others may need.
        promised_bytes: u64,
        /// The plans of those others.
        plans: Vec<String>,
    },
    /// The place that it goes to does not tell how much is free there.
    RoomUntold {
        /// The place, as people call it.
        place: String,
    },
    /// Other processes with the same state folder have the VM slots of its host.
    Elsewhere {
        /// Host.
        host: String,
        /// VMs that may run.
        of: u32,
    },
}

impl Wait {
    /// Whether both wait for the same, however much of it is in use now.
    pub fn is_for_same(&self, other: &Wait) -> bool {
        match (self, other) {
            (Wait::Wave { wave: one, .. }, Wait::Wave { wave: two, .. })
            | (Wait::WaveFailed { wave: one, .. }, Wait::WaveFailed { wave: two, .. })
            | (Wait::AntiAffinity { other: one }, Wait::AntiAffinity { other: two })
            | (Wait::DatastoreDisks { datastore: one, .. }, Wait::DatastoreDisks { datastore: two, .. }) => {
                one == two
            }
            // Their text has the time of the next try.
            (Wait::Retry { .. } | Wait::Host { .. } | Wait::Datastore { .. } | Wait::Target { .. }, _) => {
                self == other
            }
            (Wait::Room { place: one, .. }, Wait::Room { place: two, .. }) => one == two,
            (Wait::RoomUntold { place: one }, Wait::RoomUntold { place: two }) => one == two,
            (Wait::Stage { stage: one, .. }, Wait::Stage { stage: two, .. }) => one == two,
            (Wait::Window { opens_ms: one, .. }, Wait::Window { opens_ms: two, .. }) => one == two,
            _ => discriminant(self) == discriminant(other),
        }
    }

    /// What it is for in a word, as monitoring counts it.
    pub fn kind(&self) -> &'static str {
        match self {
            Wait::HostVms { .. } => "host_vms",
            Wait::HostDisks { .. } => "host_disks",
            Wait::Longest { .. } => "longest",
            Wait::DatastoreDisks { .. } => "datastore_disks",
            Wait::Disks { .. } => "disks",
            Wait::OwnVms { .. } => "own_vms",
            Wait::OwnDisks { .. } => "own_disks",
            Wait::Turn { .. } => "turn",
            Wait::Window { .. } => "window",
            Wait::Wave { .. } => "wave",
            Wait::WaveFailed { .. } => "wave_failed",
            Wait::WaveHooks { .. } => "wave_hooks",
            Wait::Retry { .. } => "retry",
            Wait::Host { .. } => "host",
            Wait::Datastore { .. } => "datastore",
            Wait::Target { .. } => "target",
            Wait::AntiAffinity { .. } => "anti_affinity",
            Wait::Stage { .. } => "stage",
            Wait::Together { .. } => "together",
            Wait::Cutovers { .. } => "cutovers",
            Wait::OwnCutovers { .. } => "own_cutovers",
            Wait::Room { .. } | Wait::RoomUntold { .. } => "room",
            Wait::Elsewhere { .. } => "elsewhere",
        }
    }

    /// Whether it is for slots, of whatever there are too few of: which of them it is changes with each VM that begins or ends.
    pub fn is_for_slots(&self) -> bool {
        match self {
            Wait::HostVms { .. }
            | Wait::HostDisks { .. }
            | Wait::Longest { .. }
            | Wait::DatastoreDisks { .. }
            | Wait::Disks { .. }
            | Wait::OwnVms { .. }
            | Wait::OwnDisks { .. }
            | Wait::Turn { .. }
            | Wait::Elsewhere { .. } => true,
            Wait::Window { .. }
            | Wait::Wave { .. }
            | Wait::WaveFailed { .. }
            | Wait::WaveHooks { .. }
            | Wait::Retry { .. }
            | Wait::Host { .. }
            | Wait::Datastore { .. }
            | Wait::Target { .. }
            | Wait::AntiAffinity { .. }
            | Wait::Stage { .. }
            | Wait::Together { .. }
            | Wait::Room { .. }
            | Wait::RoomUntold { .. }
            | Wait::Cutovers { .. }
            | Wait::OwnCutovers { .. } => false,
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::HostVms { host, held, of } => write!(f, "{host}: {held} of {of} VMs at once"),
            Wait::HostDisks { host, held, of, needs } => {
                write!(f, "{host}: {held} of {of} disks at once, it needs {needs}")
            }
            Wait::Longest { host, held, of } => {
                write!(f, "{host}: {held} of {of} disks at once, so that its longest VM is not held up")
            }
            Wait::DatastoreDisks { datastore, held, of } => {
                write!(f, "datastore {datastore}: {held} of {of} disks at once")
            }
            Wait::Disks { held, of, needs } => write!(f, "{held} of {of} disks at once, it needs {needs}"),
            Wait::OwnVms { host, held, of } => write!(f, "{host}: {held} of {of} VMs of this plan at once"),
            Wait::OwnDisks { held, of, needs } => {
                write!(f, "{held} of {of} disks of this plan at once, it needs {needs}")
            }
            Wait::Turn { host, waiting } => {
                write!(f, "{host}: its turn, {} there", counted(*waiting, "VM", "waits", "wait"))
            }
            Wait::Window { opens, .. } if opens.is_empty() => f.write_str("its window to open"),
            Wait::Window { opens, .. } => write!(f, "its window to open ({opens})"),
            // How many are left is kept nowhere anew with each VM that ends.
            Wait::Wave { wave, .. } => write!(f, "the end of wave {wave}"),
            Wait::WaveFailed { wave, failed } => {
                let failed = count(*failed, "VM");
                write!(f, "a word: {failed} of wave {wave} failed (`drover proceed PLAN {wave}`)")
            }
            Wait::WaveHooks { wave } => write!(f, "what is called before wave {wave}"),
            Wait::Retry { of, at_ms } if of.is_empty() => {
                write!(f, "its next try after a failure, {}", from(*at_ms))
            }
            Wait::Retry { of, at_ms } => {
                write!(f, "its next try after a failure of {of}, {}", from(*at_ms))
            }
            Wait::Host { host, until_ms } => write!(f, "{host}: failed, {}", again(*until_ms)),
            Wait::Datastore { datastore, until_ms } => {
                write!(f, "datastore {datastore}: failed, {}", again(*until_ms))
            }
            Wait::Target { target, why, until_ms } => {
                let why = if why.is_empty() { "failed" } else { why };
                write!(f, "{target}: {why}; {}", again(*until_ms))
            }
            Wait::AntiAffinity { other } => write!(f, "{other}, which it never runs beside"),
            Wait::Stage { group, stage } => write!(f, "stage {stage} of group {group}"),
            Wait::Together { group, left } => {
                let left = counted(*left, "VM", "is", "are");
                write!(f, "group {group}: {left} not ready to move over")
            }
            Wait::Cutovers { of: 0, .. } => f.write_str("leave to move over"),
            Wait::Cutovers { held, of } => write!(f, "{held} of {of} cutovers at once"),
            Wait::OwnCutovers { held, of } => write!(f, "{held} of {of} cutovers of this plan at once"),
            Wait::Room { place, needs_bytes, free_bytes, plans, .. } if plans.is_empty() => {
                write!(
                    f,
                    "room in {place}: it may need {}, and {} are free",
                    Bytes(*needs_bytes),
                    Bytes(*free_bytes)
                )
            }
            Wait::Room { place, needs_bytes, free_bytes, promised_bytes, plans } => write!(
                f,
                "room in {place}: it may need {}, and of {} free {} are promised to {}",
                Bytes(*needs_bytes),
                Bytes(*free_bytes),
                Bytes(*promised_bytes),
                named(plans)
            ),
            Wait::RoomUntold { place } => write!(f, "{place}, which does not tell how much is free there"),
            Wait::Elsewhere { host, of } => {
                write!(f, "{host}: {} at once, other processes have them", count(*of as usize, "VM"))
            }
        }
    }
}

/// When something that failed is tried again.
fn again(until_ms: u64) -> String {
    match until_ms {
        // One VM tries it.
        u64::MAX => "one VM tries it now".into(),
        _ => format!("tried again {}", from(until_ms)),
    }
}

/// From when on, to the minute, so that those of one minute are told together.
fn from(at_ms: u64) -> String {
    format!("from {} on", utc_moment(at_ms))
}

/// Plans that are named of those that hold room.
const NAMED_MAX: usize = 3;

fn named(plans: &[String]) -> String {
    let word = if plans.len() == 1 { "plan" } else { "plans" };
    let more = plans.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{word} {}{more}", plans[..plans.len().min(NAMED_MAX)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_waits_are_the_same_whatever_their_counts_are_and_not_for_two_waves() {
        let wave = |name: &str, left| Wait::Wave { wave: name.into(), left };
        assert!(wave("a", 3).is_for_same(&wave("a", 2)) && !wave("a", 3).is_for_same(&wave("b", 3)));
        let failed = Wait::WaveFailed { wave: "a".into(), failed: 3 };
        assert!(!wave("a", 3).is_for_same(&failed) && failed.is_for_same(&failed));
        let host = |until_ms| Wait::Host { host: "a".into(), until_ms };
        assert!(host(1).is_for_same(&host(1)) && !host(1).is_for_same(&host(2)), "its text has the time");
        let disks = |held| Wait::Disks { held, of: 8, needs: 1 };
        assert!(disks(7).is_for_same(&disks(8)));
    }
}
