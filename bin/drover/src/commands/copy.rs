//! `drover copy`.

use drover_agent::{AgentDisk, Way};
use drover_copy::LeafTable;
use drover_disk::{Disk, DiskErrorKind};
use drover_endpoint::{End, TargetEnd, for_verify, is_stream, open_source, open_target, path_of};
use drover_mover::{
    Comparison, CopyJob, MoveError, Share, Verification, Verify, compare, copy, hash_parts, verify,
};
use drover_types::{Bytes, Digest, Rate, count};
use serde_json::{Value, json};

use super::clone;
use super::disk_run::{DiskRun, fresh_seed, share_of};
use super::manifest::Proof;
use super::verify::escape_text;
use crate::cli::{CopyArgs, VerifyArg};
use crate::endpoint::{source_of, target_of};
use crate::exit::{Exit, Failure, transfer_failure};

/// Copies one disk.
pub fn run(args: &CopyArgs) -> Result<Exit, Failure> {
    let share = share_of(args.sample)?;
    if is_stream(&args.target) {
        return super::stream::run(args);
    }
    let run = DiskRun::new(&args.tune, args.run.json, args.run.quiet)?;
    if let Some(bitmap) = &args.bitmap {
        return super::bitmap::run(args, bitmap, &run);
    }
    let source = open_source(&source_of(args, false))?;
    let target = open_target(&target_of(args), source.disk.as_ref())?;
    let proof = Proof::start(args, &run.stop)?;
    let job = Job { args, run, share };
    job.run.tell_notes(&source);
    match target {
        Some(target) if args.no_hash => match clone::share_blocks(args, &source, &target)? {
            clone::Cloned::Yes => {
                if let Some(journal) = &target.journal {
                    // Of an earlier, ordinary copy that stopped: over now.
                    let _ = std::fs::remove_file(journal);
                }
                job.tell_cloned(source.disk.size());
                Ok(Exit::Success)
            }
            clone::Cloned::No(why) => {
                job.run.say(&format!("no blocks can be shared ({why}): copied and hashed as always"));
                job.copy(source, target, proof)
            }
        },
        Some(target) => job.copy(source, target, proof),
        None => job.read_only(&source, proof),
    }
}

struct Job<'a> {
    args: &'a CopyArgs,
    run: DiskRun,
    share: f64,
}

/// What reading the target back has shown, by whichever way.
struct Check {
    equal: bool,
    verdict: String,
    target_root: Option<Digest>,
    blocks: u64,
    escape: f64,
}

