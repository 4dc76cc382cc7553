//! What goes over the channel of a disk. Pure: bytes in, values out.
//!
//! ```text
//! head, 32 + 32 n bytes, little endian                      body
//!  0   1  kind                                              of a write or the answer to a read: the bytes of the
//!  1   1  detail: codec (write, data), status (answers)     pieces in the mask, one after the other, packed as
//!         or, of a read, 1: plain, whatever was opened      the codec says; of an answer that is no success: words;
//!  2   2  zero                                              of extents: their lengths; of `opened`: JSON
//!  4   4  mask: pieces that are meant, lowest bit first
//!  8   8  id, chosen by the client, back in the answer
//! 16   8  offset
//! 24   8  length, in bytes of the disk
//! 32 32n  BLAKE3 of each piece of the span
//! ```
//!
//! The *pieces* of a span are its parts in the blocks of the disk, 64 KiB each but for the first and the last:
//! so a whole piece is a leaf of the hash tree. A message covers up to 1 MiB, in up to 17 pieces.

use drover_disk::DiskErrorKind;
use drover_types::{BLOCK_BYTES, ByteSpan, Extent, ExtentKind};

use crate::error::printable;

/// Bytes of the disk that one message carries at most.
pub const DATA_BYTES_MAX: u64 = 1 << 20;

/// Pieces of such a span: 16, and one more if it does not begin on a block.
pub const PIECES_MAX: usize = (DATA_BYTES_MAX / BLOCK_BYTES) as usize + 1;

/// Bytes of the disk that one zeroing or question for extents covers at most.
pub const SPAN_BYTES_MAX: u64 = 1 << 40;

/// Of a read: its answer is not to be packed, whatever was said when the disk was opened.
pub const READ_PLAIN: u8 = 1;

/// Words about a failure.
pub const WORDS_BYTES_MAX: usize = 1024;

/// Extents in one answer; the client asks again from where they end.
pub const EXTENTS_MAX: usize = 4096;

const FIXED_BYTES: usize = 32;
const LEAF_BYTES: usize = 32;

/// BLAKE3 of a piece.
pub type PieceHash = [u8; LEAF_BYTES];

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Write the pieces in the mask.
    Write = 1,
    /// Make the span zero.
    Zero = 2,
    /// Read the span.
    Read = 3,
    /// Make all that was answered durable.
    Flush = 4,
    /// Tell what the span holds.
    Extents = 5,
    /// Take the pieces that are there already, by their hashes.
    Offer = 6,
    /// Set space aside; has no answer.
    Reserve = 7,
    /// Nothing will follow: let go of the disk.
    Close = 8,
    /// Tell what tells the disk and its state from another.
    Identity = 9,
    /// Read the span and tell the hashes of its pieces.
    Hash = 10,
    /// The disk is open, or why not. The first message of the agent.
    Opened = 0x80,
    /// The answer to write, zero, flush, close and identity, and to whatever failed.
    Done = 0x81,
    /// The answer to a read.
    Data = 0x82,
    /// The answer to a question for extents.
    Map = 0x83,
    /// The answer to an offer: the mask has the pieces that are on the target now.
    Have = 0x84,
    /// The answer to a question for hashes.
    Hashes = 0x85,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        use Kind as K;
        let all = [
            K::Write,
            K::Zero,
            K::Read,
            K::Flush,
            K::Extents,
            K::Offer,
            K::Reserve,
            K::Close,
            K::Identity,
            K::Hash,
            K::Opened,
            K::Done,
            K::Data,
            K::Map,
            K::Have,
            K::Hashes,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether messages of this kind name the hashes of their pieces.
    fn has_hashes(self) -> bool {
        matches!(self, Kind::Write | Kind::Offer | Kind::Data | Kind::Hashes)
    }

    /// Whether a message of this kind asks for bytes of the disk to become others, or is the first half of one that does.
    pub fn writes(self) -> bool {
        matches!(self, Kind::Write | Kind::Zero | Kind::Offer)
    }

    fn has_span(self) -> bool {
        !matches!(self, Kind::Flush | Kind::Close | Kind::Identity | Kind::Opened | Kind::Done)
    }

    fn bytes_max(self) -> u64 {
        match self {
            Kind::Zero | Kind::Extents | Kind::Map | Kind::Reserve => SPAN_BYTES_MAX,
            _ => DATA_BYTES_MAX,
        }
    }
}

