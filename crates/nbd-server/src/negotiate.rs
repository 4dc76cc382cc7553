//! The handshake after the greeting, option by option: bytes in, bytes out.

use std::sync::Arc;

use drover_disk::fence::Epoch;
use drover_nbd::wire::{self, Fields, STRING_BYTES_MAX, answer, info, option};

use crate::export::{Access, Export};
use crate::wire::{Framing, answer as wire_answer};

/// Requests of this many bytes are taken, as every client may expect.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Options of one client; an honest one sends ten.
pub const OPTIONS_MAX: usize = 256;

/// Data of one option; the longest honest one is a name and some contexts.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;

/// Contexts asked for at once.
const QUERIES_MAX: u32 = 64;

/// Ids of contexts on the wire.
const BASE_ID: u32 = 1;
const FENCE_ID: u32 = 2;
const FIRST_OWN_ID: u32 = 3;

/// What TLS is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRule {
    /// Not to be had.
    Off,
    /// On offer, and not demanded.
    Offered,
    /// Nothing but the demand is told before it.
    Required,
}

/// A context that block status tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its id on the wire.
    pub id: u32,
    /// What it tells.
    pub what: Told,
}

/// What a context tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Holes and zeros.
    Base,
    /// Nothing; it carried the client's epoch.
    Fence,
    /// The export's own context with this index.
    Own(usize),
}

/// What client and server agreed on.
#[derive(Clone)]
pub struct Agreed {
    pub export: Arc<Export>,
    pub framing: Framing,
    pub contexts: Vec<Chosen>,
    /// The client's epoch; 0 if it has none.
    pub epoch: Epoch,
}

/// What to do after an option.
pub enum Step {
    /// Send this and take the next option.
    Reply(Vec<u8>),
    /// Send this, then go on in TLS.
    StartTls(Vec<u8>),
    /// Let the client in; send `yes` if that went well, and the reason in an answer to `option` if not
    /// (`EXPORT_NAME` has no such answer).
    Transmit { agreed: Box<Agreed>, yes: Vec<u8>, option: u32 },
    /// Send this and end the connection.
    Close(Vec<u8>),
}

/// One client's handshake.
pub struct Negotiation<'a> {
    exports: &'a [Arc<Export>],
    tls: TlsRule,
    secure: bool,
    padded: bool,
    framing: Framing,
    contexts: Option<Contexts>,
}

struct Contexts {
    export: String,
    chosen: Vec<Chosen>,
    epoch: Epoch,
}

/// Why an option is refused: a type of answer, and words.
type Refusal = (u32, String);

fn refuse<T>(kind: u32, text: impl Into<String>) -> Result<T, Refusal> {
    Err((kind, text.into()))
}

