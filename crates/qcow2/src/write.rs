use std::sync::PoisonError;

use drover_disk::{Buffer, DiskError, DiskOp};
use drover_types::ByteSpan;

use crate::allocator::PACK_ALIGN;
use crate::codec::Packer;
use crate::entry::Entry;
use crate::host::Host;
use crate::image::{Image, at_guest, takes_parts};
use crate::read::Scratch;
use crate::tables::{Place, State};

/// Guest bytes that lie together in the file.
struct Run {
    guest: ByteSpan,
    host: u64,
}

/// What a write does: the runs, and the clusters the tables name only after it.
struct Plan {
    runs: Vec<Run>,
    publish: Vec<u64>,
}

/// Packed bytes of one request are laid out in pieces of about this, so that each finds room between two
/// refcount blocks (8 MiB with clusters of 4 KiB).
const PACK_BYTES: usize = 1 << 20;

impl Image {
    /// Writes `bytes` to `span`.
    ///
    /// # Errors
    /// When the file cannot take them. The span then holds old and new bytes, in any mixture.
    pub fn write(&self, span: ByteSpan, bytes: &[u8], scratch: &mut Scratch) -> Result<(), DiskError> {
        self.check_failed(DiskOp::Write, span)?;
        let written = match self.options.compress {
            true => self.write_packed(span, bytes, scratch),
            false => self.write_plain(span, bytes, scratch),
        };
        written.map_err(|error| at_guest(error, DiskOp::Write, span))?;
        self.flush_if_due()
    }

    /// Writes without packing.
    fn write_plain(&self, span: ByteSpan, bytes: &[u8], scratch: &mut Scratch) -> Result<(), DiskError> {
        {
            let _moving = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let mut state = self.state();
            let plan = plan(&mut state, &*self.host, span)?;
            let ahead = state.room_to_reserve();
            drop(state);
            if let Some(plan) = plan {
                self.reserve(ahead);
                return self.carry_out(span, bytes, &plan);
            }
        }
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.write_alone(span, bytes, scratch)
    }

    /// Sets room aside. Where that fails it is not tried again: writing tells what is wrong, if anything is.
    fn reserve(&self, span: Option<ByteSpan>) {
        if span.is_some_and(|span| self.host.reserve(span).is_err()) {
            self.state().reserved = u64::MAX;
        }
    }

    fn carry_out(&self, span: ByteSpan, bytes: &[u8], plan: &Plan) -> Result<(), DiskError> {
        let written = plan.runs.iter().try_for_each(|run| {
            let start = (run.guest.offset - span.offset) as usize;
            self.host.write(run.host, &bytes[start..start + run.guest.length as usize])
        });
        // After a failure, too: the clusters are taken, and what was not written reads as zeros.
        let published = match plan.publish.as_slice() {
            [] => Ok(()),
            clusters => self.state().publish(&*self.host, clusters),
        };
        written.and(published)
    }

    /// Writes cluster by cluster while nobody else writes: some clusters need their other bytes moved.
    pub fn write_alone(&self, span: ByteSpan, bytes: &[u8], scratch: &mut Scratch) -> Result<(), DiskError> {
        let clusters = self.state().clusters_of(span);
        for cluster in clusters {
            let whole = self.state().span_of(cluster);
            let part = whole.intersect(span).expect("a cluster of the span touches it");
            let start = (part.offset - span.offset) as usize;
            let piece = &bytes[start..start + part.length as usize];
            self.write_part_alone(cluster, part, piece, scratch)?;
        }
        Ok(())
    }

