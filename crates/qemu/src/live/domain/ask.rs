//! What daemons are asked about a domain before and after its move.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use drover_live::{
    Domain, DomainDisk, DomainJob, DomainStand, Phase, Room, Spot, cannot_resume, loses_writes,
};

use super::read::{self, Job};
use crate::child::private_folder;
use crate::error::{QemuError, QemuErrorKind};
use crate::virsh::Virsh;

/// What a domain is known by, at both daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub name: String,
    pub uuid: String,
}

impl Virsh {
    /// The domain of this name; nothing if the daemon has none.
    pub(super) fn find(&self, name: &str) -> Result<Option<Known>, QemuError> {
        let known = |(uuid, other): (String, String)| Known { name: other, uuid };
        Ok(self.domains()?.into_iter().find(|(_, other)| other == name).map(known))
    }

    /// All domains, as UUID and name. `virsh` itself would take a name like `1` for a number of its own.
    pub(crate) fn domains(&self) -> Result<Vec<(String, String)>, QemuError> {
        let lines = self.lines(&["list", "--all", "--uuid", "--name"])?;
        let pair = |line: &String| {
            let (uuid, name) = line.split_once(' ')?;
            Some((uuid.to_string(), name.trim().to_string()))
        };
        Ok(lines.iter().filter_map(pair).collect())
    }

    /// How the daemon has a domain.
    pub(super) fn stand(&self, uuid: &str) -> Result<DomainStand, QemuError> {
        if !self.domains()?.iter().any(|(other, _)| other == uuid) {
            return Ok(DomainStand::default());
        }
        let told = self.ask(&["domstate", uuid, "--reason"]);
        let told = match told {
            // It went away in between, as those do that have no definition.
            Err(_) if !self.domains()?.iter().any(|(other, _)| other == uuid) => {
                return Ok(DomainStand::default());
            }
            told => told?,
        };
        let (state, reason) = told.trim().split_once(" (").unwrap_or((told.trim(), ""));
        let job = if state == "shut off" { DomainJob::None } else { self.job(uuid, 0)?.kind };
        Ok(DomainStand { state: state.into(), reason: reason.trim_end_matches(')').into(), job })
    }

    /// What is being done with a domain; one that does not run, or that the daemon does not have, has no job.
    pub(super) fn job(&self, uuid: &str, at_ms: u64) -> Result<Job, QemuError> {
        match self.values(&["domjobinfo", uuid, "--rawstats"]) {
            Ok(values) => Ok(Job::of(&values, at_ms)),
            // Of one that comes libvirt tells no figures.
            Err(error) if error.chain().contains(ONLY_AT_SOURCE) => {
                Ok(Job { kind: DomainJob::In, ..Job::default() })
            }
            Err(error) => match self.ask(&["domstate", uuid]) {
                Ok(state) if state.trim() == "shut off" => Ok(Job::default()),
                Err(_) if !self.domains()?.iter().any(|(other, _)| other == uuid) => Ok(Job::default()),
                Ok(_) | Err(_) => Err(error),
            },
        }
    }

    /// What is being done with a domain, and where a move is by how the guest stands, if it stands still for that. By one program
    /// where nothing is refused: on a busy host it takes a while to start.
    pub(super) fn look(&self, uuid: &str) -> Result<(Job, Option<Phase>), QemuError> {
        let both = self.ask(&[&format!("domjobinfo {uuid} --rawstats; domstate {uuid} --reason")]);
        match both {
            Ok(told) => {
                if let Some((values, state)) = read::job_and_state(&told) {
                    return Ok((Job::of(&values, 0), read::phase(state)));
                }
            }
            Err(error) if error.kind == QemuErrorKind::Timeout => return Err(error),
            Err(_) => {}
        }
        let job = self.job(uuid, 0)?;
        // A domain that has no definition is gone when it has moved.
        let state = self.ask(&["domstate", uuid, "--reason"]).unwrap_or_default();
        Ok((job, read::phase(&state)))
    }

