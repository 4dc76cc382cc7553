//! What the store keeps of plans, VMs, disks and events, and how it is read.

use std::path::PathBuf;

use drover_plan::TargetHost;
use rusqlite::Row;
use serde::{Deserialize, Serialize};

/// State of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanState {
    /// A process runs it, or was running it when it died.
    Running,
    /// Every VM arrived.
    Done,
    /// Some VM failed or was not begun.
    Incomplete,
    /// Given up by the user; nothing is left behind.
    Cancelled,
}

/// State of a VM in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// Not begun.
    Queued,
    /// In a phase, or was when the process died.
    Running,
    /// Arrived.
    Done,
    /// At the target as the plan asks, with its source off; the clean-up at the source failed, and is all that a resume does.
    NotCleanedUp,
    /// Ended with an error; can be resumed.
    Failed,
    /// Stopped by the user; can be resumed.
    Stopped,
    /// Left out, because a hook said so; its source is untouched, and a resume asks again.
    Skipped,
    /// Given up.
    Cancelled,
}

impl VmState {
    /// All of them, from the begin of a migration to its ends.
    pub const ALL: [VmState; 8] = [
        VmState::Queued,
        VmState::Running,
        VmState::Done,
        VmState::NotCleanedUp,
        VmState::Failed,
        VmState::Stopped,
        VmState::Skipped,
        VmState::Cancelled,
    ];

    /// Its word in the store, in JSON and on the command line.
    pub fn word(self) -> &'static str {
        match self {
            VmState::Queued => "queued",
            VmState::Running => "running",
            VmState::Done => "done",
            VmState::NotCleanedUp => "not_cleaned_up",
            VmState::Failed => "failed",
            VmState::Stopped => "stopped",
            VmState::Skipped => "skipped",
            VmState::Cancelled => "cancelled",
        }
    }

    /// Whether it is at the target to stay.
    pub fn has_arrived(self) -> bool {
        matches!(self, VmState::Done | VmState::NotCleanedUp)
    }
}

/// A plan in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRow {
    /// Name.
    pub name: String,
    /// Text of the plan file.
    #[serde(skip)]
    pub text: String,
    /// Folder the file lay in; paths in the plan are relative to it.
    pub folder: PathBuf,
    /// State.
    pub state: PlanState,
    /// Process that runs it.
    pub pid: Option<u32>,
    /// Begin, in milliseconds since 1970.
    pub started_ms: i64,
    /// End.
    pub ended_ms: Option<i64>,
}

/// A VM in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmRow {
    /// The source's id.
    pub id: String,
    /// Name at the target.
    pub name: String,
    /// Tells this migration of it from all others, over all runs until it is given up: 32 hexadecimal digits, as OpenTelemetry has
    /// them.
    pub trace_id: String,
    /// The site that it goes to; absent for this machine.
    pub site: Option<String>,
    /// The host among several of the target that it goes to, and why.
    pub target_host: Option<TargetHost>,
    /// Its wave, where the plan has waves.
    pub wave: Option<String>,
    /// State.
    pub state: VmState,
    /// Phase it is in or ended in.
    pub phase: Option<String>,
    /// The planned VM as JSON.
    #[serde(skip)]
    pub planned: String,
    /// Snapshot that drover made and has not removed.
    pub snapshot: Option<String>,
    /// Whether drover switched it off.
    pub switched_off: bool,
    /// Whether a conversion or a start was tried, which may change the images.
    pub touched: bool,
    /// What the start phase said.
    pub started: Option<String>,
    /// Error and its reasons.
    pub error: Option<String>,
    /// Cause of the error.
    pub cause: Option<String>,
    /// What to try.
    pub advice: Option<String>,
    /// Begin.
    pub started_ms: Option<i64>,
    /// End.
    pub ended_ms: Option<i64>,
}

impl VmRow {
    /// Whether a run did anything with it that was not given up since.
    pub(crate) fn is_begun(&self) -> bool {
        let was_touched = self.phase.is_some() || self.switched_off || self.snapshot.is_some();
        self.state != VmState::Cancelled && (was_touched || self.state.has_arrived())
    }
}

/// A disk in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskRow {
    /// VM's id.
    pub vm: String,
    /// Position in the VM.
    pub number: usize,
    /// Label at the source.
    pub label: String,
    /// Image.
    pub path: PathBuf,
    /// Capacity in bytes.
    pub size: u64,
    /// Bytes that are not zero, to a multiple of 64 KiB.
    pub data_bytes: Option<u64>,
    /// Bytes read by the last copy: of a warm VM, its last pass.
    pub read_bytes: Option<u64>,
    /// Bytes written by the last copy.
    pub written_bytes: Option<u64>,
    /// Bytes that earlier copies had done, holes among them.
    pub resumed_bytes: Option<u64>,
    /// Failures that were tried again.
    pub retries: Option<u64>,
    /// Root of what was read.
    pub root: Option<String>,
    /// Root of what the target holds.
    pub target_root: Option<String>,
    /// Blocks compared.
    pub blocks_verified: Option<u64>,
    /// Blocks in all.
    pub blocks: Option<u64>,
    /// Differing blocks.
    pub differing: Option<u64>,
    /// Milliseconds of the last copy.
    pub copy_ms: Option<u64>,
    /// Milliseconds of the verification.
    pub verify_ms: Option<u64>,
    /// Where the time went, as JSON.
    pub attribution: Option<String>,
    /// Notes.
    pub note: Option<String>,
    /// What went over the link to its site in all runs, as JSON.
    pub link: Option<String>,
    /// Bytes read by all copies that came to an end, well or not; absent if an earlier drover made them.
    #[serde(default)]
    pub read_bytes_all: Option<u64>,
    /// Bytes written by them.
    #[serde(default)]
    pub written_bytes_all: Option<u64>,
}

