use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_engine::{Board, DiskActivity, Event, LiveDisk, Observer};
use serde::Serialize;

use crate::clock;
use crate::meter::{Meter, Window, time_for};
use crate::mode::DisplayMode;
use crate::now::{DiskNow, TotalNow, to_line};
use crate::stage::{Scene, Stage, stamped};
use crate::tally::{Line, Tally, stays};
use crate::text::duration;

/// Shows a run as it happens: give it to the engine as the observer.
///
/// Events are queued and shown by a thread of its own, so a terminal or pipe that is held never holds
/// the run.
#[derive(Debug)]
pub struct Display {
    tally: Arc<Mutex<Tally>>,
    stage: Stage,
}

impl Display {
    /// Begins to show what happens on the board and every event it gets.
    pub fn start(mode: DisplayMode, board: Board) -> Display {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let stage = Stage::open(mode, Run::new(board, tally.clone()));
        Display { tally, stage }
    }

    /// Ends it and leaves the terminal clean; so does a drop.
    pub fn finish(self) {
        self.stage.close();
    }

    fn lines(&self, event: &Event, lines: Vec<Line>) -> Vec<Line> {
        match self.stage.mode() {
            DisplayMode::Terminal if stays(event) => lines,
            DisplayMode::Terminal => Vec::new(),
            DisplayMode::Plain => lines.into_iter().map(stamped).collect(),
            DisplayMode::Json => vec![Line { text: json_line(event, clock::now_utc()), bad: false }],
            DisplayMode::Quiet => match event {
                Event::VmEnded { .. } => lines.into_iter().filter(|line| line.bad).collect(),
                _ => Vec::new(),
            },
        }
    }
}

impl Observer for Display {
    fn event(&self, event: &Event) {
        let lines = lock(&self.tally).take(event, Instant::now());
        self.stage.tell(self.lines(event, lines));
    }
}

fn json_line(event: &Event, time: String) -> String {
    #[derive(Serialize)]
    struct Timed<'a> {
        time: String,
        #[serde(flatten)]
        event: &'a Event,
    }
    to_line(&Timed { time, event })
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run, seen through its board and its tally.
struct Run {
    board: Board,
    tally: Arc<Mutex<Tally>>,
    disks: Vec<(LiveDisk, Meter)>,
    read: Window<u64>,
}

impl Run {
    fn new(board: Board, tally: Arc<Mutex<Tally>>) -> Self {
        Run { board, tally, disks: Vec::new(), read: Window::since(Instant::now(), 0) }
    }

    fn of(&self, activity: DiskActivity) -> impl Iterator<Item = &Meter> {
        self.disks.iter().filter(move |(disk, _)| disk.activity == activity).map(|(_, meter)| meter)
    }

    /// Bytes that copies have still to read: what the disks at work have left and, of disks that have
    /// not begun, the share that was read of disks so far.
    fn left_to_copy(&self) -> u64 {
        let (all, done) = self.board.capacity();
        let (mut left, mut begun, mut settled) = (0u64, done, done);
        for look in self.of(DiskActivity::Copy).map(Meter::last) {
            left = left.saturating_add(look.left_to_read());
            begun = begun.saturating_add(look.size);
            settled = settled.saturating_add(look.settled);
        }
        let share = if settled == 0 { 1.0 } else { (self.read.last() as f64 / settled as f64).min(1.0) };
        left.saturating_add((all.saturating_sub(begun) as f64 * share) as u64)
    }
}

/// Looks at a run for those who show it elsewhere.
pub struct RunWatch(Run);

/// A run at one moment.
#[derive(Clone, Debug)]
pub struct RunNow {
    /// Bytes read and written by this run.
    pub moved: (u64, u64),
    /// Bytes read per second, lately.
    pub rate: Option<f64>,
    /// How long until all is copied, by that rate.
    pub left: Option<Duration>,
    /// Failures of the disks at work that were tried again.
    pub retries: u64,
    /// Disks at work, each as in a JSON line of progress.
    pub disks: Vec<serde_json::Value>,
    /// Disks at work that are not among them.
    pub left_out: usize,
}

impl RunWatch {
    /// Watches what is at work on a board.
    pub fn new(board: Board) -> RunWatch {
        RunWatch(Run::new(board, Arc::default()))
    }

    /// Looks, and names at most so many disks.
    pub fn look(&mut self, now: Instant, disks_max: usize) -> RunNow {
        self.0.look(now);
        let rate = self.0.read.rate(|read| *read);
        let copies = self.0.of(DiskActivity::Copy).next().is_some();
        let disks = self.0.disks();
        RunNow {
            moved: self.0.board.moved(),
            rate,
            left: time_for(self.0.left_to_copy(), rate).filter(|_| copies),
            retries: disks.iter().map(|disk| disk.look.retries).sum(),
            left_out: disks.len().saturating_sub(disks_max),
            disks: disks.iter().take(disks_max).map(|disk| disk.value(clock::now_utc())).collect(),
        }
    }
}

