//! Requests in flight, and what of them has come.

use std::io;
use std::ops::Range;

use drover_disk::{DiskErrorKind, Work};
use drover_types::{ByteSpan, Cover};

use crate::codec::Codec;
use crate::frame::Io;

/// Pieces of a read that came and do not touch yet; each one more makes the next one dearer to sort in.
const PIECES_MAX: usize = 4096;

/// Whose request it is: lanes share a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub owner: u64,
    pub id: u64,
}

/// A request in flight.
#[derive(Debug)]
pub struct Pending {
    pub owner: Owner,
    pub kind: u32,
    pub span: ByteSpan,
    pub work: Work,
    /// What was asked for; the host packs in this way or not at all.
    pub codec: Codec,
    /// Bytes that came over the wire for it.
    pub wire: u64,
    /// Chunks of a question for allocated blocks.
    pub chunks: u64,
    covered: Cover,
}

/// A request that ended.
#[derive(Debug)]
pub struct Ended {
    pub owner: Owner,
    pub span: ByteSpan,
    pub work: Work,
    pub codec: Codec,
    pub wire: u64,
    pub result: Result<Reply, Failure>,
}

/// What came for a request that is no read or write.
#[derive(Debug, Default)]
pub struct Reply {
    pub payload: Vec<u8>,
    pub extra: Vec<u8>,
}

/// How a request failed.
#[derive(Debug)]
pub struct Failure {
    pub kind: DiskErrorKind,
    pub source: io::Error,
}

impl Pending {
    pub fn new(owner: Owner, kind: u32, span: ByteSpan, work: Work, codec: Codec) -> Pending {
        Pending { owner, kind, span, work, codec, wire: 0, chunks: 0, covered: Cover::default() }
    }

    /// Where in the buffer a fragment belongs. Everything it says is held against the request.
    pub fn place(&mut self, io: &Io, extra_max: u32) -> Result<Range<usize>, String> {
        let Work::Read(buffer) = &self.work else {
            return Err("data in the answer to a write".to_string());
        };
        if !io.is_read || io.offset != self.span.offset || u64::from(io.total) != self.span.length {
            return Err(format!(
                "a fragment of {:#x}+{:#x} in the answer to a read of {}",
                io.offset, io.total, self.span
            ));
        }
        let range = ByteSpan::new(io.at.into(), io.plain.into());
        if range.is_empty() || range.end() > buffer.len() as u64 {
            return Err(format!("bytes {range} of a read of {}", self.span));
        }
        let codec = Codec::of(io.codec)?;
        if codec != Codec::None && codec != self.codec {
            return Err(format!("a fragment packed with {codec}, asked was {}", self.codec));
        }
        if io.extra > extra_max || (codec == Codec::None && io.extra != io.plain) {
            return Err(format!(
                "a fragment of {} bytes for {}, buffers have {extra_max}",
                io.extra, io.plain
            ));
        }
        if !self.covered.add(range) {
            return Err(format!("bytes {range} of a read of {} come twice", self.span));
        }
        if self.covered.pieces() > PIECES_MAX {
            return Err(format!("the answer to a read of {} comes in shreds", self.span));
        }
        self.wire += u64::from(io.extra);
        Ok(range.offset as usize..range.end() as usize)
    }

    /// The part of the buffer that [`Pending::place`] named.
    pub fn buffer(&mut self, range: Range<usize>) -> &mut [u8] {
        match &mut self.work {
            Work::Read(buffer) => &mut buffer[range],
            Work::Write(_) | Work::Zero => &mut [],
        }
    }

    /// Whether all of a read was placed.
    pub fn is_whole(&self) -> bool {
        self.covered.is(ByteSpan::new(0, self.span.length))
    }

    /// Whether the buffer is placed from its beginning up to `end`.
    pub fn is_filled_into(&self, end: usize) -> bool {
        self.covered.first().is_some_and(|it| it.offset == 0 && it.length >= end as u64)
    }

    pub fn end(self, result: Result<Reply, Failure>) -> Ended {
        let Pending { owner, span, work, codec, wire, .. } = self;
        Ended { owner, span, work, codec, wire, result }
    }
}

#[cfg(test)]
mod tests {
    use drover_disk::Buffer;

    use super::*;

    fn read(length: u64) -> Pending {
        let (span, work) = (ByteSpan::new(1 << 20, length), Work::Read(Buffer::zeroed(length as usize)));
        Pending::new(Owner { owner: 1, id: 1 }, 7, span, work, Codec::SkipZ)
    }

    fn fragment(at: u32, plain: u32) -> Io {
        Io { handle: 0, is_read: true, codec: 0, offset: 1 << 20, total: 4096, at, plain, extra: plain }
    }

    #[test]
    fn fragments_come_in_any_order() {
        let mut pending = read(4096);
        for at in [2048, 0, 3072, 1024] {
            assert!(!pending.is_whole());
            assert_eq!(pending.place(&fragment(at, 1024), 1024), Ok(at as usize..at as usize + 1024));
        }
        assert!(pending.is_whole() && pending.wire == 4096);
    }

    #[test]
    fn fragments_that_cannot_be_are_refused() {
        let good = fragment(0, 1024);
        for wrong in [
            Io { offset: 0, ..good },
            Io { total: 8192, ..good },
            Io { at: 3073, ..good },
            Io { plain: 0, extra: 0, ..good },
            Io { at: u32::MAX, ..good },
            Io { extra: 1023, ..good },
            Io { codec: 3, extra: 1025, ..good },
            Io { codec: 1, extra: 9, ..good },
            Io { codec: 4, ..good },
            Io { is_read: false, ..good },
        ] {
            assert!(read(4096).place(&wrong, 1024).is_err(), "{wrong:?}");
        }
        let mut pending = read(4096);
        pending.place(&good, 1024).unwrap();
        assert!(pending.place(&fragment(512, 1024), 1024).unwrap_err().contains("twice"));
        pending.place(&Io { codec: 3, extra: 8, ..fragment(1024, 3072) }, 1024).unwrap();
        assert!(pending.is_whole());
    }
}
