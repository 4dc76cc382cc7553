use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use drover_disk::{Completion, DiskError, DiskErrorKind, DiskOp, Lane, Request, Work, check_request};
use drover_types::ByteSpan;

use crate::disk::{SftpOptions, Shared};
use crate::session::{Session, bad};
use crate::uri::SshUri;
use crate::wire::{self, Attributes, Fields};

/// Bytes that one READ asks for: what every server gives at once.
const READ_BYTES: u32 = 64 << 10;

/// A status and its words may be this long.
const WORDS_CHARS_MAX: usize = 200;

/// A file open at the other host.
pub struct Remote {
    session: Session,
    handle: Vec<u8>,
}

impl Remote {
    pub fn open(uri: &SshUri, options: &SftpOptions) -> io::Result<(Remote, Attributes)> {
        Remote::over(Session::start(uri, options)?, &uri.path)
    }

    /// Opens the file in a session that has been greeted.
    pub fn over(mut session: Session, path: &str) -> io::Result<(Remote, Attributes)> {
        session.send(&wire::open(1, path))?;
        let body = answer(&mut session, 1, wire::HANDLE)?;
        let handle = Fields(&body).string().filter(|handle| handle.len() <= wire::HANDLE_BYTES_MAX);
        let handle = handle.ok_or_else(|| bad("a handle makes no sense"))?.to_vec();
        session.send(&wire::fstat(2, &handle))?;
        let body = answer(&mut session, 2, wire::ATTRS)?;
        let attributes =
            Fields(&body).attributes().ok_or_else(|| bad("the server does not tell the size"))?;
        Ok((Remote { session, handle }, attributes))
    }
}

/// The body of the answer to the only request in flight.
fn answer(session: &mut Session, id: u32, kind: u8) -> io::Result<Vec<u8>> {
    let head = session.head()?;
    let body = session.body(&head)?;
    match head.kind {
        _ if head.id != id => Err(bad("an answer to nothing that was asked")),
        wire::STATUS => Err(status(&body)),
        found if found == kind => Ok(body),
        found => Err(bad(format!("a packet of type {found} instead of {kind}"))),
    }
}

/// What a STATUS that is no success means.
fn status(body: &[u8]) -> io::Error {
    let mut fields = Fields(body);
    let code = fields.number();
    let words = String::from_utf8_lossy(fields.string().unwrap_or_default());
    let words: String = words.chars().take(WORDS_CHARS_MAX).collect::<String>().escape_debug().to_string();
    let kind = match code {
        Some(0 | 1 | 5) | None => io::ErrorKind::InvalidData,
        Some(2) => io::ErrorKind::NotFound,
        Some(3) => io::ErrorKind::PermissionDenied,
        Some(6 | 7) => io::ErrorKind::ConnectionReset,
        Some(8) => io::ErrorKind::Unsupported,
        Some(_) => io::ErrorKind::Other,
    };
    let code = code.map_or("none".to_string(), |code| code.to_string());
    io::Error::new(kind, format!("the server answers: {words} (status {code})"))
}

/// One child, one handle, many READs in flight.
pub struct SftpLane {
    shared: Arc<Shared>,
    remote: Remote,
    queue: VecDeque<Pending>,
    /// READs on their way, by id: which request they belong to, and which of its bytes.
    asked: HashMap<u32, Asked>,
    next_id: u32,
    next_serial: u64,
    broken: Option<(DiskErrorKind, String)>,
}

struct Pending {
    serial: u64,
    request: Request,
    reads: usize,
    error: Option<DiskError>,
}

#[derive(Clone, Copy)]
struct Asked {
    serial: u64,
    /// Within the request's buffer.
    from: u32,
    length: u32,
}

impl SftpLane {
    pub fn new(shared: Arc<Shared>, remote: Remote) -> SftpLane {
        SftpLane {
            shared,
            remote,
            queue: VecDeque::new(),
            asked: HashMap::new(),
            next_id: 10,
            next_serial: 0,
            broken: None,
        }
    }

    fn ask(&mut self, span: ByteSpan, what: Asked) -> io::Result<()> {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let offset = span.offset + u64::from(what.from);
        let packet = wire::read(id, &self.remote.handle, offset, what.length);
        self.remote.session.send(&packet)?;
        self.asked.insert(id, what);
        Ok(())
    }

