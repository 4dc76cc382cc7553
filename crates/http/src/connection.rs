use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_log::log;
use rustls::ClientConfig;

use crate::endpoint::Endpoint;
use crate::error::{HttpError, HttpErrorKind, HttpOp};
use crate::head::{self, BodyLength, HEAD_BYTES_MAX, Head};
use crate::stream::{Reads, Stream, Timeouts};

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET`, `HEAD`, `POST`, `DELETE`.
    pub method: &'static str,
    /// Path and query, percent-encoded.
    pub path: String,
    /// Header fields beyond Host and Content-Length.
    pub headers: Vec<(String, String)>,
    /// The body; may be empty.
    pub body: Vec<u8>,
    /// Whether doing it twice does no harm, so that it may be sent again.
    pub idempotent: bool,
}

impl Request {
    /// A GET without a body.
    pub fn get(path: impl Into<String>) -> Self {
        Request { method: "GET", path: path.into(), headers: Vec::new(), body: Vec::new(), idempotent: true }
    }

    /// A HEAD.
    pub fn head(path: impl Into<String>) -> Self {
        Request { method: "HEAD", ..Request::get(path) }
    }

    /// A POST, which is not taken as idempotent.
    pub fn post(path: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Request { method: "POST", body: body.into(), idempotent: false, ..Request::get(path) }
    }

    /// Adds a header field.
    pub fn with_header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_string(), value.into()));
        self
    }

    /// The request as sent; `None` if a field could smuggle in another line.
    fn encode(&self, host: &str) -> Option<Vec<u8>> {
        self.encode_head(host, self.body.len() as u64).map(|mut bytes| {
            bytes.extend_from_slice(&self.body);
            bytes
        })
    }

    fn encode_head(&self, host: &str, body_bytes: u64) -> Option<Vec<u8>> {
        let clean = |text: &str| !text.contains(['\r', '\n', '\0']);
        let fields_are_clean = self.headers.iter().all(|(name, value)| clean(name) && clean(value));
        if !fields_are_clean || !self.path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let mut text =
            format!("{} {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: drover\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        if self.method == "POST" || body_bytes > 0 {
            let _ = write!(text, "Content-Length: {body_bytes}\r\n");
        }
        text.push_str("\r\n");
        Some(text.into_bytes())
    }
}

/// A connection to a server, kept alive over many requests. Requests may be sent ahead of the
/// answers, which come back in order: `send`, `send`, `read_head`, body, `read_head`, body.
pub struct Connection {
    stream: Stream,
    endpoint: Endpoint,
    timeouts: Timeouts,
    /// Bytes read ahead: heads, and what came with them. `inbound[start..end]` is unread.
    inbound: Vec<u8>,
    start: usize,
    end: usize,
    /// What is left of the body being read.
    body: BodyLeft,
    /// Until when the answer being read has to end.
    deadline: Instant,
    /// Methods of requests without an answer yet: an answer to HEAD has no body.
    awaiting: std::collections::VecDeque<&'static str>,
    usable: bool,
    /// The head of an answer that came before the body was written.
    early: Option<Head>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyLeft {
    Known(u64),
    /// Bytes left of this chunk.
    Chunk(u64),
    /// A chunk's length line is next; `first` has no line end of an earlier chunk before it.
    ChunkHead {
        first: bool,
    },
    UntilClose,
}

/// Interim answers (100 Continue, 103 Early Hints) before one final answer.
const INTERIM_HEADS_MAX: usize = 8;
const CHUNK_LINE_BYTES_MAX: usize = 4096;
/// Read at a time of a head.
const HEAD_READ_BYTES: usize = 4 << 10;
/// Read at a time of a body that is kept whole: what a record of TLS holds.
const PIECE_BYTES: usize = 16 << 10;

impl Connection {
    /// Connects, with TLS if there is a `config`.
    pub(crate) fn open(
        endpoint: &Endpoint,
        config: Option<&Arc<ClientConfig>>,
        timeouts: Timeouts,
        reads: Reads,
    ) -> Result<Self, HttpError> {
        let began = Instant::now();
        let stream = Stream::connect(endpoint, config, &timeouts, reads).inspect_err(|error| {
            log!("http", "no connection to {}: {error}", endpoint.authority());
        })?;
        let secure = if config.is_some() { ", TLS" } else { "" };
        log!("http", "connected to {}{secure} in {} ms", endpoint.authority(), began.elapsed().as_millis());
        Ok(Connection {
            stream,
            endpoint: endpoint.clone(),
            timeouts,
            inbound: Vec::new(),
            start: 0,
            end: 0,
            body: BodyLeft::Known(0),
            deadline: Instant::now(),
            awaiting: Default::default(),
            usable: true,
            early: None,
        })
    }

    /// Has calls that wait for the server return that often, to be made again.
    pub(crate) fn look_up_every(&mut self, time: Duration) -> Result<(), HttpError> {
        let failed = |error| HttpError::io(error, HttpOp::Connect, &self.endpoint.authority(), time);
        self.stream.set_patience(time).map_err(failed)
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    /// [`HttpErrorKind::BadUrl`] if path or headers hold line ends; else when the connection broke.
    pub fn send(&mut self, request: &Request) -> Result<(), HttpError> {
        let bytes = request.encode(&self.endpoint.authority());
        let bytes = bytes.ok_or_else(|| self.error(HttpErrorKind::BadUrl, HttpOp::Send))?;
        self.awaiting.push_back(request.method);
        self.stream.write_all(&bytes).map_err(|error| {
            self.usable = false;
            HttpError::io(error, HttpOp::Send, &self.endpoint.authority(), self.timeouts.stall)
        })
    }

    /// Sends the head of a request whose body of so many bytes is written by [`Connection::write_body`], and asks the server
    /// to say first whether it takes it. Gives the head of its answer if it does not; a server that says nothing for
    /// `patience` is taken to wait for the body.
    ///
    /// # Errors
    /// As [`Connection::send`] and [`Connection::read_head`].
    pub fn begin(
        &mut self,
        request: &Request,
        body_bytes: u64,
        patience: Duration,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Head>, HttpError> {
        let request = request.clone().with_header("Expect", "100-continue");
        let bytes = request.encode_head(&self.endpoint.authority(), body_bytes);
        let bytes = bytes.ok_or_else(|| self.error(HttpErrorKind::BadUrl, HttpOp::Send))?;
        self.awaiting.push_back(request.method);
        self.usable = false;
        self.write(&bytes, go_on)?;
        let until = Instant::now() + patience;
        self.deadline = until + self.timeouts.answer;
        match self.read_one_head_while(&mut || Instant::now() < until && go_on())? {
            Some(head) if head.status >= 200 => Ok(Some(self.begun(head))),
            Some(_) | None => Ok(None),
        }
    }

    /// Writes a piece of a body, as the server takes it, while `go_on` says so, which is asked at least once a second.
    ///
    /// # Errors
    /// When the connection broke, the server answered already or took nothing for as long as a stall may last, or `go_on`
    /// said no; the answer may tell more of it ([`Connection::finish`]).
    pub fn write_body(&mut self, bytes: &[u8], go_on: &mut dyn FnMut() -> bool) -> Result<(), HttpError> {
        // Who answers before the end reads no further: what was written on would take the answer away with the connection.
        if !self.stream.is_quiet() {
            self.early = self.read_one_head_while(&mut || false)?.filter(|head| head.status >= 200);
            if self.early.is_some() {
                return Err(self.error(HttpErrorKind::Closed, HttpOp::Send));
            }
        }
        self.write(bytes, go_on)
    }

    fn write(&mut self, mut bytes: &[u8], go_on: &mut dyn FnMut() -> bool) -> Result<(), HttpError> {
        let mut moved = Instant::now();
        loop {
            match self.stream.write_some(bytes) {
                Ok(0) if bytes.is_empty() => return Ok(()),
                Ok(taken) => {
                    bytes = &bytes[taken..];
                    moved = Instant::now();
                }
                Err(error) if waits(&error) && moved.elapsed() < self.timeouts.stall && go_on() => {}
                Err(error) => {
                    self.usable = false;
                    let peer = self.endpoint.authority();
                    return Err(HttpError::io(error, HttpOp::Send, &peer, self.timeouts.stall));
                }
            }
        }
    }

    /// Waits for the answer to a request whose body was written, or could not be, while `go_on` says so, which is asked at
    /// least once a second. The server may be silent for as long as it works.
    ///
    /// # Errors
    /// As [`Connection::read_head`].
    pub fn finish(&mut self, within: Duration, go_on: &mut dyn FnMut() -> bool) -> Result<Head, HttpError> {
        if let Some(head) = self.early.take() {
            return Ok(self.begun(head));
        }
        self.deadline = Instant::now() + within;
        for _ in 0..INTERIM_HEADS_MAX {
            match self.read_one_head_while(go_on)? {
                Some(head) if head.status >= 200 => return Ok(self.begun(head)),
                Some(_) => {}
                None => return Err(self.error(HttpErrorKind::Stalled(within), HttpOp::Answer)),
            }
        }
        Err(self.error(HttpErrorKind::Protocol("interim answers without end".to_string()), HttpOp::Answer))
    }

    /// The next head; nothing once `go_on` says no while nothing comes.
    fn read_one_head_while(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Option<Head>, HttpError> {
        loop {
            match self.read_one_head(false) {
                Err(HttpError { kind: HttpErrorKind::Stalled(_), .. }) if go_on() => {}
                Err(HttpError { kind: HttpErrorKind::Stalled(_), .. }) => return Ok(None),
                done => return done.map(Some),
            }
        }
    }

    /// The final head of an answer has come: its body is next.
    fn begun(&mut self, head: Head) -> Head {
        self.awaiting.pop_front();
        self.body = body_of(&head);
        head
    }

    /// Waits for the next answer and reads its head. The body of the answer before must have been read.
    ///
    /// # Errors
    /// When the connection breaks, stalls, or what arrives is no HTTP; the connection is then lost.
    pub fn read_head(&mut self) -> Result<Head, HttpError> {
        assert_eq!(self.body, BodyLeft::Known(0), "the body before was not read");
        self.deadline = Instant::now() + self.timeouts.answer;
        self.usable = false;
        let answers_head = self.awaiting.pop_front() == Some("HEAD");
        for _ in 0..INTERIM_HEADS_MAX {
            let head = self.read_one_head(answers_head)?;
            if head.status < 200 {
                continue;
            }
            self.body = body_of(&head);
            self.usable = head.keep_alive;
            return Ok(head);
        }
        Err(self.error(HttpErrorKind::Protocol("interim answers without end".to_string()), HttpOp::Answer))
    }

    fn read_one_head(&mut self, answers_head: bool) -> Result<Head, HttpError> {
        loop {
            let parsed = head::parse(&self.inbound[self.start..self.end], answers_head);
            if let Some((head, length)) = parsed.map_err(|kind| self.error(kind, HttpOp::Answer))? {
                self.start += length;
                return Ok(head);
            }
            if self.fill()? == 0 {
                return Err(self.error(HttpErrorKind::Closed, HttpOp::Answer));
            }
        }
    }

    /// Reads the next bytes of the body into `out`; 0 at its end.
    ///
    /// # Errors
    /// When the connection breaks, stalls, or the answer takes longer than its whole time.
    pub fn read_some(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        let got = self.read_some_inner(out);
        self.usable &= got.is_ok();
        got
    }

    fn read_some_inner(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        if let BodyLeft::ChunkHead { first } = self.body {
            self.body = self.read_chunk_head(first)?;
        }
        let left = match self.body {
            BodyLeft::Known(left) | BodyLeft::Chunk(left) => left,
            BodyLeft::UntilClose | BodyLeft::ChunkHead { .. } => u64::MAX,
        };
        let wanted = left.min(out.len() as u64) as usize;
        if wanted == 0 {
            return Ok(0);
        }
        let got = self.read_raw(&mut out[..wanted])?;
        self.body = match self.body {
            BodyLeft::UntilClose if got == 0 => BodyLeft::Known(0),
            _ if got == 0 => return Err(self.error(HttpErrorKind::Closed, HttpOp::Answer)),
            BodyLeft::Known(left) => BodyLeft::Known(left - got as u64),
            BodyLeft::Chunk(left) if left == got as u64 => BodyLeft::ChunkHead { first: false },
            BodyLeft::Chunk(left) => BodyLeft::Chunk(left - got as u64),
            other => other,
        };
        Ok(got)
    }

    /// Fills `out` from the body.
    ///
    /// # Errors
    /// As [`Connection::read_some`]; also [`HttpErrorKind::Closed`] if the body ends before `out` is full.
    pub fn read_exact(&mut self, mut out: &mut [u8]) -> Result<(), HttpError> {
        while !out.is_empty() {
            let got = self.read_some(out)?;
            if got == 0 {
                return Err(self.error(HttpErrorKind::Closed, HttpOp::Answer));
            }
            out = &mut out[got..];
        }
        Ok(())
    }

    /// Reads the rest of the body.
    ///
    /// # Errors
    /// As [`Connection::read_some`]; also [`HttpErrorKind::TooLong`] if there are more than `bytes_max` bytes.
    pub fn read_body(&mut self, bytes_max: usize) -> Result<Vec<u8>, HttpError> {
        let mut body = Vec::new();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let got = self.read_some(&mut piece)?;
            if got == 0 {
                return Ok(body);
            }
            if body.len() + got > bytes_max {
                self.usable = false;
                return Err(self.error(HttpErrorKind::TooLong(bytes_max as u64), HttpOp::Answer));
            }
            body.extend_from_slice(&piece[..got]);
        }
    }

    /// Whether another request may be sent: the last body was read and the server keeps the connection.
    pub fn is_usable(&self) -> bool {
        self.usable && self.body == BodyLeft::Known(0)
    }

    /// Whether an idle connection seems open still.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.is_usable() && self.awaiting.is_empty() && self.start == self.end && self.stream.is_quiet()
    }

    fn read_raw(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        if self.start < self.end {
            let length = out.len().min(self.end - self.start);
            out[..length].copy_from_slice(&self.inbound[self.start..self.start + length]);
            self.start += length;
            return Ok(length);
        }
        self.check_deadline()?;
        self.stream.read(out).map_err(|error| self.read_failed(error))
    }

    /// Reads more bytes behind `end`; 0 at the end of the stream. The caller bounds how much it asks for.
    fn fill(&mut self) -> Result<usize, HttpError> {
        self.inbound.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        // Only a little at a time: what follows a head is a body, which goes straight to its place.
        let until = (self.end + HEAD_READ_BYTES).min(HEAD_BYTES_MAX);
        if self.inbound.len() < until {
            self.inbound.resize(until, 0);
        }
        self.check_deadline()?;
        let got =
            self.stream.read(&mut self.inbound[self.end..until]).map_err(|error| self.read_failed(error))?;
        self.end += got;
        Ok(got)
    }

    fn read_failed(&self, error: std::io::Error) -> HttpError {
        HttpError::io(error, HttpOp::Answer, &self.endpoint.authority(), self.timeouts.stall)
    }

    fn check_deadline(&self) -> Result<(), HttpError> {
        match self.deadline.checked_duration_since(Instant::now()) {
            Some(left) if left > Duration::ZERO => Ok(()),
            _ => Err(self.error(HttpErrorKind::Endless(self.timeouts.answer), HttpOp::Answer)),
        }
    }

    fn read_chunk_head(&mut self, first: bool) -> Result<BodyLeft, HttpError> {
        if !first && !self.read_line()?.is_empty() {
            return Err(
                self.error(HttpErrorKind::Protocol("chunk longer than told".to_string()), HttpOp::Answer)
            );
        }
        let line = self.read_line()?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(digits, 16) {
            Ok(0) if is_hex => self.skip_trailers(),
            Ok(length) if is_hex => Ok(BodyLeft::Chunk(length)),
            _ => Err(self.error(HttpErrorKind::Protocol("bad chunk length".to_string()), HttpOp::Answer)),
        }
    }

    fn skip_trailers(&mut self) -> Result<BodyLeft, HttpError> {
        for _ in 0..64 {
            if self.read_line()?.is_empty() {
                return Ok(BodyLeft::Known(0));
            }
        }
        Err(self.error(HttpErrorKind::Protocol("trailers without end".to_string()), HttpOp::Answer))
    }

    /// A line without its end, of a chunk's head or a trailer.
    fn read_line(&mut self) -> Result<String, HttpError> {
        loop {
            let unread = &self.inbound[self.start..self.end];
            if let Some(at) = unread.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&unread[..at]).trim_end_matches('\r').to_string();
                self.start += at + 1;
                return Ok(line);
            }
            if unread.len() > CHUNK_LINE_BYTES_MAX {
                return Err(
                    self.error(HttpErrorKind::Protocol("chunk head too long".to_string()), HttpOp::Answer)
                );
            }
            if self.fill()? == 0 {
                return Err(self.error(HttpErrorKind::Closed, HttpOp::Answer));
            }
        }
    }

    fn error(&self, kind: HttpErrorKind, op: HttpOp) -> HttpError {
        HttpError::new(kind, op, &self.endpoint.authority())
    }
}

fn body_of(head: &Head) -> BodyLeft {
    match head.body {
        BodyLength::Known(length) => BodyLeft::Known(length),
        BodyLength::Chunked => BodyLeft::ChunkHead { first: true },
        BodyLength::UntilClose => BodyLeft::UntilClose,
    }
}

/// Whether nothing moved for as long as a call waits.
fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}
