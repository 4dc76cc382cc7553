//! The line to the node of one of the operator's workers is cut at random moments, in a true Kubernetes of two nodes.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drover_lab::cluster::Volume;
use drover_operator::RETRY;
use drover_stage::kubernetes::{PODS, assert_holds};
use drover_stage::operated::{OWN, Operated, process_of};
use drover_stage::process::{PATIENCE, is_stopped, wait_until};
use drover_stage::{MIB, disk_file, vm};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Moments of faults: others in each run, told, and the same with `DROVER_SEED`.
struct Moments(u64);

impl Moments {
    fn new() -> Moments {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed =
            std::env::var("DROVER_SEED").ok().map_or(since.as_millis() as u64, |it| it.parse().unwrap());
        println!("DROVER_SEED={seed}");
        Moments(seed | 1)
    }

    fn pass(&mut self, milliseconds_max: u64) {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        std::thread::sleep(Duration::from_millis(self.0 % milliseconds_max));
    }
}

/// The rest is copied, and the volume holds what the disk does.
fn arrives_whole(operated: &Operated, volume: &Path) {
    while operated.phase("web01") != "Done" {
        let seen = operated.done_bytes("web01");
        let is_farther = || operated.phase("web01") == "Done" || operated.done_bytes("web01") > seen;
        operated.wait("the copy goes on", is_farther);
    }
    assert_holds(volume, &operated.landing.stage.path("a"));
    assert_eq!(operated.migration("web01").unwrap()["status"]["roots"][0]["verified"], true);
}

/// Bytes that are told of as one.
const BLOCK: usize = 64 << 10;
/// Bytes of the disk for a round: more than are sent in one.
const ROUND_BYTES: u64 = 24 * MIB;
/// What is looked at of each block to see whether something is written.
const SAMPLE: u64 = 512;
/// How long a volume does not change once all has arrived that was sent to it.
const QUIET: Duration = Duration::from_secs(2);

/// A volume while it is written, and the disk that it comes from. Both are read and written by their devices, as by the pods that have them.
struct Watched {
    device: File,
    source: File,
    bytes: u64,
}

impl Watched {
    fn new(volume: &Path, source: &Path) -> Watched {
        let mut losetup = Command::new("losetup");
        losetup.args(["--noheadings", "--output", "NAME", "--associated"]).arg(volume);
        let names = String::from_utf8(losetup.output().unwrap().stdout).unwrap();
        let name = names.lines().next().unwrap().trim().to_string();
        let device = File::options().read(true).write(true).open(name).unwrap();
        let source = File::open(source).unwrap();
        let bytes = source.metadata().unwrap().len();
        Watched { device, source, bytes }
    }

    fn all(&self, file: &File) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Something of each block.
    fn samples(&self) -> Vec<u8> {
        let mut samples = vec![0; (self.bytes / BLOCK as u64 * SAMPLE) as usize];
        for (number, sample) in samples.chunks_mut(SAMPLE as usize).enumerate() {
            self.device.read_exact_at(sample, (number * BLOCK) as u64).unwrap();
        }
        samples
    }

    /// What is there once nothing changes any more.
    fn settled(&self) -> Vec<u8> {
        let mut seen = self.all(&self.device);
        loop {
            std::thread::sleep(QUIET);
            let now = self.all(&self.device);
            if now == seen {
                return now;
            }
            seen = now;
        }
    }

    fn put(&self, bytes: &[u8]) {
        self.device.write_all_at(bytes, 0).unwrap();
        self.device.sync_all().unwrap();
    }

    /// Puts everywhere what no worker would write; gives it.
    fn mark(&self) -> Vec<u8> {
        let marks: Vec<u8> = self.all(&self.source).iter().map(|byte| !byte).collect();
        self.put(&marks);
        marks
    }

    /// Blocks whose bytes are not the marks any more, and whether they are those of the disk.
    fn changed(&self, marks: &[u8]) -> Vec<(u64, bool)> {
        let (now, wanted) = (self.settled(), self.all(&self.source));
        let blocks = now.chunks(BLOCK).zip(marks.chunks(BLOCK)).zip(wanted.chunks(BLOCK)).enumerate();
        let changed = blocks.filter(|(_, ((now, marks), _))| now != marks);
        changed.map(|(number, ((now, _), wanted))| ((number * BLOCK) as u64, now == wanted)).collect()
    }
}

/// A process that stands still until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(process: &str) -> Stopped {
        let process = Pid::from_raw(process.parse().unwrap()).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        wait_until("the process stops", PATIENCE, || is_stopped(process));
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been ended meanwhile.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// What storage does for a node that is given up: another node gets the volume with what it held, and who has it there still has the old one
/// alone, with its locks. Nothing may write to it meanwhile.
fn detach(volume: &Path) {
    let (fresh, old) = (volume.with_extension("fresh"), volume.with_extension("old"));
    let copied = Command::new("cp").arg("-a").args([volume, &fresh]).status().unwrap();
    assert!(copied.success());
    let _ = std::fs::remove_dir_all(&old);
    std::fs::rename(volume, &old).unwrap();
    std::fs::rename(&fresh, volume).unwrap();
}

/// What becomes of a worker whose line is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CutOff {
    /// It runs on, and its volume for states goes to the node of a successor, as of a node that counts as out of service.
    Runs,
    /// The same, and it stands still until the line is back.
    StandsStill,
    /// It has the volume together with its successor.
    Shares,
    /// Nobody removes its pod by force.
    IsAwaited,
}

const CUT_OFF: [CutOff; 4] = [CutOff::StandsStill, CutOff::Runs, CutOff::Shares, CutOff::IsAwaited];

