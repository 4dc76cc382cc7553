//! What fuzzing needs of the private parts: a server's bytes in, all of the client's code behind them.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use drover_disk::{Buffer, Lane, Request, Work};
use drover_types::ByteSpan;

use crate::SftpOptions;
use crate::disk::Shared;
use crate::lane::{Remote, SftpLane};
use crate::session::Session;
use crate::wire::{self, Packet};

/// A socket takes this much without anyone reading at the other end, whatever it is cut into.
const BYTES_MAX: usize = 32 << 10;

/// Nothing waits: all bytes are there, and then the end.
const LIMIT: Duration = Duration::from_secs(10);

/// Of the file that an honest server tells of.
const SIZE: u32 = 1 << 20;

/// Requests over one session; the larger ones are cut into several reads.
const SPANS: [(u64, u64); 4] = [(0, 16), (512, 4096), (1 << 16, 200 << 10), ((1 << 20) - 1, 1)];

const HAS_SIZE: u32 = 1;

/// The bytes of a server. The first says whether an honest greeting, handle and size come before the rest.
pub fn replies(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let mut said = if choice & 1 == 0 { Vec::new() } else { honest() };
    said.extend(rest);
    said.truncate(BYTES_MAX);
    let Ok((mut session, _peer)) = session_of(&said) else { return };
    let opened = session.greet().and_then(|()| Remote::over(session, "/disk"));
    let Ok((remote, attributes)) = opened else { return };
    let uri = "ssh://host/disk".parse().expect("a URI");
    let shared = Shared { name: "disk".into(), uri, options: SftpOptions::default(), attributes };
    read(SftpLane::new(Arc::new(shared), remote));
}

/// A session to which `bytes` have come and no more will; the other end, to be kept.
fn session_of(bytes: &[u8]) -> io::Result<(Session, UnixStream)> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(bytes)?;
    theirs.shutdown(Shutdown::Write)?;
    let input = File::options().write(true).open("/dev/null")?;
    Ok((Session::over(input, File::from(OwnedFd::from(ours)), LIMIT), theirs))
}

fn honest() -> Vec<u8> {
    let attributes = Packet::new(wire::ATTRS, 2).number(HAS_SIZE).number(0).number(SIZE);
    [
        Packet::new(wire::VERSION, wire::VERSION_3).finish(),
        Packet::new(wire::HANDLE, 1).string(b"handle").finish(),
        attributes.finish(),
    ]
    .concat()
}

/// Every request ends once, with its own buffer, and after a break all end badly.
fn read(mut lane: SftpLane) {
    for (offset, length) in SPANS {
        let work = Work::Read(Buffer::zeroed(length as usize));
        lane.submit(Request { id: offset, span: ByteSpan::new(offset, length), work });
    }
    let mut ended = Vec::new();
    while let Some(completion) = lane.complete() {
        let Work::Read(buffer) = &completion.work else { unreachable!("only reads were asked for") };
        assert_eq!(buffer.len() as u64, completion.span.length);
        ended.push(completion.id);
    }
    ended.sort_unstable();
    assert_eq!(ended, SPANS.map(|(offset, _)| offset));
    assert_eq!(lane.in_flight(), 0);
}