    /// All that the source tells of a domain.
    pub(super) fn domain(&self, uuid: &str) -> Result<Domain, QemuError> {
        let mut domain = read::domain(&self.ask(&["dumpxml", uuid])?)?;
        let info = self.info(uuid)?;
        domain.is_persistent = info.is_persistent;
        domain.starts_with_host = info.starts_with_host;
        domain.has_managed_save = info.has_managed_save;
        domain.snapshots = self.lines(&["snapshot-list", uuid, "--name"])?;
        // Daemons before 5.6 know of none.
        domain.checkpoints = self.lines(&["checkpoint-list", uuid, "--name"]).unwrap_or_default();
        let sizes = self.values(&["domstats", "--block", "--raw", uuid])?;
        for disk in domain.disks.iter_mut().filter(|disk| !disk.place.is_empty()) {
            disk.bytes = told_of(&sizes, &disk.target, "capacity").unwrap_or_default();
            disk.taken_bytes = told_of(&sizes, &disk.target, "physical").unwrap_or_default();
            disk.has_job |= !self.ask(&["blockjob", uuid, &disk.target, "--raw"])?.trim().is_empty();
        }
        Ok(domain)
    }

    /// What a daemon keeps of a domain beside its XML.
    pub(super) fn info(&self, uuid: &str) -> Result<Info, QemuError> {
        let values = self.values(&["dominfo", uuid])?;
        let is = |name: &str, word: &str| values.get(name).is_some_and(|value| value == word);
        Ok(Info {
            is_persistent: is("Persistent", "yes"),
            starts_with_host: is("Autostart", "enable"),
            has_managed_save: is("Managed save", "yes"),
        })
    }

    /// What the target tells of the place that a domain is to have there.
    pub(super) fn room(&self, domain: &Domain) -> Result<Room, QemuError> {
        let known = self.domains()?;
        let namesake = known.iter().find(|(uuid, name)| *name == domain.name && *uuid != domain.uuid);
        let is_known = known.iter().any(|(uuid, _)| *uuid == domain.uuid);
        let machine = ["--virttype", &domain.virt, "--emulatorbin", &domain.emulator];
        let more = ["--arch", &domain.arch, "--machine", &domain.machine];
        let words = [&["domcapabilities"], &machine[..], &more[..]].concat();
        let networks = match domain.networks.is_empty() {
            true => None,
            false => Some(self.lines(&["net-list", "--name"])?),
        };
        // Daemons without the part that knows of these tell nothing: no reason not to move.
        let links = match domain.links.is_empty() {
            true => None,
            false => self.lines(&["iface-list", "--all"]).ok(),
        };
        let free_pages = match domain.huge_pages {
            None => None,
            Some(_) => self.ask(&["freepages", "--all"]).ok(),
        };
        Ok(Room {
            namesake: namesake.map(|(uuid, _)| uuid.clone()),
            has_managed_save: is_known && self.info(&domain.uuid)?.has_managed_save,
            machine_refused: self.ask(&words).err().map(|error| error.chain()),
            processor_refused: None,
            free_bytes: self.free_bytes()?,
            free_pages: free_pages.map(|told| read::free_pages(&told)),
            networks,
            links: links.map(|lines| read::first_column(&lines)),
        })
    }

    /// Whether this daemon finds a file of this path: by its answer to who asks what that would be as a QEMU, which
    /// differs from the answer for a path that nobody has.
    ///
    /// # Errors
    /// If the daemon cannot be asked.
    pub fn sees(&self, path: &Path) -> Result<bool, QemuError> {
        let path = path.to_string_lossy();
        let nowhere = format!("{path}.nowhere");
        let answer = |place: &str| {
            let asked = self.ask(&["domcapabilities", "--emulatorbin", place]);
            asked.err().map(|error| error.chain().replace(place, ""))
        };
        self.reach()?;
        Ok(answer(&path) != answer(&nowhere))
    }

    /// The user as which a domain's QEMU runs; nothing where libvirt does not tell.
    pub(super) fn owner(&self, uuid: &str) -> Result<Option<u32>, QemuError> {
        read::owner(&self.ask(&["dumpxml", uuid])?)
    }

