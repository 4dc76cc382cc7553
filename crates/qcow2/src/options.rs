use std::io;

use crate::geometry::Geometry;

/// How an image is made and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qcow2Options {
    /// Bytes of a cluster: a power of two, 4 KiB to 2 MiB. An image that is there already keeps its own.
    pub cluster_bytes: u64,
    /// What is set aside when the image is made.
    pub preallocation: Preallocation,
    /// How the image says its compressed clusters are packed. An image that is there already keeps its own.
    pub compression: Compression,
    /// Packs whole clusters as they are written.
    pub compress: bool,
}

impl Default for Qcow2Options {
    fn default() -> Self {
        Qcow2Options {
            // QEMU's own default, and drover's block: one block never touches two clusters.
            cluster_bytes: 64 << 10,
            preallocation: Preallocation::Off,
            compression: Compression::Zlib,
            compress: false,
        }
    }
}

/// What of an image is set aside when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preallocation {
    /// Nothing.
    #[default]
    Off,
    /// The tables, but no room for data.
    Metadata,
    /// Tables, and room for the data without writing it.
    Falloc,
    /// Tables, and the data as written zeros.
    Full,
}

/// How clusters are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Deflate: every QEMU reads it.
    #[default]
    Zlib,
    /// Zstandard, several times faster: QEMU 5.1 and later read it.
    Zstd,
}

/// Spec: 512 bytes to 2 MiB. Below 4 KiB tables would not be whole pages, which direct I/O wants.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 12..=21;

impl Qcow2Options {
    /// Refuses what cannot be made, before anything is touched.
    ///
    /// # Errors
    /// With what to choose instead.
    pub fn check_for(&self, size: u64) -> io::Result<()> {
        self.check().and_then(|bits| Geometry::new(bits, size)).map(drop)
    }

    pub(crate) fn check(&self) -> io::Result<u32> {
        let bits = self.cluster_bytes.trailing_zeros();
        if !self.cluster_bytes.is_power_of_two() || !CLUSTER_BITS.contains(&bits) {
            let bytes = self.cluster_bytes;
            return Err(refusal(format!(
                "a cluster of {bytes} bytes; choose a power of two, 4 KiB to 2 MiB"
            )));
        }
        if self.compress && self.preallocation != Preallocation::Off {
            let text = "compressed clusters have no place set aside; choose compression or preallocation";
            return Err(refusal(text));
        }
        Ok(bits)
    }

    /// Whether clusters that turn zero give their room back.
    pub(crate) fn punches(&self) -> bool {
        matches!(self.preallocation, Preallocation::Off | Preallocation::Metadata)
    }
}

/// What the user asked for cannot be done.
pub(crate) fn refusal(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text.into())
}

/// The image is not what it should be.
pub(crate) fn corrupt(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}
