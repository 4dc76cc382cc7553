//! `drover hash`: the root of a disk's hash tree, and a report to check against years later.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use drover_copy::report::{About, ReportWriter};
use drover_disk::Disk;
use drover_endpoint::open_source;
use drover_mover::{HashedDisk, MoveError, Snapshot, hash_parts};
use drover_types::{Bytes, Digest, Rate};
use serde_json::json;

use super::disk_run::DiskRun;
use crate::cli::HashArgs;
use crate::endpoint::source_named;
use crate::exit::{Exit, Failure, transfer_failure};
use crate::signature;

/// Hashes a disk.
pub fn run(args: &HashArgs) -> Result<Exit, Failure> {
    let run = DiskRun::new(&args.tune, args.json, args.quiet)?;
    let source = open_source(&source_named(&args.disk, args.format, &args.login, args.state.as_deref()))?;
    run.tell_notes(&source);
    let disk = source.disk.as_ref();
    args.sign.as_deref().map(signature::check_key).transpose()?;
    let report = args.output.as_deref().map(|path| NewReport::create(path, disk)).transpose()?;
    let (found, read) = hash(&run, disk, report)?;
    let signed = args.output.as_deref().zip(args.sign.as_deref());
    let signature = signed.map(|(report, key)| signature::sign(report, key)).transpose()?;
    tell(args, disk, &found, &read, signature.as_deref());
    Ok(Exit::Success)
}

fn hash(
    run: &DiskRun,
    disk: &dyn Disk,
    mut report: Option<NewReport<'_>>,
) -> Result<(HashedDisk, Snapshot), Failure> {
    let (found, read) = run.shown("hash", |progress| {
        let found = hash_parts(disk, &run.options, progress, &run.stop, |part| match &mut report {
            Some(report) => report.writer.push(part).map_err(|error| report.failed(error)),
            None => Ok(()),
        });
        (found, progress.snapshot())
    });
    let found = found.map_err(|error| transfer_failure(error, ""))?;
    if let Some(report) = report {
        report.finish().map_err(|error| transfer_failure(error, ""))?;
    }
    Ok((found, read))
}

fn tell(args: &HashArgs, disk: &dyn Disk, found: &HashedDisk, read: &Snapshot, signature: Option<&Path>) {
    if args.json {
        crate::out::json(json!({"event": "done", "root": found.root.to_hex(), "size": disk.size(),
            "bytes_read": read.read, "seconds": found.elapsed.as_secs_f64(), "report": args.output,
            "signature": signature}));
        return;
    }
    crate::out::line(found.root);
    if !args.quiet {
        crate::out::say(format_args!(
            "{} of {} read in {:.1} s at {}",
            Bytes(read.read),
            Bytes(disk.size()),
            found.elapsed.as_secs_f64(),
            Rate::of(read.read, found.elapsed)
        ));
        if let Some(report) = &args.output {
            crate::out::say(format_args!("next: drover verify --report {} COPY", report.display()));
        }
    }
}

/// A report that is being written. If it is dropped before its end, its file goes again.
struct NewReport<'a> {
    path: &'a Path,
    writer: ReportWriter<BufWriter<File>>,
    unfinished: Unfinished<'a>,
}

struct Unfinished<'a>(Option<&'a Path>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            // It was made by this run and has no end; what cannot be removed is refused when read.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl<'a> NewReport<'a> {
    /// Makes the file, which must be new, before hours are spent on reading.
    fn create(path: &'a Path, disk: &dyn Disk) -> Result<NewReport<'a>, Failure> {
        let failed = |error: io::Error| {
            let failure = Failure::new(Exit::Target, format!("report {}: {error}", path.display()));
            match error.kind() {
                io::ErrorKind::AlreadyExists => failure.advise("choose another name, or remove it first"),
                _ => failure,
            }
        };
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
        let unfinished = Unfinished(Some(path));
        let about = About {
            size: disk.size(),
            made_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            program: format!("drover {}", env!("CARGO_PKG_VERSION")),
            name: disk.name().to_string(),
            identity: disk.identity(),
        };
        let writer = ReportWriter::new(BufWriter::with_capacity(1 << 20, file), &about).map_err(failed)?;
        Ok(NewReport { path, writer, unfinished })
    }

    fn failed(&self, source: io::Error) -> MoveError {
        MoveError::Other { what: format!("writing of report {}", self.path.display()), source: source.into() }
    }

    fn finish(mut self) -> Result<Digest, MoveError> {
        let path = self.path;
        let failed = |source: io::Error| MoveError::Other {
            what: format!("writing of report {}", path.display()),
            source: source.into(),
        };
        let (root, out) = self.writer.finish().map_err(failed)?;
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        self.unfinished.0 = None;
        Ok(root)
    }
}