    fn write_part_alone(
        &self,
        cluster: u64,
        part: ByteSpan,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        let (place, whole) = {
            let mut state = self.state();
            (state.place(&*self.host, cluster)?, state.span_of(cluster))
        };
        if part != whole && !takes_parts(place) {
            let mut content = Buffer::zeroed(self.header.geometry.cluster_bytes() as usize);
            content.set_len(whole.length as usize);
            self.read_span(whole, &mut content, scratch)?;
            let at = (part.offset - whole.offset) as usize;
            content[at..at + bytes.len()].copy_from_slice(bytes);
            return self.write_part_alone(cluster, whole, &content, scratch);
        }
        let plan = plan(&mut self.state(), &*self.host, part)?;
        let plan = plan.expect("a whole cluster, or one that takes parts, can be written");
        self.carry_out(part, bytes, &plan)
    }

    /// Packs the whole clusters of a span; the rest is written as it is.
    fn write_packed(&self, span: ByteSpan, bytes: &[u8], scratch: &mut Scratch) -> Result<(), DiskError> {
        let geometry = self.header.geometry;
        let clusters = self.state().clusters_of(span);
        let mut batch = Batch::default();
        for cluster in clusters {
            let whole = self.state().span_of(cluster);
            let part = whole.intersect(span).expect("a cluster of the span touches it");
            let start = (part.offset - span.offset) as usize;
            let piece = &bytes[start..start + part.length as usize];
            let packed = match part == whole && self.may_pack(cluster)? {
                true => self.pack(piece, scratch)?,
                false => None,
            };
            match packed {
                Some(packed) => batch.push(cluster, packed),
                None => self.write_plain(part, piece, scratch)?,
            }
            if batch.bytes.len() + geometry.cluster_bytes() as usize > PACK_BYTES {
                self.store_batch(&mut batch)?;
            }
        }
        self.store_batch(&mut batch)
    }

    /// Whether a cluster has no host cluster of its own, in which it is better overwritten.
    fn may_pack(&self, cluster: u64) -> Result<bool, DiskError> {
        let place = self.state().place(&*self.host, cluster)?;
        Ok(matches!(place, Place::Settled(Entry::Absent | Entry::Zero(None) | Entry::Packed(_))))
    }

    /// Packs a cluster; `None` if that does not make it smaller.
    fn pack<'a>(&self, piece: &[u8], scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DiskError> {
        let cluster_bytes = self.header.geometry.cluster_bytes() as usize;
        let Scratch { cluster, packed, packer, .. } = scratch;
        let packer = match packer {
            Some(packer) => packer,
            None => {
                let made = Packer::new(self.header.compression);
                packer.insert(made.map_err(|source| self.error(DiskOp::Write, source))?)
            }
        };
        let whole = if piece.len() == cluster_bytes {
            piece
        } else {
            // The disk's last cluster: packed clusters are whole.
            cluster.resize(cluster_bytes, 0);
            cluster.fill(0);
            cluster[..piece.len()].copy_from_slice(piece);
            cluster.as_slice()
        };
        Ok(packer.pack(whole, packed))
    }

    fn store_batch(&self, batch: &mut Batch) -> Result<(), DiskError> {
        if batch.clusters.is_empty() {
            return Ok(());
        }
        let _moving = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let at = self.state().place_batch(&*self.host, batch)?;
        let mut buffer = Buffer::zeroed(batch.bytes.len().next_multiple_of(PACK_ALIGN as usize));
        buffer[..batch.bytes.len()].copy_from_slice(&batch.bytes);
        let written = self.host.write(at, &buffer);
        let mut state = self.state();
        let done = match written {
            Ok(()) => state.publish_batch(&*self.host, batch, at),
            // Nothing names those bytes: what was counted for them is given back after the next flush.
            Err(error) => {
                state.frees.extend(batch.spans(at));
                Err(error)
            }
        };
        batch.clear();
        done
    }

    fn error(&self, op: DiskOp, source: std::io::Error) -> DiskError {
        DiskError::new(op, ByteSpan::new(0, 0), self.host.name(), source)
    }
}

/// Packed clusters that are written together.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Guest cluster, and its place in `bytes`.
    clusters: Vec<(u64, ByteSpan)>,
}

impl Batch {
    fn push(&mut self, cluster: u64, packed: &[u8]) {
        self.clusters.push((cluster, ByteSpan::new(self.bytes.len() as u64, packed.len() as u64)));
        self.bytes.extend_from_slice(packed);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.clusters.clear();
    }

