use std::io;

use drover_stream::{Stream, Tls};

use crate::talk::{Answer, HandshakeError, Talk, protocol, text};
use crate::wire::{self, Fields, answer, flag, info, option};

/// What the server told about the export, and what both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Bytes.
    pub size: u64,
    /// Transmission flags, see [`flag`].
    pub flags: u16,
    /// How requests and replies look.
    pub style: Style,
    /// What block status tells.
    pub contexts: Contexts,
    /// Block size constraints.
    pub block: BlockSizes,
}

/// How requests and replies look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A reply is one piece.
    Simple,
    /// A reply comes in chunks.
    Structured,
    /// Chunks, and lengths of 64 bits.
    Extended,
}

/// The ids of contexts in block status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// Of `base:allocation`.
    pub allocation: Option<u32>,
    /// Of the dirty bitmap that was asked for.
    pub dirty: Option<u32>,
    /// Of the fence: the server keeps writers of older epochs out.
    pub fence: Option<u32>,
}

impl Contexts {
    fn are_apart(&self) -> bool {
        let ids = [self.allocation, self.dirty, self.fence];
        let twice = |index: usize| ids[index].is_some() && ids[..index].contains(&ids[index]);
        !(0..ids.len()).any(twice)
    }
}

/// Block size constraints in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it.
    pub minimum: u64,
    /// The best size of a request.
    pub preferred: u64,
    /// No request with data may be longer.
    pub maximum: u64,
}

/// What holds if the server says nothing: any byte, and 32 MiB, which every server must take.
/// The protocol advises 512 as the minimum in that case; servers that care do tell.
pub const BLOCK_SIZES_UNTOLD: BlockSizes = BlockSizes { minimum: 1, preferred: 4096, maximum: 32 << 20 };

/// Names shown when something is not there.
const NAMES_MAX: usize = 64;

/// Prefix of the contexts that QEMU gives for its dirty bitmaps.
pub const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// What the client wants.
pub struct Wishes<'a> {
    /// The export's name.
    pub export: &'a str,
    /// TLS, which then is a must.
    pub tls: Option<&'a Tls>,
    /// The name of a dirty bitmap, which then is a must.
    pub dirty_bitmap: Option<&'a str>,
    /// The epoch to carry.
    pub fence: Option<u64>,
}

/// Goes from connect to transmission: the best both sides know.
///
/// ```text
/// greeting -> STARTTLS -> EXTENDED_HEADERS -> STRUCTURED_REPLY -> SET_META_CONTEXT -> GO     transmission
///     |                                                                                '-> EXPORT_NAME if GO is not known
///     |-> EXPORT_NAME, for servers without options
///     '-> at once, for servers of before 2010
/// ```
///
/// # Errors
/// See [`HandshakeError`].
pub fn handshake(talk: Talk, wishes: &Wishes<'_>) -> Result<(Stream, Export), HandshakeError> {
    let (talk, export) = negotiate(talk, wishes)?;
    if export.size > i64::MAX as u64 {
        return protocol(format!("its export has {} bytes", export.size));
    }
    if wishes.dirty_bitmap.is_some() && export.contexts.dirty.is_none() {
        return Err(HandshakeError::UnknownContext { name: wishes.bitmap_context(), contexts: Vec::new() });
    }
    Ok((talk.into_stream(), export))
}

fn negotiate(mut talk: Talk, wishes: &Wishes<'_>) -> Result<(Talk, Export), HandshakeError> {
    let name = wishes.export;
    let ours = match talk.greet()? {
        Greeting::Old => {
            wishes.must_not_want_tls("it speaks the style of before 2010")?;
            let export = talk.old_style(name)?;
            return Ok((talk, export));
        }
        Greeting::New(ours) => ours,
    };
    let padded = ours & wire::NO_ZEROES == 0;
    if ours & wire::FIXED_NEWSTYLE == 0 {
        wishes.must_not_want_tls("it takes no options")?;
        let export = talk.export_name(name, padded)?;
        return Ok((talk, export));
    }
    if let Some(tls) = wishes.tls {
        talk = talk.start_tls()?.into_tls(tls)?;
    }
    let style = talk.style().map_err(|error| if wishes.tls.is_some() { after_tls(error) } else { error })?;
    let contexts = if style == Style::Simple { Contexts::default() } else { talk.choose_contexts(wishes)? };
    let export = match talk.go(name)? {
        Some((size, flags, block)) => Export { size, flags, style, contexts, block },
        None if style == Style::Extended => return protocol("it has extended headers but not GO"),
        None => Export { style, contexts, ..talk.export_name(name, padded)? },
    };
    Ok((talk, export))
}

