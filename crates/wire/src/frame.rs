//! Frames from bytes as they come.

use crate::{HEADER_BYTES, Header, WireError, check_more};

/// A frame that passed its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    /// The head of a message; empty otherwise.
    pub head: Vec<u8>,
    /// The rest of the payload.
    pub body: Vec<u8>,
}

/// Turns bytes into frames. Takes memory for one frame at a time, of the size that a checked header tells.
#[derive(Debug, Default)]
pub struct Decoder {
    header: Partial,
    current: Option<Current>,
}

/// A frame of which something is missing.
#[derive(Debug)]
struct Current {
    /// Its parts have their lengths already.
    frame: Frame,
    /// Bytes of them that have come.
    filled: usize,
    check: u32,
}

impl Current {
    /// What of this part has not come yet, where the next bytes belong there.
    fn rest(&mut self) -> &mut [u8] {
        let head_bytes = self.frame.head.len();
        match self.filled.checked_sub(head_bytes) {
            None => &mut self.frame.head[self.filled..],
            Some(of_body) => &mut self.frame.body[of_body..],
        }
    }

    /// So many bytes have come into [`Current::rest`].
    fn has_come(&mut self, bytes: usize) {
        // Summed up while the processor's cache holds them.
        self.check = check_more(self.check, &self.rest()[..bytes]);
        self.filled += bytes;
    }

    fn is_whole(&self) -> bool {
        self.filled == self.frame.head.len() + self.frame.body.len()
    }
}

#[derive(Debug)]
struct Partial {
    bytes: [u8; HEADER_BYTES],
    filled: usize,
}

impl Default for Partial {
    fn default() -> Self {
        Partial { bytes: [0; HEADER_BYTES], filled: 0 }
    }
}

impl Decoder {
    /// Takes bytes from the front of `bytes` until a frame is whole. `None` when all are taken and more
    /// are needed.
    ///
    /// # Errors
    /// When a frame is damaged or breaks a bound. What follows cannot be understood then.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, WireError> {
        self.take_into(bytes, |bytes| vec![0; bytes])
    }

    /// As [`Decoder::take`], into buffers that `buffer` gives: of so many bytes, whatever they are.
    ///
    /// # Errors
    /// As [`Decoder::take`].
    pub fn take_into(
        &mut self,
        bytes: &mut &[u8],
        buffer: impl FnOnce(usize) -> Vec<u8>,
    ) -> Result<Option<Frame>, WireError> {
        if self.current.is_none() && !self.take_header(bytes, buffer)? {
            return Ok(None);
        }
        while let Some(current) = &mut self.current {
            let rest = current.rest();
            let length = rest.len().min(bytes.len());
            if length == 0 {
                break;
            }
            let (now, later) = bytes.split_at(length);
            rest[..length].copy_from_slice(now);
            current.has_come(length);
            *bytes = later;
        }
        self.whole()
    }

    /// Where the next bytes belong, if so many do, at least: whoever has them elsewhere need not have them copied.
    pub fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.current.as_mut().map(Current::rest).filter(|rest| rest.len() >= bytes)
    }

    /// So many bytes were put into [`Decoder::room`]; a frame, if it is whole now.
    ///
    /// # Errors
    /// As [`Decoder::take`].
    pub fn filled(&mut self, bytes: usize) -> Result<Option<Frame>, WireError> {
        if let Some(current) = &mut self.current {
            current.has_come(bytes);
        }
        self.whole()
    }

    /// Whether bytes of a frame were taken that is not whole.
    pub fn is_within_a_frame(&self) -> bool {
        self.header.filled > 0 || self.current.is_some()
    }

    fn take_header(
        &mut self,
        bytes: &mut &[u8],
        buffer: impl FnOnce(usize) -> Vec<u8>,
    ) -> Result<bool, WireError> {
        let partial = &mut self.header;
        let length = bytes.len().min(HEADER_BYTES - partial.filled);
        partial.bytes[partial.filled..partial.filled + length].copy_from_slice(&bytes[..length]);
        partial.filled += length;
        *bytes = &bytes[length..];
        if partial.filled < HEADER_BYTES {
            return Ok(false);
        }
        partial.filled = 0;
        let header = Header::decode(&partial.bytes)?;
        let head_bytes = usize::from(header.head_bytes);
        let body_bytes = header.payload_bytes as usize - head_bytes;
        let mut body = buffer(body_bytes);
        body.resize(body_bytes, 0);
        let frame = Frame { header, head: vec![0; head_bytes], body };
        self.current = Some(Current { frame, filled: 0, check: 0 });
        Ok(true)
    }

    /// The frame that is whole, if one is.
    fn whole(&mut self) -> Result<Option<Frame>, WireError> {
        let Some(Current { frame, check, .. }) = self.current.take_if(|current| current.is_whole()) else {
            return Ok(None);
        };
        let Header { kind, sequence, payload_check, .. } = frame.header;
        if check != payload_check {
            return Err(WireError::PayloadCheck { kind, sequence });
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Kind, check};

    fn encoded(head: &[u8], body: &[u8], sequence: u64) -> Vec<u8> {
        let payload = [head, body].concat();
        let header = Header {
            head_bytes: head.len() as u16,
            sequence,
            ..Header::new(Kind::Message, 7, 0).with_payload(&payload)
        };
        [&header.encode()[..], &payload].concat()
    }

    proptest! {
        #[test]
        fn frames_come_out_whole_however_bytes_come(
            frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..50), prop::collection::vec(any::<u8>(), 0..500)), 1..8),
            cuts in prop::collection::vec(1usize..200, 1..40),
        ) {
            let mut bytes = Vec::new();
            for (at, (head, body)) in frames.iter().enumerate() {
                bytes.extend(encoded(head, body, at as u64 + 1));
            }
            let (mut decoder, mut found, mut rest, mut cuts) = (Decoder::default(), Vec::new(), &bytes[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (mut part, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                rest = after;
                if let Some(room) = decoder.room(part.len()) {
                    // What is behind counts for nothing.
                    room.fill(0xff);
                    room[..part.len()].copy_from_slice(part);
                    found.extend(decoder.filled(part.len()).unwrap().map(|frame| (frame.head, frame.body)));
                    continue;
                }
                while let Some(frame) = decoder.take(&mut part).unwrap() {
                    found.push((frame.head, frame.body));
                }
                prop_assert!(part.is_empty());
            }
            prop_assert_eq!(found, frames);
            prop_assert!(!decoder.is_within_a_frame());
        }

        #[test]
        fn a_flipped_bit_never_gives_a_frame(body in prop::collection::vec(any::<u8>(), 0..300), bit in any::<prop::sample::Index>()) {
            let mut bytes = encoded(b"head", &body, 1);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Decoder::default().take(&mut &bytes[..]).is_err());
        }

        #[test]
        fn any_bytes_are_refused_or_wait_for_more(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let taken = Decoder::default().take(&mut &bytes[..]);
            prop_assert!(!matches!(taken, Ok(Some(_))), "a check of 32 bits passed by chance");
        }
    }

    #[test]
    fn an_empty_message_is_a_frame() {
        let bytes = encoded(b"", b"", 3);
        let frame = Decoder::default().take(&mut &bytes[..]).unwrap().unwrap();
        assert_eq!((frame.header.sequence, frame.head.len(), frame.body.len()), (3, 0, 0));
        assert_eq!(frame.header.payload_check, check(b""));
    }
}
