//! Compression of what goes over a link, and whether it pays. Pure: figures and bytes go in.
//!
//! ```text
//! codec    packs and unpacks
//! chooser  whether packing pays, and how much of it
//! choice   what it wants of one block, and how that is done
//! pieces   a byte stream in pieces, each plain or packed
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod choice;
mod chooser;
mod codec;
pub mod pieces;

pub use choice::{Choice, Lesson};
pub use chooser::{Chooser, Sampled, TRIAL_SHARE_MAX};
pub use codec::{Codec, PackError, Packer, unpack};
