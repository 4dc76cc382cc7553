//! A libvirt domain that is to move: what both daemons tell of it, and what stands in the way, everything at once.
//!
//! libvirt refuses most of this, too, but one at a time, and some of it only when the target has begun to wait.

use std::collections::BTreeMap;

use crate::found::{Found, Unclear};
use crate::preflight::{Obstacle, job_obstacle};
use crate::settings::Side;

/// A domain at the source, as its daemon tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Its name, of which a daemon has one.
    pub name: String,
    /// What the daemons know it by; it keeps it.
    pub uuid: String,
    /// `kvm`, `qemu`: what runs it.
    pub virt: String,
    /// `x86_64`.
    pub arch: String,
    /// `pc-q35-7.2`; of a domain that runs there are no aliases.
    pub machine: String,
    /// How its processors were chosen: `custom`, `host-passthrough`.
    pub processor: String,
    /// The program that runs it.
    pub emulator: String,
    /// Bytes of memory that it may have.
    pub memory_bytes: u64,
    /// Its memory is in huge pages, of these sizes in bytes; none of them: of the host's usual size.
    pub huge_pages: Option<Vec<u64>>,
    /// Disks, with and without a medium.
    pub disks: Vec<DomainDisk>,
    /// Names of the libvirt networks that it is plugged into.
    pub networks: Vec<String>,
    /// Names of the host's bridges and cards that it is plugged into.
    pub links: Vec<String>,
    /// Devices of the host that it was given.
    pub host_devices: Vec<String>,
    /// Its definition outlasts its run.
    pub is_persistent: bool,
    /// It is started with its host.
    pub starts_with_host: bool,
    /// A saved state of it lies there.
    pub has_managed_save: bool,
    /// Names of its snapshots.
    pub snapshots: Vec<String>,
    /// Names of its checkpoints.
    pub checkpoints: Vec<String>,
}

/// A disk of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainDisk {
    /// What the guest has it as: `vda`.
    pub target: String,
    /// Where its bytes are: `file`, `block`, `network`, in libvirt's words.
    pub kind: String,
    /// Its path, where it has one.
    pub place: String,
    /// `raw`, `qcow2`.
    pub format: String,
    /// What the guest sees of it.
    pub bytes: u64,
    /// What it takes at the source.
    pub taken_bytes: u64,
    /// The guest may only read it.
    pub is_read_only: bool,
    /// Several guests may have it at a time.
    pub is_shareable: bool,
    /// Another image lies beneath it.
    pub is_backed: bool,
    /// A job is at work on it.
    pub has_job: bool,
}

impl DomainDisk {
    /// Whether it would have to be copied where storage is not shared.
    pub fn is_private(&self) -> bool {
        let has_medium = !self.place.is_empty();
        has_medium && self.kind != "network" && !self.is_read_only && !self.is_shareable
    }
}

/// The place that a domain is to have at the target, as that daemon tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Another domain with this name.
    pub namesake: Option<String>,
    /// A saved state of this very domain lies there.
    pub has_managed_save: bool,
    /// Why its machine cannot be there.
    pub machine_refused: Option<String>,
    /// Why its processors cannot be there.
    pub processor_refused: Option<String>,
    /// Bytes of memory that nobody needs there, caches among them; absent: not told.
    pub free_bytes: Option<u64>,
    /// Free huge pages there, by their size in bytes; absent: not told.
    pub free_pages: Option<BTreeMap<u64, u64>>,
    /// Names of the networks that are up there; absent: not asked.
    pub networks: Option<Vec<String>>,
    /// Names of the bridges and cards that are there; absent: not told.
    pub links: Option<Vec<String>>,
}

/// Where the copy of a disk would lie at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Nothing is there, in the pool of this name.
    Free(String),
    /// A volume is there.
    Taken,
    /// No pool holds it.
    NoPool,
}

/// Everything that stands in the way, in the order of a look from the domain to its parts.
pub fn domain_obstacles(domain: &Domain, room: &Room) -> Vec<Obstacle> {
    let mut found = Obstacles::default();
    found.kept_state(domain, room);
    found.devices(domain);
    found.room(domain, room);
    found.0
}

