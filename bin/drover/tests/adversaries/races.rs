//! Two and three processes on one target, each with gaps between its system calls that strace stretches.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use drover_disk::{Buffer, Disk as _, Request, Work};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_types::ByteSpan;

use crate::copies::{Before, DISK_BYTES, Format, Place, Pool, differs, foreign};
use crate::dice::Dice;
use crate::run::{Ended, Injection, Run, delay_at, run};
use crate::tally::{Ending, Kind, Violation};

/// What decides about a target, and what changes it.
const CALLS: &[&str] = &[
    "openat",
    "fcntl",
    "flock",
    "ftruncate",
    "rename",
    "renameat2",
    "unlink",
    "unlinkat",
    "fsync",
    "fdatasync",
    "pwrite64",
    "pread64",
    "fallocate",
    "lseek",
    "statx",
    "newfstatat",
    "fstat",
    "close",
    "clone3",
];
/// The lock on a target is waited for for half a second.
const DELAY_MICROS_MAX: u64 = 700_000;

struct Racer {
    disk: usize,
    run: Run,
}

pub fn round(pool: &Pool, dice: &mut Dice) -> Ending {
    let mut place = pool.place();
    let format = if dice.percent(35) { Format::Qcow2 } else { Format::Raw };
    let kinds: &[Before] = match format {
        Format::Raw => &[Before::Nothing, Before::Nothing, Before::Empty, Before::Sparse, Before::Foreign],
        Format::Qcow2 => &[Before::Nothing, Before::Nothing, Before::Nothing, Before::Made, Before::Foreign],
    };
    let before = *dice.one_of(kinds);
    let importer = (format == Format::Raw && before == Before::Nothing && dice.percent(25)).then(|| {
        place.import_there();
        dice.roll(3)
    });
    place.prepare(format, before);
    let mut story = format!("{format:?} onto {before:?}");
    let is_forced = dice.percent(15);
    let half = dice.percent(15) && before != Before::Foreign;
    let path = place.target(format).display().to_string();
    if half {
        let call = *dice.one_of(&["pwrite64", "fdatasync", "fsync", "unlink"]);
        let killed = format!("{call}:signal=KILL:when={}", 1 + dice.roll(2));
        run(&place.drover, &place.folder, "half", &["copy", "-q", &pool.disks[0].raw, &path], &[killed])?;
        story += ", half copied";
    }
    let server = (format == Format::Raw && before == Before::Sparse && dice.percent(40)).then(|| {
        story += ", served";
        serve(&place, Path::new(&path), dice)
    });
    let mut racers = Vec::new();
    for number in 0..2 + u64::from(dice.percent(30)) {
        let disk = dice.roll(pool.disks.len() as u64) as usize;
        let (folder, name) = (place.folder.join("vms").display().to_string(), format!("import{number}"));
        let mut args = vec!["copy", "-q", &pool.disks[disk].raw, &path];
        args.extend(is_forced.then_some("--force"));
        args.extend(dice.percent(20).then_some("--verify=full"));
        args.extend(dice.percent(10).then_some("--no-journal"));
        if importer.is_some_and(|importer| importer == number || importer == 2) {
            args = vec!["import", "-q", &pool.disks[disk].appliance, "--folder", &folder, "--name", &name];
        }
        let delays = delays(dice);
        story += &format!("; {:?} {delays:?}", &args);
        std::thread::sleep(Duration::from_millis(dice.roll(60)));
        let run = Run::start(&place.drover, &place.folder, &format!("racer{number}"), &args, &delays);
        racers.push(Racer { disk, run });
    }
    let written = server.map(|server| server.write()).unwrap_or_default();
    let mut ended = Vec::new();
    for racer in racers {
        ended.push((racer.disk, racer.run.end()?));
    }
    judge(pool, &place, Round { format, before, is_forced, ended, written, story })
}

fn delays(dice: &mut Dice) -> Vec<Injection> {
    let one = |dice: &mut Dice| {
        let micros = dice.spread(1000, DELAY_MICROS_MAX);
        let when = dice.spread(1, 24);
        delay_at(dice.one_of::<&str>(CALLS), when, micros, dice)
    };
    (0..dice.roll(4)).map(|_| one(dice)).collect()
}

