//! Moves of running guests: how drover is run for one, what it tells, and what became of guests and disks.

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use drover_lab::{Output, Pulse, PulseOptions};
use drover_qemu::Qmp;
use serde_json::Value;

use crate::MIB;

/// What a disk at the source is filled with before the guest writes to it.
const FILL: u8 = 0x5a;

pub fn busy() -> PulseOptions {
    // 100 x 20 pages are 8 MB/s.
    PulseOptions { pages_per_beat: 20, ..PulseOptions::default() }
}

/// Beats and writes nothing, so that a move comes to an end however slow it is, and is not given up before.
pub fn idle() -> PulseOptions {
    PulseOptions::default()
}

/// 33 MiB at a megabyte a second: there is time to kill somebody, and to look at what is left. One connection, since
/// QEMU lets many carry some 25 MB/s, however little they may. A guest may be slowed down, as one that is idle need not be:
/// of one of 64 MiB QEMU looks at 32 pages, and where one of those is the page that it counts its beats in, it seems to write
/// more than a megabyte a second. Such a move would be refused, or called back.
pub const SLOWLY: [&str; 6] = ["--rate-max", "8m", "--channels", "1", "--allow", "throttle"];

/// A move over a link that is seen to go slower at its end: with more QEMU stops a guest of which so little is left that nobody has seen it.
pub const EASED: [&str; 4] = ["--channels", "1", "--downtime", "200ms"];

/// That the end goes slower.
pub fn is_eased(event: &Value) -> bool {
    event["text"].as_str().is_some_and(|text| text.contains("that the line carries"))
}

/// In which a program tells what is waited for: it ends by itself where it cannot.
const TELLING_TIME_MAX: Duration = Duration::from_secs(300);
/// Some of what is waited for lasts a tenth of a second; and all that was told is read each time.
const TELLING_POLL: Duration = Duration::from_millis(2);

/// Tries of a move whose end is to go slower: a machine that is busy with something else looks at QEMU too late for that.
const EASED_TRIES: usize = 3;

/// That the end of one move goes slower, and once only. `move_one` moves a guest; `None` where none can be run.
pub fn one_of_several_is_eased(mut move_one: impl FnMut() -> Option<Output>) {
    for left in (0..EASED_TRIES).rev() {
        let Some(output) = move_one() else { return };
        match events(&output).iter().filter(|event| is_eased(event)).count() {
            1 => return,
            0 if left > 0 => eprintln!("the end did not go slower; {left} more tries"),
            eased => panic!("{eased} ends went slower: {}", output.out),
        }
    }
}

/// Guests here and there, with disks `a.raw` and `b.raw` of one size in this folder, filled.
pub fn with_disks(folder: &Path, guest: &PulseOptions) -> [PulseOptions; 2] {
    [("a.raw", FILL), ("b.raw", 0)].map(|(name, fill)| {
        let path = folder.join(name);
        std::fs::write(&path, vec![fill; 8 * MIB as usize]).unwrap();
        PulseOptions { disk: Some(path), ..guest.clone() }
    })
}

/// The target's disk of [`with_disks`] has what the guest wrote to the source's, or later; gives how many sectors that is.
#[track_caller]
pub fn written_sectors(folder: &Path) -> usize {
    let [ours, theirs] = ["a.raw", "b.raw"].map(|name| std::fs::read(folder.join(name)).unwrap());
    assert!(theirs[1025 * 512..] == ours[1025 * 512..]);
    let number =
        |bytes: &[u8], sector: usize| u32::from_le_bytes(bytes[sector * 512..][..4].try_into().unwrap());
    let fill = u32::from_le_bytes([FILL; 4]);
    // Sectors hold the number of the beat at which they were written: none is older at the target.
    for sector in 0..=1024 {
        let (one, other) = (number(&ours, sector), number(&theirs, sector));
        assert!(one == other || one == fill || other > one, "sector {sector}: {one:x}, {other:x}");
    }
    (1..=1024).filter(|sector| number(&ours, *sector) != fill).count()
}

pub fn run(mut command: Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    come_true(Output {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    })
}

/// A guest that moved has moved, though on a busy machine the promise may be broken: that is told as it is, and its exit code is taken
/// for one of success.
#[track_caller]
fn come_true(output: Output) -> Output {
    let says_so =
        output.out.contains("\"promise_kept\":false") || output.out.contains("the promise was broken");
    match output.code {
        Some(12) => {
            assert!(says_so, "{output:?}");
            Output { code: Some(0), ..output }
        }
        Some(0) => {
            assert!(!says_so, "{output:?}");
            output
        }
        _ => output,
    }
}

/// Begins to run, with what it tells in this file.
pub fn spawn(mut command: Command, told: &Path) -> Child {
    let out = File::create(told).unwrap();
    command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).spawn().unwrap()
}

/// What came of [`spawn`].
pub fn ended(child: Child, told: &Path) -> Output {
    come_true(truly_ended(child, told))
}

/// The same with the exit code as it is.
pub fn truly_ended(child: Child, told: &Path) -> Output {
    let output = child.wait_with_output().unwrap();
    let out = std::fs::read_to_string(told).unwrap();
    Output { code: output.status.code(), out, err: String::from_utf8(output.stderr).unwrap() }
}

