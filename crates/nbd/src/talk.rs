//! Options and answers of the handshake, one after the other.

use std::io;
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;

use drover_stream::{Stream, printable};

use crate::tls;
use crate::wire::{self, Fields, answer, option};

/// Data of one answer to an option; the longest honest one is an info with two strings.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// Answers to one option; only a list of exports has more than a few.
pub const ANSWERS_MAX: usize = 16 << 10;

/// Names of exports or contexts shown in an error.
const NAMES_SHOWN_MAX: usize = 8;

/// Why no transmission came about.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The stream failed or ended.
    #[error("handshake")]
    Io(#[source] io::Error),
    /// The bytes are not those of an NBD server, or make no sense.
    #[error("not a sound NBD server: {0}")]
    Protocol(String),
    /// The server does not export this name.
    #[error("no export '{}'{}", printable(.name), offered(.exports))]
    UnknownExport {
        /// What was asked for.
        name: String,
        /// What there is, if the server tells.
        exports: Vec<String>,
    },
    /// The server does not tell what was asked for.
    #[error("the export has no context '{}'{}", printable(.name), offered(.contexts))]
    UnknownContext {
        /// What was asked for.
        name: String,
        /// What there is, if the server tells.
        contexts: Vec<String>,
    },
    /// TLS does not come about: certificates, keys, or what guards the other side.
    #[error("{0}")]
    Tls(String),
    /// The server said no.
    #[error("{0}")]
    Refused(String),
    /// The server is about to end.
    #[error("the server is shutting down")]
    Shutdown,
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => HandshakeError::Tls(tls::words(error)),
            None => HandshakeError::Io(error),
        }
    }
}

fn offered(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => {
            let more = if names.len() > NAMES_SHOWN_MAX { ", ..." } else { "" };
            let name = |name: &String| format!("'{}'", printable(name));
            let shown: Vec<_> = names.iter().take(NAMES_SHOWN_MAX).map(name).collect();
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
            HandshakeError::UnknownContext { .. } => DiskErrorKind::Unsupported,
            HandshakeError::Tls(_) | HandshakeError::Refused(_) => DiskErrorKind::Denied,
            HandshakeError::Shutdown => DiskErrorKind::Transient,
        }
    }
}

pub fn protocol<T>(text: impl Into<String>) -> Result<T, HandshakeError> {
    Err(HandshakeError::Protocol(text.into()))
}

/// The client's side of a handshake. Ends within its limit, give or take one read's timeout.
pub struct Talk {
    stream: Stream,
    limit: Duration,
    until: Instant,
}

/// An answer to an option.
pub struct Answer {
    pub kind: u32,
    pub data: Vec<u8>,
}

impl Talk {
    pub fn new(stream: Stream, limit: Duration) -> Talk {
        Talk { stream, limit, until: Instant::now() + limit }
    }

    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// The same talk through TLS.
    pub fn into_tls(self, tls: &drover_stream::Tls) -> Result<Talk, HandshakeError> {
        Ok(Talk { stream: self.stream.into_tls(tls, self.limit)?, ..self })
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Each byte in its own good time would keep us for days.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), HandshakeError> {
        let mut filled = 0;
        while filled < bytes.len() {
            filled += self.stream.receive(&mut bytes[filled..], true)?;
            if Instant::now() > self.until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server dawdles").into());
            }
        }
        Ok(())
    }

    pub fn u64(&mut self) -> Result<u64, HandshakeError> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, HandshakeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, HandshakeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        Ok(self.stream.send_all(bytes, self.limit)?)
    }

    pub fn ask(&mut self, option: u32, data: &[u8]) -> Result<(), HandshakeError> {
        self.send(&wire::encode_option(option, data))
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
        self.fill(&mut data)?;
        Ok(Answer { kind, data })
    }

    /// Takes answers until one ends the option; gives that one.
    pub fn answers(
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

    /// Asks for a feature that has no details: whether the server has it.
    pub fn agree(&mut self, option: u32) -> Result<bool, HandshakeError> {
        self.ask(option, &[])?;
        let answer = self.answers(option, |_| protocol("it informs unasked"))?;
        // A server that demands TLS says so to every option.
        answer.must_not_demand_tls()?;
        Ok(answer.kind == answer::ACK)
    }

    /// Names of exports and what they are, at most `most` and one more, if there are more.
    pub fn exports(&mut self, most: usize) -> Result<(Vec<(String, String)>, Answer), HandshakeError> {
        self.ask(option::LIST, &[])?;
        let mut found = Vec::new();
        let last = self.answers(option::LIST, |answer| {
            let mut fields = Fields(&answer.data);
            let length = fields.u32().map_or(usize::MAX, |length| length as usize);
            let Some(name) = fields.bytes(length).filter(|_| answer.kind == answer::SERVER) else {
                return protocol("its list of exports is cut off");
            };
            if found.len() <= most {
                found.push((text(name)?, text(fields.0)?));
            }
            Ok(())
        })?;
        Ok((found, last))
    }

    /// Names of the contexts of an export that `query` matches; all if it is empty.
    pub fn contexts(
        &mut self,
        export: &str,
        query: &str,
        most: usize,
    ) -> Result<Vec<String>, HandshakeError> {
        let queries: &[&str] = if query.is_empty() { &[] } else { &[query] };
        self.ask(option::LIST_META_CONTEXT, &wire::encode_meta_contexts(export, queries))?;
        let mut names = Vec::new();
        self.answers(option::LIST_META_CONTEXT, |answer| {
            let mut fields = Fields(&answer.data);
            let id = fields.u32().filter(|_| answer.kind == answer::META_CONTEXT);
            if id.is_some() && names.len() <= most {
                names.push(text(fields.0)?);
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// Leaves politely. The server may be gone already, which changes nothing.
    pub fn abort(&mut self) {
        let _ = self.ask(option::ABORT, &[]);
    }
}

/// A server's string; what is not UTF-8 cannot be asked for, but it can be shown.
pub fn text(bytes: &[u8]) -> Result<String, HandshakeError> {
    if bytes.len() > wire::STRING_BYTES_MAX {
        return protocol(format!("it has a string of {} bytes", bytes.len()));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

impl Answer {
    pub fn must_not_demand_tls(&self) -> Result<(), HandshakeError> {
        match self.kind {
            answer::TLS_REQUIRED => {
                let text = "the server demands TLS: use nbds:// (nbds+unix:// for a socket)";
                Err(HandshakeError::Tls(format!("{text}{}", self.words())))
            }
            _ => Ok(()),
        }
    }

    /// What the server adds for people, in brackets, fit to be shown.
    pub fn words(&self) -> String {
        let text = String::from_utf8_lossy(&self.data);
        if text.is_empty() { String::new() } else { format!(" ({})", printable(&text)) }
    }

    /// What an error about an export means.
    pub fn refusal(&self, name: &str) -> HandshakeError {
        if let Err(error) = self.must_not_demand_tls() {
            return error;
        }
        let (name, said) = (printable(name), self.words());
        match self.kind {
            answer::UNKNOWN => HandshakeError::UnknownExport { name, exports: Vec::new() },
            answer::POLICY => HandshakeError::Refused(format!("the server's policy forbids '{name}'{said}")),
            answer::SHUTDOWN => HandshakeError::Shutdown,
            answer::BLOCK_SIZE_REQUIRED => {
                HandshakeError::Refused(format!("the server insists on block sizes{said}"))
            }
            kind => HandshakeError::Refused(format!("the server refuses '{name}' with {kind:#x}{said}")),
        }
    }
}
