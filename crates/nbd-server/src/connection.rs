//! One client, from its greeting to its end.
//!
//! ```text
//! reader (this thread) ── head, data ── check ──> queue ──> workers ── disk ──> reply
//!        waits while the queue holds all it may                  as many as there is work for
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use drover_disk::fence::GateError;
use drover_nbd::wire::{self as shared, COMMAND_PAYLOAD, FIXED_NEWSTYLE, Fields, NO_ZEROES, answer, option};
use rustls::ServerConfig;

use crate::export::{Access, Export};
use crate::negotiate::{
    Agreed, Negotiation, OPTION_BYTES_MAX, OPTIONS_MAX, REQUEST_BYTES_MAX, Step, TlsRule,
};
use crate::queue::{IN_FLIGHT_BYTES_MAX, Queue};
use crate::serve::{Failure, Job, Service, check};
use crate::stream::{Input, Stream};
use crate::wire::{self, Framing, command, errno};

const _: () = assert!(REQUEST_BYTES_MAX as u64 <= IN_FLIGHT_BYTES_MAX, "the largest request must fit");

/// Payloads of refused requests are read and forgotten up to this; a client beyond that is lost.
const SKIP_BYTES_MAX: u64 = 64 << 20;

/// What a connection needs to know of its server.
pub(crate) struct Context {
    pub exports: Vec<Arc<Export>>,
    pub tls: Option<Arc<ServerConfig>>,
    pub rule: TlsRule,
    pub handshake_max: Duration,
    pub stopping: Arc<AtomicBool>,
}

/// Serves one client to its end.
///
/// # Errors
/// When the client breaks the protocol or goes away in the middle; nobody but a log cares.
pub(crate) fn run(stream: &Stream, context: &Context, entered: impl FnOnce()) -> io::Result<()> {
    let mut input = Input::new(stream);
    let Some(agreed) = handshake(stream, &mut input, context, Instant::now() + context.handshake_max)? else {
        stream.finish();
        return Ok(());
    };
    entered();
    stream.unlimit()?;
    let queue = Queue::new();
    let service = Service { agreed: &agreed, stream, queue: &queue };
    let result = std::thread::scope(|scope| {
        let mut reader = Reader { input, service: &service, context, scope, workers: 0 };
        let result = reader.run();
        match &result {
            // What was asked is still answered. A server that stops ends its reading in the middle of
            // whatever it is, which TLS takes for an error.
            Ok(()) => queue.close(),
            Err(_) if context.stopping.load(SeqCst) => queue.close(),
            Err(_) => {
                queue.abort();
                stream.close();
            }
        }
        result
    });
    stream.finish();
    result
}

fn protocol<T>(text: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, text.into()))
}

/// Goes from connect to transmission; `None` if the client only asked, or was refused.
fn handshake(
    stream: &Stream,
    input: &mut Input<'_>,
    context: &Context,
    until: Instant,
) -> io::Result<Option<Agreed>> {
    let mut greeting = shared::MAGIC.to_be_bytes().to_vec();
    greeting.extend(shared::OPTION_MAGIC.to_be_bytes());
    greeting.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    stream.limit(until)?;
    stream.write(&greeting)?;
    let flags = u32::from_be_bytes(read_array(stream, input, until)?);
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return protocol(format!("client flags {flags:#x}"));
    }
    let padded = flags & u32::from(NO_ZEROES) == 0;
    let mut negotiation = Negotiation::new(&context.exports, context.rule, padded);
    for _ in 0..OPTIONS_MAX {
        let (code, data) = match read_option(stream, input, until)? {
            (code, Some(data)) => (code, data),
            (code, None) => {
                let text = format!("no more than {OPTION_BYTES_MAX} bytes in an option");
                stream.write(&wire::answer(code, answer::TOO_BIG, text.as_bytes()))?;
                continue;
            }
        };
        match negotiation.option(code, &data) {
            Step::Reply(bytes) => stream.write(&bytes)?,
            Step::Close(bytes) => {
                stream.write(&bytes)?;
                return Ok(None);
            }
            Step::StartTls(bytes) => {
                // Bytes sent before the answer came unprotected and would pass for protected ones.
                let Some(config) = context.tls.as_ref().filter(|_| input.is_empty()) else {
                    return protocol("bytes ahead of TLS");
                };
                stream.write(&bytes)?;
                stream.start_tls(config)?;
                negotiation.secured();
            }
            Step::Transmit { agreed, yes, option } => match enter(&agreed) {
                Ok(()) => {
                    stream.write(&yes)?;
                    return Ok(Some(*agreed));
                }
                Err(_) if option == option::EXPORT_NAME => return Ok(None),
                Err(text) => stream.write(&wire::answer(option, answer::POLICY, text.as_bytes()))?,
            },
        }
    }
    protocol("options without end")
}