/// Waits until such an event is told in this file; false if it never is.
pub fn is_told(told: &Path, is_it: impl Fn(&Value) -> bool) -> bool {
    let until = Instant::now() + TELLING_TIME_MAX;
    while !has_told(told, &is_it) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(TELLING_POLL);
    }
    true
}

/// The same of a program that may end before: then nothing is waited for, and all that it said is told.
#[track_caller]
pub fn wait_until_told(child: &mut Child, told: &Path, what: &str, is_it: impl Fn(&Value) -> bool) {
    let until = Instant::now() + TELLING_TIME_MAX;
    loop {
        // Looked at first: what it told last is in the file by then.
        let ended = child.try_wait().unwrap();
        if has_told(told, &is_it) {
            return;
        }
        if ended.is_some() || Instant::now() >= until {
            let mut said = String::new();
            if let (Some(_), Some(mut err)) = (ended, child.stderr.take()) {
                err.read_to_string(&mut said).unwrap();
            }
            let _ = child.kill();
            panic!("{what}: {ended:?} {said} {}", std::fs::read_to_string(told).unwrap());
        }
        std::thread::sleep(TELLING_POLL);
    }
}

/// Whether such an event is told in this file by now.
pub fn has_told(told: &Path, is_it: impl Fn(&Value) -> bool) -> bool {
    let told = std::fs::read_to_string(told).unwrap();
    // The last line may be half written.
    told.lines().any(|line| is_it(&serde_json::from_str(line).unwrap_or_default()))
}

/// Memory is on its way.
pub fn is_sending(event: &Value) -> bool {
    event["phase"] == "precopy" && event["sent_bytes"].as_u64() > Some(1 << 20)
}

pub fn events(output: &Output) -> Vec<Value> {
    output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The guest runs at the target, nowhere else, and is what it was.
#[track_caller]
pub fn has_moved(source: &mut Pulse, target: &mut Pulse, output: &Output) {
    assert_eq!(output.code, Some(0), "{output:?}");
    has_arrived(source, target);
}

/// The same, whatever became of others.
#[track_caller]
pub fn has_arrived(source: &mut Pulse, target: &mut Pulse) {
    target.beat(20).unwrap();
    is_silent(source);
    let last = source.beats().last().unwrap().1;
    let first = target.beats().first().unwrap().1;
    assert!(first == last + 1 || first == last + 2, "beat {last}, then {first}");
    let verdict = target.verify().unwrap();
    assert!(verdict.is_sound(), "{verdict:?}");
}

/// What the source sent went over the link, which counts what the other side has confirmed: the last of it may be on its way.
#[track_caller]
pub fn went_over_the_link(moved: &Value) {
    let bytes = |value: &Value| value.as_u64().unwrap();
    let (up, sent) = (bytes(&moved["link"]["up_bytes"]), bytes(&moved["sent_bytes"]));
    assert!(up + 4 * MIB >= sent && up > 0, "{moved}");
}

/// The guest does not run there. What it said before it stood still may be heard late.
#[track_caller]
pub fn is_silent(guest: &Pulse) {
    let is_heard = || guest.beats_within(Duration::from_millis(200));
    assert!((0..300).any(|_| !is_heard()), "it beats at the source");
}

/// The guest runs at the source as if nothing had been, and not at the target.
#[track_caller]
pub fn has_stayed(source: &mut Pulse, target: &Pulse) {
    source.beat(20).unwrap();
    let verdict = source.verify().unwrap();
    assert!(verdict.is_sound(), "{verdict:?}");
    assert!(target.beats().is_empty(), "it beats at the target");
}

/// The event that tells of a move that came through.
#[track_caller]
pub fn moved(output: &Output) -> Value {
    events(output).into_iter().find(|event| event["event"] == "moved").unwrap()
}

/// Says a word to a monitor, in a connection of its own.
pub fn say(guest: &Pulse, word: &str) {
    say_with(guest, word, Value::Null);
}

/// The same with arguments.
pub fn say_with(guest: &Pulse, word: &str, arguments: Value) {
    ask(guest, word, arguments);
}

/// Says a word to a monitor, in a connection of its own, and gives what it answers.
pub fn ask(guest: &Pulse, word: &str, arguments: Value) -> Value {
    let mut qmp = Qmp::connect(&guest.monitor(), Duration::from_secs(60)).unwrap();
    qmp.execute(word, arguments).unwrap()
}

/// Does something again and again until it is so; the last that came of it otherwise.
pub fn retried(mut again: impl FnMut() -> Output, is_it: impl Fn(&Output) -> bool) -> Output {
    let mut output = again();
    for _ in 0..60 {
        if is_it(&output) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        output = again();
    }
    output
}

/// An address of this host, and a port of it that nobody listens at, nor at the next; of those that the kernel lends to nobody.
pub fn place() -> String {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let first = 10_000 + (std::process::id() % 10_000) as u16 * 2;
    let ports = std::iter::repeat_with(|| first + TRIED.fetch_add(2, Ordering::Relaxed) % 1000);
    let port = ports.take(500).find(|port| is_free(*port) && is_free(port + 1)).unwrap();
    format!("127.0.0.1:{port}")
}

/// What was told of the way that was chosen.
#[track_caller]
pub fn route(output: &Output) -> Value {
    let routes: Vec<Value> = events(output).into_iter().filter(|event| event["event"] == "route").collect();
    assert_eq!(routes.len(), 1, "{output:?}");
    routes[0].clone()
}
