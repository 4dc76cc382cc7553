//! The words every part of drover shares: byte spans, extents, sizes, digests, secrets, rates by the time of day, waves, and the
//! neutral model of an inventory. Nothing here does I/O.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod calendar;
mod cover;
mod day_limit;
mod digest;
mod duration;
mod file_name;
pub mod guest;
pub mod inventory;
mod secret;
mod shown;
mod size;
mod span;
pub mod units;
mod wave;
mod xml;

pub use cover::Cover;
pub use day_limit::{DayLimit, Hours, HoursError, limit_at};
pub use digest::{Digest, DigestError};
pub use duration::duration;
pub use file_name::file_name;
pub use secret::Secret;
pub use shown::drives_terminal;
pub use size::{Bytes, Rate, SizeError};
pub use span::{ByteSpan, Extent, ExtentKind};
pub use wave::{IfFailed, Opening, Wave, WaveWindow};
pub use xml::XmlBounds;

/// Bytes of one leaf of the hash tree, the grain of the journal and of every comparison.
pub const BLOCK_BYTES: u64 = 64 << 10;
