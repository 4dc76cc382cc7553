use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use drover_disk::{Completion, Disk, DiskError, DiskErrorKind, Lane, Limits, Request, Work, check_request};
use drover_types::ByteSpan;

use crate::connection::Ended;
use crate::disk::{NbdDisk, Slot};
use crate::reply::Ticket;
use crate::route::Route;

/// A worker's way to an export: a connection of its own, or a share in the only one.
pub struct NbdLane {
    slot: Arc<Slot>,
    owner: u64,
    name: String,
    size: u64,
    writable: bool,
    limits: Limits,
    /// Requests that were not even sent.
    refused: VecDeque<Completion>,
    in_flight: usize,
    /// Whether other lanes wait for the same connection.
    shares: bool,
    /// A child that the connection may go through lives as long.
    _route: Arc<Route>,
}

impl Lane for NbdLane {
    fn submit(&mut self, request: Request) {
        let Request { id, span, work } = request;
        self.in_flight += 1;
        match self.check(span, &work) {
            Ok(()) => self.slot.lock().start_work(Ticket { owner: self.owner, id }, span, work),
            Err(error) => self.refused.push_back(Completion { id, span, work, result: Err(error) }),
        }
    }

    fn complete(&mut self) -> Option<Completion> {
        self.complete_seeing(&mut |_, _| {})
    }

    fn complete_seeing(&mut self, seen: &mut dyn FnMut(u64, &[u8])) -> Option<Completion> {
        if self.in_flight == 0 {
            return None;
        }
        let completion = self.refused.pop_front().unwrap_or_else(|| self.wait(seen));
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

impl NbdLane {
    pub fn new(slot: Arc<Slot>, owner: u64, route: Arc<Route>, disk: &NbdDisk) -> NbdLane {
        NbdLane {
            slot,
            owner,
            name: disk.name().to_string(),
            size: disk.size(),
            writable: disk.features().writable,
            limits: disk.limits(),
            refused: VecDeque::new(),
            in_flight: 0,
            shares: disk.shares_connection(),
            _route: route,
        }
    }

    fn wait(&self, seen: &mut dyn FnMut(u64, &[u8])) -> Completion {
        loop {
            // Between two reads of the socket others may have it, so a flush gets its turn.
            let mut connection = self.slot.lock();
            if let Some(ended) = connection.take(self.owner) {
                return self.completion(ended);
            }
            connection.receive();
            // Who looks long at bytes would keep the others from theirs.
            if let Some((id, bytes)) = connection.arriving(self.owner).filter(|_| !self.shares) {
                seen(id, bytes);
            }
        }
    }

    fn completion(&self, ended: Ended) -> Completion {
        let Ended { ticket, span, work, result, .. } = ended;
        let result = result.map_err(|failure| {
            let source = self.explain(span, failure.kind, failure.source);
            DiskError::with_kind(failure.kind, work.op(), span, &self.name, source)
        });
        Completion { id: ticket.id, span, work, result }
    }

    /// A disk may end within a block of a server that insists on whole ones: nobody can read that.
    fn explain(&self, span: ByteSpan, kind: DiskErrorKind, source: io::Error) -> io::Error {
        let minimum = self.limits.bytes_min;
        if kind != DiskErrorKind::Failed || span.end().is_multiple_of(minimum) {
            return source;
        }
        let (size, try_this) = (self.size, "have the server round the size up (nbdkit --filter=truncate)");
        let text = format!("{source}; the disk of {size} bytes ends within a block of {minimum}: {try_this}");
        io::Error::new(source.kind(), text)
    }

    pub fn check(&self, span: ByteSpan, work: &Work) -> Result<(), DiskError> {
        check_request(span, work, self.size, self.writable, &self.name)?;
        let Limits { bytes_min, bytes_max, .. } = self.limits;
        let ends_well = span.end().is_multiple_of(bytes_min) || span.end() == self.size;
        if span.offset.is_multiple_of(bytes_min) && ends_well && span.length <= bytes_max {
            return Ok(());
        }
        let text = format!("the server takes multiples of {bytes_min} bytes, up to {bytes_max}");
        let source = io::Error::new(io::ErrorKind::InvalidInput, text);
        Err(DiskError::new(work.op(), span, &self.name, source))
    }
}

impl Drop for NbdLane {
    fn drop(&mut self) {
        self.slot.lock().abandon(self.owner);
    }
}