    fn ask_all(&mut self, serial: u64, span: ByteSpan) -> io::Result<usize> {
        let mut from = 0;
        let mut reads = 0;
        while u64::from(from) < span.length {
            let length = (span.length - u64::from(from)).min(READ_BYTES.into()) as u32;
            self.ask(span, Asked { serial, from, length })?;
            from += length;
            reads += 1;
        }
        Ok(reads)
    }

    /// Takes one packet.
    fn receive(&mut self) -> io::Result<()> {
        let head = self.remote.session.head()?;
        let asked = self.asked.remove(&head.id).ok_or_else(|| bad("an answer to nothing that was asked"))?;
        let index = self.queue.iter().position(|pending| pending.serial == asked.serial);
        let index = index.ok_or_else(|| bad("an answer to nothing that was asked"))?;
        match head.kind {
            wire::DATA => self.data(index, asked, head.length),
            wire::STATUS => {
                let body = self.remote.session.body(&head)?;
                let error = status(&body);
                let span = self.queue[index].request.span;
                let error = DiskError::new(DiskOp::Read, span, &self.shared.name, error);
                let pending = &mut self.queue[index];
                pending.reads -= 1;
                pending.error.get_or_insert(error);
                Ok(())
            }
            kind => Err(bad(format!("a packet of type {kind} as the answer to a read"))),
        }
    }

    /// Reads straight into the request's buffer; what a server leaves out is asked for again.
    fn data(&mut self, index: usize, asked: Asked, packet: u32) -> io::Result<()> {
        let mut length = [0; 4];
        if packet < 4 {
            return Err(bad("data without a length"));
        }
        self.remote.session.fill(&mut length)?;
        let length = u32::from_be_bytes(length);
        if length != packet - 4 || length == 0 || length > asked.length {
            return Err(bad(format!("{length} bytes of data where {} were asked for", asked.length)));
        }
        let pending = &mut self.queue[index];
        let span = pending.request.span;
        let Work::Read(buffer) = &mut pending.request.work else { return Err(bad("an answer to no read")) };
        let place = asked.from as usize..(asked.from + length) as usize;
        self.remote.session.fill(&mut buffer[place])?;
        if length < asked.length {
            let (from, rest) = (asked.from + length, asked.length - length);
            return self.ask(span, Asked { serial: asked.serial, from, length: rest });
        }
        self.queue[index].reads -= 1;
        Ok(())
    }

    fn lose(&mut self, error: &io::Error) {
        let kind = match DiskErrorKind::of(error) {
            kind @ (DiskErrorKind::Corrupt | DiskErrorKind::Denied) => kind,
            _ => DiskErrorKind::Transient,
        };
        self.broken.get_or_insert((kind, error.to_string()));
    }

    fn lost(&self, span: ByteSpan) -> DiskError {
        let (kind, why) = self.broken.clone().unwrap_or((DiskErrorKind::Transient, String::new()));
        DiskError::with_kind(kind, DiskOp::Read, span, &self.shared.name, io::Error::other(why))
    }
}

impl Lane for SftpLane {
    fn submit(&mut self, request: Request) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let (span, size) = (request.span, self.shared.attributes.size);
        let error = check_request(span, &request.work, size, false, &self.shared.name).err();
        let is_good = error.is_none() && self.broken.is_none();
        self.queue.push_back(Pending { serial, request, reads: 0, error });
        if is_good {
            match self.ask_all(serial, span) {
                Ok(reads) => self.queue.back_mut().expect("pushed just above").reads = reads,
                Err(error) => self.lose(&error),
            }
        }
    }

    fn complete(&mut self) -> Option<Completion> {
        loop {
            if self.queue.is_empty() {
                return None;
            }
            let done = self.queue.iter().position(|it| it.reads == 0 || self.broken.is_some());
            if let Some(index) = done {
                let Pending { request, error, .. } = self.queue.remove(index)?;
                let Request { id, span, work } = request;
                // A request that could not be sent has no reads outstanding either.
                let result = match error {
                    Some(error) => Err(error),
                    None if self.broken.is_some() => Err(self.lost(span)),
                    None => Ok(()),
                };
                return Some(Completion { id, span, work, result });
            }
            if let Err(error) = self.receive() {
                self.lose(&error);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn is_broken(&self) -> bool {
        self.broken.is_some()
    }
}