/// What stands in the way of copying disks. Nothing that is there is written over. `free_bytes` is what pools have left, by
/// their names, where that is told.
pub fn copy_obstacles(disks: &[(DomainDisk, Spot)], free_bytes: &BTreeMap<String, u64>) -> Vec<Obstacle> {
    let mut found = Obstacles::default();
    for (pool, needed) in needed_bytes(disks, |disk| disk.taken_bytes) {
        if let Some(free) = free_bytes.get(pool).filter(|free| **free < needed) {
            found.add(
                format!(
                    "its disks take {} MiB, and {} are free in pool {pool} at the target",
                    needed >> 20,
                    free >> 20
                ),
                "make room there",
            );
        }
    }
    for (disk, spot) in disks {
        let DomainDisk { target, kind, place, format, .. } = disk;
        if kind != "file" {
            found.add(
                format!("disk {target} ({place}) is of the kind {kind:?}, and only files are copied"),
                "put it on storage that both hosts have, and say --disks shared",
            );
            continue;
        }
        if disk.is_backed {
            found.add(
                format!("disk {target} ({place}) lies on another image"),
                "make it whole first: `virsh blockpull DOMAIN DISK --wait`",
            );
        }
        if format != "raw" && format != "qcow2" {
            found.add(
                format!("disk {target} ({place}) has the format {format:?}"),
                "raw and qcow2 are copied",
            );
        }
        match spot {
            Spot::Free(_) => {}
            Spot::Taken => found.add(
                format!("{place} is there at the target already"),
                "if that is the same storage, say --disks shared; if an earlier move left it, or nobody needs it, remove it: \
                 `virsh vol-delete PATH` there",
            ),
            Spot::NoPool => found.add(
                format!("no storage pool at the target holds {place}"),
                "make one of its folder there: `virsh pool-create-as NAME dir --target FOLDER`",
            ),
        }
    }
    found.0
}

/// Pools that have room for what disks take now, and not for all that they may come to take: with what they need and what
/// is free, in bytes.
pub fn tight_pools(
    disks: &[(DomainDisk, Spot)],
    free_bytes: &BTreeMap<String, u64>,
) -> Vec<(String, u64, u64)> {
    let needed = needed_bytes(disks, |disk| disk.bytes.max(disk.taken_bytes)).into_iter();
    let tight = needed.filter_map(|(pool, needed)| {
        let free = free_bytes.get(pool).copied().filter(|free| *free < needed)?;
        Some((pool.to_string(), needed, free))
    });
    tight.collect()
}

/// What disks need in each pool.
fn needed_bytes(disks: &[(DomainDisk, Spot)], of: impl Fn(&DomainDisk) -> u64) -> BTreeMap<&str, u64> {
    let mut needed = BTreeMap::<&str, u64>::new();
    for (disk, spot) in disks {
        if let Spot::Free(pool) = spot {
            let sum = needed.entry(pool).or_default();
            *sum = sum.saturating_add(of(disk));
        }
    }
    needed
}

#[derive(Default)]
struct Obstacles(Vec<Obstacle>);

