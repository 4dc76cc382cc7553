//! From a ticket to an AIO session with an open disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_log::log;
use drover_stream::{Address, Socket, Stream, printable};
use drover_tls::Trust;
use drover_types::Secret;

use crate::authd::{self, Greeting};
use crate::budget::Buffers;
use crate::classic::{MESSAGE_BYTES, Negotiation, Step};
use crate::connection::Connection;
use crate::error::{NfcError, NfcErrorKind};
use crate::frame::{self, kind};
use crate::tls::TlsMaker;
use crate::trace::Trace;

/// The longest line of a host.
const LINE_BYTES_MAX: usize = 4096;

/// Connecting, and each step that follows it, may take so long.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Messages of a host before it opens AIO; an honest one sends three.
const MESSAGES_MAX: usize = 16;

/// What is being done when the host refuses buffers.
pub const OPEN_SESSION: &str = "opening an AIO session";

/// The word that stands for the client's nonce; VMware's own client sends it.
const TAG: &str = "PlainText";

/// Leave to open the disks of one VM once, over one connection.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Address of the host that serves the data.
    pub host: String,
    /// The host's name, under which its memory is shared by whatever address it is read from.
    pub memory_of: String,
    /// Its port, 902 as a rule.
    pub port: u16,
    /// What the host's certificate is verified by.
    pub trust: Trust,
    /// `nfc` or `vpxa-nfc`.
    pub service: String,
    /// The secret itself.
    pub session: Secret,
}

/// Who gives tickets.
pub trait Tickets: Send + Sync {
    /// A new ticket: each is good for one connection.
    ///
    /// # Errors
    /// When none can be had.
    fn ticket(&self) -> Result<Ticket, NfcError>;

    /// A small call, so that the session in which tickets are given does not end while disks are read for hours.
    fn keep_alive(&self) {}
}

/// How to connect.
#[derive(Clone)]
pub struct Way {
    pub tls: Arc<dyn TlsMaker>,
    /// Whether the data goes through TLS too.
    pub encrypted: bool,
    /// Without a byte for this long the connection counts as broken.
    pub timeout: Duration,
    pub trace: Option<Arc<Trace>>,
    /// The host turned out not to know tags, whatever its greeting says.
    pub no_tag: bool,
}

/// What a new connection told.
pub struct Session {
    pub connection: Connection,
    pub opened: frame::Opened,
    pub version: u32,
}

/// Connects and opens a disk.
pub fn connect(
    way: &Way,
    ticket: &Ticket,
    buffers: Buffers,
    path: &str,
    writable: bool,
) -> Result<Session, NfcError> {
    let steps = || {
        let (stream, tag) = authd(way, ticket)?;
        let (stream, version) = classic(way, stream, tag)?;
        session(way, stream, version, buffers, path, writable)
    };
    let done = steps();
    if drover_log::is_on() {
        let end = match &done {
            Ok(session) => format!("open, protocol version {}", session.version),
            Err(error) => error.to_string(),
        };
        let Ticket { host, port, service, .. } = ticket;
        log!(
            "nfc",
            "{path} by {service} of {host}:{port}, {} x {} bytes: {end}",
            buffers.count,
            buffers.bytes
        );
    }
    done
}

/// The text lines, and what the stream goes on as: in the clear or in a second TLS session.
fn authd(way: &Way, ticket: &Ticket) -> Result<(Stream, Option<&'static str>), NfcError> {
    let words = [ticket.service.as_str(), ticket.session.reveal()];
    if !words.iter().all(|word| authd::is_word(word)) {
        return Err(NfcError::new(NfcErrorKind::Protocol, connecting(ticket), "the ticket is no ticket"));
    }
    talk(way, ticket, dial(ticket, way.timeout)?)
}

/// Whether a host's NFC server is there, and is the one of the ticket: takes its greeting and its certificate, and hangs up
/// before the ticket is sent. The limit is for each step.
///
/// # Errors
/// When it cannot be reached, when no NFC server answers, or when its certificate is not the ticket's.
pub fn greet(ticket: &Ticket, tls: &dyn TlsMaker, limit: Duration) -> Result<(), NfcError> {
    greeted(ticket, tls, dial(ticket, limit)?, limit, None).map(drop)
}

