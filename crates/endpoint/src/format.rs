//! Formats of images, as they are told or named.

use std::path::Path;

use drover_image::Format;

/// A format, as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToldFormat {
    /// This one.
    Is(Format),
    /// By the first and last bytes.
    Auto,
}

impl ToldFormat {
    /// Bytes as they are.
    pub const RAW: ToldFormat = ToldFormat::Is(Format::Raw);
    pub(crate) const QCOW2: ToldFormat = ToldFormat::Is(Format::Qcow2);
}

/// The format of an image: what was told, else what its name ends in, else raw. Never what its content
/// looks like: a guest can write a qcow2 header at the start of a raw disk.
pub(crate) fn format_of(path: &Path, told: Option<ToldFormat>) -> ToldFormat {
    let of_ending = || {
        let ending = path.extension()?.to_str()?;
        Format::ALL.into_iter().find(|format| format.as_str() == ending).map(ToldFormat::Is)
    };
    told.or_else(of_ending).unwrap_or(ToldFormat::RAW)
}