impl Obstacles {
    fn add(&mut self, what: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Obstacle { what: what.into(), advice: advice.into() });
    }

    /// What libvirt keeps of the domain beside its definition, and does not move.
    fn kept_state(&mut self, domain: &Domain, room: &Room) {
        for (side, has) in [(Side::Source, domain.has_managed_save), (Side::Target, room.has_managed_save)] {
            if has {
                self.add(
                    format!("a saved state of it lies at the {side}"),
                    "remove it if nobody needs it: `virsh managedsave-remove DOMAIN` there",
                );
            }
        }
        if !domain.snapshots.is_empty() {
            self.add(
                format!("it has snapshots ({}), which libvirt does not move", list(&domain.snapshots)),
                "delete them: `virsh snapshot-delete DOMAIN NAME`",
            );
        }
        if !domain.checkpoints.is_empty() {
            self.add(
                format!("it has checkpoints ({}), which libvirt does not move", list(&domain.checkpoints)),
                "delete them: `virsh checkpoint-delete DOMAIN NAME`; the next backup is a full one",
            );
        }
    }

    fn devices(&mut self, domain: &Domain) {
        for disk in domain.disks.iter().filter(|disk| disk.has_job) {
            self.0.push(job_obstacle(
                &format!("a job is at work on disk {}", disk.target),
                &format!("`virsh blockjob DOMAIN {} --abort`", disk.target),
            ));
        }
        if !domain.host_devices.is_empty() {
            self.add(
                format!("it has devices of its host ({})", list(&domain.host_devices)),
                "take them out while it runs: `virsh detach-device DOMAIN FILE --live`",
            );
        }
    }

    fn room(&mut self, domain: &Domain, room: &Room) {
        if let Some(uuid) = &room.namesake {
            self.add(
                format!("the target has another domain of the name {} ({uuid})", domain.name),
                "rename one of them: `virsh domrename`",
            );
        }
        if let Some(why) = &room.machine_refused {
            self.add(
                format!("the target cannot have its machine {}: {why}", domain.machine),
                "install a QEMU there that knows it",
            );
        }
        if let Some(why) = &room.processor_refused {
            self.add(
                format!("the target cannot have its processors: {why}"),
                "choose a CPU model that both hosts have; the guest keeps it until it is switched off and on",
            );
        }
        self.memory(domain, room);
        self.plugs(domain, room);
    }

    fn memory(&mut self, domain: &Domain, room: &Room) {
        let needed = domain.memory_bytes;
        let Some(sizes) = &domain.huge_pages else {
            if let Some(free) = room.free_bytes.filter(|free| *free < needed) {
                self.add(
                    format!(
                        "it has {} MiB of memory, and {} are free at the target",
                        needed >> 20,
                        free >> 20
                    ),
                    "make room there, or take another host",
                );
            }
            return;
        };
        let Some(free) = &room.free_pages else { return };
        // Which size a host usually takes is not told: any may be it.
        let is_meant = |size: &u64| sizes.is_empty() || sizes.contains(size);
        let bytes =
            free.iter().filter(|(size, _)| is_meant(size)).map(|(size, count)| size.saturating_mul(*count));
        let bytes = if sizes.is_empty() { bytes.max().unwrap_or_default() } else { bytes.sum() };
        if bytes < needed {
            let of = match &sizes[..] {
                [] => String::new(),
                sizes => format!(
                    " of {} KiB",
                    list(&sizes.iter().map(|size| (size >> 10).to_string()).collect::<Vec<_>>())
                ),
            };
            self.add(
                format!(
                    "it has {} MiB of memory in huge pages{of}, and {} MiB of such are free at the target",
                    needed >> 20,
                    bytes >> 20
                ),
                "make some there: `virsh allocpages --pagesize SIZE --pagecount COUNT --add`",
            );
        }
    }

    /// What its network cards are plugged into.
    fn plugs(&mut self, domain: &Domain, room: &Room) {
        let missing = |wanted: &[String], there: &Option<Vec<String>>| {
            let there = there.as_ref()?;
            let missing: Vec<String> = wanted.iter().filter(|name| !there.contains(name)).cloned().collect();
            (!missing.is_empty()).then(|| list(&missing))
        };
        if let Some(missing) = missing(&domain.networks, &room.networks) {
            self.add(
                format!("networks that it is plugged into are not up at the target ({missing})"),
                "make them there: `virsh net-define`, `virsh net-start`",
            );
        }
        if let Some(missing) = missing(&domain.links, &room.links) {
            self.add(
                format!("bridges or cards that it is plugged into are not at the target ({missing})"),
                "make them there under these names, or plug it into a libvirt network that both hosts have",
            );
        }
    }
}

/// How one daemon has a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainStand {
    /// `running`, `paused`, `shut off`, in libvirt's words; empty: it has none.
    pub state: String,
    /// Why, in libvirt's words: `user`, `migrating`.
    pub reason: String,
    /// What is done with it.
    pub job: DomainJob,
}

/// What a daemon does with a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DomainJob {
    /// Nothing.
    #[default]
    None,
    /// It leaves.
    Out,
    /// It comes.
    In,
    /// Something else.
    Other,
}

impl DomainStand {
    /// A process of QEMU is there for it.
    pub fn is_active(&self) -> bool {
        !matches!(self.state.as_str(), "" | "shut off")
    }

    /// It runs.
    pub fn runs(&self) -> bool {
        self.state == "running"
    }

    /// It was stopped by somebody, or by a fault of its own, not by a move.
    pub fn stands_for_itself(&self) -> bool {
        self.state == "paused" && self.reason != "migrating" && !self.is_ahead()
    }

    /// It has gone ahead of its memory, or was sent ahead.
    fn is_ahead(&self) -> bool {
        self.reason.starts_with("post-copy")
    }

    /// Its line broke then.
    pub fn is_broken(&self) -> bool {
        self.reason == "post-copy failed"
    }
}

/// Why nothing may be done by itself with a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainUnclear {
    /// Neither runs it.
    Nowhere,
    /// Both run it.
    BothRun,
    /// It runs at the target, and the source still has it, standing still.
    LeftAtSource,
    /// It stands at the source since a move, and the target does not have it.
    Held,
    /// It is being moved, and not to this target.
    OtherMove,
    /// Something else is being done with it.
    OtherJob,
    /// It went ahead to the target, and the source has taken it back.
    TakenBack,
    /// It went ahead, and this side has it no more: part of its memory is nowhere.
    Lost(Side),
    /// Both have it, standing still.
    BothStand,
}