impl Scene for Run {
    fn look(&mut self, now: Instant) {
        let live = self.board.live();
        self.disks.retain(|(disk, _)| live.iter().any(|it| Arc::ptr_eq(&it.progress, &disk.progress)));
        for disk in live {
            if !self.disks.iter().any(|(it, _)| Arc::ptr_eq(&it.progress, &disk.progress)) {
                self.disks.push((disk.clone(), Meter::since(disk.since)));
            }
        }
        self.disks.iter_mut().for_each(|(disk, meter)| meter.add(now, disk.progress.snapshot()));
        self.read.add(now, self.board.moved().0);
    }

    fn disks(&self) -> Vec<DiskNow> {
        let now = |(disk, meter): &(LiveDisk, Meter)| {
            DiskNow::new(Some(disk.vm.clone()), Some(disk.disk.clone()), word(disk.activity).into(), meter)
        };
        self.disks.iter().map(now).collect()
    }

    fn others(&self, now: Instant) -> Vec<String> {
        let tally = lock(&self.tally);
        let without_disk =
            tally.running.iter().filter(|vm| !self.disks.iter().any(|(disk, _)| disk.vm == vm.name));
        let line = |vm: &crate::tally::RunningVm| match &vm.passing {
            Some(words) => format!("{}  {words}", vm.name),
            None => format!(
                "{}  {}  for {}",
                vm.name,
                vm.phase,
                duration(now.saturating_duration_since(vm.since))
            ),
        };
        without_disk.map(line).collect()
    }

    fn total(&self) -> Option<TotalNow> {
        let tally = lock(&self.tally);
        let mut total = TotalNow {
            done: tally.done,
            not_cleaned_up: tally.not_cleaned_up,
            running: tally.running.len(),
            failed: tally.failed,
            stopped: tally.stopped,
            cancelled: tally.cancelled,
            queued: tally.queued(),
            read: self.read.last(),
            ..TotalNow::default()
        };
        if self.of(DiskActivity::Copy).next().is_some() {
            total.toward = Some("copied");
            total.rate = self.read.rate(|read| *read);
            total.left = time_for(self.left_to_copy(), total.rate);
        } else if self.of(DiskActivity::Verify).next().is_some() {
            total.toward = Some("verified");
            let rates: Vec<f64> = self.of(DiskActivity::Verify).filter_map(Meter::rate).collect();
            total.rate = (!rates.is_empty()).then(|| rates.iter().sum());
            let left = self.of(DiskActivity::Verify).map(|meter| meter.last().left_to_read());
            total.left = time_for(left.fold(0, u64::saturating_add), total.rate);
        }
        Some(total)
    }
}

fn word(activity: DiskActivity) -> &'static str {
    match activity {
        DiskActivity::Queued => "queued",
        DiskActivity::Copy => "copy",
        DiskActivity::Prove => "manifest",
        DiskActivity::Verify => "verify",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drover_engine::VmState;

    use crate::canvas::tests::{Paper, shown};
    use crate::tally::tests::journey;

    fn play(mode: DisplayMode) -> Vec<String> {
        let (paper, tally) = (Paper::default(), Arc::new(Mutex::new(Tally::default())));
        let run = Run::new(Board::default(), tally.clone());
        let display = Display { tally, stage: Stage::open_on(mode, run, Box::new(paper.clone())) };
        display.event(&Event::PlanStarted { plan: "lab".into(), vms: 2, done_before: 0 });
        journey("web01").iter().for_each(|event| display.event(event));
        display.event(&Event::VmEnded {
            vm: "web01".into(),
            state: VmState::Done,
            error: None,
            advice: None,
            standing: None,
        });
        display.event(&Event::VmEnded {
            vm: "web02".into(),
            state: VmState::Failed,
            error: Some("disk\nfull".into()),
            advice: Some("make room".into()),
            standing: None,
        });
        std::thread::sleep(Duration::from_millis(250));
        display.finish();
        let bytes = paper.0.lock().unwrap().clone();
        shown(&bytes)
    }

    #[test]
    fn a_terminal_keeps_results_and_loses_what_moved() {
        assert_eq!(
            play(DisplayMode::Terminal),
            [
                "plan lab: 2 VMs to move",
                "web01  done  2 disks  4 GiB  859 MB/s  hash equal",
                "web02  FAILED  disk full",
                "  try: make room",
            ]
        );
    }

    #[test]
    fn a_log_has_every_event_with_its_time() {
        let lines = play(DisplayMode::Plain);
        assert_eq!(lines.len(), 1 + 8 + 1 + 2);
        assert!(lines.iter().all(|line| line.starts_with("20") && line.as_bytes()[16] == b':'), "{lines:#?}");
        assert!(lines[1].ends_with("  web01: copy begins"));
    }

    #[test]
    fn a_machine_reads_an_object_per_line() {
        let lines = play(DisplayMode::Json);
        let values: Vec<serde_json::Value> =
            lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(values.len(), 1 + 8 + 2);
        assert_eq!(values[0]["event"], "plan_started");
        assert_eq!(values[1]["phase"], "copy");
        assert_eq!(values[10]["error"], "disk\nfull");
        assert!(values.iter().all(|value| value["time"].as_str().unwrap().ends_with('Z')));
    }

    #[test]
    fn quiet_is_silent_on_all_but_failures() {
        assert_eq!(play(DisplayMode::Quiet), ["web02  FAILED  disk full", "  try: make room"]);
    }
}