struct Round {
    format: Format,
    before: Before,
    is_forced: bool,
    ended: Vec<(usize, Ended)>,
    /// What the server wrote and flushed, at the disk's end.
    written: Vec<u8>,
    story: String,
}

fn judge(pool: &Pool, place: &Place, round: Round) -> Ending {
    let Round { format, before, is_forced, ended, mut written, story } = round;
    if is_forced {
        // The server has ended by now: a copy that came after it may overwrite what it took.
        let is_kept = std::fs::read(place.target(format)).is_ok_and(|found| found.ends_with(&written));
        written.truncate(if is_kept { written.len() } else { 0 });
    }
    let winners: Vec<&(usize, Ended)> = ended.iter().filter(|(_, ended)| ended.code == Some(0)).collect();
    let found = place.content(format);
    let tail = DISK_BYTES - written.len();
    let is = |disk: usize| {
        found.as_ref().is_ok_and(|found| {
            found.len() == DISK_BYTES
                && found[..tail] == pool.disks[disk].content[..tail]
                && found[tail..] == written
                || written.is_empty() && *found == pool.disks[disk].content
        })
    };
    // A forced copy may be overwritten by another that begins after it: one of them is there, whole.
    let is_well = match is_forced {
        true => winners.is_empty() || winners.iter().any(|(disk, _)| is(*disk)),
        false => winners.iter().all(|(disk, _)| is(*disk)),
    };
    if !is_well {
        let others: String = ended
            .iter()
            .map(|(disk, ended)| format!("\n  disk{disk}: {:?} {}", ended.code, ended.said))
            .collect();
        let why = found.err().unwrap_or_else(|| "the target holds something else".to_string());
        return Err(differs(&winners[0].1, &format!("{why}{others}"), &story));
    }
    if !written.is_empty() {
        let found = std::fs::read(place.target(format)).unwrap_or_default();
        if found.get(tail..) != Some(&written[..]) {
            return Err(Violation::new(
                Kind::Lost,
                format!("what a server took and flushed is gone; {story}"),
            ));
        }
    }
    if before == Before::Foreign && !is_forced && std::fs::read(place.target(format)).ok() != Some(foreign())
    {
        return Err(Violation::new(Kind::Lost, format!("somebody's bytes were overwritten; {story}")));
    }
    place.look_for_secrets()?;
    Ok(format!("{} of {} through", winners.len(), ended.len()))
}

/// `drover serve-disk --writable` of the target, somebody else who uses it.
struct Server(Child);

fn serve(place: &Place, disk: &Path, dice: &mut Dice) -> Server {
    let mut command = place.drover.command(&[
        "serve-disk",
        disk.to_str().unwrap(),
        "--writable",
        "--json",
        "--exit-with-parent",
    ]);
    command.env("XDG_RUNTIME_DIR", &place.folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let server = Server(command.spawn().unwrap());
    std::thread::sleep(Duration::from_millis(dice.roll(60)));
    server
}

impl Server {
    /// Writes at the disk's end, if the server came up, and ends it; gives what is on the disk for certain.
    fn write(mut self) -> Vec<u8> {
        let mut line = String::new();
        let mut out = BufReader::new(self.0.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let Ok(said) = serde_json::from_str::<serde_json::Value>(&line) else { return Vec::new() };
        let Some(uri) = said["uri"].as_str() else { return Vec::new() };
        let bytes = b"what a client wrote".repeat(26)[..494].to_vec();
        let written = write_end(uri, &bytes);
        let mut rest = Vec::new();
        // It ends with its child below.
        let _ = self.0.kill().map(|()| out.read_to_end(&mut rest));
        if written { bytes } else { Vec::new() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write_end(uri: &str, bytes: &[u8]) -> bool {
    let Ok(disk) = NbdDisk::open_target(&uri.parse().unwrap(), NbdOptions::default()) else { return false };
    let Ok(mut lane) = disk.open_lane() else { return false };
    let mut buffer = Buffer::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    let span = ByteSpan::new((DISK_BYTES - bytes.len()) as u64, bytes.len() as u64);
    lane.submit(Request { id: 0, span, work: Work::Write(buffer.into()) });
    lane.complete().is_some_and(|done| done.result.is_ok()) && disk.flush().is_ok()
}
