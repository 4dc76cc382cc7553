//! How bytes of a disk are packed on the way from a host. Each fragment is packed alone.

use std::fmt;

use flate2::{Decompress, FlushDecompress, Status};

use crate::fastlz;
use crate::frame::u32_at;

/// A way of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Bytes as they are.
    None,
    /// A zlib stream.
    Zlib,
    /// A FastLZ block.
    FastLz,
    /// Runs of zeros left out.
    SkipZ,
}

impl Codec {
    /// Its number on the wire.
    pub fn number(self) -> u32 {
        match self {
            Codec::None => 0,
            Codec::Zlib => 1,
            Codec::FastLz => 2,
            Codec::SkipZ => 3,
        }
    }

    pub(crate) fn of(number: u32) -> Result<Codec, String> {
        Ok(match number {
            0 => Codec::None,
            1 => Codec::Zlib,
            2 => Codec::FastLz,
            3 => Codec::SkipZ,
            other => return Err(format!("compression {other}")),
        })
    }

    /// Unpacks a fragment, which must fill `out`.
    pub(crate) fn unpack(self, packed: &[u8], out: &mut [u8]) -> Result<(), String> {
        match self {
            Codec::SkipZ if is_raw(packed, out.len()) => raw(packed, out),
            Codec::None => raw(packed, out),
            Codec::Zlib => zlib(packed, out),
            Codec::FastLz => fastlz::decode(packed, out),
            Codec::SkipZ => skipz(packed, out),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::None => "none",
            Codec::Zlib => "zlib",
            Codec::FastLz => "fastlz",
            Codec::SkipZ => "skipz",
        })
    }
}

/// Hosts were seen that leave the number of SkipZ in place where they packed nothing.
fn is_raw(packed: &[u8], plain: usize) -> bool {
    packed.len() == plain && (packed.len() < 4 || u32_at(packed, 0) as usize != plain)
}

fn raw(packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    if packed.len() != out.len() {
        return Err(format!("{} bytes, not packed, for {} of the disk", packed.len(), out.len()));
    }
    out.copy_from_slice(packed);
    Ok(())
}

fn zlib(packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut stream = Decompress::new(true);
    let status = stream.decompress(packed, out, FlushDecompress::Finish);
    let wrong = |why: &str| Err(format!("a zlib fragment of {} bytes {why}", packed.len()));
    match status {
        Ok(Status::StreamEnd) if stream.total_out() == out.len() as u64 => Ok(()),
        Ok(_) => wrong("does not hold what it should"),
        Err(_) => wrong("is damaged"),
    }
}

/// ```text
/// u32 plain length | u32 0 | runs: u32 offset, u32 length, bytes      what lies between is zeros
/// ```
fn skipz(packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("a SkipZ fragment of {} bytes {why}", packed.len()));
    if packed.len() < 8 || u32_at(packed, 0) as usize != out.len() {
        return wrong("is for another length");
    }
    let (mut at, mut filled) = (8, 0);
    while at < packed.len() {
        if packed.len() - at < 8 {
            return wrong("ends within a run");
        }
        let (offset, length) = (u32_at(packed, at) as usize, u32_at(packed, at + 4) as usize);
        at += 8;
        if offset < filled || length > out.len() || offset > out.len() - length || length > packed.len() - at
        {
            return wrong("has a run that does not fit");
        }
        out[filled..offset].fill(0);
        out[offset..offset + length].copy_from_slice(&packed[at..at + length]);
        at += length;
        filled = offset + length;
    }
    out[filled..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn pack_zlib(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn pack_skipz(plain: &[u8]) -> Vec<u8> {
        let mut out = [(plain.len() as u32).to_le_bytes(), [0; 4]].concat();
        let mut at = 0;
        while at < plain.len() {
            let length = plain[at..].iter().take_while(|byte| **byte != 0).count();
            if length == 0 {
                at += 1;
                continue;
            }
            out.extend([(at as u32).to_le_bytes(), (length as u32).to_le_bytes()].concat());
            out.extend(&plain[at..at + length]);
            at += length;
        }
        out
    }

    #[test]
    fn zeros_are_eight_bytes_of_skipz() {
        let mut out = [7; 1000];
        Codec::SkipZ.unpack(&[0xe8, 3, 0, 0, 0, 0, 0, 0], &mut out).unwrap();
        assert_eq!(out, [0; 1000]);
    }

    #[test]
    fn raw_bytes_under_the_number_of_skipz_are_taken_as_they_are() {
        let mut out = [0; 16];
        Codec::SkipZ.unpack(b"not packed at al", &mut out).unwrap();
        assert_eq!(&out, b"not packed at al");
        // Of eight bytes that say eight it is the packed form: all zeros.
        let mut out = [1; 8];
        Codec::SkipZ.unpack(&[8, 0, 0, 0, 0, 0, 0, 0], &mut out).unwrap();
        assert_eq!(out, [0; 8]);
    }

    #[test]
    fn damaged_fragments_are_errors() {
        let mut out = [0; 100];
        let run = |offset: u32, length: u32| {
            [100u32.to_le_bytes(), [0; 4], offset.to_le_bytes(), length.to_le_bytes()].concat()
        };
        for packed in [
            vec![],
            vec![100, 0, 0, 0, 0],
            run(0, 1),
            run(101, 0),
            run(u32::MAX, 1),
            run(1, u32::MAX),
            [run(50, 0), run(0, 0)[8..].to_vec()].concat(),
        ] {
            assert!(Codec::SkipZ.unpack(&packed, &mut out).is_err(), "{packed:?}");
        }
        let packed = pack_zlib(&[5; 100]);
        assert!(Codec::Zlib.unpack(&packed, &mut out).is_ok());
        assert!(Codec::Zlib.unpack(&packed[..packed.len() - 5], &mut out).is_err());
        assert!(Codec::Zlib.unpack(&pack_zlib(&[5; 99]), &mut out).is_err());
        assert!(Codec::Zlib.unpack(&pack_zlib(&[5; 101]), &mut out).is_err());
        assert!(Codec::None.unpack(&[1; 99], &mut out).is_err());
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_out(plain in prop::collection::vec(prop::sample::select(vec![0u8, 0, 0, 1, 255]), 16..3000)) {
            let mut out = vec![9; plain.len()];
            for (codec, packed) in [(Codec::Zlib, pack_zlib(&plain)), (Codec::SkipZ, pack_skipz(&plain)),
                                    (Codec::FastLz, fastlz::encode(&plain)), (Codec::None, plain.clone())] {
                if codec == Codec::SkipZ && is_raw(&packed, plain.len()) {
                    continue;
                }
                out.fill(9);
                prop_assert_eq!(codec.unpack(&packed, &mut out), Ok(()));
                prop_assert_eq!(&out, &plain);
            }
        }

        #[test]
        fn garbage_never_panics(packed: Vec<u8>, length in 0usize..2000, number in 0u32..4) {
            let _ = Codec::of(number).unwrap().unpack(&packed, &mut vec![0; length]);
        }
    }
}