    /// Where its clusters lie in the file if it starts at `at`.
    fn spans(&self, at: u64) -> impl Iterator<Item = ByteSpan> {
        self.clusters.iter().map(move |(_, within)| ByteSpan::new(at + within.offset, within.length))
    }
}

impl State {
    fn place_batch(&mut self, host: &dyn Host, batch: &Batch) -> Result<u64, DiskError> {
        for (cluster, _) in &batch.clusters {
            self.ensure_table(host, *cluster)?;
        }
        let at = self.allocate_packed(host, batch.bytes.len() as u64)?;
        batch.spans(at).try_for_each(|span| self.count_packed(host, span))?;
        Ok(at)
    }

    /// Has the tables name a batch. What they cannot name is given back.
    fn publish_batch(&mut self, host: &dyn Host, batch: &Batch, at: u64) -> Result<(), DiskError> {
        let mut done = Ok(());
        for ((cluster, _), span) in batch.clusters.iter().zip(batch.spans(at)) {
            done = done.and_then(|()| self.ensure_table(host, *cluster));
            match done {
                Ok(()) => self.set(*cluster, Entry::Packed(span)),
                Err(_) => self.frees.push(span),
            }
        }
        done
    }
}

/// Chooses places for the clusters of `span`. `None` if one of them cannot be written in a part.
fn plan(state: &mut State, host: &dyn Host, span: ByteSpan) -> Result<Option<Plan>, DiskError> {
    let mut places = Vec::new();
    for cluster in state.clusters_of(span) {
        let place = state.place(host, cluster)?;
        if !span.contains(state.span_of(cluster)) && !takes_parts(place) {
            return Ok(None);
        }
        if !matches!(place, Place::Settled(Entry::Data(_))) {
            state.ensure_table(host, cluster)?;
        }
        places.push((cluster, place));
    }
    let mut plan = Plan { runs: Vec::new(), publish: Vec::new() };
    let chosen = choose(state, host, span, &places, &mut plan);
    if let Err(error) = chosen {
        // What was taken must be named, or it would leak: it reads as zeros.
        state.publish(host, &plan.publish)?;
        return Err(error);
    }
    Ok(Some(plan))
}

fn choose(
    state: &mut State,
    host: &dyn Host,
    span: ByteSpan,
    places: &[(u64, Place)],
    plan: &mut Plan,
) -> Result<(), DiskError> {
    let bits = state.geometry.cluster_bits;
    let mut fresh = 0..0;
    for (index, (cluster, place)) in places.iter().enumerate() {
        let at = match place {
            Place::Settled(Entry::Data(at)) => *at,
            Place::Pending(at) | Place::Settled(Entry::Zero(Some(at))) => {
                plan.publish.push(*cluster);
                *at
            }
            Place::Settled(Entry::Absent | Entry::Zero(None) | Entry::Packed(_)) => {
                if fresh.is_empty() {
                    let wanted = places[index..].iter().take_while(|(_, place)| needs_room(*place)).count();
                    fresh = state.allocate(host, wanted as u64)?;
                }
                let taken = fresh.start;
                fresh.start += 1;
                plan.publish.push(*cluster);
                taken << bits
            }
        };
        if !matches!(place, Place::Settled(Entry::Data(_))) {
            state.pending.insert(*cluster, at);
        }
        let guest = state.span_of(*cluster).intersect(span).expect("a cluster of the span touches it");
        plan.push(Run { guest, host: at + (guest.offset - (cluster << bits)) });
    }
    Ok(())
}

fn needs_room(place: Place) -> bool {
    matches!(place, Place::Settled(Entry::Absent | Entry::Zero(None) | Entry::Packed(_)))
}

impl Plan {
    fn push(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.host + last.guest.length == run.host => last.guest.length += run.guest.length,
            _ => self.runs.push(run),
        }
    }
}