impl<'a> Negotiation<'a> {
    /// Starts after the greeting; the client's flags say whether zeros follow `EXPORT_NAME`.
    pub fn new(exports: &'a [Arc<Export>], tls: TlsRule, padded: bool) -> Negotiation<'a> {
        Negotiation { exports, tls, secure: false, padded, framing: Framing::Simple, contexts: None }
    }

    /// The connection is secure now; what was agreed before does not count, it may have been forged.
    pub fn secured(&mut self) {
        *self = Negotiation { secure: true, ..Negotiation::new(self.exports, self.tls, self.padded) };
    }

    /// Takes an option.
    pub fn option(&mut self, code: u32, data: &[u8]) -> Step {
        let locked = self.tls == TlsRule::Required && !self.secure;
        match code {
            option::ABORT => return Step::Close(wire_answer(code, answer::ACK, &[])),
            option::STARTTLS => {}
            option::EXPORT_NAME if locked => return Step::Close(Vec::new()),
            _ if locked => return self.no(code, answer::TLS_REQUIRED, "this server speaks TLS only"),
            _ => {}
        }
        let step = match code {
            option::EXPORT_NAME => return self.export_name(data),
            option::STARTTLS => self.start_tls(data),
            option::LIST => self.list(data),
            option::INFO | option::GO => self.info(code, data),
            option::STRUCTURED_REPLY => self.structured(data),
            option::EXTENDED_HEADERS => self.extended(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(code, data),
            _ => refuse(answer::UNSUPPORTED, "not known here"),
        };
        step.unwrap_or_else(|(kind, text)| self.no(code, kind, &text))
    }

    fn no(&self, code: u32, kind: u32, text: &str) -> Step {
        Step::Reply(wire_answer(code, kind, text.as_bytes()))
    }

    fn find(&self, name: &str) -> Option<&Arc<Export>> {
        let named = self.exports.iter().find(|export| export.name == name);
        let default = if name.is_empty() && self.exports.len() == 1 { self.exports.first() } else { None };
        named.or(default)
    }

    fn unknown<T>(&self, name: &str) -> Result<T, Refusal> {
        refuse(answer::UNKNOWN, format!("no export '{name}'"))
    }

    fn export_name(&mut self, data: &[u8]) -> Step {
        let export = std::str::from_utf8(data).ok().and_then(|name| self.find(name));
        let Some(export) = export.cloned() else { return Step::Close(Vec::new()) };
        let mut yes = export.disk.size().to_be_bytes().to_vec();
        yes.extend(export.flags().to_be_bytes());
        if self.padded {
            yes.extend([0; 124]);
        }
        let agreed = Box::new(self.agreed(export, data));
        Step::Transmit { agreed, yes, option: option::EXPORT_NAME }
    }

    fn agreed(&mut self, export: Arc<Export>, name: &[u8]) -> Agreed {
        let contexts = self.contexts.take().filter(|contexts| contexts.export.as_bytes() == name);
        let (contexts, epoch) = contexts.map_or((Vec::new(), 0), |it| (it.chosen, it.epoch));
        Agreed { export, framing: self.framing, contexts, epoch }
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        must_be_empty(data)?;
        match self.tls {
            _ if self.secure => refuse(answer::INVALID, "TLS has started already"),
            TlsRule::Off => refuse(answer::POLICY, "this server has no certificate"),
            TlsRule::Offered | TlsRule::Required => {
                Ok(Step::StartTls(wire_answer(option::STARTTLS, answer::ACK, &[])))
            }
        }
    }

    fn list(&self, data: &[u8]) -> Result<Step, Refusal> {
        must_be_empty(data)?;
        let mut reply = Vec::new();
        for export in self.exports {
            reply.extend(wire_answer(option::LIST, answer::SERVER, &string(&export.name)));
        }
        reply.extend(wire_answer(option::LIST, answer::ACK, &[]));
        Ok(Step::Reply(reply))
    }

    fn info(&mut self, code: u32, data: &[u8]) -> Result<Step, Refusal> {
        let mut fields = Fields(data);
        let (Some(name), Some(count)) = (text(&mut fields)?, fields.u16()) else {
            return refuse(answer::INVALID, "the option is cut off");
        };
        let wanted: Vec<u16> = std::iter::from_fn(|| fields.u16()).take(count.into()).collect();
        if wanted.len() != usize::from(count) || !fields.0.is_empty() {
            return refuse(answer::INVALID, "the list of wanted facts has another length than it says");
        }
        let Some(export) = self.find(&name).cloned() else { return self.unknown(&name) };
        let block_min = export.disk.limits().bytes_min;
        if code == option::GO && block_min > 1 && !wanted.contains(&info::BLOCK_SIZE) {
            let text = format!("requests must be multiples of {block_min} bytes; ask for the block size");
            return refuse(answer::BLOCK_SIZE_REQUIRED, text);
        }
        let mut yes = facts(code, &export, &wanted);
        yes.extend(wire_answer(code, answer::ACK, &[]));
        if code == option::INFO {
            return Ok(Step::Reply(yes));
        }
        let agreed = Box::new(self.agreed(export, name.as_bytes()));
        Ok(Step::Transmit { agreed, yes, option: code })
    }

    fn structured(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        must_be_empty(data)?;
        if self.framing == Framing::Extended {
            return refuse(answer::EXTENDED_HEADERS_REQUIRED, "extended headers are agreed already");
        }
        self.framing = Framing::Structured;
        Ok(Step::Reply(wire_answer(option::STRUCTURED_REPLY, answer::ACK, &[])))
    }

    fn extended(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        must_be_empty(data)?;
        self.framing = Framing::Extended;
        Ok(Step::Reply(wire_answer(option::EXTENDED_HEADERS, answer::ACK, &[])))
    }

    fn meta_context(&mut self, code: u32, data: &[u8]) -> Result<Step, Refusal> {
        let set = code == option::SET_META_CONTEXT;
        if set {
            self.contexts = None;
        }
        if self.framing == Framing::Simple {
            return refuse(answer::INVALID, "structured replies first");
        }
        let mut fields = Fields(data);
        let (Some(name), Some(count)) = (text(&mut fields)?, fields.u32()) else {
            return refuse(answer::INVALID, "the option is cut off");
        };
        if count > QUERIES_MAX {
            return refuse(answer::TOO_BIG, format!("no more than {QUERIES_MAX} contexts at once"));
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            let Some(query) = text(&mut fields)? else {
                return refuse(answer::INVALID, "a query is cut off");
            };
            queries.push(query);
        }
        if !fields.0.is_empty() {
            return refuse(answer::INVALID, "something follows the last query");
        }
        let Some(export) = self.find(&name).cloned() else { return self.unknown(&name) };
        let mut found = Found { reply: Vec::new(), code, chosen: Vec::new(), epoch: 0 };
        if set {
            queries.iter().for_each(|query| found.exactly(&export, query));
        } else {
            found.listed(&export, &queries);
        }
        let Found { mut reply, chosen, epoch, .. } = found;
        reply.extend(wire_answer(code, answer::ACK, &[]));
        if set {
            self.contexts = Some(Contexts { export: name, chosen, epoch });
        }
        Ok(Step::Reply(reply))
    }
}

/// Contexts found for queries, and the answer that names them.
struct Found {
    reply: Vec<u8>,
    code: u32,
    chosen: Vec<Chosen>,
    epoch: Epoch,
}

impl Found {
    fn add(&mut self, id: u32, what: Told, name: &str) {
        if self.chosen.iter().any(|chosen| chosen.id == id) {
            return;
        }
        self.chosen.push(Chosen { id, what });
        let mut data = id.to_be_bytes().to_vec();
        data.extend(name.as_bytes());
        self.reply.extend(wire_answer(self.code, answer::META_CONTEXT, &data));
    }

    fn exactly(&mut self, export: &Export, query: &str) {
        if query == wire::BASE_ALLOCATION {
            self.add(BASE_ID, Told::Base, query);
        }
        if let Some(epoch) = epoch_of(export, query).filter(|_| self.epoch == 0) {
            self.epoch = epoch;
            self.add(FENCE_ID, Told::Fence, query);
        }
        if let Some(index) = export.contexts.iter().position(|(name, _)| name == query) {
            self.add(FIRST_OWN_ID + index as u32, Told::Own(index), query);
        }
    }

    /// For a list: no query means all, and a namespace alone (`base:`) all in it.
    fn listed(&mut self, export: &Export, queries: &[String]) {
        let own = export.contexts.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = std::iter::once(wire::BASE_ALLOCATION).chain(own).collect();
        let asked = |name: &str| {
            queries.is_empty()
                || queries.iter().any(|query| query.ends_with(':') && name.starts_with(query.as_str()))
        };
        names.iter().filter(|name| asked(name)).for_each(|name| self.exactly(export, name));
        queries.iter().for_each(|query| self.exactly(export, query));
    }
}

/// The epoch in `drover:fence=N`, where this export keeps epochs.
fn epoch_of(export: &Export, query: &str) -> Option<Epoch> {
    let digits = query.strip_prefix(wire::FENCE_PREFIX)?;
    let sound =
        matches!(export.access, Access::Fenced(_)) && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|epoch| sound && *epoch > 0)
}

/// Answers with facts about an export: size and flags always, others if wanted.
fn facts(code: u32, export: &Export, wanted: &[u16]) -> Vec<u8> {
    let mut data = info::EXPORT.to_be_bytes().to_vec();
    data.extend(export.disk.size().to_be_bytes());
    data.extend(export.flags().to_be_bytes());
    let mut reply = wire_answer(code, answer::INFO, &data);
    if wanted.contains(&info::NAME) {
        let data = [&info::NAME.to_be_bytes(), export.name.as_bytes()].concat();
        reply.extend(wire_answer(code, answer::INFO, &data));
    }
    if wanted.contains(&info::BLOCK_SIZE) {
        let limits = export.disk.limits();
        let preferred = limits
            .bytes_preferred
            .next_power_of_two()
            .clamp(BLOCK_PREFERRED_MIN, u64::from(REQUEST_BYTES_MAX));
        let minimum = limits.bytes_min.min(u64::from(REQUEST_BYTES_MAX));
        let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [minimum, preferred.max(minimum), REQUEST_BYTES_MAX.into()] {
            data.extend((size as u32).to_be_bytes());
        }
        reply.extend(wire_answer(code, answer::INFO, &data));
    }
    reply
}

/// The preferred size is advice; below a page it would be bad advice.
const BLOCK_PREFERRED_MIN: u64 = 4096;

fn must_be_empty(data: &[u8]) -> Result<(), Refusal> {
    if data.is_empty() { Ok(()) } else { refuse(answer::INVALID, "the option takes no data") }
}

/// A length and that many bytes of text; `None` when it is cut off.
fn text(fields: &mut Fields<'_>) -> Result<Option<String>, Refusal> {
    let Some(length) = fields.u32() else { return Ok(None) };
    if length as usize > STRING_BYTES_MAX {
        return refuse(answer::TOO_BIG, format!("a text longer than {STRING_BYTES_MAX} bytes"));
    }
    let Some(bytes) = fields.bytes(length as usize) else { return Ok(None) };
    match String::from_utf8(bytes.to_vec()) {
        Ok(text) => Ok(Some(text)),
        Err(_) => refuse(answer::INVALID, "a text that is not UTF-8"),
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
