use std::sync::PoisonError;

use drover_disk::{DiskError, DiskOp};
use drover_types::ByteSpan;

use crate::entry::Entry;
use crate::image::{Image, at_guest};
use crate::read::Scratch;
use crate::tables::Place;

/// Clusters looked at while the tables are held, so that writers of other lanes get their turn.
const CLUSTERS_AT_A_TIME: u64 = 4096;

impl Image {
    /// Makes `span` read as zeros. On clusters that were never written that costs nothing.
    ///
    /// # Errors
    /// When the file cannot do it.
    pub fn zero(&self, span: ByteSpan, scratch: &mut Scratch) -> Result<(), DiskError> {
        self.check_failed(DiskOp::Zero, span)?;
        let state = self.state();
        let clusters = state.clusters_of(span);
        let is_part = |cluster| !span.contains(state.span_of(cluster));
        // Head and tail, which may be one and the same.
        let mut parts: Vec<u64> =
            [clusters.start, clusters.end - 1].into_iter().filter(|it| is_part(*it)).collect();
        parts.dedup();
        let first = clusters.start + u64::from(parts.contains(&clusters.start));
        let end = clusters.end - u64::from(parts.contains(&(clusters.end - 1)));
        let parts: Vec<ByteSpan> =
            parts.iter().filter_map(|cluster| state.span_of(*cluster).intersect(span)).collect();
        drop(state);
        let done = parts
            .into_iter()
            .try_for_each(|part| self.zero_part(part, scratch))
            .and_then(|()| self.zero_whole(first, end));
        done.map_err(|error| at_guest(error, DiskOp::Zero, span))?;
        self.flush_if_due()
    }

    /// Zeroes a part of a cluster.
    fn zero_part(&self, part: ByteSpan, scratch: &mut Scratch) -> Result<(), DiskError> {
        {
            let _moving = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let mut state = self.state();
            let cluster = state.clusters_of(part).start;
            let skip = part.offset - state.span_of(cluster).offset;
            match state.place(&*self.host, cluster)? {
                Place::Settled(Entry::Absent | Entry::Zero(_)) => return Ok(()),
                Place::Settled(Entry::Data(at)) | Place::Pending(at) => {
                    drop(state);
                    return self.host.zero(ByteSpan::new(at + skip, part.length));
                }
                Place::Settled(Entry::Packed(_)) => {}
            }
        }
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.write_alone(part, &vec![0; part.length as usize], scratch)
    }

    /// Zeroes whole clusters.
    fn zero_whole(&self, first: u64, end: u64) -> Result<(), DiskError> {
        let mut cluster = first;
        while cluster < end {
            let _moving = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let (next, room) = self.zero_some(cluster, end)?;
            for span in room {
                // The tables say zero already; this only gives room back.
                self.host.zero(span)?;
            }
            cluster = next;
        }
        Ok(())
    }

    /// Says in the tables that clusters are zero; gives where to go on and the host bytes that hold nothing now.
    fn zero_some(&self, first: u64, end: u64) -> Result<(u64, Vec<ByteSpan>), DiskError> {
        let mut state = self.state();
        let cluster_bytes = self.header.geometry.cluster_bytes();
        let mut room: Vec<ByteSpan> = Vec::new();
        let mut cluster = first;
        let stop = end.min(first.saturating_add(CLUSTERS_AT_A_TIME));
        while cluster < stop {
            if let Some(next) = state.skip_absent_table(cluster).filter(|_| state.pending.is_empty()) {
                cluster = next;
                continue;
            }
            let entry = match state.place(&*self.host, cluster)? {
                Place::Pending(at) | Place::Settled(Entry::Data(at)) => {
                    match room.last_mut() {
                        _ if !self.options.punches() => {}
                        Some(last) if last.end() == at => last.length += cluster_bytes,
                        _ => room.push(ByteSpan::new(at, cluster_bytes)),
                    }
                    Some(Entry::Zero(Some(at)))
                }
                Place::Settled(Entry::Packed(_)) => Some(Entry::Absent),
                Place::Settled(Entry::Absent | Entry::Zero(_)) => None,
            };
            if let Some(entry) = entry {
                state.ensure_table(&*self.host, cluster)?;
                state.pending.remove(&cluster);
                state.set(cluster, entry);
            }
            cluster += 1;
        }
        Ok((cluster.min(end), room))
    }
}
