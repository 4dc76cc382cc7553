//! Compressed units: clusters of qcow2, grains of VMDK.

use std::io;

use drover_types::ByteSpan;
use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use crate::fault::{Numbers, about, damaged};
use crate::source::ReadAt;

/// A run of guest bytes that is compressed as a whole.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    /// Where it lies.
    pub(crate) source: &'a dyn ReadAt,
    /// Which bytes of the source; the stream may end before them. `Codec::Grain` finds its own
    /// length at the start and uses this one as a bound.
    pub(crate) at: ByteSpan,
    /// How it is compressed.
    pub(crate) codec: Codec,
    /// Bytes it unpacks to, at most [`UNIT_BYTES_MAX`].
    pub(crate) unit_bytes: u64,
    /// Bytes it must give at least: the last unit of a disk may be short.
    pub(crate) needed_bytes: u64,
}

/// How a unit is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// Deflate without head or checksum (qcow2).
    Deflate,
    /// Zstandard frames (qcow2).
    Zstd,
    /// A marker (first sector of the unit, length), then a zlib stream with its checksum (VMDK).
    Grain {
        /// The sector that the marker must tell.
        sector: u64,
    },
}

/// The largest unit: a qcow2 cluster of 2 MiB.
pub(crate) const UNIT_BYTES_MAX: u64 = 2 << 20;

/// The largest compressed unit: incompressible data grows a little, and qcow2 counts in sectors.
const PACKED_BYTES_MAX: u64 = 2 * UNIT_BYTES_MAX;

/// A zstd frame may ask for a window of 2 GiB; no unit needs more than its own size.
const ZSTD_WINDOW_LOG_MAX: u32 = 22;

/// Marker before a compressed grain: `u64` sector, `u32` bytes, little endian.
/// Source: VMware, "Virtual Disk Format 5.0", "Markers".
const MARKER_BYTES: u64 = 12;

/// One lane's decoders, and the unit unpacked last: a request that starts in the middle of one is
/// mostly followed by one that goes on there.
#[derive(Default)]
pub(crate) struct Unpacker {
    packed: Vec<u8>,
    unpacked: Vec<u8>,
    /// What `unpacked` holds: address of the source, offset in it.
    held: Option<(usize, u64)>,
    deflate: Option<Decompress>,
    zlib: Option<Decompress>,
    zstd: Option<Decoder<'static>>,
}

impl Unpacker {
    /// Fills `out` with what the unit unpacks to, from byte `skip` on.
    pub(crate) fn read(&mut self, unit: &Packed<'_>, skip: u64, out: &mut [u8]) -> io::Result<()> {
        assert!(unit.unit_bytes <= UNIT_BYTES_MAX, "formats check the size of their units");
        if skip == 0 && out.len() as u64 == unit.unit_bytes {
            self.load(unit)?;
            return self.unpack(unit, out).map(drop);
        }
        let key = ((unit.source as *const dyn ReadAt).addr(), unit.at.offset);
        if self.held != Some(key) {
            self.held = None;
            self.load(unit)?;
            let mut unpacked = std::mem::take(&mut self.unpacked);
            unpacked.resize(unit.unit_bytes as usize, 0);
            let result = self.unpack(unit, &mut unpacked);
            self.unpacked = unpacked;
            let length = result?;
            self.unpacked.truncate(length);
            self.held = Some(key);
        }
        let bytes = self.unpacked.get(skip as usize..skip as usize + out.len());
        out.copy_from_slice(bytes.ok_or_else(|| damaged("a compressed unit is too short"))?);
        Ok(())
    }

    /// Reads the compressed bytes.
    fn load(&mut self, unit: &Packed<'_>) -> io::Result<()> {
        let Codec::Grain { sector } = unit.codec else { return self.load_bytes(unit.source, unit.at) };
        let mut marker = [0; MARKER_BYTES as usize];
        unit.source.read_at(unit.at.offset, &mut marker)?;
        let (found, length) = (marker[..].le64(0)?, u64::from(marker[..].le32(8)?));
        if found != sector || length == 0 || length + MARKER_BYTES > unit.at.length {
            let at = unit.at.offset;
            return Err(damaged(format!(
                "the grain at {at:#x} says it is sector {found} with {length} bytes; it should be sector {sector}"
            )));
        }
        self.load_bytes(unit.source, ByteSpan::new(unit.at.offset + MARKER_BYTES, length))
    }

    fn load_bytes(&mut self, source: &dyn ReadAt, at: ByteSpan) -> io::Result<()> {
        if at.length > PACKED_BYTES_MAX {
            return Err(damaged(format!("a compressed unit of {} bytes", at.length)));
        }
        self.packed.resize(at.length as usize, 0);
        source.read_at(at.offset, &mut self.packed)
    }

    /// Unpacks what was loaded; returns how many bytes it gave.
    fn unpack(&mut self, unit: &Packed<'_>, out: &mut [u8]) -> io::Result<usize> {
        let packed = &self.packed[..];
        let result = match unit.codec {
            Codec::Deflate => {
                inflate(self.deflate.get_or_insert_with(|| Decompress::new(false)), false, packed, out)
            }
            Codec::Grain { .. } => {
                inflate(self.zlib.get_or_insert_with(|| Decompress::new(true)), true, packed, out)
            }
            Codec::Zstd => unzstd(&mut self.zstd, packed, out),
        };
        let what = || format!("compressed unit at {:#x} of {}", unit.at.offset, unit.source.name());
        let length = result.map_err(|error| about(what(), error))?;
        if (length as u64) < unit.needed_bytes {
            let text = format!("it gives {length} bytes, {} are needed", unit.needed_bytes);
            return Err(about(what(), damaged(text)));
        }
        Ok(length)
    }
}

/// Inflates until `out` is full or the stream ends. With `zlib` the stream must end, so that its
/// checksum was checked.
fn inflate(decoder: &mut Decompress, zlib: bool, packed: &[u8], out: &mut [u8]) -> io::Result<usize> {
    decoder.reset(zlib);
    let mut status = step(decoder, packed, out)?;
    let length = decoder.total_out() as usize;
    if zlib && status != Status::StreamEnd {
        // What is left may be only the end mark and the checksum, which give no bytes.
        let mut over = [0];
        status = step(decoder, &packed[decoder.total_in() as usize..], &mut over)?;
        if status != Status::StreamEnd || decoder.total_out() as usize != length {
            return Err(damaged("the stream does not end where it should"));
        }
    }
    Ok(length)
}

fn step(decoder: &mut Decompress, packed: &[u8], out: &mut [u8]) -> io::Result<Status> {
    decoder.decompress(packed, out, FlushDecompress::Finish).map_err(|error| damaged(error.to_string()))
}

/// Decodes frames until `out` is full or the input ends.
fn unzstd(held: &mut Option<Decoder<'static>>, packed: &[u8], out: &mut [u8]) -> io::Result<usize> {
    let decoder = match held {
        Some(decoder) => decoder,
        None => {
            let mut decoder = Decoder::new()?;
            decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX))?;
            held.insert(decoder)
        }
    };
    decoder.reinit()?;
    let (mut input, mut output) = (InBuffer::around(packed), OutBuffer::around(out));
    while output.pos() < output.capacity() && input.pos() < packed.len() {
        let before = (input.pos(), output.pos());
        decoder.run(&mut input, &mut output).map_err(|error| damaged(error.to_string()))?;
        if (input.pos(), output.pos()) == before {
            break;
        }
    }
    Ok(output.pos())
}
