use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use drover_disk::{Completion, DiskError, DiskErrorKind, DiskOp, Lane, Request, Work, check_request};
use drover_types::ByteSpan;

use crate::connection::{self, Connection};
use crate::error::HttpError;
use crate::head::{BodyLength, Head};
use crate::range::{Shared, disk_error, state_of, status_kind};

/// One connection. Reads are sent ahead and answered in order.
pub(crate) struct RangeLane {
    shared: Arc<Shared>,
    /// Absent after the server ended it in good order; the next request makes another.
    connection: Option<Connection>,
    /// The first `sent` of them are on the wire.
    queue: VecDeque<Queued>,
    sent: usize,
    /// Why the connection takes no more requests. Answers to those before may have come: servers that close say so there.
    deaf: Option<String>,
    /// Why the lane is lost.
    broken: Option<String>,
}

struct Queued {
    request: Request,
    /// Version of the credentials it was sent under.
    version: u64,
    /// It failed before it was sent.
    failed: Option<DiskError>,
}

/// Why an answer is no good, and whether the connection may go on.
struct Bad {
    error: DiskError,
    broken: Option<String>,
}

/// Bodies of refusals are read up to here to keep the connection, and quoted up to there.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
const REFUSAL_CHARS_SHOWN: usize = 200;

impl RangeLane {
    pub fn open(shared: Arc<Shared>) -> Result<Self, HttpError> {
        let connection = Some(shared.client.connect()?);
        Ok(RangeLane { shared, connection, queue: VecDeque::new(), sent: 0, deaf: None, broken: None })
    }

    /// Sends what waits, as far ahead as is allowed.
    fn pump(&mut self) {
        let depth = self.shared.depth();
        while self.broken.is_none() && self.deaf.is_none() && self.sent < self.queue.len().min(depth) {
            let shared = self.shared.clone();
            let queued = &mut self.queue[self.sent];
            if queued.failed.is_none() {
                let span = queued.request.span;
                match shared.credentials() {
                    Ok(credentials) => {
                        queued.version = credentials.version;
                        let request = range_request(&shared.path, span, credentials.headers);
                        if let Err(error) = self.send(&request) {
                            self.deaf = Some(chain(&error));
                            return;
                        }
                    }
                    Err(error) => queued.failed = Some(disk_error(DiskOp::Read, span, &shared.name, error)),
                }
            }
            self.sent += 1;
        }
    }

    fn send(&mut self, request: &connection::Request) -> Result<(), HttpError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.shared.client.connect()?),
        };
        connection.send(request)
    }

    /// Reads the answer to the first request in the queue.
    fn answer(&mut self, queued: &mut Queued) -> Result<(), Bad> {
        if let Some(error) = queued.failed.take() {
            return Err(Bad { error, broken: None });
        }
        let span = queued.request.span;
        if self.sent == 0 {
            let why = self.deaf.take().unwrap_or_else(|| "not sent".into());
            return Err(self.lost(span, &why));
        }
        let Some(connection) = &mut self.connection else { return Err(self.lost(span, "not connected")) };
        let head = connection.read_head().map_err(|error| self.lost_by(span, error))?;
        if head.status != 206 {
            return Err(self.refused(span, queued.version, &head));
        }
        if let Err(why) = check_range(&head, span, self.shared.size) {
            return Err(self.corrupt(span, &why));
        }
        if self.is_changed(&head) {
            let why = "the file was changed on the server since it was opened";
            let error = self.error(DiskErrorKind::Gone, span, why.to_string());
            return Err(Bad { error, broken: Some(why.to_string()) });
        }
        let Work::Read(buffer) = &mut queued.request.work else { return Err(self.lost(span, "not a read")) };
        let Some(connection) = &mut self.connection else { return Err(self.lost(span, "not connected")) };
        let got = connection.read_exact(&mut buffer[..]).and_then(|()| end_of_body(connection));
        let reusable = connection.is_usable();
        got.map_err(|error| self.lost_by(span, error))?;
        self.shared.accepted();
        if !reusable {
            self.start_over();
        }
        Ok(())
    }

    /// Whether an answer is of another state of the file. A field that one of both lacks tells nothing.
    fn is_changed(&self, head: &Head) -> bool {
        let differ = |(then, now): (&Option<String>, &Option<String>)| matches!((then, now), (Some(then), Some(now)) if then != now);
        self.shared.state.iter().zip(&state_of(head)).any(differ)
    }

    /// The server ended the connection in good order: what was sent behind goes out again on a new one.
    fn start_over(&mut self) {
        (self.connection, self.deaf) = (None, None);
        if self.sent > 1 {
            self.shared.one_by_one.store(true, Ordering::Relaxed);
        }
        self.sent = 0;
    }

    fn refused(&mut self, span: ByteSpan, version: u64, head: &Head) -> Bad {
        if head.status == 200 {
            // The whole disk follows; not worth reading to its end.
            return self.corrupt(span, "server sends the whole file instead of a range");
        }
        let kind = match head.status {
            401 | 403 => match self.shared.refused(version, head.status) {
                Ok(()) => DiskErrorKind::Transient,
                Err(error) => error.disk_kind(),
            },
            status => status_kind(status),
        };
        let text = match self.connection.as_mut().map(|connection| connection.read_body(REFUSAL_BYTES_MAX)) {
            Some(Ok(body)) => first_words(&body),
            _ => String::new(),
        };
        let broken = match &self.connection {
            Some(connection) if connection.is_usable() => None,
            _ => Some(format!("server answered {}", head.status_line())),
        };
        let wait = head.header("retry-after").map(|time| format!(" (retry after {})", time.escape_debug()));
        let why = format!("server answered {}{}{text}", head.status_line(), wait.unwrap_or_default());
        Bad { error: self.error(kind, span, why), broken }
    }

    fn corrupt(&self, span: ByteSpan, why: &str) -> Bad {
        Bad {
            error: self.error(DiskErrorKind::Corrupt, span, why.to_string()),
            broken: Some(why.to_string()),
        }
    }

    fn lost(&self, span: ByteSpan, why: &str) -> Bad {
        Bad {
            error: self.error(DiskErrorKind::Transient, span, why.to_string()),
            broken: Some(why.to_string()),
        }
    }

    fn lost_by(&self, span: ByteSpan, error: HttpError) -> Bad {
        let broken = Some(chain(&error));
        Bad { error: disk_error(DiskOp::Read, span, &self.shared.name, error), broken }
    }

    fn error(&self, kind: DiskErrorKind, span: ByteSpan, why: String) -> DiskError {
        DiskError::with_kind(kind, DiskOp::Read, span, &self.shared.name, io::Error::other(why))
    }
}