impl DiskRow {
    /// Bytes read by all copies, as far as they are known.
    pub fn read_in_all(&self) -> u64 {
        self.read_bytes_all.or(self.read_bytes).unwrap_or(0)
    }

    /// Bytes written by all copies, as far as they are known.
    pub fn written_in_all(&self) -> u64 {
        self.written_bytes_all.or(self.written_bytes).unwrap_or(0)
    }

    /// The row with what one more copy moved.
    pub(crate) fn plus_moved(self, read: u64, written: u64) -> DiskRow {
        DiskRow {
            read_bytes_all: Some(self.read_in_all().saturating_add(read)),
            written_bytes_all: Some(self.written_in_all().saturating_add(written)),
            ..self
        }
    }
}

/// An event in the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventRow {
    /// When.
    pub at_ms: i64,
    /// VM.
    pub vm: Option<String>,
    /// Phase.
    pub phase: Option<String>,
    /// `started`, `ended`, `note`, `hook`, `error`, `waits`, `wave`, `anew`, `retry`, `given_up`.
    pub kind: String,
    /// Text.
    pub text: String,
}

/// The word an enum has in the store, which is the one serde gives it.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        other => unreachable!("states are words, not {other:?}"),
    }
}

pub(super) fn state<T: for<'de> Deserialize<'de>>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_value(serde_json::Value::String(text)).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error.into())
    })
}

pub(super) fn unsigned(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(|value| value.max(0) as u64))
}

pub(super) fn plan_row(row: &Row<'_>) -> rusqlite::Result<PlanRow> {
    Ok(PlanRow {
        name: row.get("name")?,
        text: row.get("text")?,
        folder: PathBuf::from(row.get::<_, String>("folder")?),
        state: state(row, "state")?,
        pid: row.get("pid")?,
        started_ms: row.get("started_ms")?,
        ended_ms: row.get("ended_ms")?,
    })
}

pub(super) fn vm_row(row: &Row<'_>) -> rusqlite::Result<VmRow> {
    let planned: String = row.get("planned")?;
    let place = place_of(&planned);
    Ok(VmRow {
        id: row.get("id")?,
        name: row.get("name")?,
        trace_id: row.get("trace_id")?,
        site: place.site,
        target_host: place.target_host,
        wave: place.wave,
        state: state(row, "state")?,
        phase: row.get("phase")?,
        planned,
        snapshot: row.get("snapshot")?,
        switched_off: row.get("switched_off")?,
        touched: row.get("touched")?,
        started: row.get("started")?,
        error: row.get("error")?,
        cause: row.get("cause")?,
        advice: row.get("advice")?,
        started_ms: row.get("started_ms")?,
        ended_ms: row.get("ended_ms")?,
    })
}

/// Of a planned VM only where and in which wave it goes, which those of an earlier drover do not have.
#[derive(Default, Deserialize)]
struct Place {
    site: Option<String>,
    target_host: Option<TargetHost>,
    wave: Option<String>,
}

fn place_of(planned: &str) -> Place {
    serde_json::from_str(planned).unwrap_or_default()
}

pub(super) fn event_row(row: &Row<'_>) -> rusqlite::Result<EventRow> {
    Ok(EventRow {
        at_ms: row.get("at_ms")?,
        vm: row.get("vm")?,
        phase: row.get("phase")?,
        kind: row.get("kind")?,
        text: row.get("text")?,
    })
}

pub(super) fn disk_row(row: &Row<'_>) -> rusqlite::Result<DiskRow> {
    Ok(DiskRow {
        vm: row.get("vm")?,
        number: unsigned(row, "number")?.unwrap_or(0) as usize,
        label: row.get("label")?,
        path: PathBuf::from(row.get::<_, String>("path")?),
        size: unsigned(row, "size")?.unwrap_or(0),
        data_bytes: unsigned(row, "data_bytes")?,
        read_bytes: unsigned(row, "read_bytes")?,
        written_bytes: unsigned(row, "written_bytes")?,
        resumed_bytes: unsigned(row, "resumed_bytes")?,
        retries: unsigned(row, "retries")?,
        root: row.get("root")?,
        target_root: row.get("target_root")?,
        blocks_verified: unsigned(row, "blocks_verified")?,
        blocks: unsigned(row, "blocks")?,
        differing: unsigned(row, "differing")?,
        copy_ms: unsigned(row, "copy_ms")?,
        verify_ms: unsigned(row, "verify_ms")?,
        attribution: row.get("attribution")?,
        note: row.get("note")?,
        link: row.get("link")?,
        read_bytes_all: unsigned(row, "read_bytes_all")?,
        written_bytes_all: unsigned(row, "written_bytes_all")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_one_word_in_the_store_and_in_json() {
        for state in VmState::ALL {
            assert_eq!(serde_json::to_value(state).ok(), Some(state.word().into()));
        }
    }
}
