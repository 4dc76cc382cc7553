//! What is kept of a move for its report, and the file it is written to.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use drover_live::{Event, Moment, Moved, Phase, Where, parts, stood_at_source};
use drover_qemu::live::LiveError;
use drover_view::{LiveAsked, LiveOutcome, LiveReal, LiveReport, live_report_html, live_report_json};
use serde_json::Value;

use super::{millis, place};
use crate::cli::{AllowArg, DisksArg, LiveArgs};
use crate::exit::{Exit, Failure};

/// A report that grows while the guest moves.
pub struct Record {
    path: PathBuf,
    began: Instant,
    report: LiveReport,
}

impl Record {
    /// Begins one, if it is wanted: looks whether it can be written, so that it does not show after the move.
    pub fn begin(args: &LiveArgs) -> Result<Option<Record>, Failure> {
        let Some(path) = &args.report else { return Ok(None) };
        fits(path)?;
        Ok(Some(Record::new(args, path.clone())))
    }

    /// Begins one that is to be written there.
    pub fn new(args: &LiveArgs, path: PathBuf) -> Record {
        let mut report = LiveReport::default();
        report.began_ms = now_ms();
        report.source = args.source.display().to_string();
        report.target = args.to.display().to_string();
        report.site.clone_from(&args.via);
        report.asked = asked(args);
        Record { path, began: Instant::now(), report }
    }

    /// The report, with what the move ended in.
    pub fn ended(mut self, failure: Option<&Failure>) -> LiveReport {
        self.report.ended_ms = now_ms();
        if let Some(failure) = failure {
            self.told(failure);
        }
        self.report
    }

    /// Takes in what happened.
    pub fn take(&mut self, event: &Event) {
        self.report.take(self.began.elapsed().as_secs_f64(), event);
    }

    /// The guest runs at the target.
    pub fn moved(&mut self, moved: &Moved, source: &[Moment], target: &[Moment]) {
        self.report.outcome = LiveOutcome::Moved(real(moved));
        self.report.downtime_parts = parts(source, target);
    }

    /// What went over the link, however it ended.
    pub fn went_over(&mut self, link: Value) {
        self.report.link = Some(link);
    }

    /// It did not move, or not as it should.
    pub fn failed(&mut self, error: &LiveError, source: &[Moment]) {
        let began = self.report.samples.iter().any(|told| Phase::of(&told.status) != Phase::Setup);
        let stood = stood_at_source(source).filter(|_| began);
        self.report.outcome = LiveOutcome::Failed {
            message: error.to_string(),
            advice: None,
            guest_at: Some(place(&error.guest_at).into()),
            stood_at_source_ms: stood.map(|time| time.as_secs_f64() * 1000.0),
        };
    }

    /// It was not begun, and is there.
    pub fn refused(&mut self, message: &str, guest_at: &Where) {
        self.report.outcome = LiveOutcome::Failed {
            message: message.to_string(),
            advice: None,
            guest_at: Some(place(guest_at).into()),
            stood_at_source_ms: None,
        };
    }

    /// Writes it, with what the command ends in; a failure that comes on top of one is told beside it.
    pub fn write(mut self, ended: Result<Exit, Failure>) -> Result<Exit, Failure> {
        self.report.ended_ms = now_ms();
        if let Err(failure) = &ended {
            self.told(failure);
        }
        let text = match self.path.extension().is_some_and(|it| it == "html") {
            true => live_report_html(&self.report),
            false => format!("{:#}\n", live_report_json(&self.report)),
        };
        let Err(error) = put(&self.path, text.as_bytes()) else { return ended };
        let text = format!("the report {} could not be written: {error}", self.path.display());
        match (ended, &self.report.outcome) {
            (Ok(_), LiveOutcome::Moved(_)) => {
                Err(Failure::new(Exit::Internal, format!("the guest runs at the target; {text}")))
            }
            (Ok(_), LiveOutcome::Looked | LiveOutcome::Failed { .. }) => {
                Err(Failure::new(Exit::Internal, text))
            }
            (Err(failure), _) => {
                let message = format!("{}; {text}", failure.message);
                Err(Failure { message, ..failure })
            }
        }
    }

    /// What the user is told. A failure before both sides were looked at has no other words.
    fn told(&mut self, failure: &Failure) {
        match &mut self.report.outcome {
            LiveOutcome::Failed { advice, .. } => advice.clone_from(&failure.advice),
            LiveOutcome::Looked => {
                self.report.outcome = LiveOutcome::Failed {
                    message: failure.message.clone(),
                    advice: failure.advice.clone(),
                    guest_at: None,
                    stood_at_source_ms: None,
                };
            }
            // It moved; what came after is not the guest's affair.
            LiveOutcome::Moved(_) => {}
        }
    }
}

/// Looks whether a report can be written there, so that it does not show after the move.
pub fn fits(path: &Path) -> Result<(), Failure> {
    let unfit = |why: String| Failure::new(Exit::Usage, format!("--report {}: {why}", path.display()));
    // What is put in its place would take a device or a folder away.
    if path.symlink_metadata().is_ok_and(|there| !there.is_file()) {
        return Err(unfit("what is there is no plain file".into()));
    }
    fresh(path).map(drop).map_err(|error| unfit(error.to_string()))
}

/// What a move really took.
pub fn real(moved: &Moved) -> LiveReal {
    LiveReal {
        total_s: moved.total.as_secs_f64(),
        downtime_ms_by_qemu: moved.downtime_by_qemu.map(millis),
        downtime_ms: moved.stood_still.map(millis),
        sent_bytes: moved.last.sample.sent_bytes,
        passes: moved.last.sample.passes,
    }
}

/// What was asked for.
pub fn asked(args: &LiveArgs) -> LiveAsked {
    let word = |allow: &AllowArg| match allow {
        AllowArg::Throttle => "throttle".to_string(),
        AllowArg::Postcopy => "postcopy".to_string(),
    };
    LiveAsked {
        downtime_ms: millis(args.downtime),
        deadline_s: args.deadline.as_secs_f64(),
        disks: match args.disks {
            DisksArg::Shared => "shared".into(),
            DisksArg::Mirror => "mirror".into(),
        },
        allowed: args.allow.iter().map(word).collect(),
        channels: args.channels,
        line_bits_per_s: args.line.map(|rate| rate.bits_per_s()),
        rate_max_bits_per_s: args.rate_max.map(|rate| rate.bits_per_s()),
    }
}

pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A new file beside the one that it will replace, readable by whom the user's mask lets.
fn fresh(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(".drover-report-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
}

/// Puts a whole file in the place of an older one, or leaves that.
pub fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fresh(path)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
