//! A disk that goes to a target which takes it once, in order, and gives nothing back.

use std::sync::Arc;
use std::time::Duration;

use drover_disk::{Disk, read_span};
use drover_mover::{
    CopyReport, MoveError, Progress, StopSignal, Uploaded, record_upload, upload, was_uploaded,
};
use drover_plan::PlannedDisk;
use drover_types::ByteSpan;

use super::{Copied, Journey, Outcome};
use crate::error::{Cause, EngineError};
use crate::event::DiskActivity;
use crate::provider::{LateNotes, OneWay, Upload, all_notes};

/// How often a disk is sent from its first byte, where a connection breaks: the guest is down meanwhile.
const TRIES: usize = 3;
/// What targets look at to tell images of disks apart.
const FIRST_BYTES: u64 = 4096;

impl Journey<'_> {
    /// Sends a disk, unless the target has it already as it is now.
    pub(super) fn send_disk(
        &self,
        disk: &PlannedDisk,
        source: Arc<dyn Disk>,
        (notes, late): (Vec<String>, Option<LateNotes>),
        stop: &StopSignal,
    ) -> Outcome<Copied> {
        let target = self.context.target.one_way(disk, self.planned);
        let target = target.inspect_err(|error| self.keep_refusal(Some(disk), error))?;
        let label = &disk.disk.label;
        let live = self.enter(disk, DiskActivity::Copy);
        let reads = self.slots.reads(self.place_of(disk), &live);
        let result = self.sent(disk, source.as_ref(), target.as_ref(), &live, stop);
        drop(reads);
        self.context.board.leave(&live);
        if result.is_err() {
            self.keep_begun(disk, &live.snapshot())?;
        }
        let (Uploaded { leaves, elapsed }, note) = result?;
        let notes = all_notes(notes, late);
        // The source's disk is closed before its slot goes to another.
        drop(source);
        self.finish_disk(disk);
        let root = leaves.root().expect("what was sent whole has a root");
        let way = format!("{}; the root is of what was sent, nothing was read back", target.way());
        self.note(format!("{label}: {way}"));
        let notes: Vec<String> = notes.into_iter().chain([way]).collect();
        let (snapshot, pass) = (live.snapshot(), None);
        let report = CopyReport { root, leaves, snapshot, elapsed, note, pass };
        self.keep_copy(disk, &report, &notes)?;
        self.tell_copied(disk, &report, None);
        Ok(Copied {
            root: root.to_hex(),
            read_anything: report.snapshot.settled > 0,
            read_bytes: report.snapshot.read,
            pass: None,
            leaves: report.leaves,
        })
    }

    fn sent(
        &self,
        disk: &PlannedDisk,
        source: &dyn Disk,
        target: &dyn OneWay,
        live: &Progress,
        stop: &StopSignal,
    ) -> Outcome<(Uploaded, Option<String>)> {
        let journal = self.context.target.journal(disk, self.planned);
        let identity = source.identity();
        let found = target.tag()?.and_then(|tag| was_uploaded(&journal, &identity, &tag));
        if let Some(leaves) = found {
            live.tell_known(leaves.size());
            let note = Some("resumed: all of it was sent before".to_string());
            return Ok((Uploaded { leaves, elapsed: Duration::ZERO }, note));
        }
        let first = self.first_bytes(disk, source)?;
        for number in 1.. {
            if stop.is_set() {
                return Err(EngineError::Cancelled);
            }
            let begun = target.begin(&first, source.size());
            let (tag, mut sink) = match begun {
                Err(error) if error.cause == Cause::Cancelled => return Err(EngineError::Cancelled),
                begun => begun.inspect_err(|error| self.keep_refusal(Some(disk), error))?,
            };
            let uploaded = match self.send_into(disk, source, sink.as_mut(), live, stop) {
                Err(error) if stop.is_set() || error.cause() == Cause::Cancelled => {
                    return Err(EngineError::Cancelled);
                }
                Err(error) if number < TRIES && error.cause() == Cause::Connection => {
                    let (label, why) = (&disk.disk.label, error.chain());
                    self.note(format!("{label}: {why}; it is sent again, from its first byte"));
                    continue;
                }
                sent => sent?,
            };
            let owner = self.planned.owner_of(self.context.plan, disk);
            record_upload(&journal, &identity, &tag, &owner, &uploaded.leaves)
                .map_err(|error| self.send_error(disk, error.into()))?;
            return Ok((uploaded, None));
        }
        unreachable!("the last try gives its end")
    }

    fn send_into(
        &self,
        disk: &PlannedDisk,
        source: &dyn Disk,
        sink: &mut dyn Upload,
        live: &Progress,
        stop: &StopSignal,
    ) -> Outcome<Uploaded> {
        let uploaded =
            upload(source, &mut &mut *sink, self.context.options, live, stop).map_err(|error| {
                let failure = sink.failure();
                let failure = failure.inspect(|failure| self.keep_refusal(Some(disk), failure));
                failure.map_or_else(|| self.send_error(disk, error), EngineError::from)
            })?;
        sink.finish().inspect_err(|error| self.keep_refusal(Some(disk), error))?;
        Ok(uploaded)
    }

    /// Targets that tell images of disks by how they begin have to be given the beginning first.
    fn first_bytes(&self, disk: &PlannedDisk, source: &dyn Disk) -> Outcome<Vec<u8>> {
        let unit = source.limits().bytes_min;
        let length = FIRST_BYTES.next_multiple_of(unit.max(1)).min(source.size());
        let read = |length| read_span(source.open_lane()?.as_mut(), ByteSpan::new(0, length));
        let bytes = if length == 0 { Ok(Vec::new()) } else { read(length).map(|bytes| bytes.to_vec()) };
        bytes.map_err(|error| self.send_error(disk, error.into()))
    }

    fn send_error(&self, disk: &PlannedDisk, source: MoveError) -> EngineError {
        let side = match &source {
            MoveError::Disk(_) | MoveError::Resized { .. } => Cause::Source,
            MoveError::Cancelled => Cause::Cancelled,
            MoveError::Journal(_) | MoveError::TooSmall { .. } | MoveError::Other { .. } => Cause::Target,
        };
        self.keep_copy_fault(disk, &source, side);
        EngineError::Copy { disk: format!("{}/{}", self.planned.target_name, disk.disk.label), source, side }
    }
}
