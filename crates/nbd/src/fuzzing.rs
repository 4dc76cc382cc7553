//! What fuzzing needs of the private parts: a server's bytes in, all of the client's code behind them.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use drover_disk::{Buffer, Slice, Work};
use drover_stream::{Socket, Stream};
use drover_types::ByteSpan;

use crate::connection::{Connection, Peer, Timeouts};
use crate::handshake::{BLOCK_SIZES_UNTOLD, Contexts, Export, Style, Wishes, handshake};
use crate::list::ask_talk;
use crate::reply::Ticket;
use crate::talk::Talk;
use crate::wire::{Command, flag};

/// A socket takes this much without anyone reading at the other end, whatever it is cut into.
const BYTES_MAX: usize = 32 << 10;

/// A list asks once for each few bytes of an answer, and nobody takes what it asks.
const LIST_BYTES_MAX: usize = 2 << 10;

/// Nothing waits: all bytes are there, and then the end.
const LIMIT: Duration = Duration::from_secs(10);

/// Rounds of requests over one connection.
const ROUNDS_MAX: usize = 4;

const OWNER: u64 = 1;

/// A stream on which `bytes` have come and no more will; the other end, to be kept.
fn stream_of(bytes: &[u8]) -> io::Result<(Stream, UnixStream)> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(bytes)?;
    theirs.shutdown(Shutdown::Write)?;
    let socket = Socket::Unix(ours);
    socket.set_timeout(LIMIT)?;
    Ok((Stream::Plain(socket), theirs))
}

/// The bytes of a server from its greeting on: handshake, then transmission.
pub fn greeting(bytes: &[u8]) {
    let Ok((stream, _peer)) = stream_of(&bytes[..bytes.len().min(BYTES_MAX)]) else { return };
    let wishes = Wishes { export: "disk", tls: None, dirty_bitmap: Some("monday"), fence: Some(3) };
    if let Ok((stream, export)) = handshake(Talk::new(stream, LIMIT), &wishes) {
        transmission(stream, export);
    }
}

/// The bytes of a server that is asked for its exports.
pub fn list(bytes: &[u8]) {
    let Ok((stream, _peer)) = stream_of(&bytes[..bytes.len().min(LIST_BYTES_MAX)]) else { return };
    let _ = ask_talk(Talk::new(stream, LIMIT), None);
}

/// The bytes of a server in transmission. The first says what was agreed.
pub fn replies(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let Ok((stream, _peer)) = stream_of(&bytes[..bytes.len().min(BYTES_MAX)]) else { return };
    let style = [Style::Simple, Style::Structured, Style::Extended][usize::from(*choice % 3)];
    let contexts = Contexts { allocation: Some(1), dirty: Some(2), fence: Some(3) };
    let zeroes = if choice & 4 == 0 { flag::WRITE_ZEROES } else { 0 };
    let flags = flag::FLUSH | flag::FUA | zeroes;
    transmission(stream, Export { size: 1 << 20, flags, style, contexts, block: BLOCK_SIZES_UNTOLD });
}

fn transmission(stream: Stream, export: Export) {
    let timeouts = Timeouts { silence: LIMIT, request: LIMIT };
    let lost = Arc::new(AtomicBool::new(false));
    let mut connection = Connection::new(stream, Peer::Server, export, timeouts, lost);
    for _ in 0..ROUNDS_MAX {
        let started = start(&mut connection, export.size);
        let mut ended = 0;
        while ended < started {
            connection.receive();
            while let Some(end) = connection.take(OWNER) {
                ended += 1;
                check(&end.status.allocation, end.span, end.result.is_ok());
            }
        }
        if connection.is_broken() {
            return;
        }
    }
}

/// One request of each kind, with cookies from 1 on.
fn start(connection: &mut Connection, size: u64) -> usize {
    let ticket = |id| Ticket { owner: OWNER, id };
    let span = |offset: u64, length: u64| ByteSpan::new(offset.min(size), length.min(size));
    let read = |length: u64| Work::Read(Buffer::zeroed(length as usize));
    let (short, long) = (span(0, 16), span(512, 4096));
    connection.start_work(ticket(1), short, read(short.length));
    connection.start_work(ticket(2), long, read(long.length));
    connection.start_plain(ticket(3), Command::BlockStatus, span(0, size));
    connection.start_work(ticket(4), short, Work::Write(Slice::from(Buffer::zeroed(short.length as usize))));
    connection.start_work(ticket(5), long, Work::Zero);
    connection.start_plain(ticket(6), Command::Flush, ByteSpan::new(0, 0));
    6
}

/// What is told of a span starts with it, has no gaps, and ends in it.
fn check(extents: &[drover_types::Extent], span: ByteSpan, is_ok: bool) {
    let mut at = span.offset;
    for extent in extents.iter().filter(|_| is_ok) {
        assert!(extent.span.offset == at && !extent.span.is_empty(), "{extent:?} at {at}");
        at = extent.span.end();
    }
    assert!(!is_ok || at <= span.end(), "status goes on to {at}");
}
