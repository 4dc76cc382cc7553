use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Generous: only what never comes runs into it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for what must come to pass.
pub fn wait_until(what: &str, at_most: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + at_most;
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within {} s", at_most.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program that is ended with the test.
pub struct EndsWithTest(pub Child);

impl Drop for EndsWithTest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a process with all its threads.
pub fn freeze(child: &Child) {
    kill_process(Pid::from_child(child), Signal::STOP).unwrap();
    // The signal takes a moment to reach each thread.
    wait_until("the process stops", PATIENCE, || is_stopped(Pid::from_child(child)));
}

/// Lets it go on.
pub fn thaw(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).unwrap();
}

/// Whether a process stands still with all its threads.
pub fn is_stopped(process: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
    tasks.map(|task| task.unwrap().path().join("stat")).all(|stat| {
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    })
}

/// A line of the kernel's account of a process: `VmRSS:` what it has in memory now, `VmHWM:` the most that it had.
pub fn memory_kib(process: &Child, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Blocks that the journal beside a target says are on it.
pub fn recorded_blocks(target: &Path) -> u64 {
    recorded_by(&drover_mover::journal_path(target))
}

/// Blocks that the journals in a folder say are on their targets.
pub fn recorded_in(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.flatten().map(|entry| recorded_by(&entry.path())).sum()
}

/// Blocks that a journal says are on its target.
pub fn recorded_by(journal: &Path) -> u64 {
    let Ok(file) = std::fs::File::open(journal) else { return 0 };
    drover_copy::replay(&mut std::io::BufReader::new(file)).map_or(0, |replay| replay.leaves.known_blocks())
}

/// Waits until a copy is well under way.
pub fn wait_for_records(target: &Path) {
    wait_until("the copy records blocks", PATIENCE, || recorded_blocks(target) > 0);
}
