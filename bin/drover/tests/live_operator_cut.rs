//! The line to the node of one of the operator's workers is cut at random moments, in a true Kubernetes of two nodes.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::kubernetes::{PODS, assert_holds};
use common::operated::{Operated, process_of};
use common::{MIB, disk_file, vm};
use drover_lab::cluster::Volume;
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

#[test]
fn a_worker_that_is_cut_off_has_no_successor_beside_it() {
    let rounds = std::env::var("DROVER_PARTITION_ROUNDS").map_or(2, |it| it.parse().unwrap());
    let operated =
        Operated::new(161, |folder| vec![vm("web01", &[&disk_file(folder, "a", (rounds + 1) * 32 * MIB)])]);
    let Some(mut operated) = operated else { return };
    operated.landing.cluster.second_node().unwrap();
    // What writes the volume is on the first node, the worker on the second.
    let a = operated.landing.cluster.volume("v-a", Volume::Block, (rounds + 1) * 32 * MIB).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Shared, 64 * MIB).unwrap();
    let cordon = |is_cordoned: bool| operated.cordon("node-1", is_cordoned);
    let mut moments = Moments::new();
    cordon(true);
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "1MiB"));
    for round in 0..rounds {
        operated.wait("a worker on the second node", || operated.node("web01") == "node-2");
        cordon(false);
        let seen = operated.done_bytes("web01");
        operated.moves("web01", seen);
        let pod = operated.worker("web01").unwrap();
        let epoch = |operated: &Operated| operated.migration("web01").unwrap()["status"]["epoch"].clone();
        let before = epoch(&operated);
        operated.landing.cluster.cut(true).unwrap();
        moments.pass(15_000);
        operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=1"));
        moments.pass(20_000);
        operated.assert_alone();
        assert_eq!(epoch(&operated), before, "nobody knows that the first one ended: {}", operated.told());
        if round % 2 == 1 {
            // By force, which the Job's finalizer outlives: only without that one its name is gone, and a successor comes on the first
            // node while the other still runs.
            operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=0"));
            moments.pass(5_000);
            operated.assert_alone();
            assert_eq!(epoch(&operated), before, "{}", operated.told());
            let freed = json!({"metadata": {"finalizers": null}});
            operated.landing.cluster.merge(&format!("{PODS}/{pod}"), &freed).unwrap();
            operated.wait("a successor", || operated.node("web01") == "node-1");
            moments.pass(20_000);
            operated.landing.cluster.cut(false).unwrap();
            let seen = operated.done_bytes("web01");
            operated.moves("web01", seen);
            // Back, for the next round.
            cordon(true);
            let pod = operated.worker("web01").unwrap();
            operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=1"));
        } else {
            cordon(true);
            operated.landing.cluster.cut(false).unwrap();
            operated.wait("a successor", || epoch(&operated) != before);
        }
    }
    cordon(false);
    arrives_whole(&operated, &a);
}

/// What a successor has copied for certain lies so far behind what it tells: more than is on its way in the second between two flushes.
const MARGIN: u64 = 4 * MIB;
/// How far a successor gets before the line comes back: past all that the other worker had on its way.
const AHEAD: u64 = 10 * MIB;
/// Bytes that are told of as one.
const BLOCK: usize = 64 << 10;
/// Bytes of the disk for a round.
const ROUND_BYTES: u64 = 40 * MIB;

/// A volume while it is written, and the disk that it comes from. Both are read and written by their devices, as by the pods that have them.
struct Watched {
    device: std::fs::File,
    source: std::fs::File,
}

impl Watched {
    fn new(volume: &Path, source: &Path) -> Watched {
        let mut losetup = std::process::Command::new("losetup");
        losetup.args(["--noheadings", "--output", "NAME", "--associated"]).arg(volume);
        let names = String::from_utf8(losetup.output().unwrap().stdout).unwrap();
        let name = names.lines().next().unwrap().trim().to_string();
        let device = std::fs::File::options().read(true).write(true).open(name).unwrap();
        Watched { device, source: std::fs::File::open(source).unwrap() }
    }

    fn read(file: &std::fs::File, span: &Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; (span.end - span.start) as usize];
        file.read_exact_at(&mut bytes, span.start).unwrap();
        bytes
    }

    /// Whether that much of the disk is there.
    fn is_equal(&self, end: u64) -> bool {
        (0..end).step_by(MIB as usize).all(|at| {
            let span = at..end.min(at + MIB);
            Watched::read(&self.device, &span) == Watched::read(&self.source, &span)
        })
    }

    fn write(&self, span: &Range<u64>, bytes: &[u8]) {
        self.device.write_all_at(bytes, span.start).unwrap();
        self.device.sync_all().unwrap();
    }

    /// Puts there what no worker would write; gives it.
    fn mark(&self, span: &Range<u64>) -> Vec<u8> {
        let marks: Vec<u8> = Watched::read(&self.source, span).iter().map(|byte| !byte).collect();
        self.write(span, &marks);
        marks
    }

    /// Blocks whose bytes are not the marks any more, and whether they are those of the disk.
    fn changed(&self, span: &Range<u64>, marks: &[u8]) -> Vec<(u64, bool)> {
        let now = Watched::read(&self.device, span);
        let wanted = Watched::read(&self.source, span);
        let blocks = now.chunks(BLOCK).zip(marks.chunks(BLOCK)).zip(wanted.chunks(BLOCK)).enumerate();
        let changed = blocks.filter(|(_, ((now, marks), _))| now != marks);
        changed
            .map(|(number, ((now, _), wanted))| (span.start + (number * BLOCK) as u64, now == wanted))
            .collect()
    }

    fn unmark(&self, span: &Range<u64>) {
        self.write(span, &Watched::read(&self.source, span));
    }
}

