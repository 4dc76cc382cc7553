//! qcow2 images as targets: written in this process, resumable, and consistent after a crash at any point.
//!
//! ```text
//! disk        the Disk and its lanes
//! image       what lanes share: the file, the tables, one lock; opening and closing
//! write       write, zero and read of guest spans: plan under the lock, bytes without it, publish under the lock
//! zero
//! read
//! flush       the order in which tables reach the file
//! tables      guest cluster to host cluster, and back into the file
//! allocator   host clusters and their refcounts
//! scan        opening an image that holds something: who uses which cluster, what leaked
//! create      a new image
//! table       one table as it lies in the file, and which of it the file lacks
//! entry       words of the tables
//! header      the first cluster
//! geometry    sizes that follow from the cluster size
//! codec       compressed clusters
//! host        what an image needs of the file below it
//! ```
//!
//! Format: QEMU `docs/interop/qcow2.txt`, version 3. What is promised: `docs/dev/qcow2.md`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allocator;
mod codec;
mod create;
mod disk;
mod entry;
mod flush;
mod geometry;
mod header;
mod host;
mod image;
mod options;
mod read;
mod scan;
mod table;
mod tables;
mod write;
mod zero;

pub use disk::Qcow2Disk;
pub use host::Host;
pub use options::{Compression, Preallocation, Qcow2Options};