/// The head of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// A codec or a status; of a read [`READ_PLAIN`] or 0.
    pub detail: u8,
    /// The pieces that are meant.
    pub mask: u32,
    /// Which request it is, or answers.
    pub id: u64,
    /// Which bytes of the disk; empty where there are none.
    pub span: ByteSpan,
    /// Hashes of the span's pieces, where the kind has them.
    pub hashes: Vec<PieceHash>,
}

/// A message that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Too short, or not as long as its kind and span ask for.
    #[error("a head of {0} bytes")]
    Length(usize),
    /// Of a kind that this side does not know.
    #[error("a message of kind {0:#x}")]
    Kind(u8),
    /// A span that no message may have.
    #[error("a message about {0}")]
    Span(ByteSpan),
    /// Pieces that the span does not have.
    #[error("a mask of {mask:#x} for {pieces} pieces")]
    Mask {
        /// The mask.
        mask: u32,
        /// How many there are.
        pieces: usize,
    },
    /// A status that does not exist.
    #[error("a status of {0}")]
    Status(u8),
    /// Extents that do not cover what was asked.
    #[error("extents that are not in order")]
    Extents,
}

impl Head {
    /// A head without hashes.
    pub fn plain(kind: Kind, id: u64, span: ByteSpan) -> Head {
        Head { kind, detail: 0, mask: 0, id, span, hashes: Vec::new() }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.hashes.len() * LEAF_BYTES);
        bytes.extend([self.kind as u8, self.detail, 0, 0]);
        bytes.extend(self.mask.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.span.offset.to_le_bytes());
        bytes.extend(self.span.length.to_le_bytes());
        self.hashes.iter().for_each(|hash| bytes.extend(hash));
        bytes
    }

    /// Reads a head and checks all that can be checked without the disk.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn decode(bytes: &[u8]) -> Result<Head, MessageError> {
        let length = || MessageError::Length(bytes.len());
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>().ok_or_else(length)?;
        let kind = Kind::of(fixed[0]).ok_or(MessageError::Kind(fixed[0]))?;
        let number = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&fixed[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let span = ByteSpan::new(number(16), number(24));
        let mask = (number(0) >> 32) as u32;
        check_span(kind, span)?;
        let pieces = if kind.has_hashes() { pieces(span).count() } else { 0 };
        if rest.len() != pieces * LEAF_BYTES {
            return Err(length());
        }
        let counted = if kind == Kind::Have { piece_count(span) } else { pieces };
        if counted < 32 && mask >> counted != 0 {
            return Err(MessageError::Mask { mask, pieces: counted });
        }
        let hashes = rest.as_chunks::<LEAF_BYTES>().0.to_vec();
        Ok(Head { kind, detail: fixed[1], mask, id: number(8), span, hashes })
    }

    /// The pieces that are meant, in order, with their hashes.
    pub fn meant(&self) -> impl Iterator<Item = (ByteSpan, &PieceHash)> {
        let mask = self.mask;
        pieces(self.span)
            .zip(&self.hashes)
            .enumerate()
            .filter(move |(number, _)| mask >> number & 1 == 1)
            .map(|(_, piece)| piece)
    }

    /// Bytes of the pieces that are meant.
    pub fn meant_bytes(&self) -> usize {
        self.meant().map(|(piece, _)| piece.length as usize).sum()
    }
}

fn check_span(kind: Kind, span: ByteSpan) -> Result<(), MessageError> {
    let ends = span.offset.checked_add(span.length).is_some();
    let fits = match kind.has_span() {
        true => !span.is_empty() && span.length <= kind.bytes_max() && ends,
        false => span.is_empty() && span.offset == 0,
    };
    if fits { Ok(()) } else { Err(MessageError::Span(span)) }
}

