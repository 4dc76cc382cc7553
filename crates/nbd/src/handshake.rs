use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;

use crate::wire::{self, Fields, answer, flag, info, option};

/// What the server told about the export, and what both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Bytes.
    pub size: u64,
    /// Transmission flags, see [`flag`].
    pub flags: u16,
    /// Whether replies come in chunks.
    pub structured: bool,
    /// The id of `base:allocation` in block status.
    pub context: Option<u32>,
    /// Block size constraints.
    pub block: BlockSizes,
}

/// Block size constraints in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    pub minimum: u64,
    pub preferred: u64,
    pub maximum: u64,
}

/// What holds if the server says nothing: any byte, and 32 MiB, which every server must take.
/// The protocol advises 512 as the minimum in that case; servers that care do tell.
const BLOCK_SIZES_UNTOLD: BlockSizes = BlockSizes { minimum: 1, preferred: 4096, maximum: 32 << 20 };

/// Data of one answer to an option; the longest honest one is an info with two strings.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// Answers to one option; only a list of exports has more than a few.
const ANSWERS_MAX: usize = 4096;

/// Names of exports shown in an error.
const NAMES_SHOWN_MAX: usize = 8;

/// Why no transmission came about.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The stream failed or ended.
    #[error("handshake")]
    Io(#[from] io::Error),
    /// The bytes are not those of an NBD server, or make no sense.
    #[error("not a sound NBD server: {0}")]
    Protocol(String),
    /// The server does not export this name.
    #[error("no export '{name}'{}", offered(.exports))]
    UnknownExport {
        /// What was asked for.
        name: String,
        /// What there is, if the server tells.
        exports: Vec<String>,
    },
    /// The server said no.
    #[error("{0}")]
    Refused(String),
    /// The server is about to end.
    #[error("the server is shutting down")]
    Shutdown,
}

fn offered(exports: &[String]) -> String {
    match exports {
        [] => String::new(),
        names => {
            let more = if names.len() > NAMES_SHOWN_MAX { ", ..." } else { "" };
            let shown: Vec<_> = names.iter().take(NAMES_SHOWN_MAX).map(|name| format!("'{name}'")).collect();
            format!("; the server has {}{more}", shown.join(", "))
        }
    }
}

impl HandshakeError {
    /// What may be done about it.
    pub fn kind(&self) -> DiskErrorKind {
        match self {
            HandshakeError::Io(error) => DiskErrorKind::of(error),
            HandshakeError::Protocol(_) => DiskErrorKind::Corrupt,
            HandshakeError::UnknownExport { .. } => DiskErrorKind::Gone,
            HandshakeError::Refused(_) => DiskErrorKind::Denied,
            HandshakeError::Shutdown => DiskErrorKind::Transient,
        }
    }
}

/// Goes from connect to transmission: the best both sides know, for export `name`.
///
/// ```text
/// greeting -> STRUCTURED_REPLY -> SET_META_CONTEXT -> GO          transmission
///     |                                               '-> EXPORT_NAME if GO is not known
///     '-> EXPORT_NAME, for servers without options
/// ```
///
/// # Errors
/// See [`HandshakeError`]. Takes no longer than `limit`, give or take one read's timeout.
pub fn handshake(stream: impl Read + Write, name: &str, limit: Duration) -> Result<Export, HandshakeError> {
    let mut talk = Talk { stream, until: Instant::now() + limit };
    let server = talk.greeting()?;
    let ours = server & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
    talk.stream.write_all(&u32::from(ours).to_be_bytes())?;
    let padded = ours & wire::NO_ZEROES == 0;
    if ours & wire::FIXED_NEWSTYLE == 0 {
        return talk.export_name(name, padded);
    }
    let structured = talk.structured()?;
    let context = if structured { talk.context(name)? } else { None };
    match talk.go(name)? {
        Some((size, flags, block)) => Ok(Export { size, flags, structured, context, block }),
        None => Ok(Export { structured, context, ..talk.export_name(name, padded)? }),
    }
}

struct Talk<S> {
    stream: S,
    until: Instant,
}

/// An answer to an option.
struct Answer {
    kind: u32,
    data: Vec<u8>,
}

