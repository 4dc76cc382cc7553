//! What stands in the way of a move, before anything is done: both machines side by side, everything at once.

use std::collections::BTreeMap;
use std::fmt;

use drover_types::count;

use crate::settings::Side;

/// What a monitor says of its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// `running`, `paused`, `inmigrate`, in QEMU's words.
    pub status: String,
    /// `pc-q35-7.2`; what the monitor says, aliases resolved.
    pub kind: String,
    /// Bytes of memory the guest began with.
    pub memory_bytes: u64,
    /// Its processors' kind (`qemu64-x86_64-cpu`), one for each.
    pub processors: Vec<String>,
    /// Features of its first processor that are on, where the monitor tells.
    pub features: Option<Vec<String>>,
    /// Devices by their path in the machine, with their kind.
    pub devices: BTreeMap<String, String>,
    /// Disks by the name of what they are plugged into, with their size in bytes.
    pub disks: BTreeMap<String, Disk>,
    /// Why this machine cannot move, in QEMU's words (`blocked-reasons`).
    pub blocked: Vec<String>,
    /// What another migration is doing there; absent: none.
    pub migrating: Option<String>,
    /// Block jobs at work there, drover's own left out.
    pub jobs: Vec<BlockJob>,
}

/// A job at work on the disks of a machine, beside its guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockJob {
    /// By which it can be ended.
    pub name: String,
    /// `backup`, `mirror`, `commit`, `stream`, in QEMU's words.
    pub kind: String,
}

/// A disk of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// What the guest sees of it.
    pub bytes: u64,
    /// Name of the node that it reads and writes.
    pub node: String,
    /// Where its bytes are; the same on both sides means that they share it.
    pub place: String,
    /// The guest may only read it.
    pub is_read_only: bool,
}

/// Something that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.advice)
    }
}

/// Everything that stands in the way, in the order of a look from the machine to its parts.
pub fn obstacles(source: &Machine, target: &Machine) -> Vec<Obstacle> {
    let mut found = Found::default();
    found.states(source, target);
    found.machine(source, target);
    found.processors(source, target);
    found.devices(source, target);
    found.disks(source, target);
    found.0
}

/// Writable disks that are to be shared and have different places on both sides. That places are equal proves nothing
/// where the sides are two hosts; that they differ says that two images are there, or one under two names.
pub fn unshared(source: &Machine, target: &Machine) -> Vec<Obstacle> {
    let both = source.disks.iter().filter_map(|(name, disk)| Some((name, disk, target.disks.get(name)?)));
    let apart = both.filter(|(_, disk, other)| !disk.is_read_only && disk.place != other.place);
    let apart = apart.map(|(name, disk, other)| Obstacle {
        what: format!("disk {name} is {} at the source and {} at the target", disk.place, other.place),
        advice: "copy it with --disks mirror; only if both are the same storage, say --assume-shared".into(),
    });
    apart.collect()
}

/// Jobs at work on the disks of one side. A move does not take them along: a backup ends the move after all memory was sent ("Bad address"),
/// a mirror stops without a word and its copy grows old.
pub fn job_obstacles(side: Side, jobs: &[BlockJob]) -> Vec<Obstacle> {
    let obstacle = |BlockJob { name, kind }: &BlockJob| {
        job_obstacle(
            &format!("the block job {name} ({kind}) is at work at the {side}"),
            &format!("`block-job-cancel` of {name} at its monitor"),
        )
    };
    jobs.iter().map(obstacle).collect()
}

/// The same of any job, with how to end it.
pub(crate) fn job_obstacle(what: &str, end: &str) -> Obstacle {
    Obstacle {
        what: format!("{what} and would not move with the guest"),
        advice: format!("wait for its end, or end it: {end}"),
    }
}

#[derive(Default)]
struct Found(Vec<Obstacle>);

