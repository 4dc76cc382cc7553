//! Disk images read in this process: qcow2, VMDK, VHD, VHDX, or raw bytes inside another file.
//!
//! ```text
//! open      a path and a format become an ImageDisk; the chain of images below it
//! probe     what format a file has, for who asks
//! disk      ImageDisk: the Disk and Lane over a chain
//! ova       appliances: a machine's description and its disks
//! map       where the bytes of a guest span are: Run, Place, Layer, Chain
//! unpack    compressed units
//! source    bytes at offsets: files, parts of files
//! files     which other files an image may name
//! tables    a bounded cache of tables
//! fault     errors in words, and numbers out of untrusted bytes
//! ```
//!
//! Each format is a [`map::Layer`] that says where bytes are and reads none of them. The lane then
//! reads straight from the host file into the request's buffer: no copy, no process, no socket
//! between. Everything in an image is untrusted: it may name files only by a stated rule
//! ([`OpenOptions`]), and what it claims is held against bounds before memory is taken.
//! What is read and what is refused: `docs/reference/formats.md`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod disk;
mod fault;
mod files;
mod map;
mod open;
mod ova;
mod probe;
mod qcow2;
mod raw;
mod source;
mod tables;
mod unpack;
mod vhd;
mod vhdx;
mod vmdk;

pub use disk::ImageDisk;
pub use files::References;
pub use open::{Format, OpenOptions, open, open_part};
pub use ova::{ManifestCheck, Ova, OvaDisk};
pub use probe::{probe, probe_head};
