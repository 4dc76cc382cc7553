//! One module per command; each returns how the program ends.

pub mod agent;
pub mod bench;
mod bitmap;
mod clone;
pub mod copy;
mod disk_run;
pub mod documents;
pub mod hash;
pub mod import;
pub mod inventory;
pub mod lab;
pub mod link;
pub mod live;
mod manifest;
pub mod migrate;
pub mod nbd;
pub mod nfc;
pub mod plan;
pub mod recorded;
pub mod relay;
pub mod serve_disk;
pub mod show;
mod stream;
pub mod tune;
pub mod vddk;
pub mod verify;
pub mod warm;