fn protocol<T>(text: impl Into<String>) -> Result<T, HandshakeError> {
    Err(HandshakeError::Protocol(text.into()))
}

impl<S: Read + Write> Talk<S> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        if Instant::now() > self.until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server dawdles").into());
        }
        Ok(bytes)
    }

    fn u64(&mut self) -> Result<u64, HandshakeError> {
        self.array().map(u64::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, HandshakeError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, HandshakeError> {
        self.array().map(u16::from_be_bytes)
    }

    fn greeting(&mut self) -> Result<u16, HandshakeError> {
        match self.u64()? {
            wire::MAGIC => {}
            other => return protocol(format!("it greets with {other:#018x}")),
        }
        match self.u64()? {
            wire::OPTION_MAGIC => self.u16(),
            _ => protocol("it speaks the old style of before 2010, or another protocol"),
        }
    }

    fn ask(&mut self, option: u32, data: &[u8]) -> Result<(), HandshakeError> {
        Ok(self.stream.write_all(&wire::encode_option(option, data))?)
    }

    fn answer(&mut self, option: u32) -> Result<Answer, HandshakeError> {
        match self.u64()? {
            wire::OPTION_REPLY_MAGIC => {}
            other => return protocol(format!("its answer to option {option} starts with {other:#018x}")),
        }
        let (about, kind, length) = (self.u32()?, self.u32()?, self.u32()?);
        if about != option {
            return protocol(format!("it answers option {about}, asked was {option}"));
        }
        if length > ANSWER_BYTES_MAX {
            return protocol(format!("its answer to option {option} has {length} bytes"));
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok(Answer { kind, data })
    }

    /// Takes answers until one ends the option; gives that one.
    fn answers(
        &mut self,
        option: u32,
        mut each: impl FnMut(&Answer) -> Result<(), HandshakeError>,
    ) -> Result<Answer, HandshakeError> {
        for _ in 0..ANSWERS_MAX {
            let answer = self.answer(option)?;
            if answer.kind == answer::ACK || answer.kind & answer::ERROR != 0 {
                return Ok(answer);
            }
            each(&answer)?;
        }
        protocol(format!("it never ends its answer to option {option}"))
    }

    fn structured(&mut self) -> Result<bool, HandshakeError> {
        self.ask(option::STRUCTURED_REPLY, &[])?;
        let answer = self.answers(option::STRUCTURED_REPLY, |_| protocol("it informs unasked"))?;
        // A server that demands TLS says so to every option.
        must_not_demand_tls(&answer)?;
        Ok(answer.kind == answer::ACK)
    }

    fn context(&mut self, name: &str) -> Result<Option<u32>, HandshakeError> {
        self.ask(option::SET_META_CONTEXT, &wire::encode_meta_context(name, wire::BASE_ALLOCATION))?;
        let mut context = None;
        let last = self.answers(option::SET_META_CONTEXT, |answer| {
            let mut fields = Fields(&answer.data);
            let id = fields.u32().filter(|_| answer.kind == answer::META_CONTEXT);
            match id {
                Some(id) if fields.0 == wire::BASE_ALLOCATION.as_bytes() => context = Some(id),
                _ => return protocol("it offers a context nobody asked for"),
            }
            Ok(())
        })?;
        // An error here is no harm: if it is about the export, GO will meet it and tell.
        Ok(context.filter(|_| last.kind == answer::ACK))
    }

    /// Size, flags and block sizes; `None` if the server does not know GO.
    fn go(&mut self, name: &str) -> Result<Option<(u64, u16, BlockSizes)>, HandshakeError> {
        self.ask(option::GO, &wire::encode_go(name, &[info::BLOCK_SIZE]))?;
        let (mut export, mut block) = (None, BLOCK_SIZES_UNTOLD);
        let last = self.answers(option::GO, |answer| {
            let mut fields = Fields(&answer.data);
            match (answer.kind, fields.u16()) {
                (answer::INFO, Some(info::EXPORT)) => export = fields.u64().zip(fields.u16()),
                (answer::INFO, Some(info::BLOCK_SIZE)) => block = block_sizes(fields)?,
                _ => {}
            }
            Ok(())
        })?;
        match (last.kind, export) {
            (answer::ACK, Some((size, flags))) => Ok(Some((size, flags, block))),
            (answer::ACK, None) => protocol("it starts without telling the size"),
            (answer::UNSUPPORTED, _) => Ok(None),
            _ => Err(self.refusal(name, &last)),
        }
    }

    /// What a refused GO means. Lists the exports where that helps.
    fn refusal(&mut self, name: &str, answer: &Answer) -> HandshakeError {
        if let Err(error) = must_not_demand_tls(answer) {
            return error;
        }
        let exports =
            if answer.kind == answer::UNKNOWN { self.list().unwrap_or_default() } else { Vec::new() };
        // The server may be gone already; the refusal is what counts.
        let _ = self.ask(option::ABORT, &[]);
        let said = String::from_utf8_lossy(&answer.data);
        let said = if said.is_empty() { String::new() } else { format!(" ({said})") };
        match answer.kind {
            answer::UNKNOWN => HandshakeError::UnknownExport { name: name.to_string(), exports },
            answer::POLICY => HandshakeError::Refused(format!("the server's policy forbids '{name}'{said}")),
            answer::SHUTDOWN => HandshakeError::Shutdown,
            answer::BLOCK_SIZE_REQUIRED => {
                HandshakeError::Refused(format!("the server insists on block sizes{said}"))
            }
            kind => HandshakeError::Refused(format!("the server refuses '{name}' with {kind:#x}{said}")),
        }
    }

    fn list(&mut self) -> Result<Vec<String>, HandshakeError> {
        self.ask(option::LIST, &[])?;
        let mut names = Vec::new();
        self.answers(option::LIST, |answer| {
            let mut fields = Fields(&answer.data);
            let length = fields.u32().map_or(0, |length| length as usize);
            if let (answer::SERVER, Some(name)) = (answer.kind, fields.bytes(length))
                && names.len() <= NAMES_SHOWN_MAX
            {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// The way before GO: an unknown name simply ends the connection.
    fn export_name(&mut self, name: &str, padded: bool) -> Result<Export, HandshakeError> {
        self.ask(option::EXPORT_NAME, name.as_bytes())?;
        let size = match self.u64() {
            Err(HandshakeError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(HandshakeError::UnknownExport { name: name.to_string(), exports: Vec::new() });
            }
            size => size?,
        };
        let flags = self.u16()?;
        if padded {
            self.array::<124>()?;
        }
        Ok(Export { size, flags, structured: false, context: None, block: BLOCK_SIZES_UNTOLD })
    }
}

fn must_not_demand_tls(answer: &Answer) -> Result<(), HandshakeError> {
    match answer.kind {
        answer::TLS_REQUIRED => {
            Err(HandshakeError::Refused("the server demands TLS, which comes later".to_string()))
        }
        _ => Ok(()),
    }
}

/// The minimum decides what we may ask, so it is checked as the protocol demands: a power of two up
/// to 64 KiB, no larger than the maximum. The preferred size is only advice.
fn block_sizes(mut fields: Fields<'_>) -> Result<BlockSizes, HandshakeError> {
    let sizes = (|| Some((fields.u32()?, fields.u32()?, fields.u32()?)))();
    let Some((minimum, preferred, maximum)) = sizes else { return protocol("its block sizes are cut off") };
    if !minimum.is_power_of_two() || minimum > 64 << 10 || maximum < minimum {
        return protocol(format!("its block sizes are {minimum}, {preferred}, {maximum}"));
    }
    // All ones means "no limit but the export's size". Requests stay within what each server takes.
    let maximum = u64::from(maximum).min(BLOCK_SIZES_UNTOLD.maximum);
    let (minimum, preferred) = (u64::from(minimum), u64::from(preferred.max(minimum)));
    Ok(BlockSizes { minimum, preferred, maximum: maximum / minimum * minimum })
}

impl Export {
    /// Whether the transmission flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether writes can be made durable at all.
    pub fn is_durable(&self) -> bool {
        self.has(flag::FLUSH) || self.has(flag::FUA)
    }
}
