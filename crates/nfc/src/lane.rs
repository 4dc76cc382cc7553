use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use drover_disk::{Completion, DiskError, Lane, Limits, Request, Work, check_request};
use drover_types::ByteSpan;

use crate::codec::Codec;
use crate::disk::{Facts, SECTOR_BYTES};
use crate::pending::{Ended, Owner};
use crate::slot::Slot;

/// A worker's way to a disk: a share in its only connection.
pub struct NfcLane {
    slot: Arc<Slot>,
    owner: u64,
    facts: Arc<Facts>,
    limits: Limits,
    writable: bool,
    /// Requests that were not even sent.
    refused: VecDeque<Completion>,
    in_flight: usize,
}

impl NfcLane {
    pub fn new(slot: Arc<Slot>, owner: u64, facts: Arc<Facts>, limits: Limits, writable: bool) -> NfcLane {
        NfcLane { slot, owner, facts, limits, writable, refused: VecDeque::new(), in_flight: 0 }
    }

    fn check(&self, span: ByteSpan, work: &Work) -> Result<(), DiskError> {
        let size = self.facts.size;
        check_request(span, work, size, self.writable, &self.facts.name)?;
        let ends_well = span.end().is_multiple_of(SECTOR_BYTES) || span.end() == size;
        if span.offset.is_multiple_of(SECTOR_BYTES) && ends_well && span.length <= self.limits.bytes_max {
            return Ok(());
        }
        let text = format!("NFC takes multiples of {SECTOR_BYTES} bytes, up to {}", self.limits.bytes_max);
        let source = io::Error::new(io::ErrorKind::InvalidInput, text);
        Err(DiskError::new(work.op(), span, &self.facts.name, source))
    }

    fn completion(&self, ended: Ended) -> Completion {
        let Ended { owner, span, work, codec, wire, result, .. } = ended;
        if result.is_ok() && matches!(work, Work::Read(_)) {
            self.facts.on_read(codec, span.length, wire, Instant::now());
        }
        let result = result.map(drop).map_err(|failure| {
            DiskError::with_kind(failure.kind, work.op(), span, &self.facts.name, failure.source)
        });
        Completion { id: owner.id, span, work, result }
    }
}

impl Lane for NfcLane {
    fn submit(&mut self, request: Request) {
        let Request { id, span, work } = request;
        self.in_flight += 1;
        if let Err(error) = self.check(span, &work) {
            return self.refused.push_back(Completion { id, span, work, result: Err(error) });
        }
        let codec = if matches!(work, Work::Read(_)) { self.facts.codec() } else { Codec::None };
        self.facts.keep_alive();
        self.slot.start_work(Owner { owner: self.owner, id }, span, work, codec);
    }

    fn complete(&mut self) -> Option<Completion> {
        self.complete_seeing(&mut |_, _| {})
    }

    fn complete_seeing(&mut self, seen: &mut dyn FnMut(u64, &[u8])) -> Option<Completion> {
        if self.in_flight == 0 {
            return None;
        }
        let completion = match self.refused.pop_front() {
            Some(refused) => refused,
            None => self.completion(self.slot.wait(self.owner, seen)),
        };
        self.in_flight -= 1;
        Some(completion)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn is_broken(&self) -> bool {
        self.slot.lock().is_broken()
    }
}

impl Drop for NfcLane {
    fn drop(&mut self) {
        self.slot.lock().abandon(self.owner);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use drover_disk::Buffer;

    use super::*;
    use crate::choice::CodecWish;
    use crate::connect::{Ticket, Tickets};
    use crate::disk::KEEP_ALIVE;
    use crate::error::{NfcError, NfcErrorKind};
    use crate::slot::tests::{BYTES, answer, slot};

    /// Tells of each call that keeps the session of the API alive.
    struct Calls(Sender<()>);

    impl Tickets for Calls {
        fn ticket(&self) -> Result<Ticket, NfcError> {
            Err(NfcError::new(NfcErrorKind::Missing, "ticket", "none is asked for"))
        }

        fn keep_alive(&self) {
            self.0.send(()).unwrap();
        }
    }

    /// Reads three times over a connection whose session of the API was used at `kept_alive`.
    fn calls_of_reads(kept_alive: Instant) -> Receiver<()> {
        let (ours, mut host) = UnixStream::pair().unwrap();
        let (calls, called) = channel();
        let size = u64::from(BYTES);
        let codec = CodecWish::Always(Codec::None);
        let facts = Arc::new(Facts::new("one", size, codec, Arc::new(Calls(calls)), kept_alive));
        let limits = Limits {
            bytes_min: SECTOR_BYTES,
            bytes_preferred: size,
            bytes_max: size,
            lanes_max: 1,
            depth_max: 1,
        };
        let mut lane = NfcLane::new(slot(ours), 1, facts, limits, false);
        for id in 0..3 {
            let work = Work::Read(Buffer::zeroed(BYTES as usize));
            lane.submit(Request { id, span: ByteSpan::new(0, size), work });
            answer(&mut host);
            assert!(lane.complete().unwrap().result.is_ok());
        }
        called
    }

    #[test]
    fn reads_keep_the_session_of_the_api_alive_by_a_call_now_and_then() {
        let long_ago = Instant::now().checked_sub(KEEP_ALIVE).unwrap();
        let called = calls_of_reads(long_ago);
        assert_eq!(called.recv_timeout(Duration::from_secs(30)), Ok(()));
        // The lane is gone, and with it whoever could call again.
        assert!(called.recv_timeout(Duration::from_secs(30)).is_err(), "one call, and not one of each read");
        assert!(calls_of_reads(Instant::now()).recv_timeout(Duration::from_secs(30)).is_err());
    }
}