impl Wishes<'_> {
    fn must_not_want_tls(&self, why: &str) -> Result<(), HandshakeError> {
        match self.tls {
            None => Ok(()),
            Some(_) => Err(no_tls(why)),
        }
    }

    fn bitmap_context(&self) -> String {
        format!("{DIRTY_BITMAP}{}", self.dirty_bitmap.unwrap_or_default())
    }
}

/// A downgrade is never made silently: whoever sits between could ask for one.
fn no_tls(why: &str) -> HandshakeError {
    HandshakeError::Tls(format!("the server offers no TLS ({why}); nbd:// would send all in the clear"))
}

/// A server may look at our certificate only after its part of TLS is done, and then just hangs up.
fn after_tls(error: HandshakeError) -> HandshakeError {
    use io::ErrorKind as K;
    match error {
        HandshakeError::Io(error)
            if matches!(error.kind(), K::ConnectionReset | K::BrokenPipe | K::UnexpectedEof) =>
        {
            let text =
                "the server hung up as soon as TLS began; if it wants to know us, give it a certificate";
            HandshakeError::Io(io::Error::new(error.kind(), text))
        }
        other => other,
    }
}

/// How a server opens.
pub enum Greeting {
    /// Size and flags follow at once.
    Old,
    /// Options follow; these handshake flags were agreed.
    New(u16),
}

impl Talk {
    /// Takes the greeting and answers it.
    pub fn greet(&mut self) -> Result<Greeting, HandshakeError> {
        match self.u64()? {
            wire::MAGIC => {}
            other => return protocol(format!("it greets with {other:#018x}")),
        }
        match self.u64()? {
            wire::OPTION_MAGIC => {
                let ours = self.u16()? & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
                self.send(&u32::from(ours).to_be_bytes())?;
                Ok(Greeting::New(ours))
            }
            wire::OLD_STYLE_MAGIC => Ok(Greeting::Old),
            other => protocol(format!("it goes on with {other:#018x}")),
        }
    }

    /// The style of before 2010: one export without a name, and no choice.
    pub fn old_style(&mut self, name: &str) -> Result<Export, HandshakeError> {
        if !name.is_empty() {
            let text = "the server is of an old kind that has one export without a name; leave the name out";
            return Err(HandshakeError::Refused(text.to_string()));
        }
        let (size, flags) = (self.u64()?, self.u32()?);
        self.array::<124>()?;
        // The upper half are flags of the handshake that never came to be used.
        Ok(plain_export(size, flags as u16))
    }

    /// Has the server begin TLS.
    pub fn start_tls(mut self) -> Result<Talk, HandshakeError> {
        self.ask(option::STARTTLS, &[])?;
        let answer = self.answers(option::STARTTLS, |_| protocol("it informs unasked"))?;
        match answer.kind {
            answer::ACK => Ok(self),
            answer::UNSUPPORTED => Err(no_tls(&format!("it does not know the option{}", answer.words()))),
            answer::POLICY => Err(no_tls(&format!("its policy forbids it{}", answer.words()))),
            kind => Err(no_tls(&format!("it answers {kind:#x}{}", answer.words()))),
        }
    }

    /// The best style the server knows.
    pub fn style(&mut self) -> Result<Style, HandshakeError> {
        if self.agree(option::EXTENDED_HEADERS)? {
            Ok(Style::Extended)
        } else if self.agree(option::STRUCTURED_REPLY)? {
            Ok(Style::Structured)
        } else {
            Ok(Style::Simple)
        }
    }

