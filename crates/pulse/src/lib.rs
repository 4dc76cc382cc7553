//! A guest of drover's own for measurements and tests: it beats, writes to its memory, and proves it.
//!
//! ```text
//! guest.s   the guest: no operating system, 4 KiB, part of this program
//! image     the wall around it, and its settings
//! machine   a QEMU with it, or one that waits for it
//! voice     what it says on its serial line, and when that was heard
//! ```
//!
//! What counts in a live move is how a guest writes to its memory and for how long it stands still. So this one writes at a set rate, says a
//! hundred times a second that it is there, and finds on demand each page that is not as it left it.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod image;
mod machine;
mod voice;

pub use error::PulseError;
pub use image::{BEATS_PER_SECOND, MEMORY_MIB_MAX, MEMORY_MIB_MIN, PAGE_BYTES, pages_max};
pub use machine::{Pulse, PulseSpec};
pub use voice::{Line, Verdict, Voice};
