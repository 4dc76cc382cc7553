//! A look into the disks of guests: before a plan runs (`plan check --inspect`), and into images that were copied.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_disk::{Buffer, Disk, DiskErrorKind, FileDisk, Lane, read_span};
use drover_engine::{Looked, Looking, Store, chain, look_into};
use drover_inspect::ReadAt;
use drover_mover::StopSignal;
use drover_plan::{
    At, Concern, Fate, ImageFormat, NO_NETWORK_DRIVER, PlannedVm, Problem, Resolution, Weight,
    concerns_inside, fates,
};
use drover_qcow2::Qcow2Disk;
use drover_types::ByteSpan;
use drover_types::Bytes;
use drover_types::guest::{FoundSystem, Inside, Windows, WindowsDriver};
use drover_view::clean;
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::found;
use crate::plan_file::PlanFile;
use crate::provider::Provider;
use crate::signals::Undo;
use crate::state::{begun_here, state_folder};
use crate::target::PlanTarget;

/// Bytes that are read at a time: a guest's small files lie near each other, and a far source answers slowly.
const CHUNK_BYTES: u64 = 512 << 10;

/// Chunks that are kept of a disk: tables of inodes and folders are read again and again.
const CHUNKS_MAX: usize = 64;

/// Bounds of a look into one guest.
const LOOK_BYTES_MAX: u64 = 2 << 30;
const LOOK_TIME_MAX: Duration = Duration::from_secs(300);

/// Times that a read is tried which may succeed later.
const TRIES_MAX: u32 = 3;

/// What was found in one VM.
pub struct Inspected {
    id: String,
    vm: String,
    seconds: f64,
    inside: Inside,
    network: Vec<Fate>,
    concerns: Vec<Concern>,
}

/// Whether the drivers of a Windows were read: its registry may be damaged.
fn knows_windows_drivers(inside: &Inside) -> bool {
    inside.only_windows().is_some_and(|windows| windows.drivers.is_some())
}

impl Inspected {
    /// Whether it tells which drivers this VM starts with.
    pub fn tells_of(&self, vm: &PlannedVm) -> bool {
        self.id == vm.vm.id && (self.inside.initramfs.is_some() || knows_windows_drivers(&self.inside))
    }

    /// What of it stands in the way at the target.
    pub fn at_target(
        &self,
        resolution: &Resolution,
        target: &PlanTarget,
        stop: &StopSignal,
    ) -> Option<Problem> {
        let vm = resolution.vms.iter().find(|vm| vm.vm.id == self.id)?;
        target.check_inside(vm, &self.inside, stop)
    }

    /// A line for people, one for the drivers of virtio that a Windows has, and one for each of its network settings.
    pub fn line(&self) -> String {
        let system = match (&self.inside.system, self.inside.ntfs) {
            (Some(system), _) => system.clone(),
            (None, true) => "Windows, by its file system".into(),
            (None, false) => "no system found".into(),
        };
        let loader = self.inside.boot_loader.iter().map(|loader| format!(", booted by {loader}"));
        let root = self.inside.root.iter().map(|root| format!(", root {root}"));
        let more: String = loader.chain(root).collect();
        let drivers: String =
            self.inside.only_windows().map(drivers).iter().map(|it| format!("  {it}\n")).collect();
        let network: String =
            self.network.iter().map(|fate| format!("  network: {}\n", clean(&fate.to_string()))).collect();
        format!(
            "{}: {} (looked into in {:.1} s)\n{drivers}{network}",
            clean(&self.vm),
            clean(&(system + &more)),
            self.seconds
        )
    }

    pub fn json(&self) -> Value {
        json!({"vm": self.vm, "seconds": self.seconds, "inside": self.inside, "network": self.network, "concerns": self.concerns})
    }
}

/// What a Windows has of virtio.
fn drivers(windows: &Windows) -> String {
    let driver = |driver: &WindowsDriver| {
        let state = match driver {
            WindowsDriver { has_file: false, .. } => " (without its file)",
            WindowsDriver { starts_at_boot: true, .. } => " (starts at boot)",
            WindowsDriver { .. } => "",
        };
        format!("{}{state}", driver.name)
    };
    let drivers = windows.drivers.as_ref().map(|drivers| drivers.iter().map(driver).collect::<Vec<String>>());
    match drivers.as_deref() {
        None => "drivers of virtio: not known".into(),
        Some([]) => "drivers of virtio: none".into(),
        Some(drivers) => format!("drivers of virtio: {}", drivers.join(", ")),
    }
}

