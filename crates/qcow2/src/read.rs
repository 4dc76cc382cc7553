use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_types::ByteSpan;

use crate::codec::{Packer, unpack};
use crate::entry::Entry;
use crate::image::{Image, at_guest};
use crate::tables::Place;

/// Memory that a lane uses again and again.
#[derive(Default)]
pub struct Scratch {
    pub cluster: Vec<u8>,
    pub packed: Vec<u8>,
    pub packer: Option<Packer>,
}

/// Where a part of a read comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Zeros,
    Host(u64),
    Packed { span: ByteSpan, skip: u64 },
}

impl Image {
    /// Fills `bytes` from `span`.
    ///
    /// # Errors
    /// When the file cannot be read, or a packed cluster is damaged.
    pub fn read(&self, span: ByteSpan, bytes: &mut [u8], scratch: &mut Scratch) -> Result<(), DiskError> {
        self.read_span(span, bytes, scratch).map_err(|error| at_guest(error, DiskOp::Read, span))
    }

    pub fn read_span(
        &self,
        span: ByteSpan,
        bytes: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), DiskError> {
        for (part, from) in self.sources(span)? {
            let start = (part.offset - span.offset) as usize;
            let piece = &mut bytes[start..start + part.length as usize];
            match from {
                From::Zeros => piece.fill(0),
                From::Host(at) => self.host.read(at, piece)?,
                From::Packed { span, skip } => {
                    self.unpack(span, scratch)?;
                    let skip = skip as usize;
                    piece.copy_from_slice(&scratch.cluster[skip..skip + piece.len()]);
                }
            }
        }
        Ok(())
    }

    fn sources(&self, span: ByteSpan) -> Result<Vec<(ByteSpan, From)>, DiskError> {
        let mut state = self.state();
        let mut sources: Vec<(ByteSpan, From)> = Vec::new();
        for cluster in state.clusters_of(span) {
            let whole = state.span_of(cluster);
            let part = whole.intersect(span).expect("a cluster of the span touches it");
            let skip = part.offset - whole.offset;
            let from = match state.place(&*self.host, cluster)? {
                Place::Settled(Entry::Absent | Entry::Zero(_)) => From::Zeros,
                Place::Settled(Entry::Data(at)) | Place::Pending(at) => From::Host(at + skip),
                Place::Settled(Entry::Packed(span)) => From::Packed { span, skip },
            };
            match (sources.last_mut(), from) {
                (Some((last, From::Zeros)), From::Zeros) => last.length += part.length,
                (Some((last, From::Host(at))), From::Host(next)) if *at + last.length == next => {
                    last.length += part.length;
                }
                _ => sources.push((part, from)),
            }
        }
        Ok(sources)
    }

    /// Unpacks a cluster into the scratch.
    fn unpack(&self, span: ByteSpan, scratch: &mut Scratch) -> Result<(), DiskError> {
        scratch.packed.resize(span.length as usize, 0);
        self.host.read(span.offset, &mut scratch.packed)?;
        scratch.cluster.resize(self.header.geometry.cluster_bytes() as usize, 0);
        unpack(self.header.compression, &scratch.packed, &mut scratch.cluster).map_err(|source| {
            DiskError::with_kind(DiskErrorKind::Corrupt, DiskOp::Read, span, self.host.name(), source)
        })
    }
}