/// `DROVER_PARTITION_ROUNDS` rounds, half a minute each. In three of four the pod of the worker that is cut off is removed by force, as a node is
/// that counts as out of service, and a successor goes on while it still runs: what the successor has written is then made other by the test,
/// so that every byte that the first one writes later shows.
#[test]
#[ignore = "fails, and it is not known whether by its margin or by a write that was not fenced"]
fn a_worker_that_is_cut_off_changes_no_byte_beside_its_successor() {
    let rounds: u64 = std::env::var("DROVER_PARTITION_ROUNDS").map_or(2, |it| it.parse().unwrap());
    let bytes = (rounds + 1) * ROUND_BYTES;
    let operated = Operated::new(162, |folder| vec![vm("web01", &[&disk_file(folder, "a", bytes)])]);
    let Some(mut operated) = operated else { return };
    operated.landing.cluster.second_node().unwrap();
    // What writes the volume is on the first node, the worker on the second.
    let a = operated.landing.cluster.volume("v-a", Volume::Block, bytes).unwrap();
    operated.landing.cluster.volume("s-a", Volume::Shared, 64 * MIB).unwrap();
    let watched = Watched::new(&a, &operated.landing.stage.path("a"));
    let cordon = |is_cordoned: bool| operated.cordon("node-1", is_cordoned);
    let epoch = |operated: &Operated| operated.migration("web01").unwrap()["status"]["epoch"].clone();
    let mut moments = Moments::new();
    let (mut beside, mut ran_on) = (0, 0);
    cordon(true);
    operated.make(&operated.plan("slow", json!([{"name": "web01"}]), "1MiB"));
    for round in 0..rounds {
        operated.wait("a worker on the second node", || operated.node("web01") == "node-2");
        cordon(false);
        let seen = operated.done_bytes("web01");
        operated.moves("web01", seen);
        let pod = operated.worker("web01").unwrap();
        let path = format!("{PODS}/{pod}");
        let first = operated.landing.cluster.get(&path).unwrap().unwrap();
        let before = epoch(&operated);
        let at_cut = operated.done_bytes("web01");
        operated.landing.cluster.cut(true).unwrap();
        let cut = std::time::Instant::now();
        moments.pass(10_000);
        operated.remove(&format!("{path}?gracePeriodSeconds=1"));
        moments.pass(10_000);
        operated.assert_alone();
        assert_eq!(epoch(&operated), before, "nobody knows that the first one ended: {}", operated.told());
        if round % 4 == 0 {
            cordon(true);
            operated.landing.cluster.cut(false).unwrap();
            operated.wait("a successor", || epoch(&operated) != before);
            println!("round {round}: no successor for {} s of a cut", cut.elapsed().as_secs());
            continue;
        }
        // By force, which the Job's finalizer outlives: only without that one its name is gone, and a successor comes on the first node
        // while the other still runs.
        operated.remove(&format!("{path}?gracePeriodSeconds=0"));
        moments.pass(2_000);
        operated.assert_alone();
        assert_eq!(epoch(&operated), before, "{}", operated.told());
        // A node that was lost a moment ago still counts as ready.
        operated.cordon("node-2", true);
        let freed = json!({"metadata": {"finalizers": null}});
        operated.landing.cluster.merge(&path, &freed).unwrap();
        operated.wait("a successor", || operated.node("web01") == "node-1");
        operated.wait("it is past the first one", || operated.done_bytes("web01") >= at_cut + AHEAD);
        let span = at_cut.saturating_sub(MIB)..operated.done_bytes("web01") - MARGIN;
        let marks = watched.mark(&span);
        moments.pass(10_000);
        let runs_on = process_of(&first).is_some();
        operated.landing.cluster.cut(false).unwrap();
        let seconds = cut.elapsed().as_secs();
        let seen = operated.done_bytes("web01");
        operated.wait("the first one ends", || process_of(&first).is_none());
        operated.moves("web01", seen);
        moments.pass(3_000);
        let changed = watched.changed(&span, &marks);
        assert!(
            changed.is_empty(),
            "at {at_cut} cut, ran on {runs_on}; of {span:?} changed: {changed:?} {}",
            operated.told()
        );
        watched.unmark(&span);
        assert!(watched.is_equal(operated.done_bytes("web01") - MARGIN), "{}", operated.told());
        beside += 1;
        ran_on += u64::from(runs_on);
        println!(
            "round {round}: cut for {seconds} s, {} KiB marked, the first worker ran on: {runs_on}",
            marks.len() >> 10
        );
        // Back, for the next round.
        operated.cordon("node-2", false);
        cordon(true);
        let pod = operated.worker("web01").unwrap();
        operated.remove(&format!("{PODS}/{pod}?gracePeriodSeconds=1"));
    }
    cordon(false);
    arrives_whole(&operated, &a);
    println!(
        "{rounds} partitions: {beside} with a successor beside the first worker, which in {ran_on} ran on when the line came back"
    );
}
