//! `drover live` for several guests: they share one budget, and each is where it should be, whatever becomes of the others.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use drover_lab::{Drover, Hosts, Output, Pulse, PulseOptions, run_by};
use drover_stage::line::Line;
use drover_stage::moves::{self, events, idle};
use drover_stage::sites::Sites;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Guests that beat, each with a QEMU that waits for it.
struct Fleet {
    pairs: Vec<(Pulse, Pulse)>,
    drover: Drover,
    folder: TempDir,
}

/// Bytes a second for all: three have a share that libvirt could count, too, and there is time to kill somebody. Two do not use
/// all of it, so that three go at once.
const BUDGET: u64 = 4_000_000;
const SLOWLY: [&str; 4] = ["--rate-max", "32m", "--connection", "11m"];
/// As of [`moves::SLOWLY`]: an idle guest that seems to write more than its share would not begin, and no other either.
const ALLOWED: &str = "allow: [throttle]\n";

impl Fleet {
    fn new(guests: usize) -> Option<Fleet> {
        Fleet::of(&vec![[idle(), idle()]; guests])
    }

    fn of(guests: &[[PulseOptions; 2]]) -> Option<Fleet> {
        Pulse::qemu()?;
        let folder = tempfile::Builder::new().prefix("drover-several-").tempdir().unwrap();
        let start = |(number, [here, there]): (usize, &[PulseOptions; 2])| {
            let path = |side: &str| folder.path().join(format!("{side}{number}"));
            let source = Pulse::start(&path("a"), here).unwrap();
            (source, Pulse::waiting(&path("b"), there).unwrap())
        };
        let pairs: Vec<(Pulse, Pulse)> = guests.iter().enumerate().map(start).collect();
        pairs.iter().for_each(|(source, _)| source.beat(3).map(drop).unwrap());
        let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
        Some(Fleet { pairs, drover, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of the moves of all, `vm0`, `vm1`, and so on.
    fn command(&self, top: &str, more: &[&str]) -> Command {
        let mut text = format!("deadline: 10m\nchannels: 1\n{ALLOWED}{top}moves:\n");
        for (number, (source, target)) in self.pairs.iter().enumerate() {
            let place = |what: &str| self.path(&format!("{what}{number}.sock"));
            text.push_str(&format!(
                "  - name: vm{number}\n    from: {}\n    to: {}\n    uri: unix:{}\n    nbd: unix:{}\n",
                source.monitor().display(),
                target.monitor().display(),
                place("memory").display(),
                place("nbd").display()
            ));
        }
        std::fs::write(self.path("moves.yaml"), text).unwrap();
        let mut command = self.drover.command(&["live", "--moves"]);
        command.arg(self.path("moves.yaml")).args(more);
        command
    }

    fn live(&self, top: &str, more: &[&str]) -> Output {
        moves::run(self.command(top, &[&["--json"], more].concat()))
    }

    fn spawn(&self, more: &[&str]) -> Child {
        moves::spawn(self.command("", &[&["--json"], more].concat()), &self.path("out"))
    }

    /// Waits until memory of each of these is on its way.
    #[track_caller]
    fn wait_until_sending(&self, child: &mut Child, guests: &[&str]) {
        for guest in guests {
            let is_it = |event: &Value| event["guest"] == **guest && moves::is_sending(event);
            moves::wait_until_told(child, &self.path("out"), &format!("nothing of {guest} is sent"), is_it);
        }
    }

    fn ended(&self, child: Child) -> Output {
        moves::ended(child, &self.path("out"))
    }

    #[track_caller]
    fn has_moved(&mut self, number: usize) {
        let (source, target) = &mut self.pairs[number];
        moves::has_arrived(source, target);
    }

    #[track_caller]
    fn has_stayed(&mut self, number: usize) {
        let (source, target) = &mut self.pairs[number];
        moves::has_stayed(source, target);
    }
}

/// Events of this kind, by guest.
fn of<'a>(events: &'a [Value], kind: &str) -> BTreeMap<&'a str, &'a Value> {
    let events = events.iter().filter(|event| event["event"] == kind);
    events.map(|event| (event["guest"].as_str().unwrap(), event)).collect()
}

#[test]
fn guests_move_together_within_one_budget_and_those_that_are_left_have_more_of_it() {
    let small = PulseOptions { pages: 512, ..idle() };
    let Some(mut fleet) = Fleet::of(&[[idle(), idle()], [idle(), idle()], [small.clone(), small]]) else {
        return;
    };
    let file = fleet.path("report.json");
    let output = fleet.live("", &[&SLOWLY[..], &["--report", file.to_str().unwrap()]].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
    (0..3).for_each(|number| fleet.has_moved(number));
    let events = events(&output);
    let schedule = events.iter().find(|event| event["event"] == "schedule").unwrap();
    assert_eq!(
        (&schedule["chosen"], &schedule["between"]),
        (&json!("all at once"), &json!("this host to this host"))
    );
    assert_eq!(schedule["excess_bytes_per_s"], json!(3 * 2_621_440));
    assert_eq!(of(&events, "moved").len(), 3);
    assert!(!output.out.contains("looked at again"), "what drover sets makes it no other guest: {output:?}");
    keep_the_budget(&events);
    let has_grown = |guest: &str| shares(&events, guest).len() > 1;
    assert!(has_grown("vm0") && has_grown("vm1"), "what vm2 had nobody got");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(report["kind"], "drover-live-several-report");
    assert_eq!((&report["sums"]["moved"], &report["sums"]["failed"]), (&json!(3), &json!(0)));
    assert_eq!(report["moves"][2]["report"]["outcome"]["result"], "moved");
}

/// Each has a session of its own; the budget is of all, since all end at one site.
#[test]
fn guests_move_together_over_a_link_that_is_cut_meanwhile() {
    if Pulse::qemu().is_none() {
        return;
    }
    let mut sites = Sites::not_started();
    let start = |number: usize| {
        let source = Pulse::start(&sites.path(&format!("a{number}")), &idle()).unwrap();
        (source, Pulse::waiting(&sites.path(&format!("b{number}")), &idle()).unwrap())
    };
    let mut pairs: Vec<(Pulse, Pulse)> = (0..2).map(start).collect();
    pairs.iter().for_each(|(source, _)| source.beat(3).map(drop).unwrap());
    let allowed = |number| {
        let folder = sites.path(&format!("b{number}"));
        ["--allow-connect".to_string(), format!("unix:{}/*", folder.display())]
    };
    sites.more = (0..2).flat_map(allowed).collect();
    sites.start();
    let line = Line::to(&sites.address);
    sites.pair_at(&line.address);
    let mut moves = format!("deadline: 10m\nchannels: 1\n{ALLOWED}via: site-b\nmoves:\n");
    for (number, (source, target)) in pairs.iter().enumerate() {
        let (from, to) = (source.monitor(), target.monitor());
        moves.push_str(&format!(
            "  - {{name: vm{number}, from: {}, to: {}}}\n",
            from.display(),
            to.display()
        ));
    }
    let (file, told) = (sites.path("moves.yaml"), sites.path("told"));
    let one = moves.lines().take(6).collect::<Vec<_>>().join("\n");
    let connections_for = |moves: &str| {
        std::fs::write(&file, moves).unwrap();
        let before = line.connections();
        let output = moves::run({
            let mut command = sites.here.command(&["live", "--dry-run", "--moves"]);
            command.arg(&file);
            command
        });
        assert_eq!(output.code, Some(0), "{output:?}");
        line.connections() - before
    };
    assert_eq!(connections_for(&one), connections_for(&moves), "all that go to one site share a session");
    let mut command = sites.here.command(&["live", "--json", "--moves"]);
    command.arg(&file).args(SLOWLY);
    let mut child = moves::spawn(command, &told);
    for guest in ["vm0", "vm1"] {
        let is_it = |event: &Value| event["guest"] == guest && moves::is_sending(event);
        moves::wait_until_told(&mut child, &told, &format!("nothing of {guest} is sent"), is_it);
    }
    line.cut(true);
    for guest in ["vm0", "vm1"] {
        let is_away =
            |event: &Value| event["guest"] == guest && event["event"] == "link" && event["is_up"] == false;
        moves::wait_until_told(&mut child, &told, &format!("{guest} goes on without a line"), is_away);
    }
    line.cut(false);
    let output = moves::ended(child, &told);
    assert_eq!(output.code, Some(0), "{output:?}");
    for (source, target) in &mut pairs {
        moves::has_arrived(source, target);
    }
    let events = events(&output);
    let schedule = events.iter().find(|event| event["event"] == "schedule").unwrap();
    assert_eq!(
        (&schedule["chosen"], &schedule["between"]),
        (&json!("all at once"), &json!("this host to site-b"))
    );
    assert!(of(&events, "moved").values().all(|event| event["link"]["site"] == "site-b"), "{output:?}");
    keep_the_budget(&events);
}

#[test]
fn copies_of_disks_keep_to_the_budget_too() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let guests = folders.each_ref().map(|folder| moves::with_disks(folder.path(), &idle()));
    let Some(mut fleet) = Fleet::of(&guests) else { return };
    let file = fleet.path("report.json");
    let output =
        fleet.live("disks: mirror\n", &[&SLOWLY[..], &["--report", file.to_str().unwrap()]].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    for number in 0..2 {
        fleet.has_moved(number);
        fleet.pairs[number].1.kill();
        moves::written_sectors(folders[number].path());
        // 8 MiB, and half of 4 MB/s: nothing but the bound holds up a file in memory.
        let told = &report["moves"][number];
        let ready_s = told["report"]["disks"][0]["ready_s"].as_f64().unwrap();
        assert!(ready_s - told["began_s"].as_f64().unwrap() > 2.0, "{told}");
    }
}

/// Shares that are kept never come to more than the budget, and grow when one has ended.
#[track_caller]
fn keep_the_budget(events: &[Value]) {
    let mut shares: BTreeMap<&str, u64> = BTreeMap::new();
    let mut has_ended = false;
    for event in events {
        let Some(guest) = event["guest"].as_str() else { continue };
        match event["event"].as_str().unwrap() {
            "share" => {
                let rate = event["rate_bytes_per_s"].as_u64().unwrap();
                let before = shares.insert(guest, rate);
                assert!(before.is_none_or(|before| has_ended && rate > before), "{event}, {before:?} before");
            }
            // It sends no more.
            "sent" => {
                shares.remove(guest);
                has_ended = true;
            }
            // A sample may have been on its way when the other ended.
            _ => {}
        }
        let sum: u64 = shares.values().sum();
        assert!(sum <= BUDGET, "{sum} at {event}");
    }
}

/// Shares of this guest, one after the other.
fn shares(events: &[Value], guest: &str) -> Vec<u64> {
    let of_it = events.iter().filter(|event| event["event"] == "share" && event["guest"] == guest);
    of_it.map(|event| event["rate_bytes_per_s"].as_u64().unwrap()).collect()
}

#[test]
fn a_host_that_is_written_in_two_ways_gets_no_more_than_the_budget() {
    let small = PulseOptions { pages: 512, ..idle() };
    let Some(mut fleet) = Fleet::of(&[[idle(), idle()], [small.clone(), small]]) else { return };
    let command = fleet.command("", &["--json", "--rate-max", "32m"]);
    let file = fleet.path("moves.yaml");
    let moves = std::fs::read_to_string(&file).unwrap();
    let elsewhere = format!("unix:{}", fleet.path("memory1.sock").display());
    std::fs::write(&file, moves.replace(&elsewhere, "tcp:127.0.0.1:0")).unwrap();
    let output = moves::run(command);
    assert_eq!(output.code, Some(0), "{output:?}");
    (0..2).for_each(|number| fleet.has_moved(number));
    let events = events(&output);
    assert_eq!(events.iter().filter(|event| event["event"] == "schedule").count(), 2);
    keep_the_budget(&events);
    assert_eq!(shares(&events, "vm0"), [BUDGET / 2, BUDGET], "{output:?}");
    assert_eq!(shares(&events, "vm1"), [BUDGET / 2], "{output:?}");
}

#[test]
fn one_that_cannot_move_keeps_all_from_beginning() {
    let other = PulseOptions { memory_mib: 128, ..idle() };
    let third = PulseOptions { memory_mib: 96, ..idle() };
    let Some(mut fleet) = Fleet::of(&[[idle(), idle()], [idle(), other], [idle(), third]]) else { return };
    let file = fleet.path("report.html");
    let output = fleet.live("", &["--report", file.to_str().unwrap()]);
    assert_eq!(output.code, Some(3), "{output:?}");
    // Of both all is told, at once.
    for words in
        ["vm1: the guest cannot move", "vm2: the guest cannot move", "the target 128", "the target 96"]
    {
        assert!(output.err.contains(words), "{words}: {}", output.err);
    }
    assert!(!output.err.contains("vm0: "), "{}", output.err);
    let events = events(&output);
    assert!(of(&events, "begins").is_empty());
    let failed: Vec<&str> = of(&events, "failed").into_keys().collect();
    assert_eq!(failed, ["vm1", "vm2"]);
    (0..3).for_each(|number| fleet.has_stayed(number));
    let page = std::fs::read_to_string(file).unwrap();
    assert!(page.contains("0 of 3 guests run at their targets") && page.contains("the target 128"), "{page}");
}

#[test]
fn a_schedule_is_told_and_a_promise_that_one_cannot_keep_refused() {
    let Some(mut fleet) = Fleet::new(2) else { return };
    let output = moves::run(fleet.command("line: 1g\n", &["--dry-run"]));
    assert_eq!(output.code, Some(0), "{output:?}");
    for words in
        ["this host to this host: 2 guests", "one after the other: ", "all at once: ", "  vm1: begins after "]
    {
        assert!(output.err.contains(words), "{words}: {}", output.err);
    }
    let output = fleet.live("line: 1g\n", &["--rate-max", "8k"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("vm0: the promise cannot be kept"), "{}", output.err);
    (0..2).for_each(|number| fleet.has_stayed(number));
}

#[test]
fn a_target_that_dies_on_the_way_costs_the_others_nothing() {
    let Some(mut fleet) = Fleet::new(3) else { return };
    let mut child = fleet.spawn(&SLOWLY);
    fleet.wait_until_sending(&mut child, &["vm0", "vm1", "vm2"]);
    fleet.pairs[1].1.kill();
    let output = fleet.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("1 of 3 guests did not move"), "{}", output.err);
    let events = events(&output);
    assert_eq!(of(&events, "failed")["vm1"]["guest_at"], "source");
    assert_eq!(of(&events, "moved").into_keys().collect::<Vec<_>>(), ["vm0", "vm2"]);
    fleet.has_stayed(1);
    fleet.has_moved(0);
    fleet.has_moved(2);
}

#[test]
fn ctrl_c_leaves_all_where_they_were_and_begins_no_more() {
    let Some(mut fleet) = Fleet::new(3) else { return };
    // What one connection carries leaves room for another; two shares can be set, so that the third waits.
    let mut child = fleet.spawn(&["--rate-max", "18m", "--connection", "8m"]);
    fleet.wait_until_sending(&mut child, &["vm0", "vm1"]);
    signal("-INT", child.id());
    let output = fleet.ended(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    let events = events(&output);
    assert_eq!(of(&events, "begins").into_keys().collect::<Vec<_>>(), ["vm0", "vm1"]);
    let failed = of(&events, "failed");
    assert_eq!(failed.len(), 3, "{output:?}");
    assert!(failed.values().all(|event| event["guest_at"] == "source"), "{failed:?}");
    (0..3).for_each(|number| fleet.has_stayed(number));
}

#[test]
fn moves_of_a_killed_drover_are_gone_on_with() {
    let Some(mut fleet) = Fleet::new(2) else { return };
    let mut child = fleet.spawn(&SLOWLY);
    fleet.wait_until_sending(&mut child, &["vm0", "vm1"]);
    child.kill().unwrap();
    fleet.ended(child);
    let output = fleet.live("", &["--rate-max", "800m"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(
        output.out.matches("a move is under way: it is watched to its end").count(),
        4,
        "{}",
        output.out
    );
    (0..2).for_each(|number| fleet.has_moved(number));
}

#[test]
fn moves_of_a_killed_drover_are_gone_on_with_though_another_guest_cannot_move() {
    let Some(mut fleet) = Fleet::new(3) else { return };
    // Two shares can be set, so that the third guest waits.
    let mut child = fleet.spawn(&["--rate-max", "18m", "--connection", "8m"]);
    fleet.wait_until_sending(&mut child, &["vm0", "vm1"]);
    child.kill().unwrap();
    fleet.ended(child);
    fleet.pairs[1].1.kill();
    let output = fleet.live("", &["--rate-max", "800m"]);
    assert_eq!(output.code, Some(7), "{output:?}");
    let events = events(&output);
    assert_eq!(of(&events, "begins").into_keys().collect::<Vec<_>>(), ["vm0"], "{output:?}");
    assert_eq!(of(&events, "moved").into_keys().collect::<Vec<_>>(), ["vm0"], "{output:?}");
    let failed = of(&events, "failed");
    assert_eq!(failed.keys().copied().collect::<Vec<_>>(), ["vm1", "vm2"]);
    assert_eq!(
        (&failed["vm1"]["guest_at"], &failed["vm2"]["guest_at"]),
        (&json!("unknown"), &json!("source"))
    );
    assert!(failed["vm2"]["message"].as_str().unwrap().contains("another cannot move"), "{failed:?}");
    assert!(output.err.contains("2 of 3 guests did not move"), "{}", output.err);
    fleet.has_moved(0);
    fleet.has_stayed(1);
    fleet.has_stayed(2);
}

#[test]
fn moves_of_a_killed_drover_that_ctrl_c_keeps_from_being_gone_on_with_are_told_as_on_their_way() {
    let Some(mut fleet) = Fleet::new(2) else { return };
    let mut child = fleet.spawn(&SLOWLY);
    fleet.wait_until_sending(&mut child, &["vm0", "vm1"]);
    child.kill().unwrap();
    fleet.ended(child);
    // A monitor that does not answer holds the look.
    let frozen = fleet.pairs[1].0.pid();
    signal("-STOP", frozen);
    let child = fleet.spawn(&SLOWLY);
    wait_for_status(child.id(), |status| has_interrupt(status, "SigCgt:"));
    signal("-INT", child.id());
    wait_for_status(child.id(), |status| !has_interrupt(status, "ShdPnd:"));
    signal("-CONT", frozen);
    let output = fleet.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    let events = events(&output);
    assert!(of(&events, "begins").is_empty(), "{output:?}");
    let failed = of(&events, "failed");
    assert_eq!(failed.keys().copied().collect::<Vec<_>>(), ["vm0", "vm1"]);
    assert!(failed.values().all(|event| event["guest_at"] == "unknown"), "{failed:?}");
    assert!(output.out.contains("run the same command again"), "{}", output.out);
    assert_eq!(fleet.live("", &["--rate-max", "800m"]).code, Some(0));
    (0..2).for_each(|number| fleet.has_moved(number));
}

fn signal(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

/// Whether SIGINT is in this set of a process's signals.
fn has_interrupt(status: &str, set: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 0b10 != 0
}

/// Waits until what the kernel says of a process is so.
fn wait_for_status(process: u32, is_so: impl Fn(&str) -> bool) {
    let path = format!("/proc/{process}/status");
    let is_reached = (0..120_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        is_so(&std::fs::read_to_string(&path).unwrap())
    });
    assert!(is_reached, "{path}");
}

#[test]
fn domains_move_by_their_names_within_one_budget() {
    let folder = tempfile::Builder::new().prefix("drover-hosts-").tempdir().unwrap();
    let Some(hosts) = Hosts::start(folder.path()).unwrap() else { return };
    let small = PulseOptions { pages: 512, ..idle() };
    for (name, options) in [("large", idle()), ("small", small)] {
        hosts.define("a", name, &options).unwrap();
        hosts.virsh("a", &["start", name]).unwrap();
        hosts.voice("a", name).unwrap().beat(3).unwrap();
    }
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    let (from, to) = (hosts.uri("a"), hosts.uri("b"));
    // One daemon by two addresses.
    let moves = format!(
        "moves:\n  - {{name: x, from: large, connect: '{from}', to: '{to}'}}\n  - {{name: y, from: large, connect: '{}', to: '{to}'}}\n",
        from.replace("socket=/", "socket=//")
    );
    let file = folder.path().join("moves.yaml");
    std::fs::write(&file, moves).unwrap();
    let mut command = drover.command(&["live", "--moves", file.to_str().unwrap()]);
    hosts.equip(&mut command);
    let output = moves::run(command);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("are one domain"), "{}", output.err);
    let mut command = drover.command(&["live", "large", "small", "--connect", &from, "--to", &to, "--json"]);
    command.args(["--rate-max", "34m", "--channels", "1", "--downtime", "2s", "--deadline", "10m"]);
    // A share holds for what is left after that, too.
    command.args(["--allow", "postcopy"]);
    hosts.equip(&mut command);
    let output = moves::run(command);
    assert_eq!(output.code, Some(0), "{output:?}");
    for name in ["large", "small"] {
        let state = |host: &str| hosts.virsh(host, &["domstate", name, "--reason"]).unwrap();
        assert_eq!((state("a").as_str(), state("b").as_str()), ("shut off (migrated)", "running (migrated)"));
        let mut there = hosts.voice("b", name).unwrap();
        there.beat(20).unwrap();
        assert!(there.verify().unwrap().is_sound());
    }
    let events = events(&output);
    assert_eq!(of(&events, "moved").len(), 2);
    let share = |event: &Value| (event["event"] == "share").then(|| event["rate_bytes_per_s"].as_u64())?;
    let of_large = events.iter().filter(|event| event["guest"] == "large");
    assert_eq!(of_large.filter_map(share).collect::<Vec<_>>(), [2_125_000, 4_250_000], "{output:?}");
}

#[test]
fn what_is_said_wrong_is_told_before_anybody_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    let file = folder.path().join("moves.yaml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "moves:\n  - {from: /a, to: /b, uri: 'tcp:h:0', colour: red}\n").unwrap();
    let told = |code, words: &str, args: &[&str]| {
        let output = drover.run(&[&["live"], args].concat()).unwrap();
        assert_eq!(output.code, Some(code), "{output:?}");
        assert!(output.err.contains(words), "{words}: {}", output.err);
    };
    told(3, "moves.yaml:2:40: error: moves[0].colour", &["--moves", path]);
    told(2, "go into the file", &["--moves", path, "--downtime", "1s"]);
    told(2, "cannot be used with", &["--moves", path, "--to", "/x"]);
    told(2, "want --moves FILE", &["/a", "/c", "--to", "/b", "--uri", "tcp:h:0"]);
    told(2, "--moves", &["--moves", "/nowhere/moves.yaml"]);
    let hosts = "moves:\n  - {from: /a, to: /b, uri: 'tcp:h:0'}\n  - {from: /c, to: /d, uri: 'tcp:i:0'}\n";
    std::fs::write(&file, hosts).unwrap();
    told(2, "between 2 pairs of hosts", &["--moves", path, "--rate-max", "16m"]);
    std::fs::write(&file, "moves:\n  - {from: /a, to: /b}\n  - {name: b, from: /a, to: /c}\n").unwrap();
    told(3, "both have the source /a", &["--moves", path]);
}

/// Each moves in a thread of its own.
#[test]
fn guests_whose_threads_cannot_start_stay_where_they_are_and_the_reason_is_told() {
    const NOBODY: u32 = 61_724;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may be somebody else");
        return;
    }
    let Some(mut fleet) = Fleet::new(2) else { return };
    let command = fleet.command("", &["--json"]);
    let own = |path: &std::path::Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    own(fleet.folder.path());
    for (source, target) in &fleet.pairs {
        for monitor in [source.monitor(), target.monitor()] {
            own(monitor.parent().unwrap());
            own(&monitor);
        }
    }
    let limited = format!("setpriv --clear-groups --reuid {NOBODY} --regid {NOBODY} prlimit --nproc=1");
    let limited: Vec<String> = limited.split(' ').map(str::to_string).collect();
    let output = moves::run(run_by(&limited, &command));
    assert_eq!(output.code, Some(7), "{output:?}");
    let failed = events(&output).into_iter().filter(|event| event["event"] == "failed");
    let failed: Vec<Value> = failed.collect();
    assert_eq!(failed.len(), 2, "{output:?}");
    for event in &failed {
        assert_eq!(event["guest_at"], "source", "{output:?}");
        assert!(
            event["message"].as_str().unwrap().contains("starting the thread that moves it"),
            "{output:?}"
        );
    }
    assert!(!output.err.contains("panicked"), "{output:?}");
    (0..2).for_each(|number| fleet.has_stayed(number));
    let output = fleet.live("", &[]);
    assert_eq!(output.code, Some(0), "{output:?}");
    (0..2).for_each(|number| fleet.has_moved(number));
}
