//! The drover program.
#![forbid(unsafe_code)]
fn main() {}
