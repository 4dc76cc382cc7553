//! `drover copy`.

use std::sync::Arc;
use std::time::Duration;

use drover_copy::RetryPolicy;
use drover_disk::Disk;
use drover_mover::{
    CopyJob, MemoryBudget, MoveError, Progress, StopSignal, TransferOptions, Verification, Verify, copy,
    hash, verify,
};
use drover_types::{Bytes, Rate};
use drover_view::{CopyDisplay, DisplayMode};
use serde_json::json;

use crate::cli::{CopyArgs, VerifyArg};
use crate::endpoint::{self, End, Named, TargetEnd};
use crate::exit::{Exit, Failure, transfer_failure};
use crate::signals::stop_on_signals;

/// Copies one disk.
pub fn run(args: &CopyArgs) -> Result<Exit, Failure> {
    if !(0.0..=100.0).contains(&args.sample) {
        return Err(Failure::new(Exit::Usage, format!("--sample {} is not between 0 and 100", args.sample)));
    }
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let source = endpoint::open_source(&Named {
        text: &args.source,
        format: args.source_format,
        user: args.user.as_deref(),
        secret: &args.secret,
    })?;
    let target = endpoint::open_target(args, source.disk.size())?;
    let mode = DisplayMode::choose(args.json, args.quiet);
    let job = Job { args, mode, stop, options: options(args) };
    job.tell_notes(&source);
    match target {
        Some(target) => job.copy(source, target),
        None => job.read_only(&source),
    }
}

fn options(args: &CopyArgs) -> TransferOptions {
    TransferOptions {
        lanes: args.lanes,
        depth: args.depth,
        request_bytes: args.request.map(|bytes| bytes.0),
        retry: RetryPolicy { give_up_after: Duration::from_secs(args.retry_for), ..RetryPolicy::default() },
        memory: MemoryBudget::new(args.memory.0.max(1)),
    }
}

struct Job<'a> {
    args: &'a CopyArgs,
    mode: DisplayMode,
    stop: StopSignal,
    options: TransferOptions,
}

impl Job<'_> {
    fn copy(&self, source: End, target: TargetEnd) -> Result<Exit, Failure> {
        let journal = match (&self.args.journal, self.args.no_journal) {
            (Some(path), _) => Some(path.clone()),
            (None, true) => None,
            (None, false) => target.journal.clone(),
        };
        let job = CopyJob {
            source: source.disk.clone(),
            target: target.end.disk.clone(),
            target_tag: target.tag.clone(),
            target_is_new: target.is_new,
            target_zeroed: target.zeroed,
            journal: journal.clone(),
            options: self.options.clone(),
        };
        let report = self
            .shown("copy", |progress| copy(&job, progress, &self.stop))
            .map_err(|error| self.failure(error, job.target.as_ref(), journal.is_some()))?;
        report.note.iter().for_each(|note| self.say(note));
        let check = self.verify(job.target.as_ref(), &report.leaves)?;
        self.report(&report, check.as_ref());
        if check.is_some_and(|check| !check.is_equal()) {
            return Ok(Exit::Verification);
        }
        if let Some(path) = journal.filter(|_| self.args.journal.is_none()) {
            // Its work is done; a failure to remove it costs nothing but a file.
            drop(job);
            let _ = std::fs::remove_file(path);
        }
        Ok(Exit::Success)
    }

    fn read_only(&self, source: &End) -> Result<Exit, Failure> {
        let disk = source.disk.as_ref();
        let found = self
            .shown("read", |progress| hash(disk, disk.size(), None, &self.options, progress, &self.stop))
            .map_err(|error| self.failure(error, disk, false))?;
        let root = found.root.map(|root| root.to_hex()).unwrap_or_default();
        let rate = Rate::of(found.snapshot.read, found.elapsed);
        if self.args.json {
            let bytes = found.snapshot.read;
            crate::out::line(json!({"event": "done", "root": root, "size": disk.size(), "bytes_read": bytes,
                "seconds": found.elapsed.as_secs_f64()}));
        } else {
            self.say(&format!("read {} at {rate}, root {root}", Bytes(found.snapshot.read)));
        }
        Ok(Exit::Success)
    }

    fn verify(
        &self,
        target: &dyn Disk,
        leaves: &drover_copy::LeafTable,
    ) -> Result<Option<Verification>, Failure> {
        let how = match self.args.verify {
            VerifyArg::None => return Ok(None),
            VerifyArg::Full => Verify::Full,
            VerifyArg::Sampled => {
                Verify::Sampled { share: self.args.sample / 100.0, seed: u64::from(std::process::id()) }
            }
        };
        let result =
            self.shown("verify", |progress| verify(target, leaves, how, &self.options, progress, &self.stop));
        result.map(Some).map_err(|error| self.failure(error, target, true))
    }

    /// Runs a transfer with its progress on show.
    fn shown<T>(&self, what: &str, work: impl FnOnce(&Progress) -> T) -> T {
        let progress = Arc::new(Progress::default());
        let display = CopyDisplay::start(self.mode, what, progress.clone());
        let result = work(&progress);
        display.finish();
        result
    }

    fn report(&self, report: &drover_mover::CopyReport, check: Option<&Verification>) {
        let now = &report.snapshot;
        if self.args.json {
            let line = json!({
                "event": "done", "root": report.root.to_hex(), "size": report.leaves.size(), "bytes_read": now.read,
                "bytes_written": now.written, "bytes_resumed": now.resumed, "retries": now.retries,
                "seconds": report.elapsed.as_secs_f64(), "attribution": now.attribution,
                "equal": check.map(Verification::is_equal),
                "target_root": check.and_then(|check| check.target_root).map(|root| root.to_hex()),
                "blocks_compared": check.map(|check| check.blocks),
            });
            crate::out::line(line);
            return;
        }
        let (stage, share) = now.attribution.slowest();
        self.say(&format!(
            "copied {} of {} in {:.1} s at {}, waiting for {stage} {:.0} % of the time",
            Bytes(now.read),
            Bytes(report.leaves.size()),
            report.elapsed.as_secs_f64(),
            Rate::of(now.read, report.elapsed),
            share * 100.0
        ));
        self.say(&format!("root {}", report.root));
        if let Some(check) = check {
            self.say(&verdict(check));
        }
    }

    fn failure(&self, error: MoveError, target: &dyn Disk, resumable: bool) -> Failure {
        let failure = transfer_failure(error, target.name());
        let advice = match (resumable, failure.exit) {
            (true, Exit::TargetFull) => {
                "make room, then run the same command again: it goes on where it stopped"
            }
            (true, _) => "run the same command again: it goes on where it stopped",
            (false, _) => return failure,
        };
        failure.advise(advice)
    }

    fn tell_notes(&self, end: &End) {
        end.notes.iter().for_each(|note| self.say(note));
    }

    fn say(&self, text: &str) {
        if !self.args.quiet {
            eprintln!("{text}");
        }
    }
}

fn verdict(check: &Verification) -> String {
    let compared = format!("{} of {} blocks compared", check.blocks, check.blocks_total);
    match check.mismatches.first() {
        None if check.blocks == check.blocks_total => format!("verified: equal, {compared}"),
        None => format!(
            "verified: equal, {compared}; one damaged block would have escaped with a chance of {:.0} %",
            check.miss_probability * 100.0
        ),
        Some(first) => {
            format!("NOT EQUAL: {} of {compared} differ, the first at {}", check.mismatches.len(), first.span)
        }
    }
}
