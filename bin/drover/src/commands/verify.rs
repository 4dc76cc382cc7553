//! `drover verify`: two disks, or a disk and a report made years ago.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use drover_copy::report::{About, ReportError, ReportReader};
use drover_endpoint::{End, NamedSource, ToldFormat, open_source};
use drover_engine::chain;
use drover_mover::{Comparison, Share, compare, compare_with_report, is_rounded_up};
use drover_types::Bytes;
use serde_json::json;

use super::disk_run::{DiskRun, fresh_seed, share_of};
use crate::cli::VerifyArgs;
use crate::endpoint::source_named;
use crate::exit::{Exit, Failure, transfer_failure};
use crate::signature;

/// Differing spans that are printed for a person; JSON has all that are kept.
const PRINTED_SPANS_MAX: usize = 20;

/// Compares.
pub fn run(args: &VerifyArgs) -> Result<Exit, Failure> {
    let share = match args.sample {
        Some(percent) => Share::Sampled { share: share_of(percent)?, seed: fresh_seed() },
        None => Share::Full,
    };
    let run = DiskRun::new(&args.tune, args.run.json, args.run.quiet)?;
    let signed = args.report.as_deref().zip(args.signers.as_deref());
    let signer = signed.map(|(report, signers)| signature::verify(report, signers)).transpose()?;
    if let Some(signer) = signer.as_deref().filter(|_| !args.run.json) {
        run.say(&format!("report signed by {signer}"));
    }
    let job = Job { args, run, share, signer };
    match (args.disks.as_slice(), &args.report) {
        ([], Some(report)) => job.report_alone(report),
        ([a, b], None) => job.two_disks(a, b),
        ([disk], Some(report)) => job.report(report, disk),
        ([_], None) => Err(usage("one disk is compared with what?", "name a second disk, or --report FILE")),
        _ => Err(usage("a report and two disks", "name one disk with --report, or two without")),
    }
}

fn usage(message: &str, advice: &str) -> Failure {
    Failure::new(Exit::Usage, message).advise(advice)
}

struct Job<'a> {
    args: &'a VerifyArgs,
    run: DiskRun,
    share: Share,
    /// Who signed the report, where that was asked for.
    signer: Option<String>,
}

/// What both sides are called, and their sizes.
struct Sides {
    names: [String; 2],
    sizes: [u64; 2],
    /// Whether they differ only because one is rounded up to a whole sector, with zeros behind the other's end.
    is_rounded: bool,
}

impl Job<'_> {
    fn two_disks(&self, a: &str, b: &str) -> Result<Exit, Failure> {
        let ends = [self.open(a, self.args.format)?, self.open(b, self.args.second_format)?];
        let disks = ends.each_ref().map(|end| end.disk.as_ref());
        let (names, sizes) = (disks.map(|disk| disk.name().to_string()), disks.map(|disk| disk.size()));
        let size = sizes[0].min(sizes[1]);
        let found = self
            .run
            .shown("verify", |progress| {
                compare(disks, size, self.share, &self.run.options, progress, &self.run.stop)
            })
            .map_err(|error| transfer_failure(error, ""))?;
        let longer = disks[usize::from(sizes[1] > sizes[0])];
        let is_rounded = is_rounded_up(longer, size).map_err(|error| transfer_failure(error, ""))?;
        Ok(self.judge(&Sides { names, sizes, is_rounded }, &found, None))
    }

    /// A report without the disk: whether it is sound; of a page, which only its signature can prove, whose it is.
    fn report_alone(&self, path: &Path) -> Result<Exit, Failure> {
        let read = open_report(path).and_then(|report| {
            let about = report.about().clone();
            Ok((about, report.finish()?))
        });
        let (about, root) = match (read, &self.signer) {
            (Ok((about, root)), _) => (Some(about), Some(root)),
            (Err(ReportError::NotAReport), Some(_)) => (None, None),
            (Err(error), _) => return Err(unusable(path, &error)),
        };
        if self.args.run.json {
            crate::out::json(json!({"event": "done", "report": path, "signer": self.signer,
                "root": root.map(|root| root.to_hex()), "size": about.map(|about| about.size)}));
        } else if let Some((about, root)) = about.zip(root) {
            self.tell_about(&about);
            self.run.say(&format!("the report is sound\nroot {root}"));
        }
        Ok(Exit::Success)
    }

    fn report(&self, path: &Path, disk: &str) -> Result<Exit, Failure> {
        let unusable = |error: ReportError| unusable(path, &error);
        // Read to its end and found sound before hours are spent on the disk.
        let about = open_report(path).map_err(unusable)?.about().clone();
        open_report(path).and_then(ReportReader::finish).map_err(unusable)?;
        let end = self.open(disk, self.args.format)?;
        let disk = end.disk.as_ref();
        let mut report = open_report(path).map_err(unusable)?;
        let found = self
            .run
            .shown("verify", |progress| {
                let (options, stop) = (&self.run.options, &self.run.stop);
                compare_with_report(&mut report, disk, self.share, options, progress, stop)
            })
            .map_err(|error| transfer_failure(error, ""))?;
        let names = [format!("the report of {}", about.name), disk.name().to_string()];
        let is_rounded = is_rounded_up(disk, about.size).map_err(|error| transfer_failure(error, ""))?;
        let sides = Sides { names, sizes: [about.size, disk.size()], is_rounded };
        Ok(self.judge(&sides, &found, Some(&about)))
    }

    fn open(&self, text: &str, format: Option<ToldFormat>) -> Result<End, Failure> {
        let named = source_named(text, format, &self.args.login, self.args.run.state.as_deref());
        let end = open_source(&NamedSource { past_cache: true, ..named })?;
        self.run.tell_notes(&end);
        Ok(end)
    }

    fn judge(&self, sides: &Sides, found: &Comparison, report: Option<&About>) -> Exit {
        let sizes_fit = sides.sizes[0] == sides.sizes[1] || sides.is_rounded || self.args.allow_longer;
        let equal = found.is_equal() && sizes_fit;
        if self.args.run.json {
            let mut done = as_json(sides, found, report, equal);
            done["signer"] = json!(self.signer);
            crate::out::json(done);
        } else {
            self.tell(sides, found, report, equal);
        }
        if equal { Exit::Success } else { Exit::Verification }
    }

    fn tell_about(&self, about: &About) {
        self.run.say(&format!(
            "report by {} of {}, {}, made {}",
            about.program,
            about.name,
            Bytes(about.size),
            drover_view::local_time(i64::try_from(about.made_at.saturating_mul(1000)).unwrap_or(i64::MAX))
        ));
    }

    fn tell(&self, sides: &Sides, found: &Comparison, report: Option<&About>, equal: bool) {
        if let Some(about) = report {
            self.tell_about(about);
        }
        let [first, second] = sides.sizes;
        if first != second {
            let [a, b] = &sides.names;
            let why = match sides.is_rounded {
                true => "rounded up to whole sectors of 512 bytes, with zeros behind",
                false => "what both have was compared",
            };
            self.run.say(&format!("{a} has {first} bytes, {b} has {second}: {why}"));
        }
        for span in found.spans.iter().take(PRINTED_SPANS_MAX) {
            self.run.say(&format!(
                "differ: bytes {} to {}, {}",
                span.offset,
                span.end() - 1,
                Bytes(span.length)
            ));
        }
        if found.spans.len() > PRINTED_SPANS_MAX {
            self.run
                .say(&format!("... and {} more spans; see --json", found.spans.len() - PRINTED_SPANS_MAX));
        }
        let compared = format!("{} of {} blocks compared", found.blocks, found.blocks_total);
        let verdict = if equal { "equal" } else { "NOT EQUAL" };
        let differing = match found.differing_blocks {
            0 => String::new(),
            count => format!(", {count} differ"),
        };
        self.run.say(&format!("{verdict}: {compared}{differing}"));
        if found.is_equal() && found.share != Share::Full {
            self.run.say(&escape_text(found.share));
        }
        if let Some(root) = found.first_root.filter(|_| equal) {
            self.run.say(&format!("root {root}"));
        }
    }
}