fn dial(ticket: &Ticket, limit: Duration) -> Result<Socket, NfcError> {
    let op = connecting(ticket);
    let address = Address::Tcp(ticket.host.clone(), ticket.port);
    Socket::connect(&address, CONNECT_LIMIT.min(limit))
        .map_err(|error| NfcError { kind: NfcErrorKind::Unreachable, ..NfcError::io(op, &error) })
}

fn connecting(ticket: &Ticket) -> String {
    format!("connect to the NFC server {}:{}", ticket.host, ticket.port)
}

/// The first line of a host, and the TLS session that follows it.
fn greeted(
    ticket: &Ticket,
    tls: &dyn TlsMaker,
    socket: Socket,
    limit: Duration,
    seen: Option<&Trace>,
) -> Result<(Stream, Greeting), NfcError> {
    let mut stream = Stream::Plain(socket);
    let line = receive_line(&mut stream, "greeting", limit).map_err(NfcError::before_ticket)?;
    if let Some(trace) = seen {
        trace.line(&format!("<- {line}"));
    }
    let greeting = Greeting::parse(&line)?;
    let stream = secured(ticket, tls, stream, limit).map_err(NfcError::before_ticket)?;
    Ok((stream, greeting))
}

/// A new TLS session over the same connection.
fn secured(ticket: &Ticket, tls: &dyn TlsMaker, stream: Stream, limit: Duration) -> Result<Stream, NfcError> {
    let socket = stream.into_socket().map_err(|error| NfcError::io("taking the connection over", &error))?;
    tls.start(socket, &ticket.host, &ticket.trust, limit)
}

/// As [`authd`], over a socket.
pub fn talk(way: &Way, ticket: &Ticket, socket: Socket) -> Result<(Stream, Option<&'static str>), NfcError> {
    let limit = CONNECT_LIMIT.max(way.timeout);
    let (mut stream, greeting) = greeted(ticket, way.tls.as_ref(), socket, limit, way.trace.as_deref())?;
    if way.encrypted && !greeting.nfcssl {
        // Old hosts may not say it; PROXY is refused if it is so.
        trace(way, "the greeting does not offer NFCSSL");
    }
    send(&mut stream, "SESSION", &format!("SESSION {}\r\n", ticket.session.reveal()), limit)?;
    ask(way, &mut stream, "BANNER ", "220", limit)?;
    let tag = (greeting.sha256 && !way.no_tag).then_some(TAG);
    if let Some(tag) = tag {
        ask(way, &mut stream, &format!("THUMBPRINT_SHA2 {tag}"), "200", limit)?;
    }
    let service = authd::service(&ticket.service, way.encrypted);
    let proxied = ask(way, &mut stream, &format!("PROXY {service}"), "200 Connect", limit);
    proxied
        .map_err(|error| if way.encrypted && !greeting.nfcssl { error.without_nfcssl() } else { error })?;
    // The TLS session ends here without a word of either side.
    let stream = match way.encrypted {
        true => secured(ticket, way.tls.as_ref(), stream, limit)?,
        false => {
            let socket =
                stream.into_socket().map_err(|error| NfcError::io("taking the connection over", &error))?;
            Stream::Plain(socket)
        }
    };
    Ok((stream, tag))
}

fn trace(way: &Way, text: &str) {
    if let Some(trace) = &way.trace {
        trace.line(text);
    }
}

fn send(stream: &mut Stream, op: &str, text: &str, limit: Duration) -> Result<(), NfcError> {
    stream.send_all(text.as_bytes(), limit).map_err(|error| NfcError::io(op, &error))
}

fn ask(way: &Way, stream: &mut Stream, command: &str, good: &str, limit: Duration) -> Result<(), NfcError> {
    let name = command.trim_end();
    send(stream, name, &format!("{command}\r\n"), limit)?;
    let line = receive_line(stream, name, limit)?;
    trace(way, &format!("-> {name}"));
    trace(way, &format!("<- {line}"));
    authd::check(name, good, &line)
}