/// Looks into every VM of a plan that can be frozen and was not begun, and adds what was found to it and its concerns.
pub fn inspect_plan(
    file: &PlanFile,
    state: Option<&Path>,
    resolution: &mut Resolution,
    stop: &StopSignal,
) -> Result<Vec<Inspected>, Failure> {
    // Held even where nothing was begun yet: a run may begin meanwhile.
    let store = Store::open(&state_folder(state)).map_err(Failure::from)?;
    let _looking = Looking::begin(&store, &file.plan.name).map_err(Failure::from)?;
    let provider = Provider::open(file, state)?;
    provider.find_proxies(file, &provider.inventory()?);
    provider.stop_when(stop);
    let begun = begun_here(&file.plan.name, state);
    let (mut inspected, mut left_behind) = (Vec::new(), Vec::new());
    for vm in &mut resolution.vms {
        if stop.is_set() {
            break;
        }
        if begun.iter().any(|it| it.planned.vm.id == vm.vm.id) {
            continue;
        }
        if let Some(why) = vm.concerns.iter().find(|it| it.severity == Weight::Blocks) {
            let text = format!("{} was not looked into: {}", vm.vm.name, why.message);
            resolution.problems.push(of_vm(vm, &text));
            continue;
        }
        let began = Instant::now();
        let undo = Undo::begin();
        let looked = look_into(provider.source(), &file.plan.name, vm, |disks| inspect_disks(disks, stop));
        drop(undo);
        let Looked { seen, left } = looked;
        if let Some(error) = left {
            left_behind.push(left_problem(&file.plan.name, vm, &chain(&error)));
        }
        match seen {
            Ok(inside) => {
                vm.found = inside.system_found();
                if let Err(error) = found::keep(state, vm) {
                    let text =
                        format!("what was found in {} cannot be kept for its run: {error}", vm.vm.name);
                    resolution.problems.push(of_vm(vm, &text));
                }
                let concerns = concerns_inside(vm, &inside);
                if knows_windows_drivers(&inside) || vm.found == Some(FoundSystem::Linux) {
                    // What the guest id made likely is known now.
                    vm.concerns.retain(|it| !["needs-drivers", NO_NETWORK_DRIVER].contains(&it.id.as_str()));
                }
                vm.concerns.extend(concerns.iter().cloned());
                let (network, seconds) = (fates(vm, &inside), began.elapsed().as_secs_f64());
                let (id, vm) = (vm.vm.id.clone(), vm.vm.name.clone());
                inspected.push(Inspected { id, vm, seconds, inside, network, concerns });
            }
            Err(error) => {
                let problem = of_vm(vm, &format!("{} was not looked into: {}", vm.vm.name, chain(&error)));
                resolution.problems.push(error.advice.into_iter().fold(problem, Problem::advise));
            }
        }
    }
    if stop.is_set() {
        return Err(interrupted(&left_behind));
    }
    resolution.problems.extend(left_behind);
    provider.close()?;
    Ok(inspected)
}

fn left_problem(plan: &str, vm: &PlannedVm, why: &str) -> Problem {
    let text = format!("{}: what was made to look into it may still be there: {why}", vm.vm.name);
    let advice = format!("run the check again, or remove its snapshot drover-{plan} by hand");
    Problem::error("vms", text).at(At { line: vm.line, column: 1 }).advise(advice)
}

/// The end of a look that was stopped: what it left at the source is named, and nothing is claimed beside it.
fn interrupted(left_behind: &[Problem]) -> Failure {
    if left_behind.is_empty() {
        return Failure::new(Exit::Interrupted, "interrupted; the source is as it was");
    }
    let texts: Vec<&str> = left_behind.iter().map(|it| it.message.as_str()).collect();
    let failure = Failure::new(Exit::Interrupted, format!("interrupted; {}", texts.join("; ")));
    left_behind.iter().filter_map(|it| it.advice.clone()).take(1).fold(failure, Failure::advise)
}

fn of_vm(vm: &PlannedVm, text: &str) -> Problem {
    Problem::warning("vms", text).at(At { line: vm.line, column: 1 })
}

/// Looks into images on this machine, which nobody writes to.
pub fn inspect_images<'a>(
    images: impl Iterator<Item = &'a Path>,
    format: ImageFormat,
) -> Result<Inside, drover_disk::DiskError> {
    let open = |path: &Path| -> Result<Arc<dyn Disk>, drover_disk::DiskError> {
        Ok(match format {
            ImageFormat::Raw => Arc::new(FileDisk::open_for_verify(path)?),
            ImageFormat::Qcow2 => Arc::new(Qcow2Disk::open_for_verify(path)?),
        })
    };
    let disks = images.map(open).collect::<Result<Vec<_>, _>>()?;
    Ok(inspect_disks(&disks, &StopSignal::default()))
}

/// Looks into disks, until it is to stop.
pub fn inspect_disks(disks: &[Arc<dyn Disk>], stop: &StopSignal) -> Inside {
    let budget = Arc::new(Budget {
        bytes: AtomicU64::new(LOOK_BYTES_MAX),
        until: Instant::now() + LOOK_TIME_MAX,
        stop: stop.clone(),
    });
    let reader = |disk: &Arc<dyn Disk>| -> Arc<dyn ReadAt> {
        Arc::new(Reader { disk: disk.clone(), budget: budget.clone(), hand: Mutex::default() })
    };
    drover_inspect::inspect(&disks.iter().map(reader).collect::<Vec<_>>())
}

