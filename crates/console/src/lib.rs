//! How programs of drover's speak and end: exit codes, output whose reader may go away, signals, and what is undone
//! before they heed them.
#![forbid(unsafe_code)]
// What a person or a program reads goes through `out`, which keeps others from driving the terminal.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod exit;
pub mod out;
pub mod signals;

pub use exit::Exit;