    /// Whether QEMU here knows what a connection is for by what it says, not by the order in which it came.
    pub(super) fn tells_connections_apart(&self) -> bool {
        let told = self.ask(&["version"]).unwrap_or_default();
        read::hypervisor(&told).is_some_and(|version| version >= TELLS_APART)
    }

    /// Whether guests of its software emulation were seen to lose writes when they moved; false where its version is not told.
    pub(super) fn loses_writes(&self, domain: &Domain) -> bool {
        let told = self.ask(&["version"]).unwrap_or_default();
        let version = read::hypervisor(&told).map(|(major, minor)| format!("{major}.{minor}"));
        loses_writes(&version.unwrap_or_default(), domain.virt == "qemu")
    }

    /// Why a line of post-copy that comes here cannot be made anew; nothing if it can, or if nobody knows.
    pub(super) fn cannot_resume(&self) -> Option<String> {
        let told = self.ask(&["version", "--daemon"]).unwrap_or_default();
        cannot_resume(read::daemon(&told)?)
    }

    /// What this daemon calls its host.
    pub(super) fn host(&self) -> Result<String, QemuError> {
        read::host_uuid(&self.ask(&["capabilities"])?)
    }

    /// Whether processors of a domain (its XML) can be here; nothing where that cannot be told or does not matter: software
    /// emulation has no host's processor to be held to.
    pub(super) fn compare_processor(&self, domain: &Domain, xml: &str) -> Result<Processor, QemuError> {
        if domain.virt != "kvm" {
            return Ok(Processor::Fits);
        }
        if domain.processor != "custom" {
            return Ok(Processor::NotCompared(format!("they are {:?}", domain.processor)));
        }
        let failed = |error| QemuError::io("writing the domain's XML to a file for virsh", error);
        let folder = private_folder().map_err(failed)?;
        let file = folder.path().join("domain.xml");
        std::fs::write(&file, xml).map_err(failed)?;
        let file = file.to_string_lossy();
        let machine = ["--virttype", &domain.virt, "--emulator", &domain.emulator];
        let more = ["--arch", &domain.arch, "--machine", &domain.machine, "--error"];
        let words = [&["hypervisor-cpu-compare", file.as_ref()], &machine[..], &more[..]].concat();
        Ok(match self.ask(&words).map_err(|error| error.chain()) {
            Ok(_) => Processor::Fits,
            Err(why) if why.contains("incompatible") => Processor::Refused(why),
            Err(why) => Processor::NotCompared(why),
        })
    }

    /// Memory that a guest could have here; nothing if it is not told.
    fn free_bytes(&self) -> Result<Option<u64>, QemuError> {
        let values = self.values(&["nodememstats"])?;
        let kib = |name: &str| values.get(name)?.split_whitespace().next()?.parse::<u64>().ok();
        let Some(free) = kib("free") else { return Ok(None) };
        let more = ["buffers", "cached"].iter().filter_map(|name| kib(name)).sum::<u64>();
        Ok(Some(free.saturating_add(more).saturating_mul(1024)))
    }

    /// Where copies of disks would lie here. Pools are read anew, so that what others put there is seen.
    pub(super) fn spots(&self, disks: &[&DomainDisk]) -> Result<Vec<Spot>, QemuError> {
        let mut pools = Vec::new();
        for name in self.lines(&["pool-list", "--name"])?.into_iter().take(POOLS_MAX) {
            if let Some(folder) = read::pool_folder(&self.ask(&["pool-dumpxml", "--pool", &name])?)? {
                pools.push((name, folder));
            }
        }
        let mut spots = Vec::new();
        for disk in disks {
            let folder = Path::new(&disk.place).parent();
            let pool = pools.iter().find(|(_, path)| folder == Some(Path::new(path)));
            let Some((pool, _)) = pool else {
                spots.push(Spot::NoPool);
                continue;
            };
            self.ask(&["pool-refresh", "--pool", pool])?;
            let taken = self.lines(&["vol-list", "--pool", pool])?;
            let is_taken = taken.iter().any(|line| line.ends_with(&disk.place));
            spots.push(if is_taken { Spot::Taken } else { Spot::Free(pool.clone()) });
        }
        Ok(spots)
    }

