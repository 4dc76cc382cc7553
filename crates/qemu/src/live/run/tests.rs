//! Moves between monitors that a test plays.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use std::sync::atomic::Ordering;

use drover_live::{
    Action, Allowed, Choice, Deed, Disk, LINE_ASSUMED, Loads, Moved, Passage, Promise, Settings, Side, Where,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::live::core::Lifecycle;

mod share;

/// A monitor that keeps what it is told, and answers with what was set.
#[derive(Default)]
struct Said {
    /// Commands, in the order in which they came.
    orders: Vec<String>,
    /// Of the machine.
    status: String,
    /// Of the move.
    migration: String,
    parameters: Value,
    capabilities: Value,
    /// Changes what it says when such an order comes: the order, the machine's status, the move's.
    turns: Vec<(&'static str, &'static str, &'static str)>,
    /// An order that it refuses.
    refuses: Option<&'static str>,
    /// A mirror that is ready, until it is ended.
    mirror: Option<&'static str>,
    /// Somebody begins a job when such an order comes: the order, the job's name.
    begins_job: Option<(&'static str, &'static str)>,
    /// An order at which it ends the connection.
    leaves: Option<&'static str>,
    /// An event that it tells before its answer to such an order.
    news: Option<(&'static str, Value)>,
    /// What follows on that.
    more_news: Vec<Value>,
    /// What is said of a measurement that another run began, each time that it is asked.
    measurement: Vec<&'static str>,
    /// Seconds for which that one lasts beyond drover's own.
    measures_longer_s: u64,
    /// Looks at mirrors before one is ready.
    looks_until_ready: u32,
    /// Bounds on mirrors, in the order in which they were set.
    speeds: Vec<Value>,
    /// What was made on it.
    objects: Vec<String>,
}

impl Said {
    fn answer(&mut self, order: &str, arguments: &Value) -> Option<Value> {
        self.orders.push(order.to_string());
        if self.refuses == Some(order) || order == "calc-dirty-rate" {
            return None;
        }
        if let Some((_, status, migration)) = self.turns.iter().find(|turn| turn.0 == order).copied() {
            (self.status, self.migration) = (status.to_string(), migration.to_string());
        }
        if let Some((_, name)) = self.begins_job.filter(|(at, _)| *at == order) {
            self.mirror = Some(name);
        }
        Some(match order {
            "query-status" => json!({"status": self.status}),
            "query-migrate" if self.migration == "none" => json!({}),
            "query-migrate" => json!({"status": self.migration}),
            "query-migrate-parameters" => self.parameters.clone(),
            "query-migrate-capabilities" => self.capabilities.clone(),
            "migrate-set-parameters" => {
                self.parameters = arguments.clone();
                json!({})
            }
            "migrate-set-capabilities" => {
                self.capabilities = arguments["capabilities"].clone();
                json!({})
            }
            "query-block-jobs" => {
                let is_ready = self.looks_until_ready == 0;
                self.looks_until_ready = self.looks_until_ready.saturating_sub(1);
                self.mirror.map_or(json!([]), |name| json!([{"device": name, "ready": is_ready}]))
            }
            "blockdev-mirror" | "block-job-set-speed" => {
                self.speeds.push(arguments["speed"].clone());
                json!({})
            }
            "block-job-cancel" => {
                self.mirror = None;
                json!({})
            }
            "query-dirty-rate" if !self.measurement.is_empty() => {
                let calc_time = crate::live::core::WATCH_S + self.measures_longer_s;
                json!({"status": self.measurement.remove(0), "dirty-rate": 7, "calc-time": calc_time})
            }
            "query-qmp-schema" => schema(),
            "query-cpus-fast" => json!([{"qom-path": "/processor"}]),
            "qom-list" if arguments["path"] == "/processor" => properties(),
            "qom-list" if arguments["path"] == "/objects" => {
                self.objects.iter().map(|name| json!({ "name": name })).collect()
            }
            "qom-get" if arguments["property"] == "type" => json!("kind"),
            "qom-get" => json!(true),
            "query-version" => json!({"qemu": {"major": 10, "minor": 0, "micro": 0}}),
            _ => json!({}),
        })
    }
}

fn schema() -> Value {
    let names = ["downtime-limit", "max-bandwidth"].map(|name| json!({"name": name, "type": "int"}));
    json!([
        {"meta-type": "command", "name": "migrate-set-parameters", "arg-type": "1"},
        {"meta-type": "object", "name": "1", "members": names},
    ])
}

/// As many as a processor has.
fn properties() -> Value {
    (0..300).map(|number| json!({"name": format!("feature{number}"), "type": "bool"})).collect()
}

#[derive(Clone)]
struct Fake(Arc<Mutex<Said>>);

impl Fake {
    fn new(status: &str, migration: &str) -> Fake {
        let (status, migration) = (status.to_string(), migration.to_string());
        Fake(Arc::new(Mutex::new(Said { status, migration, ..Said::default() })))
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap()
    }

    fn was_told(&self, order: &str) -> bool {
        self.said().orders.iter().any(|told| told == order)
    }

    fn guest(&self, folder: &TempDir, side: Side) -> Guest {
        let socket = folder.path().join(side.to_string());
        let listener = UnixListener::bind(&socket).unwrap();
        let fake = self.clone();
        thread::spawn(move || fake.serve(listener.accept().unwrap().0));
        Guest::connect(&socket, side).unwrap()
    }

    fn serve(&self, mut stream: UnixStream) {
        stream.write_all(b"{\"QMP\": {}}\n").unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let Ok(line) = line else { return };
            let told: Value = serde_json::from_str(&line).unwrap();
            if told["execute"].as_str() == self.said().leaves {
                return;
            }
            let news = self.said().news.clone();
            let more = self.said().more_news.clone();
            if let Some((order, event)) = news
                && told["execute"] == order
            {
                for event in [vec![event], more].concat() {
                    stream.write_all(format!("{event}\n").as_bytes()).unwrap();
                }
            }
            let answer = self.said().answer(told["execute"].as_str().unwrap(), &told["arguments"]);
            let answer = match answer {
                Some(answer) => json!({"return": answer, "id": told["id"]}),
                None => json!({"error": {"class": "GenericError", "desc": "not now"}, "id": told["id"]}),
            };
            if stream.write_all(format!("{answer}\n").as_bytes()).is_err() {
                return;
            }
        }
    }
}

fn options() -> LiveOptions {
    LiveOptions {
        wanted: Wanted {
            promise: Promise { downtime_max: Duration::from_secs(1), deadline: Duration::from_secs(1200) },
            allowed: Allowed::default(),
            channels: None,
            line: None,
            rate_max: None,
            share: None,
            carried: None,
            loads: Loads::default(),
            turn: None,
        },
        uri: "unix:/nowhere".to_string(),
        disks: DisksBy::Shared { assume_shared: false },
        memory: MemoryOptions::default(),
        looked: None,
    }
}

fn live(
    source: &mut Guest,
    target: &mut Guest,
    options: &LiveOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event),
) -> Result<Moved, LiveError> {
    Move::new(source, target, options, stop, tell).run()
}

fn foresee(
    source: &mut Guest,
    target: &mut Guest,
    options: &LiveOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<Option<Choice>, LiveError> {
    Move::new(source, target, options, &AtomicBool::new(false), tell).foresee()
}

/// Moves a guest between both, told to stop from the begin on or not.
fn moved(source: &Fake, target: &Fake, is_stopped: bool) -> Result<Moved, LiveError> {
    let folder = tempfile::tempdir().unwrap();
    let mut from = source.guest(&folder, Side::Source);
    let mut to = target.guest(&folder, Side::Target);
    live(&mut from, &mut to, &options(), &AtomicBool::new(is_stopped), &mut |_| {})
}

#[test]
fn a_guest_that_came_by_a_move_and_was_not_sent_is_at_the_source() {
    let (source, target) = (Fake::new("running", "completed"), Fake::new("inmigrate", "none"));
    let error = moved(&source, &target, true).unwrap_err();
    assert!(matches!(error.cause, Ending::Stopped), "{error}");
    assert_eq!(error.guest_at, Where::Source);
    assert!(!source.was_told("migrate") && !target.was_told("cont"));
}

#[test]
fn a_guest_that_came_by_a_move_and_whose_next_one_is_refused_is_at_the_source() {
    let (source, target) = (Fake::new("running", "completed"), Fake::new("inmigrate", "none"));
    source.said().refuses = Some("migrate");
    let error = moved(&source, &target, false).unwrap_err();
    assert_eq!(error.guest_at, Where::Source, "{error}");
    assert!(source.was_told("migrate") && !target.was_told("cont"));
}

/// A source that sends all of its guest at once, and a target that says so, and this after `cont`.
fn sent_at_once(after_cont: &'static str) -> (Fake, Fake) {
    let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
    source.said().turns.push(("migrate", "postmigrate", "completed"));
    // All is there by the time that it is asked.
    target.said().turns.push(("migrate-incoming", "paused", "completed"));
    target.said().turns.push(("cont", after_cont, "completed"));
    (source, target)
}

#[test]
fn a_guest_has_moved_when_the_target_says_that_it_runs() {
    let (source, target) = sent_at_once("running");
    moved(&source, &target, false).unwrap();
    assert!(target.was_told("cont"));
}

/// Over a long line each takes as long as the line is.
#[test]
fn a_target_is_asked_for_all_that_can_be_asked_at_once() {
    let (source, target) = sent_at_once("running");
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let began = to.qmp.round_trips();
    assert!(to.waits_deferred().unwrap());
    let asked = to.qmp.round_trips();
    foresee(&mut from, &mut to, &options(), &mut |_| {}).unwrap();
    let foreseen = to.qmp.round_trips();
    live(&mut from, &mut to, &options(), &AtomicBool::new(false), &mut |_| {}).unwrap();
    let moved = to.qmp.round_trips();
    let found = [asked - began, foreseen - asked, moved - foreseen];
    assert!(found.iter().zip([1, 4, 14]).all(|(found, most)| *found <= most), "{found:?}");
}

#[test]
fn a_measurement_that_is_under_way_is_waited_for_after_all_else_was_asked() {
    let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
    source.said().measurement = vec!["measuring", "measuring", "measured"];
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    // As soon as there is somebody to be asked.
    from.begin_to_measure().unwrap();
    let choice = foresee(&mut from, &mut to, &options(), &mut |_| {}).unwrap().unwrap();
    assert_eq!(choice.facts.dirty.likely, f64::from(7 << 20));
    let orders = source.said().orders.clone();
    assert_eq!(orders.iter().filter(|order| *order == "calc-dirty-rate").count(), 1, "{orders:?}");
    let last = |order: &str| orders.iter().rposition(|told| told == order);
    assert!(last("calc-dirty-rate") < last("query-qmp-schema"), "{orders:?}");
    assert!(last("qom-get") < last("query-dirty-rate"), "{orders:?}");
}

#[test]
fn a_measurement_that_is_not_as_drovers_own_is_not_waited_for() {
    let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
    (source.said().measurement, source.said().measures_longer_s) = (vec!["measuring"; 100], 59);
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let mut notes = Vec::new();
    let mut tell = |event| notes.extend(if let Event::Note(text) = event { Some(text) } else { None });
    let choice = foresee(&mut from, &mut to, &options(), &mut tell).unwrap().unwrap();
    assert_eq!(choice.facts.dirty.likely, 0.0);
    assert!(notes.iter().any(|note| note.contains("does not tell how fast the guest writes")), "{notes:?}");
}

/// Parameters of which each was another before.
fn set_to(number: u64) -> Settings {
    let parameters = json!({"downtime-limit": number, "max-bandwidth": number});
    Settings { parameters: parameters.as_object().unwrap().clone(), ..Settings::default() }
}

#[test]
fn what_was_set_before_is_known_though_the_answers_break_off() {
    for (side, leaves, is_cut, is_known) in [
        (Side::Target, "migrate-set-parameters", true, true),
        (Side::Target, "query-migrate-parameters", true, false),
        (Side::Source, "migrate-set-parameters", true, true),
        // Nothing was set.
        (Side::Source, "query-migrate-parameters", false, false),
    ] {
        let fake = Fake::new("running", "none");
        fake.said().parameters = Value::Object(set_to(1).parameters);
        fake.said().leaves = Some(leaves);
        let folder = tempfile::tempdir().unwrap();
        let mut guest = fake.guest(&folder, side);
        let mut before = Before::default();
        let error = guest.set_from(&set_to(2), &mut before).unwrap_err();
        assert!(!error.is_refusal(), "{}", error.chain());
        let known = if is_known { set_to(1) } else { Settings::default() };
        assert_eq!(before, Before { settings: known, is_cut }, "{side}: {leaves}");
    }
}

#[test]
fn a_target_that_breaks_off_while_it_is_set_is_told() {
    let (source, target) = sent_at_once("running");
    target.said().leaves = Some("migrate-set-parameters");
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let mut notes = Vec::new();
    let mut tell = |event| notes.extend(if let Event::Note(text) = event { Some(text) } else { None });
    let error = live(&mut from, &mut to, &options(), &AtomicBool::new(false), &mut tell).unwrap_err();
    assert_eq!(error.guest_at, Where::Source, "{error}");
    assert!(notes.iter().any(|note| note.contains("may stay set at the target")), "{notes:?}");
    assert!(!source.was_told("migrate-set-parameters"), "{:?}", source.said().orders);
}

#[test]
fn a_mirror_is_not_ended_by_what_an_older_one_of_its_name_ended_in() {
    let source = Fake::new("running", "none");
    let old = json!({"device": "drover-mirror-0", "error": "No space left on device"});
    let old = json!({"event": "BLOCK_JOB_COMPLETED", "data": old});
    (source.said().mirror, source.said().news) = (Some("drover-mirror-0"), Some(("query-status", old)));
    let folder = tempfile::tempdir().unwrap();
    let mut from = source.guest(&folder, Side::Source);
    from.status().unwrap();
    assert_eq!(from.seen().unwrap().failed_jobs.len(), 1);
    let pairs = [Pair::new(0, "hd0".to_string(), Disk::default(), Disk::default())];
    let at = crate::live::NbdAt::Unix("/nowhere".into());
    from.mirror(&pairs[0], &at, &Ability::default(), None, None).unwrap();
    from.end_mirrors(&pairs, Duration::from_secs(60)).unwrap();
}

#[test]
fn another_ctrl_c_is_spoken_of_only_where_something_is_to_be_cancelled() {
    for has_mirrored in [false, true] {
        let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
        let folder = tempfile::tempdir().unwrap();
        let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
        let (options, stop, mut notes) = (options(), AtomicBool::new(true), Vec::new());
        let mut tell = |event| notes.extend(if let Event::Note(text) = event { Some(text) } else { None });
        let mut one = Move::new(&mut from, &mut to, &options, &stop, &mut tell);
        one.pairs = vec![Pair::new(0, "hd0".to_string(), Disk::default(), Disk::default())];
        one.mirrors = if has_mirrored { Mirrors::Begun } else { Mirrors::None };
        let error = one.settle(Ending::Stopped).unwrap_err();
        assert_eq!(error.guest_at, Where::Source, "{error}");
        assert_eq!(notes.iter().any(|note| note.contains("another Ctrl-C")), has_mirrored, "{notes:?}");
    }
}

#[test]
fn that_a_line_is_not_known_is_said_once_however_often_it_is_looked_at() {
    let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let (options, stop, mut notes) = (options(), AtomicBool::new(false), Vec::new());
    let mut tell = |event| notes.extend(if let Event::Note(text) = event { Some(text) } else { None });
    let mut one = Move::new(&mut from, &mut to, &options, &stop, &mut tell);
    one.look().unwrap();
    one.look().unwrap();
    assert_eq!(notes.iter().filter(|note| note.contains("--line")).count(), 1, "{notes:?}");
}

#[test]
fn of_a_move_that_is_over_before_its_line_is_known_a_bound_is_foreseen() {
    for (line, is_bound) in [(None, true), (Some(LINE_ASSUMED), false)] {
        let (source, target) = sent_at_once("running");
        let folder = tempfile::tempdir().unwrap();
        let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
        let mut options = options();
        options.wanted.line = line;
        let mut notes = Vec::new();
        let mut tell = |event| notes.extend(if let Event::Note(text) = event { Some(text) } else { None });
        let moved = live(&mut from, &mut to, &options, &AtomicBool::new(false), &mut tell).unwrap();
        assert_eq!(moved.foreseen_below_s, is_bound.then(|| moved.foreseen.below_s()));
        assert_eq!(notes.iter().any(|note| note.contains("takes less than 1.5 s")), is_bound, "{notes:?}");
    }
}

#[test]
fn a_guest_that_came_and_does_not_run_has_not_moved_well() {
    for word in ["io-error", "internal-error", "guest-panicked", "shutdown"] {
        let (source, target) = sent_at_once(word);
        let error = moved(&source, &target, false).unwrap_err();
        assert_eq!(error.guest_at, Where::Halted, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(!source.was_told("cont"), "it was started at the source");
    }
}

/// A move whose guest is sent ahead at once.
fn sent_ahead(source: &Fake, target: &Fake) -> Result<Moved, LiveError> {
    let folder = tempfile::tempdir().unwrap();
    let mut from = source.guest(&folder, Side::Source);
    let mut to = target.guest(&folder, Side::Target);
    let (options, stop, mut tell) = (options(), AtomicBool::new(false), |_| {});
    let mut one = Move::new(&mut from, &mut to, &options, &stop, &mut tell);
    one.core.state.passage = Passage::sent();
    let ahead = one.carry_out(Action::SendAhead, &Told::default());
    let ended = ahead.and_then(|()| one.follow());
    ended.or_else(|cause| one.settle(cause))
}

#[test]
fn a_guest_that_goes_ahead_is_started_after_the_source_is_in_postcopy() {
    let (source, target) = (Fake::new("running", "active"), Fake::new("inmigrate", "active"));
    source.said().turns.push(("migrate-start-postcopy", "finish-migrate", "postcopy-active"));
    target.said().turns.push(("cont", "running", "active"));
    // It comes while it is asked, and the source has sent the rest when the target runs.
    let (here, there) = (source.clone(), target.clone());
    let ender = thread::spawn(move || {
        for _ in 0..12_000 {
            if there.was_told("query-status") && there.said().status == "inmigrate" {
                assert!(!there.was_told("cont"), "it had not come");
                there.said().status = "paused".to_string();
            }
            if there.said().status == "running" {
                return here.said().migration = "completed".to_string();
            }
            thread::sleep(Duration::from_millis(10));
        }
    });
    sent_ahead(&source, &target).unwrap();
    ender.join().unwrap();
    assert!(target.was_told("cont"));
}

#[test]
fn a_target_has_no_leave_to_run_a_guest_whose_postcopy_never_begins() {
    let (source, target) = (Fake::new("running", "active"), Fake::new("inmigrate", "active"));
    source.said().turns.push(("migrate-start-postcopy", "running", "failed"));
    let error = sent_ahead(&source, &target).unwrap_err();
    assert_eq!(error.guest_at, Where::Source, "{error}");
    assert!(!target.was_told("cont"));
}

#[test]
fn two_sides_that_run_the_guest_are_told() {
    // They did not before, where QEMU does as it is told.
    let (source, target) = (Fake::new("finish-migrate", "active"), Fake::new("paused", "active"));
    source.said().turns.push(("migrate-start-postcopy", "finish-migrate", "postcopy-active"));
    target.said().turns.push(("cont", "running", "active"));
    let (here, there) = (source.clone(), target.clone());
    let breaker = thread::spawn(move || {
        while !there.was_told("cont") && Arc::strong_count(&there.0) > 1 {
            thread::sleep(Duration::from_millis(10));
        }
        let mut said = here.said();
        (said.status, said.migration) = ("running".to_string(), "failed".to_string());
    });
    let error = sent_ahead(&source, &target).unwrap_err();
    assert_eq!(error.guest_at, Where::Both, "{error}");
    breaker.join().unwrap();
}

#[test]
fn a_guest_that_goes_ahead_is_stopped_before() {
    let (source, target) = (Fake::new("running", "active"), Fake::new("inmigrate", "active"));
    source.said().turns.push(("migrate-start-postcopy", "finish-migrate", "completed"));
    target.said().turns.push(("cont", "running", "completed"));
    target.said().status = "paused".to_string();
    sent_ahead(&source, &target).unwrap();
    let said = source.said();
    let at = |order: &str| said.orders.iter().position(|told| told == order).unwrap();
    assert!(at("object-add") < at("stop") && at("stop") < at("migrate-start-postcopy"), "{:?}", said.orders);
}

/// A guest went ahead, and the line broke when the source had sent everything; what became of that.
fn gave_up_ahead(target_has: &'static str) -> (Result<Moved, LiveError>, Fake) {
    let (source, target) = (Fake::new("running", "active"), Fake::new("paused", "active"));
    source.said().turns.push(("migrate-start-postcopy", "finish-migrate", "postcopy-active"));
    target.said().turns.push(("cont", "running", target_has));
    let (here, there) = (source.clone(), target.clone());
    let breaker = thread::spawn(move || {
        while !there.was_told("cont") && Arc::strong_count(&there.0) > 1 {
            thread::sleep(Duration::from_millis(10));
        }
        let mut said = here.said();
        (said.status, said.migration) = ("paused".to_string(), "failed".to_string());
    });
    let ended = sent_ahead(&source, &target);
    breaker.join().unwrap();
    (ended, source)
}

#[test]
fn a_source_that_gave_up_is_not_started_and_the_guest_is_lost_unless_the_target_has_everything() {
    let (ended, source) = gave_up_ahead("postcopy-paused");
    assert_eq!(ended.unwrap_err().guest_at, Where::Lost { had_leave: true });
    assert!(!source.was_told("cont") && !source.was_told("migrate_cancel"));
    let (ended, source) = gave_up_ahead("completed");
    ended.unwrap();
    assert!(!source.was_told("cont"));
}

#[test]
fn disks_are_handed_over_once_however_long_the_source_takes_to_go_on() {
    let (source, target) = (Fake::new("finish-migrate", "pre-switchover"), Fake::new("paused", "completed"));
    source.said().mirror = Some("drover-mirror-0");
    target.said().turns.push(("cont", "running", "completed"));
    // QEMU's thread that moves memory hears of the order some looks later.
    let here = source.clone();
    let ender = thread::spawn(move || {
        for _ in 0..12_000 {
            let mut said = here.said();
            let told = said.orders.iter().skip_while(|it| *it != "migrate-continue");
            if told.filter(|it| *it == "query-migrate").count() > 2 {
                (said.status, said.migration) = ("postmigrate".to_string(), "completed".to_string());
                return;
            }
            drop(said);
            thread::sleep(Duration::from_millis(10));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let mut from = source.guest(&folder, Side::Source);
    let mut to = target.guest(&folder, Side::Target);
    let (options, stop, mut tell) = (options(), AtomicBool::new(false), |_| {});
    let mut one = Move::new(&mut from, &mut to, &options, &stop, &mut tell);
    one.core.state.passage = Passage::sent();
    one.pairs = vec![Pair::new(0, "hd0".to_string(), Disk::default(), Disk::default())];
    one.follow().unwrap();
    ender.join().unwrap();
    let said = source.said();
    for order in ["block-job-cancel", "migrate-continue"] {
        assert_eq!(said.orders.iter().filter(|told| *told == order).count(), 1, "{:?}", said.orders);
    }
    // To remove the mirror's node takes a round trip, for which the guest does not stand.
    let at = |order: &str| said.orders.iter().position(|told| told == order).unwrap();
    assert!(at("migrate-continue") < at("query-named-block-nodes"), "{:?}", said.orders);
}

/// In the switchover it is too late: the guest is seen to the target, and is started there and nowhere else.
#[test]
fn who_stops_it_in_the_switchover_has_the_guest_at_the_target() {
    let (source, target) = sent_at_once("running");
    source.said().turns = vec![("migrate", "finish-migrate", "device")];
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let stop = AtomicBool::new(false);
    let mut tell = |event| {
        let Event::Memory(told) = event else { return };
        if told.status == "device" && !stop.swap(true, Ordering::Relaxed) {
            let mut said = source.said();
            (said.status, said.migration) = ("postmigrate".to_string(), "completed".to_string());
        }
    };
    live(&mut from, &mut to, &options(), &stop, &mut tell).unwrap();
    assert!(stop.load(Ordering::Relaxed) && target.was_told("cont"));
    assert!(!source.was_told("migrate_cancel") && !source.was_told("cont"));
}

#[test]
fn a_job_that_began_while_disks_were_copied_is_refused_before_memory_is_sent() {
    let (source, target) = sent_at_once("running");
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let (options, stop, mut tell) = (options(), AtomicBool::new(false), |_| {});
    let mut one = Move::new(&mut from, &mut to, &options, &stop, &mut tell);
    let plan = one.look_in_turn().unwrap();
    source.said().mirror = Some("nightly");
    let ended = one.go(plan).unwrap_err();
    assert!(ended.to_string().contains("the block job nightly"), "{ended}");
    assert!(!source.was_told("migrate") && !target.was_told("migrate-incoming"));
    assert!(matches!(one.look(), Err(Ending::Obstacles(_))), "it was there when it was looked");
}

#[test]
fn a_job_that_begins_while_memory_is_sent_calls_the_move_back_and_is_named() {
    let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
    source.said().turns.push(("migrate", "running", "active"));
    source.said().turns.push(("migrate_cancel", "running", "cancelled"));
    source.said().begins_job = Some(("migrate", "nightly"));
    let event = json!({"event": "JOB_STATUS_CHANGE", "data": {"id": "nightly", "status": "running"}});
    source.said().news = Some(("migrate", event));
    let error = moved(&source, &target, false).unwrap_err();
    assert_eq!(error.guest_at, Where::Source, "{error}");
    assert!(error.to_string().contains("the block job nightly"), "{error}");
    assert!(!target.was_told("cont"));
}

/// Somebody else does so at the source while memory is sent, which ends some looks later.
fn told_on_the_way(word: &'static str, begins: &'static str, becomes: &'static str) -> (Fake, Fake) {
    let (source, target) = (Fake::new(begins, "none"), Fake::new("inmigrate", "none"));
    source.said().turns.push(("migrate", becomes, "active"));
    target.said().turns.push(("migrate-incoming", "paused", "completed"));
    target.said().turns.push(("cont", "running", "completed"));
    let event = json!({"event": word, "timestamp": {"seconds": 1, "microseconds": 0}});
    source.said().news = Some(("migrate", event));
    let here = source.clone();
    thread::spawn(move || {
        for _ in 0..12_000 {
            let mut said = here.said();
            let told = said.orders.iter().skip_while(|it| *it != "migrate");
            if told.filter(|it| *it == "query-migrate").count() > 3 {
                (said.status, said.migration) = ("postmigrate".to_string(), "completed".to_string());
                return;
            }
            drop(said);
            thread::sleep(Duration::from_millis(10));
        }
    });
    (source, target)
}

#[test]
fn a_guest_that_somebody_stops_on_its_way_stays_stopped_at_the_target() {
    let (source, target) = told_on_the_way("STOP", "running", "paused");
    moved(&source, &target, false).unwrap();
    assert!(!target.was_told("cont"), "it was started though somebody had stopped it");
}

#[test]
fn a_guest_that_somebody_stops_right_before_the_switchover_stays_stopped_at_the_target() {
    let (source, target) = told_on_the_way("STOP", "running", "finish-migrate");
    let event = |word: &str, data: Value| json!({"event": word, "data": data, "timestamp": {"seconds": 1, "microseconds": 1}});
    source.said().more_news =
        vec![event("MIGRATION_PASS", json!({"pass": 2})), event("MIGRATION", json!({"status": "device"}))];
    moved(&source, &target, false).unwrap();
    assert!(!target.was_told("cont"), "it was started though somebody had stopped it");
}

#[test]
fn a_guest_that_somebody_starts_on_its_way_is_started_at_the_target() {
    let (source, target) = told_on_the_way("RESUME", "paused", "running");
    moved(&source, &target, false).unwrap();
    assert!(target.was_told("cont"));
}

#[test]
fn a_guest_that_qemu_stops_to_hand_it_over_is_started_at_the_target() {
    let (source, target) = told_on_the_way("STOP", "running", "finish-migrate");
    moved(&source, &target, false).unwrap();
    assert!(target.was_told("cont"));
}

/// Both ends of a move whose first run was killed.
fn left_by_a_killed_run(source: (&str, &str), target: (&str, &str), marks: &[&str]) -> (Fake, Fake) {
    let (source, target) = (Fake::new(source.0, source.1), Fake::new(target.0, target.1));
    target.said().turns.push(("cont", "running", "completed"));
    source.said().objects = ["drover-move-1"].iter().chain(marks).map(ToString::to_string).collect();
    target.said().objects = vec!["drover-move-1".to_string()];
    (source, target)
}

#[test]
fn a_guest_that_stood_when_it_was_sent_is_not_started_by_a_run_that_takes_over() {
    for (marks, is_started) in [(&["drover-move-paused"][..], false), (&[][..], true)] {
        let ends = (("postmigrate", "completed"), ("paused", "completed"));
        let (source, target) = left_by_a_killed_run(ends.0, ends.1, marks);
        moved(&source, &target, false).unwrap();
        assert_eq!(target.was_told("cont"), is_started);
    }
}

#[test]
fn a_run_that_takes_over_does_what_it_is_allowed_and_the_move_was_begun_with() {
    let ends = (("running", "active"), ("inmigrate", "active"));
    let (source, target) = left_by_a_killed_run(ends.0, ends.1, &[]);
    let on = |name: &str| json!({"capability": name, "state": true});
    (source.said().capabilities, target.said().capabilities) =
        (json!([on("postcopy-ram")]), json!([on("postcopy-ram")]));
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let allowed = Allowed { throttle: true, postcopy: true };
    let (mut options, stop) = (options(), AtomicBool::new(false));
    options.wanted.allowed = allowed;
    let mut notes = Vec::new();
    let mut tell = |event| notes.extend(if let Event::Note(text) = event { Some(text) } else { None });
    let mut one = Move::new(&mut from, &mut to, &options, &stop, &mut tell);
    assert_eq!(one.deeds_left().unwrap(), [Deed::PostCopy, Deed::GiveUp]);
    assert!(notes.iter().any(|note| note.contains("--allow throttle comes too late")), "{notes:?}");
}

#[test]
fn a_source_that_ends_while_disks_are_copied_is_not_said_to_have_the_guest() {
    let (source, target) = (Fake::new("running", "none"), Fake::new("inmigrate", "none"));
    source.said().leaves = Some("blockdev-mirror");
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let at = crate::live::NbdAt::Unix("/nowhere".into());
    let options = LiveOptions { disks: DisksBy::Mirror(at), ..options() };
    let (stop, mut tell) = (AtomicBool::new(false), |_| {});
    let mut one = Move::new(&mut from, &mut to, &options, &stop, &mut tell);
    one.pairs = vec![Pair::new(0, "hd0".to_string(), Disk::default(), Disk::default())];
    let cause = one.mirror().unwrap_err();
    let error = one.settle(cause).unwrap_err();
    assert_eq!(error.guest_at, Where::Ended, "{error}");
    assert!(error.to_string().contains("the source's QEMU has ended"), "{error}");
}

#[test]
fn the_offer_of_disks_is_withdrawn_in_the_same_round_trip_as_the_order_to_start() {
    let (source, target) = (Fake::new("postmigrate", "completed"), Fake::new("paused", "completed"));
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut to) = (source.guest(&folder, Side::Source), target.guest(&folder, Side::Target));
    let (options, stop, mut tell) = (options(), AtomicBool::new(false), |_| {});
    let mut one = Move::new(&mut from, &mut to, &options, &stop, &mut tell);
    one.is_offered = true;
    let before = one.target.qmp.round_trips();
    one.give_leave().unwrap();
    assert_eq!(one.target.qmp.round_trips() - before, 1);
    let orders = target.said().orders.clone();
    assert_eq!(orders[orders.len() - 2..], ["nbd-server-stop", "cont"]);
    // It is withdrawn once.
    one.give_leave().unwrap();
    assert_eq!(target.said().orders.iter().filter(|order| *order == "nbd-server-stop").count(), 1);
}
