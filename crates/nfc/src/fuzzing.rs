//! What fuzzing needs of the private parts: a host's bytes in, all of the client's code behind them.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use drover_disk::{Buffer, Slice, Work};
use drover_stream::{Socket, Stream};
use drover_tls::Trust;
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
        memory_of: "esx1".to_string(),
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
    use std::sync::{Mutex, MutexGuard};

    use super::*;
    use crate::connection::CONTROL;
    use crate::pending::Ended;
    use crate::trace::Trace;

    const HANDSHAKE: &[u8] = include_bytes!("../../../fuzz/corpus/nfc_handshake/seed-all");
    const FRAMES: &[u8] = include_bytes!("../../../fuzz/corpus/nfc_frames/seed-all");
    const REFUSED: &[u8] = include_bytes!("../../../fuzz/corpus/nfc_handshake/seed-refused");

    const TICKET: &str = "52-ab";

    /// What a trace wrote.
    #[derive(Clone, Default)]
    struct Traced(Arc<Mutex<Vec<u8>>>);

    impl Traced {
        fn trace(&self) -> Option<Arc<Trace>> {
            Some(Arc::new(Trace::new(Box::new(self.clone()))))
        }

        fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
            self.0.lock().unwrap()
        }

        /// Its lines, without their times.
        fn lines(&self) -> Vec<String> {
            let text = String::from_utf8(self.bytes().clone()).unwrap();
            text.lines().map(|line| line.split_once(' ').unwrap().1.to_string()).collect()
        }
    }

    impl Write for Traced {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.bytes().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Up to the last classic message; gives the host's version.
    fn open(bytes: &[u8], trace: Option<Arc<Trace>>) -> Result<u32, NfcError> {
        let (socket, _peer) = stream_of(bytes).unwrap();
        let way = Way { tls: Arc::new(NoTls), encrypted: true, timeout: LIMIT, trace, no_tag: false };
        let ticket = Ticket {
            host: "esx1".to_string(),
            memory_of: "esx1".to_string(),
            port: 902,
            trust: Trust::System,
            service: "nfc".to_string(),
            session: Secret::new(TICKET),
        };
        let (stream, tag) = connect::talk(&way, &ticket, socket)?;
        assert_eq!(tag, Some("PlainText"));
        Ok(connect::classic(&way, stream, tag)?.1)
    }

    #[test]
    fn a_trace_tells_what_both_sides_say_but_neither_ticket_nor_names_nor_data() {
        let traced = Traced::default();
        assert_eq!(open(HANDSHAKE, traced.trace()).unwrap(), 11);
        let lines = traced.lines();
        let messages: Vec<&str> =
            lines.iter().filter(|line| line.contains("classic")).map(String::as_str).collect();
        assert_eq!(
            messages[..3],
            [
                "-> classic type=43 body=506c61696e54657874000000",
                "-> classic type=33 body=",
                "-> classic type=51 body=0b000000"
            ]
        );
        let of_host = "<- classic type=51 body=0b000000";
        assert!(messages[3..5].contains(&of_host), "{messages:?}");
        assert!(
            messages[3..5].iter().any(|line| line.starts_with("<- classic type=36 body=")),
            "{messages:?}"
        );
        assert_eq!(
            messages[5..],
            [
                "-> classic type=54 body=0600000007000000",
                "-> classic type=55 body=03000000",
                "-> classic type=52 body=",
                "<- classic type=52 body="
            ]
        );
        assert!(lines.contains(&"-> PROXY nfcssl".to_string()), "{lines:?}");
        let text = lines.join("\n");
        assert!(!text.contains(TICKET) && !text.contains("SESSION") && !text.contains("nbdmode"), "{text}");

        let refused = Traced::default();
        let why = open(REFUSED, refused.trace()).unwrap_err().why;
        assert_eq!(refused.lines().last(), Some(&format!("<- text={why}")));

        // Each fragment of the reads is of one byte's value, as is the bitmap.
        let traced = Traced::default();
        let (socket, _peer) = stream_of(FRAMES).unwrap();
        requests(Connection::new(Stream::Plain(socket), BUFFER_BYTES, LIMIT, traced.trace()));
        let text = traced.lines().join("\n");
        assert!(text.contains("-> type=7 ") && text.contains("<- type=7 "), "{text}");
        assert!(text.contains("<- text=no such"), "{text}");
        assert!(
            ["06060606", "08080808", "09090909", "aaaaaaaa"].iter().all(|data| !text.contains(data)),
            "{text}"
        );
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
        assert_eq!(open(HANDSHAKE, None).unwrap(), 11);
        let error = open(REFUSED, None).unwrap_err();
        assert!(error.to_string().contains("no"), "{error}");
        // Cut anywhere it is an error, and never a hang or a panic.
        for length in (0..HANDSHAKE.len()).step_by(97) {
            handshake(&HANDSHAKE[..length]);
        }
    }
}
