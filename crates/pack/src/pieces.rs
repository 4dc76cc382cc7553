//! A byte stream in pieces, each plain or packed by itself.
//!
//! ```text
//! 0  1  codec: 0 plain, 1 lz4 (a block), 2 zstd (a frame)
//! 1  3  bytes of the body, little endian, 1..=131,072
//! 4  4  bytes that they stand for, little endian, 1..=131,072: as many where it is plain, else more
//! 8     body
//! ```
//!
//! Lengths stand before the body, so that nothing is set aside for it that could not be.

use crate::codec::{Codec, unpack};

/// Bytes of a piece, before packing and after.
pub const PIECE_BYTES_MAX: usize = 128 << 10;
/// What stands before a body.
pub const HEAD_BYTES: usize = 8;

/// The head of a piece.
///
/// # Panics
/// If a length is not that of a piece: 1 to [`PIECE_BYTES_MAX`].
pub fn head(codec: Codec, body: usize, plain: usize) -> [u8; HEAD_BYTES] {
    assert!(sizes_fit(codec.number(), body, plain), "a piece of {body} bytes for {plain}");
    let ([b0, b1, b2, _], [p0, p1, p2, p3]) = ((body as u32).to_le_bytes(), (plain as u32).to_le_bytes());
    [codec.number(), b0, b1, b2, p0, p1, p2, p3]
}

fn sizes_fit(number: u8, body: usize, plain: usize) -> bool {
    let is_in_order = if number == 0 { body == plain } else { body < plain };
    body >= 1 && plain <= PIECE_BYTES_MAX && is_in_order
}

/// Why a stream does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PieceError {
    /// There is no such codec.
    #[error("a piece is packed by a codec of number {0}, which there is not")]
    Codec(u8),
    /// Lengths that no piece has.
    #[error("a piece of {body} bytes that are to stand for {plain}")]
    Size {
        /// Bytes of the body.
        body: usize,
        /// Bytes that they are to stand for.
        plain: usize,
    },
    /// The body is something else.
    #[error("a packed piece does not unpack to {0} bytes")]
    Damaged(usize),
    /// The end came before that of a piece.
    #[error("the stream ended in the midst of a piece")]
    Torn,
}

/// What is next in a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes are needed.
    More,
    /// So many of the bytes behind those that were taken are the stream's own.
    Plain(usize),
    /// These are the stream's own, after unpacking; they stood in so many.
    Unpacked(Vec<u8>, usize),
}

#[derive(Debug)]
enum State {
    Head,
    Plain { left: usize },
    Packed { number: u8, length: usize, plain: usize, body: Vec<u8> },
    Broken(PieceError),
}

/// Takes a stream apart. Holds no more than a piece that has not come to its end.
#[derive(Debug)]
pub struct Reader {
    state: State,
    head: [u8; HEAD_BYTES],
    read: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Reader { state: State::Head, head: [0; HEAD_BYTES], read: 0 }
    }
}