impl Found {
    fn add(&mut self, what: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Obstacle { what: what.into(), advice: advice.into() });
    }

    fn states(&mut self, source: &Machine, target: &Machine) {
        if source.status != "running" && source.status != "paused" {
            self.add(
                format!("the guest is {:?}, neither running nor paused", source.status),
                "bring it to a steady state first",
            );
        }
        if target.status != "inmigrate" {
            let what = format!("the target's QEMU is {:?} and does not wait for a guest", target.status);
            self.add(what, "start it with `-incoming defer`");
        }
        for (side, machine) in [(Side::Source, source), (Side::Target, target)] {
            if let Some(status) = &machine.migrating {
                self.add(
                    format!("another move is under way at the {side} ({status})"),
                    "wait for its end, or cancel it",
                );
            }
            for reason in &machine.blocked {
                self.add(format!("QEMU cannot move this {side}: {reason}"), "remove what it names");
            }
            self.0.extend(job_obstacles(side, &machine.jobs));
        }
    }

    fn machine(&mut self, source: &Machine, target: &Machine) {
        if source.kind != target.kind {
            let what =
                format!("the machine is {} at the source and {} at the target", source.kind, target.kind);
            self.add(what, format!("start the target with `-machine {}`", source.kind));
        }
        if source.memory_bytes != target.memory_bytes {
            let mib = |machine: &Machine| machine.memory_bytes >> 20;
            let what = format!("the source has {} MiB of memory, the target {}", mib(source), mib(target));
            self.add(what, format!("start the target with `-m {}`", mib(source)));
        }
    }

    fn processors(&mut self, source: &Machine, target: &Machine) {
        if source.processors.len() != target.processors.len() {
            let what = format!(
                "the source has {}, the target {}",
                count(source.processors.len(), "processor"),
                target.processors.len()
            );
            self.add(what, "give the target the same `-smp`");
        } else if source.processors != target.processors {
            let first = |machine: &Machine| machine.processors.first().cloned().unwrap_or_default();
            let what = format!(
                "the processor is {} at the source and {} at the target",
                first(source),
                first(target)
            );
            self.add(what, "give the target the same `-cpu`");
        }
        let (Some(ours), Some(theirs)) = (&source.features, &target.features) else { return };
        let missing: Vec<&str> =
            ours.iter().filter(|name| !theirs.contains(name)).map(String::as_str).collect();
        if !missing.is_empty() {
            let what = format!("the target's processor lacks {}", list(&missing));
            self.add(
                what,
                "choose a CPU model that both hosts have; the guest keeps it until it is switched off and on",
            );
        }
    }

    fn devices(&mut self, source: &Machine, target: &Machine) {
        for (path, kind) in &source.devices {
            match target.devices.get(path) {
                None => {
                    self.add(format!("the target has no {path} ({kind})"), "start it with the same devices")
                }
                Some(other) if other != kind => {
                    self.add(
                        format!("{path} is {kind} at the source and {other} at the target"),
                        "start it with the same devices",
                    );
                }
                Some(_) => {}
            }
        }
        for (path, kind) in target.devices.iter().filter(|(path, _)| !source.devices.contains_key(*path)) {
            self.add(
                format!("the source has no {path} ({kind}), the target has"),
                "start it with the same devices",
            );
        }
    }

    fn disks(&mut self, source: &Machine, target: &Machine) {
        for (name, disk) in &source.disks {
            match target.disks.get(name) {
                None => self.add(format!("the target has no disk {name}"), "start it with the same disks"),
                Some(other) if other.bytes != disk.bytes => {
                    let what = format!(
                        "disk {name} has {} bytes at the source and {} at the target",
                        disk.bytes, other.bytes
                    );
                    self.add(what, "make the target's image exactly as large");
                }
                Some(_) => {}
            }
        }
        for name in target.disks.keys().filter(|name| !source.disks.contains_key(*name)) {
            self.add(
                format!("the source has no disk {name}, the target has"),
                "start it with the same disks",
            );
        }
    }
}

