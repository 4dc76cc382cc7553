//! One module per command; each returns how the program ends.

pub mod copy;
pub mod documents;
pub mod inventory;
pub mod migrate;
pub mod plan;
pub mod recorded;
pub mod serve_disk;
pub mod show;
