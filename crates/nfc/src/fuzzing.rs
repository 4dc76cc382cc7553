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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::CONTROL;
    use crate::pending::Ended;

    const HANDSHAKE: &[u8] = include_bytes!("../../../fuzz/corpus/nfc_handshake/seed-all");
    const FRAMES: &[u8] = include_bytes!("../../../fuzz/corpus/nfc_frames/seed-all");
    const REFUSED: &[u8] = include_bytes!("../../../fuzz/corpus/nfc_handshake/seed-refused");

    /// Up to the last classic message; gives the host's version.
    fn open(bytes: &[u8]) -> Result<u32, NfcError> {
        let (socket, _peer) = stream_of(bytes).unwrap();
        let way = Way { tls: Arc::new(NoTls), encrypted: true, timeout: LIMIT, trace: None, no_tag: false };
        let ticket = Ticket {
            host: "esx1".to_string(),
            port: 902,
            trust: Trust::System,
            service: "nfc".to_string(),
            session: Secret::new("52-ab"),
        };
        let (stream, tag) = connect::talk(&way, &ticket, socket)?;
        assert_eq!(tag, Some("PlainText"));
        Ok(connect::classic(&way, stream, tag)?.1)
    }

    #[test]
    fn mixed_fragments_of_all_kinds_and_an_error_with_its_reply_are_understood() {
        let (socket, _peer) = stream_of(FRAMES).unwrap();
        let mut connection = Connection::new(Stream::Plain(socket), BUFFER_BYTES, LIMIT, None);
        for (id, codec) in (0..).zip([Codec::None, Codec::Zlib, Codec::FastLz, Codec::SkipZ]) {
            let work = Work::Read(Buffer::zeroed(2048));
            connection.start_work(Owner { owner: OWNER, id }, ByteSpan::new(id * 4096, 2048), work, codec);
        }
        let write = Work::Write(Slice::from(Buffer::zeroed(512)));
        connection.start_work(Owner { owner: OWNER, id: 4 }, ByteSpan::new(0, 512), write, Codec::None);
        connection.start_control(kind::QUERY_ALLOCATED, &frame::query_allocated(1, 65536, 0, 64), &[], 64);
        connection.start_control(kind::DDB_GET, &frame::ddb_get(1, "uuid"), b"uuid", 0);
        let mut take = |owner| -> Ended {
            loop {
                match connection.take(owner) {
                    Some(ended) => return ended,
                    None => connection.receive(),
                }
            }
        };
        let mut expected = [vec![9u8; 2048], vec![6; 2048], vec![0; 2048], vec![8; 2048]];
        expected[3][1024..].fill(7);
        expected[2][5..8].copy_from_slice(b"abc");
        for (id, content) in [(3, &expected[2]), (0, &expected[3]), (2, &expected[0]), (1, &expected[1])] {
            let ended = take(OWNER);
            assert_eq!((ended.owner.id, ended.result.is_ok()), (id, true));
            let Work::Read(buffer) = ended.work else { panic!("a read") };
            assert!(buffer[..] == content[..], "read {id}");
        }
        assert_eq!(take(OWNER).owner.id, 4, "the write");
        assert_eq!(take(CONTROL).result.unwrap().extra, [0xaa; 8]);
        let error = crate::connection::control_error("asking", take(CONTROL).result.unwrap_err());
        assert!(error.to_string().contains("NFC error 99: no such"), "{error}");
    }

    #[test]
    fn lines_and_classic_messages_lead_to_aio_and_a_refusal_is_told_in_the_hosts_words() {
        assert_eq!(open(HANDSHAKE).unwrap(), 11);
        let error = open(REFUSED).unwrap_err();
        assert!(error.to_string().contains("no"), "{error}");
        // Cut anywhere it is an error, and never a hang or a panic.
        for length in (0..HANDSHAKE.len()).step_by(97) {
            handshake(&HANDSHAKE[..length]);
        }
    }
}
