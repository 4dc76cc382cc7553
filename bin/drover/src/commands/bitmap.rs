//! `drover copy --bitmap`: what changed since a dirty bitmap began, onto a target that holds what was before.

use std::sync::Arc;

use drover_copy::{Leaf, Mismatch};
use drover_disk::Disk;
use drover_endpoint::{TargetEnd, for_verify, nbd_uri_of, open_existing_target};
use drover_engine::chain;
use drover_mover::{AreasJob, AreasReport, CopyJob, Share, Verification, copy_areas, verify_blocks};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_types::{BLOCK_BYTES, ByteSpan, Bytes, Rate};
use serde_json::json;

use super::copy::{Linked, check_same, failure, verdict};
use super::disk_run::DiskRun;
use crate::cli::{CopyArgs, VerifyArg};
use crate::endpoint::target_of;
use crate::exit::{Exit, Failure, disk_exit};

/// Copies what a bitmap marks.
pub fn run(args: &CopyArgs, bitmap: &str, run: &DiskRun) -> Result<Exit, Failure> {
    if matches!(args.verify, VerifyArg::Sampled | VerifyArg::Source) {
        return Err(Failure::new(Exit::Usage, "--bitmap goes with --verify none or full"));
    }
    let uri: NbdUri = nbd_uri_of(&args.source).ok_or_else(|| {
        Failure::new(Exit::Usage, "--bitmap is for nbd:// sources: they show dirty bitmaps")
    })?;
    let options = NbdOptions { dirty_bitmap: Some(bitmap.to_string()), ..NbdOptions::default() };
    let source = NbdDisk::open_source(&uri, options).map_err(source_failure)?;
    let spans = marked(&source)?;
    let tag = tag(&source, bitmap, &spans);
    let target = open_existing_target(&target_of(args), &source, &tag)?;
    run.tell_notes(&target.end);
    let areas = AreasJob { spans, tag };
    Job { args, bitmap, run, areas }.copy(source, target)
}

/// The blocks that the bitmap marks, in order and in runs: never more than half as many as the disk has blocks.
fn marked(disk: &NbdDisk) -> Result<Vec<ByteSpan>, Failure> {
    let (size, mut at) = (disk.size(), 0);
    let mut spans: Vec<ByteSpan> = Vec::new();
    while at < size {
        let extents = disk.dirty(ByteSpan::from_bounds(at, size)).map_err(source_failure)?;
        for extent in extents {
            at = extent.span.end();
            if !extent.dirty {
                continue;
            }
            let start = extent.span.offset / BLOCK_BYTES * BLOCK_BYTES;
            let end = at.next_multiple_of(BLOCK_BYTES).min(size);
            match spans.last_mut() {
                Some(last) if last.end() >= start => *last = ByteSpan::from_bounds(last.offset, end),
                _ => spans.push(ByteSpan::from_bounds(start, end)),
            }
        }
    }
    Ok(spans)
}

/// What a journal names as the source: this bitmap with these marks, and no whole disk.
fn tag(source: &NbdDisk, bitmap: &str, spans: &[ByteSpan]) -> String {
    let text: String = spans.iter().map(|span| format!("{span} ")).collect();
    let marks = match Leaf::of(text.as_bytes()) {
        Leaf::Data(digest) => digest.to_hex(),
        Leaf::Zero => "none".to_string(),
    };
    format!("bitmap {bitmap} with marks {marks} of {}", source.identity())
}

struct Job<'a> {
    args: &'a CopyArgs,
    bitmap: &'a str,
    run: &'a DiskRun,
    areas: AreasJob,
}

impl Job<'_> {
    fn copy(&self, source: NbdDisk, target: TargetEnd) -> Result<Exit, Failure> {
        let journal = target.journal.clone();
        let link = target.end.link;
        let job = CopyJob {
            source: Arc::new(source),
            target: target.end.disk.clone(),
            target_tag: target.tag,
            target_is_new: false,
            target_zeroed: false,
            owner: None,
            journal: journal.clone(),
            pass: None,
            options: self.run.options.clone(),
        };
        let report = self
            .run
            .shown("copy", |progress| copy_areas(&job, &self.areas, progress, &self.run.stop))
            .map_err(|error| failure(error, job.target.as_ref(), journal.is_some()))?;
        report.note.iter().for_each(|note| self.run.say(note));
        let check = match self.args.verify {
            VerifyArg::Full => {
                Some(self.verify(for_verify(&target_of(self.args), &job.target)?.as_ref(), &report)?)
            }
            VerifyArg::None | VerifyArg::Sampled | VerifyArg::Source => None,
        };
        check_same(job.target.as_ref(), journal.is_some())?;
        self.tell(&report, check.as_ref(), &Linked::of(None, link.as_deref()));
        if check.is_some_and(|check| !check.is_equal()) {
            return Ok(Exit::Verification);
        }
        if let Some(path) = journal.filter(|_| self.args.journal.is_none()) {
            // Its work is done; a failure to remove it costs nothing but a file.
            drop((job, link));
            let _ = std::fs::remove_file(path);
        }
        Ok(Exit::Success)
    }

    /// Reads back what was copied.
    fn verify(&self, target: &dyn Disk, report: &AreasReport) -> Result<Verification, Failure> {
        let leaves = &report.leaves;
        let known = (0..leaves.blocks()).filter(|block| leaves.get(*block).is_some());
        let blocks: Vec<Mismatch> =
            known.map(|block| Mismatch { block, span: leaves.span_of(block) }).collect();
        let check = |progress: &_| verify_blocks(target, leaves, &blocks, progress, &self.run.stop);
        let found = self.run.shown("verify", check).map_err(|error| failure(error, target, true))?;
        Ok(Verification { blocks_total: blocks.len() as u64, ..found })
    }

    fn tell(&self, report: &AreasReport, check: Option<&Verification>, link: &Linked) {
        let (now, size) = (&report.snapshot, report.leaves.size());
        let marked: u64 = self.areas.spans.iter().map(|span| span.length).sum();
        if self.args.run.json {
            crate::out::json(json!({
                "event": "done", "root": null, "size": size, "bitmap": self.bitmap, "bytes_marked": marked,
                "bytes_read": now.read, "bytes_written": now.written, "bytes_resumed": now.resumed,
                "retries": now.retries, "seconds": report.elapsed.as_secs_f64(), "attribution": now.attribution,
                "equal": check.map(Verification::is_equal),
                "blocks_compared": check.map(|check| check.blocks),
                "link": link.json(now.zero),
            }));
            return;
        }
        self.run.say(&format!(
            "bitmap {} marks {} of {}: copied {} in {:.1} s at {}, nothing else was looked at",
            drover_nbd::printable(self.bitmap),
            Bytes(marked),
            Bytes(size),
            Bytes(now.read),
            report.elapsed.as_secs_f64(),
            Rate::of(now.read, report.elapsed),
        ));
        link.lines(now.zero).iter().for_each(|line| self.run.say(line));
        check.iter().for_each(|check| self.run.say(&verdict(check, Share::Full)));
    }
}

fn source_failure(error: drover_disk::DiskError) -> Failure {
    Failure::new(disk_exit(&error, ""), chain(&error))
}