impl Job<'_> {
    fn copy(&self, source: End, target: TargetEnd, proof: Option<Proof>) -> Result<Exit, Failure> {
        let journal = target.journal.clone();
        let job = CopyJob {
            source: source.disk.clone(),
            target: target.end.disk.clone(),
            target_tag: target.tag.clone(),
            target_is_new: target.is_new,
            target_zeroed: target.zeroed,
            owner: None,
            journal: journal.clone(),
            pass: None,
            options: self.run.options.clone(),
        };
        let report = self
            .run
            .shown("copy", |progress| copy(&job, progress, &self.run.stop))
            .map_err(|error| failure(error, job.target.as_ref(), journal.is_some()))?;
        report.note.iter().for_each(|note| self.run.say(note));
        self.run.tell_proof(proof)?;
        let check = self.verify(&source, &target.end, &report.leaves)?;
        // Reading back took its time, too.
        check_same(job.target.as_ref(), journal.is_some())?;
        let link = Linked::of(source.link.as_deref(), target.end.link.as_deref());
        let rounded = Some(job.target.size())
            .filter(|size| *size != job.source.size() && *size == job.source.size().next_multiple_of(512));
        self.report(&report, rounded, check.as_ref(), &link);
        if check.is_some_and(|check| !check.equal) {
            return Ok(Exit::Verification);
        }
        if let Some(path) = journal.filter(|_| self.args.journal.is_none()) {
            // Its work is done; a failure to remove it costs nothing but a file.
            drop(job);
            let _ = std::fs::remove_file(path);
        }
        Ok(Exit::Success)
    }

    fn tell_cloned(&self, size: u64) {
        let given_up = "not hashed, not verified; damage to a shared block damages both";
        if self.args.run.json {
            crate::out::json(json!({"event": "done", "root": null, "size": size, "reflink": true}));
        }
        self.run
            .say(&format!("{} shared with the source (reflink), no byte copied: {given_up}", Bytes(size)));
    }

    fn read_only(&self, source: &End, proof: Option<Proof>) -> Result<Exit, Failure> {
        let disk = source.disk.as_ref();
        let (found, bytes) = self
            .run
            .shown("read", |progress| {
                let found = hash_parts(disk, &self.run.options, progress, &self.run.stop, |_| Ok(()));
                found.map(|found| (found, progress.snapshot().read))
            })
            .map_err(|error| transfer_failure(error, ""))?;
        self.run.tell_proof(proof)?;
        let rate = Rate::of(bytes, found.elapsed);
        let (root, link) = (found.root, Linked::of(source.link.as_deref(), None));
        if self.args.run.json {
            crate::out::json(
                json!({"event": "done", "root": root.to_hex(), "size": disk.size(), "bytes_read": bytes,
                "seconds": found.elapsed.as_secs_f64(), "link": link.json(0)}),
            );
        } else {
            self.run.say(&format!("read {} at {rate}, root {root}", Bytes(bytes)));
            link.lines(0).iter().for_each(|line| self.run.say(line));
        }
        Ok(Exit::Success)
    }

    /// Reads back what was asked for.
    fn verify(&self, source: &End, target: &End, leaves: &LeafTable) -> Result<Option<Check>, Failure> {
        let (share, seed) = (self.share, fresh_seed());
        let (how, share) = match self.args.verify {
            VerifyArg::None => return Ok(None),
            VerifyArg::Source => return self.verify_source(source, target, leaves).map(Some),
            VerifyArg::Full => (Verify::Full, Share::Full),
            VerifyArg::Sampled => (Verify::Sampled { share, seed }, Share::Sampled { share, seed }),
        };
        self.run.tell_notes(target);
        let disk = for_verify(&target_of(self.args), &target.disk)?;
        let disk = disk.as_ref();
        let result = self.run.shown("verify", |progress| {
            verify(disk, leaves, how, &self.run.options, progress, &self.run.stop)
        });
        let found = result.map_err(|error| failure(error, disk, true))?;
        Ok(Some(Check::of_leaves(&found, share)))
    }

    /// Reads the source once more, and the target, and holds both against each other: then neither the
    /// first reading nor its hashes are trusted.
    fn verify_source(&self, source: &End, target: &End, leaves: &LeafTable) -> Result<Check, Failure> {
        self.run.tell_notes(target);
        // A file is opened anew, past the page cache that the copy read it through.
        let again = match path_of(&self.args.source) {
            Some(_) => Some(open_source(&source_of(self.args, true))?),
            None => None,
        };
        let source = again.as_ref().unwrap_or(source).disk.as_ref();
        let target = for_verify(&target_of(self.args), &target.disk)?;
        let target = target.as_ref();
        let result = self.run.shown("verify", |progress| {
            let (options, stop) = (&self.run.options, &self.run.stop);
            compare([source, target], source.size(), Share::Full, options, progress, stop)
        });
        let found = result.map_err(|error| failure(error, target, true))?;
        Ok(Check::of_source(&found, leaves))
    }

    fn report(
        &self,
        report: &drover_mover::CopyReport,
        rounded: Option<u64>,
        check: Option<&Check>,
        link: &Linked,
    ) {
        let now = &report.snapshot;
        if self.args.run.json {
            let line = json!({
                "event": "done", "root": report.root.to_hex(), "size": report.leaves.size(), "bytes_read": now.read,
                "bytes_written": now.written, "bytes_resumed": now.resumed, "retries": now.retries,
                "seconds": report.elapsed.as_secs_f64(), "attribution": now.attribution,
                "equal": check.map(|check| check.equal),
                "target_root": check.and_then(|check| check.target_root).map(|root| root.to_hex()),
                "blocks_compared": check.map(|check| check.blocks),
                "escape_probability": check.map(|check| check.escape),
                "link": link.json(now.zero),
            });
            crate::out::json(line);
            return;
        }
        let (stage, share) = now.attribution.slowest();
        self.run.say(&format!(
            "copied {} of {} in {:.1} s at {}, waiting for {stage} {:.0} % of the time",
            Bytes(now.read),
            Bytes(report.leaves.size()),
            report.elapsed.as_secs_f64(),
            Rate::of(now.read, report.elapsed),
            share * 100.0
        ));
        link.lines(now.zero).iter().for_each(|line| self.run.say(line));
        self.run.say(&format!("root {}", report.root));
        if let Some(rounded) = rounded {
            self.run.say(&format!(
                "the image has {rounded} bytes, whole sectors of 512; the root is that of the {} bytes of the source",
                report.leaves.size()
            ));
        }
        if let Some(check) = check {
            self.run.say(&check.verdict);
        }
    }
}