    /// What pools have left, in bytes; those that do not tell are left out.
    pub(super) fn pool_space(&self, spots: &[(DomainDisk, Spot)]) -> BTreeMap<String, u64> {
        let mut space = BTreeMap::new();
        for (_, spot) in spots {
            let Spot::Free(pool) = spot else { continue };
            let told = self.values(&["pool-info", "--bytes", "--pool", pool]);
            let free = told.ok().and_then(|values| values.get("Available")?.parse().ok());
            space.extend(free.map(|free: u64| (pool.clone(), free)));
        }
        space
    }

    /// Bytes of pages that the guest writes to in a second; nothing where that cannot be told.
    pub(super) fn dirty_rate(&self, uuid: &str, seconds: u64) -> Option<f64> {
        // An older daemon does not know how: no reason not to move.
        self.ask(&["domdirtyrate-calc", uuid, "--seconds", &seconds.to_string()]).ok()?;
        let until = Instant::now() + Duration::from_secs(seconds) + MEASURE_TIME_MAX;
        loop {
            let values = self.values(&["domstats", "--dirtyrate", "--raw", uuid]).ok()?;
            if values.get("dirtyrate.calc_status").is_some_and(|status| status == MEASURED) {
                let mib: f64 = values.get("dirtyrate.megabytes_per_second")?.parse().ok()?;
                return (mib >= 0.0).then_some(mib * (1 << 20) as f64);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(MEASURE_POLL);
        }
    }

    /// Milliseconds for which a guest may stand still.
    pub(super) fn downtime_max(&self, uuid: &str) -> Result<u64, QemuError> {
        let said = self.ask(&["migrate-getmaxdowntime", uuid])?;
        said.trim().parse().map_err(|_| {
            let what = format!("reading {:?} as the longest downtime at {}", said.trim(), self.uri());
            QemuError::new(QemuErrorKind::Failed, what)
        })
    }

    /// Sets it, and reads it back.
    pub(super) fn set_downtime_max(&self, uuid: &str, ms: u64) -> Result<(), QemuError> {
        self.ask(&["migrate-setmaxdowntime", uuid, &ms.to_string()])?;
        let set = self.downtime_max(uuid)?;
        if set != ms {
            let what = format!("the longest downtime at {} is {set} ms after it was set to {ms}", self.uri());
            return Err(QemuError::new(QemuErrorKind::Failed, what));
        }
        Ok(())
    }
}

/// What a host says of processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Processor {
    Fits,
    Refused(String),
    NotCompared(String),
}

/// What a daemon keeps of a domain beside its XML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub is_persistent: bool,
    pub starts_with_host: bool,
    pub has_managed_save: bool,
}

/// A figure of a disk, as `domstats` tells.
fn told_of(values: &BTreeMap<String, String>, target: &str, what: &str) -> Option<u64> {
    let number = values.iter().find_map(|(name, value)| {
        let number = name.strip_prefix("block.")?.strip_suffix(".name")?;
        (value == target).then_some(number)
    });
    values.get(&format!("block.{}.{what}", number?))?.parse().ok()
}

/// libvirt's words for a domain that is coming (`qemuDomainGetJobInfoMigrationStats`).
const ONLY_AT_SOURCE: &str = "available only on the source host";
/// Storage pools that are looked at.
const POOLS_MAX: usize = 64;
/// QEMU of this version and later, see [`Virsh::tells_connections_apart`].
const TELLS_APART: (u32, u32) = (8, 1);
const MEASURED: &str = "2";
/// Beyond the time measured: looking at a sample of some thousand pages, on a busy host.
const MEASURE_TIME_MAX: Duration = Duration::from_secs(30);
const MEASURE_POLL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virsh::values;

    #[test]
    fn a_disk_finds_its_size_among_others() {
        let told = values(
            "block.count=2\nblock.0.name=vda\nblock.0.capacity=5\nblock.1.name=vdb\nblock.1.capacity=7\n",
        );
        let capacity = |target: &str| told_of(&told, target, "capacity");
        assert_eq!((capacity("vda"), capacity("vdb"), capacity("vdc")), (Some(5), Some(7), None));
        assert_eq!(told_of(&told, "vda", "physical"), None);
    }
}
