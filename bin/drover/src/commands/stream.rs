//! `drover copy SOURCE -`: a disk as a stream of raw bytes.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use drover_endpoint::guard::{self, Before};
use drover_endpoint::{ToldFormat, open_source, path_of};
use drover_mover::{MoveError, stream};
use drover_types::{Bytes, Rate};
use rustix::fs::OFlags;

use super::disk_run::DiskRun;
use super::manifest::Proof;
use crate::cli::{CopyArgs, VerifyArg};
use crate::endpoint::source_of;
use crate::exit::{Exit, Failure, transfer_failure};

/// Streams a disk.
pub fn run(args: &CopyArgs) -> Result<Exit, Failure> {
    check(args)?;
    let run = DiskRun::new(&args.tune, false, args.run.quiet)?;
    // Not through the standard library's buffer, which copies everything once more.
    let mut out = io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(no_output)?;
    let to = out.metadata().map_err(no_output)?;
    // By its name first: opened, it would be told to have a writer, which is us.
    let named = path_of(&args.source).and_then(|path| std::fs::metadata(path).ok());
    guard::check_stream_of(named.into_iter(), &to)?;
    let before = Before::now();
    let source = open_source(&source_of(args, false))?;
    let proof = Proof::start(args, &run.stop)?;
    run.tell_notes(&source);
    let disk = source.disk.as_ref();
    before.check_stream(&to)?;
    let result = run.shown("copy", |progress| stream(disk, &mut out, &run.options, progress, &run.stop));
    match result {
        Ok(report) => {
            run.tell_proof(proof)?;
            let (size, rate) = (disk.size(), Rate::of(disk.size(), report.elapsed));
            run.say(&format!("{} written at {rate}, root {}", Bytes(size), report.root));
            Ok(Exit::Success)
        }
        Err(error) if nobody_reads(&error) => crate::out::gone(),
        Err(error) if has_no_room(&error) => {
            let full = Failure::new(Exit::TargetFull, transfer_failure(error, "").message);
            Err(full.advise("make room where it goes, then begin again: a stream cannot be resumed"))
        }
        Err(error) => Err(transfer_failure(error, "")),
    }
}

fn no_output(error: io::Error) -> Failure {
    Failure::new(Exit::Target, format!("standard output: {error}"))
}

/// Whether standard output was closed when the program began: the standard library then opens `/dev/null`, to read and
/// to write. Who wants the bytes thrown away opens it to write.
fn is_closed() -> bool {
    let out = io::stdout();
    let null = std::fs::metadata("/dev/null").map(|meta| meta.rdev());
    let is_null = rustix::fs::fstat(&out).is_ok_and(|stat| null.is_ok_and(|null| null == stat.st_rdev));
    is_null && rustix::fs::fcntl_getfl(&out).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR)
}

fn check(args: &CopyArgs) -> Result<(), Failure> {
    let no =
        |what: &str, why: &str| Err(Failure::new(Exit::Usage, format!("{what} does not go with -: {why}")));
    match () {
        () if io::stdout().is_terminal() => Err(Failure::new(Exit::Usage, "standard output is a terminal")
            .advise("redirect it to a file or a pipe; a file named - is ./-")),
        () if is_closed() => Err(Failure::new(Exit::Usage, "standard output is closed")
            .advise("redirect it to a file or a pipe; to only read and hash, the target is null:")),
        () if args.format.is_some_and(|format| format != ToldFormat::RAW) || args.compress => {
            no("another format than raw", "an image cannot be written in order")
        }
        () if args.verify != VerifyArg::None => no("--verify", "a stream cannot be read back"),
        () if args.bitmap.is_some() => no("--bitmap", "a stream has no target that holds the rest"),
        () if args.journal.is_some() => no("--journal", "a stream cannot be resumed"),
        () if args.run.json => no("--json", "standard output carries the disk"),
        () => Ok(()),
    }
}

fn nobody_reads(error: &MoveError) -> bool {
    of_output(error) == Some(io::ErrorKind::BrokenPipe)
}

fn has_no_room(error: &MoveError) -> bool {
    use io::ErrorKind as E;
    matches!(of_output(error), Some(E::StorageFull | E::QuotaExceeded | E::FileTooLarge))
}

/// What writing failed for.
fn of_output(error: &MoveError) -> Option<io::ErrorKind> {
    let MoveError::Other { source, .. } = error else { return None };
    source.downcast_ref::<io::Error>().map(io::Error::kind)
}