/// The first few, and how many more.
fn list(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<&str>>().join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_in_two_places_are_not_shared_unless_they_are_only_read() {
        let (here, mut there) = (machine("running"), machine("inmigrate"));
        assert_eq!(unshared(&here, &there), []);
        there.disks.get_mut("disk0").unwrap().place = "/b".into();
        let found = unshared(&here, &there);
        assert!(
            found.len() == 1 && found[0].what.contains("/a") && found[0].what.contains("/b"),
            "{found:?}"
        );
        let mut reads = here.clone();
        reads.disks.get_mut("disk0").unwrap().is_read_only = true;
        assert_eq!(unshared(&reads, &there), []);
        // One that is missing is told elsewhere.
        there.disks.clear();
        assert_eq!(unshared(&here, &there), []);
    }

    fn machine(status: &str) -> Machine {
        let disk = Disk { bytes: 1 << 30, node: "disk0".into(), place: "/a".into(), is_read_only: false };
        Machine {
            status: status.into(),
            kind: "pc-q35-7.2".into(),
            memory_bytes: 1 << 30,
            processors: vec!["qemu64-x86_64-cpu".into(); 2],
            features: Some(vec!["sse".into(), "avx".into()]),
            devices: BTreeMap::from([("/machine/peripheral/net0".into(), "virtio-net-pci".into())]),
            disks: BTreeMap::from([("disk0".into(), disk)]),
            ..Machine::default()
        }
    }

    fn both() -> (Machine, Machine) {
        (machine("running"), machine("inmigrate"))
    }

    #[track_caller]
    fn one(source: &Machine, target: &Machine, words: &str) {
        let found = obstacles(source, target);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().contains(words), "{}", found[0]);
    }

    #[test]
    fn alike_machines_have_none() {
        let (source, target) = both();
        assert_eq!(obstacles(&source, &target), []);
        assert_eq!(obstacles(&Machine { status: "paused".into(), ..source }, &target), []);
    }

    #[test]
    fn each_difference_is_one_obstacle_with_advice() {
        let (source, target) = both();
        one(&Machine { status: "shutdown".into(), ..source.clone() }, &target, "steady state");
        one(&source, &Machine { status: "running".into(), ..target.clone() }, "-incoming defer");
        one(&source, &Machine { kind: "pc-i440fx-7.2".into(), ..target.clone() }, "-machine pc-q35-7.2");
        one(&source, &Machine { memory_bytes: 2 << 30, ..target.clone() }, "`-m 1024`");
        one(&source, &Machine { processors: vec!["qemu64-x86_64-cpu".into()], ..target.clone() }, "-smp");
        one(&source, &Machine { processors: vec!["Skylake-x86_64-cpu".into(); 2], ..target.clone() }, "-cpu");
        one(&source, &Machine { features: Some(vec!["sse".into()]), ..target.clone() }, "lacks avx");
        one(
            &Machine { blocked: vec!["vfio".into()], ..source.clone() },
            &target,
            "cannot move this source: vfio",
        );
        one(&source, &Machine { migrating: Some("active".into()), ..target }, "at the target (active)");
    }

    #[test]
    fn a_job_at_work_on_a_disk_is_named_with_how_to_end_it() {
        let jobs = vec![BlockJob { name: "nightly".into(), kind: "backup".into() }];
        let (source, target) = both();
        one(
            &Machine { jobs: jobs.clone(), ..source.clone() },
            &target,
            "nightly (backup) is at work at the source",
        );
        one(&source, &Machine { jobs, ..target.clone() }, "`block-job-cancel` of nightly");
    }

    #[test]
    fn devices_and_disks_are_compared_both_ways() {
        let (source, target) = both();
        let without = Machine { devices: BTreeMap::new(), ..target.clone() };
        one(&source, &without, "the target has no /machine/peripheral/net0 (virtio-net-pci)");
        one(&Machine { devices: BTreeMap::new(), ..source.clone() }, &target, "the source has no");
        let other = BTreeMap::from([("/machine/peripheral/net0".into(), "e1000".into())]);
        one(
            &source,
            &Machine { devices: other, ..target.clone() },
            "is virtio-net-pci at the source and e1000",
        );
        let mut small = target.clone();
        small.disks.get_mut("disk0").unwrap().bytes = 5;
        one(&source, &small, "exactly as large");
        one(&source, &Machine { disks: BTreeMap::new(), ..target.clone() }, "no disk disk0");
        one(&Machine { disks: BTreeMap::new(), ..source }, &target, "the source has no disk disk0");
    }

    #[test]
    fn what_is_not_told_is_not_held_against_anybody() {
        let (source, target) = both();
        assert_eq!(obstacles(&source, &Machine { features: None, ..target }), []);
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(list(&names).ends_with("f7 and 12 more"));
    }
}
