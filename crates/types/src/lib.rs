//! The words every part of drover shares: byte spans, extents, sizes, digests, secrets, rates by the time, waves, and the
//! neutral model of an inventory. Nothing here does I/O, but that a window looks up the rules of its time zone when it is read.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod calendar;
mod chain;
mod cover;
mod day_limit;
mod digest;
mod duration;
mod estimate;
mod file_name;
pub mod guest;
pub mod inventory;
mod nic_model;
mod passes;
mod secret;
mod shell_word;
pub mod shown;
mod size;
mod span;
mod text;
pub mod units;
mod wave;
mod xml;

pub use chain::chain;
pub use cover::Cover;
pub use day_limit::{DayLimit, limit_at};
pub use digest::{Digest, DigestError};
pub use drover_window::{Opening, WINDOWS_MAX, Window, WindowError, Windows, utc_moment};
pub use duration::duration;
pub use estimate::Estimate;
pub use file_name::file_name;
pub use nic_model::NicModel;
pub use passes::{PassSpan, makes_trend};
pub use secret::Secret;
pub use shell_word::shell_word;
pub use shown::{count, counted, drives_terminal, some_of};
pub use size::{Bytes, Rate, SizeError};
pub use span::{ByteSpan, Extent, ExtentKind};
pub use text::read_text;
pub use wave::{IfFailed, Wave, WaveWindow};
pub use xml::XmlBounds;

/// Bytes of one leaf of the hash tree, the grain of the journal and of every comparison.
pub const BLOCK_BYTES: u64 = 64 << 10;