/// The parts of a span in the blocks of the disk.
pub fn pieces(span: ByteSpan) -> impl Iterator<Item = ByteSpan> {
    let mut at = span.offset;
    std::iter::from_fn(move || {
        if at >= span.end() {
            return None;
        }
        let end = (at / BLOCK_BYTES + 1).saturating_mul(BLOCK_BYTES).min(span.end());
        let piece = ByteSpan::from_bounds(at, end);
        at = end;
        Some(piece)
    })
}

/// How many there are.
pub fn piece_count(span: ByteSpan) -> usize {
    pieces(span).take(PIECES_MAX + 1).count()
}

/// A mask of all pieces of a span.
pub fn all_pieces(span: ByteSpan) -> u32 {
    (1u32 << piece_count(span).min(31)) - 1
}

/// The hash of a piece.
pub fn hash_of(piece: &[u8]) -> PieceHash {
    *blake3::hash(piece).as_bytes()
}

/// How a request ended, as a status byte. 0 is success.
pub fn status_of(kind: DiskErrorKind) -> u8 {
    use DiskErrorKind as K;
    match kind {
        K::Transient => 1,
        K::OutOfSpace => 2,
        K::Corrupt => 3,
        K::Gone => 4,
        K::Denied => 5,
        K::Unsupported => 6,
        K::Misuse => 7,
        K::Failed => 8,
    }
}

/// What a status byte says; `None` for success.
///
/// # Errors
/// When there is no such status.
pub fn kind_of(status: u8) -> Result<Option<DiskErrorKind>, MessageError> {
    use DiskErrorKind as K;
    let kinds =
        [K::Transient, K::OutOfSpace, K::Corrupt, K::Gone, K::Denied, K::Unsupported, K::Misuse, K::Failed];
    match status {
        0 => Ok(None),
        status => {
            kinds.get(usize::from(status) - 1).map(|kind| Some(*kind)).ok_or(MessageError::Status(status))
        }
    }
}

/// Words for a person, cut to what an answer may hold.
pub fn words(text: &str) -> Vec<u8> {
    let mut end = text.len().min(WORDS_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.as_bytes()[..end].to_vec()
}

/// Words that came, as they may be shown.
pub fn words_in(body: &[u8]) -> String {
    printable(String::from_utf8_lossy(&body[..body.len().min(WORDS_BYTES_MAX)]).into_owned())
}

/// The highest bit of a length says that the extent is zero.
const ZERO_BIT: u64 = 1 << 63;

/// Extents as the body of an answer: the lengths of as many as fit.
pub fn encode_extents(extents: &[Extent]) -> Vec<u8> {
    let field = |extent: &Extent| {
        let bit = if extent.kind == ExtentKind::Zero { ZERO_BIT } else { 0 };
        (extent.span.length | bit).to_le_bytes()
    };
    extents.iter().take(EXTENTS_MAX).flat_map(field).collect()
}

/// Reads extents from `span.offset` on.
///
/// # Errors
/// When there is none, one is empty, or they go beyond the span.
pub fn decode_extents(body: &[u8], span: ByteSpan) -> Result<Vec<Extent>, MessageError> {
    let (fields, rest) = body.as_chunks::<8>();
    if fields.is_empty() || fields.len() > EXTENTS_MAX || !rest.is_empty() {
        return Err(MessageError::Extents);
    }
    let mut at = span.offset;
    let mut extents = Vec::with_capacity(fields.len());
    for field in fields {
        let field = u64::from_le_bytes(*field);
        let found = ByteSpan::new(at, field & !ZERO_BIT);
        if found.is_empty() || !span.contains(found) {
            return Err(MessageError::Extents);
        }
        let kind = if field & ZERO_BIT == 0 { ExtentKind::Allocated } else { ExtentKind::Zero };
        extents.push(Extent { span: found, kind });
        at = found.end();
    }
    Ok(extents)
}

#[cfg(test)]
mod tests;
