//! Formats of images, as they are told or named.

use std::path::Path;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Bytes as they are.
    Raw,
    /// QEMU's qcow2.
    Qcow2,
    /// VMware's VMDK.
    Vmdk,
    /// Virtual PC's VHD.
    Vhd,
    /// Hyper-V's VHDX.
    Vhdx,
    /// By the first and last bytes.
    Auto,
}

/// The format of an image: what was told, else what its name ends in, else raw. Never what its content
/// looks like: a guest can write a qcow2 header at the start of a raw disk.
pub(crate) fn format_of(path: &Path, told: Option<Format>) -> Format {
    let of_ending = || match path.extension()?.to_str()? {
        "qcow2" => Some(Format::Qcow2),
        "vmdk" => Some(Format::Vmdk),
        "vhd" => Some(Format::Vhd),
        "vhdx" => Some(Format::Vhdx),
        _ => None,
    };
    told.or_else(of_ending).unwrap_or(Format::Raw)
}
