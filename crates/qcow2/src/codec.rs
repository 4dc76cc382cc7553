//! Packed clusters.
//!
//! Deflate without a header and with a window of 4 KiB (QEMU's reader has no more), or one Zstandard
//! frame. Behind either the last sector may hold anything.

use std::io;

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use zstd::bulk::Compressor as ZstdCompressor;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use crate::options::{Compression, corrupt};

/// QEMU inflates with a window of 2^12 bytes.
const WINDOW_BITS: u8 = 12;
/// The libraries' own defaults, which QEMU uses, too.
const ZLIB_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;

/// One lane's packer.
pub enum Packer {
    /// Deflate.
    Zlib(Box<Compress>),
    /// Zstandard.
    Zstd(Box<ZstdCompressor<'static>>),
}

impl Packer {
    pub fn new(compression: Compression) -> io::Result<Packer> {
        Ok(match compression {
            Compression::Zlib => Packer::Zlib(deflater()),
            Compression::Zstd => Packer::Zstd(Box::new(ZstdCompressor::new(ZSTD_LEVEL)?)),
        })
    }

    /// Packs `cluster` with the help of `room`; `None` if that does not make it smaller.
    pub fn pack<'a>(&mut self, cluster: &[u8], room: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        // Deflate adds 5 bytes to a block that does not shrink, Zstandard 3 to 128 KiB.
        room.resize(cluster.len() + cluster.len() / 8 + 64, 0);
        let length = match self {
            Packer::Zlib(compress) => {
                compress.reset();
                match compress.compress(cluster, room, FlushCompress::Finish) {
                    Ok(Status::StreamEnd) => compress.total_out() as usize,
                    _ => {
                        // zlib-rs 0.6 forgets at a reset where its output stood, and panics later.
                        *compress = deflater();
                        return None;
                    }
                }
            }
            Packer::Zstd(compressor) => compressor.compress_to_buffer(cluster, room.as_mut_slice()).ok()?,
        };
        (length < cluster.len()).then(|| &room[..length])
    }
}

fn deflater() -> Box<Compress> {
    Box::new(Compress::new_with_window_bits(flate2::Compression::new(ZLIB_LEVEL), false, WINDOW_BITS))
}

/// Unpacks a cluster: fills `out`, or fails.
///
/// # Errors
/// When `packed` does not hold that many bytes.
pub fn unpack(compression: Compression, packed: &[u8], out: &mut [u8]) -> io::Result<()> {
    let damaged = || corrupt("a packed cluster is damaged");
    let filled = match compression {
        Compression::Zlib => {
            let mut inflate = Decompress::new_with_window_bits(false, WINDOW_BITS);
            let status = inflate.decompress(packed, out, FlushDecompress::Finish);
            status.map_err(|_| damaged())?;
            inflate.total_out() as usize
        }
        Compression::Zstd => {
            let mut decoder = Decoder::new()?;
            let (mut input, mut output) = (InBuffer::around(packed), OutBuffer::around(&mut *out));
            // Each turn takes or gives a byte at least, else it ends.
            loop {
                let before = (input.pos(), output.pos());
                let left = decoder.run(&mut input, &mut output).map_err(|_| damaged())?;
                if left == 0 || before == (input.pos(), output.pos()) {
                    break output.pos();
                }
            }
        }
    };
    if filled == out.len() { Ok(()) } else { Err(damaged()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_come_back_as_they_went_whatever_follows_them() {
        let cluster: Vec<u8> = (0..65536u32).map(|at| (at / 7 % 251) as u8).collect();
        for compression in [Compression::Zlib, Compression::Zstd] {
            let mut packer = Packer::new(compression).unwrap();
            for _ in 0..2 {
                let mut room = Vec::new();
                let length = packer.pack(&cluster, &mut room).unwrap().len();
                assert!(length < 30_000);
                let mut out = vec![0; 65536];
                unpack(compression, &room[..length + 300], &mut out).unwrap();
                assert!(out == cluster);
                assert!(unpack(compression, &room[..length / 2], &mut out).is_err());
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_not_packed() {
        let mut word = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 56) as u8
        })
        .take(65536)
        .collect();
        for compression in [Compression::Zlib, Compression::Zstd] {
            let mut packer = Packer::new(compression).unwrap();
            for bytes in [65536, 4096, 4096, 4096, 65536] {
                assert_eq!(packer.pack(&noise[..bytes], &mut Vec::new()), None);
            }
        }
    }
}