/// `DROVER_PARTITION_ROUNDS` rounds. The line to the node of a worker is cut and its pod removed by force, so that a successor begins on the other
/// node. Then the successor stands still, and all bytes of the volume are made other by the test: whatever changes when the line is back, the
/// first worker wrote.
#[test]
fn a_worker_that_is_cut_off_changes_no_byte_beside_its_successor() {
    let rounds = std::env::var("DROVER_PARTITION_ROUNDS").map_or(2, |it| it.parse().unwrap());
    let bytes = (rounds as u64 + 1) * ROUND_BYTES;
    let operated = Operated::new(162, |folder| vec![vm("web01", &[&disk_file(folder, "a", bytes)])]);
    let Some(mut operated) = operated else { return };
    operated.landing.cluster.second_node().unwrap();
    // What writes the volume is on the first node, the worker on the second.
    let a = operated.landing.cluster.volume("v-a", Volume::Block, bytes).unwrap();
    let state = operated.landing.cluster.volume("s-a", Volume::Shared, 64 * MIB).unwrap();
    let watched = Watched::new(&a, &operated.landing.stage.path("a"));
    let epoch = || operated.migration("web01").unwrap()["status"]["epoch"].clone();
    let path = || format!("{PODS}/{}", operated.worker("web01").unwrap());
    let pod = |path: &str| operated.landing.cluster.get(path).unwrap().unwrap();
    let writes = |what: &str| {
        let seen = watched.samples();
        operated.wait(what, || watched.samples() != seen && operated.worker("web01").is_some());
    };
    let at_source = || {
        let vm = operated.landing.stage.sim.vm("web01").unwrap();
        (vm["power"].clone(), vm["snapshots"].clone())
    };
    let mut moments = Moments::new();
    let migration = || Some(operated.migration("web01")?["metadata"]["name"].as_str()?.to_string());
    operated.cordon("node-1", true);
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "1MiB"));
    operated.wait("a Migration", || migration().is_some());
    let migration = format!("{OWN}/migrations/{}", migration().unwrap());
    for (round, becomes) in CUT_OFF.iter().cycle().take(rounds).enumerate() {
        // Tries that are cut off count as failed, and the pause before the next one doubles: from this word on they count anew.
        let again = json!({"metadata": {"annotations": {RETRY: format!("round {round}")}}});
        operated.landing.cluster.merge(&migration, &again).unwrap();
        operated.wait("a worker on the second node", || operated.node("web01") == "node-2");
        operated.cordon("node-1", false);
        writes("the first one writes");
        let (first_path, before) = (path(), epoch());
        let first = pod(&first_path);
        let process = process_of(&first).unwrap();
        operated.landing.cluster.cut(true).unwrap();
        let cut = Instant::now();
        // It would end the first worker as soon as it hears that its pod is gone.
        let kubelet = (*becomes != CutOff::IsAwaited).then(|| Stopped::new(&operated.second_kubelet()));
        moments.pass(3_000);
        operated.remove(&format!("{first_path}?gracePeriodSeconds=1"));
        moments.pass(if *becomes == CutOff::IsAwaited { 30_000 } else { 1_000 });
        operated.assert_alone();
        assert_eq!(epoch(), before, "nobody knows that the first one ended: {}", operated.told());
        if *becomes == CutOff::IsAwaited {
            operated.cordon("node-1", true);
            operated.landing.cluster.cut(false).unwrap();
            operated.wait("a successor", || epoch() != before);
            println!("round {round}, {becomes:?}: no successor for {} s of a cut", cut.elapsed().as_secs());
            continue;
        }
        // By force, which the Job's finalizer outlives: only without that one its name is gone, and a successor comes.
        operated.remove(&format!("{first_path}?gracePeriodSeconds=0"));
        moments.pass(1_000);
        operated.assert_alone();
        assert_eq!(epoch(), before, "{}", operated.told());
        // A node that was lost a moment ago still counts as ready.
        operated.cordon("node-2", true);
        let stands = (*becomes != CutOff::Shares).then(|| Stopped::new(&process));
        if stands.is_some() {
            detach(&state);
        }
        let stands = stands.filter(|_| *becomes == CutOff::StandsStill);
        watched.settled();
        let freed = json!({"metadata": {"finalizers": null}});
        operated.landing.cluster.merge(&first_path, &freed).unwrap();
        operated.wait("a successor", || operated.node("web01") == "node-1");
        let began = cut.elapsed().as_secs();
        writes("the successor writes");
        let successor = Stopped::new(&process_of(&pod(&path())).unwrap());
        let there = watched.settled();
        let source = at_source();
        let marks = watched.mark();
        let ran_on = process_of(&first).is_some();
        operated.landing.cluster.cut(false).unwrap();
        let seconds = cut.elapsed().as_secs();
        drop(stands);
        operated.wait("the first one ends", || process_of(&first).is_none());
        let ended = cut.elapsed().as_secs();
        let changed = watched.changed(&marks);
        println!(
            "round {round}, {becomes:?}: cut for {seconds} s; a successor after {began} s; the first worker ran on: {ran_on}, ended by {ended} s"
        );
        assert!(changed.is_empty(), "changed: {changed:?} {}", operated.told());
        assert_eq!(at_source(), source, "{}", operated.told());
        watched.put(&there);
        drop((successor, kubelet));
        // Back, for the next round.
        operated.cordon("node-2", false);
        operated.cordon("node-1", true);
        operated.remove(&format!("{}?gracePeriodSeconds=1", path()));
    }
    operated.cordon("node-1", false);
    arrives_whole(&operated, &a);
}