    fn choose_contexts(&mut self, wishes: &Wishes<'_>) -> Result<Contexts, HandshakeError> {
        let dirty = wishes.dirty_bitmap.map(|_| wishes.bitmap_context());
        let fence = wishes.fence.map(|epoch| format!("{}{epoch}", wire::FENCE_PREFIX));
        let mut queries = vec![wire::BASE_ALLOCATION];
        queries.extend(dirty.as_deref().into_iter().chain(fence.as_deref()));
        self.ask(option::SET_META_CONTEXT, &wire::encode_meta_contexts(wishes.export, &queries))?;
        let mut contexts = Contexts::default();
        let last = self.answers(option::SET_META_CONTEXT, |answer| {
            let mut fields = Fields(&answer.data);
            let id = fields.u32().filter(|_| answer.kind == answer::META_CONTEXT);
            let place = if fields.0 == wire::BASE_ALLOCATION.as_bytes() {
                &mut contexts.allocation
            } else if dirty.as_ref().is_some_and(|dirty| dirty.as_bytes() == fields.0) {
                &mut contexts.dirty
            } else if fence.as_ref().is_some_and(|fence| fence.as_bytes() == fields.0) {
                &mut contexts.fence
            } else {
                return protocol("it offers a context nobody asked for");
            };
            if id.is_none() || place.is_some() {
                return protocol("it offers a context twice");
            }
            *place = id;
            Ok(())
        })?;
        if last.kind != answer::ACK {
            // An error here is no harm: if it is about the export, GO will meet it and tell.
            return Ok(Contexts::default());
        }
        if !contexts.are_apart() {
            return protocol("it gives two contexts one number");
        }
        match dirty {
            Some(name) if contexts.dirty.is_none() => {
                let contexts = self.contexts(wishes.export, DIRTY_BITMAP, NAMES_MAX)?;
                self.abort();
                Err(HandshakeError::UnknownContext { name, contexts })
            }
            _ => Ok(contexts),
        }
    }

    /// Size, flags and block sizes; `None` if the server does not know GO.
    fn go(&mut self, name: &str) -> Result<Option<(u64, u16, BlockSizes)>, HandshakeError> {
        let (facts, last) = self.facts(option::GO, name, &[info::BLOCK_SIZE])?;
        match (last.kind, facts.export) {
            (answer::ACK, Some((size, flags))) => {
                Ok(Some((size, flags, facts.told_block.unwrap_or(BLOCK_SIZES_UNTOLD))))
            }
            (answer::ACK, None) => protocol("it starts without telling the size"),
            (answer::UNSUPPORTED, _) => Ok(None),
            _ => Err(self.refusal(name, &last)),
        }
    }

    /// Asks what an export is, by INFO or GO.
    pub fn facts(
        &mut self,
        option: u32,
        name: &str,
        infos: &[u16],
    ) -> Result<(Facts, Answer), HandshakeError> {
        self.ask(option, &wire::encode_go(name, infos))?;
        let mut facts = Facts { export: None, told_block: None, description: None };
        let last = self.answers(option, |answer| {
            let mut fields = Fields(&answer.data);
            match (answer.kind, fields.u16()) {
                (answer::INFO, Some(info::EXPORT)) => facts.export = fields.u64().zip(fields.u16()),
                (answer::INFO, Some(info::BLOCK_SIZE)) => facts.told_block = Some(block_sizes(fields)?),
                (answer::INFO, Some(info::DESCRIPTION)) => facts.description = Some(text(fields.0)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok((facts, last))
    }

    /// What a refused GO means. Lists the exports where that helps.
    fn refusal(&mut self, name: &str, answer: &Answer) -> HandshakeError {
        let mut error = answer.refusal(name);
        if let HandshakeError::UnknownExport { exports, .. } = &mut error
            && let Ok((found, _)) = self.exports(NAMES_MAX)
        {
            *exports = found.into_iter().map(|(name, _)| name).collect();
        }
        self.abort();
        error
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
        Ok(plain_export(size, flags))
    }
}

/// What a server told of an export.
pub struct Facts {
    /// Size and transmission flags.
    pub export: Option<(u64, u16)>,
    pub told_block: Option<BlockSizes>,
    pub description: Option<String>,
}

fn plain_export(size: u64, flags: u16) -> Export {
    Export { size, flags, style: Style::Simple, contexts: Contexts::default(), block: BLOCK_SIZES_UNTOLD }
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