/// Lets the client's epoch in, if it has one. Clients without one are let in, to read.
fn enter(agreed: &Agreed) -> Result<(), String> {
    let Access::Fenced(gate) = &agreed.export.access else { return Ok(()) };
    match agreed.epoch {
        0 => Ok(()),
        epoch => gate.enter(epoch).map_err(|error| match &error {
            GateError::Superseded(_) => error.to_string(),
            GateError::File(file) => format!("{error}: {file}"),
        }),
    }
}

fn read_array<const N: usize>(stream: &Stream, input: &mut Input<'_>, until: Instant) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    read_limited(stream, input, until, &mut bytes)?;
    Ok(bytes)
}

/// Piece by piece, so that a client which sends a byte now and then gains nothing by it.
fn read_limited(stream: &Stream, input: &mut Input<'_>, until: Instant, bytes: &mut [u8]) -> io::Result<()> {
    for byte in bytes {
        if input.is_empty() {
            stream.limit(until)?;
        }
        input.read_exact(std::slice::from_mut(byte))?;
    }
    Ok(())
}

/// An option and its data; no data if that is more than we take.
fn read_option(stream: &Stream, input: &mut Input<'_>, until: Instant) -> io::Result<(u32, Option<Vec<u8>>)> {
    let head: [u8; 16] = read_array(stream, input, until)?;
    let mut fields = Fields(&head);
    let (Some(shared::OPTION_MAGIC), Some(code), Some(length)) = (fields.u64(), fields.u32(), fields.u32())
    else {
        return protocol("an option with a wrong start");
    };
    if length > OPTION_BYTES_MAX {
        if u64::from(length) > SKIP_BYTES_MAX {
            return protocol(format!("an option of {length} bytes"));
        }
        for _ in 0..length {
            read_array::<1>(stream, input, until)?;
        }
        return Ok((code, None));
    }
    let mut data = vec![0; length as usize];
    read_limited(stream, input, until, &mut data)?;
    Ok((code, Some(data)))
}

struct Reader<'scope, 'env> {
    input: Input<'env>,
    service: &'scope Service<'env>,
    context: &'env Context,
    scope: &'scope Scope<'scope, 'env>,
    workers: usize,
}

impl<'scope> Reader<'scope, '_> {
    /// Takes requests until the client leaves or the server stops.
    fn run(&mut self) -> io::Result<()> {
        let extended = self.service.agreed.framing == Framing::Extended;
        let mut bytes = [0; shared::EXTENDED_REQUEST_BYTES];
        let bytes = &mut bytes[..wire::request_bytes(extended)];
        while self.input.wait()? {
            self.input.read_exact(bytes)?;
            let Some(head) = wire::decode_request(bytes, extended) else {
                return protocol("a request with a wrong start");
            };
            if head.command == command::DISCONNECT {
                return Ok(());
            }
            if self.context.stopping.load(SeqCst) {
                let failure = Failure::new(errno::ESHUTDOWN, "the server is about to end");
                return self.service.send_failure(&head, &failure);
            }
            self.take(head)?;
        }
        Ok(())
    }

    fn take(&mut self, head: wire::RequestHead) -> io::Result<()> {
        let extended = self.service.agreed.framing == Framing::Extended;
        let payload = match head.command {
            command::WRITE => head.length,
            _ if extended && head.flags & COMMAND_PAYLOAD != 0 => head.length,
            _ => 0,
        };
        if let Err(failure) = check(self.service.agreed, &head) {
            if payload > SKIP_BYTES_MAX {
                return protocol(format!("a payload of {payload} bytes"));
            }
            self.input.skip(payload)?;
            return self.service.send_failure(&head, &failure);
        }
        let bytes = match head.command {
            command::READ | command::WRITE => head.length,
            _ => 0,
        };
        if !self.service.queue.reserve(bytes) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let data = match head.command {
            command::WRITE => {
                let mut buffer = self.service.queue.buffer(head.length as usize);
                self.input.read_exact(&mut buffer)?;
                Some(buffer)
            }
            _ => None,
        };
        self.hand_over(Job { head, data, bytes })
    }

    fn hand_over(&mut self, job: Job) -> io::Result<()> {
        let busy = self.service.queue.push(job);
        if !busy || self.workers >= self.service.agreed.export.lanes.max() {
            return Ok(());
        }
        let service = self.service;
        let worker = Builder::new().name("nbd-worker".to_string());
        match worker.spawn_scoped(self.scope, move || work(service)) {
            Ok(_) => self.workers += 1,
            // With others at work it only goes slower.
            Err(error) if self.workers == 0 => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }
}

/// Does jobs until there are none any more. A client that takes no replies costs its connection.
fn work(service: &Service<'_>) {
    while let Some(job) = service.queue.take() {
        let bytes = job.bytes;
        let guard = Done { service, bytes };
        if service.run(job).is_err() {
            service.queue.abort();
            service.stream.close();
        }
        drop(guard);
    }
}

/// Ends a job even if the disk panics: the reader waits for it.
struct Done<'a, 'b> {
    service: &'a Service<'b>,
    bytes: u64,
}

impl Drop for Done<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.service.queue.abort();
            self.service.stream.close();
        }
        self.service.queue.done(self.bytes);
    }
}