/// Fails if a target is not where it was opened, as it was.
pub fn check_same(target: &dyn Disk, resumable: bool) -> Result<(), Failure> {
    target.check_same().map_err(|error| failure(error.into(), target, resumable))
}

/// The failure of a copy, and whether the same command again goes on with it.
pub fn failure(error: MoveError, target: &dyn Disk, resumable: bool) -> Failure {
    let is_moved = matches!(&error, MoveError::Disk(error) if error.kind == DiskErrorKind::Gone);
    let failure = transfer_failure(error, target.name());
    let advice = match (resumable, failure.exit) {
        (true, Exit::TargetFull) => "make room, then run the same command again: it goes on where it stopped",
        (true, Exit::Target) if is_moved => {
            "put it back where it was, as it was, then run the same command again: it goes on where it stopped"
        }
        (true, Exit::Source) => {
            "run the same command again: it goes on where it stopped, or begins again if the source was changed"
        }
        (true, _) => "run the same command again: it goes on where it stopped",
        (false, _) => return failure,
    };
    failure.advise(advice)
}

impl Check {
    fn of_leaves(found: &Verification, share: Share) -> Check {
        Check {
            equal: found.is_equal(),
            verdict: verdict(found, share),
            target_root: found.target_root,
            blocks: found.blocks,
            escape: found.miss_probability,
        }
    }

    fn of_source(found: &Comparison, leaves: &LeafTable) -> Check {
        let compared = format!("{} of {} blocks compared", found.blocks, found.blocks_total);
        let copied = leaves.root();
        let verdict = match found.spans.first() {
            Some(first) => {
                format!("NOT EQUAL: {} of {compared} differ, the first at {first}", found.differing_blocks)
            }
            None if found.first_root != copied => {
                "NOT EQUAL: the source reads otherwise than when it was copied".to_string()
            }
            None => format!("verified against the source: equal, {compared}"),
        };
        Check {
            equal: found.is_equal() && found.first_root == copied,
            verdict,
            target_root: found.second_root,
            blocks: found.blocks,
            escape: 0.0,
        }
    }
}

/// Which way the bytes of a copy went over links.
#[derive(Default)]
pub struct Linked {
    source: Option<Way>,
    target: Option<Way>,
}

impl Linked {
    /// What went so far, for ends that are other sites'.
    pub fn of(source: Option<&AgentDisk>, target: Option<&AgentDisk>) -> Linked {
        Linked { source: source.map(AgentDisk::sent), target: target.map(AgentDisk::sent) }
    }

    fn all(&self) -> impl Iterator<Item = &Way> {
        self.source.iter().chain(&self.target)
    }

    /// What was read, a target's bytes that were read back among it, and as how much it came.
    fn received(&self) -> (u64, u64) {
        (self.all().map(|way| way.received).sum(), self.all().map(|way| way.received_packed).sum())
    }

