//! What fuzzing needs of the private parts: a host's bytes in, all of the client's code behind them.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use drover_disk::{Buffer, Slice, Work};
use drover_http::Trust;
use drover_stream::{Socket, Stream};
use drover_types::{ByteSpan, Secret};

use crate::budget::Buffers;
use crate::codec::Codec;
use crate::connect::{self, Ticket, Way};
use crate::connection::Connection;
use crate::error::NfcError;
use crate::frame::{self, kind};
use crate::pending::Owner;
use crate::tls::TlsMaker;

/// A socket takes this much without anyone reading at the other end, whatever it is cut into.
const BYTES_MAX: usize = 32 << 10;

/// Nothing waits: all bytes are there, and then the end.
const LIMIT: Duration = Duration::from_secs(10);

const BUFFER_BYTES: u32 = 64 << 10;
const OWNER: u64 = 1;

/// TLS is not what is tested here.
struct NoTls;

impl TlsMaker for NoTls {
    fn start(&self, socket: Socket, _: &str, _: &Trust, _: Duration) -> Result<Stream, NfcError> {
        Ok(Stream::Plain(socket))
    }
}

fn stream_of(bytes: &[u8]) -> io::Result<(Socket, UnixStream)> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(&bytes[..bytes.len().min(BYTES_MAX)])?;
    theirs.shutdown(Shutdown::Write)?;
    let socket = Socket::Unix(ours);
    socket.set_timeout(LIMIT)?;
    Ok((socket, theirs))
}

/// The bytes of a host from its greeting on, through lines and classic messages to the open disk and its replies.
pub fn handshake(bytes: &[u8]) {
    let Ok((socket, _peer)) = stream_of(bytes) else { return };
    let way = Way { tls: Arc::new(NoTls), encrypted: true, timeout: LIMIT, trace: None, no_tag: false };
    let ticket = Ticket {
        host: "esx1".to_string(),
        port: 902,
        trust: Trust::System,
        service: "nfc".to_string(),
        session: Secret::new("52-ab"),
    };
    let Ok((stream, tag)) = connect::talk(&way, &ticket, socket) else { return };
    let Ok((stream, version)) = connect::classic(&way, stream, tag) else { return };
    let buffers = Buffers { bytes: BUFFER_BYTES, count: 1 };
    if let Ok(session) = connect::session(&way, stream, version, buffers, "[a] b/b.vmdk", false) {
        requests(session.connection);
    }
}

/// The bytes of a host in an AIO session.
pub fn frames(bytes: &[u8]) {
    let Ok((socket, _peer)) = stream_of(bytes) else { return };
    requests(Connection::new(Stream::Plain(socket), BUFFER_BYTES, LIMIT, None));
}

/// One request of each kind, and all that comes for them.
fn requests(mut connection: Connection) {
    let read = |length: u64| Work::Read(Buffer::zeroed(length as usize));
    let codecs = [Codec::None, Codec::Zlib, Codec::FastLz, Codec::SkipZ];
    for (id, codec) in (0..).zip(codecs) {
        let span = ByteSpan::new(id * 4096, 2048);
        connection.start_work(Owner { owner: OWNER, id }, span, read(span.length), codec);
    }
    let write = Work::Write(Slice::from(Buffer::zeroed(512)));
    connection.start_work(Owner { owner: OWNER, id: 4 }, ByteSpan::new(0, 512), write, Codec::None);
    connection.start_control(kind::QUERY_ALLOCATED, &frame::query_allocated(1, 65536, 0, 64), &[], 64);
    connection.start_control(kind::DDB_GET, &frame::ddb_get(1, "uuid"), b"uuid", 0);
    let mut ended = 0;
    while ended < 7 {
        connection.receive();
        for owner in [OWNER, crate::connection::CONTROL] {
            while connection.take(owner).is_some() {
                ended += 1;
            }
        }
    }
}