/// What a look into one guest may still read: its files say how much there is, and they are the guest's.
struct Budget {
    bytes: AtomicU64,
    until: Instant,
    stop: StopSignal,
}

impl Budget {
    /// Whether the look may go on, also by what it read before.
    fn check(&self) -> io::Result<()> {
        match () {
            () if self.stop.is_set() => Err(io::Error::other("the look was stopped")),
            () if Instant::now() >= self.until => {
                Err(io::Error::other(format!("a look ends after {} s", LOOK_TIME_MAX.as_secs())))
            }
            () => Ok(()),
        }
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let taken = self.bytes.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        let beyond = |_| io::Error::other(format!("a look reads at most {}", Bytes(LOOK_BYTES_MAX)));
        taken.map(drop).map_err(beyond)
    }
}

/// A disk that is read in chunks, the last of which are kept.
struct Reader {
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    hand: Mutex<Hand>,
}

#[derive(Default)]
struct Hand {
    lane: Option<Box<dyn Lane>>,
    /// By their offsets, the one that was used last at the end.
    chunks: VecDeque<(u64, Buffer)>,
}

impl Reader {
    fn chunk_bytes(&self) -> u64 {
        let limits = self.disk.limits();
        let least = limits.bytes_min.max(1);
        (CHUNK_BYTES.min(limits.bytes_max) / least).max(1) * least
    }

    fn chunk<'a>(&self, hand: &'a mut Hand, at: u64) -> io::Result<&'a Buffer> {
        match hand.chunks.iter().position(|(offset, _)| *offset == at) {
            Some(index) => {
                let known = hand.chunks.remove(index);
                hand.chunks.extend(known);
            }
            None => {
                let end = (at + self.chunk_bytes()).min(self.disk.size());
                let buffer = self.fetch(hand, ByteSpan::from_bounds(at, end))?;
                if hand.chunks.len() == CHUNKS_MAX {
                    hand.chunks.pop_front();
                }
                hand.chunks.push_back((at, buffer));
            }
        }
        hand.chunks.back().map(|(_, buffer)| buffer).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn fetch(&self, hand: &mut Hand, span: ByteSpan) -> io::Result<Buffer> {
        self.budget.take(span.length)?;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_to_fetch(hand, span) {
                Err(error) if tries < TRIES_MAX && error.kind == DiskErrorKind::Transient => {
                    hand.lane = None;
                }
                Ok(buffer) => return Ok(buffer),
                Err(error) => return Err(io::Error::other(chain(&error))),
            }
        }
    }

    fn try_to_fetch(&self, hand: &mut Hand, span: ByteSpan) -> Result<Buffer, drover_disk::DiskError> {
        let lane = match &mut hand.lane {
            Some(lane) if !lane.is_broken() => lane,
            lane => lane.insert(self.disk.open_lane()?),
        };
        read_span(lane.as_mut(), span)
    }
}

impl ReadAt for Reader {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it lies past the end of the disk"));
        }
        self.budget.check()?;
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let step = self.chunk_bytes();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let chunk = self.chunk(&mut hand, at / step * step)?;
            let start = (at % step) as usize;
            let length = (chunk.len() - start).min(bytes.len() - done);
            bytes[done..done + length].copy_from_slice(&chunk[start..start + length]);
            done += length;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_look_ends_at_once_also_where_it_reads_what_it_has_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, [7; 4096]).unwrap();
        let reader = |until, stop: &StopSignal| {
            let budget = Budget { bytes: AtomicU64::new(LOOK_BYTES_MAX), until, stop: stop.clone() };
            let disk = Arc::new(FileDisk::open_for_verify(&path).unwrap());
            Reader { disk, budget: Arc::new(budget), hand: Mutex::default() }
        };
        let (now, stop, mut bytes) = (Instant::now(), StopSignal::default(), [0; 8]);
        let read = reader(now + LOOK_TIME_MAX, &stop);
        read.read_at(8, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8]);
        stop.stop();
        assert_eq!(read.read_at(8, &mut bytes).unwrap_err().to_string(), "the look was stopped");
        let late = reader(now, &StopSignal::default());
        assert_eq!(late.read_at(8, &mut bytes).unwrap_err().to_string(), "a look ends after 300 s");
    }

    #[test]
    fn a_look_that_was_stopped_names_what_it_left() {
        assert_eq!(interrupted(&[]).message, "interrupted; the source is as it was");
        let left = Problem::error("vms", "web: what was made may still be there").advise("remove it by hand");
        let failure = interrupted(&[left]);
        assert_eq!(failure.message, "interrupted; web: what was made may still be there");
        assert_eq!(failure.advice.as_deref(), Some("remove it by hand"));
        assert_eq!(failure.exit, Exit::Interrupted);
    }
}
