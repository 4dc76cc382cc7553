//! What fuzzing needs of the private parts: a client's bytes in, all of the server's code behind them.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use drover_disk::memory::MemDisk;

use crate::connection::{self, Context};
use crate::export::Export;
use crate::negotiate::TlsRule;
use crate::stream::{Socket, Stream};
use crate::wire::Run;

/// A socket takes this much without anyone reading at the other end.
const BYTES_MAX: usize = 64 << 10;

const LIMIT: Duration = Duration::from_secs(10);

const SIZE: u64 = 32 << 10;

/// The bytes of a client from its flags on, and then the end.
pub fn client(bytes: &[u8]) {
    // A machine out of sockets finds nothing; that is no finding.
    let _ = serve(&bytes[..bytes.len().min(BYTES_MAX)]);
}

fn serve(bytes: &[u8]) -> io::Result<()> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(bytes)?;
    theirs.shutdown(Shutdown::Write)?;
    let stream = Stream::new(Socket::Unix(ours))?;
    let context = Context {
        exports: exports(),
        tls: None,
        rule: TlsRule::Off,
        handshake_max: LIMIT,
        stopping: Arc::new(AtomicBool::new(false)),
    };
    std::thread::scope(|scope| {
        // Answers are taken, so that no one waits. A client that breaks the protocol is cut off.
        scope.spawn(move || io::copy(&mut theirs, &mut io::sink()));
        let _ = connection::run(&stream, &context, || {});
        stream.close();
    });
    Ok(())
}

fn exports() -> Vec<Arc<Export>> {
    let disk = |name: &str| Arc::new(MemDisk::new(name, (0..SIZE).map(|at| (at >> 13) as u8 & 1).collect()));
    let half = |span: drover_types::ByteSpan| vec![Run { length: span.length.div_ceil(2), flags: 1 }];
    let fenced = Export::new("fenced", disk("fenced")).fenced(None);
    let open = Export::new("disk", disk("disk")).writable().holes_in_reads();
    let open = open.with_context("drover:recorded", half);
    let read_only = Export::new("read-only", disk("read-only"));
    fenced.into_iter().chain([open, read_only]).map(Arc::new).collect()
}
