//! `drover copy SOURCE -`: a disk as a stream of raw bytes.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use drover_mover::{MoveError, stream};
use drover_types::{Bytes, Rate};

use super::copy::source_of;
use super::disk_run::DiskRun;
use super::manifest::Proof;
use crate::cli::{CopyArgs, Format, VerifyArg};
use crate::endpoint;
use crate::exit::{Exit, Failure, transfer_failure};

/// Streams a disk.
pub fn run(args: &CopyArgs) -> Result<Exit, Failure> {
    check(args)?;
    let run = DiskRun::new(&args.tune, false, args.run.quiet)?;
    let source = endpoint::open_source(&source_of(args, false))?;
    let proof = Proof::start(args, &run.stop)?;
    run.tell_notes(&source);
    let disk = source.disk.as_ref();
    // Not through the standard library's buffer, which copies everything once more.
    let mut out = io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map_err(|error| Failure::new(Exit::Target, format!("standard output: {error}")))?;
    let result = run.shown("copy", |progress| stream(disk, &mut out, &run.options, progress, &run.stop));
    match result {
        Ok(report) => {
            run.tell_proof(proof)?;
            let (size, rate) = (disk.size(), Rate::of(disk.size(), report.elapsed));
            run.say(&format!("{} written at {rate}, root {}", Bytes(size), report.root));
            Ok(Exit::Success)
        }
        Err(error) if nobody_reads(&error) => crate::out::gone(),
        Err(error) => Err(transfer_failure(error, "")),
    }
}

fn check(args: &CopyArgs) -> Result<(), Failure> {
    let no =
        |what: &str, why: &str| Err(Failure::new(Exit::Usage, format!("{what} does not go with -: {why}")));
    match () {
        () if io::stdout().is_terminal() => Err(Failure::new(Exit::Usage, "standard output is a terminal")
            .advise("redirect it to a file or a pipe; a file named - is ./-")),
        () if args.format.is_some_and(|format| format != Format::Raw) || args.compress => {
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
    let MoveError::Other { source, .. } = error else { return false };
    source.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