impl Reader {
    /// Looks at what came next: how many bytes were taken, and what comes of them. Bytes that are told as
    /// [`Next::Plain`] stand behind those, and count as given.
    ///
    /// # Errors
    /// [`PieceError`], from then on each time.
    pub fn next(&mut self, bytes: &[u8]) -> Result<(usize, Next), PieceError> {
        let result = self.advance(bytes);
        if let Err(error) = result {
            self.state = State::Broken(error);
        }
        result
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<(usize, Next), PieceError> {
        let mut at = 0;
        if matches!(self.state, State::Head) {
            at = self.take_head(bytes)?;
        }
        let rest = &bytes[at..];
        match &mut self.state {
            State::Broken(error) => Err(*error),
            State::Head => Ok((at, Next::More)),
            _ if rest.is_empty() => Ok((at, Next::More)),
            State::Plain { left } => {
                let length = rest.len().min(*left);
                *left -= length;
                if *left == 0 {
                    self.state = State::Head;
                }
                Ok((at, Next::Plain(length)))
            }
            State::Packed { number, length, plain, body } => {
                let wanted = rest.len().min(*length - body.len());
                body.extend_from_slice(&rest[..wanted]);
                at += wanted;
                if body.len() < *length {
                    return Ok((at, Next::More));
                }
                let mut unpacked = vec![0; *plain];
                unpack(*number, body, &mut unpacked).map_err(|_| PieceError::Damaged(*plain))?;
                let length = *length;
                self.state = State::Head;
                Ok((at, Next::Unpacked(unpacked, length)))
            }
        }
    }

    /// Takes what there is of a head; the state is another once it is all there.
    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, PieceError> {
        let wanted = bytes.len().min(HEAD_BYTES - self.read);
        self.head[self.read..self.read + wanted].copy_from_slice(&bytes[..wanted]);
        self.read += wanted;
        if self.read < HEAD_BYTES {
            return Ok(wanted);
        }
        self.read = 0;
        let [number, b0, b1, b2, plain @ ..] = self.head;
        let (body, plain) =
            (u32::from_le_bytes([b0, b1, b2, 0]) as usize, u32::from_le_bytes(plain) as usize);
        if Codec::ALL.iter().all(|codec| codec.number() != number) {
            return Err(PieceError::Codec(number));
        }
        if !sizes_fit(number, body, plain) {
            return Err(PieceError::Size { body, plain });
        }
        self.state = match number {
            0 => State::Plain { left: plain },
            _ => State::Packed { number, length: body, plain, body: Vec::new() },
        };
        Ok(wanted)
    }

    /// Whether the stream may end here.
    ///
    /// # Errors
    /// [`PieceError::Torn`] if a piece has begun, and what it broke by before.
    pub fn end(&self) -> Result<(), PieceError> {
        match &self.state {
            State::Head if self.read == 0 => Ok(()),
            State::Broken(error) => Err(*error),
            State::Head | State::Plain { .. } | State::Packed { .. } => Err(PieceError::Torn),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::Packer;

    /// All that a stream says, given in such portions.
    fn read(stream: &[u8], portion: usize) -> Result<Vec<u8>, PieceError> {
        let (mut reader, mut all) = (Reader::default(), Vec::new());
        for mut bytes in stream.chunks(portion) {
            while !bytes.is_empty() {
                let (taken, next) = reader.next(bytes)?;
                bytes = &bytes[taken..];
                match next {
                    Next::More => assert!(bytes.is_empty(), "bytes are left over"),
                    Next::Plain(length) => {
                        all.extend_from_slice(&bytes[..length]);
                        bytes = &bytes[length..];
                    }
                    Next::Unpacked(unpacked, _) => all.extend(unpacked),
                }
            }
        }
        reader.end().map(|()| all)
    }

    fn piece(codec: Codec, plain: &[u8]) -> Vec<u8> {
        let mut packer = Packer::new().unwrap();
        match packer.pack(codec, plain) {
            Some(packed) => [&head(codec, packed.len(), plain.len())[..], packed].concat(),
            None => [&head(Codec::Plain, plain.len(), plain.len())[..], plain].concat(),
        }
    }

    #[test]
    fn hostile_pieces_end_the_stream_by_name() {
        let too_large = (PIECE_BYTES_MAX + 1) as u32;
        let told = |number: u8, body: u32, plain: u32| {
            let head = [&[number][..], &body.to_le_bytes()[..3], &plain.to_le_bytes()].concat();
            read(&[&head[..], &[0; 100]].concat(), 1000)
        };
        assert_eq!(told(3, 9, 10), Err(PieceError::Codec(3)));
        for (number, body, plain) in [
            (0, 0, 0),
            (1, 0, 5),
            (0, 5, 6),
            (1, 6, 6),
            (2, 50, too_large),
            (0, too_large, too_large),
            (1, 9, u32::MAX),
        ] {
            let (body_bytes, plain_bytes) = (body as usize, plain as usize);
            assert_eq!(
                told(number, body, plain),
                Err(PieceError::Size { body: body_bytes, plain: plain_bytes })
            );
        }
        assert_eq!(told(1, 50, 70), Err(PieceError::Damaged(70)));
        let sound = piece(Codec::Zstd1, &[7; 5000]);
        assert_eq!(read(&sound[..sound.len() - 1], 9), Err(PieceError::Torn));
        assert_eq!(read(&sound[..3], 9), Err(PieceError::Torn));
        // Another length than it unpacks to.
        let wrong = [&head(Codec::Zstd1, sound.len() - HEAD_BYTES, 4999)[..], &sound[HEAD_BYTES..]].concat();
        assert_eq!(read(&wrong, 9), Err(PieceError::Damaged(4999)));
    }

    #[test]
    fn a_stream_that_broke_stays_broken() {
        let mut reader = Reader::default();
        let error = PieceError::Codec(9);
        assert_eq!(reader.next(&[9; 8]), Err(error));
        assert_eq!((reader.next(&[0; 8]), reader.end()), (Err(error), Err(error)));
    }

    proptest! {
        #[test]
        fn a_stream_reads_back_however_it_is_cut(
            pieces in prop::collection::vec((0_usize..4, prop::collection::vec(0_u8..3, 1..3000)), 0..8),
            portion in 1_usize..5000,
        ) {
            let stream: Vec<u8> = pieces.iter().flat_map(|(codec, plain)| piece(Codec::ALL[*codec], plain)).collect();
            let plain: Vec<u8> = pieces.iter().flat_map(|(_, plain)| plain.clone()).collect();
            prop_assert_eq!(read(&stream, portion), Ok(plain));
        }

        #[test]
        fn hostile_bytes_never_panic(stream in prop::collection::vec(any::<u8>(), 0..300), portion in 1_usize..50) {
            let _ = read(&stream, portion);
        }
    }
}
