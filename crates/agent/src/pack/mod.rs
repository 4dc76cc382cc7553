//! Compression of what goes over a link.
//!
//! ```text
//! codec    packs and unpacks
//! chooser  pure: whether packing pays, and how much of it
//! ```

mod chooser;
mod codec;

pub use chooser::{Chooser, Sampled, TRIAL_SHARE_MAX};
pub use codec::{Codec, PackError, Packer, unpack};
