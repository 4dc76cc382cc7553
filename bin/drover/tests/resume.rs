//! kill -9 at random moments, again and again: resume always ends equal and never reads again what was recorded.
#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::io::BufReader;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm};
use drover_types::BLOCK_BYTES;
use serde_json::json;

const DISK_MIB: u64 = 160;
/// The source's rate is held down so that a copy takes about four seconds and kills strike in its middle.
const RATE_MIB: u64 = 40;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

#[test]
fn killed_at_random_moments_it_resumes_without_copying_recorded_blocks_again() {
    kills_until(Duration::MAX, 25);
}

/// Run by `make soak`.
#[test]
#[ignore = "takes hours; `make soak` runs it"]
fn soak() {
    let hours: f64 =
        std::env::var("DROVER_SOAK_HOURS").ok().and_then(|text| text.parse().ok()).unwrap_or(2.0);
    kills_until(Duration::from_secs_f64(hours * 3600.0), u32::MAX);
}

fn kills_until(time: Duration, kills_wanted: u32) {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let until = Instant::now().checked_add(time);
    let (mut kills, mut torn, mut copies) = (0, 0, 0);
    while kills < kills_wanted && until.is_none_or(|until| Instant::now() < until) {
        let Some(stage) = Stage::new(40, |folder| {
            let a = disk_file(folder, "a", DISK_MIB * MIB);
            vec![vm("one", &[&a])]
        }) else {
            return;
        };
        stage.sim.post("/rate", json!({"bytes_per_s": RATE_MIB * MIB, "per": "host"})).unwrap();
        let (killed, cut) = one_copy(&stage, &mut dice, kills_wanted - kills);
        kills += killed;
        torn += cut;
        copies += 1;
    }
    println!("{kills} kills and {torn} torn journals over {copies} copies, all equal");
    assert!(torn > 0, "no journal was torn: the test does not test what it says");
}

/// Kills a copy until it has been killed often enough or gets through; then lets it end, and checks.
fn one_copy(stage: &Stage, dice: &mut Dice, kills_max: u32) -> (u32, u32) {
    let plan = stage.plan("killed", &[("mode: cold", "mode: cold\nlimits: {request: 1MiB}")]);
    let before = stage.source_state();
    // The control connection stays.
    let connections = connections(stage);
    let (mut kills, mut torn) = (0, 0);
    while kills < kills_max.min(12) {
        let had = recorded_bytes(stage);
        let mut started = stage.drover.start(&["migrate", &plan]).unwrap();
        // Every other one comes at any moment. On a machine that is busy enough none of these finds a journal to tear,
        // so the others wait until it has grown.
        let waits = dice.roll(2) == 0;
        match waits {
            true => wait_until("more is recorded, or all", PATIENCE, || {
                recorded_bytes(stage) > had || started.child.try_wait().unwrap().is_some()
            }),
            false => std::thread::sleep(Duration::from_millis(200 + dice.roll(2500))),
        }
        started.kill().unwrap();
        kills += 1;
        if waits || dice.roll(2) == 0 {
            torn += u32::from(tear_journal(stage, dice));
        }
        if is_done(stage, &plan) {
            break;
        }
    }
    let recorded = recorded_bytes(stage);
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    // The simulator may still be sending to the process that was killed.
    wait_until("its connections end", PATIENCE, || self::connections(stage) <= connections);
    stage.sim.post("/stats/reset", json!({})).unwrap();
    if !is_done(stage, &plan) {
        // On a machine that is busy enough each drover was killed before it had taken the plan in.
        let is_known = stage.run(&["status", &plan]).code == Some(0);
        let end = stage.run(&[if is_known { "resume" } else { "migrate" }, &plan]);
        assert_eq!(end.code, Some(0), "{}{}", end.out, end.err);
    }
    let left = DISK_MIB * MIB - recorded;
    assert!(stage.served() <= left, "{} bytes were read, and only {left} were not recorded", stage.served());
    stage.assert_equal("one", 0, &stage.path("a"));
    assert_eq!(stage.source_state(), before, "no snapshot is left, the source is off as it was");
    let report = stage.report(&plan);
    assert_eq!(report["vms"][0]["disks"][0]["equal"], true);
    (kills, torn)
}

/// Connections that are open at the simulator.
fn connections(stage: &Stage) -> u64 {
    stage.sim.get("/stats").unwrap()["connections_open"].as_u64().unwrap()
}

fn is_done(stage: &Stage, plan: &str) -> bool {
    let status = stage.run(&["status", plan, "--json"]);
    status.json().is_ok_and(|status| status["vms"][0]["state"] == "done")
}

fn journal(stage: &Stage) -> std::path::PathBuf {
    drover_mover::journal_path(&stage.image("one", 0))
}

/// What the journal says is on the target.
fn recorded_bytes(stage: &Stage) -> u64 {
    let Ok(file) = std::fs::File::open(journal(stage)) else { return 0 };
    let replay = drover_copy::replay(&mut BufReader::new(file));
    replay.map_or(0, |replay| (replay.leaves.known_blocks() * BLOCK_BYTES).min(DISK_MIB * MIB))
}

/// Cuts or spoils the end of the journal, as a crash in the middle of its last record would. False if there
/// is no record yet.
fn tear_journal(stage: &Stage, dice: &mut Dice) -> bool {
    use std::os::unix::fs::FileExt;
    let Ok(file) = OpenOptions::new().read(true).write(true).open(journal(stage)) else { return false };
    let length = file.metadata().unwrap().len();
    if length <= 128 + 32 {
        return false;
    }
    match dice.roll(3) {
        0 => file.set_len(length - 1 - dice.roll(31)).unwrap(),
        1 => file.write_all_at(&[0xa5; 7], length - 1 - dice.roll(16)).unwrap(),
        _ => file.write_all_at(&[1, 0, 0, 0, 9, 0, 0, 0, 3], length).unwrap(),
    }
    true
}