impl Lane for RangeLane {
    fn submit(&mut self, request: Request) {
        let shared = &self.shared;
        let failed = check_request(request.span, &request.work, shared.size, false, &shared.name).err();
        self.queue.push_back(Queued { request, version: 0, failed });
        self.pump();
    }

    fn complete(&mut self) -> Option<Completion> {
        self.pump();
        let mut queued = self.queue.pop_front()?;
        let result = match &self.broken {
            Some(why) => Err(queued
                .failed
                .take()
                .unwrap_or_else(|| self.error(DiskErrorKind::Transient, queued.request.span, why.clone()))),
            None => self.answer(&mut queued).map_err(|bad| {
                self.broken = bad.broken;
                bad.error
            }),
        };
        self.sent = self.sent.saturating_sub(1);
        let Request { id, span, work } = queued.request;
        Some(Completion { id, span, work, result })
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn is_broken(&self) -> bool {
        self.broken.is_some()
    }
}

fn range_request(path: &str, span: ByteSpan, headers: Vec<(String, String)>) -> connection::Request {
    let range = format!("bytes={}-{}", span.offset, span.end() - 1);
    let mut request = connection::Request::get(path).with_header("Range", range);
    request.headers.extend(headers);
    request
}

/// An answer for other bytes than were asked for would be written to the wrong place of the target.
fn check_range(head: &Head, span: ByteSpan, size: u64) -> Result<(), String> {
    let told = head.header("content-range").ok_or("no content range")?;
    let wanted = format!("bytes {}-{}/", span.offset, span.end() - 1);
    let total = told
        .strip_prefix(&wanted)
        .ok_or_else(|| format!("asked for {wanted}, got {}", told.escape_debug()))?;
    if total != "*" && total.parse() != Ok(size) {
        return Err(format!("size was {size}, is now {}", total.escape_debug()));
    }
    match head.body {
        BodyLength::Known(length) if length != span.length => {
            Err(format!("asked for {} bytes, told {length}", span.length))
        }
        _ => Ok(()),
    }
}

/// Bodies without a known length end only after an empty read.
fn end_of_body(connection: &mut Connection) -> Result<(), HttpError> {
    connection.read_body(0).map(drop)
}

fn first_words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * REFUSAL_CHARS_SHOWN)]);
    let words: String =
        text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(REFUSAL_CHARS_SHOWN).collect();
    if words.is_empty() { words } else { format!(": {words}") }
}

/// An error and its causes in one line, for requests that fail with their lane.
fn chain(error: &HttpError) -> String {
    match &error.source {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