/// Up to the end of a line, and no byte further: what follows in the clear may be TLS.
fn receive_line(stream: &mut Stream, op: &str, limit: Duration) -> Result<String, NfcError> {
    let until = Instant::now() + limit;
    let mut line = Vec::new();
    while line.len() < LINE_BYTES_MAX && Instant::now() < until {
        let mut byte = [0];
        stream.receive(&mut byte, true).map_err(|error| NfcError::io(op, &error))?;
        if byte[0] == b'\n' {
            let text = String::from_utf8_lossy(&line);
            return Ok(printable(text.trim_end_matches('\r')));
        }
        line.push(byte[0]);
    }
    let what = format!("{} bytes without an end of line", line.len());
    Err(NfcError::new(NfcErrorKind::Protocol, op, what))
}

/// The classic messages: gives the host's version.
pub fn classic(way: &Way, mut stream: Stream, tag: Option<&str>) -> Result<(Stream, u32), NfcError> {
    let op = "opening the NFC session";
    let limit = CONNECT_LIMIT.max(way.timeout);
    let until = Instant::now() + limit;
    let failed = |error| NfcError::io(op, &error);
    let mut negotiation = Negotiation::new(tag);
    for _ in 0..MESSAGES_MAX {
        match negotiation.next() {
            // One to a record of TLS: hosts take one message of each.
            Step::Send(messages) => {
                for message in messages {
                    if let Some(trace) = way.trace.as_ref().filter(|_| message.len() == MESSAGE_BYTES) {
                        trace.message(false, &message);
                    }
                    stream.send_all(&message, limit).map_err(failed)?;
                }
            }
            Step::Receive => {
                let mut message = [0; MESSAGE_BYTES];
                fill(&mut stream, &mut message, until).map_err(failed)?;
                if let Some(trace) = &way.trace {
                    trace.message(true, &message);
                }
                negotiation.on_message(&message)?;
            }
            Step::ReceiveText(length) => {
                let mut text = vec![0; length];
                fill(&mut stream, &mut text, until).map_err(failed)?;
                let error = negotiation.on_text(&text);
                if let Some(trace) = &way.trace {
                    trace.text(&error.why);
                }
                return Err(error);
            }
            Step::Done => return Ok((stream, negotiation.version().unwrap_or(0))),
        }
    }
    Err(NfcError::new(NfcErrorKind::Protocol, op, "the host sends messages without end"))
}

/// Each byte in its own good time would keep us for days.
fn fill(stream: &mut Stream, bytes: &mut [u8], until: Instant) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        if Instant::now() > until {
            return Err(drover_stream::timed_out());
        }
        filled += stream.receive(&mut bytes[filled..], true)?;
    }
    Ok(())
}

/// AIO from its first frame to the open disk.
pub fn session(
    way: &Way,
    mut stream: Stream,
    version: u32,
    buffers: Buffers,
    path: &str,
    writable: bool,
) -> Result<Session, NfcError> {
    stream.set_timeout(way.timeout).map_err(|error| NfcError::io("setting a time limit", &error))?;
    let mut connection = Connection::new(stream, buffers.bytes, way.timeout, way.trace.clone());
    let opening = frame::open_session(buffers.bytes, buffers.count);
    connection.call(OPEN_SESSION, kind::OPEN_SESSION, &opening, &[])?;
    connection.session_opened();
    connection.call("setting socket options", kind::SET_SOCKET_OPTIONS, &[0; 12], &[])?;
    connection.call("setting the resource pool", kind::SET_RESOURCE_POOL, &1u32.to_le_bytes(), &[])?;
    let op = format!("opening {path}");
    let reply = connection.call(&op, kind::OPEN_FILE, &frame::open_file(path, writable), path.as_bytes())?;
    let opened = frame::Opened::decode(&reply.payload)
        .map_err(|why| NfcError::new(NfcErrorKind::Protocol, op.as_str(), why))?;
    if opened.status != 0 {
        return Err(NfcError::of_host(op, opened.status, ""));
    }
    connection.opened(opened.handle);
    Ok(Session { connection, opened, version })
}
