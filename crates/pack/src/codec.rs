//! Packs and unpacks. What comes from a peer unpacks to exactly as many bytes as were announced, or is refused.

use std::io;

/// How bytes are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Codec {
    /// Not at all.
    Plain,
    /// LZ4, one block.
    Lz4,
    /// Zstandard at level 1.
    Zstd1,
    /// Zstandard at level 3.
    Zstd3,
}

impl Codec {
    /// All of them, the cheapest first.
    pub const ALL: [Codec; 4] = [Codec::Plain, Codec::Lz4, Codec::Zstd1, Codec::Zstd3];

    /// Its number in messages. How hard it was tried does not matter to who unpacks.
    pub fn number(self) -> u8 {
        match self {
            Codec::Plain => 0,
            Codec::Lz4 => 1,
            Codec::Zstd1 | Codec::Zstd3 => 2,
        }
    }

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Plain => "plain",
            Codec::Lz4 => "lz4",
            Codec::Zstd1 => "zstd-1",
            Codec::Zstd3 => "zstd-3",
        }
    }

    /// Its place in [`Codec::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Bytes that cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// There is no such codec.
    #[error("a codec of number {0}")]
    Unknown(u8),
    /// They are something else, or too many.
    #[error("packed bytes do not unpack to {0} bytes")]
    Damaged(usize),
}

/// A sample of a block.
const PROBE_BYTES: usize = 4 << 10;

/// Packs, and keeps what it needs for that from one time to the next.
pub struct Packer {
    zstd: [zstd::bulk::Compressor<'static>; 2],
    packed: Vec<u8>,
}

impl Packer {
    /// A packer.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new() -> io::Result<Packer> {
        Ok(Packer {
            zstd: [zstd::bulk::Compressor::new(1)?, zstd::bulk::Compressor::new(3)?],
            packed: Vec::new(),
        })
    }

    /// Whether some samples of the bytes become smaller at all: noise is found out for a hundredth of the cost.
    pub fn may_pack(&mut self, plain: &[u8]) -> bool {
        if plain.len() < 4 * PROBE_BYTES {
            return true;
        }
        let places = [0, plain.len() / 2, plain.len() - PROBE_BYTES];
        places.into_iter().any(|at| {
            let packed = self.pack(Codec::Lz4, &plain[at..at + PROBE_BYTES]).map_or(PROBE_BYTES, <[u8]>::len);
            packed * 20 < PROBE_BYTES * 19
        })
    }

    /// The first bytes of what was packed last.
    pub fn packed(&self, length: usize) -> &[u8] {
        &self.packed[..length]
    }

    /// Packs bytes; `None` if that does not make them smaller.
    pub fn pack(&mut self, codec: Codec, plain: &[u8]) -> Option<&[u8]> {
        let length = match codec {
            Codec::Plain => return None,
            Codec::Lz4 => {
                self.packed.resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
                lz4_flex::block::compress_into(plain, &mut self.packed).ok()?
            }
            Codec::Zstd1 | Codec::Zstd3 => {
                // No room for more than is worth sending: what would be larger ends in an error early.
                self.packed.resize(plain.len(), 0);
                let level = &mut self.zstd[usize::from(codec == Codec::Zstd3)];
                level.compress_to_buffer(plain, &mut self.packed[..]).ok()?
            }
        };
        (length < plain.len()).then(|| &self.packed[..length])
    }
}

/// Unpacks bytes into as many as there must be.
///
/// # Errors
/// When they are not exactly so many, or it makes no sense.
pub fn unpack(number: u8, body: &[u8], plain: &mut [u8]) -> Result<(), PackError> {
    let damaged = PackError::Damaged(plain.len());
    let found = match number {
        0 if body.len() == plain.len() => {
            plain.copy_from_slice(body);
            return Ok(());
        }
        0 => None,
        1 => lz4_flex::block::decompress_into(body, plain).ok(),
        2 => zstd::bulk::decompress_to_buffer(body, plain).ok(),
        number => return Err(PackError::Unknown(number)),
    };
    if found == Some(plain.len()) { Ok(()) } else { Err(damaged) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|at| b"drover moves disks, "[at % 20] ^ (at / 997) as u8).collect()
    }

    fn unpacked(number: u8, body: &[u8], length: usize) -> Option<Vec<u8>> {
        let mut plain = vec![0xee; length];
        unpack(number, body, &mut plain).ok().map(|()| plain)
    }

    #[test]
    fn what_was_packed_unpacks_to_what_it_was() {
        let mut packer = Packer::new().unwrap();
        for length in [1000, 65536, 1 << 20] {
            let plain = text(length);
            for codec in [Codec::Lz4, Codec::Zstd1, Codec::Zstd3] {
                let packed = packer.pack(codec, &plain).expect("text packs").to_vec();
                assert!(packed.len() < length);
                assert_eq!(unpacked(codec.number(), &packed, length), Some(plain.clone()));
            }
        }
    }

    #[test]
    fn noise_is_not_packed() {
        let mut noise = vec![0; 65536];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let mut packer = Packer::new().unwrap();
        assert!(Codec::ALL.into_iter().all(|codec| packer.pack(codec, &noise).is_none()));
    }

    #[test]
    fn another_length_than_announced_is_refused() {
        let plain = text(5000);
        let mut packer = Packer::new().unwrap();
        for codec in [Codec::Lz4, Codec::Zstd1] {
            let packed = packer.pack(codec, &plain).unwrap().to_vec();
            for length in [0, 4999, 5001] {
                assert_eq!(unpacked(codec.number(), &packed, length), None, "{codec:?} {length}");
            }
        }
        assert_eq!(unpacked(0, &plain, 4999), None);
        assert_eq!(unpacked(3, &[], 0), None);
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(
            number in 0u8..4, body in prop::collection::vec(any::<u8>(), 0..300), length in 0usize..5000,
        ) {
            unpacked(number, &body, length);
        }
    }
}