impl DomainUnclear {
    /// What it is, and what to do.
    #[must_use]
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            DomainUnclear::Nowhere => (
                "it runs at neither daemon",
                "start it first; a domain that is switched off needs no live move",
            ),
            DomainUnclear::BothRun => (
                "both daemons run it",
                "stop one of them at once (`virsh destroy`) and look at what each has written",
            ),
            DomainUnclear::LeftAtSource => (
                "it runs at the target, and the source still has it, standing still",
                "never resume it at the source: `virsh destroy DOMAIN` there",
            ),
            DomainUnclear::Held => (
                "it is paused at the source since a move that did not come to its end, and the target does not have it",
                "see that no other host has it, then `virsh resume DOMAIN` at the source",
            ),
            DomainUnclear::OtherMove => (
                "it is being moved, and not to this target",
                "give that one with --to, wait for the end, or cancel it: `virsh domjobabort DOMAIN` at the source",
            ),
            DomainUnclear::OtherJob => (
                "something else is being done with it",
                "wait for its end (`virsh domjobinfo DOMAIN`), or cancel it: `virsh domjobabort DOMAIN`",
            ),
            DomainUnclear::TakenBack => (
                "it is in post-copy, and runs at the source all the same",
                "`virsh destroy DOMAIN` at the target",
            ),
            DomainUnclear::Lost(Side::Source) => (
                "it is in post-copy, and the source, which had the rest of that, has it no more",
                "`virsh destroy DOMAIN` at the target, and start it there from its disks: they are as after a power cut",
            ),
            DomainUnclear::Lost(Side::Target) => (
                "it is in post-copy, and the target has it no more",
                "never resume it at the source, whose memory is older than its disks: `virsh destroy DOMAIN` there, and start \
                 it from its disks, as the target left them: they are as after a power cut",
            ),
            DomainUnclear::BothStand => (
                "both daemons have it, standing still",
                "look at both; only one of them may be resumed, and the other has to be destroyed",
            ),
        }
    }
}

fn unclear(why: DomainUnclear) -> Found {
    Found::Unclear(Unclear::Domain(why))
}

/// What follows from how both daemons have it.
pub fn domain_found(source: &DomainStand, target: &DomainStand) -> Found {
    use DomainUnclear as U;
    if source.is_ahead() || target.is_ahead() {
        return ahead(source, target);
    }
    match (source.job, source.is_active(), target.is_active()) {
        (DomainJob::Out, _, true) => Found::Sending,
        (DomainJob::Out, _, false) => unclear(U::OtherMove),
        (DomainJob::In | DomainJob::Other, _, _) => unclear(U::OtherJob),
        (DomainJob::None, false, false) => unclear(U::Nowhere),
        (DomainJob::None, false, true) if target.job == DomainJob::None => Found::Moved,
        // The source is done and the target is about to be.
        (DomainJob::None, false, true) => Found::Sending,
        (DomainJob::None, true, false) if source.runs() || source.stands_for_itself() => Found::Nothing,
        (DomainJob::None, true, false) => unclear(U::Held),
        (DomainJob::None, true, true) => unclear(match (source.runs(), target.runs()) {
            (true, true) => U::BothRun,
            (false, true) => U::LeftAtSource,
            // It comes to the target from elsewhere, or is about to go.
            (true, false) => U::OtherMove,
            (false, false) => U::BothStand,
        }),
    }
}

/// Why a libvirt of this version at the target cannot make the line of post-copy anew, if so.
///
/// Source: libvirt's `NEWS.rst`, 8.5.0 (`VIR_MIGRATE_POSTCOPY_RESUME`) and 11.4.0 (a regression of 11.2.0).
pub fn cannot_resume(version: (u32, u32)) -> Option<String> {
    let why = match version {
        version if version < (8, 5) => "does not know how to make the line of post-copy anew",
        (11, 2 | 3) => "crashes when it is to make the line of post-copy anew",
        _ => return None,
    };
    let (major, minor) = version;
    Some(format!(
        "the target's libvirt {major}.{minor} {why}: 11.4 is the first of those after 11.1 that does it well"
    ))
}

/// The same of a domain that at least one daemon says to have gone ahead.
fn ahead(source: &DomainStand, target: &DomainStand) -> Found {
    use DomainUnclear as U;
    match (source.is_active(), target.is_active()) {
        (true, true) if source.runs() => unclear(if target.runs() { U::BothRun } else { U::TakenBack }),
        (true, true) if source.is_broken() || target.is_broken() => Found::Broken,
        (true, true) => Found::Ahead,
        (true, false) => unclear(U::Lost(Side::Target)),
        (false, true) if target.is_broken() => unclear(U::Lost(Side::Source)),
        // The source is done and the target is about to be.
        (false, true) => Found::Ahead,
        (false, false) => unclear(U::Nowhere),
    }
}

/// The first few, and how many more.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<&str>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests;