    fn reopened(&self) -> u64 {
        self.all().map(|way| way.reopened).sum()
    }

    /// For `--json`; nothing where no end is another site's. `zero` bytes of the target are zeros that were not sent.
    pub fn json(&self, zero: u64) -> Value {
        if self.all().next().is_none() {
            return Value::Null;
        }
        let (target, zero) = self.target.map_or_else(|| (Way::default(), 0), |target| (target, zero));
        let (received, received_packed) = self.received();
        json!({
            "bytes_zero": zero, "bytes_sent": target.sent, "bytes_sent_packed": target.sent_packed,
            "bytes_had": target.had, "bytes_received": received, "bytes_received_packed": received_packed,
            "reopened": self.reopened(),
        })
    }

    /// For people, a line each: what was sent and what did not have to be, and what was read.
    pub fn lines(&self, zero: u64) -> Vec<String> {
        let sent = self.target.map(|link| {
            format!(
                "over the link: {} as {}; not sent: {} found there by hash, {} zeros",
                Bytes(link.sent),
                Bytes(link.sent_packed),
                Bytes(link.had),
                Bytes(zero),
            )
        });
        let (received, packed) = self.received();
        let read =
            (received > 0).then(|| format!("read over the link: {} as {}", Bytes(received), Bytes(packed)));
        let mut lines: Vec<String> = sent.into_iter().chain(read).collect();
        if let (Some(last), times @ 1..) = (lines.last_mut(), self.reopened()) {
            last.push_str(&format!(
                ", opened again {} after its link was lost",
                count(times as usize, "time")
            ));
        }
        lines
    }
}

pub fn verdict(check: &Verification, how: Share) -> String {
    let compared = format!("{} of {} blocks compared", check.blocks, check.blocks_total);
    match check.mismatches.first() {
        None if check.blocks == check.blocks_total => format!("verified: equal, {compared}"),
        None => format!("verified: equal, {compared}; {}", escape_text(how)),
        Some(first) => {
            format!("NOT EQUAL: {} of {compared} differ, the first at {}", check.mismatches.len(), first.span)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::FileExt;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// Where an image says that its first table lies. Source: QEMU `docs/interop/qcow2.txt`.
    const L1_OFFSET_AT: u64 = 40;

    #[test]
    fn an_image_is_verified_by_the_tables_that_are_on_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(at("source"), vec![7; 4 << 20]).unwrap();
        for how in ["full", "sampled", "source"] {
            let target = at(&format!("{how}.qcow2"));
            let words =
                ["drover", "copy", &at("source"), &target, "--quiet", "--verify", how, "--sample", "99"];
            let Command::Copy(args) = Cli::try_parse_from(words).unwrap().command else { unreachable!() };
            let run = DiskRun::new(&args.tune, false, true).unwrap();
            let source = open_source(&source_of(&args, false)).unwrap();
            let opened = open_target(&target_of(&args), source.disk.as_ref()).unwrap().unwrap();
            let copied = CopyJob {
                source: source.disk.clone(),
                target: opened.end.disk.clone(),
                target_tag: opened.tag,
                target_is_new: true,
                target_zeroed: true,
                owner: None,
                journal: None,
                pass: None,
                options: run.options.clone(),
            };
            let report = copy(&copied, &Default::default(), &run.stop).unwrap();
            let job = Job { args: &args, run, share: 0.99 };
            let check = || job.verify(&source, &opened.end, &report.leaves).unwrap().unwrap();
            assert!(check().equal, "{how}");
            // A write of the table was lost: the one in memory is right.
            let file = std::fs::File::options().read(true).write(true).open(&target).unwrap();
            let mut offset = [0; 8];
            file.read_exact_at(&mut offset, L1_OFFSET_AT).unwrap();
            file.write_all_at(&[0; 8], u64::from_be_bytes(offset)).unwrap();
            file.sync_all().unwrap();
            assert!(!check().equal, "{how}");
        }
    }
}
