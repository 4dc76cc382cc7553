use std::collections::{BTreeMap, VecDeque};

use drover_disk::{Buffer, Completion, DiskError, Lane, Request, Work};
use drover_types::ByteSpan;

use crate::lane::NbdLane;

/// Pieces in flight at a time, as with whole requests.
const PIECES_MAX: usize = 16;

/// A lane to a server whose requests are smaller than the blocks that drover works with: cuts each request into pieces that
/// the server takes. The protocol lets a server take as little as 512 bytes at a time.
pub struct PiecesLane {
    inner: NbdLane,
    bytes_max: u64,
    wholes: BTreeMap<u64, Whole>,
    /// Pieces that were not sent yet, with the keys of the requests that they belong to.
    waiting: VecDeque<(u64, ByteSpan)>,
    /// The same of those that were, by their ids.
    sent: BTreeMap<u64, u64>,
    /// Requests that were not even cut.
    refused: VecDeque<Completion>,
    keys: u64,
    pieces: u64,
    buffers: Vec<Buffer>,
}

struct Whole {
    id: u64,
    span: ByteSpan,
    work: Work,
    pieces_left: u64,
    result: Result<(), DiskError>,
}

impl PiecesLane {
    pub fn new(inner: NbdLane, bytes_max: u64) -> PiecesLane {
        PiecesLane {
            inner,
            bytes_max,
            wholes: BTreeMap::new(),
            waiting: VecDeque::new(),
            sent: BTreeMap::new(),
            refused: VecDeque::new(),
            keys: 0,
            pieces: 0,
            buffers: Vec::new(),
        }
    }

    fn send_some(&mut self) {
        while self.inner.in_flight() < PIECES_MAX
            && let Some((key, span)) = self.waiting.pop_front()
        {
            let whole = &self.wholes[&key];
            let start = (span.offset - whole.span.offset) as usize;
            let work = match &whole.work {
                Work::Read(_) => {
                    let spare = self.buffers.pop();
                    let mut buffer = spare.unwrap_or_else(|| Buffer::zeroed(self.bytes_max as usize));
                    buffer.set_len(span.length as usize);
                    Work::Read(buffer)
                }
                Work::Write(slice) => Work::Write(slice.part(start..start + span.length as usize)),
                Work::Zero => Work::Zero,
            };
            self.pieces += 1;
            self.sent.insert(self.pieces, key);
            self.inner.submit(Request { id: self.pieces, span, work });
        }
    }

    /// Takes in a piece; gives the request that it was the last of.
    fn ended(&mut self, piece: Completion) -> Option<Completion> {
        let key = self.sent.remove(&piece.id).expect("the lane ends what it was given");
        let whole = self.wholes.get_mut(&key).expect("a request stays until its last piece");
        let start = (piece.span.offset - whole.span.offset) as usize;
        if let (Work::Read(all), Work::Read(bytes)) = (&mut whole.work, piece.work) {
            all[start..start + bytes.len()].copy_from_slice(&bytes);
            self.buffers.push(bytes);
        }
        if whole.result.is_ok() {
            whole.result = piece.result;
        }
        whole.pieces_left -= 1;
        if whole.pieces_left > 0 {
            return None;
        }
        let Whole { id, span, work, result, .. } = self.wholes.remove(&key)?;
        Some(Completion { id, span, work, result })
    }
}

impl Lane for PiecesLane {
    fn submit(&mut self, request: Request) {
        let Request { id, span, work } = request;
        if let Err(error) = self.inner.check(span, &work) {
            return self.refused.push_back(Completion { id, span, work, result: Err(error) });
        }
        self.keys += 1;
        let pieces_left = span.length.div_ceil(self.bytes_max);
        for piece in 0..pieces_left {
            let start = span.offset + piece * self.bytes_max;
            let end = span.end().min(start + self.bytes_max);
            self.waiting.push_back((self.keys, ByteSpan::from_bounds(start, end)));
        }
        self.wholes.insert(self.keys, Whole { id, span, work, pieces_left, result: Ok(()) });
        self.send_some();
    }

    fn complete(&mut self) -> Option<Completion> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        loop {
            self.send_some();
            let piece = self.inner.complete()?;
            if let Some(whole) = self.ended(piece) {
                return Some(whole);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.wholes.len() + self.refused.len()
    }

    fn is_broken(&self) -> bool {
        self.inner.is_broken()
    }
}
