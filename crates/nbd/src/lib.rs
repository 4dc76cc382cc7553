//! Placeholder until its first code lands.
#![forbid(unsafe_code)]