fn unusable(path: &Path, error: &ReportError) -> Failure {
    Failure::new(Exit::Source, format!("report {}: {}", path.display(), chain(error)))
}

fn open_report(path: &Path) -> Result<ReportReader<BufReader<File>>, ReportError> {
    ReportReader::open(BufReader::with_capacity(1 << 20, File::open(path)?))
}

/// What a sample proves: the chance that it found none of so many damaged blocks.
pub fn escape_text(share: Share) -> String {
    let chance = |damaged: u64| percent(share.miss_probability(damaged));
    format!(
        "a sample: 1 damaged block escapes with a chance of {}, 10 with {}, 100 with {}, 1000 with {}",
        chance(1),
        chance(10),
        chance(100),
        chance(1000)
    )
}

fn percent(chance: f64) -> String {
    match chance * 100.0 {
        share if share >= 0.1 || chance == 0.0 => format!("{share:.1} %"),
        share if share >= 1e-6 => format!("{share:.6} %"),
        _ => "less than 0.000001 %".to_string(),
    }
}

fn as_json(sides: &Sides, found: &Comparison, report: Option<&About>, equal: bool) -> serde_json::Value {
    let spans: Vec<_> =
        found.spans.iter().map(|span| json!({"offset": span.offset, "length": span.length})).collect();
    let share = match found.share {
        Share::Full => None,
        Share::Sampled { share, .. } => Some(share),
    };
    let seed = match found.share {
        Share::Full => None,
        Share::Sampled { seed, .. } => Some(seed),
    };
    let escapes: serde_json::Map<_, _> = [1u64, 10, 100, 1000]
        .iter()
        .map(|damaged| (damaged.to_string(), json!(found.share.miss_probability(*damaged))))
        .collect();
    let kept: u64 = found.spans.iter().map(|span| span.length.div_ceil(drover_types::BLOCK_BYTES)).sum();
    json!({
        "event": "done", "equal": equal, "names": sides.names, "sizes": sides.sizes,
        "rounded": sides.is_rounded,
        "blocks_compared": found.blocks, "blocks_total": found.blocks_total,
        "differing_blocks": found.differing_blocks, "spans": spans,
        "spans_complete": kept == found.differing_blocks,
        "roots": [found.first_root.map(|root| root.to_hex()), found.second_root.map(|root| root.to_hex())],
        "sample": share, "seed": seed, "escapes": escapes, "seconds": found.elapsed.as_secs_f64(),
        "report": report.map(|about| json!({
            "name": about.name, "identity": about.identity, "program": about.program, "made_at": about.made_at,
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_says_what_escapes_it() {
        let text = escape_text(Share::Sampled { share: 0.05, seed: 1 });
        assert_eq!(
            text,
            "a sample: 1 damaged block escapes with a chance of 95.0 %, 10 with 59.9 %, 100 with 0.6 %, \
             1000 with less than 0.000001 %"
        );
    }
}
