//! Disks of an agent over a session in memory: everything but the network is real.
#![allow(clippy::unwrap_used)]

mod conformance;
mod daemon;
mod direct;
mod fence;
mod hashes;
mod hostile;
mod known;
mod left;
mod losses;
mod machines;
mod measure;
mod places;
mod reads;
mod stage;
mod withdrawn;
