//! Windows of time as people write them: hours of each day, of days of the week, or between dates, on the clock of a time zone.
//!
//! Pure: the time is an argument. Only the rules of a zone come from the machine, when its name is read.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod clock;
mod list;
mod read;
mod window;

pub use list::{Opening, WINDOWS_MAX, Windows};
pub use read::WindowError;
pub use window::Window;

/// A moment in UTC, as [`Window::moment`] has it in the window's zone: `Sat 2026-12-05 22:00 UTC`.
pub fn utc_moment(ms: u64) -> String {
    clock::Clock::utc().moment(ms)
}

#[cfg(test)]
mod tests;
